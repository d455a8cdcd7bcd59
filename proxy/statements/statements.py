"""Carries out the queue statements of a session, each by the module that it belongs to.

One statement runs at a time in a session, as the session's task, while nothing is relayed. Whatever
is raised becomes the client's answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from engine.packets import WireError, frame
from engine.runtime.queues import UnusableQueue
from engine.service import Engine
from engine.store.port import StoreError
from proxy.session.commit_notices import PreparedQueueStatement, PreparedSettle, PreparedStream
from proxy.session.internal_queries import Refused, as_packet, end_own_transaction, keep_next_transaction
from proxy.session.stream import SERVER_LOST, unforeseen
from proxy.settings import Settings
from proxy.statements.acknowledgement import SETTLING, Acknowledgement
from proxy.statements.deliveries import Deliveries
from proxy.statements.killing import kill
from proxy.statements.long_statements import LongStatementReader
from proxy.statements.message_groups import MessageGroups
from proxy.statements.proxies import Proxies
from proxy.statements.queue_statements import QueueStatements, Showing
from proxy.statements.show import Show
from proxy.statements.stream import Streaming
from proxy.wire.commands import COM_STMT_BULK_EXECUTE
from proxy.wire.mimic_adapter import Commands
from proxy.wire.packets import ServerError
from proxy.wire.params import execute_id, query_text
from sqlrewrite.classify import KillByExpression, Verb, parse_kill
from sqlrewrite.errors import SqlError

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

log = logging.getLogger(__name__)

NO_BULK = ServerError(
    1295, "HY000", "This statement cannot be executed in bulk: execute it once for each set of parameters"
)


class Statements:
    """Carries out queue statements for all sessions of a proxy."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        sessions: Callable[[], Iterable[ClientSession]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = LongStatementReader()
        self._streaming = Streaming(engine, settings, self._reader, clock)
        self._acknowledgement = Acknowledgement(engine, gather=settings.gather_acks)
        showing = Showing(
            Show(engine, sessions),
            Deliveries(engine, sessions),
            Proxies(engine, settings),
            MessageGroups(engine),
        )
        self.begin_settling = self._acknowledgement.begin
        self._queue_statements = QueueStatements(engine, showing, self._reader)

    def refuse_streams(self) -> None:
        """Deliver nothing to further streams (Streaming.refuse)."""
        self._streaming.refuse()

    def close(self) -> None:
        """Read no more long statements."""
        self._reader.close()

    async def carry_out(self, session: ClientSession, verb: Verb, payload: bytes) -> None:
        """Carry out a withheld command and answer the client, whatever is raised meanwhile.

        The connection stays usable, unless the server is gone or its answers are out of step.
        """
        was_in_transaction = session.in_transaction
        failed: Exception
        try:
            session.check_interrupted()
            if verb not in SETTLING:
                keep_next_transaction(session)
            await self._dispatch(session, verb, payload)
            return
        except (Refused, SqlError, ServerError, WireError, UnusableQueue, StoreError) as error:
            failed = error
        except ConnectionError:
            failed = SERVER_LOST
        except Exception as error:
            log.exception("%r: a statement failed", session, extra={"event": "statement.fault"})
            failed = unforeseen(error, session.number)
        if session.in_step:
            with suppress(ConnectionError, WireError):
                await end_own_transaction(session, was_in_transaction=was_in_transaction)
        session.send(frame(as_packet(failed), 1))
        if not session.in_step:
            session.client.close()

    async def _dispatch(self, session: ClientSession, verb: Verb, payload: bytes) -> None:
        match payload[0], verb:
            case (Commands.COM_QUERY, Verb.QUEUE):
                await self._queue_statements.query(session, payload)
            case (Commands.COM_STMT_PREPARE, Verb.QUEUE):
                await self._queue_statements.prepare(session, payload)
            case (Commands.COM_QUERY, Verb.STREAM):
                await self._streaming.query(session, query_text(payload, attributes=session.classifier.attributes))
            case (Commands.COM_STMT_PREPARE, Verb.STREAM):
                await self._streaming.prepare(session, payload[1:])
            case (Commands.COM_QUERY, Verb.KILL):
                statement = parse_kill(query_text(payload, attributes=session.classifier.attributes))
                assert isinstance(statement, KillByExpression)
                await kill(session, statement, payload)
            case (Commands.COM_QUERY, _):
                await self._acknowledgement.query(
                    session, query_text(payload, attributes=session.classifier.attributes)
                )
            case (Commands.COM_STMT_PREPARE, _):
                await self._acknowledgement.prepare(session, payload[1:])
            case _:
                await self._execute(session, payload)

    async def _execute(self, session: ClientSession, payload: bytes) -> None:
        own = session.classifier.statement(execute_id(payload))
        assert own is not None
        in_bulk = payload[0] == COM_STMT_BULK_EXECUTE
        if in_bulk and not isinstance(own.statement, PreparedSettle):
            raise NO_BULK.again()
        try:
            match own.statement:
                case PreparedSettle() as prepared if in_bulk:
                    await self._acknowledgement.execute_in_bulk(session, own, prepared, payload)
                case PreparedStream() as prepared:
                    await self._streaming.execute(session, own, prepared, payload)
                case PreparedSettle() as prepared:
                    await self._acknowledgement.execute(session, own, prepared, payload)
                case KillByExpression() as prepared:
                    await kill(session, prepared, payload)
                case PreparedQueueStatement() as prepared:
                    await self._queue_statements.execute(session, own, prepared, payload)
                case other:
                    raise AssertionError(other)
        except SqlError:
            if own.long_data:  # A failed execution forgets its long data. The server has not seen this one.
                own.long_data = frozenset()
                await session.internal_command(bytes([Commands.COM_STMT_RESET]) + payload[1:5])
            raise
