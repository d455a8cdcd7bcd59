"""Changes that are left out of the binary log's: claims, the proxy's own acknowledgements, and those of what other
proxies hold."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from engine.binlog.changes import Change, Layout, RowChange
from engine.binlog.reader import Followed
from engine.binlog.row_image import ColumnType, Field
from engine.binlog.scope import ChangeFilter, Scope, change_filter
from engine.model import Delivery, Entry, TableId, end_with_slot
from engine.queue_table import IdKind, QueueTable
from tests.support.play import queue_table

NAMES = ("id", "priority", "epoch", "time_next", "time_acked", "until")
COLUMNS = [ColumnType(name, "bigint", "bigint", "") for name in NAMES]
FIELDS = [Field(8, 8)] * len(NAMES)
ALL = 0b111111
OWN, OTHER = 3, 4
END_NS = 1_700_000_000_000_000_000


def rows(*images: tuple[int | None, ...]) -> bytes:
    """Images of rows with all columns."""
    parts = []
    for values in images:
        nulls = sum(1 << at for at, value in enumerate(values) if value is None)
        parts.append(bytes([nulls]) + b"".join(struct.pack("<q", value) for value in values if value is not None))
    return b"".join(parts)


def ready(key: int, epoch: int = 0) -> tuple[int | None, ...]:
    return key, 0, epoch, 7, None, None


def held(key: int, slot: int, epoch: int = 1) -> tuple[int | None, ...]:
    end_ns = end_with_slot(END_NS, slot)
    return key, 0, epoch, end_ns, None, end_ns


def acked(row: tuple[int | None, ...], through: int = 0) -> tuple[int | None, ...]:
    return (*row[:3], None, end_with_slot(END_NS, through), row[5])


def changes(
    *images: tuple[int | None, ...], slots: frozenset[int] = frozenset({OWN}), own_slot: int = 0
) -> dict[Any, Entry | None]:
    layout = Layout(COLUMNS, FIELDS, Scope(ChangeFilter("UNTIL", slots, own_slot)))
    return {key: change.entry for key, change in layout.changes(Change.UPDATE, [ALL, ALL], rows(*images))}


def test_claims_are_left_out() -> None:
    assert changes(ready(1), held(1, OTHER), ready(2), held(2, OTHER)) == {}
    assert changes(held(1, OWN), held(1, OTHER, epoch=2)) == {}


def test_acknowledgements_of_what_other_proxies_hold_are_left_out_row_by_row() -> None:
    mine, others = held(1, OWN), held(2, OTHER)
    assert changes(others, acked(others), mine, acked(mine)) == {1: None}


def test_an_acknowledgement_comes_with_the_delivery_before_as_without_a_filter() -> None:
    mine = held(1, OWN)
    with_filter, without = (
        Layout(COLUMNS, FIELDS, Scope(leases)) for leases in (ChangeFilter("until", frozenset({OWN})), None)
    )
    expected = [(1, RowChange(None, Delivery(1, end_with_slot(END_NS, OWN))))]
    data = rows(mine, acked(mine))
    assert with_filter.changes(Change.UPDATE, [ALL, ALL], data) == expected
    assert without.changes(Change.UPDATE, [ALL, ALL], data) == expected


def test_acknowledgements_through_this_proxy_are_left_out_whoever_holds_the_message() -> None:
    mine, others, locked = held(1, OWN), held(2, OTHER), ready(3)
    for row in (mine, others, locked):
        assert changes(row, acked(row, through=OWN), own_slot=OWN) == {}


def test_acknowledgements_through_other_proxies_or_none_are_reported() -> None:
    mine = held(1, OWN)
    for slot in (OTHER, 0):
        assert changes(mine, acked(mine, through=slot), own_slot=OWN) == {1: None}
    assert changes(mine, acked(mine, through=OWN)) == {1: None}


def test_a_table_without_a_lease_column_leaves_out_the_acknowledgements_through_this_proxy_alone() -> None:
    layout = Layout(COLUMNS[:5], FIELDS[:5], Scope(ChangeFilter(None, frozenset({OWN}), OWN)))
    for slot, seen in ((OWN, []), (OTHER, [1])):
        data = rows(ready(1)[:5], acked(ready(1), through=slot)[:5])
        assert [key for key, _ in layout.changes(Change.UPDATE, [0b11111, 0b11111], data)] == seen


def test_a_changed_id_is_reported_with_its_acknowledgement() -> None:
    assert changes(held(1, OWN), acked(held(2, OWN), through=OWN), own_slot=OWN) == {1: None, 2: None}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(held(1, OTHER), (1, 0, 1, 7, None, None), id="given back"),
        pytest.param(held(1, OTHER), (1, 0, 1, END_NS * 2, None, END_NS * 2), id="extended"),
        pytest.param(ready(1, 4), (1, 5, 4, 7, None, None), id="another priority"),
        pytest.param(held(1, OWN), held(1, OWN, epoch=2), id="fenced by hand, by another epoch"),
        pytest.param(ready(1), (1, 0, 1, 7, None, None), id="a failed attempt counted without a lease"),
        pytest.param(ready(1), held(1, 0), id="claimed by a proxy without a slot"),
    ],
)
def test_other_changes_are_reported(before: tuple[int | None, ...], after: tuple[int | None, ...]) -> None:
    assert changes(before, after) == {1: Entry(1, after[2] or 0, after[1] or 0, after[3] or 0)}


def test_acknowledgements_of_what_nobody_holds_are_reported() -> None:
    given_back = (1, 0, 1, 7, None, end_with_slot(END_NS, OTHER))
    without_slot = held(2, 0)
    assert changes(given_back, acked(given_back), without_slot, acked(without_slot)) == {1: None, 2: None}


def test_deletes_and_inserts_are_never_left_out() -> None:
    layout = Layout(COLUMNS, FIELDS, Scope(ChangeFilter("until", frozenset({OWN}))))
    row = rows(held(1, OTHER))
    assert [key for key, _ in layout.changes(Change.DELETE, [ALL], row)] == [1]
    assert [key for key, _ in layout.changes(Change.INSERT, [ALL], row)] == [1]


def test_images_without_the_lease_are_read_as_without_a_filter() -> None:
    layout = Layout(COLUMNS, FIELDS, Scope(ChangeFilter("until", frozenset({OWN}))))
    acknowledgement = bytes([0]) + struct.pack("<q", 1) + bytes([0b01]) + struct.pack("<q", 9)
    assert layout.changes(Change.UPDATE, [0b000001, 0b011000], acknowledgement) == [(1, RowChange(None))]


def test_without_the_lease_column_in_the_table_changes_of_others_are_reported() -> None:
    layout = Layout(COLUMNS[:5], FIELDS[:5], Scope(ChangeFilter("until", frozenset({OWN}))))
    data = rows(ready(1)[:5], (1, 0, 1, 8, None))
    assert [key for key, _ in layout.changes(Change.UPDATE, [0b11111, 0b11111], data)] == [1]


LEASED = replace(queue_table(), lease_column="until", id_kind=IdKind.INTEGER)


def test_a_queue_in_which_each_proxy_has_its_own_messages_has_a_filter() -> None:
    assert change_filter(LEASED, frozenset({OWN})) == ChangeFilter("until", frozenset({OWN}))
    assert change_filter(LEASED, frozenset({OWN}), OWN) == ChangeFilter("until", frozenset({OWN}), OWN)


@pytest.mark.parametrize(
    "queue",
    [
        pytest.param(replace(LEASED, lease_column=None), id="no lease column"),
        pytest.param(replace(LEASED, id_kind=IdKind.FLOAT), id="ids that are not shared out"),
    ],
)
def test_where_proxies_share_no_messages_out_only_own_acknowledgements_are_left_out(queue: QueueTable) -> None:
    slots = frozenset({OWN})
    assert change_filter(queue, slots, OWN) == ChangeFilter(None, slots, OWN)
    assert change_filter(queue, slots) is None


@pytest.mark.parametrize(
    ("queue", "slots"),
    [
        pytest.param(LEASED, frozenset[int](), id="a proxy without a slot"),
        pytest.param(replace(LEASED, lease_column=None), frozenset({OWN}), id="no lease column"),
        pytest.param(replace(LEASED, id_kind=IdKind.FLOAT), frozenset({OWN}), id="ids that are not shared out"),
        *(
            pytest.param(
                replace(LEASED, policy=replace(LEASED.policy, **option)), frozenset({OWN}), id=next(iter(option))
            )
            for option in (
                {"max_in_flight": 3},
                {"group_by": ("tenant",)},
                {"semaphores": "needs"},
                {"batch_by": "batch"},
                {"after_batch": "after_batch"},
            )
        ),
    ],
)
def test_where_it_matters_what_others_hold_there_is_no_filter(queue: QueueTable, slots: frozenset[int]) -> None:
    assert change_filter(queue, slots) is None
    if not queue.stands_alone:
        assert change_filter(queue, slots, OWN) is None


def test_with_another_filter_the_changes_of_a_table_are_unknown_once() -> None:
    table, followed = TableId("shop", "orders"), Followed()
    assert followed.replace({table: Scope()}) == {table}
    assert followed.replace({table: Scope()}) == frozenset()
    assert followed.replace({table: Scope(ChangeFilter("until", frozenset({1})))}) == {table}
    assert followed.replace({table: Scope()}) == {table}
    assert followed.replace({table: Scope(None, ("tenant",))}) == {table}
