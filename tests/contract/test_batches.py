"""Batches: a follow-up is claimed once its batch has no unacknowledged part, alike in both stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.model import NS_PER_S, WAITING_NS, BatchCheck, BatchesChecked, Key, RowFormat, TableId, Wanted
from engine.queue_table import QueueTable
from engine.store.port import StoreError
from tests.support.memory_store import Row
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import (
    BATCH_COLUMNS,
    COLUMNS,
    COMMENT,
    GROWING,
    NEXT_UP_BY_ID,
    PARTITIONED,
    AnySubject,
    MemorySubject,
    ServerSubject,
    kept_subjects,
    mysql_store,
)

S = NS_PER_S


@pytest.fixture(scope="module")
def on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    def make(server: Any, kind: str) -> ServerSubject:
        if kind == "partitioned":
            clause = (
                "PARTITION BY RANGE (time_acked) (PARTITION live VALUES LESS THAN (0),"
                " PARTITION later VALUES LESS THAN MAXVALUE)"
            )
            return ServerSubject(server, columns=PARTITIONED, index=NEXT_UP_BY_ID, partitions=clause, batches=True)
        return ServerSubject(server, columns=GROWING, batches=True)

    yield from kept_subjects(server_pool, make)


@pytest.fixture(params=["memory", *SERVERS, *(f"{name} partitioned" for name in SERVERS)])
def subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    return MemorySubject(batches=True) if kind == "memory" else on_server(kind)


@pytest.fixture(params=SERVERS)
def server_subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> ServerSubject:
    return on_server(request.param)


@pytest.fixture
def others(subject: AnySubject) -> Iterator[Callable[..., TableId]]:
    """Makes further queues of the database, with parts in the column `batch`."""
    made: list[TableId] = []

    def make(name: str, directives: str = "batch_by=batch") -> TableId:
        table = TableId(subject.table.id.db, name)
        made.append(table)
        if isinstance(subject, MemorySubject):
            policy = replace(
                subject.table.policy,
                after_batch=None,
                dead_parts_hold="hold" in directives,
                max_attempts=3 if "dead_letter=" in directives else 0,
                dead_letter=(None, "letters") if "dead_letter=" in directives else None,
            )
            parts = subject.table.batch if "batch_by" in directives else None
            subject.store.add_table(replace(subject.table, id=table, policy=policy, batch=parts, after_batch=None))
        else:
            subject.execute(f"CREATE TABLE {name} ({COLUMNS}{BATCH_COLUMNS}) COMMENT '{COMMENT},{directives}'")
        return table

    yield make
    if isinstance(subject, ServerSubject):
        for table in made:
            subject.execute(f"DROP TABLE IF EXISTS {table.name}")


def put(subject: AnySubject, table: TableId, *rows: Row) -> None:
    if isinstance(subject, ServerSubject):
        subject._put(table.name, rows)
    else:
        for row in rows:
            subject.store.put(table, row)


def acknowledge(subject: AnySubject, table: TableId, key: Key) -> None:
    if isinstance(subject, ServerSubject):
        subject.execute(f"UPDATE {table.name} SET time_acked = 1, time_next = NULL WHERE id = %s", key)
    else:
        subject.store.acknowledge(table, key)


def delete(subject: AnySubject, table: TableId, key: Key) -> None:
    if isinstance(subject, ServerSubject):
        subject.execute(f"DELETE FROM {table.name} WHERE id = %s", key)
    else:
        del subject.store.rows[table][key]


def claim(subject: AnySubject, *keys: Key, epoch: int = 0) -> tuple[list[Key], list[Key]]:
    """The messages that a claim takes, and those that wait for their batches."""
    wanted = [Wanted(key, epoch, 30 * S) for key in keys]
    result = subject.store.claim_and_fetch(subject.table, wanted, None, 0).value
    return sorted(found.key for found in result.claims), sorted(result.waiting)


def time_next(subject: AnySubject, key: Key) -> int | None:
    row = subject.row(key)
    assert row is not None
    return row.time_next_ns


def check(subject: AnySubject, *keys: Key, **words: Any) -> BatchesChecked:
    return subject.store.check_batches(subject.table, BatchCheck(keys, **words)).value


# Claims.


def test_a_follow_up_is_claimed_once_its_last_part_is_acknowledged(subject: AnySubject) -> None:
    subject.put(Row(1, batch=42), Row(2, batch=42), Row(3, after_batch=42), Row(4))
    assert claim(subject, 3, 4) == ([4], [3])
    subject.acknowledge(1)
    subject.put(Row(5, after_batch=42))
    assert claim(subject, 5) == ([], [5])
    subject.acknowledge(2)
    subject.put(Row(6, after_batch=42))
    assert claim(subject, 6) == ([6], [])


def test_a_follow_up_that_waits_is_behind_all_other_messages(subject: AnySubject) -> None:
    subject.put(Row(1, batch=42, time_next_ns=subject.now_ns() + 3600 * S), Row(2, after_batch=42), Row(3))
    claim(subject, 2)
    assert time_next(subject, 2) == WAITING_NS
    assert [entry.key for entry in subject.store.scan(subject.table, 10).value.entries] == [3, 1, 2]
    assert claim(subject, 2) == ([], [])


def test_a_claim_with_follow_ups_alone_commits(subject: AnySubject) -> None:
    subject.put(Row(1, batch=42), Row(2, after_batch=42))
    answer = subject.store.claim_and_fetch(subject.table, [Wanted(2, 0, S)], RowFormat(("body",), binary=False), 1_000)
    assert (answer.value.claims, answer.value.waiting) == ((), (2,))
    assert time_next(subject, 2) == WAITING_NS


def test_an_empty_batch_is_done(subject: AnySubject) -> None:
    subject.put(Row(1, after_batch=7))
    assert claim(subject, 1) == ([1], [])


def test_a_batch_whose_parts_are_deleted_is_done(subject: AnySubject) -> None:
    subject.put(Row(1, batch=7), Row(2, after_batch=7))
    delete(subject, subject.table.id, 1)
    assert claim(subject, 2) == ([2], [])


def test_a_part_that_is_scheduled_or_in_flight_keeps_its_batch_open(subject: AnySubject) -> None:
    subject.put(Row(1, batch=7, time_next_ns=subject.now_ns() + S), Row(2, after_batch=7))
    subject.put(Row(3, batch=8), Row(4, after_batch=8))
    claim(subject, 3)
    assert claim(subject, 2, 4) == ([], [2, 4])


def test_a_follow_up_that_was_delivered_is_not_held_by_later_parts(subject: AnySubject) -> None:
    subject.put(Row(1, after_batch=7, epoch=1), Row(2, batch=7))
    assert claim(subject, 1, epoch=1) == ([1], [])


def test_parts_of_all_queues_of_the_database_count(subject: AnySubject, others: Callable[..., TableId]) -> None:
    more, most = others("more"), others("most")
    put(subject, more, Row(1, batch=42))
    put(subject, most, Row(1, batch=42), Row(2, batch=43))
    subject.put(Row(3, after_batch=42), Row(4, after_batch=42), Row(5, after_batch=42))
    assert claim(subject, 3) == ([], [3])
    acknowledge(subject, more, 1)
    assert claim(subject, 4) == ([], [4])
    acknowledge(subject, most, 1)
    assert claim(subject, 5) == ([5], [])


def test_dead_parts_count_if_they_hold(subject: AnySubject, others: Callable[..., TableId]) -> None:
    letters = others("letters", "lasting=1")
    others("firing", "batch_by=batch,max_attempts=3,dead_letter=letters")
    put(subject, letters, Row(1, batch=42))
    subject.put(Row(2, after_batch=42))
    assert claim(subject, 2) == ([2], [])
    others("holding", "batch_by=batch,max_attempts=3,dead_letter=letters,batch_on_dead=hold")
    subject.put(Row(3, after_batch=42))
    assert claim(subject, 3) == ([], [3])
    delete(subject, letters, 1)
    assert check(subject, 3).fired == (3,)


# Checks.


def test_a_check_fires_what_is_done(subject: AnySubject) -> None:
    subject.put(Row(1, batch=7), Row(2, after_batch=7), Row(3, batch=8), Row(4, after_batch=8), Row(5))
    claim(subject, 2, 4)
    subject.acknowledge(1)
    before_ns = subject.now_ns()
    seen = check(subject, 2, 4, 5)
    assert (seen.fired, seen.set_aside, seen.again) == ((2,), (), False)
    assert before_ns <= (time_next(subject, 2) or 0) <= subject.now_ns()
    assert time_next(subject, 4) == WAITING_NS
    assert claim(subject, 2) == ([2], [])


def test_a_check_sets_aside_what_is_due_and_waits(subject: AnySubject) -> None:
    later_ns = subject.now_ns() + 3600 * S
    subject.put(Row(1, batch=7), Row(2, after_batch=7), Row(3, after_batch=7, time_next_ns=later_ns), Row(4))
    subject.put(Row(5, after_batch=7, epoch=2))
    seen = check(subject, 2, 3, 4, 5)
    assert (seen.fired, seen.set_aside) == ((), (2,))
    assert [time_next(subject, key) for key in (2, 3, 4, 5)] == [WAITING_NS, later_ns, 0, 0]


def test_a_check_of_parts_fires_the_follow_ups_of_their_batches(
    subject: AnySubject, others: Callable[..., TableId]
) -> None:
    parts = others("parts")
    put(subject, parts, Row(1, batch=7), Row(2, batch=8))
    subject.put(Row(1, batch=7), Row(2, after_batch=7), Row(3, after_batch=8), Row(4, after_batch=7))
    claim(subject, 2, 3, 4)
    acknowledge(subject, parts, 1)
    assert check(subject, parts=((parts, (1,)),)).fired == ()
    subject.acknowledge(1)
    assert check(subject, parts=((subject.table.id, (1,)),)).fired == (2, 4)
    acknowledge(subject, parts, 2)
    assert check(subject, parts=((parts, (1, 2)),)).fired == (3,)


def test_a_check_of_parts_that_are_gone_wants_a_rotation(subject: AnySubject) -> None:
    subject.put(Row(2, after_batch=7))
    assert check(subject, parts=((subject.table.id, (1,)),)).again


def test_parts_whose_acknowledgement_is_not_visible_are_returned(server_subject: ServerSubject) -> None:
    server_subject.put(Row(1, batch=7), Row(2, batch=7), Row(3, after_batch=7))
    server_subject.acknowledge(1)
    table = server_subject.table.id
    assert check(server_subject, parts=((table, (1, 2)),)).unseen == ((table, (2,)),)


def test_a_rotation_goes_through_all_follow_ups(subject: AnySubject) -> None:
    for number in range(1, 8):
        subject.put(Row(number, batch=number), Row(10 + number, after_batch=number), Row(20 + number, after_batch=2))
    claim(subject, *range(11, 18), *range(21, 28))
    for number in (2, 5):
        subject.acknowledge(number)
    fired: list[Key] = []
    waiting, place, steps = 0, None, 0
    while steps == 0 or place is not None:
        seen = check(subject, rotate=True, after=place, limit=3)
        fired += seen.fired
        waiting, place, steps = waiting + seen.waiting, seen.after, steps + 1
    assert sorted(fired, key=str) == [12, 15, *range(21, 28)]
    assert steps == 5
    assert check(subject, rotate=True, limit=100).waiting == 5


def test_a_follow_up_that_somebody_has_locked_is_checked_again(subject: AnySubject) -> None:
    subject.put(Row(1, after_batch=7, time_next_ns=WAITING_NS))
    with subject.locked(1):
        seen = check(subject, rotate=True)
        assert (seen.fired, seen.again) == ((), True)
    assert check(subject, rotate=True).fired == (1,)


# What only a server shows.


def test_a_queue_that_was_made_a_moment_ago_counts(server_subject: ServerSubject) -> None:
    """Its parts are seen by a store that has read the tables with parts before."""
    server_subject.put(Row(1, after_batch=1), Row(2, after_batch=42))
    assert claim(server_subject, 1) == ([1], [])
    server_subject.execute(f"CREATE TABLE fresh ({COLUMNS}{BATCH_COLUMNS}) COMMENT '{COMMENT},batch_by=batch'")
    try:
        server_subject._put("fresh", [Row(1, batch=42)])
        assert claim(server_subject, 2) == ([], [2])
    finally:
        server_subject.execute("DROP TABLE fresh")
    assert check(server_subject, 2).fired == (2,)


def test_a_claim_that_has_to_describe_the_queues_keeps_no_lock_and_begins_again(
    server_subject: ServerSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To describe them takes transactions of its own, which would commit the claim's one: others could then claim
    what it has chosen, and both would deliver it."""
    server_subject.put(Row(1, after_batch=42), Row(2))
    claimed_meanwhile: list[Key] = []
    store = mysql_store(server_subject.server)
    describe = store._batches._describe

    def describe_slowly(*args: Any) -> Any:
        described: Any = describe(*args)
        claimed_meanwhile.extend(claim(server_subject, 1)[0])
        return described

    monkeypatch.setattr(store._batches, "_describe", describe_slowly)
    try:
        claimed = store.claim(server_subject.table, [Wanted(key, 0, 30 * S) for key in (1, 2)]).value
    finally:
        store.close()
    assert claimed_meanwhile == [1]
    assert [found.key for found in claimed] == [2]


