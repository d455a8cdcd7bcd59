"""The backing connection of a stream that waits: the server must not end it for being idle.

To its client, a stream is a statement that runs. To the server, its session is idle, and ended after
`wait_timeout`; on MariaDB also after the timeouts for idle transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxy.session.internal_queries import text_rows
from proxy.session.queries import sql
from proxy.wire.mimic_adapter import Commands

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

COM_PING: Final = bytes([Commands.COM_PING])

LEAST_TIMEOUT_S: Final = 1.0
"""No server takes a shorter timeout. A stream that is over earlier reads nothing."""


class KeepingAlive:
    """Of one stream. The session cannot change its timeouts while the stream runs."""

    def __init__(self, session: ClientSession, ping_interval_s: float) -> None:
        self.pause_s = min(ping_interval_s, LEAST_TIMEOUT_S / 2)
        """How long the connection may be idle until `touch`."""
        self._session = session
        self._ping_interval_s = ping_interval_s
        self._knows_timeout = False

    async def touch(self) -> None:
        """Run something on the connection: at first the query for the timeout, then pings."""
        if self._knows_timeout:
            await self._session.internal_command(COM_PING)
            return
        answer = await self._session.internal_query(sql("idle_timeout").encode())
        if answer.outcome.ok:  # Else it met a KILL QUERY, perhaps.
            ((timeout,),) = text_rows(self._session, answer)
            self.pause_s = min(self._ping_interval_s, int(timeout or LEAST_TIMEOUT_S) / 2)
            self._knows_timeout = True
