"""ACK, NACK and EXTEND: each is one guarded UPDATE in the client's session and transaction.

The server's answer to the UPDATE is the answer to the statement. Before it is sent, the table is
known to be a queue. A prepared one is prepared on the server as its UPDATE, so most executions are
relayed and never come here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.model import TableId
from engine.service import Engine
from proxy.session.commit_notices import PreparedSettle, Preparing, settled
from proxy.session.internal_queries import read_context
from proxy.statements.long_statements import in_steps
from proxy.statements.tables import known_table_id, refused_as_client
from proxy.wire.commands import COM_STMT_PREPARE
from proxy.wire.params import make_query
from sqlrewrite.ack import SettleStatement, settle_steps
from sqlrewrite.names import TableName

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession
    from proxy.session.prepared import TrackedStatement


class Acknowledgement:
    """Carries out the three statements."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def query(self, session: ClientSession, text: bytes) -> None:
        """A statement as text."""
        statement, table = await self._read(session, text)
        update = make_query(statement.update(), attributes=session.classifier.attributes)
        may_be_hidden = session.classifier.may_be_hidden(table)
        session.forward(update, settled(statement, table, may_be_hidden=may_be_hidden))

    async def prepare(self, session: ClientSession, text: bytes) -> None:
        """PREPARE: the server prepares the UPDATE."""
        statement, table = await self._read(session, text)
        prepared = PreparedSettle(table, replace(statement, condition=b""))  # The server keeps the condition.
        session.forward(bytes([COM_STMT_PREPARE]) + statement.update(), Preparing(prepared))

    @staticmethod
    def execute(session: ClientSession, own: TrackedStatement, prepared: PreparedSettle, payload: bytes) -> None:
        """Run a prepared NACK or EXTEND whose delay is a parameter: the client's last, and the
        first of the UPDATE."""
        statement = prepared.statement
        attributes = session.classifier.attributes
        execution = own.read_execution(payload, statement.param_count, attributes=attributes)
        statement.check_delay(execution.values)
        others = statement.param_count - 1
        reordered = own.rearranged(payload, (others, *range(others)), attributes=attributes)
        session.forward(reordered, prepared.settled(execution.values, may_be_hidden=True))

    async def _read(self, session: ClientSession, text: bytes) -> tuple[SettleStatement, TableId]:
        """The statement and its table, which is a queue. Raises SqlError, Refused,
        UnusableQueue."""
        codec, ansi_quotes = "utf-8", False
        if b'"' in text or not text.isascii():
            context = await read_context(session)
            codec, ansi_quotes = context.codec, context.mode.ansi_quotes
        statement = await in_steps(
            session,
            settle_steps(text, codec, no_backslash_escapes=session.no_backslash_escapes, ansi_quotes=ansi_quotes),
        )
        db = statement.table.db or session.classifier.known_db or (await read_context(session)).db
        table = TableName(statement.table.name, db)
        queue = await refused_as_client(session, table, self._engine.to_settle(known_table_id(table)))
        session.check_interrupted()
        return statement, queue
