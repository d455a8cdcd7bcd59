"""What a dispatcher remembers does not grow with the messages that have passed.

It is counted: the elements of all containers that are reachable from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, Share
from tests.support.memory_store import MemoryStore, Row
from tests.support.play import EVEN, POLICY, TABLE, Stage

ROUNDS = 100
MESSAGES = 20
"""How many are inserted in each round."""
LATE = 3
"""Every so many is locked by another transaction first, and acknowledged by it."""
LOCKED_ROUNDS = 12


def attributes(thing: object) -> Iterator[object]:
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    yield from getattr(thing, "__dict__", {}).values()
    yield from (getattr(thing, name) for name in names if hasattr(thing, name))


def remembered(dispatcher: Dispatcher) -> int:
    """The elements of all containers that are reachable from a dispatcher."""
    count, seen, left = 0, set(), deque[object]([dispatcher])
    while left:
        thing = left.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            count += len(thing)
            left += thing.values()
        elif isinstance(thing, list | set | deque):
            count += len(thing)
            left += thing
        elif type(thing).__module__.startswith("engine.dispatch"):
            left += attributes(thing)
    return count


class Traffic:
    """Messages come, are delivered by some proxies, and are acknowledged."""

    def __init__(self, stages: Iterable[Stage], store: MemoryStore) -> None:
        self._stages, self._store = list(stages), store
        self._locked: deque[list[int]] = deque()
        self._next = 2  # Even: messages that nobody wants would stay.

    @property
    def remembered(self) -> int:
        return sum(remembered(stage.dispatcher) for stage in self._stages)

    @property
    def missed(self) -> int:
        """How many misses are remembered for one group of streams, at most."""
        groups = [group for stage in self._stages for group in stage.dispatcher.parts.groups]
        return max(group.scans.buffer.missed_count for group in groups if len(group.subscribers))

    @property
    def left(self) -> int:
        """How many messages are not acknowledged."""
        return len(self._store.rows[TABLE])

    def round(self) -> None:
        keys = range(self._next, self._next + 2 * MESSAGES, 2)
        self._next += 2 * MESSAGES
        for key in keys:
            self._store.put(TABLE, Row(key, payload=str(key).encode()))
        late = [key for key in keys if key % LATE == 0]
        self._store.locked |= set(late)
        self._locked.append(late)
        if len(self._locked) > LOCKED_ROUNDS:
            over = self._locked.popleft()
            self._store.locked -= set(over)
            for key in over:
                self._store.acknowledge(TABLE, key)
        for stage in self._stages:
            stage.handle(stage.dispatcher.woken)
        for _ in range(5):
            for stage in self._stages:
                self._work(stage)

    def _work(self, stage: Stage) -> None:
        for asked in list(stage.asked):
            stage.do(asked)
            stage.answer(asked)
        for key in [key for keys in stage.delivered.values() for key in keys]:
            stage.acknowledge(key, seen=True)
        stage.delivered.clear()
        stage.mono_ns += 20_000_000
        stage.handle(stage.dispatcher.tick)
        for key in [key for key, row in self._store.rows[TABLE].items() if row.time_acked_ns is not None]:
            del self._store.rows[TABLE][key]


def proxies(count: int, begin: Callable[[Stage, int], None], limits: Limits | None = None, **policies: int) -> Traffic:
    store = MemoryStore(now_ns=Stage().now_ns)
    policy = replace(POLICY, cache_size=1_000, batch_size=100, **policies)  # type: ignore[arg-type]
    stages = [Stage(policy=policy, store=store, limits=limits or Limits(), fetch_budget=10**6) for _ in range(count)]
    for number, stage in enumerate(stages):
        if count > 1:
            stage.set_share(Share(number, count))
        begin(stage, number)
    return Traffic(stages, store)


def endless(stage: Stage, number: int) -> None:
    stage.subscribe(1, holder=number)


def with_a_condition(stage: Stage, number: int) -> None:
    stage.subscribe(1, holder=number, selection=EVEN)


NO_CONTENTION = 10**9
"""So many misses are no contention: the proxies try the same messages."""


@pytest.mark.parametrize("contention_bound", [Limits().contention_bound, NO_CONTENTION])
def test_what_others_have_taken_keeps_no_stream_with_a_condition_from_reading_on(contention_bound: int) -> None:
    traffic = proxies(3, with_a_condition, Limits(contention_bound=contention_bound))
    for _ in range(40):
        traffic.round()
    assert traffic.left <= (LOCKED_ROUNDS + 2) * MESSAGES


def test_what_others_have_taken_is_bounded_however_rare_the_polls_are() -> None:
    traffic = proxies(3, with_a_condition, Limits(window_max=100, contention_bound=NO_CONTENTION))
    most = 0
    for _ in range(40):
        traffic.round()
        most = max(most, traffic.missed)
    assert 100 < most <= 200


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("begin", [endless, with_a_condition])
def test_it_does_not_grow_with_the_messages_that_have_passed(count: int, begin: Callable[[Stage, int], None]) -> None:
    traffic = proxies(count, begin, poller_interval_ns=2 * NS_PER_S)
    for _ in range(ROUNDS // 2):
        traffic.round()
    before = traffic.remembered
    for _ in range(ROUNDS):
        traffic.round()
    assert traffic.remembered <= 1.2 * before + 200
