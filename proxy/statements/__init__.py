"""Carrying out what is ours: STREAM, ACK and its kin, and the statements about queues.

Each sees a session by `proxy.session.ports.ClientSession` alone.
"""
