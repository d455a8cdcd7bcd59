"""What a STREAM … FOR UPDATE writes, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from engine.dispatch.effects import Cause, Lock
from engine.model import QueueTable, TableId
from engine.packets import frame
from engine.service import Engine
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
    """An engine that offers each stream one message, and ends it when that is locked."""

    async def queue(self, _table: TableId, **_options: object) -> QueueTable:
        return queue_table()

    def known_queue(self, _table: TableId, _text: bytes) -> QueueTable | None:
        return None

    def subscribe(self, _queue: QueueTable, sink: Any, *, locker: Any, **_options: object) -> Any:
        loop = asyncio.get_running_loop()

        def ended(_keys: object) -> None:
            loop.call_soon(sink.end, Cause.COMPLETE, "")

        loop.call_soon(locker, Lock(1, 1, (7,), 1, None), ended)
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_options: None


def play(script: Callable[[PlayedSession], Awaitable[None]]) -> None:
    async def whole() -> None:
        statements = Statements(cast(Engine, OfferingEngine()), Settings(), tuple)
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
