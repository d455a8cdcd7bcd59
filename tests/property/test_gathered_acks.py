"""ACKs in batches do what the same ACKs do one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model import Key
from engine.store.acks import Ack, Shares, shares
from engine.store.port import Origin
from tests.support import memory_store
from tests.support.memory_store import MemoryStore, Row
from tests.support.play import queue_table

ORIGIN = Origin(("127.0.0.1", 3306), "a")

keys = st.integers(1, 4)
epochs = st.integers(0, 2)
acks = st.builds(Ack, st.lists(keys, min_size=1, max_size=3, unique=True).map(tuple), st.none() | epochs)
tables = st.lists(
    st.builds(lambda key, epoch, acked: Row(key, 0, epoch, 0, 5 if acked else None), keys, epochs, st.booleans()),
    unique_by=lambda row: row.key,
)
batches = st.lists(st.tuples(st.lists(acks, min_size=1, max_size=6), st.sets(keys)), max_size=4)
"""ACKs of different clients, and the rows that another session has locked meanwhile."""


def alone(rows: dict[Key, Row], ack: Ack, now_ns: int) -> int:
    """What the client's own ACK does, and its affected rows."""
    found = [row for key in ack.keys if (row := rows.get(key)) and row.time_acked_ns is None]
    found = [row for row in found if ack.epoch in (None, row.epoch)]
    rows.update({row.key: replace(row, time_acked_ns=now_ns, time_next_ns=None) for row in found})
    return len(found)


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


@given(st.lists(acks), st.dictionaries(keys, st.none() | epochs))
def test_each_row_is_counted_once_and_only_if_it_was_locked(batch: list[Ack], locked: dict[Key, int | None]) -> None:
    counts, acknowledged = shares(batch, locked)
    assert sum(counts) == len(acknowledged) == len(set(acknowledged))
    assert set(acknowledged) <= set(locked)


def each_is_counted(batch: Sequence[Ack], locked: Mapping[Key, int | None]) -> Shares:
    return Shares(tuple(len(ack.keys) for ack in batch), tuple(locked))


def epochs_are_ignored(batch: Sequence[Ack], locked: Mapping[Key, int | None]) -> Shares:
    return shares([ack._replace(epoch=None) for ack in batch], locked)


@pytest.mark.parametrize(
    ("broken", "script"),
    [
        (each_is_counted, [([Ack((1,)), Ack((1,))], set())]),
        (epochs_are_ignored, [([Ack((1,), 2)], set())]),
    ],
)
def test_the_play_objects_to_shares_that_are_broken_on_purpose(
    monkeypatch: pytest.MonkeyPatch, broken: object, script: list[tuple[list[Ack], set[Key]]]
) -> None:
    monkeypatch.setattr(memory_store, "shares", broken)
    with pytest.raises(AssertionError):
        play([Row(1, 0, 1, 0)], script)