def test_parts_that_cannot_be_read_hold_follow_ups(server_subject: ServerSubject) -> None:
    server_subject.execute(f"CREATE TABLE odd ({COLUMNS}, batch DOUBLE) COMMENT '{COMMENT},batch_by=batch'")
    try:
        server_subject.put(Row(1, after_batch=7), Row(2))
        assert claim(server_subject, 1, 2) == ([2], [1])
        seen = check(server_subject, 1)
        assert seen.fired == ()
        assert "odd cannot be used as a queue: batch_by names the column 'batch', which is DOUBLE" in str(seen.problem)
    finally:
        server_subject.execute("DROP TABLE odd")
    seen = check(server_subject, 1)
    assert (seen.fired, seen.problem) == ((1,), None)


def test_a_dropped_index_is_noticed(server_subject: ServerSubject) -> None:
    server_subject.execute(f"CREATE TABLE parts ({COLUMNS}{BATCH_COLUMNS}) COMMENT '{COMMENT},batch_by=batch'")
    try:
        server_subject.put(Row(1, after_batch=7), Row(2, after_batch=7))
        server_subject._put("parts", [Row(1, batch=7)])
        assert claim(server_subject, 1) == ([], [1])
        server_subject.execute("ALTER TABLE parts RENAME INDEX by_batch TO batched")
        with pytest.raises(StoreError):
            claim(server_subject, 2)
        assert claim(server_subject, 2) == ([], [2])
    finally:
        server_subject.execute("DROP TABLE parts")


