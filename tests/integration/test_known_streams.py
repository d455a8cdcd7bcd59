"""A STREAM that its session has run before: what it costs, and that it misses nothing that changed meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pymysql
import pytest
from mysql_mimic.types import Capabilities, Commands
from pymysql.connections import Connection

from engine.packets import ERR, OK
from proxy.embedded.server import EmbeddedServer
from proxy.wire.framing import Packet
from proxy.wire.packets import parse_err
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, directives, enqueue, rows, run, user
from tests.support.raw import ALL, BASE, RawClient
from tests.support.sampling import SEED, examples
from tests.support.servers import connect
from tests.support.turns import Turns
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

STREAM = "STREAM id, payload FROM m LIMIT 1 NOWAIT"
SESSION_TRACK = int(Capabilities.CLIENT_SESSION_TRACK)
BOUNDED = "/*M! SET STATEMENT lock_wait_timeout"
PROOF = ["SELECT HEX", "SHOW CREATE", BOUNDED]
"""The beginnings of what proves a known STREAM, in one round trip."""
LOCK = [BOUNDED]
ACK_PROOF = ["SHOW CREATE", "UPDATE `"]
"""Those of what proves that the session may acknowledge messages."""


@pytest.fixture(scope="module")
def turns(server: EmbeddedServer) -> Iterator[Turns]:
    with Turns(server) as turns:
        yield turns


@pytest.fixture(scope="module")
def watched_proxy(
    server: EmbeddedServer, turns: Turns, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    """A proxy that reaches the server through `turns`, and for which proofs hold for a minute."""
    relay: Any = turns
    with proxy_with(relay, tmp_path_factory.mktemp("watched"), rights_max_age_s=240) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def strict_proxy(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """A proxy for which a proof of rights is old at once."""
    with proxy_with(server, tmp_path_factory.mktemp("strict"), rights_max_age_s=0.000001) as proxy:
        yield proxy


@contextlib.contextmanager
def proxy_with(server: EmbeddedServer, folder: Path, rights_max_age_s: float) -> Iterator[RunningProxy]:
    config = folder / "ackstream.toml"
    config.write_text(f"rights_max_age_s = {rights_max_age_s:f}\n")
    with running_proxy(server, folder / "log", ("--config", str(config))) as proxy:
        yield proxy


@pytest.fixture
def root(server, database):
    with connect(server, database=database) as root:
        create_queue(root, "m", "payload VARCHAR(20), secret VARCHAR(20)")
        enqueue(root, "m", "abcdefgh")
        yield root


@pytest.fixture(params=[BASE, ALL], ids=["EOF packets", "all capabilities"])
def client(request, watched_proxy, root, database) -> Iterator[RawClient]:
    with RawClient(watched_proxy, request.param, database) as client:
        yield client


@pytest.fixture
def strict_client(turns, root, database, tmp_path) -> Iterator[RawClient]:
    """A client of a proxy that reaches the server through `turns`, and for which proofs are old at once."""
    with proxy_with(turns, tmp_path, rights_max_age_s=0.000001) as proxy, RawClient(proxy, BASE, database) as client:
        yield client


def until_no_triggers_are_known(proxy: RunningProxy, client: RawClient) -> None:
    """A table that was made a moment ago may have triggers, until the catalog has been read again."""

    def carried_out() -> bool:
        before = proxy.metric("acks_gathered_total")
        client.query("ACK m WHERE id = 0")
        return proxy.metric("acks_gathered_total") > before

    eventually(carried_out, what="an ACK that the engine carries out")


def beginnings(taken: list[list[bytes]]) -> list[list[str]]:
    """The first words of the commands of each round trip, without query attributes."""
    return [[command.lstrip(b"\3\0\1").decode()[:60] for command in turn] for turn in taken]


def begin_with(taken: list[list[bytes]], expected: list[list[str]]) -> bool:
    """Whether there are exactly so many round trips of so many commands that begin like this."""
    found = beginnings(taken)
    return [len(turn) for turn in found] == [len(turn) for turn in expected] and all(
        text.startswith(beginning)
        for turn, wanted in zip(found, expected, strict=True)
        for text, beginning in zip(turn, wanted, strict=True)
    )


def values(answer: list[Packet]) -> list[bytes]:
    """The first column of each row of a result without NULLs."""
    count = answer[0].payload[0]
    after = answer[1 + count :]
    if after[0].payload[0] == 0xFE and len(after[0].payload) < 9 and len(after) > 1:
        after = after[1:]
    return [packet.payload[1 : 1 + packet.payload[0]] for packet in after[:-1]]


def test_known_streams_and_acks_cost_the_session_nothing_until_their_proofs_are_old(
    watched_proxy, client, turns
) -> None:
    until_no_triggers_are_known(watched_proxy, client)
    client.query("SET @proofs = 'forgotten'")
    number = client.greeting.connection_id
    client.query(STREAM)
    turns.taken(number)
    for message in range(2, 5):
        assert values(client.query(STREAM)) == [b"%d" % message]
        assert begin_with(taken := turns.taken(number), [PROOF] if message == 2 else []), beginnings(taken)
        client.query(f"ACK m WHERE id = {message}")
        tracks = ["SELECT"] if client.capabilities & SESSION_TRACK else []
        expected = [[*ACK_PROOF, *tracks]] if message == 2 else []
        assert begin_with(taken := turns.taken(number), expected), beginnings(taken)


def test_old_proofs_cost_one_round_trip_each(strict_client, turns) -> None:
    number = strict_client.greeting.connection_id
    strict_client.query(STREAM)
    turns.taken(number)
    for message in range(2, 4):
        assert values(strict_client.query(STREAM)) == [b"%d" % message]
        assert begin_with((taken := turns.taken(number))[:1], [PROOF]), beginnings(taken)  # Rows wait for another one.
        strict_client.query(f"ACK m WHERE id = {message}")
        assert begin_with(taken := turns.taken(number), [ACK_PROOF]), beginnings(taken)


def test_the_execution_of_a_known_stream_costs_as_little(client, turns) -> None:
    number = client.greeting.connection_id
    statement = client.prepare("STREAM id, payload FROM m LIMIT ? NOWAIT")
    first = client.execute(statement, 1)
    turns.taken(number)
    for proof in ([PROOF], [], []):
        answer = client.execute(statement, 1)
        assert len(answer) == len(first)
        assert answer[0] == first[0]
        assert begin_with(taken := turns.taken(number), proof), beginnings(taken)


BETWEEN = {
    "a SELECT": b"\3SELECT 1",
    "a transaction that ends in another way": b"\3COMMIT AND CHAIN",
    "COM_SET_OPTION": bytes([Commands.COM_SET_OPTION, 1, 0]),
    "COM_RESET_CONNECTION": bytes([Commands.COM_RESET_CONNECTION]),
}


KEEPING = {
    "COMMIT": b"\3COMMIT",
    "BEGIN": b"\3begin ;",
    "an ACK": b"\3ACK m WHERE id = 1",
    "a NACK": b"\3NACK m WHERE id = 1",
    "SHOW QUEUES": b"\3SHOW QUEUES",
    "COM_PING": bytes([Commands.COM_PING]),
}


@pytest.mark.parametrize("between", KEEPING.values(), ids=KEEPING)
def test_queue_statements_and_transactions_between_two_streams_make_no_proof_necessary(
    watched_proxy, client, turns, between
) -> None:
    number = client.greeting.connection_id
    until_no_triggers_are_known(watched_proxy, client)
    for _ in range(2):
        client.query(STREAM)
    client.ask(b"\3\0\1" + between[1:] if client.attributes and len(between) > 1 else between)
    turns.taken(number)
    assert client.query(STREAM)[-1].payload[0] != ERR
    assert turns.taken(number) == []


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_a_stream_is_proven_again_after_any_other_command(watched_proxy, root, database, turns, between) -> None:
    statement = f"STREAM id, payload FROM {database}.m LIMIT 1 NOWAIT"
    with RawClient(watched_proxy, BASE, database) as client:
        number = client.greeting.connection_id
        for _ in range(3):
            client.query(statement)
        for _ in range(2):
            turns.taken(number)
            client.query(statement)
            assert turns.taken(number) == []
        client.ask(between)
        turns.taken(number)
        client.query(statement)
        assert beginnings(turns.taken(number))[0][0].startswith(PROOF[0])


def test_without_autocommit_the_transaction_of_the_proof_ends_in_the_same_round_trip(client, turns) -> None:
    number = client.greeting.connection_id
    client.query("SET autocommit = 0")
    client.query(STREAM)
    turns.taken(number)
    client.query(STREAM)
    assert begin_with(taken := turns.taken(number), [[*PROOF, "COMMIT"]]), beginnings(taken)
    client.query("SELECT COUNT(*) FROM m")
    for _ in range(2):
        client.query(STREAM)  # In a transaction now, which stays open.
    client.query("SELECT 1")
    turns.taken(number)
    client.query(STREAM)
    assert begin_with(taken := turns.taken(number), [PROOF]), beginnings(taken)


FOR_UPDATE = "STREAM id, payload FROM m LIMIT 1 NOWAIT FOR UPDATE"


@pytest.mark.parametrize("begin", ["BEGIN", "SET autocommit = 0"])
def test_a_known_stream_for_update_costs_one_round_trip(client, turns, begin) -> None:
    """Its proof holds, unless a statement has run that is no transaction's."""
    number = client.greeting.connection_id
    client.query(begin)
    client.query(FOR_UPDATE)
    costs = []
    for _ in range(12):
        client.query("COMMIT")
        client.query(begin)
        turns.taken(number)
        assert len(values(client.query(FOR_UPDATE))) == 1
        costs.append(begin_with(turns.taken(number), [LOCK] if begin == "BEGIN" else [PROOF, LOCK]))
    assert costs.count(True) > len(costs) / 2, costs  # A message that was tried in vain costs another one.


