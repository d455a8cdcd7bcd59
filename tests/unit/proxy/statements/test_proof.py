"""A known STREAM is proven by three queries in one round trip: whatever becomes of their answers, the client gets
one right answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from engine.dispatch.effects import Cause
from engine.model import TableId
from engine.packets import EOF, frame
from engine.queue_table import QueueTable
from engine.service import Engine
from proxy.session.stream import INTERRUPTED
from proxy.settings import Settings
from proxy.statements.statements import Statements
from proxy.wire.framing import frame_rows
from proxy.wire.packets import IN_TRANS, make_eof, make_err, make_ok, parse_err
from tests.support.play import queue_table
from tests.support.scripted import rows
from tests.support.sessions import PlayedSession

STREAM = b"STREAM id FROM shop.m LIMIT 1 NOWAIT"
OK = make_ok()
RIGHTS = b"/*M! S"
"""The UPDATE that proves the rights of a bounded stream begins so."""
AUTOCOMMIT = 2
CONTEXT = rows(("73686F70", "utf8mb4", "utf8mb4", "SYSTEM", "", "1", "server"), status=AUTOCOMMIT)
OTHER_CONTEXT = rows(("73686F70", "utf8mb4", "utf8mb4", "+01:00", "", "1", "server"), status=AUTOCOMMIT)
DEFINITION = rows(("m", "CREATE TABLE `m` (id INT) COMMENT='vitess_message'"), status=AUTOCOMMIT)
OTHER_DEFINITION = rows(("m", "CREATE TABLE `m` (id CHAR) COMMENT='vitess_message'"), status=AUTOCOMMIT)
TEMPORARY = rows(("m", "CREATE TEMPORARY TABLE `m` (id INT)"), status=AUTOCOMMIT)
HEADER = rows(status=AUTOCOMMIT)
DENIED = [make_err(1142, "42000", "denied")]
KILLED = [make_err(1317, "70100", "killed")]
FINE = (CONTEXT, DEFINITION, [OK])
OLD_AT_ONCE_S = 1e-9
"""Each STREAM proves its rights."""
NEVER_OLD_S = 3600.0
"""Only the first one does."""


class KnowingEngine:
    """An engine with one queue, whose streams end at once."""

    def __init__(self) -> None:
        self.found = queue_table()
        self.subscribed = 0

    async def queue(self, _table: TableId, **_options: object) -> QueueTable:
        return self.found

    def known_queue(self, _table: TableId, _text: bytes) -> QueueTable | None:
        return self.found

    def subscribe(self, _queue: QueueTable, sink: Any, **_options: object) -> Any:
        self.subscribed += 1
        asyncio.get_running_loop().call_soon(sink.end, Cause.COMPLETE, "")
        return self

    def cancel(self) -> None:
        """Nothing is left to end."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_options: None


