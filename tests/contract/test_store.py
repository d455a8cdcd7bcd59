"""The behaviour of every store: the one in memory, and the real one on each kind of server.

Rows are described by when they are due, relative to the server's clock: `due` a second ago, `later` in an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from engine.model import (
    NS_PER_S,
    Claimed,
    Delivery,
    Key,
    MoveResult,
    Portion,
    Position,
    Range,
    Return,
    RowFormat,
    ScanResult,
    Share,
    TableId,
    Wanted,
)
from engine.queue_table import QueueTable
from engine.store.acks import Ack
from engine.store.port import AckResult, StoreError
from proxy.embedded.server import EmbeddedServer
from tests.support.memory_store import Row
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import (
    EVEN,
    GROWING,
    SCAN_INDEXES,
    MemorySubject,
    ServerSubject,
    Subject,
    kept_subjects,
    partitioned_queue,
)

S = NS_PER_S
HOUR = 3600 * S
TEXT = RowFormat(("id", "body"), binary=False)

STORES = [
    "memory",
    *SERVERS,
    *(f"{name} {kind}" for kind in ("descending", "unindexed", "partitioned") for name in SERVERS),
]
TWO_PARTITIONS = (
    "PARTITION BY RANGE (time_acked) (PARTITION live VALUES LESS THAN (0), PARTITION later VALUES LESS THAN MAXVALUE)"
)


@pytest.fixture(scope="module")
def on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    """Makes a table for each kind of server and index, and empties it for each test."""

    def make(server: EmbeddedServer, index: str) -> ServerSubject:
        if index == "partitioned":
            return partitioned_queue(server, TWO_PARTITIONS)
        return ServerSubject(server, columns=GROWING, index=SCAN_INDEXES.get(index or "ascending", ""))

    yield from kept_subjects(server_pool, make)


BY_KEY = [store for store in STORES if not store.endswith(("descending", "unindexed"))]
"""For tests of what goes by the key alone: its statements are the same whatever the scan index is."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        uses_index = metafunc.cls in {TestScan, TestScanForACondition, TestPurge, TestCatalog}
        stores = STORES if uses_index else BY_KEY
        if metafunc.cls is TestAcknowledgeAll:
            stores = [store for store in stores if not store.endswith("partitioned")]
        metafunc.parametrize("subject", stores, indirect=True)


@pytest.fixture
def subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> Subject:
    """Each store in turn, empty; the real ones with each kind of scan index."""
    return MemorySubject() if request.param == "memory" else on_server(request.param)


def put_due(subject: Subject, *keys: int, priority: int = 0, epoch: int = 0) -> None:
    """Messages due since a second ago, all at the same time."""
    due_ns = subject.now_ns() - S
    subject.put(*(Row(key, priority, epoch, due_ns) for key in keys))


def claim(subject: Subject, *keys: int, epoch: int = 0, wait_ns: int = 30 * S) -> tuple[Claimed, ...]:
    return subject.store.claim(subject.table, [Wanted(key, epoch, wait_ns) for key in keys]).value


def scanned(subject: Subject, limit: int = 100) -> list[Key]:
    return [entry.key for entry in subject.store.scan(subject.table, limit).value.entries]


def keys_of(claims: Sequence[Claimed]) -> set[Key]:
    return {claim.key for claim in claims}


def returned(claims: Sequence[Claimed], *, sent: bool) -> list[Return]:
    return [Return(claim.key, claim.epoch, claim.deadline_ns, claim.due_ns, sent) for claim in claims]


