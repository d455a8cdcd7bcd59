"""Indirect writes wake all queues, at a bounded rate."""

from __future__ import annotations

import asyncio

from engine.runtime.indirect_writes import UNCLASSIFIED_MAX, IndirectWrites, WakeAll


def known_names(*names: str) -> IndirectWrites:
    known = IndirectWrites()
    known.refreshed(frozenset(names), outdated=False)
    return known


def test_a_write_to_a_listed_table_is_indirect_and_to_another_table_is_not() -> None:
    known = known_names("orders")
    assert known.written("orders")
    assert not known.written("plain")


def test_a_write_before_the_catalogs_refresh_is_classified_after_it() -> None:
    known = known_names()
    known.schema_changed()
    assert not known.written("orders")
    assert known.refreshed(frozenset({"orders"}), outdated=False)
    assert not known.refreshed(frozenset({"orders"}), outdated=False), "it was classified before"


def test_a_refresh_that_is_already_out_of_date_keeps_writes_unclassified() -> None:
    known = known_names()
    known.schema_changed()
    known.written("orders")
    assert not known.refreshed(frozenset(), outdated=True)
    assert known.refreshed(frozenset({"orders"}), outdated=False)


def test_more_writes_than_are_remembered_count_as_indirect() -> None:
    known = known_names()
    known.schema_changed()
    answers = [known.written(str(number)) for number in range(UNCLASSIFIED_MAX + 1)]
    assert (answers.count(True), answers[-1]) == (1, True)


class Waker:
    """Counts wake-ups, and returns a number of tables with streams."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.times_s: list[float] = []
        self.woken = asyncio.Event()

    def __call__(self) -> int:
        self.times_s.append(asyncio.get_running_loop().time())
        self.woken.set()
        return self.waiting


def test_the_first_wake_up_comes_at_once_and_later_requests_share_one() -> None:
    async def play() -> None:
        waker = Waker(waiting=5)
        wake_all = WakeAll(waker, scans_per_s=100)
        wake_all.request()
        assert len(waker.times_s) == 1
        waker.woken.clear()
        for _ in range(1000):
            wake_all.request()
        assert len(waker.times_s) == 1
        await asyncio.wait_for(waker.woken.wait(), 10)
        assert len(waker.times_s) == 2
        assert waker.times_s[1] - waker.times_s[0] >= 5 / 100

    asyncio.run(play())


def test_without_streams_no_wake_up_is_delayed() -> None:
    async def play() -> None:
        waker = Waker(waiting=0)
        wake_all = WakeAll(waker, scans_per_s=100)
        for _ in range(3):
            wake_all.request()
        assert len(waker.times_s) == 3

    asyncio.run(play())


def test_no_wake_up_comes_after_the_end() -> None:
    async def play() -> None:
        waker = Waker(waiting=1)
        wake_all = WakeAll(waker, scans_per_s=1000)
        wake_all.request()
        wake_all.request()
        wake_all.cancel()
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, later.set)
        await later.wait()
        assert len(waker.times_s) == 1

    asyncio.run(play())
