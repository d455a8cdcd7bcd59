"""The result of a scan's rows: due ones, next ones, and from when rows may be missing."""

from __future__ import annotations

from engine.model import Entry, ScanResult
from engine.store.scan_result import ScanAssembly

NOW_NS = 1000


def entry(key: int, due_ns: int) -> Entry:
    return Entry(key, 0, 0, due_ns)


def gathered(limit: int, *readings: list[Entry]) -> ScanResult:
    gathering = ScanAssembly(limit, NOW_NS)
    for reading in readings:
        gathering.add(reading)
    return gathering.result()


def test_nothing_read_is_nothing_found() -> None:
    assert gathered(5) == ScanResult((), more=False, horizon_ns=None)


def test_due_rows_keep_their_order_and_later_ones_are_ordered_by_time() -> None:
    result = gathered(5, [entry(1, 900), entry(2, 3000)], [entry(3, 100), entry(4, NOW_NS), entry(5, NOW_NS + 1)])
    assert [found.key for found in result.entries] == [1, 3, 4, 5, 2]
    assert (result.more, result.horizon_ns) == (False, None)


def test_one_due_row_beyond_the_limit_means_more() -> None:
    result = gathered(2, [entry(1, 1)], [entry(2, 1), entry(3, 1)])
    assert [found.key for found in result.entries] == [1, 2]
    assert result.more


def test_a_reading_cut_off_among_later_rows_sets_the_horizon_to_its_last() -> None:
    result = gathered(2, [entry(1, 1), entry(2, 2000), entry(3, 3000)])
    assert [found.key for found in result.entries] == [1, 2, 3]
    assert result.horizon_ns == 3000


def test_the_earliest_horizon_counts() -> None:
    result = gathered(1, [entry(1, 5000), entry(2, 6000)], [entry(3, 2000), entry(4, 4000)])
    assert [found.key for found in result.entries] == [3]
    assert result.horizon_ns == 4000


def test_a_reading_that_was_not_cut_off_sets_no_horizon() -> None:
    assert gathered(2, [entry(1, 2000), entry(2, 3000)]).horizon_ns is None


def test_it_is_full_when_there_is_one_more_due_row_than_wanted() -> None:
    gathering = ScanAssembly(1, NOW_NS)
    gathering.add([entry(1, 1)])
    assert not gathering.full
    gathering.add([entry(2, 1)])
    assert gathering.full