@pytest.mark.parametrize("waits", ["NOWAIT", "WAIT 600"])
def test_a_stream_for_update_without_messages_leaves_no_transaction_open(client, root, waits) -> None:
    """An ALTER waits for any transaction that has used the table. One of a waiting stream ends while it waits."""
    run(root, "DELETE FROM m")
    run(root, "SET lock_wait_timeout = 20")
    client.query("SET autocommit = 0")
    for column in ("first", "known", "known_again"):
        client.query(FOR_UPDATE.replace("NOWAIT", "WAIT 0"))
        run(root, f"ALTER TABLE m ADD COLUMN {column} INT")
        client.query(FOR_UPDATE)
        if waits == "NOWAIT":
            run(root, f"ALTER TABLE m DROP COLUMN {column}")
            continue
        client.send(client_command(client, FOR_UPDATE.replace("NOWAIT", waits)))
        run(root, f"ALTER TABLE m DROP COLUMN {column}")
        enqueue(root, "m", "x")
        assert len(values(client.answer(Commands.COM_QUERY))) == 1
        client.query("COMMIT")
        run(root, "DELETE FROM m")


def test_a_known_stream_is_answered_as_it_was_the_first_time(client) -> None:
    statement = "STREAM * FROM m WHERE secret IS NULL LIMIT 1 NOWAIT"
    client.query(f"/* once */ {statement}")
    first, second, third = (client.query(statement) for _ in range(3))
    before_rows = len(first) - 2
    assert first[:before_rows] == second[:before_rows] == third[:before_rows]
    assert first[-1] == second[-1] == third[-1]


