"""A session's two connections as asyncio protocols, which report their events to the session.

`data_received` is the session's own method, because a call in between would be made for each chunk.
"""

from __future__ import annotations

import asyncio
from typing import cast

from proxy.session.session import Session


class ClientConnection(asyncio.Protocol):
    """The client connection."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.data_received = session.client_sent  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the new connection."""
        self._session.client_connected(cast(asyncio.Transport, transport))

    def eof_received(self) -> None:
        """Report that the client sends nothing more. The transport closes, when what was written is sent."""
        self._session.client_ended()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report its end."""
        self._session.client_lost()

    def pause_writing(self) -> None:
        """Report that the peer does not read fast enough."""
        self._session.client_full()

    def resume_writing(self) -> None:
        """Report that the peer has room again."""
        self._session.client_has_room()


class BackingConnection(asyncio.Protocol):
    """The backing connection."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.data_received = session.server_sent  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the new connection."""
        self._session.server_connected(cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """Report its end."""
        self._session.server_lost()

    def pause_writing(self) -> None:
        """Report that the peer does not read fast enough."""
        self._session.server_full()

    def resume_writing(self) -> None:
        """Report that the peer has room again."""
        self._session.server_has_room()
