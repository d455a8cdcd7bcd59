"""A running stream: rows are written on a proof of rights that is young enough, and wait for one otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from engine.dispatch.effects import Cause
from engine.packets import ERR, frame
from engine.service import StreamHandle
from proxy.session.stream import GATHERED_MAX, INTERRUPTED, SERVER_LOST, GatheredWrites, Stream
from proxy.wire.framing import Packets
from proxy.wire.packets import ServerError, parse_err

MAX_AGE_S = 4.0
COLUMNS = frame(b"columns", 1)
DENIED = ServerError(1142, "42000", "denied")


class Handle:
    """Records the calls of the engine's handle."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)


class Played:
    """A stream, what its client got, and the calls of its engine's handle."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.handle = Handle()
        self._packets = Packets()
        self._got: list[bytes] = []
        self.stream = Stream(self._write, proof_max_age_s=MAX_AGE_S, clock=lambda: self.now_s)
        self.stream.attach(cast(StreamHandle, cast(Any, self.handle)))

    def _write(self, data: bytes) -> None:
        self._got += [packet.payload for packet in self._packets.feed(data)]

    @property
    def rows(self) -> list[bytes]:
        return [payload for payload in self._got if payload[0] != ERR]

    def close(self) -> int:
        """The number of the error that ends it; 0 if none does."""
        self.stream.close(0, 2)
        return parse_err(self._got[-1]).code if self._got[-1][0] == ERR else 0


@pytest.fixture
def played() -> Played:
    return Played()


def test_rows_of_a_stream_that_has_just_begun_are_written_at_once(played: Played) -> None:
    played.stream.deliver((b"a", b"b"))
    assert played.rows == [b"a", b"b"]
    assert not played.stream.unproven


def test_a_stream_at_work_asks_for_the_next_proof_before_the_last_one_is_too_old(played: Played) -> None:
    played.now_s += MAX_AGE_S * 0.6
    played.stream.deliver((b"a",))
    assert played.stream.unproven
    assert played.rows == [b"a"]
    assert played.handle.calls == []


def test_rows_for_which_the_proof_is_too_old_wait_for_another_one_and_no_more_are_taken(played: Played) -> None:
    played.now_s += MAX_AGE_S + 1
    played.stream.deliver((b"a",))
    played.stream.deliver((b"b",))
    assert (played.rows, played.handle.calls, played.stream.unproven) == ([], ["pause"], True)
    played.stream.proven(played.now_s)
    assert (played.rows, played.handle.calls, played.stream.unproven) == ([b"a", b"b"], ["pause", "resume"], False)


def test_the_age_of_a_proof_counts_from_when_it_was_begun(played: Played) -> None:
    played.stream.proven(played.now_s - MAX_AGE_S - 1)
    played.stream.deliver((b"a",))
    assert played.rows == []


def test_an_idle_stream_asks_for_nothing(played: Played) -> None:
    played.now_s += 86_400
    assert not played.stream.unproven
    played.stream.pause()
    played.stream.resume()
    assert not played.stream.unproven


def test_a_refusal_ends_it_with_the_server_s_error_and_what_waited_is_for_others(played: Played) -> None:
    played.now_s += MAX_AGE_S + 1
    played.stream.deliver((b"a",))
    played.stream.refuse(DENIED)
    assert played.handle.calls == ["pause", "revoke"]
    assert (played.rows, played.close()) == ([], 1142)


def test_rows_that_wait_are_written_before_the_end_that_came_behind_them(played: Played) -> None:
    played.now_s += MAX_AGE_S + 1
    played.stream.deliver((b"a",))
    played.stream.end(Cause.COMPLETE, "")
    assert (played.stream.over, played.stream.unproven) == (True, True)
    played.stream.proven(played.now_s)
    assert (played.stream.over, played.stream.unproven) == (True, False)
    assert (played.rows, played.close()) == ([b"a"], 0)


def test_rows_that_wait_are_refused_even_when_the_stream_was_complete(played: Played) -> None:
    played.now_s += MAX_AGE_S + 1
    played.stream.deliver((b"a",))
    played.stream.end(Cause.COMPLETE, "")
    played.stream.refuse(DENIED)
    assert (played.rows, played.close()) == ([], 1142)


def test_a_kill_query_leaves_the_client_what_was_claimed_for_it(played: Played) -> None:
    played.now_s += MAX_AGE_S + 1
    played.stream.deliver((b"a",))
    played.stream.abort(INTERRUPTED)
    played.stream.proven(played.now_s)
    assert (played.rows, played.close()) == ([b"a"], 1317)


@pytest.mark.parametrize("end", ["lost", "draining", "unusable"])
def test_nothing_waits_for_a_proof_that_cannot_come_or_of_what_others_have(played: Played, end: str) -> None:
    played.now_s += MAX_AGE_S + 1
    played.stream.deliver((b"a",))
    match end:
        case "lost":
            played.stream.abort(SERVER_LOST)
        case "draining":
            played.stream.end(Cause.DRAINING, "")
        case _:
            played.stream.end(Cause.UNUSABLE, "gone")
    assert not played.stream.unproven
    assert (played.rows, played.close()) == ([], 1105 if end == "unusable" else 1053)


def test_an_ended_stream_does_not_wait_for_a_proof_that_nothing_waits_for(played: Played) -> None:
    played.now_s += MAX_AGE_S * 0.6
    played.stream.deliver((b"a",))
    played.stream.end(Cause.COMPLETE, "")
    assert not played.stream.unproven


def test_the_engine_delivers_again_only_when_there_is_no_reason_left_to_pause(played: Played) -> None:
    played.now_s += MAX_AGE_S + 1
    played.stream.deliver((b"a",))
    played.stream.pause()
    played.stream.proven(played.now_s)
    assert played.handle.calls == ["pause"]
    played.stream.resume()
    assert played.handle.calls == ["pause", "resume"]


def test_whoever_waits_is_woken_by_the_end_and_by_a_wanted_proof(played: Played) -> None:
    async def play() -> None:
        stream = Played()
        assert not await stream.stream.wait(0)
        stream.now_s += MAX_AGE_S + 1
        waiting = asyncio.create_task(stream.stream.wait(60))
        await asyncio.sleep(0)
        stream.stream.deliver((b"a",))
        assert await waiting
        stream.stream.proven(stream.now_s)
        waiting = asyncio.create_task(stream.stream.wait(60))
        await asyncio.sleep(0)
        stream.stream.end(Cause.COMPLETE, "")
        assert await waiting

    asyncio.run(play())


def begun(writes: list[bytes], *, waits: bool) -> Stream:
    """A stream that has its column packets, and is ended by the packet `end`; its writes."""
    stream = Stream(writes.append, waits=waits)
    stream.begin([b"columns"])
    stream.ends_with(lambda: b"end")
    return stream


def test_a_stream_that_waits_sends_its_columns_at_once_and_rows_as_they_come() -> None:
    writes: list[bytes] = []
    stream = begun(writes, waits=True)
    assert writes == [COLUMNS]
    stream.deliver((b"a",))
    assert writes[1:] == [frame(b"a", 2)]
    stream.end(Cause.COMPLETE, "")
    assert writes[2:] == [frame(b"end", 3)]


def test_a_stream_that_does_not_wait_sends_its_columns_with_its_first_rows() -> None:
    writes: list[bytes] = []
    stream = begun(writes, waits=False)
    assert writes == []
    stream.deliver((b"a", b"b"))
    assert writes == [COLUMNS + frame(b"a", 2) + frame(b"b", 3)]


def test_a_stream_that_finds_nothing_is_one_write() -> None:
    writes: list[bytes] = []
    begun(writes, waits=False).end(Cause.COMPLETE, "")
    assert writes == [COLUMNS + frame(b"end", 2)]


def test_an_error_before_the_first_row_follows_the_columns() -> None:
    writes: list[bytes] = []
    stream = begun(writes, waits=False)
    stream.end(Cause.DRAINING, "")
    stream.close(0, 2)
    (written,) = writes
    assert written.startswith(COLUMNS)


def test_what_is_held_is_written_when_there_is_much_of_it() -> None:
    writes: list[bytes] = []
    held = GatheredWrites(writes.append)
    held.hold(b"x" * (GATHERED_MAX - 1))
    assert writes == []
    held.hold(b"y")
    assert [len(data) for data in writes] == [GATHERED_MAX]
    held.flush()
    assert len(writes) == 1


def test_the_last_row_up_to_the_limit_is_written_with_the_end() -> None:
    async def play() -> list[bytes]:
        written: list[bytes] = []
        stream = Stream(written.append, limit=2)
        stream.begin([b"columns"])
        stream.ends_with(lambda: b"end")
        stream.deliver((b"a",))
        stream.deliver((b"b",))
        assert written == [COLUMNS, frame(b"a", 2)]
        stream.end(Cause.COMPLETE, "")
        stream.close(0, 0)
        return written

    assert asyncio.run(play()) == [COLUMNS, frame(b"a", 2), frame(b"b", 3) + frame(b"end", 4)]


def test_an_error_in_place_of_the_end_comes_behind_the_last_row() -> None:
    async def play() -> list[bytes]:
        written: list[bytes] = []
        stream = Stream(written.append, limit=1, waits=False)
        stream.begin([b"columns"])
        stream.ends_with(lambda: b"end")
        stream.deliver((b"a",))
        stream.abort(INTERRUPTED)
        stream.close(0, 0)
        return written

    (written,) = asyncio.run(play())
    assert written.startswith(COLUMNS + frame(b"a", 2))
    assert parse_err(written[len(COLUMNS) + 5 + 4 :]).code == 1317
