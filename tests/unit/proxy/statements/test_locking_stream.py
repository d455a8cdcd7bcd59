"""What a STREAM … FOR UPDATE writes, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, cast

import pytest

from engine.dispatch.effects import Cause, Lock
from engine.model import Entry, Key, TableId
from engine.packets import frame
from engine.queue_table import QueueTable
from engine.service import Engine
from proxy.session.stream import INTERRUPTED
from proxy.settings import Settings
from proxy.statements.statements import Statements
from proxy.wire.framing import frame_rows
from proxy.wire.packets import AUTOCOMMIT, IN_TRANS, make_ok
from tests.support.play import queue_table
from tests.support.scripted import rows
from tests.support.sessions import PlayedSession

STATUS = AUTOCOMMIT | IN_TRANS
CONTEXT = rows(("73686F70", "utf8mb4", "utf8mb4", "SYSTEM", "", "1", "server"), status=STATUS)
DEFINITION = rows(("m", "CREATE TABLE `m` (id INT) COMMENT='vitess_message'"), status=STATUS)
HEADER = rows(status=STATUS)
LOCKED = rows(("7", "7"), status=STATUS)
OK = [make_ok(status=STATUS)]


class OfferingEngine:
    """An engine that offers each stream one message, and ends it when that is locked. `twice`: it offers
    another one, at once. `elsewhere`: others have locked all of them. `unscanned`: no scan has shown it."""

    def __init__(self, *, twice: bool = False, elsewhere: bool = False, unscanned: bool = False) -> None:
        self._twice, self._elsewhere, self._unscanned = twice, elsewhere, unscanned
        self.answers: list[Collection[Key]] = []
        self.read: list[Entry] = []
        self.answered = asyncio.Event()

    async def queue(self, _table: TableId, **_options: object) -> QueueTable:
        return queue_table()

    async def unlocked(self, _table: TableId, keys: tuple[Key, ...], *, unscanned: bool) -> tuple[Key, ...]:
        assert unscanned is self._unscanned
        return () if self._elsewhere else keys

    def known_queue(self, _table: TableId, _text: bytes) -> QueueTable | None:
        return None

    def subscribe(self, _queue: QueueTable, sink: Any, *, locker: Any, **_options: object) -> Any:
        loop = asyncio.get_running_loop()

        def ended(keys: Collection[Key], read: Sequence[Entry]) -> None:
            self.answers.append(keys)
            self.read += read
            self.answered.set()
            loop.call_soon(sink.end, Cause.COMPLETE, "")

        loop.call_soon(locker, Lock(1, 1, (7,), 1, None, self._unscanned), ended)
        if self._twice:
            loop.call_soon(locker, Lock(2, 1, (8,), 1, None), lambda keys, *_: self.answers.append(keys))
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_options: None


def play(script: Callable[[PlayedSession], Awaitable[None]], engine: OfferingEngine | None = None) -> None:
    async def whole() -> None:
        statements = Statements(cast(Engine, engine or OfferingEngine()), Settings(), tuple)
        played = PlayedSession(statements.carry_out, OfferingEngine())
        played.query(b"BEGIN")
        assert await played.next_to_server() == b"\x03BEGIN"
        played.session.server_sent(frame(OK[0], 1))
        await played.next_to_client()
        await script(played)

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_the_columns_the_rows_and_the_end_of_a_stream_are_one_write() -> None:
    """Each write is a system call, and wakes the client."""

    async def script(played: PlayedSession) -> None:
        before = played.client.writes
        played.query(b"STREAM id FROM shop.m LIMIT 1 NOWAIT FOR UPDATE")
        for answer in (CONTEXT, DEFINITION, OK, HEADER, LOCKED):
            await played.next_to_server()
            played.session.server_sent(frame_rows(answer, 1)[0])
        packets = [await played.next_to_client() for _ in range(len(HEADER) + 1)]
        assert packets[-2].payload == b"\x017"
        assert played.client.writes == before + 1

    play(script)


REFUSED = [b"\xff\xbd\x04#HY000Lock wait timeout exceeded"]


def test_each_offer_is_answered_also_after_the_end_of_the_stream() -> None:
    """A message that was offered counts as being locked until it is."""
    engine = OfferingEngine(twice=True)

    async def script(played: PlayedSession) -> None:
        played.query(b"STREAM id FROM shop.m LIMIT 2 NOWAIT FOR UPDATE")
        for answer in (CONTEXT, DEFINITION, OK, HEADER, REFUSED):
            await played.next_to_server()
            played.session.server_sent(frame_rows(answer, 1)[0])
        while (await played.next_to_client()).payload[0] != 0xFF:
            pass
        assert [set(keys) for keys in engine.answers] == [set(), set()]

    play(script, engine)


def test_a_session_does_not_try_messages_that_others_have_locked() -> None:
    """Under REPEATABLE READ, it would lock the gaps behind them."""
    engine = OfferingEngine(elsewhere=True)

    async def script(played: PlayedSession) -> None:
        played.query(b"STREAM id FROM shop.m LIMIT 1 NOWAIT FOR UPDATE")
        sent = []
        for answer in (CONTEXT, DEFINITION, OK, HEADER):
            sent.append(await played.next_to_server())
            played.session.server_sent(frame_rows(answer, 1)[0])
        for _ in HEADER:
            await played.next_to_client()
        assert engine.answers == [set()]
        assert not any(b"FOR UPDATE" in statement for statement in sent)

    play(script, engine)


def test_of_a_message_that_no_scan_has_shown_the_session_reads_what_its_row_shows() -> None:
    engine = OfferingEngine(unscanned=True)

    async def script(played: PlayedSession) -> None:
        played.query(b"STREAM id FROM shop.m LIMIT 1 NOWAIT FOR UPDATE")
        for answer in (CONTEXT, DEFINITION, OK, HEADER, rows(("3:-2:5:7", "7"), status=STATUS)):
            await played.next_to_server()
            played.session.server_sent(frame_rows(answer, 1)[0])
        packets = [await played.next_to_client() for _ in range(len(HEADER) + 1)]
        assert packets[-2].payload == b"\x017"
        assert engine.read == [Entry(7, 3, -2, 5)]

    play(script, engine)


@pytest.mark.parametrize("full_first", [True, False])
def test_the_rest_of_the_rows_is_read_though_the_client_does_not_read_when_the_stream_is_killed(
    *, full_first: bool
) -> None:
    """The end of a killed connection, and the answer of an interrupted statement, come behind them."""
    engine = OfferingEngine()

    async def script(played: PlayedSession) -> None:
        session = played.session
        played.query(b"STREAM id FROM shop.m LIMIT 1 NOWAIT FOR UPDATE")
        for answer in (CONTEXT, DEFINITION, OK, HEADER, LOCKED[:-1]):
            await played.next_to_server()
            session.server_sent(frame_rows(answer, 1)[0])
        if full_first:
            session.client_full()
            assert not played.server.is_reading()
        session.interrupt(INTERRUPTED)
        if not full_first:
            session.client_full()
        assert played.server.is_reading()
        session.server_sent(frame(REFUSED[0], len(LOCKED)))
        await engine.answered.wait()
        assert [set(keys) for keys in engine.answers] == [{7}]
        played.query(b"SELECT 1")
        assert await played.next_to_server() == b"\x03SELECT 1"  # The stream is over.
        assert not played.server.is_reading()  # What follows is for the client again.
        session.client_has_room()
        assert played.server.is_reading()

    play(script, engine)


def test_what_was_locked_before_the_server_was_lost_is_answered() -> None:
    engine = OfferingEngine()

    async def script(played: PlayedSession) -> None:
        played.query(b"STREAM id FROM shop.m LIMIT 1 NOWAIT FOR UPDATE")
        for answer in (CONTEXT, DEFINITION, OK, HEADER, LOCKED[:-1]):
            await played.next_to_server()
            played.session.server_sent(frame_rows(answer, 1)[0])
        played.session.server_lost()
        await engine.answered.wait()
        assert [set(keys) for keys in engine.answers] == [{7}]

    play(script, engine)
