"""The metrics of all workers as those of one program.

Counters and histograms are added up. What a worker had counted when it was last asked stays in the
sum after its end, so a counter never goes back. Gauges are added up too, and a worker that has
ended has none. The exceptions are in `LOWEST`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric

from proxy.server.holding import OF_EVERY_PROCESS

LOWEST = ("ackstream_server_reachable", "_created", "process_start_time_seconds")
"""Ends of the names of samples with the lowest value of all workers in place of the sum: a server
that one worker cannot reach; the time when counting began."""

HIGHEST = ("ackstream_build_info", "ackstream_queue_held_back")
"""Names of samples with the highest value of all workers: the same everywhere, or a reason that
holds in one of them."""

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]


class Totals:
    """The sums over all workers."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}
        """Each family that was ever reported, without samples."""
        self._ended: dict[str, Samples] = {}
        """The sums of workers that have ended."""
        self._present: dict[int, dict[str, Samples]] = {}

    def report(self, worker: int, families: Iterable[Metric]) -> None:
        """Take what a worker has counted since its start."""
        present: dict[str, Samples] = {}
        for family in families:
            self._families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            samples = present.setdefault(family.name, {})
            for sample in family.samples:
                samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
        self._present[worker] = present

    def ended(self, worker: int) -> None:
        """A worker has ended. Another one with its number counts from 0."""
        for name, samples in self._present.pop(worker, {}).items():
            if self._families[name].type != "gauge":
                _add(self._ended.setdefault(name, {}), samples)

    def families(self) -> Iterable[Metric]:
        """The sums."""
        for name, family in self._families.items():
            total: Samples = {}
            for samples in (self._ended.get(name, {}), *(present.get(name, {}) for present in self._present.values())):
                _add(total, samples)
            summed = Metric(name, family.documentation, family.type)
            for (sample, labels), value in total.items():
                summed.add_sample(sample, dict(labels), value)
            yield summed


def _holds_everywhere(key: tuple[str, Labels]) -> bool:
    """Whether it is a reason that counts only if it holds in every worker."""
    name, labels = key
    return name == "ackstream_queue_held_back" and dict(labels)["reason"] in OF_EVERY_PROCESS


def _add(total: Samples, samples: Mapping[tuple[str, Labels], float]) -> None:
    for key, value in samples.items():
        if key not in total:
            total[key] = value
        elif key[0].endswith(LOWEST) or _holds_everywhere(key):
            total[key] = min(total[key], value)
        elif key[0] in HIGHEST:
            total[key] = max(total[key], value)
        else:
            total[key] += value