SHAPES = (
    *("BIT(9)", "TINYINT(1)", "BIGINT UNSIGNED ZEROFILL", "DECIMAL(9,3)", "DOUBLE", "FLOAT(5,2)", "YEAR", "JSON"),
    *("DATE", "TIME(3)", "DATETIME(6)", "TIMESTAMP NULL", "CHAR(7)", "VARCHAR(9) COLLATE utf8mb4_bin", "TINYTEXT"),
    *("LONGTEXT CHARACTER SET latin1", "BINARY(3)", "VARBINARY(4)", "BLOB", "ENUM('a','b')", "SET('a','b')", "POINT"),
)


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_the_columns_are_described_alike_with_and_without_rows(client, root, order) -> None:
    """Of every type, whether the rows are read in the order of their ids or sorted by their priorities."""
    create_queue(root, "shapes", ", ".join(f"c{place} {shape}" for place, shape in enumerate(SHAPES)))
    priorities = range(9) if order == "ascending" else range(9, 0, -1)
    run(root, f"INSERT INTO shapes (priority) VALUES {', '.join(f'({priority})' for priority in priorities)}")
    statement = "STREAM *, epoch, time_next FROM shapes LIMIT 3 NOWAIT FOR UPDATE"
    client.query("BEGIN")
    answers = [client.query(statement) for _ in range(4)]
    first, *_, without_rows = map(_described, answers)
    assert [_described(answer) for answer in answers] == [first] * 4
    assert [len(answer) - len(answers[3]) for answer in answers] == [3, 3, 3, 0]
    assert len(without_rows) == 1 + len(("id", *SHAPES, "epoch", "time_next"))


