"""GROUP_RATE: each claim takes what the claims of all proxies have left of the rate of each message group."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from engine.model import NS_PER_S, Group, Key, LimitsLeft, Wanted
from engine.queue_table import GroupColumn, IdKind, QueueTable
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress
from engine.store.port import StoreError
from proxy.embedded.server import EmbeddedServer
from tests.support.memory_store import Row
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import (
    GROWING,
    AnySubject,
    MemorySubject,
    ServerSubject,
    counted_store,
    kept_subjects,
    mysql_store,
)

S = NS_PER_S
RATE = 5
WAIT_NS = 30 * S
COLUMNS = (GroupColumn("tenant", IdKind.TEXT), GroupColumn("region", IdKind.INTEGER))
COLUMN_TEXT = GROWING + ", tenant VARCHAR(20), region INT"
ACME: Group = ("acme", 7)


@pytest.fixture(scope="module")
def on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    """Makes one table for each kind of server, and empties it for each test."""
    yield from kept_subjects(
        server_pool,
        lambda server, _: ServerSubject(server, columns=COLUMN_TEXT, groups=("tenant", "region"), group_rate=RATE),
    )


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> ServerSubject:
    return on_server(request.param)


@pytest.fixture(params=["memory", *SERVERS])
def subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    return MemorySubject(groups=COLUMNS, group_rate=RATE) if kind == "memory" else on_server(kind)


def put(subject: AnySubject, keys: Sequence[Key], group: Group = ACME) -> None:
    subject.put(*(Row(key, time_next_ns=subject.now_ns() - S, group=group) for key in keys))


def claim(subject: AnySubject, *keys: Key) -> tuple[list[Key], LimitsLeft]:
    """Claim these messages; returns those that were claimed, and what the limits leave."""
    answer = subject.store.claim_and_fetch(subject.table, [Wanted(key, 0, WAIT_NS) for key in keys], None, 0).value
    assert answer.limits is not None
    return [claim.key for claim in answer.claims], answer.limits


def waits(left: LimitsLeft) -> dict[Group, int]:
    """When the rates of groups allow their next messages."""
    return dict(left.paced_groups)


def test_of_each_group_a_burst_is_claimed_and_the_claim_shows_when_it_goes_on(subject: AnySubject) -> None:
    put(subject, [1, 2, 3])
    put(subject, [11, 12], ("acme", 8))
    put(subject, [21, 22], (None, 7))
    before_ns = subject.now_ns()
    claimed, left = claim(subject, 3, 1, 21, 11, 2, 12, 22)
    assert claimed == [3, 21, 11]
    assert left.left_out == (1, 2, 12, 22)
    assert left.places is None
    assert waits(left).keys() == {ACME, ("acme", 8), (None, 7)}
    for until_ns in waits(left).values():
        assert before_ns + S // RATE <= until_ns <= subject.now_ns() + S // RATE


def test_a_group_that_is_full_and_has_used_up_its_rate_shows_both() -> None:
    subject = MemorySubject(groups=COLUMNS, group_rate=RATE, group_limit=1)
    put(subject, [1, 2])
    claim(subject, 1)
    claimed, left = claim(subject, 2)
    assert claimed == []
    assert [set(group.holders) for group in left.groups] == [{1}]
    assert waits(left).keys() == {ACME}


def test_the_next_one_can_be_claimed_when_the_rate_allows_it(subject: AnySubject) -> None:
    put(subject, [1, 2, 3])
    _, left = claim(subject, 1)
    assert claim(subject, 2)[0] == []
    subject.wait_until(waits(left)[ACME])
    assert claim(subject, 2, 3)[0] == [2]


def test_a_group_that_has_used_up_its_rate_keeps_no_other_back(subject: AnySubject) -> None:
    put(subject, [1, 2])
    put(subject, [11, 12], (None, None))
    claim(subject, 1)
    claimed, left = claim(subject, 2, 11)
    assert claimed == [11]
    assert left.left_out == (2,)


def test_an_acknowledgement_gives_nothing_back(subject: AnySubject) -> None:
    put(subject, [1, 2])
    claim(subject, 1)
    subject.acknowledge(1)
    assert claim(subject, 2)[0] == []


def test_a_claim_that_takes_nothing_costs_nothing(subject: AnySubject) -> None:
    put(subject, [1])
    assert claim(subject, 7, 8)[0] == []
    assert claim(subject, 1)[0] == [1]


def test_a_message_that_another_session_has_locked_costs_nothing(subject: AnySubject) -> None:
    put(subject, [1, 2])
    with subject.locked(1):
        claimed, left = claim(subject, 1, 2)
    assert claimed == [2]
    assert left.left_out == ()


def test_a_state_that_no_claim_can_have_left_delays_nothing_and_is_replaced(subject: AnySubject) -> None:
    """The server's clock was set back by an hour."""
    put(subject, [1, 2, 3])
    claim(subject, 1)
    later_ns = subject.now_ns() + 3600 * S
    if isinstance(subject, MemorySubject):
        subject.store.group_rates[subject.table.id, ACME] = later_ns
    else:
        subject.execute("UPDATE ackstream_group_rates SET full_ns = %s", later_ns)
    claimed, left = claim(subject, 2, 3)
    assert claimed == [2]
    subject.wait_until(waits(left)[ACME])
    assert claim(subject, 3)[0] == [3]


