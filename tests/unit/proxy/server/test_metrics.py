"""The metrics: docs/metrics.md lists each one, and the counts of queues are bounded and add up."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

import pytest
from prometheus_client.core import Metric

from engine.binlog.supervisor import Following
from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.effects import Claim
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.measures import Measures
from engine.dispatch.problems import Kind
from engine.model import NS_PER_S, TableId
from engine.queue_table import QueueTable
from engine.runtime.executor import EngineSettings
from engine.service import Engine
from engine.store.reach import Reach
from engine.store.route import Route
from proxy.server import queue_metrics
from proxy.server.depths import CountedQueue
from proxy.server.holding import CONSUMER_S, Seen, reasons
from proxy.server.listener import Proxy
from proxy.server.metrics import BinlogMetrics, ProcessMetrics, exposition
from proxy.server.problems import QUEUES_OF_A_STEP, UNIT, WARNING
from proxy.server.queue_metrics import OTHERS, QueueMetrics
from proxy.settings import load
from proxy.statements.depth import Depth
from proxy.transport.tls import Tls
from tests.support.memory_store import MemoryStore, Row
from tests.support.play import POLICY, TABLE, Stage, queue_table

PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| (.*) \|$", re.MULTILINE)
NOW = Instant(0, 10**18)


def queue(name: str) -> tuple[QueueTable, Dispatcher]:
    table = replace(queue_table(), id=TableId("shop", name))
    return table, Dispatcher(table.policy, Limits(), lambda: 0.0, NOW)


def samples(families: Iterable[Metric], name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.name == f"ackstream_{name}"
    }


def collected(
    metrics: QueueMetrics,
    queues: Iterable[tuple[QueueTable, Dispatcher]],
    counts: Mapping[TableId, CountedQueue] = MappingProxyType({}),
    now_s: float = 0.0,
) -> list[Metric]:
    return queue_metrics.families(asyncio.run(metrics.read(queues, counts)), now_s)


def process_metrics(engine: Engine, tmp_path: Path) -> ProcessMetrics:
    settings = load({"data_dir": tmp_path, "tls": False}, None)
    return ProcessMetrics(Proxy(engine, settings, Route(None), Tls.of(settings)), Reach())


async def all_families(tmp_path: Path) -> list[Metric]:
    store = MemoryStore(now_ns=10**18)
    store.add_table(queue_table())
    engine = Engine(store, EngineSettings())
    await engine.start()
    metrics = process_metrics(engine, tmp_path)
    try:
        families = await metrics.families(counted=True)
        return [*families, *BinlogMetrics(Following()).collect()]
    finally:
        await metrics.stop()
        await engine.close()


def described(family: Metric) -> tuple[str, str, str, str]:
    name = family.name + ("_total" if family.type == "counter" else "")
    labels = getattr(family, "_labelnames", ())
    return name, family.type, ", ".join(f"`{label}`" for label in labels), family.documentation


def test_the_page_lists_each_metric_with_its_type_labels_and_help(tmp_path: Path) -> None:
    families = asyncio.run(all_families(tmp_path))
    rows = ROW.findall(PAGE.read_text())
    expected = {described(family) for family in families}
    assert len(rows) == len(set(rows))
    missing = sorted(f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in expected - set(rows))
    assert (missing, set(rows) - expected) == ([], set())


def test_names_follow_the_conventions(tmp_path: Path) -> None:
    families = asyncio.run(all_families(tmp_path))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    for family in families:
        assert re.fullmatch(r"(ackstream|process)_[a-z_]+[a-z]", family.name)
        assert not re.search(r"_(ms|us|ns|milliseconds|kb|count|total)$", family.name)
        assert len(family.documentation) >= 12 or family.name.startswith("process_"), family.name


def test_the_exposition_is_the_text_format() -> None:
    text = asyncio.run(exposition(collected(QueueMetrics(), [queue("m")]))).decode()
    assert "# HELP ackstream_queue_delivered_total" in text
    assert 'ackstream_queue_delivered_total{db="shop",queue="m"} 0.0\n' in text


def test_queues_beyond_the_bound_share_one_label_and_no_sum_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_metrics, "QUEUES_MAX", 2)
    metrics, queues = QueueMetrics(), [queue(name) for name in "abcd"]
    for at, (_, dispatcher) in enumerate(queues):
        dispatcher.parts.measures.delivered = 10**at
    found = samples(collected(metrics, queues), "queue_delivered_total")
    assert found == {("shop", "a"): 1, ("shop", "b"): 10, ("", ""): 1100}
    # A queue of its own label was dropped: nobody takes its label.
    found = samples(collected(metrics, queues[1:]), "queue_delivered_total")
    assert found == {("shop", "b"): 10, (OTHERS.db, OTHERS.name): 1100}


def test_a_queue_with_problems_has_a_series_for_each_kind_and_others_have_none() -> None:
    queues = [queue("m"), queue("well")]
    table, dispatcher = queues[0]
    queues[0] = replace(table, warnings=("no index",)), dispatcher
    dispatcher.parts.measures.problems.note(Kind.REPEATED, "message 5 comes again", time.monotonic_ns())
    counts = {table.id: CountedQueue(Depth(other_unit=True), None, 0.0)}
    found = samples(collected(QueueMetrics(), queues, counts), "queue_problem")
    assert found == {("shop", "m", kind): 1 for kind in (WARNING, UNIT, "message.repeated")}


def test_the_event_loop_turns_between_two_groups_of_queues() -> None:
    order: list[str] = []

    def runners() -> Iterator[tuple[QueueTable, Dispatcher]]:
        for number in range(600):
            order.append("queue")
            yield queue(f"q{number}")

    async def read() -> None:
        loop = asyncio.get_running_loop()

        def turn() -> None:
            order.append("turn")
            loop.call_soon(turn)

        turn()
        assert len(await QueueMetrics().read(runners(), {})) == 600

    asyncio.run(read())
    groups = [len(list(same)) for what, same in groupby(order) if what == "queue"]
    assert sum(groups) == 600
    # The next queue is taken from `runners` before the turn.
    assert max(groups) <= QUEUES_OF_A_STEP + 1


def test_no_total_of_the_proxy_is_behind_the_sum_of_its_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [queue(f"q{number}") for number in range(600)]

    async def collect() -> list[Metric]:
        engine = Engine(MemoryStore(now_ns=10**18), EngineSettings())
        monkeypatch.setattr(engine, "runners", lambda: queues)
        loop = asyncio.get_running_loop()

        def deliver() -> None:
            for _, dispatcher in queues:
                dispatcher.parts.measures.delivered += 1
            engine.counters.delivered += len(queues)
            loop.call_soon(deliver)

        deliver()
        return await process_metrics(engine, tmp_path).families(counted=False)

    families = asyncio.run(collect())
    (total,) = samples(families, "delivered_total").values()
    assert 600 < sum(samples(families, "queue_delivered_total").values()) <= total


def test_what_was_counted_in_the_database_ages_until_the_next_count() -> None:
    table, dispatcher = queue("m")
    counts = {table.id: CountedQueue(Depth(ready=3, oldest_ready_s=5.0), 7, counted_s=100.0)}
    families = collected(QueueMetrics(), [(table, dispatcher)], counts, 102.0)
    assert samples(families, "queue_ready") == {("shop", "m"): 3}
    assert samples(families, "queue_oldest_ready_age_seconds") == {("shop", "m"): 7.0}
    assert samples(families, "queue_enqueued_total") == {("shop", "m"): 7}
    assert samples(families, "queue_dead") == {}


def test_an_idle_queue_has_no_histogram() -> None:
    table, dispatcher = queue("m")
    families = collected(QueueMetrics(), [(table, dispatcher)])
    assert samples(families, "queue_pickup_delay_seconds_bucket") == {}
    dispatcher.parts.measures.pickup.add(2 * NS_PER_S)
    buckets = samples(collected(QueueMetrics(), [(table, dispatcher)]), "queue_pickup_delay_seconds_bucket")
    assert buckets["shop", "m", "1.0"] == 0
    assert buckets["shop", "m", "5.0"] == buckets["shop", "m", "+Inf"] == 1


def seen(stage: Stage, **known: bool) -> Seen:
    return Seen(stage.dispatcher, stage.mono_ns, **known)


def test_reasons_that_hold_a_queue_back() -> None:
    stage = Stage(policy=replace(POLICY, cache_size=2, batch_size=2, paused=True))
    stage.pass_time(CONSUMER_S * NS_PER_S)
    assert set(reasons(seen(stage))) == {"paused", "no_consumer"}
    stage = Stage(policy=replace(POLICY, cache_size=2, batch_size=2))
    for key in range(5):
        stage.enqueue(key)
    stage.subscribe(1, 1)
    stage.settle()
    assert reasons(seen(stage)) == ("limit",)


def test_whoever_holds_a_message_or_has_polled_lately_is_a_consumer() -> None:
    stage = Stage(policy=POLICY)
    assert reasons(seen(stage)) == ()  # It was found a moment ago: its workers may be connecting.
    stage.pass_time(CONSUMER_S * NS_PER_S)
    assert reasons(seen(stage)) == ("no_consumer",)
    assert reasons(seen(stage, is_read_elsewhere=True)) == ()  # At another proxy.
    stage.enqueue(1)
    stage.enqueue(2)
    stage.subscribe(1, 1, limit=1, first_wait_ns=20 * NS_PER_S)  # A worker: it gets one message, and works.
    stage.settle()
    assert not stage.dispatcher.subscribers
    stage.pass_time(POLICY.ack_wait_ns - NS_PER_S)
    assert stage.dispatcher.in_flight == 1
    assert reasons(seen(stage)) == ()


def test_a_queue_whose_claims_have_failed_for_some_seconds_is_held_back_by_the_server() -> None:
    stage = Stage(policy=POLICY)
    stage.enqueue(1)
    stage.subscribe(1, 1)
    for second in range(8):
        for _ in range(5):
            for asked in list(stage.asked):
                if isinstance(asked.effect, Claim):
                    stage.fail(asked)
                else:
                    stage.do(asked)
                    stage.answer(asked)
        assert reasons(seen(stage)) == (("server_stalls",) if second >= 5 else ()), second
        stage.pass_time(NS_PER_S)
    stage.settle()
    assert stage.delivered == {1: [1]}
    assert reasons(seen(stage)) == ()
    assert reasons(seen(stage, is_stalled=True)) == ("server_stalls",)


def test_a_queue_that_was_polled_lately_has_a_consumer() -> None:
    stage = Stage(policy=POLICY)
    stage.subscribe(1, 1, first_wait_ns=0)
    stage.settle()
    assert not stage.dispatcher.subscribers
    stage.pass_time((CONSUMER_S - 1) * NS_PER_S)
    assert reasons(seen(stage)) == ()
    stage.pass_time(2 * NS_PER_S)
    assert reasons(seen(stage)) == ("no_consumer",)


def test_a_queue_whose_groups_are_all_full_is_held_back() -> None:
    policy = replace(POLICY, batch_size=9, group_by=("tenant",), group_limit=1)
    stage = Stage(policy=policy, group_of=lambda key: (key % 2,))
    for key in range(5):
        stage.enqueue(key)
    stage.subscribe(1, 1)
    stage.settle()
    assert reasons(seen(stage)) == ("group_limit",)
    stage.handle(stage.dispatcher.policy_changed, replace(policy, group_limit=None, group_strict=True))
    stage.settle()
    assert reasons(seen(stage)) == ("group_order",)


def test_a_queue_with_follow_ups_that_wait_is_held_back() -> None:
    stage = Stage(policy=replace(POLICY, batch_by="batch", after_batch="after_batch"))
    stage.subscribe(1, 1)
    stage.settle()
    assert reasons(seen(stage)) == ()
    stage.store.put(TABLE, Row(1, batch=7, time_next_ns=stage.now_ns + 60 * NS_PER_S))
    stage.store.put(TABLE, Row(2, after_batch=7, payload=b"2"))
    stage.handle(stage.dispatcher.woken)
    stage.settle()
    assert reasons(seen(stage)) == ("batch",)


def test_deliveries_are_measured_until_their_end() -> None:
    stage = Stage(policy=POLICY)
    for key in (1, 2, 3):
        stage.enqueue(key, due_ns=stage.now_ns - NS_PER_S)
    stage.subscribe(1, 1)
    stage.settle()
    measures: Measures = stage.dispatcher.parts.measures
    assert measures.pickup.total == 3
    stage.acknowledge(1, seen=True)
    stage.settle()
    assert (measures.acknowledged, measures.work.total) == (1, 1)
    stage.handle(stage.dispatcher.disconnected, 1)
    stage.settle()
    assert (measures.acknowledged, measures.given_back, measures.expired) == (1, 2, 0)
