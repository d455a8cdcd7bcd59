"""One client and its backing connection: relaying, classifying commands, what statements see of it.

`ports` has the protocols by which the parts see each other. It imports `proxy.transport`, `proxy.login`, `proxy.wire`,
the engine and `sqlrewrite`, and no statement.
"""