TYPES = [
    ("VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci", "naïve"),
    ("VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "naïve"),
    ("VARBINARY(20)", b"\x00\xff"),
    ("CHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", "naïve"),
    ("INT UNSIGNED", 7),
]


@pytest.mark.parametrize(("type_", "batch"), TYPES)
@pytest.mark.parametrize("other_", ["VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "same"])
def test_batches_of_any_type(server_subject: ServerSubject, type_: str, batch: Any, other_: str) -> None:
    """Of the same type on both sides, or text on one of them."""
    other = type_ if other_ == "same" else other_
    if isinstance(batch, bytes) and other != type_:
        batch = b"7"
    database = server_subject.database
    indexes = BATCH_COLUMNS.split("INDEX", 1)[1]
    for name, part, after in (("parts", type_, type_), ("mixed", other, other)):
        server_subject.execute(
            f"CREATE TABLE {name} ({COLUMNS}, batch {part}, after_batch {after}, INDEX{indexes})"
            f" COMMENT '{COMMENT},batch_by=batch,after_batch=after_batch,paused=1'"
        )
    try:
        store = mysql_store(server_subject.server)
        table = store.describe(TableId(database, "mixed")).value
        assert isinstance(table, QueueTable), table
        server_subject.execute("INSERT INTO parts (id, batch) VALUES (1, %s)", batch)
        server_subject.execute("INSERT INTO mixed (id, after_batch) VALUES (2, %s), (3, %s)", batch, "8")
        wanted = [Wanted(key, 0, S) for key in (2, 3)]
        result = store.claim_and_fetch(table, wanted, None, 0).value
        assert ([found.key for found in result.claims], result.waiting) == ([3], (2,))
        server_subject.execute("UPDATE parts SET time_acked = 1, time_next = NULL")
        parts = ((TableId(database, "parts"), (1,)),)
        assert store.check_batches(table, BatchCheck(parts=parts)).value.fired == (2,)
        store.close()
    finally:
        server_subject.execute("DROP TABLE parts, mixed")
