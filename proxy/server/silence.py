"""How long nothing was sent to a client or received from it, from the kernel: nothing is counted for it."""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from typing import Final

LAST_SENT: Final = slice(44, 48)
LAST_RECEIVED: Final = slice(52, 56)
"""The places of tcpi_last_data_sent and tcpi_last_data_recv, in milliseconds, in Linux's struct
tcp_info."""


def silent_s(transport: asyncio.BaseTransport) -> float:
    """Seconds since the last bytes in either direction; infinity where the kernel does not report it (a unix
    socket, another system)."""
    peer = transport.get_extra_info("socket")
    if peer is None or peer.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
        return math.inf
    info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_RECEIVED.stop)
    return min(int.from_bytes(info[place], sys.byteorder) for place in (LAST_SENT, LAST_RECEIVED)) / 1000