def test_values_that_the_server_treats_as_equal_share_the_rate(server: ServerSubject) -> None:
    put(server, [1], ("acme", 7))
    put(server, [2], ("ACME", 7))
    assert claim(server, 1)[0] == [1]
    claimed, left = claim(server, 2)
    assert claimed == []
    assert waits(left).keys() == {("ACME", 7)}


TEXTS = ("a", "A", "a ", "a  ", "ä", "á", "b", "ss", "ß", "", " ", "\t", "a\0", "z" * 64)


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize(
    "column",
    [
        "VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
        "VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_520_ci",
        "VARCHAR(64) CHARACTER SET utf8mb4",
        "CHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "VARCHAR(64) CHARACTER SET latin1",
        "VARCHAR(64) CHARACTER SET latin1 COLLATE latin1_german2_ci",
        "VARCHAR(64) CHARACTER SET utf16",
        "VARBINARY(64)",
    ],
)
def test_two_texts_are_one_group_if_and_only_if_the_column_treats_them_as_equal(
    server_pool: ServerPool, kind: Any, column: str
) -> None:
    subject = ServerSubject(
        server_pool.get(kind), columns=f"{GROWING}, tenant {column}", groups=("tenant",), group_rate=0.001
    )
    try:
        for key, text in enumerate(TEXTS, 1):
            subject.execute("INSERT INTO messages (id, tenant) VALUES (%s, %s)", key, text)
        with subject.connection.cursor() as cursor:
            cursor.execute(
                "SELECT b.id FROM messages AS a JOIN messages AS b ON a.tenant = b.tenant AND a.id < b.id GROUP BY b.id"
            )
            repeated = {row[0] for row in cursor.fetchall()}
        claimed, _ = claim(subject, *range(1, len(TEXTS) + 1))
        assert set(claimed) == {*range(1, len(TEXTS) + 1)} - repeated
    finally:
        subject.close()


