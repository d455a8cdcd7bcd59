"""SEMAPHORES: a message is claimed only with a place of each semaphore that it needs, alike in both stores."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from engine.catalog.own_tables import SEMAPHORES_TABLE
from engine.model import NS_PER_S, Group, GroupScan, Key, LimitsLeft, Return, RowFormat, TableId, Wanted
from engine.queue_table import SEMAPHORES, GroupColumn, IdKind, QueueTable
from engine.store.limits.semaphores import NAMES_MAX
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress
from engine.store.port import StoreError
from tests.support.memory_store import Row
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import (
    EVEN,
    GROWING,
    AnySubject,
    MemorySubject,
    ServerSubject,
    counted_store,
    kept_subjects,
    mysql_store,
)
from tests.support.waiting import eventually

S = NS_PER_S
WAIT_NS = 30 * S
SLOT = 37


@pytest.fixture(scope="module")
def on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    """Makes one table for each kind of server, and empties it for each test. The table `others` of an earlier test may
    hold places, so it is dropped."""
    subjects = kept_subjects(server_pool, lambda server, _: ServerSubject(server, columns=GROWING, semaphores=True))
    find = next(subjects)

    def find_alone(kind: str) -> ServerSubject:
        subject = find(kind)
        subject.execute("DROP TABLE IF EXISTS others")
        return subject

    yield find_alone
    next(subjects, None)  # Its end.


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> ServerSubject:
    return on_server(request.param)


@pytest.fixture(params=["memory", *SERVERS])
def subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    return MemorySubject(semaphores=True) if kind == "memory" else on_server(kind)


def put(subject: AnySubject, needs: str | None, *keys: Key) -> None:
    subject.put(*(Row(key, time_next_ns=subject.now_ns() - S, group=(needs,)) for key in keys))


Needs = str | None


def claim(
    subject: AnySubject, *messages: tuple[Key, Needs], wait_ns: int = WAIT_NS, rows: bool = False
) -> tuple[list[Key], LimitsLeft]:
    """Claim these messages, which needed this when they were scanned; returns those that were claimed, and what is
    left."""
    wanted = [Wanted(key, 0, wait_ns, group=(needs,)) for key, needs in messages]
    row_format = RowFormat(("id",), binary=False) if rows else None
    answer = subject.store.claim_and_fetch(subject.table, wanted, row_format, 1_000_000, SLOT).value
    assert answer.limits is not None
    assert answer.rows is None or set(answer.rows.rows) == {claim.key for claim in answer.claims}
    return [claim.key for claim in answer.claims], answer.limits


def of(needs: Needs, *keys: Key) -> list[tuple[Key, Needs]]:
    return [(key, needs) for key in keys]


def holders(left: LimitsLeft) -> dict[str, tuple[int | None, set[Key]]]:
    return {found.name: (found.capacity, {key for _, key in found.holders}) for found in left.semaphores}


@pytest.mark.parametrize("rows", [False, True])
def test_as_many_are_claimed_as_have_places(subject: AnySubject, rows: bool) -> None:
    subject.semaphore("a", 2)
    subject.semaphore("b", 1)
    put(subject, "a", 1, 2, 3)
    put(subject, "b", 11, 12)
    claimed, left = claim(subject, *of("a", 3, 1), (11, "b"), *of("a", 2), (12, "b"), rows=rows)
    assert claimed == [3, 1, 11]
    assert left.left_out == (2, 12)
    assert holders(left) == {"a": (2, {3, 1}), "b": (1, {11})}


def test_a_semaphore_with_a_place_left_shows_no_holders(subject: AnySubject) -> None:
    """There may be thousands."""
    subject.semaphore("a", 3)
    put(subject, "a", 1, 2)
    assert holders(claim(subject, *of("a", 1, 2))[1]) == {"a": (3, set())}


def test_a_message_takes_all_that_it_needs_or_nothing(subject: AnySubject) -> None:
    subject.semaphore("a", 2)
    subject.semaphore("b", 1)
    put(subject, "a,b", 1, 2)
    put(subject, "b, a", 3)
    put(subject, "a", 4, 5)
    claimed, left = claim(subject, *of("a,b", 1, 2), (3, "b, a"), *of("a", 4, 5))
    assert claimed == [1, 4]
    assert left.left_out == (2, 3, 5)


@pytest.mark.parametrize("needs", [None, "", " , "])
def test_messages_that_need_nothing_wait_for_nothing(subject: AnySubject, needs: Needs) -> None:
    put(subject, needs, 1, 2)
    wanted = [Wanted(key, 0, WAIT_NS, group=(needs,)) for key in (1, 2)]
    answer = subject.store.claim_and_fetch(subject.table, wanted, None, 0, SLOT).value
    assert [claim.key for claim in answer.claims] == [1, 2]
    assert answer.limits is None


def test_messages_in_flight_hold_places_until_they_are_acknowledged(subject: AnySubject) -> None:
    subject.semaphore("a", 1)
    put(subject, "a", 1, 2)
    put(subject, " a ,", 3)
    claim(subject, (1, "a"))
    assert claim(subject, (2, "a"), (3, " a ,"))[0] == []
    subject.acknowledge(1)
    assert claim(subject, (3, " a ,"), (2, "a"))[0] == [3]


@pytest.mark.parametrize("sent", [True, False])
def test_a_released_message_frees_its_places(subject: AnySubject, sent: bool) -> None:
    subject.semaphore("a", 1)
    put(subject, "a", 1, 2)
    (made,) = subject.store.claim(subject.table, [Wanted(1, 0, WAIT_NS, group=("a",))]).value
    subject.store.release(subject.table, [Return(made.key, made.epoch, made.deadline_ns, made.due_ns, sent)])
    assert claim(subject, (2, "a"))[0] == [2]


def test_a_wait_that_is_over_frees_its_places(subject: AnySubject) -> None:
    subject.semaphore("a", 1)
    put(subject, "a", 1, 2)
    assert claim(subject, (1, "a"), (2, "a"), wait_ns=S // 20)[0] == [1]
    held = subject.row(1)
    assert held is not None
    subject.wait_until((held.time_next_ns or 0) + S // 10)
    assert claim(subject, (2, "a"))[0] == [2]


def test_a_semaphore_that_does_not_exist_holds_its_messages_back(subject: AnySubject) -> None:
    subject.semaphore("a", 1)
    put(subject, "a,b", 1)
    claimed, left = claim(subject, (1, "a,b"))
    assert claimed == []
    assert left.left_out == (1,)
    assert holders(left) == {"a": (1, set()), "b": (None, set())}
    subject.semaphore("b", 1)
    assert claim(subject, (1, "a,b"))[0] == [1]


def test_another_capacity_holds_at_once(subject: AnySubject) -> None:
    subject.semaphore("a", 2)
    put(subject, "a", 1, 2, 3, 4)
    claim(subject, *of("a", 1, 2))
    subject.semaphore("a", 1)
    assert claim(subject, (3, "a"))[0] == []
    subject.semaphore("a", 3)
    assert claim(subject, *of("a", 3, 4))[0] == [3]


def test_names_differ_in_case_and_accents(subject: AnySubject) -> None:
    """Whatever the collation of the column is."""
    for name in ("a", "A", "é"):
        subject.semaphore(name, 1)
    put(subject, "a", 1)
    put(subject, "A", 2)
    put(subject, "é,A", 3)
    put(subject, "é", 4)
    assert claim(subject, (1, "a"), (2, "A"), (3, "é,A"), (4, "é"))[0] == [1, 2, 4]


def test_a_message_that_needs_something_else_by_now_is_missed(subject: AnySubject) -> None:
    """It was changed since it was scanned, and the locks are others."""
    for name in "abc":
        subject.semaphore(name, 5)
    put(subject, "a,c", 1)
    put(subject, "b", 2)
    claimed, left = claim(subject, (1, "a"), (2, "b"))
    assert claimed == [2]
    assert left.left_out == ()


@pytest.mark.parametrize("scanned", [None, "a,b"])
def test_a_message_that_needs_more_or_less_than_it_did_is_missed(subject: AnySubject, scanned: Needs) -> None:
    """Even where the locks would suffice: it has to be known by what it needs now."""
    for name in "ab":
        subject.semaphore(name, 5)
    put(subject, "a", 1)
    wanted = [Wanted(1, 0, WAIT_NS, group=(scanned,))]
    answer = subject.store.claim_and_fetch(subject.table, wanted, None, 0, SLOT).value
    assert answer.claims == ()
    assert answer.limits is None or answer.limits.left_out == ()


def test_messages_that_need_many_semaphores_are_left_to_later_claims(server: ServerSubject) -> None:
    names = [f"{number:02}" for number in range(NAMES_MAX + 4)]
    for name in names:
        server.semaphore(name, 1)
    for key, name in enumerate(names, 1):
        put(server, name, key)
    put(server, ",".join(names), 1000)
    messages = [(key, name) for key, name in enumerate(names, 1)]
    claimed, left = claim(server, *messages)
    assert claimed == [key for key, _ in messages[:NAMES_MAX]]
    assert left.left_out == tuple(key for key, _ in messages[NAMES_MAX:])
    assert {found.name for found in left.semaphores} == set(names[:NAMES_MAX])
    assert claim(server, (1000, ",".join(names)))[0] == []
    server.acknowledge(*claimed)
    assert claim(server, (1000, ",".join(names)))[0] == [1000]


def test_messages_of_streams_with_a_condition_count_too(subject: AnySubject) -> None:
    subject.semaphore("a", 2)
    put(subject, "a", 1, 2, 4)
    wanted = [Wanted(key, 0, WAIT_NS, EVEN, ("a",)) for key in (2, 4)]
    wanted[1:1] = [Wanted(1, 0, WAIT_NS, group=("a",))]
    answer = subject.store.claim_and_fetch(subject.table, wanted, None, 0, SLOT).value
    assert [claim.key for claim in answer.claims] == [2, 1]
    assert answer.limits is not None
    assert answer.limits.left_out == (4,)


# Groups besides: GROUP_BY = (tenant).


@pytest.fixture(scope="module")
def grouped_on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    columns = GROWING + ", tenant VARCHAR(20)"
    yield from kept_subjects(
        server_pool, lambda server, _: ServerSubject(server, columns=columns, groups=("tenant",), semaphores=True)
    )


@pytest.fixture(params=["memory", *SERVERS])
def grouped(request: pytest.FixtureRequest, grouped_on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    if kind == "memory":
        return MemorySubject(groups=[GroupColumn("tenant", IdKind.TEXT)], semaphores=True)
    return grouped_on_server(kind)


def test_messages_of_all_groups_share_semaphores(grouped: AnySubject) -> None:
    grouped.semaphore("a", 2)
    groups: dict[Key, Group] = {1: ("acme", "a"), 2: ("beta", "a"), 3: (None, "a"), 4: ("a", None), 5: ("beta", "")}
    grouped.put(*(Row(key, time_next_ns=0, group=group) for key, group in groups.items()))
    scanned = {entry.key: entry.group for entry in grouped.store.scan(grouped.table, 10).value.entries}
    assert scanned == groups
    wanted = [Wanted(key, 0, WAIT_NS, group=group) for key, group in groups.items()]
    answer = grouped.store.claim_and_fetch(grouped.table, wanted, None, 0, SLOT).value
    assert [(claim.key, claim.group) for claim in answer.claims] == [(key, groups[key]) for key in (1, 2, 4, 5)]
    assert answer.limits is not None
    assert answer.limits.left_out == (3,)
    assert [set(left.holders) for left in answer.limits.semaphores] == [{(None, 1), (None, 2)}]


@pytest.mark.parametrize(("scanned", "claimed"), [(("beta", "a"), [1]), (("acme", "b"), [])])
def test_a_message_of_another_group_by_now_is_claimed_by_what_it_needs(
    grouped: AnySubject, scanned: Group, claimed: Sequence[Key]
) -> None:
    for name in "ab":
        grouped.semaphore(name, 1)
    grouped.put(Row(1, time_next_ns=0, group=("acme", "a")))
    answer = grouped.store.claim_and_fetch(grouped.table, [Wanted(1, 0, WAIT_NS, group=scanned)], None, 0, SLOT).value
    assert [claim.key for claim in answer.claims] == claimed


def test_the_messages_of_each_group_with_the_same_needs_are_read_together(grouped: AnySubject) -> None:
    groups: list[Group] = [(tenant, needs) for tenant in (None, "acme") for needs in (None, "a", "b")]
    for at, group in enumerate(groups):
        grouped.put(*(Row(10 * at + number, time_next_ns=number, group=group) for number in (1, 2, 3)))
    request = GroupScan(0, ((groups[4], 2),), None, groups[2], 1, 100)
    found = grouped.store.scan_groups(grouped.table, request).value
    assert sorted(int(str(entry.key)) for entry in found.entries) == [31, 41, 41, 42, 51]


# Other queues of the database.


def other_queue(subject: AnySubject) -> QueueTable:
    """Another queue with semaphores. On a server it is created this moment, unknown to the store."""
    if isinstance(subject, MemorySubject):
        other = replace(subject.table, id=TableId(subject.table.id.db, "others"))
        subject.store.add_table(other)
        return other
    subject.execute("DROP TABLE IF EXISTS others")
    subject.execute(f"CREATE TABLE others {subject.definition}")
    store = mysql_store(subject.server)
    described = store.describe(TableId(subject.database, "others")).value
    store.close()
    assert isinstance(described, QueueTable)
    return described


def put_there(subject: AnySubject, other: QueueTable, needs: Needs, *keys: Key) -> None:
    for key in keys:
        if isinstance(subject, MemorySubject):
            subject.store.put(other.id, Row(key, time_next_ns=subject.now_ns() - S, group=(needs,)))
        else:
            subject.execute("INSERT INTO others (id, time_next, needs) VALUES (%s, 0, %s)", key, needs)


def claim_there(subject: AnySubject, other: QueueTable, needs: Needs, *keys: Key) -> list[Key]:
    """By another proxy."""
    wanted = [Wanted(key, 0, WAIT_NS, group=(needs,)) for key in keys]
    if isinstance(subject, MemorySubject):
        return [claim.key for claim in subject.store.claim(other, wanted, SLOT + 1).value]
    store = mysql_store(subject.server)
    claimed = [claim.key for claim in store.claim(other, wanted, SLOT + 1).value]
    store.close()
    return claimed


def test_queues_of_a_database_share_semaphores(subject: AnySubject) -> None:
    subject.semaphore("a", 2)
    put(subject, "a", 1, 2, 3)
    claim(subject, (1, "a"))
    other = other_queue(subject)
    put_there(subject, other, "a", 1, 2)
    assert claim_there(subject, other, "a", 1, 2) == [1]
    claimed, left = claim(subject, (2, "a"))
    assert claimed == []
    (found,) = left.semaphores
    assert set(found.holders) == {(None, 1), (other.id, 1)}


def test_a_queue_that_is_dropped_holds_nothing_more(server: ServerSubject) -> None:
    server.semaphore("a", 1)
    put(server, "a", 1, 2)
    other = other_queue(server)
    put_there(server, other, "a", 1)
    assert claim_there(server, other, "a", 1) == [1]
    assert claim(server, (1, "a"))[0] == []
    server.execute("DROP TABLE others")
    assert claim(server, (1, "a"))[0] == [1]


def test_a_claim_that_has_to_describe_the_queues_keeps_no_lock_and_begins_again(
    server: ServerSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To describe them takes transactions of its own, which would commit the claim's one: others could then claim
    what it has chosen, and both would deliver it."""
    server.semaphore("a", 5)
    put(server, "a", 1, 2)
    claimed_meanwhile: list[Key] = []
    store = mysql_store(server.server)
    describe = store._semaphores.describe

    def describe_slowly(*args: Any) -> Any:
        described: Any = describe(*args)
        claimed_meanwhile.extend(claim(server, (1, "a"))[0])
        return described

    monkeypatch.setattr(store._semaphores, "describe", describe_slowly)
    try:
        claimed = store.claim(server.table, [Wanted(key, 0, WAIT_NS, group=("a",)) for key in (1, 2)], SLOT).value
    finally:
        store.close()
    assert claimed_meanwhile == [1]
    assert [found.key for found in claimed] == [2]


