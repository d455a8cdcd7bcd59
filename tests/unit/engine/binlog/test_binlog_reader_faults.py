"""Failures of the library, and of the reader of the binary log itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pymysql
import pytest
import uvloop

from engine.binlog.pipe import BinlogLimits, FollowRequest, OwnConnections, ReaderEnded, ReaderStarted, message
from engine.binlog.reader import (
    UNREADABLE_IN_A_ROW_MAX,
    StuckLogError,
    UnreadableLogError,
    read_until_ended,
    readable_events,
)
from engine.binlog.supervisor import BinlogFollower, FollowerLimits
from engine.service import Engine
from engine.store.opening import BackendAddress
from engine.store.port import StoreError


class Library:
    """Returns or raises the given values in `fetchone`, then fails for ever."""

    def __init__(self, *answers: object) -> None:
        self.calls = 0
        self.unreadable = 0
        self._answers: Iterator[object] = iter(answers)

    def fetchone(self) -> object:
        self.calls += 1
        answer = next(self._answers, AttributeError("'NoneType' object has no attribute 'read'"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def skip(self) -> None:
        self.unreadable += 1


def test_an_event_that_cannot_be_read_is_skipped_and_reported() -> None:
    library = Library("a", KeyError(255), "b", KeyError(255), None)
    assert list(readable_events(library.fetchone, library.skip)) == ["a", "b"]
    assert (library.calls, library.unreadable) == (5, 2)


def test_a_library_that_fails_without_reading_is_given_up() -> None:
    library = Library("a")
    events = readable_events(library.fetchone, library.skip)
    assert next(events) == "a"
    with pytest.raises(StuckLogError, match="no attribute 'read'"):
        next(events)
    assert library.calls == 1 + UNREADABLE_IN_A_ROW_MAX


def test_single_unreadable_events_never_count_as_a_stuck_library() -> None:
    answers = ["event", KeyError(255)] * 2 * UNREADABLE_IN_A_ROW_MAX
    library = Library(*answers, None)
    assert list(readable_events(library.fetchone, library.skip)) == ["event"] * 2 * UNREADABLE_IN_A_ROW_MAX


def test_a_lost_connection_is_no_unreadable_event() -> None:
    library = Library(pymysql.OperationalError(2013, "lost"))
    with pytest.raises(pymysql.OperationalError):
        list(readable_events(library.fetchone, library.skip))
    assert library.unreadable == 0


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (
            UnreadableLogError("the server keeps no binary log"),
            ReaderEnded("the server keeps no binary log", refused=True),
        ),
        (StuckLogError("100 events"), ReaderEnded("100 events")),
        (pymysql.OperationalError(2013, "lost"), ReaderEnded("lost (2013)")),
        (pymysql.OperationalError(1227, "denied"), ReaderEnded("denied (1227)", refused=True)),
        (KeyError("table"), ReaderEnded("its reader failed: KeyError('table')")),
    ],
)
def test_the_reason_of_the_readers_end_is_reported_to_its_parent(error: Exception, ended: ReaderEnded) -> None:
    def read() -> None:
        raise error

    assert read_until_ended(read) == ended


def test_a_fault_while_changes_are_processed_starts_another_reader_after_a_pause() -> None:
    async def play() -> None:
        watch = Faulty()
        watch.start()
        await watch.again.wait()
        await watch.close()
        assert watch.follows == 2

    asyncio.run(play())


RUBBISH = {
    "no message": b"Traceback (most recent call last):",
    "a message that is cut off": message(ReaderStarted("binlog.1:4"))[:-3],
    "no value": b"\x04\0\0\0rubb",
    "a value of another kind": message(["rubbish"]),
    "nothing": b"",
}


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_a_reader_that_writes_garbage_or_dies_is_replaced(rubbish: str) -> None:
    async def play() -> None:
        engine = Nobody()
        watch = Scripted(engine, [RUBBISH[rubbish], message(ReaderStarted("binlog.1:4"))])
        watch.start()
        await asyncio.wait_for(engine.told.wait(), 30)
        assert watch.following.now
        assert watch.following.starts == 2
        assert watch.following.faults == (0 if rubbish in {"a message that is cut off", "nothing"} else 1)
        await watch.close()

    asyncio.run(play())


def test_many_new_queues_are_sent_to_the_reader_at_once() -> None:
    async def play() -> None:
        engine = Nobody()
        watch = Scripted(engine, [message(ReaderStarted("binlog.1:4"))])
        watch.start()
        await asyncio.wait_for(engine.told.wait(), 30)
        asked = engine.asked
        for _ in range(1_000):
            assert engine.on_queues is not None
            engine.on_queues()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert engine.asked == asked + 1
        await watch.close()

    asyncio.run(play())


def test_what_is_sent_to_a_reader_whose_input_has_closed_is_dropped() -> None:
    """It was killed, and its end is noticed next."""

    async def play() -> None:
        watch = Scripted(Nobody(), [])
        process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", "", stdin=asyncio.subprocess.PIPE)
        await process.wait()
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(ConnectionError):
            await process.stdin.wait_closed()
        watch._process = process
        watch._send(OwnConnections(frozenset({7})))

    uvloop.run(play())


class Nobody:
    """An engine without queues."""

    slots: frozenset[int] = frozenset()

    def __init__(self, absence: StoreError | None = None) -> None:
        """`absence`: the error of its server."""
        self.on_queues: Callable[[], None] | None = None
        self.told = asyncio.Event()
        self.asked = 0
        self._absence = absence

    async def ping(self) -> None:
        if self._absence is not None:
            raise self._absence

    def followed_queues(self) -> list[Any]:
        self.asked += 1
        return []

    def changes_logged(self, _table: object) -> None:
        self.told.set()


class Scripted(BinlogFollower):
    """Each reader writes the next of the given outputs. The last reader keeps running."""

    def __init__(self, engine: Nobody, outputs: Sequence[bytes]) -> None:
        limits = FollowerLimits(again_min_s=0.001)
        super().__init__(cast(Engine, engine), BackendAddress("127.0.0.1", 1, "nobody"), limits)
        self._outputs = iter(outputs)
        self._left = len(outputs)

    def reader_command(self) -> tuple[str, ...]:
        self._left -= 1
        stay = "sys.stdin.read()" if self._left == 0 else ""
        write = f"sys.stdout.buffer.write({next(self._outputs)!r}); sys.stdout.flush(); {stay}"
        return (sys.executable, "-I", "-c", f"import sys; {write}")


class Faulty(BinlogFollower):
    """The changes of its first reader cannot be processed."""

    def __init__(self) -> None:
        limits = FollowerLimits(again_min_s=0.001)
        super().__init__(cast(Engine, Nobody()), BackendAddress("127.0.0.1", 1, "nobody"), limits)
        self.follows = 0
        self.again = asyncio.Event()

    async def _follow(self) -> ReaderEnded:
        self.follows += 1
        if self.follows == 1:
            raise RuntimeError("a dispatcher failed")
        self.again.set()
        await asyncio.Event().wait()
        raise AssertionError


class CutOff(BinlogFollower):
    """Its first two readers lose their connection."""

    def __init__(self, absence: StoreError | None) -> None:
        address, limits = BackendAddress("127.0.0.1", 1, "nobody"), FollowerLimits(again_min_s=0.001)
        super().__init__(cast(Engine, Nobody(absence)), address, limits)
        self.follows = 0
        self.again = asyncio.Event()

    async def _follow(self) -> ReaderEnded:
        self.follows += 1
        if self.follows <= 2:
            return ReaderEnded("the connection was lost")
        self.again.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize(
    ("absence", "lines"),
    [(None, 1), (StoreError("Connection refused", code=2003), 0), (StoreError("Access denied", code=1045), 1)],
)
def test_a_lost_reader_is_logged_once_and_not_at_all_while_the_server_is_unreachable(
    absence: StoreError | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """engine.store.reach logs that."""

    async def play() -> None:
        watch = CutOff(absence)
        watch.start()
        await asyncio.wait_for(watch.again.wait(), 10)
        await watch.close()

    asyncio.run(play())
    assert [record.message for record in caplog.records] == [
        "the binlog cannot be followed now, polling until it can: the connection was lost"
    ] * lines


def test_a_reader_whose_parent_has_ended_prints_nothing() -> None:
    """The proxy and its private server may be killed together: the reader has lost both."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    reader = subprocess.Popen(
        [sys.executable, "-m", "engine.binlog.reader"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stderr is not None
        reader.stdout.close()
        reader.stdin.write(message(FollowRequest(BackendAddress("127.0.0.1", port, "root"), BinlogLimits(), {})))
        reader.stdin.flush()
        assert reader.stderr.read() == b""
        assert reader.wait() == 0
