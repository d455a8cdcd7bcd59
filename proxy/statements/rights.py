"""Whether a client may still have what a running stream delivers, shown on its own connection.

STREAM shows it once, when it begins; privileges are taken away later. So the same is asked again, by an UPDATE of no
row whose condition names every column that the stream reads: the server denies it what it would deny the client.
Privileges that were granted globally or on the session's default database the server itself reads only when a session
begins, so a session keeps them until it ends, here as there. An account that is dropped leaves its sessions with
those, too: it is asked for besides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from engine.model import QueueTable
from engine.quoting import quoted
from proxy.session.internal_queries import end_own_transaction, spelled
from proxy.session.queries import sql
from proxy.session.stream import INTERRUPTED
from proxy.wire.packets import ServerError
from sqlrewrite.names import TableName

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

NO_ACCOUNT: Final = (1133, 1141, 1396)
"""How the servers say that there is none."""

TRANSIENT: Final = (1205, 1317, 1969, 3024)
"""Errors that say nothing about rights: a lock that was waited for too long, a KILL QUERY, a time limit."""

ATTEMPTS_MAX: Final = 10
"""Times that a question is asked again in a row. Each of these errors takes its time; then it is a fault."""


class Rights:
    """What one stream needs, as a question. Asked of the session that runs it."""

    def __init__(self, queue: QueueTable, columns: Iterable[str]) -> None:
        """`columns`: all that it reads, those of its condition too."""
        table = TableName(queue.id.name, queue.id.db).quoted()
        # No constants: what a SELECT is warned of when they are converted is an error of an UPDATE.
        read = " OR ".join(f"{quoted(column)} IS NULL" for column in columns)
        self._probe = sql("right_to_stream", table=table, condition=f"FALSE AND ({read})")

    async def lost(self, session: ClientSession) -> ServerError | None:
        """The server's word that the client may not have the rows any more; None if it may. Raises ConnectionError."""
        was_in_transaction = session.in_transaction
        refusal = await self._refusal(session, self._probe)
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        if refusal is None:
            account = await self._refusal(session, sql("account_exists"))
            if account is not None and account.code in NO_ACCOUNT:
                refusal = ServerError(
                    1045, "28000", "Access denied: the account of this connection does not exist any more"
                )
        return refusal

    async def _refusal(self, session: ClientSession, question: str) -> ServerError | None:
        refusal = None
        for _ in range(ATTEMPTS_MAX):
            refusal = (await spelled(session, question, session.internal_query)).error
            if refusal is None or refusal.code not in TRANSIENT:
                break
            if refusal.code == INTERRUPTED.code and session.stream is not None:
                session.stream.abort(INTERRUPTED)  # A KILL QUERY on the server itself has met this question.
        return refusal
