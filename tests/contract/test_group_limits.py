"""GROUP_LIMIT: each claim counts the messages in flight of each message group, of all proxies, alike in both stores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from engine.model import NS_PER_S, Group, Key, LimitsLeft, Return, RowFormat, Wanted
from engine.queue_table import GroupColumn, IdKind
from engine.store.mysql import MySQLStore
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

S = NS_PER_S
MOST = 2
WAIT_NS = 30 * S
SLOT = 37
COLUMNS = (GroupColumn("tenant", IdKind.TEXT), GroupColumn("region", IdKind.INTEGER))


@pytest.fixture(scope="module")
def on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    """Makes one table for each kind of server, and empties it for each test."""
    columns = GROWING + ", tenant VARCHAR(20), region INT"
    yield from kept_subjects(
        server_pool,
        lambda server, _: ServerSubject(server, columns=columns, groups=("tenant", "region"), group_limit=MOST),
    )


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> ServerSubject:
    return on_server(request.param)


@pytest.fixture(params=["memory", *SERVERS])
def subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    return MemorySubject(groups=COLUMNS, group_limit=MOST) if kind == "memory" else on_server(kind)


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


def holders(left: LimitsLeft) -> dict[Group, set[Key]]:
    return {group.group: set(group.holders) for group in left.groups}


@pytest.mark.parametrize("rows", [False, True])
def test_of_each_group_as_many_are_claimed_as_have_places(subject: AnySubject, rows: bool) -> None:
    put(subject, range(1, 6))
    put(subject, range(11, 14), ("acme", 8))
    put(subject, [21, 22, 23], (None, 7))
    claimed, left = claim(subject, 5, 1, 21, 2, 11, 12, 22, 13, 23, 3, rows=rows)
    assert claimed == [5, 1, 21, 11, 12, 22]
    assert left.left_out == (2, 13, 23, 3)
    assert left.places is None


def test_null_is_a_group_of_its_own(subject: AnySubject) -> None:
    put(subject, [1, 2, 3], (None, None))
    put(subject, [4, 5, 6], (None, 7))
    assert claim(subject, 1, 2, 3, 4, 5, 6)[0] == [1, 2, 4, 5]


def test_messages_in_flight_hold_places_until_they_are_acknowledged(subject: AnySubject) -> None:
    put(subject, range(1, 6))
    claim(subject, 1, 2)
    assert claim(subject, 3)[0] == []
    subject.acknowledge(2)
    assert claim(subject, 3, 4)[0] == [3]


@pytest.mark.parametrize("sent", [True, False])
def test_a_released_message_frees_its_place(subject: AnySubject, sent: bool) -> None:
    put(subject, range(1, 5))
    made, _ = subject.store.claim(subject.table, [Wanted(key, 0, WAIT_NS) for key in (1, 2)]).value
    subject.store.release(subject.table, [Return(made.key, made.epoch, made.deadline_ns, made.due_ns, sent)])
    assert claim(subject, 3, 4)[0] == [3]


def test_a_wait_that_is_over_frees_its_place(subject: AnySubject) -> None:
    put(subject, range(1, 5))
    assert claim(subject, 1, 2, 3, wait_ns=S // 20)[0] == [1, 2]
    claimed = [row for key in (1, 2) if (row := subject.row(key)) is not None]
    subject.wait_until(max(row.time_next_ns or 0 for row in claimed) + S // 10)
    assert claim(subject, 3, 4)[0] == [3, 4]


def test_a_claim_reports_who_holds_the_places_of_full_groups(subject: AnySubject) -> None:
    put(subject, range(1, 5))
    put(subject, [11, 12, 13], ("acme", 8))
    claim(subject, 1)
    _, left = claim(subject, 2, 3, 11)
    assert holders(left) == {ACME: {1}}
    _, left = claim(subject, 3, 12)
    assert holders(left) == {ACME: {1, 2}, ("acme", 8): {11}}
    row = subject.row(1)
    assert row is not None
    assert left.groups[0].holders[1] == row.time_next_ns


def test_a_claim_in_which_no_group_is_full_reports_none(subject: AnySubject) -> None:
    put(subject, [1, 2])
    put(subject, [11], ("acme", 8))
    assert claim(subject, 1, 11)[1].groups == ()


def test_a_message_that_another_session_has_locked_is_missed_and_takes_no_place(subject: AnySubject) -> None:
    put(subject, [1, 2, 3])
    with subject.locked(1):
        claimed, left = claim(subject, 1, 2, 3)
    assert claimed == [2, 3]
    assert left.left_out == ()


def test_messages_of_streams_with_a_condition_count_too(subject: AnySubject) -> None:
    put(subject, range(1, 6))
    wanted = [Wanted(key, 0, WAIT_NS, EVEN) for key in (2, 4)]
    wanted[1:1] = [Wanted(1, 0, WAIT_NS)]
    answer = subject.store.claim_and_fetch(subject.table, wanted, None, 0, SLOT).value
    assert [claim.key for claim in answer.claims] == [2, 1]
    assert answer.limits is not None
    assert answer.limits.left_out == (4,)


def test_values_that_the_server_treats_as_equal_share_the_places(server: ServerSubject) -> None:
    put(server, [1, 2, 3], ("acme", 7))
    put(server, [4, 5], ("ACME", 7))
    assert claim(server, 1)[0] == [1]
    claimed, left = claim(server, 4, 2, 5)
    assert claimed == [4]
    assert holders(left) == {("ACME", 7): {1}, ("acme", 7): {1}}


def test_the_limit_costs_no_further_packet(server: ServerSubject) -> None:
    put(server, [1, 2, 3])
    with counted_store(server) as (store, sent):
        store.claim_and_fetch(
            server.table, [Wanted(key, 0, WAIT_NS) for key in (1, 2, 3)], RowFormat(("id",), binary=False), 1_000
        )
    assert len(sent) == 2
    text = b" ".join(sent).decode("latin-1")
    steps = ["START TRANSACTION", "ackstream_limits", "SKIP LOCKED", "DENSE_RANK", "UPDATE /*", "COMMIT"]
    places = [text.index(step) for step in steps]
    assert places == sorted(places)


def test_many_claims_at_once_never_exceed_the_limit_of_a_group(server: ServerSubject) -> None:
    """Five stores as those of five proxies, each on its own connections. An observer counts all the time."""
    for first in (1, 101, 201):
        put(server, range(first, first + 60), ("acme", first))
    over, most = threading.Event(), 0
    stores = [mysql_store(server.server) for _ in range(5)]

    def work(number: int, store: MySQLStore) -> None:
        for at in range(12):
            wanted = [Wanted(first + at * 5 + number, 0, WAIT_NS) for first in (1, 101, 201)]
            returns = [
                Return(claimed.key, claimed.epoch, claimed.deadline_ns, claimed.due_ns, sent=True)
                for claimed in store.claim(server.table, wanted).value
            ]
            store.release(server.table, returns)

    def observe() -> None:
        nonlocal most
        with server.connect() as connection, connection.cursor() as cursor:
            while not over.is_set():
                cursor.execute(
                    "SELECT COUNT(*) AS held FROM messages WHERE time_acked IS NULL AND lease = time_next"
                    " GROUP BY tenant, region ORDER BY held DESC LIMIT 1"
                )
                most = max([most, *(row[0] for row in cursor.fetchall())])

    threads = [threading.Thread(target=work, args=(number, store)) for number, store in enumerate(stores)]
    observer = threading.Thread(target=observe)
    observer.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    observer.join()
    for store in stores:
        store.close()
    assert 0 < most <= MOST


def test_without_the_lock_nothing_is_claimed(server: ServerSubject) -> None:

    put(server, [1])
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM ackstream_limits FOR UPDATE")
        with pytest.raises(StoreError, match="Lock wait timeout"):
            claim(server, 1)
    assert claim(server, 1) == ([1], LimitsLeft((), None))
