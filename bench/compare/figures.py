"""The figures of all rounds, and their medians."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.compare.model import Drained, Latencies


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the least and the greatest value."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Raises ValueError where there is no value."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError("no values")
        return cls(statistics.median(ordered), ordered[0], ordered[-1])


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the least value that is not exceeded by `percent` of all values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def messages_for(rate: float, seconds: float, batch: int, most: int) -> int:
    """Return how many messages take about `seconds` at `rate` a second: whole batches, at least 1,000, at most `most`.

    If `most` is too low for a whole step, the result is one step.
    """
    step = batch * math.ceil(1_000 / batch)
    return max(step, min(round(rate * seconds / step), most // step) * step)


@dataclass(slots=True)
class BystanderFigures:
    """The percentiles of each round, in ms."""

    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)

    def add(self, samples_ms: Sequence[float]) -> None:
        """Add a round."""
        self.p50.append(percentile(samples_ms, 50))
        self.p99.append(percentile(samples_ms, 99))


@dataclass(slots=True)
class CaseFigures:
    """One case in all rounds."""

    rates: list[float] = field(default_factory=list)
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """µs of CPU a message, by process."""
    bystanders: dict[str, BystanderFigures] = field(default_factory=lambda: defaultdict(BystanderFigures))
    """Statements of other clients meanwhile, by the way that they connected."""

    def add(self, drained: Drained, cpu_s: Mapping[str, float]) -> None:
        """Add a round: what was drained, and the CPU time that each process took meanwhile."""
        self.rates.append(drained.messages / drained.seconds)
        for process, seconds in cpu_s.items():
            self.cpu_us[process].append(1e6 * seconds / drained.messages)
        for way, samples_ms in drained.bystanders_ms.items():
            self.bystanders[way].add(samples_ms)


@dataclass(slots=True)
class LatencyFigures:
    """The percentiles of each round, in ms."""

    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    enqueue_p50: list[float] = field(default_factory=list)

    def add(self, latencies: Latencies) -> None:
        """Add a round."""
        self.p50.append(percentile(latencies.delivery_ms, 50))
        self.p99.append(percentile(latencies.delivery_ms, 99))
        self.enqueue_p50.append(percentile(latencies.enqueue_ms, 50))


@dataclass(slots=True)
class CompetitorFigures:
    """One competitor in all rounds."""

    durability: str
    version: str = ""
    cases: dict[str, CaseFigures] = field(default_factory=lambda: defaultdict(CaseFigures))
    latency: dict[str, LatencyFigures] = field(default_factory=lambda: defaultdict(LatencyFigures))
    """By the kind of consumer (empty: there is one kind)."""
    missing: str = ""
    """Why it was left out, or not measured in further rounds."""