def test_while_a_queue_cannot_be_counted_no_place_is_given(server: ServerSubject) -> None:
    server.semaphore("a", 5)
    put(server, "a", 1)
    put(server, None, 2)
    other = other_queue(server)
    server.execute("ALTER TABLE others DROP INDEX by_lease_and_group")
    claimed, left = claim(server, (1, "a"), (2, None))
    assert claimed == [2]
    assert left.problem is not None
    assert str(other.id) in left.problem
    server.execute("ALTER TABLE others ADD INDEX (time_acked, lease, time_next, needs)")
    assert claim(server, (1, "a"))[0] == [1]
    server.execute("DROP TABLE others")


# The server.


def test_without_a_table_of_semaphores_none_exists(server: ServerSubject) -> None:
    put(server, "a", 1)
    server.execute(f"RENAME TABLE {SEMAPHORES} TO elsewhere")
    try:
        claimed, left = claim(server, (1, "a"))
    finally:
        server.execute(f"RENAME TABLE elsewhere TO {SEMAPHORES}")
    assert claimed == []
    assert left.left_out == (1,)
    assert holders(left) == {"a": (None, set())}
    server.semaphore("a", 1)
    # A statement has failed, so the connection was closed. Its lock is held until the server notices.
    eventually(lambda: claim(server, (1, "a"))[0] == [1])