CHANGES = {
    "another column": "ALTER TABLE m ADD COLUMN more INT DEFAULT 5",
    "a column of another type": "ALTER TABLE m MODIFY payload TEXT",
    "no such column any more": "ALTER TABLE m DROP COLUMN secret",
    "its directives": "ALTER TABLE m COMMENT = 'vitess_message,vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=100,"
    "vt_cache_size=10000,vt_poller_interval=3600,vt_message_cols=id|payload'",
    "no queue any more": "ALTER TABLE m COMMENT = ''",
    "no table any more": "DROP TABLE m",
    "a view in its place": "RENAME TABLE m TO other, TO m",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("columns", ["*", "id, secret"])
@pytest.mark.parametrize("form", ["", " FOR UPDATE"])
def test_a_change_by_a_direct_connection_is_noticed_when_the_proof_is_old(
    strict_proxy, root, database, change, columns, form
) -> None:
    statement = f"STREAM {columns} FROM m LIMIT 1 NOWAIT{form}"
    with RawClient(strict_proxy, BASE, database) as knowing, RawClient(strict_proxy, BASE, database) as new:
        for session in (knowing, new):
            session.query(f"SET autocommit = {0 if form else 1}")
        for _ in range(2):
            knowing.query(statement)
            knowing.query("COMMIT")
        if change.endswith("TO m"):
            run(root, "RENAME TABLE m TO other")
            run(root, "CREATE VIEW m AS SELECT * FROM other")
        else:
            run(root, change)
        answer, expected = knowing.query(statement), new.query(statement)
        assert _described(answer) == _described(expected)


def _described(answer: list[Packet]) -> list[bytes]:
    """The error, or the column packets."""
    if answer[0].payload[0] == ERR:
        return [answer[0].payload]
    return [packet.payload for packet in answer[: 1 + answer[0].payload[0]]]


SETTINGS = [
    "SET NAMES latin1",
    "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
    "SET character_set_results = NULL",
    "SET time_zone = '+03:00'",
    "SET sql_mode = 'ANSI_QUOTES'",
    "SET sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'",
    "SET sql_mode = ''",
    "USE {other}",
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    "statement",
    [
        # In the mode ANSI_QUOTES, the condition names a column.
        'STREAM * FROM m WHERE payload <> "secret" LIMIT 1 NOWAIT',
        "STREAM * FROM m LIMIT 1 NOWAIT FOR UPDATE",
        "STREAM * FROM m LIMIT 1 WAIT 0.1 FOR UPDATE",
    ],
)
def test_settings_between_two_streams_have_their_effect(watched_proxy, root, database, statement, setting) -> None:
    other = f"{database}_other"
    run(root, f"CREATE DATABASE {other}")
    try:
        run(root, f"CREATE TABLE {other}.m LIKE m")
        run(root, f"ALTER TABLE {other}.m MODIFY payload CHAR(7), DROP COLUMN secret")
        run(root, f"INSERT INTO {other}.m (payload) VALUES ('x'), ('y'), ('z'), ('u'), ('v')")
        with RawClient(watched_proxy, BASE, database) as knowing, RawClient(watched_proxy, BASE, database) as new:
            for _ in range(2):
                knowing.query(statement)
            for session in (knowing, new):
                session.query("BEGIN" if "FOR UPDATE" in statement else "DO 0")
                session.query(setting.format(other=other))
            answer, expected = knowing.query(statement), new.query(statement)
            assert _described(answer) == _described(expected)
            assert len(answer) == len(expected)
            assert answer[-1] == expected[-1]
            again = knowing.query(statement)
            assert _described(again) == _described(expected)
    finally:
        run(root, f"DROP DATABASE {other}")


def test_a_temporary_table_between_two_streams_is_refused(client) -> None:
    for _ in range(2):
        client.query(STREAM)
    assert client.query("CREATE TEMPORARY TABLE m (id INT, payload INT)")[0].payload[0] == OK
    error = parse_err(client.query(STREAM)[0].payload)
    assert (error.code, "hidden by a temporary table" in error.message) == (1105, True)
    client.query("DROP TEMPORARY TABLE m")
    assert values(client.query(STREAM)) == [b"3"]


REVOKED = {
    "UPDATE": (["SELECT, UPDATE"], "UPDATE", 1142),
    "SELECT": (["SELECT, UPDATE"], "SELECT", 1142),
    "a column": (["SELECT (id, payload, secret), UPDATE"], "SELECT (payload)", 1143),
    "a column of the condition": (["SELECT (id, payload, secret), UPDATE"], "SELECT (secret)", 1143),
    "UPDATE of one column": (["SELECT, UPDATE (epoch, time_next, time_acked)"], "UPDATE (epoch)", 1143),
    "all": (["ALL"], "ALL", 1142),
}


@pytest.mark.parametrize(("granted", "revoked", "code"), REVOKED.values(), ids=REVOKED)
def test_rights_that_are_revoked_between_two_streams_are_missed_when_their_proof_is_old(
    strict_proxy, root, database, granted, revoked, code
) -> None:
    statement = f"STREAM id, payload FROM {database}.m WHERE secret IS NULL LIMIT 1 NOWAIT"
    with user(root, database, *granted) as name, RawClient(strict_proxy, user=name) as client:
        for message in (b"1", b"2", b"3"):
            assert values(client.query(statement)) == [message]
        run(root, f"REVOKE {revoked} ON {database}.m FROM {name}@localhost")
        refused = [parse_err(client.query(statement)[0].payload) for _ in range(2)]
        assert [error.code for error in refused] == [code, code]
        for grant in granted:
            run(root, f"GRANT {grant} ON {database}.m TO {name}@localhost")
        assert values(client.query(statement)) == [b"4"]


@pytest.mark.parametrize(
    ("granted", "revoked"),
    [
        ("SELECT", "SELECT"),
        ("SELECT", "UPDATE"),
        ("SELECT (id, payload, priority, epoch, time_next, time_acked)", "SELECT (payload)"),
        ("SELECT (id, payload, priority, epoch, time_next, time_acked)", "UPDATE"),
    ],
)
def test_a_known_stream_for_update_shows_nothing_that_the_client_may_not_read(
    strict_proxy, root, database, granted, revoked
) -> None:
    """The server denies it the rows at once. Without the right to update, it may acknowledge none."""
    statement = f"STREAM id, payload FROM {database}.m LIMIT 1 NOWAIT FOR UPDATE"
    with user(root, database, granted, "UPDATE") as name, RawClient(strict_proxy, user=name) as client:
        for _ in range(3):
            client.query("BEGIN")  # What was locked is free again, and may come next.
            assert len(values(client.query(statement))) == 1
        run(root, f"REVOKE {revoked} ON {database}.m FROM {name}@localhost")
        answer = client.query(statement)
        if revoked == "UPDATE" and answer[0].payload[0] != ERR:
            answer = client.query(f"ACK {database}.m WHERE id = 4")
        assert parse_err(answer[0].payload).code in (1142, 1143)


def test_a_role_that_is_left_between_two_streams_gives_no_rights_any_more(
    strict_proxy, root, database, flavour
) -> None:
    statement = f"STREAM id FROM {database}.m LIMIT 1 NOWAIT"
    role = f"role_{database}"
    with user(root, database) as name:
        run(root, f"CREATE ROLE {role}")
        try:
            run(root, f"GRANT SELECT, UPDATE ON {database}.m TO {role}")
            run(root, f"GRANT {role} TO {name}@localhost")
            with RawClient(strict_proxy, user=name) as client:
                client.query(f"SET ROLE {role}")
                assert [values(client.query(statement)) for _ in range(2)] == [[b"1"], [b"2"]]
                client.query("SET ROLE NONE")
                assert parse_err(client.query(statement)[0].payload).code == 1142
                client.query(f"SET ROLE {role}")
                assert values(client.query(statement)) == [b"3"]
                run(root, f"REVOKE SELECT ON {database}.m FROM {role}")
                assert parse_err(client.query(statement)[0].payload).code in (1142, 1143)
        finally:
            run(root, f"DROP ROLE {role}")


def test_a_known_stream_leaves_the_sessions_state_as_a_new_one_does(client) -> None:
    observed = []
    client.query("INSERT INTO m (payload) VALUES ('z')")
    for _ in range(3):
        client.query(STREAM)
        observed.append(
            [client.query(f"SELECT {seen}")[-2].payload for seen in ("LAST_INSERT_ID()", "@@warning_count")]
        )
    assert observed[0] == observed[1] == observed[2]


def test_a_prepared_stream_with_other_parameters_is_another_stream(client, turns) -> None:
    number = client.greeting.connection_id
    statement = client.prepare("STREAM id, payload FROM m WHERE id > ? LIMIT ? NOWAIT")
    assert len(client.execute(statement, 0, 2)) - len(client.execute(statement, 0, 1)) == 1
    assert len(client.execute(statement, 0, 2)) - len(client.execute(statement, 7, 1)) == 1
    client.query("SELECT 1")
    turns.taken(number)
    client.execute(statement, 0, 1)
    assert begin_with(taken := turns.taken(number), [PROOF]), beginnings(taken)


def test_long_data_for_a_known_execution_are_not_overlooked(client) -> None:
    statement = client.prepare("STREAM id, payload FROM m WHERE payload = ? LIMIT 5 NOWAIT")
    client.execute(statement, "b")
    _, empty = client.execute(statement, "b"), client.execute(statement, "b")
    client.send(bytes([Commands.COM_STMT_SEND_LONG_DATA]) + statement.to_bytes(4, "little") + b"\0\0c")
    assert parse_err(client.execute(statement, "b")[0].payload).code == 1210
    assert client.execute(statement, "b") == empty


def test_a_client_that_pipelines_streams_and_acks_gets_each_answer_in_its_place(client) -> None:
    client.query(STREAM)
    commands = [STREAM, "SELECT 'between'", STREAM, "ACK m WHERE id IN (2, 3)", STREAM]
    for command in commands:
        client.send(client_command(client, command))
    answers = [client.answer(Commands.COM_QUERY) for _ in commands]
    assert [values(answers[place]) for place in (0, 1, 2, 4)] == [[b"2"], [b"between"], [b"3"], [b"4"]]
    assert answers[3][0].payload[:2] == b"\0\2"


def client_command(client: RawClient, text: str) -> bytes:
    """A COM_QUERY."""
    return b"\3" + (b"\0\1" if client.attributes else b"") + text.encode()


def test_a_condition_of_another_character_set_is_never_reread_in_another(watched_proxy, root, database) -> None:
    """The second byte of a character may be a backquote in another character set."""
    run(root, "ALTER TABLE m ADD COLUMN `ひ` INT")
    with watched_proxy.connect(database=database) as client:
        for _ in range(3):
            assert len(rows(client, "STREAM id, `ひ` FROM m LIMIT 1 NOWAIT")) == 1
        run(client, "SET NAMES gbk")
        with pytest.raises(pymysql.MySQLError):
            rows(client, "STREAM id, `ひ` FROM m LIMIT 1 NOWAIT")


# A session whose STREAMs are the same bytes again and again, beside one that never repeats any.

NAMES = ("utf8mb4", "latin1", "utf8mb4 COLLATE utf8mb4_bin", "gbk", "cp1251")
MODES = ("", "ANSI_QUOTES", "PAD_CHAR_TO_FULL_LENGTH", "NO_BACKSLASH_ESCAPES", "HIGH_NOT_PRECEDENCE")
STREAMS = (
    "STREAM * FROM m LIMIT 1 NOWAIT",
    "STREAM id, payload FROM m LIMIT 2 NOWAIT",
    "STREAM id FROM m WHERE secret IS NULL LIMIT 1 NOWAIT",
    'STREAM *, epoch FROM {db}.m WHERE payload <> "secret" LIMIT 1 NOWAIT',
)
LOCKING = (
    "STREAM * FROM m LIMIT 2 NOWAIT FOR UPDATE",
    "STREAM id FROM m LIMIT 1 WAIT 0 FOR UPDATE",
    "STREAM id FROM m WHERE secret IS NULL LIMIT 1 NOWAIT FOR UPDATE",
)
BY_CLIENT = (
    "SET time_zone = '+05:00'",
    "SET character_set_results = NULL",
    "SET autocommit = 0",
    "SET autocommit = 1",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "USE {db}",
    "USE {db}x",
    "CREATE TEMPORARY TABLE {db}.m (id INT, payload INT)",
    "DROP TEMPORARY TABLE {db}.m",
    "INSERT INTO {db}.m (payload) VALUES ('n')",
    "ACK {db}.m WHERE id < 3",
    "SET ROLE NONE",
    "SELECT LAST_INSERT_ID(), @@warning_count",
    "SET TRANSACTION READ ONLY",
    *(f"SET NAMES {name}" for name in NAMES),
    *(f"SET sql_mode = '{mode}'" for mode in MODES),
)
DIRECTLY = (
    "ALTER TABLE {db}.m ADD COLUMN c1 DATETIME",
    "ALTER TABLE {db}.m DROP COLUMN c1",
    "ALTER TABLE {db}.m MODIFY payload CHAR(9)",
    "ALTER TABLE {db}.m MODIFY payload VARCHAR(20)",
    "ALTER TABLE {db}.m COMMENT = '{directives},vt_message_cols=id|secret'",
    "ALTER TABLE {db}.m COMMENT = '{directives}'",
    "ALTER TABLE {db}.m COMMENT = ''",
    "INSERT INTO {db}.m (payload) VALUES ('d'), ('e')",
)
SWAPS = (
    "RENAME TABLE {db}.m TO {db}.z, {db}x.m TO {db}.m, {db}.z TO {db}x.m",
    "REVOKE UPDATE ON {db}.m FROM {user}@localhost",
    "REVOKE SELECT ON {db}.m FROM {user}@localhost",
    "GRANT SELECT, UPDATE ON {db}.m TO {user}@localhost",
)
"""Changes behind which the next message depends on when the engine has noticed them, and rows wait for a
proof of rights."""


class Side:
    """One of the two sessions, with two databases and an account of its own, whose names are as long as the other's."""

    def __init__(self, root: Connection[Any], proxy: RunningProxy, name: str, *, repeats: bool) -> None:
        self.db, self.user = name, f"u{name}"
        self._root, self._repeats, self._count = root, repeats, 0
        for db in (self.db, f"{self.db}x"):
            self._as_root(f"CREATE DATABASE {db}")
            self._as_root(f"USE {db}")
            create_queue(root, "m", "payload VARCHAR(20), secret VARCHAR(20)")
            enqueue(root, "m", "abcdefghijklmnopqrstuvwxyz")
        self._as_root("CREATE USER {user}@localhost")
        self._as_root("GRANT ALL ON {db}x.m TO {user}@localhost")
        self._as_root("GRANT SELECT, INSERT, UPDATE ON {db}.m TO {user}@localhost")
        self._as_root("GRANT CREATE TEMPORARY TABLES ON {db}.* TO {user}@localhost")
        self.client = RawClient(proxy, user=self.user)
        self.client.query(f"USE {self.db}")
        self.prepared = self.client.prepare("STREAM id, payload FROM m LIMIT ? NOWAIT")

    def direct(self, text: str) -> int:
        """Run a statement beside the session; the server's error number, 0 for none."""
        try:
            self._as_root(text)
        except pymysql.MySQLError as error:
            return int(error.args[0])
        return 0

    def _as_root(self, text: str) -> None:
        run(self._root, self._filled(text))

    def query(self, text: str) -> list[bytes]:
        """The answer to a statement, with the names of the first side."""
        return self._told([packet.payload for packet in self.client.query(self._filled(text))])

    def stream(self, text: str) -> list[bytes]:
        """The answer to a STREAM: the same text as before, or one that never was."""
        self._count += 1
        return self.query(text if self._repeats else f"/* {self._count} */ {text}")

    def execute(self) -> list[bytes]:
        """The answer to the prepared STREAM: with the same parameter, or one that never was."""
        self._count += 1
        answer = self.client.execute(self.prepared, 1000 if self._repeats else 1000 + self._count)
        return self._told([packet.payload for packet in answer])

    def locking(self, text: str) -> list[bytes]:
        """The error or the columns of the answer to a STREAM. Which messages are free depends on when those
        of a transaction that was rolled back are counted."""
        self._count += 1
        packets = self.client.query(self._filled(text if self._repeats else f"/* {self._count} */ {text}"))
        return self._told(_described(packets))

    def close(self) -> None:
        """Remove everything, when its client is closed."""
        for text in ("DROP DATABASE {db}", "DROP DATABASE {db}x", "DROP USER {user}@localhost"):
            self._as_root(text)

    def _filled(self, text: str) -> str:
        return text.format(db=self.db, user=self.user, directives=directives()) if "{" in text else text

    def _told(self, payloads: list[bytes]) -> list[bytes]:
        return [payload.replace(self.db.encode(), b"?" * len(self.db)) for payload in payloads]


@pytest.mark.parametrize("play", range(examples(4)))
@pytest.mark.parametrize("kind", ["stream", "locking"])
def test_a_session_that_repeats_its_streams_is_answered_like_one_that_does_not(
    strict_proxy, server, database, kind, play
) -> None:
    random = Random(f"{SEED} {kind} {play}")
    texts = {"stream": STREAMS, "locking": LOCKING, "execute": ("the prepared STREAM",), "query": BY_CLIENT}
    texts["direct"] = DIRECTLY if kind == "stream" else (*DIRECTLY, *SWAPS)
    with connect(server) as root, contextlib.ExitStack() as ends:
        sides = [Side(root, strict_proxy, f"{database}{letter}", repeats=letter == "r") for letter in "rn"]
        for side in sides:
            ends.callback(side.close)
        for side in sides:  # The transaction of either may hold locks of the table of accounts.
            ends.callback(side.client.close)
        script: list[str] = []
        for _ in range(60):
            step = random.choices((kind, "execute", "query", "direct"), (6, 2 * (kind == "stream"), 2, 2))[0]
            text = random.choice(texts[step])
            script.append(f"{step}: {text}")
            if step == "direct":
                for side in sides:  # Its transaction may hold locks of the table, or of those of accounts.
                    side.client.query("COMMIT")
            if text.startswith(
                "ACK"
            ):  # It may come before the engine has noticed a change beside it. A STREAM does not.
                for side in sides:
                    side.query("STREAM id FROM {db}.m WHERE id < 0 LIMIT 1 NOWAIT")
            repeats, other = (side.execute() if step == "execute" else getattr(side, step)(text) for side in sides)
            assert repeats == other, "\n".join(script)


def test_an_ack_whose_trigger_changes_the_session_is_noticed_by_the_next_stream(watched_proxy, root, database) -> None:
    run(root, "ALTER TABLE m ADD COLUMN at TIMESTAMP DEFAULT '2020-01-01 12:00:00'")
    run(
        root,
        "CREATE TRIGGER t BEFORE UPDATE ON m FOR EACH ROW"
        " SET SESSION time_zone = IF(NEW.time_acked, '+09:00', '+00:00')",
    )
    statement = "STREAM id, at FROM m LIMIT 1 NOWAIT"
    with RawClient(watched_proxy, BASE, database) as client:
        client.query("SET time_zone = '+03:00'")
        answers = [client.query(statement) for _ in range(3)]
        client.query("ACK m WHERE id = 1")
        new = RawClient(watched_proxy, BASE, database)
        new.query("SET time_zone = '+09:00'")
        hours = [answer[-2].payload[-8:-6] for answer in (*answers, client.query(statement), new.query(statement))]
        new.close()
        assert hours[0] == hours[1] == hours[2] != hours[3]
        assert hours[3] == hours[4]
