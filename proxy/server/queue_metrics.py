"""The metrics of each queue.

The labels `db` and `queue` have at most QUEUES_MAX values. The counts of further queues are added up
under empty labels. A queue keeps its labels as long as the process runs, so no sum goes back.

The values of queues are read on the event loop, a few queues in each of its turns. What is made of
them needs the event loop no more. The values of one queue are of the same moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.measures import BUCKETS_S, Durations, Measures
from engine.model import NS_PER_S, TableId
from engine.queue_table import QueueTable
from proxy.server.depths import CountedQueue
from proxy.server.holding import REASONS, Seen, reasons
from proxy.server.problems import KINDS, QUEUES_OF_A_STEP, problems_of
from proxy.server.queue_watch import longest_held

QUEUES_MAX = 1_000
"""Queues with labels of their own: about forty series each."""

HELD_TEXT = "Time for which a client of this proxy has held a message of the queue, the longest one; 0 without one"

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

COUNTED: Iterable[tuple[str, str, Callable[[CountedQueue, float], float]]] = (
    ("ready", "Messages that are due, by a count in the database", lambda one, _: one.depth.ready),
    ("scheduled", "Messages that come due later, by a count in the database", lambda one, _: one.depth.scheduled),
    ("leased", "Messages in flight at any proxy, by a count in the database", lambda one, _: one.depth.in_flight),
    ("retained", "Acknowledged rows that are not purged yet", lambda one, _: one.depth.acknowledged),
    (
        "counted_age_seconds",
        "Time since the messages of the queue were counted in the database",
        lambda one, now_s: max(0.0, now_s - one.counted_s),
    ),
    (
        "oldest_ready_age_seconds",
        "Time since the oldest message that is due was due; 0 without one",
        lambda one, now_s: one.oldest_ready_s(now_s),
    ),
)


@dataclass(slots=True)
class Reading:
    """The values of a queue, or of all further ones, at one moment."""

    measures: Measures = field(default_factory=Measures)
    """A copy."""
    in_flight: int = 0
    read_ahead: int = 0
    subscribers: int = 0
    longest_held_s: float = 0.0
    reasons: tuple[str, ...] = ()
    """What holds its messages back."""
    problems: tuple[str, ...] = ()
    """The kinds of problems that it has."""
    counted: CountedQueue | None = None
    """The last count in the database, if there is one."""
    dead: CountedQueue | None = None
    """The last count of its dead-letter table, if there is one."""

    def add(self, dispatcher: Dispatcher, now_ns: int) -> None:
        """Add the numbers of a queue. `now_ns`: the monotonic time."""
        _add(self.measures, dispatcher.parts.measures)
        self.in_flight += dispatcher.in_flight
        self.read_ahead += dispatcher.ready
        self.subscribers += len(dispatcher.subscribers)
        if (held := longest_held(dispatcher)) is not None:
            self.longest_held_s = max(self.longest_held_s, (now_ns - held.sent_ns) / NS_PER_S)


Readings = Mapping[TableId, Reading]


class QueueMetrics:
    """Reads the values of queues by their labels."""

    def __init__(self) -> None:
        self._labelled: set[TableId] = set()

    async def read(
        self,
        runners: Iterable[tuple[QueueTable, Dispatcher]],
        counts: Mapping[TableId, CountedQueue],
        stalled: Collection[TableId | None] = (),
    ) -> Readings:
        """The present values, with turns of the event loop in between. `counts`: the last counts in the
        database. `stalled`: the queues of which the server does not answer a statement."""
        readings: dict[TableId, Reading] = {}
        now_ns, now_s = time.monotonic_ns(), asyncio.get_running_loop().time()
        for number, (queue, dispatcher) in enumerate(runners):
            if number and number % QUEUES_OF_A_STEP == 0:
                await asyncio.sleep(0)
            name = self._label(queue.id)
            reading = readings.setdefault(name, Reading())
            reading.add(dispatcher, now_ns)
            if name != OTHERS:
                reading.counted = counts.get(name)
                is_read = reading.counted is not None and reading.counted.is_read(now_s)
                reading.reasons = reasons(Seen(dispatcher, now_ns, is_read, name in stalled))
                reading.problems = tuple(problems_of(queue, dispatcher, reading.counted, now_ns))
                reading.dead = None if queue.dead_letter is None else counts.get(queue.dead_letter)
        return readings

    def _label(self, table: TableId) -> TableId:
        if table not in self._labelled:
            if len(self._labelled) >= QUEUES_MAX:
                return OTHERS
            self._labelled.add(table)
        return table


def _names_of(kind: type) -> list[str]:
    """The fields of Measures with a value of this kind."""
    none = Measures()
    return [measure.name for measure in fields(none) if isinstance(getattr(none, measure.name), kind)]


_COUNTS, _DURATIONS = _names_of(int), _names_of(Durations)


def _add(total: Measures, measures: Measures) -> None:
    for name in _COUNTS:
        setattr(total, name, getattr(total, name) + getattr(measures, name))
    for name in _DURATIONS:
        getattr(total, name).add_all(getattr(measures, name))


def families(readings: Readings, now_s: float) -> list[Metric]:
    """The metric families of these values. `now_s`: the event loop's time."""
    return [*_counters(readings), *_gauges(readings), *_counted(readings, now_s)]


