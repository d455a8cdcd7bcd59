"""Dead messages on real servers: moved exactly or not at all, wherever the connection breaks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pymysql
import pytest

from engine.model import NS_PER_S, MoveResult, TableId, Wanted
from engine.store.connection import StoreConnection
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress
from engine.store.port import StoreError
from proxy.embedded.server import EmbeddedServer
from tests.support.stores import COLUMNS, COMMENT, TAKING, ServerSubject, interrupted_store, nothing
from tests.support.waiting import eventually

S = NS_PER_S
OWN = "priority INT NOT NULL DEFAULT 0, epoch BIGINT NOT NULL DEFAULT 0, time_next BIGINT DEFAULT 0, time_acked BIGINT"
EVERYTHING = """
    c_tiny TINYINT, c_unsigned BIGINT UNSIGNED, c_float FLOAT, c_double DOUBLE, c_decimal DECIMAL(20,5),
    c_bit BIT(10), c_year YEAR, c_date DATE, c_time TIME(3), c_datetime DATETIME(6), c_stamp TIMESTAMP(6) NULL,
    c_char CHAR(10) CHARACTER SET utf8mb4, c_latin VARCHAR(20) CHARACTER SET latin1, c_text TEXT CHARACTER SET utf8mb4,
    c_binary BINARY(4), c_varbinary VARBINARY(9), c_blob LONGBLOB, c_enum ENUM('x', 'ü') CHARACTER SET utf8mb4,
    c_set SET('a', 'b'), c_json JSON, c_point POINT, c_shape GEOMETRY, c_invalid DATE, c_zero DATETIME,
    c_invisible INT INVISIBLE, `c ``odd`` ü.` INT, c_virtual INT AS (c_tiny * 2) VIRTUAL,
    c_stored INT AS (c_tiny * 3) STORED