class Known:
    """A session in which the STREAM ran before. `other`: one of the same proxy."""

    def __init__(
        self,
        other: Known | None = None,
        rights_max_age_s: float = OLD_AT_ONCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine: KnowingEngine = other.engine if other else KnowingEngine()
        if other is None:
            settings = Settings(rights_max_age_s=rights_max_age_s)
            self.statements = Statements(cast(Engine, self.engine), settings, tuple, clock=clock)
        else:
            self.statements = other.statements
        self.played = PlayedSession(self.statements.carry_out, self.engine)

    async def first(self) -> None:
        """Run the STREAM for the first time: one query after another."""
        self.played.query(STREAM)
        await self.serve(CONTEXT, DEFINITION, [OK], HEADER)
        await self.result()

    async def serve(self, *answers: Sequence[bytes]) -> list[bytes]:
        """Answer as many queries one after another; the beginnings of the queries."""
        queries = []
        for answer in answers:
            queries.append((await self.played.next_to_server())[1:7])
            assert not self.played.server.written
            self.played.session.server_sent(framed(answer))
        return queries

    async def batch(self) -> list[bytes]:
        """The beginnings of the queries that come together."""
        first = await self.played.server.next()
        return [packet.payload[1:7] for packet in (first, *self.played.server.taken())]

    async def prove(self, *answers: Sequence[bytes]) -> list[bytes]:
        """Answer the three queries that come together; the client's answer."""
        assert await self.batch() == [b"SELECT", b"SHOW C", RIGHTS]
        self.played.session.server_sent(b"".join(map(framed, answers)))
        return await self.result()

    async def result(self) -> list[bytes]:
        """The packets of the client's answer: up to the second EOF, or an error."""
        packets: list[bytes] = []
        while sum(packet[0] == EOF for packet in packets) < 2 and not (packets and packets[0][0] == 0xFF):
            packets.append((await self.played.next_to_client()).payload)
        return packets


def framed(payloads: Sequence[bytes]) -> bytes:
    return frame_rows(payloads, 1)[0]


def play(script: Callable[[Known], Awaitable[None]], rights_max_age_s: float = OLD_AT_ONCE_S) -> None:
    async def whole() -> None:
        known = Known(rights_max_age_s=rights_max_age_s)
        await known.first()
        await script(known)

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_the_queries_go_out_together_and_the_answer_is_that_of_the_first_time() -> None:
    async def script(known: Known) -> None:
        known.played.query(STREAM)
        assert await known.batch() == [b"SELECT", b"SHOW C", RIGHTS]
        known.played.session.server_sent(b"".join(map(framed, FINE)))
        assert await known.result() == [*HEADER[:-1], make_eof(AUTOCOMMIT)]
        assert known.engine.subscribed == 2
        assert not known.played.server.written

    play(script)


def test_a_table_whose_counter_has_grown_is_the_same() -> None:
    async def script(known: Known) -> None:
        for count in (b"1", b"2", b"2", b"30"):
            counted = [packet.replace(b"(id INT) ", b"(id INT) AUTO_INCREMENT=%s " % count) for packet in DEFINITION]
            # Its length comes before the text.
            at = next(number for number, packet in enumerate(counted) if b"AUTO" in packet)
            text = counted[at][counted[at].index(b"CREATE") :]
            counted[at] = b"\1m" + bytes([len(text)]) + text
            known.played.query(STREAM)
            assert await known.prove(CONTEXT, counted, [OK]) == [*HEADER[:-1], make_eof(AUTOCOMMIT)]
        assert known.engine.subscribed == 5

    play(script)


def test_the_answers_are_told_apart_wherever_their_bytes_are_cut() -> None:
    async def script(known: Known) -> None:
        data = b"".join(map(framed, FINE))
        for cut in range(1, len(data)):
            known.played.query(STREAM)
            await known.batch()
            known.played.session.server_sent(data[:cut])
            known.played.session.server_sent(data[cut:])
            assert await known.result() == [*HEADER[:-1], make_eof(AUTOCOMMIT)]
        assert known.engine.subscribed == 1 + len(data) - 1

    play(script)


CHANGED = {
    "context": (OTHER_CONTEXT, DEFINITION, [OK]),
    "definition": (CONTEXT, OTHER_DEFINITION, [OK]),
    "temporary table": (CONTEXT, TEMPORARY, [OK]),
    "rights": (CONTEXT, DEFINITION, DENIED),
    "table": (CONTEXT, DENIED, DENIED),
    "everything": (DENIED, DENIED, DENIED),
}


@pytest.mark.parametrize("answers", CHANGED.values(), ids=CHANGED)
def test_whatever_differs_the_stream_is_proven_as_if_it_were_the_first(answers: Sequence[Sequence[bytes]]) -> None:
    async def script(known: Known) -> None:
        known.played.query(STREAM)
        await known.batch()
        known.played.session.server_sent(b"".join(map(framed, answers)))
        assert await known.serve(OTHER_CONTEXT, OTHER_DEFINITION, [OK], HEADER) == [
            *(b"SELECT", b"SHOW C", RIGHTS, b"SELECT")
        ]
        assert len(await known.result()) == len(HEADER)

    play(script)


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_queue_that_was_described_anew_is_proven_as_if_it_were_the_first(times: int) -> None:
    async def script(known: Known) -> None:
        for _ in range(times):
            known.played.query(STREAM)
            await known.prove(*FINE)
        known.engine.found = queue_table()
        known.played.query(STREAM)
        await known.batch()
        known.played.session.server_sent(b"".join(map(framed, FINE)))
        assert len(await known.serve(CONTEXT, DEFINITION, [OK], HEADER)) == 4
        await known.result()

    play(script)


@pytest.mark.parametrize("place", range(3))
def test_a_kill_that_the_server_was_sent_directly_ends_the_stream_at_each_of_its_queries(place: int) -> None:
    async def script(known: Known) -> None:
        answers = list(FINE)
        answers[place] = KILLED
        known.played.query(STREAM)
        await known.batch()
        known.played.session.server_sent(b"".join(map(framed, answers)))
        assert parse_err((await known.result())[0]).code == 1317
        assert not known.played.server.written
        assert known.engine.subscribed == 1

    play(script)


@pytest.mark.parametrize("answered", range(4))
def test_a_kill_through_the_proxy_ends_the_stream_when_its_queries_are_answered(answered: int) -> None:
    async def script(known: Known) -> None:
        known.played.query(STREAM)
        await known.batch()
        known.played.session.server_sent(b"".join(map(framed, FINE[:answered])))
        known.played.session.interrupt(INTERRUPTED)
        if answered < 3:
            assert not known.played.client.written
            known.played.session.server_sent(b"".join(map(framed, FINE[answered:])))
        assert parse_err((await known.result())[0]).code == 1317
        assert known.engine.subscribed == 1
        known.played.query(b"SELECT 1")
        assert await known.played.next_to_server() == b"\x03SELECT 1"

    play(script)


@pytest.mark.parametrize("answered", range(3))
def test_a_server_that_is_lost_between_the_answers_is_an_error(answered: int) -> None:
    async def script(known: Known) -> None:
        known.played.query(STREAM)
        await known.batch()
        known.played.session.server_sent(b"".join(map(framed, FINE[:answered])))
        known.played.session.server_lost()
        assert parse_err((await known.result())[0]).code == 1053
        await known.played.client.closed.wait()

    play(script)


@pytest.mark.parametrize("answered", range(3))
def test_a_client_that_is_lost_between_the_answers_leaves_when_the_server_has_sent_all(answered: int) -> None:
    async def script(known: Known) -> None:
        known.played.query(STREAM)
        await known.batch()
        known.played.session.server_sent(b"".join(map(framed, FINE[:answered])))
        known.played.session.client_lost()
        for answer in FINE[answered:]:
            assert not known.played.server.is_closing()
            await asyncio.sleep(0)
            known.played.session.server_sent(framed(answer))
        assert known.played.server.is_closing()
        assert known.engine.subscribed == 1

    play(script)


def test_what_a_client_sends_between_the_answers_waits_for_the_end_of_the_stream() -> None:
    async def script(known: Known) -> None:
        known.played.query(STREAM)
        await known.batch()
        known.played.session.server_sent(framed(CONTEXT))
        known.played.query(b"SELECT 2")
        known.played.session.server_sent(framed(DEFINITION) + framed([OK]))
        assert len(await known.result()) == len(HEADER)
        assert await known.played.next_to_server() == b"\x03SELECT 2"

    play(script)


def test_a_transaction_that_a_refused_proof_began_ends_before_the_next_proof() -> None:
    """With autocommit the proof begins none; the server says here that it did."""

    async def script(known: Known) -> None:
        known.played.query(STREAM)
        await known.batch()
        begun = make_ok(status=IN_TRANS | AUTOCOMMIT)
        known.played.session.server_sent(framed(OTHER_CONTEXT) + framed(DEFINITION) + frame(begun, 1))
        assert await known.serve([OK], CONTEXT, DEFINITION, [OK], HEADER) == [
            *(b"COMMIT", b"SELECT", b"SHOW C", RIGHTS, b"SELECT")
        ]

    play(script)


ENDED = [*HEADER[:-1], make_eof(AUTOCOMMIT)]


def answer(known: Known, data: bytes) -> None:
    known.played.session.server_sent(data)


async def asked(known: Known) -> list[bytes]:
    """The session gets the STREAM once more; the beginnings of its queries."""
    known.played.query(STREAM)
    return await known.batch()


async def relayed(known: Known, text: bytes, status: int = AUTOCOMMIT) -> None:
    """The client runs a statement that is no queue statement."""
    known.played.query(text)
    assert await known.played.next_to_server() == b"\x03" + text
    answer(known, frame(make_ok(status=status), 1))
    await known.played.next_to_client()


def test_while_a_proof_is_young_a_session_that_has_run_nothing_else_shows_nothing() -> None:
    async def script(known: Known) -> None:
        known.played.query(STREAM)
        assert await known.prove(*FINE) == ENDED
        for between in (b"BEGIN", b"COMMIT", b""):
            if between:
                await relayed(known, between, status=IN_TRANS | AUTOCOMMIT if between == b"BEGIN" else AUTOCOMMIT)
            known.played.query(STREAM)
            assert (await known.result())[:-1] == ENDED[:-1]
        assert known.engine.subscribed == 5
        assert not known.played.server.written

    play(script, NEVER_OLD_S)


@pytest.mark.parametrize("between", [b"SELECT 1", b"SET time_zone = 'SYSTEM'", b"CREATE TEMPORARY TABLE m (id INT)"])
def test_a_proof_does_not_hold_behind_any_other_statement(between: bytes) -> None:
    async def script(known: Known) -> None:
        known.played.query(STREAM)
        await known.prove(*FINE)
        await relayed(known, between)
        assert await asked(known) == [b"SELECT", b"SHOW C", RIGHTS]

    play(script, NEVER_OLD_S)


def test_a_proof_holds_for_a_quarter_of_the_time_after_which_rows_wait_for_one() -> None:
    async def script() -> None:
        now_s = 100.0
        known = Known(rights_max_age_s=8.0, clock=lambda: now_s)
        await known.first()
        known.played.query(STREAM)
        await known.prove(*FINE)
        now_s += 1.9
        known.played.query(STREAM)
        assert await known.result() == ENDED
        now_s += 0.2
        assert await asked(known) == [b"SELECT", b"SHOW C", RIGHTS]

    asyncio.run(asyncio.wait_for(script(), 30))


def test_each_session_proves_its_own_streams() -> None:
    async def script(known: Known) -> None:
        known.played.query(STREAM)
        await known.prove(*FINE)
        other = Known(known)
        await other.first()
        assert await asked(other) == [b"SELECT", b"SHOW C", RIGHTS]

    play(script, NEVER_OLD_S)


FOR_UPDATE = b"STREAM id FROM shop.m LIMIT 1 NOWAIT FOR UPDATE"
LOCKING = rows(("73686F70", "utf8mb4", "utf8mb4", "SYSTEM", "", "1", "server"), status=0)
BEGUN = [make_ok(status=IN_TRANS)]
"""The proof begins a transaction: autocommit is off."""


async def locking(known: Known) -> None:
    """The session, without autocommit, gets to know a STREAM … FOR UPDATE."""
    await relayed(known, b"SET autocommit = 0", status=0)
    known.played.query(FOR_UPDATE)
    await known.serve(LOCKING, DEFINITION, BEGUN, rows(status=IN_TRANS), [make_ok(status=0)])
    await known.result()


def test_a_stream_for_update_that_locks_nothing_leaves_no_transaction_open() -> None:
    async def script(known: Known) -> None:
        await locking(known)
        known.played.query(FOR_UPDATE)
        assert await known.batch() == [b"SELECT", b"SHOW C", RIGHTS]
        answer(known, b"".join(map(framed, (LOCKING, DEFINITION, BEGUN))))
        assert await known.serve([make_ok(status=0)]) == [b"COMMIT"]
        assert (await known.result())[-1] == make_eof(0)

    play(script)


def test_a_stream_for_update_whose_server_is_lost_when_it_has_locked_nothing_ends_its_connection() -> None:
    async def script(known: Known) -> None:
        await locking(known)
        known.played.query(FOR_UPDATE)
        await known.batch()
        answer(known, b"".join(map(framed, (LOCKING, DEFINITION, BEGUN))))
        assert await known.batch() == [b"COMMIT"]
        known.played.session.server_lost()
        assert len(await known.result()) == len(HEADER)
        await known.played.client.closed.wait()

    play(script)