class TestScan:
    def test_an_empty_table_has_no_entries(self, subject: Subject) -> None:
        result = subject.store.scan(subject.table, 10).value
        assert (result.entries, result.more, result.horizon_ns) == ((), False, None)

    def test_lower_priority_goes_first_then_the_earlier_then_the_smaller_id(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        subject.put(
            Row(1, 5, 0, now_ns - 9 * S),
            Row(2, -1, 0, now_ns - 1 * S),
            Row(3, 0, 0, now_ns - 1 * S),
            Row(4, 0, 0, now_ns - 2 * S),
            Row(6, 0, 0, now_ns - 3 * S),
            Row(5, 0, 0, now_ns - 3 * S),
        )
        assert scanned(subject) == [2, 5, 6, 4, 3, 1]

    def test_the_smallest_ids_of_one_time_go_first_also_when_there_are_more_than_the_limit(
        self, subject: Subject
    ) -> None:
        put_due(subject, *range(10, 60))
        subject.put(Row(80, 0, 0, subject.now_ns() - 9 * S), Row(81, 0, 0, subject.now_ns() - 9 * S))
        assert scanned(subject, limit=8) == [80, 81, 10, 11, 12, 13, 14, 15]

    def test_an_entry_has_the_rows_values(self, subject: Subject) -> None:
        due_ns = subject.now_ns() - S
        subject.put(Row(7, 3, 4, due_ns))
        (entry,) = subject.store.scan(subject.table, 10).value.entries
        assert (entry.key, entry.epoch, entry.priority, entry.due_ns) == (7, 4, 3, due_ns)

    def test_a_null_time_next_counts_as_due_since_1970(self, subject: Subject) -> None:
        put_due(subject, 1)
        subject.put(Row(2, 0, 0, None))
        assert [(entry.key, entry.due_ns) for entry in subject.store.scan(subject.table, 1).value.entries] == [(2, 0)]

    def test_acknowledged_rows_are_not_returned(self, subject: Subject) -> None:
        put_due(subject, 1, 2)
        subject.acknowledge(1)
        assert scanned(subject) == [2]

    def test_a_full_scan_reports_that_there_is_more(self, subject: Subject) -> None:
        put_due(subject, 1, 2, 3)
        assert not subject.store.scan(subject.table, 3).value.more
        result = subject.store.scan(subject.table, 2).value
        assert result.more
        assert [entry.key for entry in result.entries] == [1, 2]

    def test_due_rows_of_another_priority_count_as_more(self, subject: Subject) -> None:
        put_due(subject, 1, 2, priority=0)
        put_due(subject, 3, priority=9)
        assert subject.store.scan(subject.table, 2).value.more

    def test_due_rows_are_followed_by_those_due_next(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        put_due(subject, 1, priority=2)
        subject.put(Row(2, 1, 0, now_ns + 2 * HOUR), Row(3, 2, 0, now_ns + HOUR), Row(4, 0, 0, now_ns + 3 * HOUR))
        result = subject.store.scan(subject.table, 10).value
        assert [entry.key for entry in result.entries] == [1, 3, 2, 4]
        assert (result.more, result.horizon_ns) == (False, None)

    def test_the_horizon_is_when_a_row_that_was_left_out_comes_due(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        subject.put(*(Row(key, key % 2, 0, now_ns + key * HOUR) for key in range(1, 9)))
        result = subject.store.scan(subject.table, 3).value
        assert [entry.key for entry in result.entries] == [1, 2, 3]
        assert result.horizon_ns == now_ns + 4 * HOUR

    def test_rows_scheduled_far_ahead_do_not_hide_due_rows_of_a_less_urgent_priority(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        subject.put(*(Row(key, 0, 0, now_ns + HOUR) for key in range(1, 40)))
        put_due(subject, 50, priority=1)
        result = subject.store.scan(subject.table, 5).value
        assert (result.entries[0].key, len(result.entries), result.more) == (50, 6, False)

    def test_a_scan_finds_priorities_that_the_last_one_did_not(self, subject: Subject) -> None:
        put_due(subject, 1, priority=10)
        put_due(subject, 2, priority=20)
        assert scanned(subject) == [1, 2]
        put_due(subject, 3, priority=5)
        put_due(subject, 4, priority=15)
        put_due(subject, 5, priority=25)
        assert scanned(subject) == [3, 1, 4, 2, 5]
        subject.acknowledge(1, 3)
        assert scanned(subject) == [4, 2, 5]

    def test_many_priorities_are_all_found_every_time(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        subject.put(*(Row(key, key, 0, now_ns - S) for key in range(1, 60)))
        assert scanned(subject) == scanned(subject) == list(range(1, 60))


class TestScanForACondition:
    def scan_range(self, subject: Subject, after: Mapping[int, Position] | None = None, limit: int = 100) -> ScanResult:
        part = Range(after or {}, subject.now_ns() + HOUR)
        return subject.store.scan(subject.table, limit, EVEN, part).value

    def test_only_selected_rows_are_found(self, subject: Subject) -> None:
        put_due(subject, 1, 2, 3)
        subject.put(Row(4, 0, 0, 0), Row(5, 0, 0, 0), Row(6, 7, 0, None), Row(8, 7, 0, subject.now_ns() + HOUR // 2))
        assert [entry.key for entry in self.scan_range(subject).entries] == [4, 2, 6, 8]

    def test_rows_due_after_the_end_of_its_range_are_left_to_the_horizon(self, subject: Subject) -> None:
        later_ns = subject.now_ns() + 3 * HOUR
        subject.put(Row(2, 0, 0, later_ns))
        result = self.scan_range(subject)
        if result.reached:  # Without an index there are no ranges, and it is found.
            assert result.entries == ()
            assert result.horizon_ns is not None
            assert result.horizon_ns <= later_ns

    def test_a_scan_that_begins_where_the_last_one_ended_finds_new_rows(self, subject: Subject) -> None:
        old_ns = subject.now_ns() - HOUR
        subject.put(*(Row(key, 0, 0, 0) for key in (2, 3, 4)), *(Row(key, 0, 0, old_ns) for key in (6, 7, 8)))
        first = self.scan_range(subject)
        assert [entry.key for entry in first.entries] == [2, 4, 6, 8]
        subject.put(Row(12, 0, 0, 0), Row(13, 0, 0, 0), Row(10, 0, 0, subject.now_ns() - S), Row(14, 1, 0, 0))
        places = {priority: Position(position.zero_id, old_ns) for priority, position in first.reached.items()}
        found = [entry.key for entry in self.scan_range(subject, places).entries]
        assert [key for key in found if key not in {2, 4, 6, 8}] == [12, 10, 14]
        if places and all(position.zero_id is not None for position in places.values()):
            assert found == [12, 10, 14]

    def test_the_scan_position_never_passes_a_row_that_was_left_out(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        zero = [Row(key, key % 3, 0, 0) for key in range(1, 40)]
        subject.put(*zero, *(Row(key, key % 3, 0, now_ns - HOUR + key) for key in range(40, 80)))
        everything = set(range(2, 80, 2))
        places: Mapping[int, Position] = {}
        found: list[Key] = []
        for _ in range(100):
            result = self.scan_range(subject, places, limit=5)
            due = [entry.key for entry in result.entries if entry.epoch == 0]
            subject.store.claim(subject.table, [Wanted(key, 0, 30 * S) for key in due])
            found += due
            places = result.reached
        assert set(found) == everything
        assert len(found) == len(everything)

    @pytest.mark.parametrize("count", [2, 3])
    def test_the_portions_of_a_range_are_disjoint_and_complete(self, subject: Subject, count: int) -> None:
        now_ns = subject.now_ns()
        timed = [Row(key, key % 3, 0, now_ns - HOUR + key) for key in range(20, 40)]
        odd = [Row(key, key % 3, 0, -key if key % 4 else None) for key in range(40, 60)]
        subject.put(*(Row(key, key % 3, 0, 0) for key in range(1, 20)), *timed, *odd)
        whole = self.scan_range(subject).entries
        shares = [Share(number, count) for number in range(count)]
        part = Range({}, now_ns + HOUR)
        for share in shares:
            found = subject.store.scan(subject.table, 100, EVEN, part, Portion(share, others=100)).value
            others = [entry for entry in whole if share.turn(entry.key) > 0]
            assert [entry for entry in whole if share.turn(entry.key) == 0] == list(found.entries)
            assert others == list(found.others)
            some = subject.store.scan(subject.table, 100, EVEN, part, Portion(share, others=2)).value
            assert (some.entries, some.others[:2], some.others_more) == (found.entries, found.others[:2], True)
            assert subject.store.scan(subject.table, 100, EVEN, part, Portion(share)).value.others == ()

    def test_a_claim_takes_only_rows_that_still_are_selected(self, subject: Subject) -> None:
        put_due(subject, 1, 2, 4)
        wanted = [Wanted(1, 0, 30 * S, EVEN), Wanted(2, 0, 30 * S, EVEN), Wanted(4, 0, 30 * S)]
        assert keys_of(subject.store.claim(subject.table, wanted).value) == {2, 4}


class TestClaim:
    def test_a_claim_counts_the_delivery_and_sets_its_end(self, subject: Subject) -> None:
        put_due(subject, 1)
        answer = subject.store.claim(subject.table, [Wanted(1, 0, 30 * S)])
        (claimed,) = answer.value
        row = subject.row(1)
        assert row is not None
        assert claimed.epoch == row.epoch == 1
        assert claimed.deadline_ns == row.time_next_ns == answer.now_ns + 30 * S

    def test_a_claim_returns_the_rows_former_values(self, subject: Subject) -> None:
        due_ns = subject.now_ns() - 5 * S
        subject.put(Row(1, 7, 3, due_ns))
        (claimed,) = claim(subject, 1, epoch=3)
        assert (claimed.epoch, claimed.priority, claimed.due_ns) == (4, 7, due_ns)

    def test_each_row_can_have_a_wait_of_its_own(self, subject: Subject) -> None:
        keys = range(1, 200)
        put_due(subject, *keys)
        wanted = [Wanted(key, 0, (key // 2) * S) for key in keys]
        claims = subject.store.claim(subject.table, wanted)
        assert {claim.key: claim.deadline_ns - claims.now_ns for claim in claims.value} == {
            want.key: want.wait_ns for want in wanted
        }
        for claimed in claims.value[::50]:
            row = subject.row(claimed.key)
            assert row is not None
            assert (row.epoch, row.time_next_ns) == (1, claimed.deadline_ns)

    def test_only_the_wanted_rows_are_claimed(self, subject: Subject) -> None:
        put_due(subject, 1, 2, 3)
        assert keys_of(claim(subject, 1, 3, 99)) == {1, 3}
        row = subject.row(2)
        assert row is not None
        assert row.epoch == 0

    def test_a_claimed_row_is_not_claimed_again_before_its_wait_ends(self, subject: Subject) -> None:
        put_due(subject, 1)
        (first,) = claim(subject, 1, wait_ns=500_000_000)
        assert claim(subject, 1, epoch=1) == ()
        subject.wait_until(first.deadline_ns)
        (second,) = claim(subject, 1, epoch=1)
        assert second.epoch == 2

    def test_a_row_of_another_epoch_is_left_alone(self, subject: Subject) -> None:
        put_due(subject, 1, epoch=5)
        assert claim(subject, 1, epoch=4) == ()
        assert keys_of(claim(subject, 1, epoch=5)) == {1}

    def test_an_acknowledged_row_is_left_alone(self, subject: Subject) -> None:
        put_due(subject, 1, 2)
        subject.acknowledge(1)
        assert keys_of(claim(subject, 1, 2)) == {2}

    def test_a_row_that_is_not_due_is_left_alone(self, subject: Subject) -> None:
        subject.put(Row(1, 0, 0, subject.now_ns() + HOUR))
        assert claim(subject, 1) == ()

    def test_a_null_time_next_can_be_claimed(self, subject: Subject) -> None:
        subject.put(Row(1, 0, 0, None))
        (claimed,) = claim(subject, 1)
        assert claimed.due_ns == 0

    def test_locked_rows_are_skipped_and_not_waited_for(self, subject: Subject) -> None:
        put_due(subject, 1, 2, 3)
        with subject.locked(1, 3):
            assert keys_of(claim(subject, 1, 2, 3)) == {2}
        assert keys_of(claim(subject, 1, 3)) == {1, 3}

    def test_nothing_wanted_is_nothing_claimed(self, subject: Subject) -> None:
        assert claim(subject) == ()


class TestFetch:
    def fetch(self, subject: Subject, keys: dict[Key, int], budget_bytes: int = 1 << 20) -> tuple[set[Key], set[Key]]:
        """The rows of these keys and epochs that are read and left unread, whatever their time is now."""
        found = subject.store.lookup(subject.table, list(keys)).value
        times = {key: found[key].due_ns if key in found else 0 for key in keys}
        deliveries = {key: Delivery(epoch, times[key]) for key, epoch in keys.items()}
        result = subject.store.fetch(subject.table, TEXT, deliveries, budget_bytes).value
        assert not result.changed
        return set(result.rows), set(result.unread)

    def test_rows_come_by_key(self, subject: Subject) -> None:
        put_due(subject, 1, 2, 3)
        claim(subject, 1, 2)
        assert self.fetch(subject, {1: 1, 2: 1}) == ({1, 2}, set())

    def test_a_row_that_was_acknowledged_claimed_again_or_deleted_is_in_neither(self, subject: Subject) -> None:
        put_due(subject, 1, 2)
        subject.acknowledge(1)
        claim(subject, 2)
        assert self.fetch(subject, {1: 0, 2: 0, 3: 0}) == (set(), set())

    def test_a_row_whose_time_was_changed_is_reported_as_changed(self, subject: Subject) -> None:
        put_due(subject, 1, 2)
        claims = {made.key: made.delivery for made in claim(subject, 1, 2)}
        later = claims[2]._replace(until_ns=claims[2].until_ns - 1)
        result = subject.store.fetch(subject.table, TEXT, {1: claims[1], 2: later}, 1 << 20).value
        assert (set(result.rows), set(result.unread), set(result.changed)) == ({1}, set(), {2})

    def test_rows_beyond_the_budget_are_unread(self, subject: Subject) -> None:
        subject.put(*(Row(key, 0, 1, 0, payload=b"x" * 1000) for key in range(1, 101)))
        keys: dict[Key, int] = dict.fromkeys(range(1, 101), 1)
        for _ in range(3):  # The size of its rows is remembered: neither guess may lose one.
            rows, unread = self.fetch(subject, keys, budget_bytes=10_000)
            assert 5 <= len(rows) <= 10
            assert rows | unread == set(keys)
            assert not rows & unread

    def test_one_row_is_read_even_if_it_alone_exceeds_the_budget(self, subject: Subject) -> None:
        subject.put(*(Row(key, 0, 1, 0, payload=b"x" * 5000) for key in (1, 2)))
        rows, unread = self.fetch(subject, {1: 1, 2: 1}, budget_bytes=10)
        assert len(rows) == len(unread) == 1

    def test_all_rows_are_read_by_fetching_the_unread_ones_again(self, subject: Subject) -> None:
        subject.put(*(Row(key, 0, 1, 0, payload=b"x" * (key * 40)) for key in range(1, 101)))
        left: set[Key] = set(range(1, 101))
        seen: set[Key] = set()
        for _ in range(100):
            rows, left = self.fetch(subject, dict.fromkeys(left, 1), budget_bytes=8000)
            assert rows
            assert not rows & seen
            seen |= rows
            if not left:
                break
        assert seen == set(range(1, 101))


class TestClaimAndFetch:
    def claim(
        self, subject: Subject, *keys: Key, row_format: RowFormat = TEXT, budget_bytes: int = 1 << 20
    ) -> tuple[list[Key], set[Key], set[Key]]:
        """The claimed keys in their order, those whose rows came, and those that were left unread."""
        wanted = [Wanted(key, 0, 30 * S) for key in keys]
        claims, rows, *_ = subject.store.claim_and_fetch(subject.table, wanted, row_format, budget_bytes).value
        if rows is None:
            assert not claims
            return [], set(), set()
        assert not rows.changed
        return [claim.key for claim in claims], set(rows.rows), set(rows.unread)

    @pytest.mark.parametrize("row_format", [TEXT, replace(TEXT, binary=True)], ids=["text", "binary"])
    def test_what_can_be_claimed_is_claimed_and_its_rows_come_along(
        self, subject: Subject, row_format: RowFormat
    ) -> None:
        put_due(subject, 1, 2, 3, 4)
        subject.acknowledge(3)
        with subject.locked(2):
            assert self.claim(subject, 4, 3, 2, 1, row_format=row_format) == ([4, 1], {1, 4}, set())
        row = subject.row(4)
        assert row is not None
        assert row.epoch == 1

    def test_nothing_claimed_is_nothing_read(self, subject: Subject) -> None:
        assert self.claim(subject, 1, 2) == ([], set(), set())

    def test_rows_beyond_the_budget_are_claimed_and_unread(self, subject: Subject) -> None:
        subject.put(*(Row(key, 0, 0, 0, payload=b"x" * 1000) for key in range(1, 301)))
        for first in (1, 101, 201):  # The size of its rows is remembered: neither guess may lose one.
            keys = range(first, first + 100)
            claimed, rows, unread = self.claim(subject, *keys, budget_bytes=10_000)
            assert 5 <= len(rows) <= 10
            assert set(claimed) == rows | unread == set(keys)
            assert not rows & unread


class TestAcknowledgeAll:
    """Not for tables partitioned by time: there an ACK moves a row, and may wait for another one."""

    def acknowledged(self, subject: Subject, *acks: Ack) -> list[AckResult]:
        return list(subject.store.acknowledge_all(subject.table, acks, subject.origin).value)

    def test_each_ack_has_its_own_count(self, subject: Subject) -> None:
        put_due(subject, 1, 2, 3, 4)
        acks = Ack((3,)), Ack((1, 3, 77)), Ack((3,)), Ack((2,), 0), Ack((4,), 1)
        assert self.acknowledged(subject, *acks) == [1, 1, 0, 1, 0]
        now_ns = subject.now_ns()
        for key in (1, 2, 3):
            row = subject.row(key)
            assert row is not None
            assert row.time_next_ns is None
            assert now_ns - 60 * S < (row.time_acked_ns or 0) <= now_ns
        assert scanned(subject) == [4]

    def test_the_epoch_is_the_rows_own(self, subject: Subject) -> None:
        put_due(subject, 1, 2, epoch=3)
        assert self.acknowledged(subject, Ack((1,), 2), Ack((1,), 3), Ack((2,), 4)) == [0, 1, 0]

    def test_a_locked_row_is_left_out_without_waiting(self, subject: Subject) -> None:
        put_due(subject, 1, 2)
        with subject.locked(1):
            assert self.acknowledged(subject, Ack((1,)), Ack((2,)), Ack((3, 1))) == [None, 1, None]
        assert self.acknowledged(subject, Ack((1, 3))) == [1]

    def test_a_row_that_is_acknowledged_or_missing_is_not_counted(self, subject: Subject) -> None:
        put_due(subject, 1)
        subject.acknowledge(1)
        assert self.acknowledged(subject, Ack((1,)), Ack((77,))) == [0, 0]


class TestLookup:
    def test_unacknowledged_rows_are_found_as_they_are(self, subject: Subject) -> None:
        put_due(subject, 1, 2, priority=4)
        (claimed,) = claim(subject, 1)
        subject.acknowledge(2)
        found = subject.store.lookup(subject.table, [1, 2, 3]).value
        assert set(found) == {1}
        entry = found[1]
        assert (entry.key, entry.epoch, entry.priority, entry.due_ns) == (1, 1, 4, claimed.deadline_ns)

    def test_a_locked_row_is_found_without_waiting(self, subject: Subject) -> None:
        put_due(subject, 1)
        with subject.locked(1):
            assert set(subject.store.lookup(subject.table, [1]).value) == {1}


class TestUnacknowledged:
    def test_tables_with_messages_that_are_not_acknowledged_are_found(self, subject: Subject) -> None:
        def found() -> frozenset[TableId]:
            return subject.store.unacknowledged([subject.table]).value

        assert found() == frozenset()
        put_due(subject, 1)
        assert found() == {subject.table.id}
        subject.acknowledge(1)
        assert found() == frozenset()
        put_due(subject, 2)
        with subject.locked(2):
            claim(subject, 2)
            assert found() == {subject.table.id}


class TestUnlocked:
    def test_messages_that_others_have_locked_are_not_among_them(self, subject: Subject) -> None:
        put_due(subject, 1, 2, 3)
        subject.acknowledge(2)
        with subject.locked(1):
            assert subject.store.unlocked(subject.table, [1, 2, 3, 4]).value == {3}
        assert subject.store.unlocked(subject.table, [1, 2, 3, 4]).value == {1, 3}
        assert subject.store.unlocked(subject.table, []).value == frozenset()

    def test_a_message_without_a_time_is_due(self, subject: Subject) -> None:
        subject.put(Row(1, time_next_ns=None))
        assert subject.store.unlocked(subject.table, [1]).value == {1}

    def test_messages_that_others_have_claimed_are_not_among_them(self, subject: Subject) -> None:
        put_due(subject, 1, 2)
        claim(subject, 1)
        assert subject.store.unlocked(subject.table, [1, 2]).value == {2}

    def test_nothing_stays_locked(self, subject: Subject) -> None:
        put_due(subject, 1)
        subject.store.unlocked(subject.table, [1])
        assert [taken.key for taken in claim(subject, 1)] == [1]


class TestRelease:
    def release(self, subject: Subject, returns: Sequence[Return]) -> int:
        return subject.store.release(subject.table, returns).value.rows

    def test_an_unsent_claim_is_undone(self, subject: Subject) -> None:
        due_ns = subject.now_ns() - 5 * S
        subject.put(*(Row(key, 0, 3, due_ns - key) for key in range(1, 150)))
        claims = claim(subject, *range(1, 150), epoch=3)
        assert self.release(subject, returned(claims, sent=False)) == 149
        for key in (1, 70, 149):
            row = subject.row(key)
            assert row is not None
            assert (row.epoch, row.time_next_ns) == (3, due_ns - key)

    def test_a_sent_claim_is_due_now_and_counts_as_a_delivery(self, subject: Subject) -> None:
        put_due(subject, 1)
        claims = claim(subject, 1)
        before_ns = subject.now_ns()
        assert self.release(subject, returned(claims, sent=True)) == 1
        row = subject.row(1)
        assert row is not None
        assert row.epoch == 1
        assert row.time_next_ns is not None
        assert before_ns <= row.time_next_ns <= subject.now_ns()
        assert keys_of(claim(subject, 1, epoch=1)) == {1}

    def test_sent_and_unsent_ones_can_be_mixed(self, subject: Subject) -> None:
        put_due(subject, 1, 2)
        one, two = sorted(claim(subject, 1, 2), key=lambda made: made.key)
        assert self.release(subject, [*returned([one], sent=True), *returned([two], sent=False)]) == 2
        rows = [subject.row(1), subject.row(2)]
        assert [row and row.epoch for row in rows] == [1, 0]

    def test_a_failed_delivery_of_a_locked_message_is_counted_and_waits(self, subject: Subject) -> None:
        put_due(subject, 1)
        subject.put(Row(2, time_next_ns=None))
        before_ns = subject.now_ns()
        failed = [
            Return(row.key, row.epoch, row.entry.due_ns, row.entry.due_ns, sent=False, failed_wait_ns=wait_ns)
            for row, wait_ns in zip([subject.row(1), subject.row(2)], (7 * S, 0), strict=True)
            if row is not None
        ]
        assert self.release(subject, failed) == 2
        one, two = subject.row(1), subject.row(2)
        assert one is not None
        assert two is not None
        assert (one.epoch, two.epoch) == (1, 1)
        assert before_ns + 7 * S <= one.entry.due_ns <= subject.now_ns() + 7 * S
        assert before_ns <= two.entry.due_ns <= subject.now_ns()
        assert self.release(subject, failed) == 0, "it is counted once"

    def test_an_acknowledged_message_is_not_released(self, subject: Subject) -> None:
        put_due(subject, 1, 2)
        claims = claim(subject, 1, 2)
        subject.acknowledge(1)
        assert self.release(subject, returned(claims, sent=True)) == 1
        row = subject.row(1)
        assert row is not None
        assert row.time_acked_ns is not None
        assert row.time_next_ns is None

    def test_a_message_that_was_claimed_again_is_not_released(self, subject: Subject) -> None:
        put_due(subject, 1)
        first = claim(subject, 1, wait_ns=20_000_000)
        subject.wait_until(first[0].deadline_ns)
        (second,) = claim(subject, 1, epoch=1)
        assert self.release(subject, returned(first, sent=True)) == 0
        row = subject.row(1)
        assert row is not None
        assert (row.epoch, row.time_next_ns) == (2, second.deadline_ns)

    def test_a_message_that_was_rescheduled_is_not_released(self, subject: Subject) -> None:
        put_due(subject, 1)
        (claimed,) = claim(subject, 1)
        stale = Return(1, claimed.epoch, claimed.deadline_ns - 1, claimed.due_ns, sent=True)
        assert self.release(subject, [stale]) == 0

    def test_releasing_nothing_is_no_error(self, subject: Subject) -> None:
        assert self.release(subject, []) == 0


class TestBury:
    def move_dead_letters(self, subject: Subject, *keys: int, epoch: int = 3, wait_ns: int = HOUR) -> MoveResult:
        wanted = [Wanted(key, epoch, wait_ns) for key in keys]
        return subject.store.move_dead_letters(subject.table, wanted, subject.dead_letter()).value

    def test_a_dead_message_moves_with_its_epoch_and_priority_and_is_due_there_now(self, subject: Subject) -> None:
        put_due(subject, 1, 2, priority=7, epoch=3)
        answer = subject.store.move_dead_letters(subject.table, [Wanted(1, 3, HOUR)], subject.dead_letter())
        assert answer.value == MoveResult((1,))
        assert subject.row(1) is None
        assert subject.row(2) is not None
        assert subject.dead(1) == Row(1, 7, 3, answer.now_ns)

    def test_an_id_of_0_is_kept_in_the_dead_letter_table(self, subject: Subject) -> None:
        put_due(subject, 0, epoch=3)
        assert self.move_dead_letters(subject, 0) == MoveResult((0,))
        assert subject.dead(0)

    def test_only_messages_that_could_be_claimed_are_moved_and_the_others_are_unchanged(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        put_due(subject, 1, 3, 4, 6, epoch=3)
        subject.put(Row(2, 0, 3, now_ns + HOUR), Row(5, 0, 4, now_ns - S))
        subject.acknowledge(3)
        before = [subject.row(key) for key in (2, 3, 4, 5)]
        with subject.locked(4):
            assert self.move_dead_letters(subject, 1, 2, 3, 4, 5, 6, 99) == MoveResult((1, 6))
        assert [subject.row(key) for key in (2, 3, 4, 5)] == before
        assert [key for key in range(1, 7) if subject.dead(key)] == [1, 6]

    def test_an_acknowledged_row_with_its_id_is_replaced(self, subject: Subject) -> None:
        put_due(subject, 1, 2, epoch=3)
        subject.put_dead(Row(1, 9, 9, None, 5))
        assert self.move_dead_letters(subject, 1, 2) == MoveResult((1, 2))
        row = subject.dead(1)
        assert row is not None
        assert (row.priority, row.epoch, row.time_acked_ns) == (0, 3, None)

    def test_an_unacknowledged_row_with_its_id_holds_back_that_message_and_no_other(self, subject: Subject) -> None:
        put_due(subject, 1, 2, 3, priority=4, epoch=3)
        there = Row(2, 9, 9, 5)
        subject.put_dead(there)
        answer = subject.store.move_dead_letters(
            subject.table, [Wanted(key, 3, key * HOUR) for key in (1, 2, 3)], subject.dead_letter()
        )
        assert answer.value.moved == (1, 3)
        assert answer.value.problem
        assert "2" in answer.value.problem
        assert subject.dead(2) == there
        assert subject.row(2) == Row(2, 4, 3, answer.now_ns + 2 * HOUR)

    def test_without_a_dead_letter_table_nothing_moves_and_each_waits_for_its_own_time(self, subject: Subject) -> None:
        put_due(subject, 1, 2, epoch=3)
        absent = TableId(subject.table.id.db, "absent")
        answer = subject.store.move_dead_letters(subject.table, [Wanted(1, 3, HOUR), Wanted(2, 3, 2 * HOUR)], absent)
        assert answer.value.moved == ()
        assert answer.value.problem
        assert "absent" in answer.value.problem
        for key in (1, 2):
            assert subject.row(key) == Row(key, 0, 3, answer.now_ns + key * HOUR)

    def test_into_a_table_that_does_not_name_this_one_nothing_moves(self, subject: Subject) -> None:
        put_due(subject, 1, 2, epoch=3)
        subject.put_dead(Row(2, 9, 9, None, 5))
        subject.close_dead_letter()
        answer = subject.store.move_dead_letters(
            subject.table, [Wanted(1, 3, HOUR), Wanted(2, 3, 2 * HOUR)], subject.dead_letter()
        )
        assert (answer.value.moved, bool(answer.value.problem)) == ((), True)
        for key in (1, 2):
            assert subject.row(key) == Row(key, 0, 3, answer.now_ns + key * HOUR)
        assert [subject.dead(1), subject.dead(2)] == [None, Row(2, 9, 9, None, 5)]

    def test_a_table_is_not_its_own_dead_letter_table(self, subject: Subject) -> None:
        put_due(subject, 1, epoch=3)
        result = subject.store.move_dead_letters(subject.table, [Wanted(1, 3, HOUR)], subject.table.id).value
        assert (result.moved, bool(result.problem)) == ((), True)
        assert subject.row(1)

    def test_a_moved_message_can_be_claimed_in_the_dead_letter_table(self, subject: Subject) -> None:
        put_due(subject, 1, epoch=3)
        self.move_dead_letters(subject, 1)
        dead = subject.store.describe(subject.dead_letter()).value
        assert isinstance(dead, QueueTable)
        (claimed,) = subject.store.claim(dead, [Wanted(1, 3, S)]).value
        assert claimed.epoch == 4

    def test_nothing_dead_is_nothing_moved(self, subject: Subject) -> None:
        assert self.move_dead_letters(subject) == MoveResult(())


class TestPurge:
    def test_old_acknowledged_rows_are_deleted_and_all_others_stay(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        subject.put(
            Row(1, 0, 1, None, now_ns - 3 * HOUR),
            Row(2, 0, 1, None, now_ns - HOUR),
            Row(3, 0, 1, now_ns - 3 * HOUR),
            Row(4, 0, 1, None, None),
        )
        assert subject.store.purge(subject.table, 2 * HOUR, 100).value.rows == 1
        assert [key for key in (1, 2, 3, 4) if subject.row(key)] == [2, 3, 4]

    def test_the_oldest_go_first_and_no_more_than_asked(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        subject.put(*(Row(key, 0, 1, None, now_ns - key * HOUR) for key in range(1, 8)))
        assert subject.store.purge(subject.table, 0, 3).value.rows == 3
        assert [key for key in range(1, 8) if subject.row(key)] == [1, 2, 3, 4]

    def test_locked_rows_do_not_hold_back_those_behind_them(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        subject.put(*(Row(key, 0, 1, None, now_ns - (10 - key) * HOUR) for key in range(1, 8)))
        with subject.locked(1, 2):
            purged = [subject.store.purge(subject.table, 0, 2).value.rows for _ in range(4)]
            assert sum(purged) == 5
            assert [key for key in range(1, 8) if subject.row(key)] == [1, 2]
        assert sum(subject.store.purge(subject.table, 0, 2).value.rows for _ in range(2)) == 2

    def test_what_was_acknowledged_back_in_time_goes_when_it_is_found(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        subject.put(*(Row(key, 0, 1, None, now_ns - key * HOUR) for key in range(1, 6)))
        assert subject.store.purge(subject.table, 0, 2).value.rows == 2
        subject.put(Row(9, 0, 1, None, now_ns - 9 * HOUR))
        for _ in range(4):
            subject.store.purge(subject.table, 0, 2)
        assert [key for key in range(1, 10) if subject.row(key)] == []

    def test_an_age_beyond_1970_purges_nothing(self, subject: Subject) -> None:
        subject.put(Row(1, 0, 1, None, subject.now_ns() - HOUR))
        assert subject.store.purge(subject.table, 100 * 365 * 24 * HOUR, 10).value.rows == 0


class TestRefusals:
    def test_a_claim_with_a_refused_row_takes_nothing_and_may_be_tried_with_fewer(self, subject: Subject) -> None:
        put_due(subject, 1, 2, 3)
        before = [subject.row(key) for key in (1, 2, 3)]
        with subject.updates_refused(2):
            for keys in ((1, 2, 3), (2,)):
                with pytest.raises(StoreError) as refused:
                    claim(subject, *keys)
                assert refused.value.refusal is not None
                assert not refused.value.lasting
            assert [subject.row(key) for key in (1, 2, 3)] == before
            assert keys_of(claim(subject, 1, 3)) == {1, 3}
        assert keys_of(claim(subject, 2)) == {2}

    def test_a_purge_deletes_what_is_beside_refused_rows_and_names_these(self, subject: Subject) -> None:
        now_ns = subject.now_ns()
        subject.put(*(Row(key, 0, 1, None, now_ns - key * HOUR) for key in range(1, 10)))
        with subject.deletions_refused(4, 8):
            purged = subject.store.purge(subject.table, 0, 100).value
            assert (purged.rows, set(purged.refused)) == (7, {4, 8})
            assert [key for key in range(1, 10) if subject.row(key)] == [4, 8]

    def test_dead_messages_move_beside_one_that_is_refused_and_it_waits(self, subject: Subject) -> None:
        put_due(subject, 1, 2, 3, epoch=3)
        wanted = [Wanted(key, 3, HOUR) for key in (1, 2, 3)]
        with subject.deletions_refused(2):
            answer = subject.store.move_dead_letters(subject.table, wanted, subject.dead_letter())
        assert set(answer.value.moved) == {1, 3}
        assert answer.value.problem is not None
        assert [subject.row(key) for key in (1, 2, 3)] == [None, Row(2, 0, 3, answer.now_ns + HOUR), None]
        assert subject.dead(2) is None


class TestCatalog:
    def test_a_marked_table_is_discovered_and_described(self, subject: Subject) -> None:
        assert subject.table.id in subject.store.discover().value.marked
        assert subject.store.describe(subject.table.id).value == subject.table
        absent = TableId(subject.table.id.db, "absent")
        described = subject.store.describe_all([absent, subject.table.id]).value
        assert described == {subject.table.id: subject.table}

    def test_an_absent_table_is_no_queue(self, subject: Subject) -> None:
        assert subject.store.describe(TableId(subject.table.id.db, "absent")).value is None


class TestClock:
    def test_every_answer_carries_the_servers_time(self, subject: Subject) -> None:
        store, table = subject.store, subject.table
        put_due(subject, 1)
        answers = [
            store.discover(),
            store.describe(table.id),
            store.describe_all([table.id]),
            store.scan(table, 10),
            store.claim(table, []),
            store.fetch(table, TEXT, {1: Delivery(0, 0)}, 1000),
            store.lookup(table, [1]),
            store.release(table, []),
            store.move_dead_letters(table, [], table.id),
            store.purge(table, 0, 1),
        ]
        times = [answer.now_ns for answer in answers]
        assert times == sorted(times)
        assert 1_700_000_000 * S < times[0] <= times[-1] <= subject.now_ns()


class TestClosing:
    def test_a_closed_store_answers_with_an_error(self, subject: Subject) -> None:
        subject.store.close()
        with pytest.raises(StoreError, match="closed"):
            subject.store.scan(subject.table, 1)
