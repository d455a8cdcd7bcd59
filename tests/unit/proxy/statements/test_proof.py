"""A known STREAM is proven by three queries in one round trip: whatever becomes of their answers, the client gets
one right answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
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
        """Answer the queries that come together by those of these three that they need; the client's
        answer."""
        needed = dict(zip((b"SELECT", b"SHOW C", b"UPDATE"), answers, strict=True))
        self.played.session.server_sent(b"".join(framed(needed[query]) for query in await self.batch()))
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
        assert await known.batch() == [b"SELECT", b"SHOW C", b"UPDATE"]
        known.played.session.server_sent(b"".join(map(framed, FINE)))
        assert await known.result() == [*HEADER[:-1], make_eof(AUTOCOMMIT)]
        assert known.engine.subscribed == 2
        assert not known.played.server.written

    play(script)


def test_the_context_is_read_again_only_if_a_statement_has_run_since_it_was_shown() -> None:
    async def script(known: Known) -> None:
        known.played.query(STREAM)
        await known.prove(*FINE)
        known.played.query(STREAM)
        assert await known.batch() == [b"SHOW C", b"UPDATE"]
        known.played.session.server_sent(b"".join(map(framed, FINE[1:])))
        await known.result()
        known.played.query(b"SET time_zone = 'SYSTEM'")
        await known.played.next_to_server()
        known.played.session.server_sent(frame(make_ok(status=AUTOCOMMIT), 1))
        await known.played.next_to_client()
        known.played.query(STREAM)
        assert await known.batch() == [b"SELECT", b"SHOW C", b"UPDATE"]

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
            known.played.session.classifier.shown_context = None
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
            *(b"SELECT", b"SHOW C", b"UPDATE", b"SELECT")
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
        queries = await known.batch()
        known.played.session.server_sent(b"".join(map(framed, FINE[-len(queries) :])))
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
            *(b"COMMIT", b"SELECT", b"SHOW C", b"UPDATE", b"SELECT")
        ]

    play(script)


ENDED = [*HEADER[:-1], make_eof(AUTOCOMMIT)]
SHOWN, RIGHT = framed(DEFINITION), framed([OK])


async def sessions(first: Known, count: int) -> list[Known]:
    """So many sessions whose contexts are known."""
    found = [first, *(Known(first) for _ in range(count - 1))]
    for known in found:
        if known is not first:
            await known.first()
        known.played.query(STREAM)
        await known.prove(*FINE)
    return found


async def asked(known: Known) -> list[bytes]:
    """The session gets the STREAM once more; the beginnings of its queries."""
    known.played.query(STREAM)
    return await known.batch()


def answer(known: Known, data: bytes) -> None:
    known.played.session.server_sent(data)


def test_streams_that_come_while_the_definition_is_read_share_the_next_reading() -> None:
    """The first of them begins it, and it holds for all that have come before."""

    async def script(known: Known) -> None:
        first, *others = await sessions(known, 6)
        begun = known.engine.subscribed
        assert await asked(first) == [b"SHOW C", b"UPDATE"]
        for other in others[:-1]:
            assert await asked(other) == [b"UPDATE"]
            answer(other, RIGHT)
        answer(first, SHOWN + RIGHT)
        assert await first.result() == ENDED
        assert known.engine.subscribed == begun + 1  # The reading had begun before the other STREAMs came.
        leader, *followers, late = others
        assert await leader.batch() == [b"SHOW C", b"UPDATE"]
        assert await asked(late) == [b"UPDATE"]
        answer(late, RIGHT)
        answer(leader, SHOWN + RIGHT)
        for other in (leader, *followers):
            assert await other.result() == ENDED
        assert known.engine.subscribed == begun + 1 + len(others) - 1
        assert await late.prove(*FINE) == ENDED
        assert not any(other.played.server.written for other in others)

    play(script)


def test_a_stream_alone_reads_the_definition_itself() -> None:
    async def script(known: Known) -> None:
        for session in await sessions(known, 2):
            assert await asked(session) == [b"SHOW C", b"UPDATE"]
            answer(session, SHOWN + RIGHT)
            assert await session.result() == ENDED

    play(script)


def test_a_session_that_has_run_anything_reads_the_definition_itself() -> None:
    """A temporary table could hide the queue in it."""

    async def script(known: Known) -> None:
        first, other = await sessions(known, 2)
        other.played.query(b"SELECT 1")
        await other.played.next_to_server()
        answer(other, RIGHT)
        await other.played.next_to_client()
        await asked(first)
        assert await asked(other) == [b"SELECT", b"SHOW C", b"UPDATE"]

    play(script)


@pytest.mark.parametrize("shown", [OTHER_DEFINITION, TEMPORARY, DENIED, KILLED])
def test_what_another_session_has_not_shown_each_session_reads_itself(shown: Sequence[bytes]) -> None:
    async def script(known: Known) -> None:
        first, leader, follower = await sessions(known, 3)
        for session in (first, leader, follower):
            await asked(session)
        for session in (leader, follower):
            answer(session, RIGHT)
        answer(first, SHOWN + RIGHT)
        assert await leader.batch() == [b"SHOW C", b"UPDATE"]
        answer(leader, framed(shown) + RIGHT)
        assert await follower.prove(*FINE) == ENDED

    play(script)


@pytest.mark.parametrize("lost", ["client", "server"])
def test_a_session_that_is_lost_leaves_the_reading_to_the_next(lost: str) -> None:
    async def script(known: Known) -> None:
        first, leader, *others = await sessions(known, 4)
        for session in (first, leader, *others):
            await asked(session)
        for session in (leader, *others):
            answer(session, RIGHT)
        answer(first, SHOWN + RIGHT)
        await leader.batch()
        leader.played.session.client_lost() if lost == "client" else leader.played.session.server_lost()
        for other in others:
            assert await other.prove(*FINE) == ENDED

    play(script)


def test_a_session_that_waits_for_another_and_loses_its_server_has_no_stream() -> None:
    async def script(known: Known) -> None:
        first, leader, follower = await sessions(known, 3)
        for session in (first, leader, follower):
            await asked(session)
        for session in (leader, follower):
            answer(session, RIGHT)
        begun = known.engine.subscribed
        answer(first, SHOWN + RIGHT)
        await leader.batch()
        follower.played.session.server_lost()
        answer(leader, SHOWN + RIGHT)
        assert parse_err((await follower.result())[0]).code == 1053
        assert known.engine.subscribed == begun + 2

    play(script)


def test_a_right_that_is_denied_is_read_again_whatever_another_session_shows() -> None:
    async def script(known: Known) -> None:
        first, other = await sessions(known, 2)
        for session in (first, other):
            await asked(session)
        answer(other, framed(DENIED))
        assert await other.batch() == [b"SELECT", b"SHOW C", b"UPDATE"]
        answer(other, framed(CONTEXT) + SHOWN + framed(DENIED))
        await other.serve(CONTEXT, DEFINITION, DENIED)
        assert parse_err((await other.result())[0]).code == 1142

    play(script)


@pytest.mark.parametrize("by_proxy", [True, False])
def test_a_kill_ends_a_stream_that_shares_a_reading(by_proxy: bool) -> None:
    async def script(known: Known) -> None:
        first, leader, other = await sessions(known, 3)
        for session in (first, leader, other):
            await asked(session)
        if by_proxy:
            other.played.session.interrupt(INTERRUPTED)
        answer(other, RIGHT if by_proxy else framed(KILLED))
        answer(leader, RIGHT)
        answer(first, SHOWN + RIGHT)
        await leader.batch()
        answer(leader, SHOWN + RIGHT)
        assert parse_err((await other.result())[0]).code == 1317

    play(script)


def test_a_session_waits_for_no_reading_that_takes_long() -> None:
    async def script(known: Known) -> None:
        first, other = await sessions(known, 2)
        for session in (first, other):
            await asked(session)
        answer(other, RIGHT)
        assert await other.prove(*FINE) == ENDED

    play(script)


FOR_UPDATE = b"STREAM id FROM shop.m LIMIT 1 NOWAIT FOR UPDATE"
LOCKING = rows(("73686F70", "utf8mb4", "utf8mb4", "SYSTEM", "", "1", "server"), status=0)
BEGUN = [make_ok(status=IN_TRANS)]
"""The proof begins a transaction: autocommit is off."""


async def locking(first: Known, count: int, *, writes_alike: bool, text: bytes = FOR_UPDATE) -> list[Known]:
    """So many sessions without autocommit that know a STREAM … FOR UPDATE."""
    first.engine.found = replace(queue_table(), writes_alike=writes_alike)
    found = [first, *(Known(first) for _ in range(count - 1))]
    for known in found:
        known.played.query(b"SET autocommit = 0")
        await known.played.next_to_server()
        answer(known, frame(make_ok(status=0), 1))
        await known.played.next_to_client()
        known.played.query(text)
        await known.serve(LOCKING, DEFINITION, BEGUN, rows(status=IN_TRANS), [make_ok(status=0)])
        await known.result()
    return found


async def asked_to_lock(known: Known) -> list[bytes]:
    known.played.query(FOR_UPDATE)
    return await known.batch()


def test_a_stream_for_update_that_locks_nothing_shows_its_columns_and_leaves_no_transaction_open() -> None:
    """Its columns come with the rows, if there are any."""

    async def script(known: Known) -> None:
        (known,) = await locking(known, 1, writes_alike=True)
        assert await asked_to_lock(known) == [b"SHOW C", b"UPDATE"]
        answer(known, b"".join(map(framed, (DEFINITION, BEGUN))))
        assert await known.serve(rows(status=IN_TRANS), [make_ok(status=0)]) == [b"SELECT", b"COMMIT"]
        assert (await known.result())[-1] == make_eof(0)

    play(script)


@pytest.mark.parametrize("writes_alike", [True, False])
def test_streams_for_update_share_the_definition_whatever_has_run_since(writes_alike: bool) -> None:
    """Not with triggers, which could make a temporary table that hides the queue."""

    async def script(known: Known) -> None:
        first, *others = await locking(known, 4, writes_alike=writes_alike)
        assert await asked_to_lock(first) == [b"SHOW C", b"UPDATE"]
        for other in others:
            assert await asked_to_lock(other) == [*([] if writes_alike else [b"SHOW C"]), b"UPDATE"]
        if not writes_alike:
            return
        for other in others:
            answer(other, framed(BEGUN))
        answer(first, b"".join(map(framed, (DEFINITION, BEGUN))))
        leader, *followers = others
        assert await leader.serve([make_ok(status=0)]) == [b"COMMIT"]
        assert await leader.batch() == [b"SHOW C", b"UPDATE"]
        answer(leader, b"".join(map(framed, (DEFINITION, BEGUN))))
        for other in (first, leader, *followers):
            assert await other.serve(rows(status=IN_TRANS), [make_ok(status=0)]) == [b"SELECT", b"COMMIT"]
            assert (await other.result())[-1] == make_eof(0)

    play(script)


@pytest.mark.parametrize(
    "text",
    [
        b"STREAM id FROM shop.m WHERE id > 0 LIMIT 1 NOWAIT FOR UPDATE",
        b'STREAM id FROM shop.m /* " */ LIMIT 1 NOWAIT FOR UPDATE',
        b"STREAM id FROM shop.m /* \\ */ LIMIT 1 NOWAIT FOR UPDATE",
        "STREAM id FROM shop.m /* \u00e9 */ LIMIT 1 NOWAIT FOR UPDATE".encode(),
    ],
)
def test_a_stream_for_update_that_may_mean_something_else_in_another_context_is_shown_it(text: bytes) -> None:
    async def script(known: Known) -> None:
        (known,) = await locking(known, 1, writes_alike=True, text=text)
        known.played.query(text)
        assert await known.batch() == [b"SELECT", b"SHOW C", b"UPDATE"]
        changed = rows(("73686F70", "utf8mb4", "utf8mb4", "+01:00", "", "1", "server"), status=0)
        answer(known, b"".join(map(framed, (changed, DEFINITION, BEGUN))))
        assert await known.serve([make_ok(status=0)]) == [b"COMMIT"]
        assert await known.batch() == [b"SELECT"]

    play(script)


def test_while_the_proof_of_the_rights_is_young_a_session_that_has_run_nothing_shows_nothing() -> None:
    """The definition was read by another."""

    async def script(known: Known) -> None:
        first, leader, other = await sessions(known, 3)
        begun = known.engine.subscribed
        assert await asked(first) == [b"SHOW C"]
        for session in (leader, other):
            session.played.query(STREAM)
        answer(first, SHOWN)
        assert await first.result() == ENDED
        assert await leader.batch() == [b"SHOW C"]
        answer(leader, SHOWN)
        for session in (leader, other):
            assert await session.result() == ENDED
        assert known.engine.subscribed == begun + 3
        assert not other.played.server.written

    play(script, NEVER_OLD_S)


def test_rights_are_proven_again_when_half_of_the_time_has_passed() -> None:
    """As those of a running stream are: its rows wait for no proof."""

    async def script() -> None:
        now_s = 100.0
        known = Known(rights_max_age_s=8.0, clock=lambda: now_s)
        await known.first()
        known.played.query(STREAM)
        await known.prove(*FINE)
        now_s += 4.0
        assert await asked(known) == [b"SHOW C"]
        answer(known, SHOWN)
        await known.result()
        now_s += 1.0
        assert await asked(known) == [b"SHOW C", b"UPDATE"]
        answer(known, SHOWN + RIGHT)
        await known.result()
        now_s += 4.0
        assert await asked(known) == [b"SHOW C"]

    asyncio.run(asyncio.wait_for(script(), 30))


def test_a_stream_for_update_without_rows_that_loses_its_server_before_its_columns_ends_with_an_error() -> None:
    async def script(known: Known) -> None:
        (known,) = await locking(known, 1, writes_alike=True)
        assert await asked_to_lock(known) == [b"SHOW C", b"UPDATE"]
        answer(known, b"".join(map(framed, (DEFINITION, BEGUN))))
        assert await known.batch() == [b"SELECT"]
        known.played.session.server_lost()
        (packet,) = await known.result()
        assert parse_err(packet).code == 1053

    play(script)
