"""The metrics of each queue.

The labels `db` and `queue` have at most QUEUES_MAX values. The counts of further queues are added up
under empty labels. A queue keeps its labels as long as the process runs, so no sum goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.measures import BUCKETS_S, Durations, Measures
from engine.model import NS_PER_S, TableId
from engine.queue_table import QueueTable
from proxy.server.depths import CountedQueue
from proxy.server.holding import REASONS, reasons

QUEUES_MAX = 1_000
"""Queues with labels of their own: about forty series each."""

OTHERS = TableId("", "")
"""The labels of all further queues."""

LABELS = ("db", "queue")

COUNTERS = (
    ("delivered", "Messages of the queue sent to subscribers by this proxy"),
    ("redelivered", "Messages of the queue claimed for the second time or later"),
    ("acknowledged", "Deliveries of this proxy that ended because the message was acknowledged or deleted"),
    ("given_back", "Deliveries of this proxy that ended because the message was given back or its consumer was gone"),
    ("expired", "Deliveries of this proxy that ended because their wait was over"),
    ("dead_lettered", "Dead messages of the queue moved by this proxy to its dead-letter table"),
    ("purged", "Acknowledged rows of the queue deleted by this proxy"),
)
"""Fields of Measures."""

HISTOGRAMS = (
    ("pickup", "pickup_delay", "Time from when a message was due to its delivery"),
    ("work", "acknowledge_delay", "Time from a delivery to its acknowledgement"),
)

COUNTED: Sequence[tuple[str, str, Callable[[CountedQueue, float], float]]] = (
    ("ready", "Messages that are due, by a count in the database", lambda one, _: one.depth.ready),
    ("scheduled", "Messages that come due later, by a count in the database", lambda one, _: one.depth.scheduled),
    ("leased", "Messages in flight at any proxy, by a count in the database", lambda one, _: one.depth.in_flight),
    ("retained", "Acknowledged rows that are not purged yet", lambda one, _: one.depth.acknowledged),
    (
        "oldest_ready_age_seconds",
        "Time since the oldest message that is due was due; 0 without one",
        lambda one, now_s: one.oldest_ready_s(now_s),
    ),
)


class QueueMetrics:
    """Makes the metric families of queues."""

    def __init__(self) -> None:
        self._labelled: set[TableId] = set()

    def collect(
        self,
        runners: Iterable[tuple[QueueTable, Dispatcher]],
        counts: Mapping[TableId, CountedQueue],
        now_s: float,
    ) -> Iterable[Metric]:
        """The present values. `counts`: the last counts in the database. `now_s`: the event loop's
        time."""
        queues: dict[TableId, tuple[list[Dispatcher], Measures]] = {}
        tables: dict[TableId, QueueTable] = {}
        for queue, dispatcher in runners:
            name = self._label(queue.id)
            dispatchers, total = queues.setdefault(name, ([], Measures()))
            dispatchers.append(dispatcher)
            _add(total, dispatcher.parts.measures)
            if name != OTHERS:
                tables[name] = queue
        yield from _counters(queues)
        yield from _gauges(queues)
        yield from _counted(tables, counts, now_s)

    def _label(self, table: TableId) -> TableId:
        if table not in self._labelled:
            if len(self._labelled) >= QUEUES_MAX:
                return OTHERS
            self._labelled.add(table)
        return table


def _add(total: Measures, measures: Measures) -> None:
    for field in fields(Measures):
        value = getattr(measures, field.name)
        if isinstance(value, Durations):
            getattr(total, field.name).add_all(value)
        elif isinstance(value, int):
            setattr(total, field.name, getattr(total, field.name) + value)


Queues = Mapping[TableId, tuple[Sequence[Dispatcher], Measures]]


def _counters(queues: Queues) -> Iterable[Metric]:
    for name, text in COUNTERS:
        counter = CounterMetricFamily(f"ackstream_queue_{name}", text, labels=LABELS)
        for table, (_, measures) in queues.items():
            counter.add_metric([table.db, table.name], getattr(measures, name))
        yield counter
    for field, name, text in HISTOGRAMS:
        histogram = HistogramMetricFamily(f"ackstream_queue_{name}_seconds", text, labels=LABELS)
        for table, (_, measures) in queues.items():
            durations: Durations = getattr(measures, field)
            if durations.total:  # Idle queues would add most of the series.
                add_durations(histogram, [table.db, table.name], durations)
        yield histogram


def _gauges(queues: Queues) -> Iterable[Metric]:
    for name, text, value in (
        ("in_flight", "Messages delivered by this proxy and not over", lambda one: one.in_flight),
        ("read_ahead", "Due messages whose keys were read ahead", lambda one: one.ready),
        ("subscribers", "Running streams", lambda one: len(one.subscribers)),
    ):
        gauge = GaugeMetricFamily(f"ackstream_{name}", text, labels=LABELS)
        for table, (dispatchers, _) in queues.items():
            gauge.add_metric([table.db, table.name], sum(map(value, dispatchers)))
        yield gauge
    text = f"1 while this reason holds messages of the queue back: {', '.join(REASONS)}"
    held_back = GaugeMetricFamily("ackstream_queue_held_back", text, labels=[*LABELS, "reason"])
    for table, (dispatchers, _) in queues.items():
        if table != OTHERS:
            holding = reasons(dispatchers[0])
            for reason in REASONS:
                held_back.add_metric([table.db, table.name, reason], reason in holding)
    yield held_back


def _counted(
    tables: Mapping[TableId, QueueTable], counts: Mapping[TableId, CountedQueue], now_s: float
) -> list[Metric]:
    """What was counted in the database: the same at every proxy."""
    counted = {table: counts[table] for table in tables if table in counts}
    families: list[Metric] = []
    for name, text, value in COUNTED:
        gauge = GaugeMetricFamily(f"ackstream_queue_{name}", text, labels=LABELS)
        for table, one in counted.items():
            gauge.add_metric([table.db, table.name], value(one, now_s))
        families.append(gauge)
    dead = GaugeMetricFamily("ackstream_queue_dead", "Messages in the dead-letter table of the queue", labels=LABELS)
    for table in counted:
        if (place := tables[table].dead_letter) is not None and (there := counts.get(place)) is not None:
            held = there.depth.ready + there.depth.scheduled + there.depth.in_flight
            dead.add_metric([table.db, table.name], held)
    text = "Messages enqueued since this proxy began to count, by the growth of the newest id"
    enqueued = CounterMetricFamily("ackstream_queue_enqueued", text, labels=LABELS)
    for table, one in counted.items():
        if one.enqueued is not None:
            enqueued.add_metric([table.db, table.name], one.enqueued)
    return [*families, dead, enqueued]


def add_durations(family: HistogramMetricFamily, labels: list[str], durations: Durations) -> None:
    """Add a histogram with these labels to its family."""
    below, buckets = 0, []
    for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], durations.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    family.add_metric(labels, buckets, durations.sum_ns / NS_PER_S)
