"""What an event costs: the same number of steps with 10 and with 5,000 subscribers, with 1 and with 1,000 queues.

Steps are calls of Python functions, which do not depend on how busy the machine is.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Claim, Deliver, Fetch, Lookup, Scan
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.subscribers import Subscription
from engine.model import NS_PER_S, Claimed, Entry, FetchResult, ScanResult, TableId
from engine.runtime.executor import EngineSettings
from engine.service import Engine
from tests.support.memory_store import MemoryStore
from tests.support.play import FORMAT, POLICY, queue_table

COUNTS = (10, 1_000, 5_000)
MANY = replace(POLICY, batch_size=10, cache_size=100_000)
NOW = Instant(10**12, 10**18)
LONG_NS = 3_600 * NS_PER_S


def spent(action: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[int, Any]:
    """How many Python functions a call takes, and what it returns."""
    count = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()  # It calls functions of its own, hypothesis's among them.
    sys.setprofile(called)
    try:
        answer = action(*arguments, **options)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count, answer


def waiting(count: int, **options: Any) -> Dispatcher:
    """So many streams wait for messages, and a scan has found none."""
    dispatcher = Dispatcher(MANY, Limits(), lambda: 0.5, NOW)
    effects: Effects = []
    for number in range(1, count + 1):
        effects += dispatcher.subscribe(NOW, Subscription(number, number, FORMAT, **options))
    while scans := [effect for effect in effects if isinstance(effect, Scan)]:
        effects = dispatcher.scan_done(NOW, scans[0].scan_id, ScanResult((), more=False, horizon_ns=None))
    return dispatcher


def answer(dispatcher: Dispatcher, effect: object) -> tuple[int, Effects]:
    """What the database's answer to an effect costs and causes: every message asked for is there."""
    match effect:
        case Scan(scan_id):
            found = ScanResult((Entry(1, 0, 0, 0),), more=False, horizon_ns=None)
            return spent(dispatcher.scan_done, NOW, scan_id, found)
        case Claim(claim_id, wanted):
            claims = [Claimed(want.key, 1, NOW.server_ns + want.wait_ns, 0, 0) for want in wanted]
            return spent(dispatcher.claim_done, NOW, claim_id, claims)
        case Fetch(fetch_id, _, keys):
            return spent(dispatcher.fetch_done, NOW, fetch_id, FetchResult(dict.fromkeys(keys, b"row")))
        case _:
            return 0, []


def delivered(dispatcher: Dispatcher) -> int:
    """What it costs from the commit of one message until its row is sent."""
    cost, effects = spent(dispatcher.woken, NOW)
    rows = 0
    while effects:
        effect = effects.pop(0)
        rows += isinstance(effect, Deliver)
        more, caused = answer(dispatcher, effect)
        cost += more
        effects += caused
    assert rows == 1
    return cost


@pytest.fixture(scope="module", autouse=True)
def caches_of_the_interpreter_are_full() -> None:
    """What isinstance finds out about an abstract class, for example, takes calls once in a process."""
    dispatcher = waiting(1)
    delivered(dispatcher)
    dispatcher.settled(NOW, [1])
    dispatcher.changes_logged(NOW, (), (2,), {2: (1, NOW.server_ns)})


def test_a_wake_up_costs_the_same_however_many_streams_wait() -> None:
    assert len({spent(waiting(count).woken, NOW)[0] for count in COUNTS}) == 1


def test_a_message_from_its_commit_to_its_stream_costs_the_same_however_many_streams_wait() -> None:
    assert len({delivered(waiting(count)) for count in COUNTS}) == 1


def test_an_acknowledgement_costs_the_same_however_many_streams_there_are() -> None:
    costs = set()
    for count in COUNTS:
        dispatcher = waiting(count)
        delivered(dispatcher)
        costs.add(spent(dispatcher.settled, NOW, [1])[0])
    assert len(costs) == 1


