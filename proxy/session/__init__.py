"""One client connection with its backing connection: relaying, classifying commands, running
internal queries.

`ports` has the protocols by which sessions, statements and the listener use each other. This folder
imports `proxy.transport`, `proxy.login`, `proxy.wire`, the engine and `sqlrewrite`, and nothing of
`proxy.statements`.
"""
