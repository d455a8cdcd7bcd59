"""Proves on the client's own connection that it may still have the rows of a running stream.

STREAM proves it when it begins, and privileges may be revoked later. So the proof is repeated by an
UPDATE of no row whose condition names every column that the stream reads: the server denies it
exactly what it would deny the client. The server reads privileges that were granted globally, or on
the session's default database, only when a session begins. A session therefore keeps them until it
ends, with and without the proxy. The sessions of a dropped account keep them as well, so whether
the account exists is read too.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from engine.queue_table import QueueTable
from engine.quoting import quoted
from engine.store.pymysql_adapter import ER
from proxy.session.internal_queries import end_own_transaction, spelled
from proxy.session.queries import sql
from proxy.session.stream import INTERRUPTED
from proxy.statements.tables import right_to_settle
from proxy.wire.packets import ServerError
from sqlrewrite.names import TableName

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

NO_ACCOUNT: Final = (1133, 1141, 1396)
"""Errors of the servers for an account that does not exist."""

TRANSIENT: Final = (1205, 1317, 1969, 3024)
"""Errors that do not concern rights: a lock wait timeout, a KILL QUERY, a time limit."""

ATTEMPTS_MAX: Final = 10
"""Attempts at a query after such errors. Each of them takes its time; after so many the cause is
not transient."""


def right_to_stream(queue: QueueTable, columns: Iterable[str], *, wait_s: Decimal | None) -> str:
    """An UPDATE of no row, which the server denies to a client that may not settle the queue's
    messages or may not read these columns. `wait_s` as in `right_to_settle`."""
    # No constants: a conversion that is a warning in a SELECT is an error in an UPDATE.
    read = " OR ".join(f"{quoted(column)} IS NULL" for column in columns)
    return right_to_settle(TableName(queue.id.name, queue.id.db), f"FALSE AND ({read})", wait_s=wait_s)


class Rights:
    """The rights that one stream needs, as queries for the session that runs it."""

    def __init__(self, queue: QueueTable, columns: Iterable[str], *, wait_s: Decimal | None) -> None:
        """`columns`: all that the stream reads, those of its condition as well. `wait_s`: its WAIT, 0 for
        NOWAIT; None for an endless one."""
        self._query = right_to_stream(queue, columns, wait_s=wait_s)

    async def lost(self, session: ClientSession) -> ServerError | None:
        """The server's error if the client may not have the rows any more; None if it may. Raises
        ConnectionError."""
        was_in_transaction = session.in_transaction
        refusal = await self._refusal(session, self._query)
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        if refusal is None:
            account = await self._refusal(session, sql("account_exists"))
            if account is not None and account.code in NO_ACCOUNT:
                refusal = ServerError(
                    1045, "28000", "Access denied: the account of this connection does not exist any more"
                )
        return refusal

    async def _refusal(self, session: ClientSession, query: str) -> ServerError | None:
        refusal = None
        for _ in range(ATTEMPTS_MAX):
            refusal = (await spelled(session, query, session.internal_query)).error
            stream = session.stream
            if refusal is None or refusal.code not in TRANSIENT:
                break
            if refusal.code == ER.LOCK_WAIT_TIMEOUT and stream is not None and stream.over:
                break  # Its time is up, and the rows that wait for the proof are released.
            if refusal.code == INTERRUPTED.code and stream is not None:
                stream.abort(INTERRUPTED)  # A KILL QUERY sent to the server directly.
        return refusal
