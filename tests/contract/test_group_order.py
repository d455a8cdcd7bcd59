"""GROUP_ORDER = STRICT: a claim takes the first message of a group, and one at a time, alike in both stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import pytest

from engine.model import NS_PER_S, Entry, Group, Key, LimitsLeft, Return, RowFormat, Wanted
from engine.packets import text_values
from engine.queue_table import GroupColumn, IdKind
from engine.store.connection import StoreConnection
from engine.store.queries import TableStatements
from tests.support.memory_store import Row
from tests.support.servers import SERVERS, ServerName, ServerPool
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


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> ServerSubject:
    return on_server(request.param)


@pytest.fixture(params=["memory", *SERVERS])
def subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    return MemorySubject(groups=COLUMNS, strict=True) if kind == "memory" else on_server(kind)


@pytest.fixture(scope="module")
def runs_on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    """The same with runs of five messages."""
    columns, groups = GROWING + ", tenant VARCHAR(20), region INT", ("tenant", "region")
    yield from kept_subjects(
        server_pool,
        lambda server, _: ServerSubject(server, columns=columns, groups=groups, strict=True, group_limit=5),
    )


@pytest.fixture(params=SERVERS)
def run_server(request: pytest.FixtureRequest, runs_on_server: Callable[[str], ServerSubject]) -> ServerSubject:
    return runs_on_server(request.param)


@pytest.fixture(params=["memory", *SERVERS])
def runs(request: pytest.FixtureRequest, runs_on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    return MemorySubject(groups=COLUMNS, strict=True, group_limit=5) if kind == "memory" else runs_on_server(kind)


ACME: Group = ("acme", 7)
NO_EPOCHS: Mapping[Key, int] = MappingProxyType({})


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
    return {group.group: group.first for group in left.groups if group.first is not None}


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


@pytest.mark.parametrize("group", [ACME, (None, 7), (None, None)], ids=str)
def test_a_smaller_id_that_is_committed_late_waits_for_the_message_in_flight(subject: AnySubject, group: Group) -> None:
    put(subject, [5], group)
    assert claim(subject, 5)[0] == [5]
    put(subject, [3], group)
    claimed, left = claim(subject, 3)
    assert claimed == []
    assert [set(found.holders) for found in left.groups] == [{5}]
    subject.acknowledge(5)
    assert claim(subject, 3)[0] == [3]


def test_a_message_in_flight_of_an_equal_value_keeps_a_smaller_id_back(server: ServerSubject) -> None:
    put(server, [5], ("ACME", 7))
    assert claim(server, 5)[0] == [5]
    put(server, [3], ("acme", 7))
    claimed, left = claim(server, 3)
    assert claimed == []
    assert [set(found.holders) for found in left.groups] == [{5}]


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
    steps = ["START TRANSACTION", "ackstream_limits", "SKIP LOCKED", "ackstream order", "UPDATE /*", "COMMIT"]
    places = [text.index(step) for step in steps]
    assert places == sorted(places)


# Runs: GROUP_LIMIT = 5 besides.


def claim_run(
    subject: AnySubject, *keys: Key, group: Group = ACME, epochs: Mapping[Key, int] = NO_EPOCHS
) -> tuple[list[Key], LimitsLeft]:
    """Claim these messages, which were scanned as those of one group."""
    wanted = [Wanted(key, epochs.get(key, 0), WAIT_NS, group=group) for key in keys]
    answer = subject.store.claim_and_fetch(subject.table, wanted, None, 0, SLOT).value
    assert answer.limits is not None
    return [claim.key for claim in answer.claims], answer.limits


def test_a_run_is_as_many_of_the_first_messages_as_the_limit_allows(runs: AnySubject) -> None:
    put(runs, range(1, 10))
    claimed, left = claim_run(runs, *range(1, 10))
    assert claimed == [1, 2, 3, 4, 5]
    assert left.left_out == (6, 7, 8, 9)
    assert claim_run(runs, 6, 7)[0] == []


@pytest.mark.parametrize("settled", [1, 3, 5])
def test_the_next_run_begins_when_all_of_the_one_before_is_over(runs: AnySubject, settled: int) -> None:
    put(runs, range(1, 10))
    claim_run(runs, *range(1, 6))
    runs.acknowledge(*(key for key in range(1, 6) if key != settled))
    claimed, left = claim_run(runs, 6, 7, 8)
    assert claimed == []
    assert [set(group.holders) for group in left.groups] == [{settled}]
    runs.acknowledge(settled)
    assert claim_run(runs, 6, 7, 8)[0] == [6, 7, 8]


@pytest.mark.parametrize(
    ("there", "claimed"), [([3], []), ([1, 4], [1]), ([1, 2, 4], [1, 2]), ([1, 2, 3, 5], [1, 2]), ([2, 3], [])]
)
def test_a_run_has_no_gaps(runs: AnySubject, there: Sequence[Key], claimed: Sequence[Key]) -> None:
    """It is compared with the order at its first, second, fourth … message and at its last one."""
    put(runs, range(1, 7))
    found, left = claim_run(runs, *there)
    assert found == claimed
    assert left.left_out == tuple(there[len(claimed) :])
    assert first(left) == ({} if claimed else {ACME: 1})


def test_messages_that_are_not_wanted_in_order_are_no_run(runs: AnySubject) -> None:
    put(runs, range(1, 6))
    assert claim_run(runs, 2, 1)[0] == []
    assert claim_run(runs, 1, 3, 2)[0] == [1]


@pytest.mark.parametrize("locked", [1, 2, 3])
def test_a_message_that_another_session_has_locked_ends_a_run(runs: AnySubject, locked: int) -> None:
    put(runs, range(1, 5))
    with runs.locked(locked):
        claimed, left = claim_run(runs, 1, 2, 3, 4)
    assert claimed == list(range(1, locked))
    assert first(left) == ({} if claimed else {ACME: 1})


def test_a_message_that_is_scheduled_ends_a_run(runs: AnySubject) -> None:
    put(runs, [1, 2])
    runs.put(Row(3, time_next_ns=runs.now_ns() + 60 * S, group=ACME))
    put(runs, [4])
    assert claim_run(runs, 1, 2, 3, 4)[0] == [1, 2]


def test_a_message_of_another_group_by_now_ends_a_run(runs: AnySubject) -> None:
    put(runs, [1, 3])
    put(runs, [2], ("acme", 8))
    assert claim_run(runs, 1, 2, 3)[0] == [1]


def test_a_message_that_was_claimed_and_released_since_ends_a_run(runs: AnySubject) -> None:
    put(runs, [1, 3])
    runs.put(Row(2, epoch=1, time_next_ns=runs.now_ns() - S, group=ACME))
    assert claim_run(runs, 1, 2, 3)[0] == [1]
    runs.acknowledge(1)
    assert claim_run(runs, 2, 3, epochs={2: 1})[0] == [2, 3]


def test_runs_of_several_groups_are_claimed_together(runs: AnySubject) -> None:
    put(runs, range(1, 4))
    put(runs, range(4, 6), (None, 1))
    put(runs, range(6, 10), ("beta", 1))
    groups: list[Group] = [ACME, ACME, ACME, (None, 1), (None, 1), ("beta", 1), ("beta", 1)]
    wanted = [Wanted(key, 0, WAIT_NS, group=group) for key, group in zip([1, 2, 3, 4, 5, 7, 8], groups, strict=True)]
    answer = runs.store.claim_and_fetch(runs.table, wanted, None, 0, SLOT).value
    assert [claim.key for claim in answer.claims] == [1, 2, 3, 4, 5]
    assert answer.limits is not None
    assert first(answer.limits) == {("beta", 1): 6}


def test_a_run_of_values_that_the_server_treats_as_equal_is_one_order(run_server: ServerSubject) -> None:
    put(run_server, [1, 3], ("acme", 7))
    put(run_server, [2, 4], ("ACME", 7))
    wanted = [Wanted(key, 0, WAIT_NS, group=("acme" if key % 2 else "ACME", 7)) for key in (1, 3, 2, 4)]
    answer = run_server.store.claim_and_fetch(run_server.table, wanted, None, 0, SLOT).value
    assert [claim.key for claim in answer.claims] == [1]


def test_runs_cost_no_further_packet(run_server: ServerSubject) -> None:
    put(run_server, range(1, 5))
    with counted_store(run_server) as (store, sent):
        wanted = [Wanted(key, 0, WAIT_NS, group=ACME) for key in range(1, 5)]
        claims = store.claim_and_fetch(run_server.table, wanted, RowFormat(("id",), binary=False), 1_000).value.claims
    assert len(claims) == 4
    assert len(sent) == 2


@pytest.mark.parametrize("server_name", SERVERS)
def test_ids_that_are_no_numbers_are_in_the_order_of_the_server(
    server_pool: ServerPool, server_name: ServerName
) -> None:
    """Python has b behind B, and the collation of the table does not."""
    columns = GROWING.replace("id BIGINT NOT NULL AUTO_INCREMENT", "id VARCHAR(20) NOT NULL") + ", tenant VARCHAR(20)"
    subject = ServerSubject(
        server_pool.get(server_name), columns=columns, groups=("tenant",), strict=True, group_limit=5
    )
    try:
        group: Group = ("acme",)
        subject.put(*(Row(key, time_next_ns=0, group=group) for key in ("a", "B", "c", "D")))
        assert claim_run(subject, "B", "D", "a", "c", group=group)[0] == []
        assert claim_run(subject, "a", "c", "B", group=group)[0] == ["a"]
        subject.acknowledge("a")
        assert claim_run(subject, "B", "c", "D", group=group)[0] == ["B", "c", "D"]
    finally:
        subject.close()


def reads(connection: StoreConnection) -> int:
    """The index entries and rows that the session has read."""
    (found,) = connection.run(["SHOW SESSION STATUS LIKE 'Handler_read%'"])
    return sum(int(value or 0) for _, value in map(text_values, found.rows))


def found_instead(server: ServerSubject, keys: list[int], place: int) -> tuple[list[tuple[bytes | None, ...]], int]:
    """Which of these messages are not in this place of their group, and which ones are; and what was read."""
    sql = TableStatements(server.table)
    with counted_store(server) as (store, _), store._pool.connection() as connection:
        before = reads(connection)
        (found,) = connection.run(sql.for_ids("group_heads", keys, count=len(keys), place=place, **sql.order_words))
        return sorted(tuple(text_values(row)[:2]) for row in found.rows), reads(connection) - before


def test_the_first_message_of_a_large_group_is_found_by_one_entry_of_the_index(server: ServerSubject) -> None:
    put(server, range(1, 2_001))
    put(server, range(3_001, 3_051), (None, 1))
    found, read = found_instead(server, [1, 2_000, 3_001, 3_050], 0)
    assert found == [(b"2000", b"1"), (b"3050", b"3001")]
    assert read < 100


def test_the_last_message_of_a_run_is_found_by_as_many_entries_as_it_has(server: ServerSubject) -> None:
    put(server, range(1, 2_001))
    found, read = found_instead(server, [2_000], 99)
    assert found == [(b"2000", b"100")]
    assert read < 130


def test_a_place_behind_the_last_message_of_a_group_is_nobody_s(server: ServerSubject) -> None:
    put(server, range(1, 11))
    assert found_instead(server, [10], 10)[0] == [(b"10", None)]