def test_an_account_that_may_not_read_the_semaphores_delivers_nothing_and_the_problem_is_the_grant(
    server: ServerSubject,
) -> None:
    account = f"e_{server.database[-12:]}"
    server.execute(f"CREATE USER {account}@localhost")
    server.execute(
        f"GRANT SELECT, INSERT, UPDATE, DELETE, TRIGGER ON {server.database}.messages TO {account}@localhost"
    )
    store = MySQLStore(BackendAddress(server.server.host, server.server.port, account))
    try:
        denied = store.describe(server.table.id).value
        server.execute(f"GRANT SELECT, UPDATE ON {server.database}.{SEMAPHORES} TO {account}@localhost")
        store.discover()
        granted = store.describe(server.table.id).value
    finally:
        store.close()
        server.execute(f"DROP USER {account}@localhost")
    assert isinstance(denied, QueueTable)
    assert denied.policy.paused
    (warning,) = denied.warnings
    assert warning.startswith("nothing is delivered: ")
    assert f"GRANT SELECT, UPDATE ON `{server.database}`.`{SEMAPHORES}`" in warning
    assert isinstance(granted, QueueTable)
    assert not granted.policy.paused


def test_a_table_of_semaphores_that_is_locked_for_a_moment_is_not_absent(server: ServerSubject) -> None:
    with server.connect() as other, other.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {SEMAPHORES} WRITE")
        with pytest.raises(StoreError, match="Lock wait timeout"):
            server.store.describe(server.table.id)
    assert server.store.describe(server.table.id).value == server.table