def test_ends_of_deliveries_through_other_proxies_cost_the_same_however_many_the_log_reports() -> None:
    before = (1, NOW.server_ns)
    reports = [range(2, 2 + count) for count in (10, 1_000)]
    costs = {spent(waiting(1).changes_logged, NOW, (), keys, dict.fromkeys(keys, before))[0] for keys in reports}
    assert max(costs) - min(costs) <= 10


@pytest.mark.parametrize("first_wait_ns", [None, LONG_NS], ids=["endless", "long polls"])
def test_a_client_that_connects_and_disconnects_costs_the_same_however_many_streams_there_are(
    first_wait_ns: int | None,
) -> None:
    costs = set()
    for count in COUNTS:
        dispatcher = waiting(count, first_wait_ns=first_wait_ns)
        newcomer = Subscription(count + 1, count + 1, FORMAT, first_wait_ns=LONG_NS)
        costs.add(spent(dispatcher.subscribe, NOW, newcomer)[0] + spent(dispatcher.disconnected, NOW, count + 1)[0])
    assert max(costs) - min(costs) <= 10  # A heap of more streams may be one level deeper.


def test_ended_streams_leave_no_state_behind() -> None:
    dispatcher = waiting(10)
    for number in range(11, 2_011):
        dispatcher.subscribe(NOW, Subscription(number, number, FORMAT, first_wait_ns=LONG_NS))
        dispatcher.disconnected(NOW, number)
    members = dispatcher.parts.groups.main.subscribers
    assert (len(dispatcher.parts.groups._streams_of), len(members)) == (10, 10)
    kept = (
        members._next,
        members._first_waits,
        members._ending,
        members._ending_ids,
        members._awaited_scans,
        members._to_fetch,
    )
    assert sum(len(index) for index in kept) < 400


# Over all queues.


class Silent:
    """A sink that expects nothing."""

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        raise AssertionError(rows)

    def end(self, cause: object, text: str) -> None:
        raise AssertionError((cause, text))


async def engine_with(queues: int) -> Engine:
    store = MemoryStore(now_ns=10**18)
    for number in range(queues):
        store.add_table(replace(queue_table(), id=TableId("test", f"queue_{number}")))
    engine = Engine(store, EngineSettings())
    await engine.start()
    return engine


@pytest.mark.parametrize("streamed", [False, True])
def test_a_connection_that_ends_costs_the_same_however_many_queues_there_are(streamed: bool) -> None:
    async def cost(queues: int) -> int:
        engine = await engine_with(queues)
        if streamed:
            queue = await engine.queue(TableId("test", "queue_0"))
            engine.subscribe(queue, Silent(), holder=7, row_format=FORMAT)
        cost, _ = spent(engine.disconnected, 7)
        assert engine._by_holder == {}
        await engine.close()
        return cost

    assert abs(asyncio.run(cost(1)) - asyncio.run(cost(1_000))) <= 20  # A timer is set, or was set already.


@pytest.mark.parametrize("report", ["written", "noticed", "acknowledged"])
def test_a_report_about_one_queue_costs_the_same_however_many_there_are(report: str) -> None:
    async def cost(queues: int) -> int:
        engine = await engine_with(queues)
        match report:
            case "written":
                cost, _ = spent(engine.written, "queue_0")
            case "noticed":
                cost, _ = spent(engine.changes_logged, TableId("test", "queue_0"), (), [1])
            case _:
                cost, _ = spent(engine.acknowledged, TableId("test", "queue_0"), [1], certain=True)
        await engine.close()
        return cost

    assert abs(asyncio.run(cost(1)) - asyncio.run(cost(1_000))) <= 50  # A timer is set, or was set already.


STEP_CALLS_MAX = 20_000
"""Function calls of one event. They take the event loop about 6 ms, without what the garbage collector adds."""


