"""The page that the comparison writes."""

import pytest

from bench.compare.brokers import shortened
from bench.compare.figures import CompetitorFigures
from bench.compare.model import Drained, Latencies
from bench.compare.plots import drain_bars, latency_bars
from bench.compare.report import page, spread


def figures() -> dict[str, CompetitorFigures]:
    ours = CompetitorFigures("nothing", "MySQL 9.7.4")
    for seconds in (1, 2, 4):
        drained = Drained(8_000, seconds, 0, {"direct": [0.3, 0.1, 9.0]})
        ours.cases["8 streams"].add(drained, {"server": 0.4, "client": 0.08})
    ours.latency["a stream"].add(Latencies([2.0], [0.8]))
    ours.latency["a lock"].add(Latencies([1.5], [0.7]))
    polling = CompetitorFigures("the last second", "Poller 1")
    polling.cases["batches"].add(Drained(100, 1, 0), {"server": 0.1})
    return {"ours": ours, "polling": polling, "other": CompetitorFigures("all", missing="no compiler")}


def test_a_spread_without_values_is_a_dash() -> None:
    assert spread([]) == "–"
    assert spread([3_000, 1_000, 2_000]) == "2,000 (1,000..3,000)"


def test_the_page_shows_rates_cpu_latency_durability_and_what_was_left_out() -> None:
    lines = page(figures(), ["2 cores"], ["compare-drain.png"]).splitlines()
    assert "- 2 cores" in lines
    assert "| ours | 8 streams | 4,000 (2,000..8,000) | server 50, client 10 |" in lines
    assert "| ours | a stream | 2.00 (2.00..2.00) | 2.00 (2.00..2.00) | 0.80 (0.80..0.80) |" in lines
    assert "| ours | 8 streams | direct | 0.30 (0.30..0.30) | 9.00 (9.00..9.00) |" in lines
    assert "| polling | Poller 1 | the last second |" in lines
    assert "- left out, or not measured in all rounds: other: no compiler" in lines
    assert "Consumers poll at intervals, so no latency is measured: polling." in lines
    assert "![compare-drain](compare-drain.png)" in lines
    assert not any(line.startswith("| other") for line in lines)


def test_a_table_has_as_many_cells_in_each_row_as_in_its_head() -> None:
    tables = [part for part in page(figures(), [], []).split("\n\n") if part.startswith("|")]
    assert len(tables) == 4
    assert [len({line.count("|") for line in table.splitlines()}) for table in tables] == [1, 1, 1, 1]


def test_a_bar_is_drawn_for_what_was_measured() -> None:
    assert [name for name, _ in drain_bars(figures())] == ["ours: 8 streams", "polling: batches"]
    assert [(name, bar.median) for name, bar in latency_bars(figures())] == [
        ("ours: a stream", 2.0),
        ("ours: a lock", 1.5),
    ]


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("Redis server v=8.0.6 sha=00000000:0 malloc=jemalloc-5.3.1", "Redis server 8.0.6"),
        ("nats-server: v2.15.1", "nats-server 2.15.1"),
        ("beanstalkd 1.13", "beanstalkd 1.13"),
        ("unknown", "unknown"),
    ],
)
def test_a_version_is_a_name_and_a_number(line: str, version: str) -> None:
    assert shortened(line) == version
