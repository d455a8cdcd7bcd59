"""Follows the server's binary log, which contains other sessions' changes of queues.

`supervisor` runs in the proxy and keeps a reader process running. `reader` is that process, `pipe`
the messages between them, and `replication_adapter` the library's adapter. The rest is pure.
"""