def test_a_table_of_semaphores_of_a_later_version_is_not_used(server: ServerSubject) -> None:
    server.execute(f"ALTER TABLE {SEMAPHORES} COMMENT '{SEMAPHORES_TABLE.comment(99)}'")
    try:
        found = server.store.describe(server.table.id).value
    finally:
        server.execute(f"ALTER TABLE {SEMAPHORES} COMMENT '{SEMAPHORES_TABLE.comment()}'")
    assert isinstance(found, QueueTable)
    assert found.policy.paused
    (warning,) = found.warnings
    assert "use a newer ackstream" in warning


def test_semaphores_cost_no_further_packet(server: ServerSubject) -> None:
    server.semaphore("a", 2)
    server.semaphore("b", 2)
    put(server, "b,a", 1, 2, 3)
    with counted_store(server) as (store, sent):
        wanted = [Wanted(key, 0, WAIT_NS, group=("b,a",)) for key in (1, 2, 3)]
        store.claim_and_fetch(server.table, wanted[:1], RowFormat(("id",), binary=False), 1_000)
        sent.clear()
        store.claim_and_fetch(server.table, wanted[1:], RowFormat(("id",), binary=False), 1_000)
    assert len(sent) == 2
    text = b" ".join(sent).decode("latin-1")
    steps = ["START TRANSACTION", "ackstream_semaphores", "information_schema", "LOCATE", "SKIP LOCKED"]
    steps += ["UPDATE /*", "COMMIT"]
    places = [text.index(step) for step in steps]
    assert places == sorted(places)


