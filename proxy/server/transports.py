"""asyncio's view of a session's two connections: each tells the session what happens to it.

What arrives goes to the session's own method: a call in between would be one for each chunk.
"""

from __future__ import annotations

import asyncio
from typing import cast

from proxy.session.session import Session


class ClientConnection(asyncio.Protocol):
    """asyncio's view of the client's connection."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.data_received = session.client_sent  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._session.client_connected(cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._session.client_lost()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._session.client_full()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._session.client_has_room()


class BackingConnection(asyncio.Protocol):
    """asyncio's view of the backing connection."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.data_received = session.server_sent  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._session.server_connected(cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._session.server_lost()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._session.server_full()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._session.server_has_room()