"""
VALUES = (
    """-7, 18446744073709551615, 0.1, 1e300, -12345.67890, b'1010101010', 2024, '2024-02-29', '-10:00:00.123',
    '2024-03-31 02:30:00.000001', FROM_UNIXTIME(1729989000.5), 'pad é', 'café', REPEAT('long ü ', 60), x'00ff00',
    x'002000', x'ff00fe', 'ü', 'a,b', '{"a": [1.50, "é"]}', POINT(1, 2), ST_GeomFromText('LINESTRING(0 0,1 1)', 0),
    '2024-02-31', '0000-00-00 00:00:00', 42, 7""",
    """NULL, 0, -0.0, 0.1, 0, b'0', 0, '1000-01-01', '838:59:59', '9999-12-31 23:59:59.999999',
    FROM_UNIXTIME(1729992600.5), '', '', '', '', '', '', 'x', '', 'null', NULL, NULL, '2023-00-10', NULL, NULL, NULL""",
    ", ".join(["NULL"] * 26),
)


@pytest.fixture
def subject(server: EmbeddedServer) -> Iterator[ServerSubject]:
    made = ServerSubject(server)
    yield made
    made.close()


@contextlib.contextmanager
def subject_on(server: EmbeddedServer, columns: str) -> Iterator[ServerSubject]:
    made = ServerSubject(server, columns=columns)
    yield made
    made.close()


def put_dead_messages(subject: ServerSubject, *keys: int, body: str = "x") -> list[Wanted]:
    for key in keys:
        subject.execute("INSERT INTO messages (id, priority, epoch, body) VALUES (%s, 4, 3, %s)", key, body)
    return [Wanted(key, 3, 60 * S) for key in keys]


def make_dead(subject: ServerSubject, definition: str, name: str = "dead", comment: str = TAKING) -> TableId:
    subject.execute(f"CREATE TABLE {name} ({definition}) COMMENT '{comment}'")
    return TableId(subject.database, name)


def move_dead_letters(subject: ServerSubject, wanted: Sequence[Wanted], name: str = "dead") -> MoveResult:
    return subject.store.move_dead_letters(subject.table, wanted, TableId(subject.database, name)).value


def ids(subject: ServerSubject, name: str = "messages") -> list[Any]:
    return [key for (key,) in subject.execute(f"SELECT id FROM {name} ORDER BY id")]


class TestValues:
    @pytest.mark.filterwarnings("ignore:.*deprecated")
    def test_every_value_of_every_type_is_the_same_afterwards(self, server: EmbeddedServer) -> None:
        columns = f"id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, {OWN}, {EVERYTHING}"
        with subject_on(server, columns) as subject:
            subject.dead_letter()
            subject.execute("SET NAMES utf8mb4")
            subject.execute("SET sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'")
            names = ", ".join(f"`{name}`" for name in self.written(subject))
            for key, values in enumerate(VALUES):
                subject.execute(
                    f"INSERT INTO messages (id, epoch, priority, {names}) VALUES ({key}, 3, {-key}, {values})"
                )
            before = self.contents(subject, "messages")
            assert move_dead_letters(subject, [Wanted(key, 3, S) for key in range(3)]) == MoveResult((0, 1, 2))
            assert self.contents(subject, "dead") == before
            assert ids(subject) == []

    def columns(self, subject: ServerSubject) -> list[tuple[str, str]]:
        return [
            (name, extra)
            for name, extra in subject.execute(
                "SELECT column_name, extra FROM information_schema.columns WHERE table_schema = %s"
                " AND table_name = 'messages' ORDER BY ordinal_position",
                subject.database,
            )
            if name not in {"time_next", "time_acked"}
        ]

    def written(self, subject: ServerSubject) -> list[str]:
        return [name.replace("`", "``") for name, extra in self.columns(subject)[3:] if "GENERATED" not in extra]

    def contents(self, subject: ServerSubject, table: str) -> list[tuple[Any, ...]]:
        """Each value as the text and as the bytes that the server has for it."""
        quoted = [f"`{name.replace('`', '``')}`" for name, _ in self.columns(subject)]
        return subject.execute(
            f"SELECT {', '.join(f'{name} + 0, HEX({name})' for name in quoted[:3])},"
            f" {', '.join(f'HEX({name})' for name in quoted[3:])} FROM {table} ORDER BY id"
        )

    def test_a_row_of_the_greatest_size_is_moved_on_the_server(self, server: EmbeddedServer) -> None:
        with subject_on(server, COLUMNS.replace("VARCHAR(5000)", "LONGTEXT")) as subject:
            subject.dead_letter()
            subject.execute("INSERT INTO messages (id, epoch, body) VALUES (1, 3, REPEAT('x', 12000000))")
            assert move_dead_letters(subject, [Wanted(1, 3, S)]) == MoveResult((1,))
            assert subject.execute("SELECT LENGTH(body) FROM dead") == [(12000000,)]

    @pytest.mark.parametrize("name", ["`odd ``name`` ü`", "`a.b`", "`select`"])
    def test_the_dead_letter_table_may_lie_in_another_database_and_have_any_name(
        self, subject: ServerSubject, name: str
    ) -> None:
        other = f"{subject.database} `ü"
        quoted = f"`{other.replace('`', '``')}`"
        subject.execute(f"CREATE DATABASE {quoted}")
        subject.execute(f"CREATE TABLE {quoted}.{name} LIKE messages")
        taking = f"{COMMENT},dead_letter_of={subject.database}.messages"
        subject.execute(f"ALTER TABLE {quoted}.{name} COMMENT '{taking}'")
        wanted = put_dead_messages(subject, 1)
        bare = name[1:-1].replace("``", "`")
        assert subject.store.move_dead_letters(subject.table, wanted, TableId(other, bare)).value == MoveResult((1,))
        assert subject.execute(f"SELECT id FROM {quoted}.{name}") == [(1,)]
        subject.execute(f"DROP DATABASE {quoted}")


class TestWhatCannotBeMoved:
    def stays(self, subject: ServerSubject, *parts: str, name: str = "dead") -> None:
        """Messages 1 and 2 stay, postponed and otherwise unchanged, and the problem contains these texts."""
        wanted = put_dead_messages(subject, 1, 2)
        answer = subject.store.move_dead_letters(subject.table, wanted, TableId(subject.database, name))
        assert answer.value.moved == ()
        problem = answer.value.problem or ""
        assert [part for part in parts if part not in problem] == [], problem
        due_ns = answer.now_ns + 60 * S
        assert subject.execute("SELECT id, priority, epoch, time_next, time_acked, body FROM messages ORDER BY id") == [
            (key, 4, 3, due_ns, None, "x") for key in (1, 2)
        ]

    def test_the_table_is_missing(self, subject: ServerSubject) -> None:
        self.stays(subject, "dead does not exist", "create it", "id 1, 2")

    def test_the_table_is_no_message_table(self, subject: ServerSubject) -> None:
        subject.execute("CREATE TABLE dead LIKE messages")
        subject.execute("ALTER TABLE dead COMMENT ''")
        self.stays(subject, "dead is no message table", "vitess_message")

    def test_the_table_does_not_consent(self, subject: ServerSubject) -> None:
        make_dead(subject, COLUMNS, comment=f"{COMMENT},dead_letter_of=others|{subject.database}x.messages")
        name = f"`{subject.database}`"
        self.stays(subject, "dead does not take", f"ALTER QUEUE {name}.`messages` DEAD_LETTER = {name}.`dead`")

    def test_the_table_is_broken(self, subject: ServerSubject) -> None:
        make_dead(subject, COLUMNS, comment="vitess_message")
        self.stays(subject, "dead cannot be used as a queue", "vt_ack_wait is missing")

    def test_columns_are_missing_there_even_invisible_ones(self, subject: ServerSubject) -> None:
        make_dead(subject, COLUMNS)
        subject.execute("ALTER TABLE messages ADD tenant INT, ADD secret INT INVISIBLE, ADD twice INT AS (id * 2)")
        self.stays(subject, "dead lacks columns tenant, secret: add")

    def test_a_column_of_a_type_that_would_change_values_without_an_error(self, subject: ServerSubject) -> None:
        subject.execute("ALTER TABLE messages ADD at DATETIME(6), ADD price DOUBLE, ADD code BINARY(4), ADD small INT")
        make_dead(subject, f"{COLUMNS}, at DATETIME, price FLOAT, code BINARY(8), small BIGINT")
        self.stays(subject, "columns at (datetime for datetime(6)), price (float for double), code (binary(8) for ")

    def test_a_column_that_must_have_a_value_of_its_own(self, subject: ServerSubject) -> None:
        make_dead(subject, f"{COLUMNS}, reason VARCHAR(50) NOT NULL")
        self.stays(subject, "reason", "1364")

    def test_the_account_may_not_write_there(self, subject: ServerSubject) -> None:
        make_dead(subject, COLUMNS)
        user = f"u_{subject.database}"
        subject.execute(f"CREATE USER {user}")
        subject.execute(f"GRANT ALL ON {subject.database}.messages TO {user}")
        subject.execute(f"GRANT SELECT ON {subject.database}.dead TO {user}")
        subject.store.close()
        subject.store = MySQLStore(BackendAddress(subject.server.host, subject.server.port, user))
        self.stays(subject, "INSERT command denied", "1142")
        subject.execute(f"DROP USER {user}")

    def test_a_row_that_is_referred_to(self, subject: ServerSubject) -> None:
        subject.dead_letter()
        subject.execute("CREATE TABLE notes (message BIGINT, FOREIGN KEY (message) REFERENCES messages (id))")
        wanted = put_dead_messages(subject, 1, 2)
        subject.execute("INSERT INTO notes VALUES (1)")
        result = move_dead_letters(subject, wanted)
        assert result.moved == (2,)
        assert "1451" in (result.problem or "")
        assert (ids(subject), ids(subject, "dead")) == ([1], [2])


class TestOneOfMany:
    """A message that cannot be moved does not hold back the others."""

    @pytest.mark.parametrize("body", ["much too long", "blanks     ", "price: 5 €"])
    def test_a_value_that_does_not_fit_is_never_cut(self, subject: ServerSubject, body: str) -> None:
        make_dead(subject, COLUMNS.replace("VARCHAR(5000)", "VARCHAR(10) CHARACTER SET latin1"))
        subject.execute("ALTER TABLE dead MODIFY body VARCHAR(10) CHARACTER SET ascii")
        wanted = put_dead_messages(subject, *range(1, 30))
        subject.execute("UPDATE messages SET body = %s WHERE id IN (7, 20)", body)
        result = move_dead_letters(subject, wanted)
        assert set(result.moved) == set(range(1, 30)) - {7, 20}
        assert "body" in (result.problem or "")
        assert ids(subject) == [7, 20]
        assert subject.execute("SELECT DISTINCT body FROM messages") == [(body,)]

    def test_another_unique_column_is_taken(self, subject: ServerSubject) -> None:
        make_dead(subject, f"{COLUMNS}, UNIQUE (body(5))")
        wanted = [*put_dead_messages(subject, 1, body="one"), *put_dead_messages(subject, 2, 3, body="two")]
        result = move_dead_letters(subject, wanted)
        assert result.moved == (1, 2)
        assert "1062" in (result.problem or "")
        assert (ids(subject), ids(subject, "dead")) == ([3], [1, 2])

    def test_ids_that_are_equal_there(self, server: EmbeddedServer) -> None:
        columns = COLUMNS.replace("id BIGINT", "id VARCHAR(20) COLLATE utf8mb4_bin")
        with subject_on(server, columns) as subject:
            make_dead(subject, columns.replace("utf8mb4_bin", "utf8mb4_general_ci"))
            for key in ("a", "A", "b"):
                subject.execute("INSERT INTO messages (id, epoch) VALUES (%s, 3)", key)
            result = move_dead_letters(subject, [Wanted(key, 3, S) for key in ("a", "A", "b")])
            assert len(result.moved) == 2
            assert sorted([*ids(subject), *ids(subject, "dead")]) == ["A", "a", "b"]

    def test_a_locked_acknowledged_row_is_not_waited_for(self, subject: ServerSubject) -> None:
        subject.dead_letter()
        wanted = put_dead_messages(subject, 1, 2)
        subject.execute("INSERT INTO dead (id, time_next, time_acked, body) VALUES (1, NULL, 5, 'old')")
        with subject.connect(autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("SELECT id FROM dead WHERE id = 1 FOR UPDATE")
            result = move_dead_letters(subject, wanted)
        assert result.moved == (2,)
        assert "locked" in (result.problem or "")
        assert subject.execute("SELECT body FROM dead WHERE id = 1") == [("old",)]

    def test_an_uncommitted_insert_of_the_id_there_is_a_passing_error(self, subject: ServerSubject) -> None:
        subject.dead_letter()
        wanted = put_dead_messages(subject, 1, 2)
        with subject.connect(autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("INSERT INTO dead (id) VALUES (1)")
            with pytest.raises(StoreError) as caught:
                move_dead_letters(subject, wanted)
            other.rollback()
        assert (caught.value.code, caught.value.lasting) == (1205, False)
        assert move_dead_letters(subject, wanted) == MoveResult((1, 2))


@pytest.mark.parametrize("answer_lost", [False, True])
def test_wherever_the_connection_breaks_each_message_is_in_one_table(
    subject: ServerSubject, *, answer_lost: bool
) -> None:
    dead_letter = subject.dead_letter()
    for deadly in itertools.count(1):
        keys = set(range(10 * deadly, 10 * deadly + 3))
        wanted = put_dead_messages(subject, *keys)

        def die(at: int, connection: StoreConnection, deadly: int = deadly) -> None:
            if at == deadly:
                connection.abort()
                raise StoreError("the connection is dead", code=2013)

        hooks = (nothing, die) if answer_lost else (die, nothing)
        with interrupted_store(subject, *hooks) as store:
            try:
                store.move_dead_letters(subject.table, wanted, dead_letter)
                break
            except StoreError:
                pass
        assert [len(keys & set(ids(subject, name))) for name in ("messages", "dead")] in ([3, 0], [0, 3])

        def all_moved(wanted: Sequence[Wanted] = wanted) -> bool:
            move_dead_letters(subject, wanted)
            return ids(subject) == []

        eventually(all_moved, what="the dead connection's locks are gone, and all are moved")
        assert keys <= set(ids(subject, "dead"))
    assert deadly > 5
    assert subject.execute("SELECT DISTINCT epoch, body FROM dead") == [(3, "x")]


def test_no_column_can_be_added_while_the_tables_are_compared(subject: ServerSubject) -> None:
    dead_letter = subject.dead_letter()
    wanted = put_dead_messages(subject, 1)
    refused: list[int] = []

    def alter(_at: int, _connection: StoreConnection) -> None:
        with subject.connect() as other, other.cursor() as cursor:
            cursor.execute("SET lock_wait_timeout = 1")
            try:
                cursor.execute("ALTER TABLE messages ADD late INT")
            except pymysql.OperationalError as error:
                refused.append(error.args[0])

    def after_locking(at: int, connection: StoreConnection) -> None:
        if at == 1:
            alter(at, connection)

    with interrupted_store(subject, after=after_locking) as store:
        assert store.move_dead_letters(subject.table, wanted, dead_letter).value == MoveResult((1,))
    assert refused == [1205]


@pytest.mark.parametrize(("after", "held"), [(1, False), (2, True)])
def test_consent_is_that_of_the_moment_of_the_move(subject: ServerSubject, after: int, *, held: bool) -> None:
    """The consent is withdrawn after this many packets: before the dead-letter table is locked, or in vain."""
    dead_letter = subject.dead_letter()
    wanted = put_dead_messages(subject, 1)
    refused: list[int] = []

    def take_back(at: int, _connection: StoreConnection) -> None:
        if at != after:
            return
        with subject.connect() as other, other.cursor() as cursor:
            cursor.execute("SET lock_wait_timeout = 1")
            try:
                cursor.execute(f"ALTER TABLE dead COMMENT '{COMMENT}'")
            except pymysql.OperationalError as error:
                refused.append(error.args[0])

    with interrupted_store(subject, after=take_back) as store:
        result = store.move_dead_letters(subject.table, wanted, dead_letter).value
    assert (refused, result.moved) == (([1205], (1,)) if held else ([], ()))
    assert ids(subject) == ([] if held else [1])
