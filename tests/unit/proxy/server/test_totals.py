"""The metrics of several workers as those of one program."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from proxy.server.totals import Totals


class Process:
    """A worker's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.delivered = Counter("ackstream_delivered", "Messages", registry=self.registry)
        self.streams = Gauge("ackstream_streams", "Streams", registry=self.registry)
        self.reachable = Gauge("ackstream_server_reachable", "Whether", registry=self.registry)
        self.in_flight = Gauge("ackstream_in_flight", "Messages", ["queue"], registry=self.registry)
        self.lag = Histogram("ackstream_lag_seconds", "Lag", registry=self.registry, buckets=(1, 2))


def values(totals: Totals) -> dict[str, float]:
    return {
        sample.name + "".join(sorted(sample.labels.values())): sample.value
        for family in totals.families()
        for sample in family.samples
    }


def test_counters_histograms_and_gauges_are_added_up() -> None:
    totals, processes = Totals(), [Process(), Process()]
    for number, process in enumerate(processes, 1):
        process.delivered.inc(10 * number)
        process.streams.set(number)
        process.reachable.set(number - 1)
        process.in_flight.labels("m").set(3)
        process.lag.observe(number - 0.5)
        totals.report(number, process.registry.collect())
    found = values(totals)
    assert found["ackstream_delivered_total"] == 30
    assert found["ackstream_streams"] == 3
    assert found["ackstream_server_reachable"] == 0
    assert found["ackstream_in_flightm"] == 6
    assert [found[f"ackstream_lag_seconds_bucket{edge}"] for edge in ("1.0", "2.0", "+Inf")] == [1, 2, 2]
    assert found["ackstream_lag_seconds_count"] == 2


def test_counters_never_go_back_when_a_worker_ends_and_another_counts_from_zero() -> None:
    totals, first, other = Totals(), Process(), Process()
    first.delivered.inc(10)
    first.streams.set(4)
    other.delivered.inc(1)
    totals.report(1, first.registry.collect())
    totals.report(2, other.registry.collect())
    totals.ended(1)
    assert values(totals)["ackstream_delivered_total"] == 11
    assert values(totals)["ackstream_streams"] == 0
    totals.report(1, Process().registry.collect())
    assert values(totals)["ackstream_delivered_total"] == 11
    totals.ended(1)
    totals.ended(2)
    assert values(totals)["ackstream_delivered_total"] == 11


def test_a_worker_that_does_not_answer_counts_as_before() -> None:
    totals, first, second = Totals(), Process(), Process()
    first.delivered.inc(10)
    totals.report(1, first.registry.collect())
    second.delivered.inc(5)
    totals.report(2, second.registry.collect())
    second.delivered.inc(5)
    totals.report(2, second.registry.collect())
    assert values(totals)["ackstream_delivered_total"] == 20


def test_a_queue_lacks_consumers_if_no_worker_has_one_and_is_limited_if_one_is() -> None:
    totals = Totals()
    for number, (no_consumer, limit) in enumerate([(1, 0), (0, 1)], 1):
        gauge = GaugeMetricFamily("ackstream_queue_held_back", "Held back", labels=["db", "queue", "reason"])
        gauge.add_metric(["shop", "m", "no_consumer"], no_consumer)
        gauge.add_metric(["shop", "m", "limit"], limit)
        totals.report(number, [gauge])
    (family,) = totals.families()
    assert {sample.labels["reason"]: sample.value for sample in family.samples} == {"no_consumer": 0, "limit": 1}
