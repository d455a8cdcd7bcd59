"""CREATE QUEUE … RETENTION BY PARTITION: what it makes, how it prints, and that old messages go by whole partitions."""

from __future__ import annotations

import re
from typing import Any

import mysql.connector
import pymysql
import pytest

from engine.store.partition_plan import AHEAD
from tests.support.queues import rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

HOUR = 3600


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        yield connection


def partitions(connection, name: str = "m") -> dict[str, str]:
    """The partitions of a table by name, with what they end before."""
    return dict(
        rows(
            connection,
            "SELECT partition_name, partition_description FROM information_schema.partitions"
            " WHERE table_schema = DATABASE() AND table_name = %s AND partition_name IS NOT NULL"
            " ORDER BY partition_ordinal_position",
            [name],
        )
    )


def shown(connection, name: str = "m") -> str:
    return str(rows(connection, f"SHOW CREATE QUEUE {name}")[0][1])


def plain(connection, name: str = "m") -> str:
    """SHOW CREATE TABLE, whenever it was made and whatever was in it."""
    return re.sub(r" AUTO_INCREMENT=\d+|\d{12,}", "", str(rows(connection, f"SHOW CREATE TABLE {name}")[0][1]))


def without_partitions(table: str) -> str:
    return table.partition("PARTITION BY")[0]


def refused(connection, statement: str) -> tuple[int, str]:
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, statement)
    number, text = error.value.args
    return number, text


@pytest.mark.parametrize(
    ("columns", "insert", "messages"),
    [
        ("(a INT)", "(a) VALUES (1), (2), (3)", [(1, 1), (2, 2), (3, 3)]),
        ("(id BINARY(2) /* ours */, a INT)", "VALUES ('ab', 1), ('cd', 2)", [(b"ab", 1), (b"cd", 2)]),
        ("(id VARCHAR(9) NOT NULL, KEY (id, a), a INT)", "VALUES ('x', 1), ('y', 2)", [("x", 1), ("y", 2)]),
        ("(id BIGINT, a INT, UNIQUE (time_acked, a))", "(id, a) VALUES (7, 1), (8, 2)", [(7, 1), (8, 2)]),
    ],
)
def test_messages_flow_and_lie_in_the_partition_of_their_acknowledgement(
    connection, columns: str, insert: str, messages: list[Any]
) -> None:
    run(connection, f"CREATE QUEUE m {columns} RETENTION BY PARTITION PURGE_AFTER = 36000 ENGINE = InnoDB")
    insert = insert if insert.startswith("(") else f"(id, a) {insert}"
    run(connection, f"INSERT INTO m {insert}")
    assert rows(connection, "STREAM id, a FROM m LIMIT 10 WAIT 10") == messages
    assert rows(connection, "SELECT COUNT(*) FROM m PARTITION (live)") == [(len(messages),)]
    assert run(connection, "ACK m WHERE a = 1") == 1
    assert run(connection, "ACK m WHERE a = 1") == 0
    assert run(connection, "NACK m WHERE a = 2 AND epoch = 1") == 1
    assert rows(connection, "STREAM id, a, epoch FROM m LIMIT 1 WAIT 10") == [(*messages[1], 2)]
    assert rows(connection, "SELECT COUNT(*) FROM m PARTITION (live)") == [(len(messages) - 1,)]
    made = partitions(connection)
    (first, *_), (*_, last) = made, made
    assert (first, last, len(made)) == ("live", "later", AHEAD + 3)
    assert rows(connection, f"SELECT COUNT(*) FROM m PARTITION ({', '.join(list(made)[1:3])})") == [(1,)]


