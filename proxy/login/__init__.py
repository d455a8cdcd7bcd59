"""Logging in, as the server authenticates each client itself: a dialogue between two legs, sans I/O.

Pure. It imports `proxy.wire`.
"""
