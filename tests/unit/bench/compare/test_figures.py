"""The statistics of the comparison."""

import pytest

from bench.compare.figures import CaseFigures, LatencyFigures, Spread, messages_for, percentile
from bench.compare.model import Drained, Latencies


def test_a_spread_is_the_median_with_least_and_greatest() -> None:
    assert Spread.of([3, 1, 2]) == Spread(2, 1, 3)
    assert Spread.of([4, 1]) == Spread(2.5, 1, 4)
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 50), (99, 99), (100, 100)])
def test_a_percentile_is_a_value_that_was_seen(percent: float, value: float) -> None:
    assert percentile(range(100, 0, -1), percent) == value


@pytest.mark.parametrize(
    ("rate", "batch", "most", "messages"),
    [
        (5_000, 1, 100_000, 20_000),
        (10, 1, 100_000, 1_000),  # never less than a thousand
        (1e9, 1, 100_000, 100_000),  # never more than the limit
        (5_000, 4_000, 100_000, 20_000),  # whole batches
        (10, 4_000, 100, 4_000),  # a batch even if the limit is lower
    ],
)
def test_the_messages_of_a_drain_follow_its_rate(rate: float, batch: int, most: int, messages: int) -> None:
    assert messages_for(rate, 4, batch, most) == messages


def test_a_round_adds_its_rate_and_the_cpu_of_each_process() -> None:
    figures = CaseFigures()
    figures.add(Drained(1_000, 0.5, 0), {"server": 0.02, "client": 0.001})
    assert figures.rates == [2_000]
    assert dict(figures.cpu_us) == {"server": [20], "client": [1]}


def test_a_round_adds_the_percentiles_of_its_latencies() -> None:
    figures = LatencyFigures()
    figures.add(Latencies([1, 2, 9], [0.5, 0.6, 0.7]))
    assert (figures.p50, figures.p99, figures.enqueue_p50) == ([2], [9], [0.6])
