"""STREAM: sends the column packets, and then rows until the stream ends.

`proxy.statements.proof` has proven before that the client may have them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engine.model import ANYTHING, NS_PER_S, Selection
from engine.service import Engine
from proxy.session.commit_notices import PreparedStream, Preparing
from proxy.session.internal_queries import encodable, end_own_transaction, spelled
from proxy.session.stream import SHUTDOWN, Stream, unforeseen
from proxy.settings import Settings
from proxy.statements.keeping_alive import KeepingAlive
from proxy.statements.locking_stream import (
    COUNTED,
    FOLLOW_UPS,
    LockingSession,
    LockingStream,
    refuse_without_transaction,
)
from proxy.statements.long_statements import LongStatementReader
from proxy.statements.proof import Proof, ProvenStream, columns_read, partition_clause
from proxy.statements.rights import Rights
from proxy.wire.commands import COM_STMT_PREPARE
from proxy.wire.packets import ServerError, make_end
from sqlrewrite.names import Param
from sqlrewrite.stream import StreamStatement, shortened

if TYPE_CHECKING:
    from proxy.session.answers import ServerAnswer
    from proxy.session.ports import ClientSession
    from proxy.session.prepared import TrackedStatement

log = logging.getLogger(__name__)


ELSEWHERE = ServerError(
    1105,
    "HY000",
    "STREAM is not possible at this proxy, which only relays statements (streams = off): connect to one that has"
    " streams; SHOW PROXIES shows the proxies of this server",
)


class Streaming:
    """Carries out STREAM."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        reader: LongStatementReader,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._proof = Proof(engine, reader, settings.rights_max_age_s, clock)
        self._refuses = False
        self._emptied: set[int] = set()
        """The sessions whose STREAM has ended without a row since `refuse`."""

    def refuse(self) -> None:
        """Deliver nothing more: the proxy is stopping. The next bounded STREAM of each session ends without
        a row, because its client may have sent it before it could learn of the stop. Any other gets error
        1053."""
        self._refuses = True

    async def query(self, session: ClientSession, text: bytes) -> None:
        """A statement as text."""
        self._check_possible()
        await self._deliver(session, await self._proof.query(session, text))

    async def prepare(self, session: ClientSession, text: bytes) -> None:
        """PREPARE: the server prepares the SELECT of no row."""
        self._check_possible()
        was_in_transaction = session.in_transaction
        prepared, select = await self._proof.prepare(session, text)
        await end_own_transaction(session, was_in_transaction=was_in_transaction)
        session.check_interrupted()
        if (encoded := encodable(session, select)) is not None:
            session.forward(bytes([COM_STMT_PREPARE]) + encoded, Preparing(prepared))
        else:
            answer = await spelled(session, select, partial(_prepare_internally, session))
            session.show(answer, Preparing(prepared))

    async def execute(
        self, session: ClientSession, own: TrackedStatement, prepared: PreparedStream, payload: bytes
    ) -> None:
        """The execution of a prepared STREAM."""
        await self._deliver(session, await self._proof.execute(session, own, prepared, payload))

    async def _deliver(self, session: ClientSession, proven: ProvenStream) -> None:
        """Send the column packets, then rows until the stream ends, then the last packet of the
        result."""
        statement, queue, row_format = proven.statement, proven.queue, proven.row_format
        if statement.locks:
            self._check_locking(session, proven)
        if self._refuses or not statement.locks:  # Locks are taken in the transaction that the proof may have begun.
            await end_own_transaction(session, was_in_transaction=proven.was_in_transaction)
        session.check_interrupted()  # From here on an interruption ends the stream itself.
        stream = self._stream(session, proven)
        if self._refuses:
            self._end_without_rows(session, stream, proven.header)
            return
        selection = _selection(statement, row_format.time_zone)
        first_wait_s = statement.first_wait_s
        handle = self._engine.subscribe(
            queue,
            stream,
            holder=session.number,
            row_format=row_format,
            limit=_number(statement.limit),
            prefetch=_number(statement.prefetch),
            first_wait_ns=None if first_wait_s is None else int(first_wait_s * NS_PER_S),
            selection=selection,
            locker=stream.lock if isinstance(stream, LockingStream) else None,
        )
        stream.attach(handle)
        session.stream = stream
        stream.begin(proven.header)  # No row can precede them.
        if not stream.over and not stream.rows_from_server:
            stream.ends_with(lambda: make_end(session.capabilities, session.status))
        try:
            if isinstance(stream, LockingStream):
                unlocked = partial(self._engine.unlocked, queue.id)
                locking = LockingSession(session, proven, selection, unlocked)
                await locking.attend(stream, KeepingAlive(session, self._settings.ping_interval_s))
            else:
                rights = Rights(queue, columns_read(statement, row_format), wait_s=first_wait_s)
                await self._attend(session, stream, rights)
        except ConnectionError:
            assert stream.over  # The session ended it when it lost its server.
        except Exception as error:
            log.exception("%r: a stream failed", session, extra={"event": "stream.fault"})
            stream.refuse(unforeseen(error, session.number))
        finally:
            handle.cancel()
        stream.close(session.capabilities, session.status)
        if not session.in_step:
            session.client.close()

    def _check_possible(self) -> None:
        """Raise ServerError if this address has no streams."""
        if not self._settings.streams:
            raise ELSEWHERE.again()

    def _check_locking(self, session: ClientSession, proven: ProvenStream) -> None:
        """Raise ServerError if FOR UPDATE is not possible here."""
        refuse_without_transaction(session, proven)
        if proven.queue.policy.locked_claims:
            raise COUNTED.again()
        if proven.queue.after_batch is not None:
            raise FOLLOW_UPS.again()

    def _end_without_rows(self, session: ClientSession, stream: Stream, header: Sequence[bytes]) -> None:
        """Answer a STREAM that came after `refuse`."""
        if not stream.is_bounded or session.number in self._emptied:
            raise SHUTDOWN.again()
        self._emptied.add(session.number)
        stream.begin(header)
        stream.complete()
        stream.close(session.capabilities, session.status)

    def _stream(self, session: ClientSession, proven: ProvenStream) -> Stream:
        condition = _written_condition(proven.statement)
        is_bounded = proven.statement.first_wait_s is not None
        if proven.statement.locks:
            return LockingStream(session.send, session.read_server, condition, is_bounded=is_bounded)
        return Stream(
            session.send,
            condition,
            proof_max_age_s=self._settings.rights_max_age_s,
            proven_s=proven.begun_s,
            limit=_number(proven.statement.limit),
            waits=not proven.statement.nowait,
            is_bounded=is_bounded,
        )

    async def _attend(self, session: ClientSession, stream: Stream, rights: Rights) -> None:
        """Prove the client's rights again and keep the backing connection open, until the stream is
        over and every row that it was given is sent or released."""
        alive = KeepingAlive(session, self._settings.ping_interval_s)
        while stream.unproven or not stream.over:
            if stream.unproven:
                begun_s = time.monotonic()
                if (refusal := await rights.lost(session)) is None:
                    stream.proven(begun_s)
                else:
                    stream.refuse(refusal)
            elif not await stream.wait(alive.pause_s):
                await alive.touch()


async def _prepare_internally(session: ClientSession, text: bytes) -> ServerAnswer:
    return await session.internal_command(bytes([COM_STMT_PREPARE]) + text)


def _selection(statement: StreamStatement, time_zone: str) -> Selection:
    """Which messages the statement selects. Streams with equal selections share a filter group."""
    partitions = tuple(sorted(set(statement.partitions)))
    if statement.condition is None:
        return replace(ANYTHING, partitions=partitions)
    return Selection(statement.condition.sql(), partitions, time_zone)


def _written_condition(statement: StreamStatement) -> str | None:
    """The selection as SHOW STREAMS shows it: as written, with the values of parameters. None: all
    messages."""
    condition = statement.condition
    written = shortened(condition.sql()) if condition and "?" in (statement.written or "") else statement.written
    if not statement.partitions:
        return written
    partitions = partition_clause(statement.partitions)
    return f"{partitions} WHERE {written}" if written else partitions


def _number(value: int | Param | None) -> int | None:
    assert not isinstance(value, Param)
    return value
