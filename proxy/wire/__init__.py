"""The MySQL protocol as pure functions and small machines: bytes in, values out.

Nothing here opens a socket, reads a clock or imports asyncio. The owner of the transport passes in
the bytes that arrived and forwards what comes out. All input may be hostile: every length is checked
against the bytes present, and a wrong one raises `WireError`. Memory is bounded by named limits,
whatever length the peer announces.
"""