def test_a_claim_without_needs_has_no_further_statement(server: ServerSubject) -> None:
    put(server, None, 1)
    with counted_store(server) as (store, sent):
        store.claim_and_fetch(server.table, [Wanted(1, 0, WAIT_NS, group=(None,))], None, 1_000)
    text = b" ".join(sent).decode("latin-1")
    assert "ackstream limit" not in text
    assert SEMAPHORES not in text


def test_claims_of_other_semaphores_do_not_wait(server: ServerSubject) -> None:
    for name in ("a", "b"):
        server.semaphore(name, 1)
        put(server, name, ord(name))
    with server.connect(autocommit=False) as other, other.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {SEMAPHORES} WHERE name = 'a' FOR UPDATE")
        assert claim(server, (ord("b"), "b"))[0] == [ord("b")]
        with pytest.raises(StoreError, match="Lock wait timeout"):
            claim(server, (ord("a"), "a"))
        other.rollback()
    assert claim(server, (ord("a"), "a"))[0] == [ord("a")]


def test_random_pairs_of_semaphores_never_exceed_a_capacity_and_never_deadlock(server: ServerSubject) -> None:
    """Five stores as those of five proxies, and two queues. An observer counts all the time."""
    for name in NAMES:
        server.semaphore(name, CAPACITY)
    other = other_queue(server)
    rng = random.Random(5)
    pairs = [",".join(rng.sample(NAMES, 2)) for _ in range(200)]
    for key, needs in enumerate(pairs, 1):
        put(server, needs, key)
        put_there(server, other, needs, key)
    over = threading.Event()
    with ThreadPoolExecutor(6) as pool:
        observer = pool.submit(most_holders, server, over)
        workers = [pool.submit(claim_and_release, server, [server.table, other], pairs, seed) for seed in range(5)]
        try:
            claimed = sum(worker.result() for worker in workers)
        finally:
            over.set()
        assert observer.result() <= CAPACITY
    server.execute("DROP TABLE others")
    assert claimed > 100


