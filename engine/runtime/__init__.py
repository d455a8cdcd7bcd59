"""The running engine: table runners, store calls on threads, the server's clock, and the known
queues.

It imports the dispatcher, the catalog and the store's port.
"""