def _counters(readings: Readings) -> Iterable[Metric]:
    for name, text in COUNTERS:
        counter = CounterMetricFamily(f"ackstream_queue_{name}", text, labels=LABELS)
        for table, reading in readings.items():
            counter.add_metric([table.db, table.name], getattr(reading.measures, name))
        yield counter
    for measure, name, text in HISTOGRAMS:
        histogram = HistogramMetricFamily(f"ackstream_queue_{name}_seconds", text, labels=LABELS)
        for table, reading in readings.items():
            durations: Durations = getattr(reading.measures, measure)
            if durations.total:  # Idle queues would add most of the series.
                add_durations(histogram, [table.db, table.name], durations)
        yield histogram


def _gauges(readings: Readings) -> Iterable[Metric]:
    for name, text, value in (
        ("in_flight", "Messages delivered by this proxy and not over", attrgetter("in_flight")),
        ("read_ahead", "Due messages whose keys were read ahead", attrgetter("read_ahead")),
        ("subscribers", "Running streams", attrgetter("subscribers")),
        ("queue_longest_held_seconds", HELD_TEXT, attrgetter("longest_held_s")),
    ):
        gauge = GaugeMetricFamily(f"ackstream_{name}", text, labels=LABELS)
        for table, reading in readings.items():
            gauge.add_metric([table.db, table.name], value(reading))
        yield gauge
    text = f"1 while this reason holds messages of the queue back: {', '.join(REASONS)}"
    held_back = GaugeMetricFamily("ackstream_queue_held_back", text, labels=[*LABELS, "reason"])
    for table, reading in readings.items():
        if table != OTHERS:
            for reason in REASONS:
                held_back.add_metric([table.db, table.name, reason], reason in reading.reasons)
    yield held_back
    text = f"1 while a queue that works has a problem of this kind: {', '.join(KINDS)}"
    problem = GaugeMetricFamily("ackstream_queue_problem", text, labels=[*LABELS, "kind"])
    for table, reading in readings.items():
        for kind in reading.problems:  # A queue without problems adds no series.
            problem.add_metric([table.db, table.name, kind], 1)
    yield problem


def _counted(readings: Readings, now_s: float) -> list[Metric]:
    """What was counted in the database: the same at every proxy."""
    counted = {table: reading.counted for table, reading in readings.items() if reading.counted is not None}
    made: list[Metric] = []
    for name, text, value in COUNTED:
        gauge = GaugeMetricFamily(f"ackstream_queue_{name}", text, labels=LABELS)
        for table, one in counted.items():
            gauge.add_metric([table.db, table.name], value(one, now_s))
        made.append(gauge)
    dead = GaugeMetricFamily("ackstream_queue_dead", "Messages in the dead-letter table of the queue", labels=LABELS)
    for table in counted:
        if (there := readings[table].dead) is not None:
            held = there.depth.ready + there.depth.scheduled + there.depth.in_flight
            dead.add_metric([table.db, table.name], held)
    text = "Messages enqueued since this proxy began to count, by the growth of the newest id"
    enqueued = CounterMetricFamily("ackstream_queue_enqueued", text, labels=LABELS)
    for table, one in counted.items():
        if one.enqueued is not None:
            enqueued.add_metric([table.db, table.name], one.enqueued)
    return [*made, dead, enqueued]


def add_durations(family: HistogramMetricFamily, labels: list[str], durations: Durations) -> None:
    """Add a histogram with these labels to its family."""
    below, buckets = 0, []
    for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], durations.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    family.add_metric(labels, buckets, durations.sum_ns / NS_PER_S)
