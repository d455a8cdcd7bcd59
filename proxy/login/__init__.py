"""Logging in, as the server authenticates each client itself: the dialogue on its two connections, sans I/O.

Pure. It imports `proxy.wire`.
"""
