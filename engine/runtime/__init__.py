"""What runs: one table's dispatcher at work, calls of the store on threads, the server's clock, and what is known of
queues.

It imports the dispatcher, the catalog and the store's port.
"""
