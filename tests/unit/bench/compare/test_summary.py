"""The documents have the tables that the page of results gives."""

from __future__ import annotations

import pytest

from bench.compare.figures import CompetitorFigures
from bench.compare.model import Drained, Latencies
from bench.compare.report import page
from bench.compare.summary import BEGIN, END, PAGE, beside_by_hand, documents, overview, read, written

MEASURED = {
    "ackstream, MySQL": {"8 endless streams, ACKs of 100": 9_000.0, "64 × STREAM … LIMIT 1 NOWAIT, ACK": 1_200.0},
    "by hand, MySQL": {"4 × SKIP LOCKED, 100 a transaction": 10_000.0, "8 × SKIP LOCKED, 100 a transaction": 12_000.0},
    "known ids, MySQL": {"8 × claims of 1000, then UPDATEs of 100": 18_000.0},
    "Redis Streams, fsync": {"4 × 100 messages": 30_000.0, "8 × one message": 2_000.0},
    "Redis Streams, default": {"4 × 100 messages": 90_000.0},
}


@pytest.fixture
def results() -> str:
    figures: dict[str, CompetitorFigures] = {}
    for name, rates in MEASURED.items():
        figures[name] = CompetitorFigures("on disk")
        for case, rate in rates.items():
            figures[name].cases[case].add(Drained(round(rate), 1.0, 0.1), {"server": 0.5})
    figures["ackstream, MySQL"].latency["a stream"].add(Latencies([2.5], [1.0]))
    figures["ackstream, MySQL"].latency["a lock"].add(Latencies([1.9], [1.0]))
    return page(figures, ["a machine"], [])


def test_the_overview_has_the_best_way_of_each_durable_system(results: str) -> None:
    assert overview(read(results)).splitlines()[0::2] == [
        "|  | ackstream | by hand | Redis Streams |",
        "| finished in batches, messages/s | 9,000 | 12,000 | 30,000 |",
        "| enqueueing to consumer, p50, ms | 1.9 | – | – |",
    ]


def test_each_way_is_compared_with_the_best_by_hand_of_the_same_size_and_with_known_ids(results: str) -> None:
    assert beside_by_hand(read(results)).splitlines()[2:] == [
        "| 8 endless streams, ACKs of 100 | 9,000 | 0.75 | 0.50 |",
        "| 64 × STREAM … LIMIT 1 NOWAIT, ACK | 1,200 | – | – |",
    ]


def test_only_what_is_between_the_comments_changes() -> None:
    assert written(f"a\n{BEGIN}\nold\n{END}\nb\n", "new\n") == f"a\n{BEGIN}\nnew\n{END}\nb\n"
    with pytest.raises(ValueError, match="no place"):
        written("a page", "new")


def test_the_documents_have_the_tables_of_the_latest_results() -> None:
    outdated = [path.name for path, text in documents(PAGE.read_text()).items() if path.read_text() != text]
    assert outdated == [], "run: python -m bench.compare.summary"