@pytest.mark.timeout(240)
def test_old_messages_go_by_whole_partitions_and_not_one_by_one(private_proxy) -> None:
    """What looks at the table meanwhile is in the way of its ALTER TABLE: so the log is looked at, on a server of its
    own, where no other test's proxy is quicker. The proxy looks at new tables too, and may be in its own way once."""

    def expect_log(text: str) -> None:
        eventually(lambda: f"queue own.m: {text}" in private_proxy.output, timeout_s=90, what=text)

    with private_proxy.connect() as connection:
        run(connection, "CREATE DATABASE own")
        run(connection, "USE own")
        run(connection, f"SET timestamp = UNIX_TIMESTAMP() - 3 * {HOUR}")
        run(connection, "CREATE QUEUE m (a INT) PURGE_AFTER = 36000 RETENTION BY PARTITION")
        expect_log("made the partitions")
        run(connection, "SET timestamp = DEFAULT")
        run(connection, "CREATE TABLE deleted (id BIGINT)")
        run(connection, "CREATE TRIGGER t BEFORE DELETE ON m FOR EACH ROW INSERT INTO deleted VALUES (OLD.id)")
        names, ends = list(partitions(connection)), list(partitions(connection).values())
        for end in ends[1:3]:
            values = ", ".join([f"(NULL, {end} - 1)"] * 1_000)
            run(connection, f"INSERT INTO m (time_next, time_acked) VALUES {values}")
        run(connection, "INSERT INTO m (a) VALUES (1), (2)")
        run(connection, "ACK m WHERE a = 1")
        run(connection, "ALTER QUEUE m PURGE_AFTER = 60")
        expect_log(f"dropped the partitions {', '.join(names[1:3])}")
        assert not {*names[1:3]} & {*partitions(connection)}
        assert rows(connection, "SELECT a FROM m ORDER BY a") == [(1,), (2,)]
        assert rows(connection, "SELECT * FROM deleted") == []
        assert "PURGE_AFTER = 60\n" in shown(connection)


def test_show_create_queue_prints_it_back_and_that_recreates_the_queue(connection) -> None:
    run(connection, f"SET timestamp = UNIX_TIMESTAMP() - 2 * {HOUR}")
    run(
        connection,
        "CREATE QUEUE m (a INT, n VARCHAR(9), KEY (a)) RETENTION BY PARTITION COMMENT 'x', ROW_FORMAT = DYNAMIC"
        " PURGE_AFTER 360000",
    )
    run(connection, "SET timestamp = DEFAULT")

    def recreated() -> bool:
        written, table = shown(connection), plain(connection)
        assert "\nRETENTION BY PARTITION\n" in written
        assert "PARTITION BY RANGE" not in written
        assert "UNIQUE" not in written
        run(connection, "DROP QUEUE m")
        run(connection, written)
        again = plain(connection)
        assert shown(connection) == written
        assert without_partitions(again) == without_partitions(table)
        return again == table

    # The proxy makes the partitions of the last two hours, perhaps between the two that are compared.
    eventually(recreated)
    run(connection, "SET sql_mode = 'ANSI_QUOTES'")
    assert "\nRETENTION BY PARTITION\n" in shown(connection)


def test_an_applications_own_partitions_by_time_are_kept_as_they_are(connection) -> None:
    clause = (
        "PARTITION BY RANGE (`Time_Acked`) (PARTITION p0 VALUES LESS THAN (0), PARTITION p1 VALUES LESS THAN MAXVALUE)"
    )
    run(connection, f"CREATE QUEUE m (a INT) MAX_ATTEMPTS = 3 {clause} DEAD_LETTER = m_dead")
    run(connection, "INSERT INTO m (a) VALUES (1)")
    assert rows(connection, "STREAM * FROM m LIMIT 1 WAIT 10") == [(1, 1)]
    written, table = shown(connection), plain(connection)
    assert "RETENTION" not in written
    assert "PARTITION BY RANGE" in written
    run(connection, "DROP QUEUE m")
    run(connection, written)
    assert plain(connection) == table


def test_the_dead_letter_table_is_made_with_it_and_is_an_ordinary_one(connection) -> None:
    run(
        connection,
        "CREATE QUEUE m (a INT, UNIQUE (a, time_acked)) ACK_WAIT .1 MAX_ATTEMPTS 1 DEAD_LETTER m_dead"
        " RETENTION BY PARTITION",
    )
    run(connection, "CREATE QUEUE other (a INT) RETENTION BY PARTITION")
    run(connection, "ALTER QUEUE other MAX_ATTEMPTS 1 DEAD_LETTER other_dead")
    for name in ("m_dead", "other_dead"):
        assert partitions(connection, name) == {}
        assert "PRIMARY KEY (`id`)" in plain(connection, name)
    run(connection, "INSERT INTO m (a) VALUES (7)")
    assert rows(connection, "STREAM * FROM m LIMIT 1 WAIT 10") == [(1, 7)]
    assert rows(connection, "STREAM * FROM m_dead LIMIT 1 WAIT 10") == [(1, 7)]
    run(connection, "ALTER QUEUE m ACK_WAIT = 30")
    assert run(connection, "REDRIVE QUEUE m_dead WHERE a = 7") == 1
    assert rows(connection, "STREAM id, epoch FROM m LIMIT 1 WAIT 10") == [(1, 1)]