NAMES = "abcde"
CAPACITY = 2


def claim_and_release(server: ServerSubject, tables: Sequence[QueueTable], pairs: Sequence[str], seed: int) -> int:
    """Claim some messages at a time, and release them; returns how many were claimed."""
    store, rng, count = mysql_store(server.server), random.Random(seed), 0
    for _ in range(25):
        table = rng.choice(tables)
        keys: list[Key] = [*rng.sample(range(1, len(pairs) + 1), 6)]
        found = store.lookup(table, keys).value
        wanted = [Wanted(key, found[key].epoch, WAIT_NS, group=(pairs[int(str(key)) - 1],)) for key in keys]
        claims = store.claim(table, wanted).value
        count += len(claims)
        store.release(
            table, [Return(made.key, made.epoch, made.deadline_ns, made.due_ns, sent=True) for made in claims]
        )
    store.close()
    return count


def most_holders(server: ServerSubject, over: threading.Event) -> int:
    """The greatest number of holders of a semaphore that was seen."""
    held = "SELECT COUNT(*) FROM {} WHERE time_acked IS NULL AND lease = time_next AND FIND_IN_SET('{}', needs)"
    counts = ", ".join(f"({held.format('messages', name)}) + ({held.format('others', name)})" for name in NAMES)
    most = 0
    with server.connect() as connection, connection.cursor() as cursor:
        while not over.is_set():
            cursor.execute(f"SELECT {counts}")
            most = max([most, *(int(count) for count in cursor.fetchone() or ())])
    return most
