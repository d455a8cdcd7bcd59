"""ACKs that the engine carries out: what they do, what their clients see, and which are left to the sessions.

The engine leaves ACKs to the sessions for a second after a batch has failed or has taken long, as it may on a busy
machine. So a round is repeated until the metric shows that it has carried out all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
from mysql_mimic.types import Capabilities, Commands

from engine.packets import ERR
from proxy.embedded.server import EmbeddedServer
from proxy.wire.framing import Packet
from proxy.wire.packets import parse_err, parse_ok
from proxy.wire.params import make_query
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import PATIENT, create_queue, rows, run, user
from tests.support.raw import ALL, BASE, RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

CLIENTS = 8
ROUNDS_MAX = 2_000
COM_QUERY, COM_STMT_EXECUTE = int(Commands.COM_QUERY), int(Commands.COM_STMT_EXECUTE)
FOUND_ROWS = int(Capabilities.CLIENT_FOUND_ROWS)
MODERN = ALL & ~int(Capabilities.CLIENT_NO_SCHEMA)
"""MySQL warns of the other one in each answer to an UPDATE."""


@dataclass
class Acks:
    """Clients of one proxy, a queue `m`, and a connection to the server itself."""

    proxy: RunningProxy
    database: str
    direct: Any
    clients: list[RawClient]
    ids: Iterator[int]

    @property
    def gathered(self) -> int:
        return int(self.proxy.metric("acks_gathered_total"))

    def messages(self, count: int) -> list[int]:
        """New messages, and their ids."""
        ids = list(itertools.islice(self.ids, count))
        with self.direct.cursor() as cursor:
            cursor.executemany("INSERT INTO m (id, payload) VALUES (%s, 'x')", [[number] for number in ids])
        return ids

    def together(self, statements: Sequence[str], clients: Sequence[RawClient] = ()) -> list[list[Packet]]:
        """Send a statement each, then read all answers."""
        clients = clients or self.clients
        for client, statement in zip(clients, statements, strict=True):
            client.send(make_query(statement.encode(), attributes=client.attributes))
        return [client.answer(COM_QUERY) for client in clients]

    def until_gathered(
        self,
        counts: Sequence[int],
        statements: Callable[[Sequence[int]], Sequence[str]],
        prepare: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> list[list[Packet]]:
        """The answers of a round of which the engine has carried out all ACKs; each round has these counts."""
        for _ in range(ROUNDS_MAX):
            ids = self.messages(CLIENTS)
            prepare(ids)
            before = self.gathered
            answers = self.together(statements(ids))
            assert sorted(map(affected, answers)) == sorted(counts)
            if self.gathered - before == CLIENTS:
                return answers
        raise AssertionError(f"in none of {ROUNDS_MAX} rounds all ACKs were carried out by the engine")

    def never_gathered(self) -> None:
        """ACKs of all clients affect a message each, and the engine carries out none of them."""
        before = self.gathered
        for _ in range(3):
            answers = self.together([f"ACK m WHERE id = {number}" for number in self.messages(CLIENTS)])
            assert list(map(affected, answers)) == [1] * CLIENTS
        assert self.gathered == before


def affected(answer: Sequence[Packet]) -> int:
    (packet,) = answer
    if packet.payload[0] == ERR:
        raise parse_err(packet.payload)
    return parse_ok(packet.payload).head.affected_rows


def value(client: RawClient, statement: str) -> bytes:
    """The only value that a SELECT returns."""
    *_, row, _end = client.query(statement)
    return row.payload[1:]


def simple(ids: Sequence[int]) -> list[str]:
    return [f"ACK m WHERE id = {number}" for number in ids]


@contextlib.contextmanager
def acks_on(
    proxy: RunningProxy, database: str, capabilities: int = BASE, own: str = "payload TEXT", user: str = "root"
) -> Iterator[Acks]:
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(connect(proxy.server, database=database))
        if not rows(direct, "SHOW TABLES LIKE 'm'"):
            with proxy.connect(database=database) as creator:
                create_queue(creator, "m", own, **PATIENT)
        clients = [stack.enter_context(RawClient(proxy, capabilities, database, user)) for _ in range(CLIENTS)]
        yield Acks(proxy, database, direct, clients, itertools.count(1))


@pytest.fixture
def acks(proxy: RunningProxy, database: str) -> Iterator[Acks]:
    """A queue that can be gathered from."""
    with acks_on(proxy, database) as acks:
        acks.until_gathered([1] * CLIENTS, simple)
        yield acks


@pytest.mark.parametrize("capabilities", [BASE, BASE | FOUND_ROWS, MODERN], ids=["plain", "found rows", "all"])
def test_answers_are_byte_for_byte_those_of_the_server(proxy: RunningProxy, database: str, capabilities: int) -> None:
    with acks_on(proxy, database, capabilities) as acks, RawClient(proxy, capabilities, database) as own:
        (number,) = acks.messages(1)
        own.query("BEGIN")  # So the session carries them out.
        one = own.query(f"ACK m WHERE id = {number}")
        none = own.query(f"ACK m WHERE id = {number}")
        own.query("COMMIT")
        assert (affected(one), affected(none)) == (1, 0)
        expected = {(packet.seq, packet.payload.replace(b"\x03", b"\x02")) for (packet,) in (one, none)}
        twice = acks.until_gathered([1, 0] * (CLIENTS // 2), lambda ids: simple([*ids[: CLIENTS // 2]] * 2))
        assert {(packet.seq, packet.payload) for (packet,) in twice} == expected


def test_a_message_that_two_clients_acknowledge_is_counted_once(acks: Acks) -> None:
    acks.until_gathered([1, 0, 0, 0, 1, 0, 0, 0], lambda ids: simple([*ids[:2]] * 4))


@pytest.mark.parametrize("capabilities", [BASE, MODERN], ids=["plain", "all"])
@pytest.mark.parametrize("quoted", [False, True])
def test_executions_of_prepared_acks_are_gathered(
    proxy: RunningProxy, database: str, capabilities: int, *, quoted: bool
) -> None:
    """Their answers are those of the server."""
    with acks_on(proxy, database, capabilities) as acks, RawClient(proxy, capabilities, database) as own:
        written = "ACK m WHERE id IN (?) AND epoch = ?"
        number = own.prepare(written)
        (message,) = acks.messages(1)
        one, none = own.execute(number, message, 0), own.execute(number, message, 0)
        assert (affected(one), affected(none)) == (1, 0)
        numbers = [client.prepare(written) for client in acks.clients]
        half = CLIENTS // 2
        answers: list[list[Packet]] = []
        for _ in range(ROUNDS_MAX):
            before = acks.gathered
            for ids in (acks.messages(CLIENTS), [*acks.messages(half)] * 2):
                for client, statement, key in zip(acks.clients, numbers, ids, strict=True):
                    client.send(client.execution(statement, str(key) if quoted else key, 0))
                answers = [client.answer(COM_STMT_EXECUTE) for client in acks.clients]
            assert sorted(map(affected, answers)) == [0] * half + [1] * half
            assert {tuple(answer) for answer in answers} == {tuple(one), tuple(none)}
            if acks.gathered - before == 2 * CLIENTS:
                break
        else:
            raise AssertionError("never gathered")
        assert rows(acks.direct, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(0,)]
        (message,) = acks.messages(1)
        client, statement = acks.clients[0], numbers[0]
        assert affected(client.execute(statement, message, None)) == 0
        assert affected(client.execute(statement, None, 0)) == 0
        assert affected(client.execute(statement, message, 7)) == 0
        assert affected(client.execute(statement, message, 0)) == 1


def test_the_epoch_fences_in_a_batch_as_well(acks: Acks) -> None:
    def deliver(ids: Sequence[int]) -> None:
        run(acks.direct, f"UPDATE m SET epoch = 2 WHERE id IN ({', '.join(map(str, ids))})")

    def fenced(ids: Sequence[int]) -> list[str]:
        return [f"ACK m WHERE id = {number} AND epoch = {1 + place % 2}" for place, number in enumerate(ids)]

    acks.until_gathered([0, 1] * (CLIENTS // 2), fenced, deliver)
    remaining = rows(acks.direct, "SELECT COUNT(*), MIN(id % 2), MAX(id % 2) FROM m WHERE time_acked IS NULL")
    assert remaining[0][0] % (CLIENTS // 2) == 0


def test_all_are_committed_when_their_clients_are_answered(acks: Acks) -> None:
    acks.until_gathered([1] * CLIENTS, simple)
    assert rows(acks.direct, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL OR time_next IS NOT NULL") == [(0,)]
    near = "ABS(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000 - time_acked) < 120e9"
    assert rows(acks.direct, f"SELECT COUNT(*) FROM m WHERE NOT {near}") == [(0,)]


def test_one_locked_message_delays_only_its_own_client(acks: Acks) -> None:
    with connect(acks.proxy.server, database=acks.database, autocommit=False) as other:
        for _ in range(ROUNDS_MAX):
            ids = acks.messages(CLIENTS)
            assert rows(other, f"SELECT id FROM m WHERE id = {ids[0]} FOR UPDATE")
            before = acks.gathered
            for client, statement in zip(acks.clients, simple(ids), strict=True):
                client.send(make_query(statement.encode(), attributes=client.attributes))
            assert [affected(client.answer(COM_QUERY)) for client in acks.clients[1:]] == [1] * (CLIENTS - 1)
            other.rollback()
            assert affected(acks.clients[0].answer(COM_QUERY)) == 1
            if acks.gathered > before:
                return
    raise AssertionError("never gathered")


def test_an_ack_of_several_messages_is_carried_out_as_one(acks: Acks) -> None:
    def in_pairs(ids: Sequence[int]) -> list[str]:
        return [f"ACK m WHERE id IN ({number}, {-number}, {number})" for number in ids]

    acks.until_gathered([1] * CLIENTS, in_pairs)
    for _ in range(ROUNDS_MAX):
        listed = ", ".join(map(str, ids := acks.messages(100)))
        before = acks.gathered
        assert affected(acks.clients[0].query(f"ACK m WHERE id IN ({listed})")) == len(ids)
        if acks.gathered == before + 1:
            return
    raise AssertionError("never carried out by the engine")


def test_a_session_does_not_notice_its_acks(acks: Acks) -> None:
    """ROW_COUNT() is that of the statement before, or of the proof of the right, which changes no row."""

    def select(_: Sequence[int]) -> None:
        for client in acks.clients:
            client.query("SELECT -'a'")

    acks.until_gathered([1] * CLIENTS, simple, select)
    assert not {b"1"} & {value(client, "SELECT ROW_COUNT()") for client in acks.clients}


def test_a_session_may_want_its_acks_to_be_its_own_statements(acks: Acks) -> None:
    """A script of the mysql command line that looks at ROW_COUNT(), for instance."""
    for client in acks.clients:
        assert client.query("SET @ackstream_acks = 'session'")[-1].payload[0] != ERR
    acks.never_gathered()
    assert {value(client, "SELECT ROW_COUNT()") for client in acks.clients} == {b"1"}
    for client in acks.clients:
        client.query("set @ackstream_acks := 'engine';")
    acks.until_gathered([1] * CLIENTS, simple)


FORWARDED = ["BEGIN", "SET autocommit = 0", "LOCK TABLES m WRITE"]


@pytest.mark.parametrize("statement", FORWARDED)
def test_a_session_that_would_notice_carries_out_its_acks_itself(acks: Acks, statement: str) -> None:
    before = acks.gathered
    ids = acks.messages(CLIENTS)
    for client, text in zip(acks.clients, simple(ids), strict=True):
        assert client.query(statement)[-1].payload[0] != ERR
        assert affected(client.query(text)) == 1
        client.query("COMMIT")
        client.query("UNLOCK TABLES")
        client.query("SET autocommit = 1")
    assert acks.gathered == before
    acks.until_gathered([1] * CLIENTS, simple)


CHANGES = [
    "SET timestamp = 5",
    "SET SESSION sql_log_bin = 0",
    "SELECT COUNT(*) FROM m",
    "CREATE TEMPORARY TABLE other (id INT)",
    "INSERT INTO m (id, payload) SELECT 1000000 + CONNECTION_ID(), 'another'",
    "SET NAMES latin1, sql_mode = 'ANSI_QUOTES', time_zone = '+05:00'",
]


@pytest.mark.parametrize("statement", CHANGES)
def test_whatever_else_a_session_runs_the_engine_carries_out_its_acks(acks: Acks, statement: str) -> None:
    for client in acks.clients:
        assert client.query(statement)[-1].payload[0] != ERR
    acks.until_gathered([1] * CLIENTS, simple)


def test_an_ack_concerns_the_queue_also_behind_a_temporary_table_of_its_name(acks: Acks) -> None:
    """While the proof of its right holds. Without one, the session acknowledges what is in that table."""
    answers: list[list[Packet]] = []
    for _ in range(ROUNDS_MAX):
        for client in acks.clients:
            client.query("CREATE TEMPORARY TABLE m (id INT PRIMARY KEY, time_next BIGINT, time_acked BIGINT)")
        before = acks.gathered
        answers = acks.together(simple(acks.messages(CLIENTS)))
        if acks.gathered - before == CLIENTS:
            break
        for client in acks.clients:  # On a busy machine the proofs may have been too old.
            client.query("DROP TEMPORARY TABLE m")
        acks.until_gathered([1] * CLIENTS, simple)
    assert list(map(affected, answers)) == [1] * CLIENTS
    (number,), client = acks.messages(1), acks.clients[0]
    client.query("SET @forget = 1")
    assert affected(client.query(f"ACK m WHERE id = {number}")) == 0
    assert rows(acks.direct, f"SELECT COUNT(*) FROM m WHERE id = {number} AND time_acked IS NULL") == [(1,)]


def test_session_trackers_are_served_by_the_session_itself(proxy: RunningProxy, database: str) -> None:
    mysql = proxy.server.flavour == "mysql"
    variable = "session_track_gtids = OWN_GTID" if mysql else "session_track_system_variables = 'last_gtid'"
    with acks_on(proxy, database, MODERN) as acks:
        for client in acks.clients:
            assert client.query(f"SET SESSION {variable}")[-1].payload[0] != ERR
        acks.never_gathered()


@pytest.mark.parametrize(
    "own",
    ["at DATETIME ON UPDATE CURRENT_TIMESTAMP, payload TEXT", "payload TEXT, n INT, CHECK (n > 0)"],
    ids=["on update", "check"],
)
def test_a_table_that_computes_something_is_left_to_its_clients(proxy: RunningProxy, database: str, own: str) -> None:
    with acks_on(proxy, database, own=own) as acks:
        acks.never_gathered()


def test_a_table_that_gets_a_trigger_is_left_to_its_clients(acks: Acks) -> None:
    acks.until_gathered([1] * CLIENTS, simple)
    with acks.proxy.connect(database=acks.database) as admin:
        run(admin, "CREATE TABLE who (name VARCHAR(100))")
        run(admin, "CREATE TRIGGER t AFTER UPDATE ON m FOR EACH ROW INSERT INTO who VALUES (CONNECTION_ID())")
    acks.never_gathered()
    connections = {str(client.greeting.connection_id) for client in acks.clients}
    assert {name for (name,) in rows(acks.direct, "SELECT name FROM who")} <= connections


def test_a_server_that_became_read_only_refuses_each_client(private_proxy: RunningProxy) -> None:
    with connect(private_proxy.server) as root:
        run(root, "CREATE DATABASE shop")
        run(root, "CREATE USER app@localhost")
        run(root, "GRANT ALL ON shop.* TO app@localhost")
        with acks_on(private_proxy, "shop", user="app") as acks:
            acks.until_gathered([1] * CLIENTS, simple)
            ids = acks.messages(CLIENTS)
            run(root, "SET GLOBAL read_only = 1")
            answers = acks.together(simple(ids))
            assert {parse_err(packet.payload).code for (packet,) in answers} == {1290}
            assert rows(acks.direct, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(CLIENTS,)]


def test_a_right_that_was_revoked_counts_within_seconds(acks: Acks) -> None:
    with (
        user(acks.direct, acks.database, "SELECT, UPDATE") as name,
        acks_on(acks.proxy, acks.database, user=name) as theirs,
    ):
        theirs.ids = acks.ids
        theirs.until_gathered([1] * CLIENTS, simple)
        run(acks.direct, f"REVOKE UPDATE ON {acks.database}.m FROM {name}@localhost")

        def refused() -> bool:
            answers = theirs.together(simple(theirs.messages(CLIENTS)))
            return all(packet.payload[0] == ERR and parse_err(packet.payload).code == 1142 for (packet,) in answers)

        assert eventually(refused, timeout_s=10)


def test_a_client_without_the_right_is_never_gathered(acks: Acks) -> None:
    """It stands beside others that have the right, on the same table and at the same time."""
    with (
        user(acks.direct, acks.database, "SELECT, UPDATE (payload)") as name,
        RawClient(acks.proxy, BASE, acks.database, name) as app,
    ):
        for _ in range(5):
            ids = acks.messages(CLIENTS + 1)
            *answers, (refusal,) = acks.together(simple(ids), [*acks.clients, app])
            assert list(map(affected, answers)) == [1] * CLIENTS
            assert parse_err(refusal.payload).code in (1142, 1143)
    assert rows(acks.direct, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(5,)]


def test_an_engine_that_may_not_see_triggers_leaves_all_to_the_clients(
    private_server: EmbeddedServer, tmp_path: Path
) -> None:
    with connect(private_server) as root:
        run(root, "CREATE DATABASE shop")
        run(root, "CREATE USER engine@localhost")
        run(root, "GRANT SELECT, UPDATE, DELETE ON shop.* TO engine@localhost")
        with running_proxy(private_server, tmp_path / "log", account="engine") as proxy, acks_on(proxy, "shop") as acks:
            acks.never_gathered()


def test_credits_come_back_with_the_commit(acks: Acks, consume: Any) -> None:
    """The stream gets its next messages though the engine reads no log of its own transactions."""
    batches = 20
    acks.messages(batches * CLIENTS)
    consumer = consume(acks.proxy.connect(database=acks.database), f"STREAM id FROM m PREFETCH {CLIENTS}")
    for done in range(0, batches * CLIENTS, CLIENTS):
        eventually(lambda: len(consumer.received) == done + CLIENTS)  # noqa: B023
        batch = [number for (number,) in consumer.received[done:]]
        assert list(map(affected, acks.together(simple(batch)))) == [1] * CLIENTS
    assert acks.gathered > 0


def test_the_same_text_in_another_database_is_another_ack(acks: Acks) -> None:
    """Both tables have the name m, and messages of the same ids."""
    other = f"{acks.database}_other"
    with acks.proxy.connect() as admin:
        run(admin, f"CREATE DATABASE {other}")
        try:
            run(admin, f"CREATE TABLE {other}.m LIKE {acks.database}.m")
            ids = acks.messages(CLIENTS)
            run(acks.direct, f"INSERT INTO {other}.m (id, payload) SELECT id, payload FROM m")
            for place, client in enumerate(acks.clients):
                if place % 2:
                    client.ask(bytes([Commands.COM_INIT_DB]) + other.encode())
                else:
                    client.query(f"USE {other}")
            assert list(map(affected, acks.together(simple(ids)))) == [1] * CLIENTS
            listed = ", ".join(map(str, ids))
            there = f"SELECT COUNT(*) FROM {other}.m WHERE time_acked IS NOT NULL AND id IN ({listed})"
            assert rows(acks.direct, there) == [(CLIENTS,)]
            assert rows(acks.direct, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(CLIENTS,)]
        finally:
            run(admin, f"DROP DATABASE {other}")


def test_it_can_be_switched_off(server: EmbeddedServer, database: str, tmp_path: Path) -> None:
    config = tmp_path / "off.toml"
    config.write_text("gather_acks = false\n")
    options = ["--config", str(config)]
    with running_proxy(server, tmp_path / "log", options) as proxy, acks_on(proxy, database) as acks:
        acks.never_gathered()


def test_a_commit_that_the_server_cuts_off_ends_in_an_error_or_in_the_truth(private_proxy: RunningProxy) -> None:
    """The engine's connections are killed again and again. No client gets a count that the table does not confirm."""
    with connect(private_proxy.server) as killer:
        run(killer, "CREATE DATABASE shop")
    with acks_on(private_proxy, "shop") as acks, connect(private_proxy.server) as killer:
        stop = threading.Event()

        def kill() -> None:
            while not stop.is_set():
                sql = (
                    "SELECT id FROM information_schema.processlist"
                    " WHERE (info LIKE %s OR info = 'COMMIT') AND id <> CONNECTION_ID()"
                )
                for (number,) in rows(killer, sql, ["%ackstream ack%"]):
                    with contextlib.suppress(pymysql.MySQLError):
                        run(killer, f"KILL {number}")

        thread = threading.Thread(target=kill)
        thread.start()
        unknown = 0
        try:
            for _ in range(30):
                ids = acks.messages(CLIENTS)
                for number, (packet,) in zip(ids, acks.together(simple(ids)), strict=True):
                    if packet.payload[0] == ERR:
                        assert parse_err(packet.payload).code == 1105
                        unknown += 1
                    else:
                        assert affected([packet]) == 1
                        found = rows(acks.direct, f"SELECT time_acked IS NOT NULL FROM m WHERE id = {number}")
                        assert found == [(1,)]
        finally:
            stop.set()
            thread.join()


def test_thousands_of_acks_by_many_clients_are_counted_right(acks: Acks) -> None:
    """Each message is acknowledged by two clients at about the same time; exactly one of them has acknowledged it."""
    ids = acks.messages(400)
    counts: list[int] = []

    def work(client: RawClient, mine: Sequence[int]) -> None:
        counts.extend(affected(client.query(statement)) for statement in simple(mine))

    half = CLIENTS // 2
    threads = [
        threading.Thread(target=work, args=(client, ids[place % half :: half]))
        for place, client in enumerate(acks.clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(counts), sum(counts)) == (800, 400)
    assert rows(acks.direct, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(0,)]
    assert acks.gathered > 0
