"""What the page of the admin port shows: the queues, from the proxy's metrics, and how they were
during the last hour."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from engine.dispatch.measures import BUCKETS_S
from proxy.server.holding import NO_CONSUMER

SAMPLE_S = 10.0
"""Between two samples, at least."""

KEPT_S = 3600.0
SAMPLES_MAX = 120
"""Samples of one queue: of an hour, one every thirty seconds. With more, every second one is
dropped."""

STUCK_S = 60.0
"""A queue without an acknowledgement for so long may be stuck, however short its jobs are: counts are up to half a
minute old."""

BEHIND_S = 60.0
"""A queue whose oldest message has been due for so long is behind."""

LATELY_S = 60.0
"""A percentile is shown for so long after the last sample with a delivery."""

SAME_COUNT_S = 0.5
"""Two samples whose counts are less apart show the same count: its age is read a moment before the time."""

PREFIX = "ackstream_"
OF_QUEUES = "ackstream_queue_"
BUCKETS = {
    "ackstream_queue_pickup_delay_seconds_bucket": "pickup",
    "ackstream_queue_acknowledge_delay_seconds_bucket": "work",
}
LABELS = frozenset({"db", "queue"})
COUNTERS = frozenset({"enqueued", "acknowledged", "delivered"})
"""Fields of a sample that grow."""

COUNTED = ("ready", "scheduled", "leased", "dead", "oldest_ready_age_seconds")
"""Counted in the database; None before the first count."""

Name = tuple[str, str]
"""Database and table."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A queue at one time."""

    at_s: float
    ready: float
    enqueued: float
    acknowledged: float
    counted_s: float
    """When the messages were counted of which `enqueued` is the sum."""
    delivered: float = 0.0
    pickup_s: float | None = None
    """The 99th percentile of the time from due to delivered, since the sample before. None without
    a delivery."""
    work_s: float | None = None
    """The 99th percentile of the time from the delivery to the acknowledgement."""


Points = Sequence[tuple[float, float | None]]
"""Times in seconds, each with a value; None: there is none."""

Buckets = tuple[tuple[float, float], ...]
"""Upper bounds in seconds and how many were below them, since the start."""


@dataclass(slots=True)
class QueueState:
    """A queue now."""

    name: Name
    values: dict[str, float] = field(default_factory=dict)
    """By the metric's name, without its prefix."""
    reasons: tuple[str, ...] = ()
    """What holds its messages back."""
    idle_s: float | None = None
    """How long this proxy has seen no acknowledgement; None: it has seen none, as far as there are samples."""
    pickup: Buckets = ()
    work: Buckets = ()
    samples: tuple[Sample, ...] = ()
    """Of the last hour, the oldest first."""

    def rates(self, name: str) -> list[float | None]:
        """How much a counter grew a second, between each sample and the one before.

        What is counted in the database grows from count to count: between two of them, the rate stays.
        """
        rates: list[float | None] = []
        for before, after in itertools.pairwise(self.samples):
            grown, past_s = getattr(after, name) - getattr(before, name), after.at_s - before.at_s
            if name == "enqueued":
                past_s = after.counted_s - before.counted_s
            is_new = past_s >= SAME_COUNT_S
            rates.append(max(0.0, grown) / past_s if is_new else rates[-1] if rates else None)
        return rates

    def past(self, name: str) -> Points:
        """What the samples show: `ready`, `pickup_s` or `work_s`, or how much a counter grew a second."""
        if name in COUNTERS:
            return list(zip([sample.at_s for sample in self.samples[1:]], self.rates(name), strict=True))
        return [(sample.at_s, getattr(sample, name)) for sample in self.samples]

    def lately(self, name: str) -> float | None:
        """The last known value of `past`, if it is not older than LATELY_S."""
        points = self.past(name)
        known = [value for at_s, value in points if value is not None and at_s >= points[-1][0] - LATELY_S]
        return known[-1] if known else None

    def count(self, name: str) -> float | None:
        """A value; None if it is not known."""
        return self.values.get(name)

    @property
    def oldest_s(self) -> float | None:
        """How long the oldest message that is due has been; None: none is due, or it is not known."""
        return self.count("oldest_ready_age_seconds") if self.count("ready") else None

    @property
    def enqueued_per_s(self) -> float | None:
        """Messages enqueued a second, as the last samples show it."""
        return self.lately("enqueued")

    @property
    def acknowledged_per_s(self) -> float | None:
        """Messages acknowledged through this proxy a second, as the last samples show it."""
        return self.lately("acknowledged")

    @property
    def is_broken(self) -> bool:
        """Whether the table is marked as a queue and cannot be used as one."""
        return bool(self.count("broken"))

    @property
    def is_stuck(self) -> bool:
        """Whether messages are due, something holds them back, and none was acknowledged for longer than a
        job takes here: the 99th percentile, a minute at least. Without a consumer, no job is under way."""
        job_s = min(percentile((), self.work) or 0.0, BUCKETS_S[-1])
        idle = self.idle_s is None or self.idle_s > max(STUCK_S, job_s) or NO_CONSUMER in self.reasons
        return bool(self.reasons) and (self.count("ready") or 0) > 0 and idle

    @property
    def is_behind(self) -> bool:
        """Whether messages have been due for a minute although others are acknowledged."""
        late = (self.oldest_s or 0.0) > BEHIND_S
        return late and not self.is_stuck and self.idle_s is not None

    @property
    def done_in_s(self) -> float | None:
        """How long the messages that are due take at the present rates; None: they do not become fewer."""
        fewer_per_s = (self.acknowledged_per_s or 0.0) - (self.enqueued_per_s or 0.0)
        return (self.count("ready") or 0.0) / fewer_per_s if fewer_per_s > 0 else None


