"""ACKs in batches do what the same ACKs do one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model import Key
from engine.store import memory
from engine.store.acks import Ack, Shares, shares
from engine.store.memory import MemoryStore, Row
from engine.store.port import Origin
from tests.support.play import queue_table

ORIGIN = Origin(("127.0.0.1", 3306), "a")

keys = st.integers(1, 4)
epochs = st.integers(0, 2)
acks = st.builds(Ack, keys, st.none() | epochs)
tables = st.lists(
    st.builds(lambda key, epoch, acked: Row(key, 0, epoch, 0, 5 if acked else None), keys, epochs, st.booleans()),
    unique_by=lambda row: row.key,
)
batches = st.lists(st.tuples(st.lists(acks, min_size=1, max_size=6), st.sets(keys)), max_size=4)
"""ACKs of different clients, and the rows that another session has locked meanwhile."""


def alone(rows: dict[Key, Row], ack: Ack, now_ns: int) -> int:
    """What the client's own ACK does, and its affected rows."""
    row = rows.get(ack.key)
    if row is None or row.time_acked_ns is not None or ack.epoch not in (None, row.epoch):
        return 0
    rows[ack.key] = replace(row, time_acked_ns=now_ns, time_next_ns=None)
    return 1


def play(table: Sequence[Row], script: Sequence[tuple[Sequence[Ack], set[Key]]]) -> None:
    """Carry out batches, and those that are left out one after the other behind them, beside the serial order."""
    store, queue = MemoryStore(now_ns=10**18), queue_table()
    store.add_table(queue)
    for row in table:
        store.put(queue.id, row)
    serial = dict(store.rows[queue.id])
    for batch, locked in script:
        store.locked = set(locked)
        counts = store.acknowledge_all(queue, batch, ORIGIN).value
        store.locked = set()
        together = [(ack, count) for ack, count in zip(batch, counts, strict=True) if count is not None]
        left_out = [ack for ack, count in zip(batch, counts, strict=True) if count is None]
        assert [count for _, count in together] == [alone(serial, ack, store.now_ns) for ack, _ in together]
        assert store.rows[queue.id] == serial
        for ack in left_out:
            assert alone(store.rows[queue.id], ack, store.now_ns) == alone(serial, ack, store.now_ns)


@given(tables, batches)
def test_batches_do_what_the_same_acks_do_one_after_the_other(
    table: list[Row], script: list[tuple[list[Ack], set[Key]]]
) -> None:
    play(table, script)


@given(st.lists(acks), st.lists(st.tuples(keys, st.none() | epochs)))
def test_each_row_is_counted_once_and_only_if_it_was_locked(
    batch: list[Ack], locked: list[tuple[Key, int | None]]
) -> None:
    counts, acknowledged = shares(batch, locked)
    assert sum(filter(None, counts)) == len(acknowledged) == len(set(acknowledged))
    assert set(acknowledged) <= {key for key, _ in locked}
    for ack, count in zip(batch, counts, strict=True):
        assert (count is None) == ([key for key, _ in locked].count(ack.key) != 1)


def test_an_id_with_several_rows_is_left_out() -> None:
    assert shares([Ack(1)], [(1, 0), (1, 0)]) == Shares((None,), ())


def each_is_counted(batch: Sequence[Ack], locked: Sequence[tuple[Key, int | None]]) -> Shares:
    counts = tuple(1 if ack.key in dict(locked) else None for ack in batch)
    return Shares(counts, tuple(dict(locked)))


def missing_rows_count_as_acknowledged(batch: Sequence[Ack], locked: Sequence[tuple[Key, int | None]]) -> Shares:
    counts, acknowledged = shares(batch, locked)
    return Shares(tuple(count or 0 for count in counts), acknowledged)


def epochs_are_ignored(batch: Sequence[Ack], locked: Sequence[tuple[Key, int | None]]) -> Shares:
    return shares([ack._replace(epoch=None) for ack in batch], locked)


@pytest.mark.parametrize(
    ("broken", "script"),
    [
        (each_is_counted, [([Ack(1), Ack(1)], set())]),
        (missing_rows_count_as_acknowledged, [([Ack(1)], {1}), ([Ack(1)], set())]),
        (epochs_are_ignored, [([Ack(1, 2)], set())]),
    ],
)
def test_the_play_objects_to_shares_that_are_broken_on_purpose(
    monkeypatch: pytest.MonkeyPatch, broken: object, script: list[tuple[list[Ack], set[Key]]]
) -> None:
    monkeypatch.setattr(memory, "shares", lambda batch, locked: broken(batch, list(locked)))  # type: ignore[operator]
    with pytest.raises(AssertionError):
        play([Row(1, 0, 1, 0)], script)
