"""A stream of messages between the parent and a worker, over a pair of sockets.

A message is encoded as one between the reader of the binary log and its parent. The peer may read
slowly, or hang. What it can do without is offered: while more than `OFFERED_BYTES` wait for it,
offers are dropped, and the peer is sent Missed when it reads again. Other messages are rare. A peer
with more than `WAITING_BYTES_MAX` of them unread is lost.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

from engine.binlog.pipe import HEAD_BYTES, message, size_of, value_of
from proxy.server.messages import Missed

log = logging.getLogger(__name__)

OFFERED_BYTES = 4 << 20
"""Change sets of 40,000 rows: more than a worker processes in a second."""

WAITING_BYTES_MAX = 64 << 20
"""The peer hangs."""


class Channel(asyncio.Protocol):
    """One end of the stream. `receive` is called with each message, `lost` once when the peer has
    gone or hangs."""

    def __init__(self, receive: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._receive, self._lost = receive, lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._full = self._missed = False

    async def open(self, end: socket.socket) -> None:
        """Use this end of a pair of sockets."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    def send(self, value: object) -> None:
        """Send a message. Does nothing if the peer has gone."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(message(value))
        if self._transport.get_write_buffer_size() > WAITING_BYTES_MAX:
            self._transport.abort()

    def offer(self, value: object) -> None:
        """Send a message unless the peer reads too slowly."""
        if self._full:
            self._missed = True
        else:
            self.send(value)

    def close(self) -> None:
        """Close the connection when everything is written."""
        if self._transport is not None:
            self._transport.close()

    # asyncio's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=OFFERED_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer has gone."""
        self._lost()

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._full = True

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._full = False
        if self._missed:
            self._missed = False
            self.send(Missed())

    def data_received(self, data: bytes) -> None:
        """Pass on all messages that are complete."""
        received = self._received
        received += data
        at = 0
        while len(received) >= at + HEAD_BYTES:
            end = at + HEAD_BYTES + size_of(bytes(received[at : at + HEAD_BYTES]))
            if len(received) < end:
                break
            value = value_of(bytes(received[at + HEAD_BYTES : end]))
            at = end
            try:
                self._receive(value)
            except Exception:  # A fault in ackstream that concerns one message.
                log.exception(
                    "a message between processes could not be processed: %r",
                    type(value),
                    extra={"event": "channel.fault"},
                )
        del received[:at]