@dataclass(frozen=True, slots=True)
class Overview:
    """The proxy now."""

    queues: tuple[QueueState, ...]
    """Broken ones first, then by name."""
    proxy: Mapping[str, float]
    """Metrics without labels, by their names without the prefix."""


class History:
    """The samples of the last hour. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all that follows
        self._samples: dict[Name, deque[Sample]] = {}
        self._buckets: dict[Name, tuple[Buckets, Buckets]] = {}
        """Of the last sample."""
        self._acknowledged_s: dict[Name, float] = {}
        """When a sample showed the last growth of the acknowledged ones."""
        self._sampled_s = float("-inf")

    def view(self, families: Iterable[Metric], now_s: float) -> Overview:
        """The present state, which becomes a sample if the last one is old enough."""
        queues, proxy = _read(families)
        with self._lock:
            self._add_past(queues, now_s)
        in_order = sorted(queues.values(), key=lambda queue: (not queue.is_broken, queue.name))
        return Overview(tuple(in_order), proxy)

    def _add_past(self, queues: Mapping[Name, QueueState], now_s: float) -> None:
        if now_s >= self._sampled_s + SAMPLE_S:
            self._sampled_s = now_s
            self._take(queues, now_s)
        for name, queue in queues.items():
            samples = self._samples.get(name, deque())
            queue.samples = tuple(samples)
            if (acknowledged_s := self._acknowledged_s.get(name)) is not None:
                queue.idle_s = now_s - acknowledged_s

    def _take(self, queues: Mapping[Name, QueueState], now_s: float) -> None:
        self._samples = {name: samples for name, samples in self._samples.items() if name in queues}
        self._buckets = {name: buckets for name, buckets in self._buckets.items() if name in queues}
        self._acknowledged_s = {name: at_s for name, at_s in self._acknowledged_s.items() if name in queues}
        for name, queue in queues.items():
            if (ready := queue.count("ready")) is None:
                continue
            samples = self._samples.setdefault(name, deque())
            values = queue.values
            pickup, work = self._buckets.get(name, ((), ()))
            acknowledged = values.get("acknowledged_total", 0.0)
            if samples and acknowledged > samples[-1].acknowledged:
                self._acknowledged_s[name] = now_s
            samples.append(
                Sample(
                    now_s,
                    ready,
                    values.get("enqueued_total", 0.0),
                    acknowledged,
                    now_s - values.get("counted_age_seconds", 0.0),
                    values.get("delivered_total", 0.0),
                    percentile(pickup, queue.pickup),
                    percentile(work, queue.work),
                )
            )
            self._buckets[name] = (queue.pickup, queue.work)
            while samples[0].at_s < now_s - KEPT_S:
                samples.popleft()
            if len(samples) > SAMPLES_MAX:
                last = samples[-1]
                self._samples[name] = deque([*list(samples)[:-2:2], samples[-2], last])


def percentile(before: Buckets, after: Buckets, share: float = 0.99) -> float | None:
    """The upper bound of the bucket that contains this share of what came between; None if nothing
    came. Infinite above the last finite bound."""
    earlier = dict(before)
    grown = [(bound, count - earlier.get(bound, 0.0)) for bound, count in after]
    total = grown[-1][1] if grown else 0.0
    if total <= 0:
        return None
    return next(bound for bound, count in grown if count >= share * total)


def _read(families: Iterable[Metric]) -> tuple[dict[Name, QueueState], dict[str, float]]:
    queues: dict[Name, QueueState] = {}
    proxy: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            labels = sample.labels
            if "le" in labels:
                _read_bucket(queues, sample.name, labels, sample.value)
                continue
            if not labels:
                proxy[sample.name.removeprefix(PREFIX)] = sample.value
            elif labels.keys() >= LABELS and labels["queue"]:
                name = labels["db"], labels["queue"]
                queue = queues.setdefault(name, QueueState(name))
                if sample.name == f"{OF_QUEUES}held_back":
                    queue.reasons += (labels["reason"],) if sample.value else ()
                else:
                    queue.values[sample.name.removeprefix(OF_QUEUES).removeprefix(PREFIX)] = sample.value
    return queues, proxy


def _read_bucket(queues: dict[Name, QueueState], metric: str, labels: Mapping[str, str], value: float) -> None:
    field_name = BUCKETS.get(metric)
    if field_name is not None and labels["queue"]:
        name = labels["db"], labels["queue"]
        queue = queues.setdefault(name, QueueState(name))
        setattr(queue, field_name, (*getattr(queue, field_name), (float(labels["le"]), value)))
