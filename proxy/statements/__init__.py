"""Carries out queue statements: STREAM; ACK, NACK and EXTEND; and the statements about queues.

They use a session through the protocol `proxy.session.ports.ClientSession` alone.
"""