def test_a_dead_message_whose_id_was_acknowledged_before_is_redriven_alone(connection) -> None:
    """Ids are not unique over partitions."""
    run(connection, "CREATE QUEUE dead (a INT) RETENTION BY PARTITION")
    run(connection, "CREATE QUEUE m (a INT)")
    run(connection, "INSERT INTO dead (a) VALUES (1)")
    run(connection, "ACK dead WHERE a = 1")
    run(connection, "INSERT INTO dead (id, a) VALUES (1, 2)")
    assert run(connection, "REDRIVE QUEUE dead TO m") == 1
    assert rows(connection, "SELECT a FROM m") == [(2,)]
    assert rows(connection, "SELECT a FROM dead") == [(1,)]


def test_purge_queue_empties_it_of_what_is_acknowledged(connection) -> None:
    hundred_years_s = 36_500 * 24 * HOUR  # No proxy purges by itself what was acknowledged in 1970.
    run(connection, f"CREATE QUEUE m (a INT) RETENTION BY PARTITION PURGE_AFTER = {hundred_years_s}")
    run(connection, f"INSERT INTO m (a) VALUES {', '.join(f'({number})' for number in range(2_500))}")
    run(connection, "UPDATE m SET time_acked = 5, time_next = NULL WHERE a < 10")
    assert run(connection, "ACK m WHERE a < 2400") == 2_390
    assert run(connection, "PURGE QUEUE m") == 2_400
    assert rows(connection, "SELECT COUNT(*), MIN(a) FROM m") == [(100, 2_400)]
    assert run(connection, "PURGE QUEUE m") == 0


def test_show_queues_counts_it(connection, database) -> None:
    run(connection, "CREATE QUEUE m (a INT) RETENTION BY PARTITION")
    run(connection, "INSERT INTO m (a) VALUES (1), (2), (3)")
    run(connection, "ACK m WHERE a = 1")
    assert rows(connection, f"SHOW FULL QUEUES FROM {database}")[0][2:8] == ("running", 2, 0, 0, None, 1)


UNIQUE = "where a table is partitioned, each unique key holds time_acked"


@pytest.mark.parametrize(
    ("clauses", "number", "hint"),
    [
        ("(id INT PRIMARY KEY, a INT) RETENTION BY PARTITION", 1503, f"cannot have 'id INT PRIMARY KEY': {UNIQUE}"),
        ("(id SERIAL) RETENTION BY PARTITION", 1503, "cannot have 'id SERIAL'"),
        ("(a INT, PRIMARY KEY (id, time_acked)) RETENTION BY PARTITION", 1503, "cannot have 'PRIMARY KEY (id, time"),
        ("(a INT UNIQUE) RETENTION BY PARTITION", 1503, "UNIQUE KEY (id, time_acked) is added"),
        ("(a INT, UNIQUE KEY u (a)) RETENTION BY PARTITION", 1503, "cannot have 'UNIQUE KEY u (a)'"),
        ("(a INT) RETENTION BY PARTITION PURGE_AFTER 59.9", 1105, "PURGE_AFTER = 59.9: a partition is 60 s wide"),
        ("(a INT) RETENTION BY PARTITION RETENTION BY PARTITION", 1064, "RETENTION is given twice"),
        ("(a INT) RETENTION BY PARTITION PARTITION BY HASH (id)", 1064, "near 'PARTITION BY HASH"),
        ("(a INT) PARTITION BY KEY (id) RETENTION BY PARTITION", 1064, "leave out that, or PARTITION BY"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(connection, clauses: str, number: int, hint: str) -> None:
    found, text = refused(connection, f"CREATE QUEUE m {clauses} MAX_ATTEMPTS 3 DEAD_LETTER dead")
    assert found == number
    assert hint in text
    assert rows(connection, "SHOW TABLES") == []


def test_an_id_that_may_be_null_is_refused(connection) -> None:
    number, text = refused(connection, "CREATE QUEUE m (id INT NULL) RETENTION BY PARTITION")
    assert (number, "declare it NOT NULL" in text) == (1105, True)
    assert rows(connection, "SHOW TABLES") == []


def test_it_can_be_prepared(proxy, connection, database) -> None:
    with mysql.connector.connect(
        host=proxy.host, port=proxy.port, user="root", database=database, ssl_disabled=True
    ) as client:
        cursor = client.cursor(prepared=True)
        for _ in range(2):
            cursor.execute("create /* it */ queue if not exists m () retention by partition")
        cursor.close()
    assert len(partitions(connection)) == AHEAD + 3