def test_several_stores_together_keep_the_rate_of_each_group(server: ServerSubject) -> None:
    """By the server's clock, which decided each claim."""
    put(server, range(1, 301, 2))
    put(server, range(2, 301, 2), ("acme", 8))
    stores = [mysql_store(server.server) for _ in range(3)]
    ends: dict[int, list[int]] = defaultdict(list)
    begun_ns = server.now_ns()

    def work(number: int, store: MySQLStore) -> None:
        for key in range(number * 100 + 1, number * 100 + 101, 2):
            made = store.claim(server.table, [Wanted(key, 0, WAIT_NS), Wanted(key + 1, 0, WAIT_NS)]).value
            for claim in made:
                ends[int(str(claim.key)) % 2].append(claim.deadline_ns)

    threads = [threading.Thread(target=work, args=(number, store)) for number, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert ends.keys() == {0, 1}
    for of_group in ends.values():
        times_ns = sorted(end_ns - WAIT_NS for end_ns in of_group)
        assert len(times_ns) <= 1 + (times_ns[-1] - begun_ns) * RATE / S * 1.05 + 1


def test_it_costs_no_further_packet_and_one_write_a_claim(server: ServerSubject) -> None:
    put(server, [1])
    put(server, [11], ("acme", 8))
    with counted_store(server) as (store, sent):
        assert len(store.claim(server.table, [Wanted(1, 0, WAIT_NS), Wanted(11, 0, WAIT_NS)]).value) == 2
    assert len(sent) == 2
    text = b" ".join(sent).decode("latin-1")
    assert text.count("ackstream_group_rates") == 2
    steps = ["START TRANSACTION", "ackstream_limits", "SKIP LOCKED", "SHA2", "UPDATE /*", "INSERT INTO", "COMMIT"]
    places = [text.index(step) for step in steps]
    assert places == sorted(places)


def test_a_claim_that_was_rolled_back_has_used_nothing(server: ServerSubject) -> None:
    put(server, [1, 2])
    server.execute("CREATE TRIGGER refuse BEFORE UPDATE ON messages FOR EACH ROW SIGNAL SQLSTATE '45000'")
    with pytest.raises(Exception, match="user-defined"):
        claim(server, 1)
    server.execute("DROP TRIGGER refuse")
    assert claim(server, 1)[0] == [1]


def test_a_purge_deletes_the_rows_of_groups_that_have_their_full_rate_and_no_others(server: ServerSubject) -> None:
    for number in range(30):
        put(server, [number + 1], ("acme", number))
    claim(server, *range(1, 31))
    server.execute("UPDATE ackstream_group_rates SET full_ns = full_ns - 3600000000000 ORDER BY group_hash LIMIT 27")
    for _ in range(9):
        server.store.purge(server.table, 0, 5)
    with server.connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM ackstream_group_rates")
        assert cursor.fetchone() == (3,)


class TestPrivileges:
    def test_without_the_table_nothing_is_delivered_and_the_remedy_is_named(self, server: ServerSubject) -> None:
        server.execute("RENAME TABLE ackstream_group_rates TO away")
        found = server.store.describe(server.table.id).value
        server.execute("RENAME TABLE away TO ackstream_group_rates")
        assert isinstance(found, QueueTable)
        assert found.policy.paused
        assert "GROUP_RATE = 5 makes the table" in " ".join(found.warnings)
        assert server.store.describe(server.table.id).value == server.table

    def test_a_table_that_is_locked_for_a_moment_is_not_absent(self, server: ServerSubject) -> None:
        with server.connect() as other, other.cursor() as cursor:
            cursor.execute("LOCK TABLES ackstream_group_rates WRITE")
            with pytest.raises(StoreError, match="Lock wait timeout"):
                server.store.describe(server.table.id)
        assert server.store.describe(server.table.id).value == server.table

    def test_a_server_that_is_read_only_for_a_moment_changes_nothing(self, private_server: EmbeddedServer) -> None:
        subject = ServerSubject(private_server, columns=COLUMN_TEXT, groups=("tenant", "region"), group_rate=RATE)
        subject.execute("CREATE USER engine")
        subject.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO engine")
        store = MySQLStore(BackendAddress(private_server.host, private_server.port, "engine"))
        before = store.describe(subject.table.id).value
        subject.execute("SET GLOBAL read_only = 1")
        assert store.describe(subject.table.id).value == before
        assert isinstance(before, QueueTable)
        assert not before.policy.paused
        store.close()
        subject.close()
