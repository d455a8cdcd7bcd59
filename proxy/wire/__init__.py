"""The MySQL protocol as pure functions and small machines: bytes in, values out.

Nothing here opens a socket, reads a clock or knows of asyncio; whoever owns the transport feeds
what arrived and forwards what comes out. Everything that is read may be hostile: every length is
checked against what is there, and a lie is a `WireError`. Memory is bounded by named limits,
whatever the peer says that it is about to send.
"""