def in_flight(count: int) -> tuple[Dispatcher, list[Entry]]:
    """A client holds so many messages, and how they look when they were given back."""
    dispatcher = Dispatcher(replace(MANY, batch_size=1_000), Limits(), lambda: 0.5, NOW)
    effects = dispatcher.subscribe(NOW, Subscription(1, 1, FORMAT))
    while len(dispatcher.parts.leases) < count:
        match effects.pop(0):
            case Scan(scan_id):
                keys = [key for key in range(count) if dispatcher.parts.leases.get(key) is None]
                found = ScanResult(tuple(Entry(key, 0, 0, 0) for key in keys), more=False, horizon_ns=None)
                effects += dispatcher.scan_done(NOW, scan_id, found)
            case effect:
                effects += answer(dispatcher, effect)[1]
    return dispatcher, [Entry(key, 1, 0, NOW.server_ns - 1) for key in range(count)]


def test_a_nack_of_unknown_messages_costs_the_same_however_many_are_in_flight() -> None:
    costs = {spent(in_flight(count)[0].suspected, NOW, None)[0] for count in (1_000, 5_000)}
    assert max(costs) - min(costs) <= 10


def test_no_answer_to_a_lookup_keeps_the_event_loop_for_long_when_all_messages_were_given_back() -> None:
    dispatcher, given_back = in_flight(5_000)
    effects = dispatcher.suspected(NOW, None)
    while lookups := [effect for effect in effects if isinstance(effect, Lookup)]:
        found = {key: given_back[key] for key in lookups[0].keys if isinstance(key, int)}
        cost, effects = spent(dispatcher.lookup_done, NOW, found)
        assert cost <= STEP_CALLS_MAX


@pytest.mark.parametrize("end", ["its client is gone", "its wait is over"])
def test_no_decision_keeps_the_event_loop_for_long_when_the_deliveries_of_many_messages_end(end: str) -> None:
    count = 5_000
    dispatcher, _ = in_flight(count)
    if end == "its client is gone":
        now, (cost, _) = NOW, spent(dispatcher.disconnected, NOW, 1)
    else:
        now = Instant(NOW.mono_ns, NOW.server_ns + LONG_NS)
        cost, _ = spent(dispatcher.tick, now)
    costs = [cost]
    while dispatcher.wake_at_ns == now.mono_ns + 1:
        costs.append(spent(dispatcher.tick, now)[0])
    assert len(dispatcher.parts.leases) == 0
    assert len(costs) > 1
    assert max(costs) <= STEP_CALLS_MAX


def test_no_report_of_many_ids_keeps_the_event_loop_for_long() -> None:
    dispatcher, _ = in_flight(1_000)
    cost, effects = spent(dispatcher.suspected, NOW, range(10_000))
    assert cost <= STEP_CALLS_MAX
    assert [len(effect.keys) for effect in effects if isinstance(effect, Lookup)] == [Limits().lookup_max]


@pytest.mark.parametrize("groups", [0, 1_000])
def test_no_answer_to_a_scan_keeps_the_event_loop_for_long(groups: int) -> None:
    """Of as many messages as are read at most, in as many groups as that."""
    policy = replace(MANY, group_by=("tenant",)) if groups else MANY
    dispatcher = Dispatcher(policy, Limits(), lambda: 0.5, NOW)
    effects = dispatcher.subscribe(NOW, Subscription(1, 1, FORMAT))
    limits: list[int] = []
    costs: list[int] = []
    while len(dispatcher.parts.leases) < 4_000:
        match effects.pop(0):
            case Scan(scan_id, limit=limit):
                limits.append(limit)
                entries = tuple(
                    Entry(key, 0, 0, 0, (str(key % groups).encode(),) if groups else None)
                    for key in range(10_000)
                    if dispatcher.parts.leases.get(key) is None
                )[:limit]
                found = ScanResult(entries, more=True, horizon_ns=None)
                cost, caused = spent(dispatcher.scan_done, NOW, scan_id, found)
            case effect:
                cost, caused = answer(dispatcher, effect)
        costs.append(cost)
        effects += caused
    assert max(limits) >= Limits().window_max
    assert max(costs) <= STEP_CALLS_MAX
