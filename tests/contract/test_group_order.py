"""GROUP_ORDER = STRICT: a claim takes the first message of a group, and one at a time, alike in both stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from engine.model import NS_PER_S, Entry, Group, GroupColumn, IdKind, Key, LimitsLeft, Return, RowFormat, Wanted
from engine.packets import text_values
from engine.store.connection import StoreConnection
from engine.store.memory import Row
from engine.store.queries import TableStatements
from tests.support.servers import ServerPool
from tests.support.stores import GROWING, AnySubject, MemorySubject, ServerSubject, counted_store, kept_subjects

S = NS_PER_S
WAIT_NS = 30 * S
SLOT = 37
COLUMNS = (GroupColumn("tenant", IdKind.TEXT), GroupColumn("region", IdKind.INTEGER))


@pytest.fixture(scope="module")
def on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    """Makes one table for each kind of server, and empties it for each test."""
    columns, groups = GROWING + ", tenant VARCHAR(20), region INT", ("tenant", "region")
    yield from kept_subjects(
        server_pool, lambda server, _: ServerSubject(server, columns=columns, groups=groups, strict=True)
    )


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> ServerSubject:
    return on_server(request.param)


@pytest.fixture(params=["memory", "mysql", "mariadb"])
def subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    return MemorySubject(groups=COLUMNS, strict=True) if kind == "memory" else on_server(kind)


ACME: Group = ("acme", 7)


def put(subject: AnySubject, keys: Sequence[Key], group: Group = ACME) -> None:
    subject.put(*(Row(key, time_next_ns=subject.now_ns() - S, group=group) for key in keys))


def claim(subject: AnySubject, *keys: Key, wait_ns: int = WAIT_NS, rows: bool = False) -> tuple[list[Key], LimitsLeft]:
    """Claim these messages; returns those that were claimed, and what the limits leave."""
    wanted = [Wanted(key, 0, wait_ns) for key in keys]
    row_format = RowFormat(("id",), binary=False) if rows else None
    answer = subject.store.claim_and_fetch(subject.table, wanted, row_format, 1_000_000, SLOT).value
    assert answer.limits is not None
    assert answer.rows is None or set(answer.rows.rows) == {claim.key for claim in answer.claims}
    return [claim.key for claim in answer.claims], answer.limits


def first(left: LimitsLeft) -> dict[Group, Key]:
    return {group.group: group.head.key for group in left.groups if group.head is not None}


@pytest.mark.parametrize("rows", [False, True])
def test_only_the_first_message_of_each_group_is_claimed(subject: AnySubject, rows: bool) -> None:
    put(subject, range(1, 5))
    put(subject, range(11, 13), ("acme", 8))
    put(subject, [21, 22], (None, 7))
    claimed, left = claim(subject, 3, 11, 1, 21, 2, 12, 22, rows=rows)
    assert claimed == [11, 1, 21]
    assert left.left_out == (3, 2, 12, 22)


def test_a_later_message_waits_for_the_one_in_flight_and_then_for_its_turn(subject: AnySubject) -> None:
    put(subject, range(1, 4))
    assert claim(subject, 1)[0] == [1]
    claimed, left = claim(subject, 2, 3)
    assert claimed == []
    assert [set(group.holders) for group in left.groups] == [{1}]
    subject.acknowledge(1)
    claimed, left = claim(subject, 3)
    assert claimed == []
    assert first(left) == {ACME: 2}
    assert claim(subject, 3, 2)[0] == [2]


def test_the_message_that_has_to_be_first_is_reported_as_its_row_shows_it(subject: AnySubject) -> None:
    now_ns = subject.now_ns()
    subject.put(Row(1, priority=5, epoch=3, time_next_ns=now_ns + 60 * S, group=ACME))
    put(subject, [2])
    claimed, left = claim(subject, 2)
    assert claimed == []
    assert [group.head for group in left.groups] == [Entry(1, 3, 5, now_ns + 60 * S, ACME)]


@pytest.mark.parametrize("time_next_s", [-1, 60])
def test_an_unacknowledged_message_keeps_later_ones_back_whenever_it_is_due(
    subject: AnySubject, time_next_s: int
) -> None:
    subject.put(Row(1, time_next_ns=subject.now_ns() + time_next_s * S, group=ACME))
    put(subject, [2])
    assert claim(subject, 2)[0] == []
    subject.acknowledge(1)
    assert claim(subject, 2)[0] == [2]


def test_a_smaller_id_that_is_committed_late_waits_for_the_message_in_flight(subject: AnySubject) -> None:
    put(subject, [5])
    assert claim(subject, 5)[0] == [5]
    put(subject, [3])
    assert claim(subject, 3)[0] == []
    subject.acknowledge(5)
    assert claim(subject, 3)[0] == [3]


def test_a_message_that_was_given_back_is_next_again(subject: AnySubject) -> None:
    put(subject, [1, 2])
    (made,) = subject.store.claim(subject.table, [Wanted(1, 0, WAIT_NS)]).value
    subject.store.release(subject.table, [Return(made.key, made.epoch, made.deadline_ns, made.due_ns, sent=False)])
    assert claim(subject, 2, 1)[0] == [1]


def test_the_first_message_may_be_locked_by_another_session(subject: AnySubject) -> None:
    put(subject, [1, 2])
    with subject.locked(1):
        claimed, left = claim(subject, 1, 2)
    assert claimed == []
    assert left.left_out == (2,)
    assert first(left) == {ACME: 1}


def test_values_that_the_server_treats_as_equal_are_one_order(server: ServerSubject) -> None:
    put(server, [1], ("ACME", 7))
    put(server, [2], ("acme", 7))
    claimed, left = claim(server, 2)
    assert claimed == []
    assert first(left) == {ACME: 1}


def test_strict_order_costs_no_further_packet_and_is_decided_behind_the_locks(server: ServerSubject) -> None:
    put(server, [1, 2, 3])
    with counted_store(server) as (store, sent):
        store.claim_and_fetch(
            server.table, [Wanted(key, 0, WAIT_NS) for key in (1, 2, 3)], RowFormat(("id",), binary=False), 1_000
        )
    assert len(sent) == 2
    text = b" ".join(sent).decode("latin-1")
    steps = ["GET_LOCK", "START TRANSACTION", "SKIP LOCKED", "ackstream order", "UPDATE /*", "COMMIT", "RELEASE_LOCK"]
    places = [text.index(step) for step in steps]
    assert places == sorted(places)


def reads(connection: StoreConnection) -> int:
    """The index entries and rows that the session has read."""
    (found,) = connection.run(["SHOW SESSION STATUS LIKE 'Handler_read%'"])
    return sum(int(value or 0) for _, value in map(text_values, found.rows))


def test_the_first_message_of_a_large_group_is_found_by_one_entry_of_the_index(server: ServerSubject) -> None:
    put(server, range(1, 2_001))
    put(server, range(3_001, 3_051), (None, 1))
    sql = TableStatements(server.table)
    with counted_store(server) as (store, _), store._pool.connection() as connection:
        before = reads(connection)
        (found,) = connection.run(sql.for_ids("group_heads", [1_999, 2_000, 3_050], **sql.order_words))
        assert reads(connection) - before < 100
    assert sorted(text_values(row)[1] or b"" for row in found.rows) == [b"1", b"1", b"3001"]
