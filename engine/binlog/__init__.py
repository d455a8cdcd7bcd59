"""Following the server's binary log: what other sessions did to queues.

`supervisor` runs in the proxy and keeps a reader process going; `reader` is that process. The rest is pure.
"""
