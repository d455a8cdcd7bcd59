"""ACKs of several clients that are committed together: clients observe no difference.

Several clients send their ACKs before any of them reads its answer. Each of them has acknowledged another message
before, so that its ACK may be gathered. Whether ACKs were gathered is a matter of time, so a round is repeated until
the metric shows it.
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
"""Nothing is gathered while the catalog is read again, for a second after a table was made."""
COM_QUERY, COM_STMT_EXECUTE = int(Commands.COM_QUERY), int(Commands.COM_STMT_EXECUTE)
FOUND_ROWS = int(Capabilities.CLIENT_FOUND_ROWS)
MODERN = ALL & ~int(Capabilities.CLIENT_NO_SCHEMA)
"""MySQL warns of the other one in each answer, and an answer with warnings is no proof."""


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

    def prove(self, form: str = "ACK m WHERE id = {}", clients: Sequence[RawClient] = ()) -> None:
        """Each client acknowledges a message by itself."""
        clients = clients or self.clients
        for client, number in zip(clients, self.messages(len(clients)), strict=True):
            assert affected(client.query(form.format(number))) == 1

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
        form: str = "ACK m WHERE id = {}",
        prepare: Callable[[Sequence[int]], None] = lambda _: None,
        of_all: int = CLIENTS,
    ) -> list[list[Packet]]:
        """The answers of a round in which `of_all` ACKs were gathered; each round has these counts."""
        for _ in range(ROUNDS_MAX):
            ids = self.messages(CLIENTS)
            prepare(ids)
            self.prove(form)
            before = self.gathered
            answers = self.together(statements(ids))
            assert sorted(map(affected, answers)) == sorted(counts)
            if self.gathered - before >= of_all:
                return answers
        raise AssertionError(f"no {of_all} ACKs were gathered in {ROUNDS_MAX} rounds")

    def never_gathered(self, *, prove: bool = True) -> None:
        """ACKs of all clients affect a message each, and none of them is gathered."""
        before = self.gathered
        for _ in range(3):
            if prove:
                self.prove()
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
        acks.until_gathered([1] * CLIENTS, simple, of_all=2)
        yield acks


@pytest.mark.parametrize("capabilities", [BASE, BASE | FOUND_ROWS, MODERN], ids=["plain", "found rows", "all"])
def test_answers_are_byte_for_byte_those_of_the_server(proxy: RunningProxy, database: str, capabilities: int) -> None:
    with acks_on(proxy, database, capabilities) as acks, RawClient(proxy, capabilities, database) as own:
        (number,) = acks.messages(1)
        one = own.query(f"ACK m WHERE id = {number}")
        none = own.query(f"ACK m WHERE id = {number}")
        assert (affected(one), affected(none)) == (1, 0)
        twice = acks.until_gathered([1, 0] * (CLIENTS // 2), lambda ids: simple([*ids[: CLIENTS // 2]] * 2), of_all=3)
        assert {tuple(answer) for answer in twice} == {tuple(one), tuple(none)}


def test_a_message_that_two_clients_acknowledge_is_counted_once(acks: Acks) -> None:
    acks.until_gathered([1, 0, 0, 0, 1, 0, 0, 0], lambda ids: simple([*ids[:2]] * 4), of_all=3)


@pytest.mark.parametrize("capabilities", [BASE, MODERN], ids=["plain", "all"])
@pytest.mark.parametrize("quoted", [False, True])
def test_executions_of_prepared_acks_are_gathered(
    proxy: RunningProxy, database: str, capabilities: int, *, quoted: bool
) -> None:
    """Their answers are those of the server, and the next statement sees them."""
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
            if acks.gathered - before >= CLIENTS + 2:
                break
        else:
            raise AssertionError("never gathered")
        shown = [value(client, "SELECT ROW_COUNT()") for client in acks.clients]
        assert shown == [b"%d" % affected(answer) for answer in answers]
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

    form = "ACK m WHERE id = {} AND epoch = 0"
    acks.until_gathered([0, 1] * (CLIENTS // 2), fenced, form, deliver, of_all=4)
    remaining = rows(acks.direct, "SELECT COUNT(*), MIN(id % 2), MAX(id % 2) FROM m WHERE time_acked IS NULL")
    assert remaining[0][0] % (CLIENTS // 2) == 0


def test_all_are_committed_when_their_clients_are_answered(acks: Acks) -> None:
    acks.until_gathered([1] * CLIENTS, simple, of_all=CLIENTS // 2)
    assert rows(acks.direct, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL OR time_next IS NOT NULL") == [(0,)]
    near = "ABS(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000 - time_acked) < 120e9"
    assert rows(acks.direct, f"SELECT COUNT(*) FROM m WHERE NOT {near}") == [(0,)]


def test_one_locked_message_delays_only_its_own_client(acks: Acks) -> None:
    with connect(acks.proxy.server, database=acks.database, autocommit=False) as other:
        for _ in range(ROUNDS_MAX):
            ids = acks.messages(CLIENTS)
            assert rows(other, f"SELECT id FROM m WHERE id = {ids[0]} FOR UPDATE")
            acks.prove()
            before = acks.gathered
            for client, statement in zip(acks.clients, simple(ids), strict=True):
                client.send(make_query(statement.encode(), attributes=client.attributes))
            assert [affected(client.answer(COM_QUERY)) for client in acks.clients[1:]] == [1] * (CLIENTS - 1)
            other.rollback()
            assert affected(acks.clients[0].answer(COM_QUERY)) == 1
            if acks.gathered > before:
                return
    raise AssertionError("never gathered")


STATEMENTS = [
    ("SELECT ROW_COUNT()", True),
    ("SELECT row_count ()", False),
    ("SELECT @@error_count", True),
    ("SELECT COUNT(*) * 0 + ROW_COUNT() FROM m", False),
    ("SELECT @@warning_count", True),
    ("SELECT LAST_INSERT_ID()", True),
    ("SELECT counted()", False),
]
"""Statements that show what the ACK has left, and whether the session can be gathered from again afterwards."""


@pytest.mark.parametrize(("statement", "harmless"), STATEMENTS)
@pytest.mark.parametrize("count", [0, 1])
def test_what_shows_the_last_statement_shows_the_ack(acks: Acks, statement: str, count: int, *, harmless: bool) -> None:
    """Compared with a client whose ACK certainly ran in its own session: it is part of a transaction."""
    run(acks.direct, "CREATE FUNCTION counted() RETURNS INT NOT DETERMINISTIC NO SQL RETURN ROW_COUNT()")
    with RawClient(acks.proxy, BASE, acks.database) as own:
        (number,) = acks.messages(1)
        own.query("SELECT -'a'")
        own.query("BEGIN")
        affected(own.query(f"ACK m WHERE id = {number if count else 0}"))
        expected = value(own, statement)

    def same(ids: Sequence[int]) -> list[str]:
        return simple(ids if count else [ids[0]] * CLIENTS)

    for client in acks.clients:
        client.query("SELECT -'a'")
    answers = acks.until_gathered([1] * CLIENTS if count else [1] + [0] * (CLIENTS - 1), same, of_all=CLIENTS - 1)
    for client, answer in zip(acks.clients, answers, strict=True):
        shown = value(client, statement)
        assert affected(answer) != count or shown == expected
    if not harmless:
        acks.never_gathered()


def test_a_prepared_statement_and_a_procedure_see_the_ack_as_the_last_statement(acks: Acks) -> None:
    run(acks.direct, "CREATE PROCEDURE counted() SELECT ROW_COUNT()")
    acks.until_gathered([1] * CLIENTS, simple, of_all=CLIENTS)
    first, second, *_ = acks.clients
    *_, row, _end, _ok = first.query("CALL counted()")
    assert row.payload == b"\x011"
    number = second.prepare("SELECT ROW_COUNT()")
    acks.prove(clients=[second])
    *_, row, _end = second.execute(number)
    assert row.payload[2:3] == b"\1"


def test_a_row_count_is_not_changed_by_what_only_looks_at_other_things(acks: Acks) -> None:
    acks.until_gathered([1] * CLIENTS, simple, of_all=CLIENTS)
    client = acks.clients[0]
    assert value(client, "SELECT @ackstream") == b""  # NULL is one byte.
    assert value(client, "SELECT ROW_COUNT()") == b"-1"


CHANGES = [
    "BEGIN",
    "SET autocommit = 0",
    "SET timestamp = 5",
    "SET SESSION sql_log_bin = 0",
    "SET @@SESSION.lc_messages = 'de_DE'",
    "SET ROLE NONE",
    "SELECT COUNT(*) FROM m",
    "CREATE TEMPORARY TABLE other (id INT)",
    "INSERT INTO m (id, payload) SELECT 1000000 + CONNECTION_ID(), 'another'",
    "DO 1",
    "LOCK TABLES m READ; UNLOCK TABLES",
]


@pytest.mark.parametrize("statement", CHANGES)
def test_a_session_that_may_differ_from_others_acknowledges_by_itself(acks: Acks, statement: str) -> None:
    for client in acks.clients:
        assert client.query(statement)[-1].payload[0] != ERR
    acks.never_gathered()


def test_a_session_that_was_reset_is_gathered_from_again(acks: Acks) -> None:
    for client in acks.clients:
        client.query("SET timestamp = 5")
        client.ask(bytes([Commands.COM_RESET_CONNECTION]))
        client.ask(bytes([Commands.COM_INIT_DB]) + acks.database.encode())
    acks.until_gathered([1] * CLIENTS, simple, of_all=2)


def test_usual_settings_change_nothing(acks: Acks) -> None:
    for client in acks.clients:
        client.query("SET NAMES utf8mb4")
        client.query("SET autocommit = 1, sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES'), time_zone = '+05:00'")
    acks.until_gathered([1] * CLIENTS, simple, of_all=2)


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
    acks.until_gathered([1] * CLIENTS, simple, of_all=2)
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
            acks.until_gathered([1] * CLIENTS, simple, of_all=2)
            acks.prove()
            ids = acks.messages(CLIENTS)
            run(root, "SET GLOBAL read_only = 1")
            answers = acks.together(simple(ids))
            assert {parse_err(packet.payload).code for (packet,) in answers} == {1290}
            assert rows(acks.direct, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(CLIENTS,)]


def test_a_right_that_was_revoked_counts_within_a_second(acks: Acks) -> None:
    with (
        user(acks.direct, acks.database, "SELECT, UPDATE") as name,
        acks_on(acks.proxy, acks.database, user=name) as theirs,
    ):
        theirs.ids = acks.ids
        theirs.until_gathered([1] * CLIENTS, simple, of_all=2)
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
            acks.prove()
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
            acks.prove()
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
                acks.prove()
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
