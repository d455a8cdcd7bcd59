"""CREATE QUEUE and its family through real drivers: what they make, change, refuse, and with whose rights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import mysql.connector
import pymysql
import pytest

from tests.support import insides
from tests.support.queues import create_queue, directives, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

NOW_NS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        yield connection


def refused(connection, statement: str) -> tuple[int, str]:
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, statement)
    number, text = error.value.args
    return number, text


def show(connection, name: str) -> str:
    return str(rows(connection, f"SHOW CREATE QUEUE {name}")[0][1])


def comment(connection, name: str) -> str:
    return str(
        rows(
            connection,
            "SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s",
            [name],
        )[0][0]
    )


# CREATE QUEUE.


def test_a_queue_is_made_filled_streamed_and_acknowledged_without_knowing_its_columns(connection) -> None:
    run(connection, "CREATE QUEUE orders (user_id BIGINT, payload JSON)")
    run(connection, "INSERT INTO orders (user_id, payload) VALUES (7, '{}')")
    assert rows(connection, "STREAM * FROM orders LIMIT 1 WAIT 10") == [(1, 7, "{}")]
    assert run(connection, "ACK orders WHERE id = 1") == 1


def test_it_is_a_plain_table_in_the_vitess_format(connection) -> None:
    run(connection, "CREATE QUEUE orders (user_id BIGINT)")
    assert comment(connection, "orders") == (
        "vitess_message,vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=100,vt_cache_size=10000,"
        "vt_poller_interval=30,vt_max_backoff=3600,lease=lease"
    )
    columns = rows(connection, "SHOW COLUMNS FROM orders")
    assert [(name, null, key) for name, _, null, key, *_ in columns] == [
        ("id", "NO", "PRI"),
        ("priority", "NO", ""),
        ("epoch", "NO", ""),
        ("time_next", "YES", ""),
        ("time_acked", "YES", "MUL"),
        ("lease", "YES", ""),
        ("user_id", "YES", ""),
    ]
    assert [str(kind).split("(")[0].removesuffix(" unsigned") for _, kind, *_ in columns] == [
        "bigint",
        "int",
        *["bigint"] * 5,
    ]
    keys = rows(connection, "SHOW INDEX FROM orders")
    assert [(key[2], key[4]) for key in keys] == [
        ("PRIMARY", "id"),
        *[("time_acked", name) for name in ("time_acked", "priority", "time_next", "id")],
    ]


def test_a_message_is_due_from_its_insertion_on(connection) -> None:
    run(connection, "CREATE QUEUE orders (a INT)")
    run(connection, "SET time_zone = '+05:00'")
    run(connection, "INSERT INTO orders (a) VALUES (1)")
    assert rows(connection, f"SELECT {NOW_NS} - time_next BETWEEN 0 AND 60000000000 FROM orders") == [(1,)]


def test_options_in_any_order_and_the_tables_own_beside_them(connection) -> None:
    run(
        connection,
        "CREATE QUEUE orders (a INT, KEY (a)) MAX_RATE = 100, ENGINE = InnoDB COMMENT 'it''s \\\\ mine' ACK_WAIT .5"
        " ROW_FORMAT = DYNAMIC PARTITION BY KEY (id) PARTITIONS 2",
    )
    assert comment(connection, "orders").startswith("vitess_message,vt_ack_wait=.5,")
    assert comment(connection, "orders").endswith(",max_rate=100,lease=lease,it's \\ mine")
    assert rows(connection, "STREAM * FROM orders NOWAIT") == []


def test_an_id_of_the_applications_own_type(connection) -> None:
    run(connection, "CREATE QUEUE orders (id BINARY(4), note TEXT)")
    run(connection, "INSERT INTO orders (id, note) VALUES ('abcd', 'x')")
    assert rows(connection, "STREAM * FROM orders LIMIT 1 WAIT 10") == [(b"abcd", "x")]


def test_a_dead_letter_table_is_made_with_it_and_takes_whole_rows(connection) -> None:
    run(
        connection,
        "CREATE QUEUE orders (a INT, n VARCHAR(9) UNIQUE, CONSTRAINT positive CHECK (a > 0))"
        " MAX_ATTEMPTS = 5 DEAD_LETTER = orders_dead MAX_RATE = 10",
    )
    assert "max_attempts=5,dead_letter=orders_dead,max_rate=10" in comment(connection, "orders")
    assert "max_rate" not in comment(connection, "orders_dead")
    run(connection, "INSERT INTO orders (a, n) VALUES (1, 'x')")
    run(connection, "INSERT INTO orders_dead SELECT * FROM orders")
    run(connection, "INSERT INTO orders_dead (a, n) VALUES (2, 'x')")
    assert len(rows(connection, "STREAM * FROM orders_dead NOWAIT")) == 2


def test_a_dead_letter_table_in_another_database(connection, database, server) -> None:
    with connect(server) as root:
        run(root, f"CREATE DATABASE {database}_dead")
        try:
            run(
                connection,
                "CREATE QUEUE orders (user_id BIGINT, payload JSON) ACK_WAIT = 30 MAX_ATTEMPTS = 5"
                f" DEAD_LETTER = {database}_dead.orders MAX_RATE = 100 ENGINE = InnoDB CHARSET = latin1",
            )
            assert rows(connection, f"STREAM * FROM {database}_dead.orders NOWAIT") == []
            assert f"DEAD_LETTER = '{database}_dead.orders'" in show(connection, "orders")
            assert "CHARSET=latin1" in show(connection, "orders")
        finally:
            run(root, f"DROP DATABASE {database}_dead")


def test_a_dead_letter_table_that_is_there_is_used(connection) -> None:
    run(connection, "CREATE QUEUE graveyard (a INT)")
    run(connection, "INSERT INTO graveyard (a) VALUES (1)")
    run(connection, "CREATE QUEUE orders (a INT) MAX_ATTEMPTS = 5 DEAD_LETTER = graveyard")
    assert rows(connection, "SELECT COUNT(*) FROM graveyard") == [(1,)]
    run(connection, "CREATE TABLE plain (a INT)")
    number, text = refused(connection, "CREATE QUEUE other (a INT) MAX_ATTEMPTS = 5 DEAD_LETTER = plain")
    assert (number, "plain' is not a queue" in text) == (1347, True)
    assert rows(connection, "SHOW TABLES LIKE 'other'") == []


def test_if_not_exists_leaves_what_is_there_and_makes_nothing_beside_it(connection) -> None:
    run(connection, "CREATE QUEUE IF NOT EXISTS orders (a INT)")
    run(connection, "CREATE QUEUE IF NOT EXISTS orders (b INT) MAX_ATTEMPTS = 5 DEAD_LETTER = orders_dead")
    assert [row[1] for row in rows(connection, "SHOW WARNINGS")] == [1050]
    assert rows(connection, "SHOW TABLES") == [("orders",)]
    assert refused(connection, "CREATE QUEUE orders (b INT)")[0] == 1050


@pytest.mark.parametrize(
    ("clauses", "number", "hint"),
    [
        ("(a INT) ACK_WAIT = soon", 1105, "ACK_WAIT = 'soon' is not a number of seconds"),
        ("(a INT) BATCH_SIZE = 0", 1105, "BATCH_SIZE = '0' is not a whole number from 1"),
        ("(a INT) MAX_ATTEMPTS = 3", 1105, "MAX_ATTEMPTS needs DEAD_LETTER"),
        ("(a INT) MAX_BACKOFF = 5", 1105, "MAX_BACKOFF = '5' is less than ACK_WAIT"),
        ("(a INT) COMMENT 'x, max_rate=5'", 1105, "use MAX_RATE"),
        ("(a INT) SPEED = 3", 1064, "there is no option SPEED; a queue has ACK_WAIT"),
        ("(a INT, a INT) MAX_ATTEMPTS = 3 DEAD_LETTER = orders_dead", 1060, "Duplicate column"),
        ("(priority VARCHAR(9)) MAX_ATTEMPTS = 3 DEAD_LETTER = orders_dead", 1105, "column priority is VARCHAR"),
        ("(a INT) ENGINE = MyISAM", 1105, "only InnoDB"),
        ("(a INT) MESSAGE_COLS = (id, b)", 1105, "'b', which the table does not have"),
    ],
)
def test_what_cannot_be_a_queue_is_refused_and_leaves_nothing(connection, clauses: str, number: int, hint: str) -> None:
    found, text = refused(connection, f"CREATE QUEUE orders {clauses}")
    assert found == number
    assert hint in text
    assert rows(connection, "SHOW TABLES") == []


def test_a_queue_in_another_database_and_none_selected(proxy, database) -> None:
    with proxy.connect() as connection:
        run(connection, f"CREATE QUEUE {database}.`odd ``name` (a INT)")
        assert rows(connection, f"STREAM * FROM {database}.`odd ``name` NOWAIT") == []
        assert refused(connection, "CREATE QUEUE orders (a INT)") == (1046, "No database selected")


def test_names_and_texts_in_the_clients_character_set_and_modes(proxy, database) -> None:
    with proxy.connect(database=database, charset="latin1") as connection:
        run(connection, "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'")
        run(connection, 'CREATE QUEUE "größe" ("ä" INT) COMMENT \'Größe \\ 1\' MAX_ATTEMPTS 3 DEAD_LETTER "größe_tot"')
        written = show(connection, '"größe"')
        assert "`ä` int" in written
        assert "COMMENT = 'Größe \\ 1'" in written
        run(connection, 'DROP QUEUE "größe"')
        run(connection, written)
        assert show(connection, '"größe"') == written


def test_it_ends_the_clients_transaction_as_create_table_does(proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE a (x INT)")
    run(connection, "BEGIN")
    run(connection, "INSERT INTO a (x) VALUES (1)")
    run(connection, "CREATE QUEUE b (x INT)")
    run(connection, "ROLLBACK")
    assert rows(connection, "STREAM x FROM a LIMIT 1 WAIT 10") == [(1,)]


# SHOW CREATE QUEUE.

CLAUSES = [
    "()",
    "(user_id BIGINT, payload JSON)",
    "(id BINARY(16), a INT NOT NULL DEFAULT 3, UNIQUE KEY u (a), KEY (a, id)) ACK_WAIT = 0.25 PURGE_AFTER 0",
    "(a INT, b INT AS (a + 1) STORED, c TIMESTAMP NULL COMMENT 'it''s', CHECK (a > 0)) COMMENT 'x ''y'' \\\\ z, w'",
    "(a INT) PARTITION BY HASH (id) PARTITIONS 3 MAX_RATE = 7",
    "(`odd ``name, (` INT, KEY (`odd ``name, (`)) MESSAGE_COLS = (id, `odd ``name, (`)",
    "(priority SMALLINT NOT NULL DEFAULT 5, time_next BIGINT DEFAULT 0) ON_DISCONNECT keep PAUSED = 1",
    "(a INT, PRIMARY KEY (id, a), UNIQUE (id))",
    "(a INT) MAX_ATTEMPTS 3 DEAD_LETTER dead MIN_BACKOFF 60 DEFAULT CHARSET = latin1",
]


@pytest.mark.parametrize("clauses", CLAUSES)
def test_show_create_queue_prints_a_statement_that_recreates_it(connection, clauses: str) -> None:
    if "odd" in clauses:
        clauses = clauses.replace(" MESSAGE_COLS = (id, `odd ``name, (`)", "")
    run(connection, f"CREATE QUEUE q {clauses}")
    table, written = rows(connection, "SHOW CREATE TABLE q"), show(connection, "q")
    run(connection, "DROP QUEUE q")
    run(connection, written)
    assert rows(connection, "SHOW CREATE TABLE q") == table
    assert show(connection, "q") == written


def test_show_create_queue_of_a_table_in_vitess_own_form(connection) -> None:
    create_queue(connection, "m", max_rate="9")
    written = show(connection, "m")
    assert "MAX_RATE = 9" in written
    table = rows(connection, "SHOW CREATE TABLE m")
    run(connection, "DROP TABLE m")
    run(connection, written)
    assert rows(connection, "SHOW CREATE TABLE m") == table


def test_show_create_queue_of_what_is_none(connection) -> None:
    run(connection, "CREATE TABLE t (a INT)")
    assert refused(connection, "SHOW CREATE QUEUE t")[0] == 1347
    assert refused(connection, "SHOW CREATE QUEUE nothing")[0] == 1146


# ALTER, PAUSE, RESUME, DROP.


def test_alter_queue_changes_only_what_is_named(connection) -> None:
    create_queue(connection, "m", foo="bar", max_rate="5")
    before = comment(connection, "m")
    run(connection, "ALTER QUEUE m ACK_WAIT = 7, MAX_IN_FLIGHT = 3")
    assert (
        comment(connection, "m")
        == before.replace("vt_ack_wait=30", "vt_ack_wait=7")
        .replace("max_rate=5", "max_rate=5,max_in_flight=3,lease=lease")
        .replace(",foo=bar", "")
        + ",foo=bar"
    )
    run(connection, "ALTER QUEUE m MAX_IN_FLIGHT = DEFAULT COMMENT = 'now mine'")
    assert "max_in_flight" not in comment(connection, "m")
    assert comment(connection, "m").endswith("now mine")
    number, text = refused(connection, "ALTER QUEUE m MAX_RATE = 0")
    assert (number, "MAX_RATE = '0'" in text) == (1105, True)


def test_alter_queue_takes_effect_on_a_running_stream(proxy, connection, database, consume) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) MAX_IN_FLIGHT = 1")
    consumer = consume(proxy.connect(database=database), "STREAM * FROM m LIMIT 2")
    enqueue(connection, "m", "ab")
    eventually(lambda: len(consumer.received) == 1)
    run(connection, "ALTER QUEUE m MAX_IN_FLIGHT = 5")
    assert consumer.ended.wait(10)


def test_alter_queue_makes_the_dead_letter_table_that_it_names(connection) -> None:
    run(connection, "CREATE QUEUE m (a INT UNIQUE)")
    run(connection, "ALTER QUEUE m MAX_ATTEMPTS = 3 DEAD_LETTER = m_dead")
    run(connection, "INSERT INTO m_dead (a) VALUES (1), (1)")
    assert len(rows(connection, "STREAM * FROM m_dead NOWAIT")) == 2
    assert "dead_letter=m_dead" in comment(connection, "m")


def test_two_changes_at_once_are_both_kept(proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE m (a INT)")
    run(connection, "BEGIN")
    run(connection, "SELECT * FROM m")  # Both changes have to wait for the table.
    others = [proxy.connect(database=database) for _ in range(2)]
    for other, change in zip(others, ("MAX_RATE = 5", "MAX_IN_FLIGHT = 6"), strict=True):
        insides.send(other, 3, f"ALTER QUEUE m {change}".encode())
    eventually(
        lambda: (
            rows(connection, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'ALTER TABLE%'")
            == [(1,)]
        )
    )
    run(connection, "COMMIT")
    for other in others:
        insides.answer(other)
        other.close()
    assert comment(connection, "m").endswith("vt_max_backoff=3600,lease=lease,max_rate=5,max_in_flight=6") or comment(
        connection, "m"
    ).endswith("vt_max_backoff=3600,lease=lease,max_in_flight=6,max_rate=5")


def test_pause_and_resume_change_a_directive_and_nothing_else(connection) -> None:
    create_queue(connection, "m")
    before = comment(connection, "m")
    run(connection, "PAUSE QUEUE m")
    run(connection, "PAUSE QUEUE m")
    assert comment(connection, "m") == before + ",paused=1"
    run(connection, "RESUME QUEUE m")
    assert comment(connection, "m") == before


def test_drop_queue_drops_queues_only(connection) -> None:
    run(connection, "CREATE QUEUE m (a INT)")
    run(connection, "CREATE TABLE t (a INT)")
    run(connection, "DROP QUEUE m")
    number, text = refused(connection, "DROP QUEUE t")
    assert (number, "is not a queue (DROP TABLE drops it)" in text) == (1347, True)
    assert refused(connection, "DROP QUEUE m")[0] == 1051
    run(connection, "DROP QUEUE IF EXISTS m")
    assert [row[1] for row in rows(connection, "SHOW WARNINGS")] == [1051]
    assert rows(connection, "SHOW TABLES") == [("t",)]


def test_a_queue_that_is_broken_can_be_dropped(connection) -> None:
    run(connection, f"CREATE TABLE m (a INT) COMMENT '{directives()}'")
    run(connection, "DROP QUEUE m")
    assert rows(connection, "SHOW TABLES") == []


def test_streams_on_a_dropped_queue_end_with_a_clear_error(proxy, connection, database, consume) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", "a")
    consumer = consume(proxy.connect(database=database), "STREAM * FROM m")
    eventually(lambda: consumer.received)
    run(connection, "DROP QUEUE m")
    assert consumer.ended.wait(10)
    assert isinstance(consumer.error, pymysql.MySQLError)
    assert consumer.error.args == (1105, f"The stream ended: Table '{database}.m' is no message table any more")


# PURGE and REDRIVE.


def test_purge_deletes_what_is_acknowledged_and_counts_it(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", map(str, range(2_500)))
    run(connection, "ACK m WHERE id <= 2400")
    assert run(connection, "PURGE QUEUE m") == 2_400
    assert rows(connection, "SELECT COUNT(*) FROM m") == [(100,)]
    assert run(connection, "PURGE QUEUE m") == 0


def test_purge_does_not_wait_for_rows_that_somebody_works_on(proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", "abc")
    run(connection, "ACK m WHERE id <= 2")
    with proxy.connect(database=database) as other:
        run(other, "BEGIN")
        run(other, "SELECT * FROM m WHERE id = 1 FOR UPDATE")
        assert run(connection, "PURGE QUEUE m") == 1
        run(other, "ROLLBACK")
    assert run(connection, "PURGE QUEUE m") == 1


@pytest.fixture
def graveyard(connection):
    """Queue orders, and ten dead messages of it."""
    run(
        connection,
        "CREATE QUEUE orders (payload TEXT, n INT AS (priority * 2)) MAX_ATTEMPTS = 4 DEAD_LETTER = orders_dead",
    )
    dead = ", ".join(["(4, 'x', 3)"] * 10)
    run(connection, f"INSERT INTO orders_dead (epoch, payload, priority) VALUES {dead}")
    return connection


def test_redrive_to_a_queue_with_a_column_that_has_no_default(connection) -> None:
    run(connection, "CREATE QUEUE orders (sku INT NOT NULL) MAX_ATTEMPTS = 4 DEAD_LETTER = orders_dead")
    run(connection, "INSERT INTO orders_dead (epoch, sku) VALUES (4, 7), (4, 8)")
    assert run(connection, "REDRIVE QUEUE orders_dead") == 2
    assert rows(connection, "SELECT epoch, sku FROM orders ORDER BY id") == [(0, 7), (0, 8)]


def test_redrive_moves_dead_messages_back_as_new(graveyard) -> None:
    assert run(graveyard, "REDRIVE QUEUE orders_dead") == 10
    assert rows(graveyard, "SELECT COUNT(*) FROM orders_dead") == [(0,)]
    found = rows(
        graveyard, f"SELECT epoch, priority, payload, n, {NOW_NS} - time_next < 60000000000 FROM orders WHERE id = 3"
    )
    assert found == [(0, 3, "x", 6, 1)]
    assert len(rows(graveyard, "STREAM * FROM orders LIMIT 10 WAIT 10")) == 10
    assert run(graveyard, "REDRIVE QUEUE orders_dead") == 0


def test_whoever_streams_the_dead_letters_is_given_one_as_soon_as_it_is_dead(
    proxy, connection, database, consume
) -> None:
    run(
        connection,
        "CREATE QUEUE m (payload TEXT) ACK_WAIT .1 MAX_ATTEMPTS 1 DEAD_LETTER m_dead POLLER_INTERVAL 3600",
    )
    consumer = consume(proxy.connect(database=database), "STREAM * FROM m_dead LIMIT 1")
    enqueue(connection, "m", "a")
    assert rows(connection, "STREAM * FROM m LIMIT 1 WAIT 10") == [(1, "a")]
    assert consumer.ended.wait(10)
    assert consumer.received == [(1, "a")]


def test_redrive_where_moves_those_alone(graveyard) -> None:
    assert run(graveyard, "REDRIVE QUEUE orders_dead WHERE id IN (2, 3) OR payload = 'y'") == 2
    assert rows(graveyard, "SELECT id FROM orders ORDER BY id") == [(2,), (3,)]
    assert refused(graveyard, "REDRIVE QUEUE orders_dead WHERE nonsense = 1")[0] == 1054
    assert not rows(graveyard, "SELECT 1 FROM orders WHERE id = 1")


def test_a_redrives_condition_means_what_it_means_in_the_clients_session(proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE m (`größe` VARCHAR(20)) MAX_ATTEMPTS = 4 DEAD_LETTER = m_dead")
    run(connection, r"INSERT INTO m_dead (`größe`) VALUES ('a\\b'), ('ü'), ('c')")
    with proxy.connect(database=database, charset="latin1") as client:
        run(client, "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE'")
        assert run(client, r"""REDRIVE QUEUE "m_dead" WHERE "größe" = 'a\b'""") == 1
        assert run(client, """REDRIVE QUEUE m_dead TO m WHERE NOT ("größe" <> 'ü') -- the one""") == 1
        number, text = refused(client, "REDRIVE QUEUE m_dead WHERE LENGTH(größe) = 1")
    assert (number, "functions are not possible" in text) == (1064, True)
    assert rows(connection, "SELECT id FROM m ORDER BY id") == [(1,), (2,)]


def test_redrive_to_another_queue_gives_new_ids(graveyard) -> None:
    run(graveyard, "CREATE QUEUE again (payload TEXT, n INT)")
    run(graveyard, "INSERT INTO again (payload) VALUES ('there')")
    assert run(graveyard, "REDRIVE QUEUE orders_dead TO again") == 10
    assert rows(graveyard, "SELECT COUNT(*), COUNT(DISTINCT id) FROM again") == [(11, 11)]


def test_redrive_refuses_what_would_lose_a_column(graveyard) -> None:
    run(graveyard, "CREATE QUEUE narrow (a INT)")
    number, text = refused(graveyard, "REDRIVE QUEUE orders_dead TO narrow")
    assert (number, "has no column payload" in text) == (1105, True)
    assert rows(graveyard, "SELECT COUNT(*) FROM orders_dead") == [(10,)]


def test_redrive_must_know_where_to(graveyard) -> None:
    assert "is the DEAD_LETTER of no queue" in refused(graveyard, "REDRIVE QUEUE orders")[1]
    run(graveyard, "CREATE QUEUE second (payload TEXT, n INT) MAX_ATTEMPTS = 4 DEAD_LETTER = orders_dead")
    number, text = refused(graveyard, "REDRIVE QUEUE orders_dead")
    assert (number, ".orders, " in text, ".second: say where" in text) == (1105, True, True)


def test_a_text_that_is_none_in_the_clients_character_set_is_refused(graveyard) -> None:
    with pytest.raises(pymysql.MySQLError) as caught:
        graveyard.query(b"ALTER QUEUE orders COMMENT = '\xff'")
    assert caught.value.args[0] == 1300
    assert rows(graveyard, "SELECT COUNT(*) FROM orders_dead") == [(10,)]


def test_a_message_whose_id_is_taken_stays_dead(graveyard) -> None:
    run(graveyard, "INSERT INTO orders (id, payload) VALUES (5, 'there')")
    number, text = refused(graveyard, "REDRIVE QUEUE orders_dead")
    assert (number, "1 row stays: id 5; 9 rows are" in text) == (1062, True)
    assert rows(graveyard, "SELECT id FROM orders_dead") == [(5,)]
    assert rows(graveyard, "SELECT payload FROM orders WHERE id = 5") == [("there",)]
    assert rows(graveyard, "SELECT COUNT(*) FROM orders") == [(10,)]


@pytest.mark.parametrize("statement", ["REDRIVE QUEUE orders_dead", "PURGE QUEUE orders"])
def test_neither_runs_inside_a_transaction(graveyard, statement: str) -> None:
    run(graveyard, "BEGIN")
    run(graveyard, "INSERT INTO orders (payload) VALUES ('a')")
    number, text = refused(graveyard, statement)
    assert (number, "COMMIT or ROLLBACK first" in text) == (1179, True)
    run(graveyard, "COMMIT")
    assert rows(graveyard, "SELECT COUNT(*) FROM orders") == [(1,)]


def test_kill_query_ends_a_redrive_between_batches_and_no_message_is_lost(proxy, graveyard, database) -> None:
    for _ in range(11):
        run(graveyard, "INSERT INTO orders_dead (epoch, payload) SELECT 4, payload FROM orders_dead")
    total = 10 << 11
    other = proxy.connect(database=database)
    insides.send(other, 3, b"REDRIVE QUEUE orders_dead")
    eventually(lambda: rows(graveyard, "SELECT 1 FROM orders LIMIT 1"))
    run(graveyard, f"KILL QUERY {other.thread_id()}")
    with pytest.raises(pymysql.MySQLError) as error:
        insides.answer(other)
    assert error.value.args[0] == 1317
    moved = rows(graveyard, "SELECT COUNT(*) FROM orders")[0][0]
    assert 0 < moved < total
    assert moved + rows(graveyard, "SELECT COUNT(*) FROM orders_dead")[0][0] == total
    assert run(other, "REDRIVE QUEUE orders_dead") == total - moved


# Whose rights.


@pytest.fixture
def stranger(server, database, proxy):
    """Makes connections of a user with these privileges on the test's database, or on a table of it."""
    name = f"stranger_{database}"
    opened = []

    def log_in(*grants: str):
        with connect(server) as root:
            run(root, f"CREATE USER {name}@localhost")
            for grant in grants:
                run(root, f"GRANT {grant} TO {name}@localhost")
        opened.append(proxy.connect(user=name, password="", database=database))
        return opened[-1]

    yield log_in
    for client in opened:
        client.close()
    with connect(server) as root:
        run(root, f"DROP USER IF EXISTS {name}@localhost")


@pytest.mark.parametrize(
    ("grant", "statement", "denied"),
    [
        ("SELECT", "CREATE QUEUE orders (a INT)", "CREATE"),
        ("SELECT", "ALTER QUEUE m ACK_WAIT = 5", "ALTER"),
        ("SELECT, ALTER", "ALTER QUEUE m MAX_RATE = 5", "CREATE"),
        ("SELECT, ALTER, CREATE", "ALTER QUEUE m MAX_RATE = 5", None),
        ("SELECT", "PAUSE QUEUE m", "ALTER"),
        ("SELECT", "RESUME QUEUE m", "ALTER"),
        ("SELECT", "DROP QUEUE m", "DROP"),
        ("SELECT", "PURGE QUEUE m", ""),
        ("SELECT, DELETE", "REDRIVE QUEUE dead TO m", "INSERT"),
        ("SELECT, INSERT", "REDRIVE QUEUE dead TO m", ""),
        ("SELECT, CREATE", "CREATE QUEUE IF NOT EXISTS n (a INT) DEAD_LETTER dead MAX_ATTEMPTS 1", "ALTER"),
        ("ALTER, CREATE, INSERT", "CREATE QUEUE IF NOT EXISTS n (a INT) DEAD_LETTER dead MAX_ATTEMPTS 1", None),
        ("CREATE", "CREATE QUEUE n (a INT) RETENTION BY PARTITION MAX_ATTEMPTS 1 DEAD_LETTER n_dead", None),
        ("CREATE", "SHOW QUEUES", None),
        ("CREATE", "SHOW STREAMS", None),
        ("DROP", "DROP QUEUE m", None),
        ("SELECT, DELETE", "PURGE QUEUE m", None),
        ("SELECT, ALTER", "PAUSE QUEUE m", None),
    ],
)  # fmt: skip
def test_each_statement_needs_the_clients_own_privileges(
    connection, database, stranger, grant: str, statement: str, denied: str | None
) -> None:
    run(connection, "CREATE QUEUE m (a INT)")
    run(connection, "CREATE QUEUE dead (a INT)")
    run(connection, "INSERT INTO m (a) VALUES (1)")
    run(connection, "INSERT INTO dead (a) VALUES (1)")
    run(connection, "ACK m WHERE TRUE")
    user = stranger(f"{grant} ON {database}.*")
    if denied is None:
        run(user, statement)
        return
    number, text = refused(user, statement)
    assert number in (1142, 1143)
    assert f"{denied} command denied" in text or (not denied and "command denied" in text)


@pytest.mark.parametrize(
    ("grant", "statement"),
    [
        ("SELECT, ALTER ON {}.*", "ALTER QUEUE m MAX_ATTEMPTS 1 DEAD_LETTER n_dead"),
        ("CREATE ON {}.n", "CREATE QUEUE n (a INT) MAX_ATTEMPTS 1 DEAD_LETTER n_dead RETENTION BY PARTITION"),
    ],
)
def test_a_dead_letter_table_is_made_with_the_clients_privileges_too(
    connection, database, stranger, grant: str, statement: str
) -> None:
    run(connection, "CREATE QUEUE m (a INT)")
    before = comment(connection, "m")
    user = stranger(grant.format(database))
    number, text = refused(user, statement)
    assert (number, "CREATE command denied" in text, "n_dead" in text) == (1142, True, True)
    assert rows(connection, "SHOW TABLES") == [("m",)]
    assert comment(connection, "m") == before


@pytest.mark.parametrize(
    "statement",
    [
        "SHOW CREATE QUEUE m",
        "ALTER QUEUE m MAX_RATE = 5",
        "PAUSE QUEUE m",
        "PURGE QUEUE m",
        "REDRIVE QUEUE m",
        "DROP QUEUE m",
    ],
)
def test_who_may_not_see_a_queue_learns_nothing_about_it(connection, database, stranger, statement: str) -> None:
    run(connection, "CREATE QUEUE m (a INT)")
    run(connection, "CREATE TABLE t (a INT)")
    user = stranger(f"SELECT ON {database}.t")
    there, text = refused(user, statement)
    absent, other = refused(user, statement.replace(" m", " absent"))
    assert (there, re.sub(r"(['`])m\1", r"\1absent\1", text)) == (absent, other)
    assert there == 1142


# As prepared statements, with autocommit off, beside others.


def execute(client: Any, statement: str, arguments: Sequence[object] = ()) -> tuple[int, list[Any]]:
    """Affected rows and rows of a statement, prepared and executed twice; what the first execution said."""
    cursor = client.cursor(prepared=True)
    cursor.execute(statement, arguments)
    answer = cursor.rowcount, cursor.fetchall() if cursor.description else []
    cursor.execute(statement, arguments)
    if cursor.description:
        cursor.fetchall()
    cursor.close()
    return answer


def test_each_statement_can_be_prepared(proxy, connection, database) -> None:
    with mysql.connector.connect(
        host=proxy.host, port=proxy.port, user="root", database=database, ssl_disabled=True, autocommit=True
    ) as client:
        execute(client, "CREATE QUEUE IF NOT EXISTS m (a INT) MAX_ATTEMPTS = 2 DEAD_LETTER = m_dead")
        execute(client, "ALTER QUEUE m MAX_RATE = 9")
        execute(client, "PAUSE QUEUE m")
        written = execute(client, "SHOW CREATE QUEUE m")[1][0][1]
        assert "MAX_RATE = 9" in written
        assert "PAUSED = 1" in written
        execute(client, "RESUME QUEUE m")
        run(connection, "INSERT INTO m_dead (a) VALUES (1), (2), (3), (4)")
        redrive = "REDRIVE QUEUE m_dead WHERE a > %s AND a < %s"
        assert execute(client, redrive, (1, 4))[0] == 2
        assert execute(client, redrive, ("0", 9.5))[0] == 2
        run(connection, "INSERT INTO m_dead (a) VALUES (5), (6)")
        assert execute(client, redrive, (Decimal("4.5"), None))[0] == 0
        assert execute(client, "REDRIVE QUEUE m_dead WHERE a = %s AND time_acked IS NULL", (5,))[0] == 1
        run(connection, "ACK m WHERE TRUE")
        assert execute(client, "PURGE QUEUE m")[0] == 5
        assert [row[1] for row in execute(client, "SHOW FULL QUEUES")[1] if row[0] == database] == ["m", "m_dead"]
        assert execute(client, "SHOW STREAMS")[1] == []
        execute(client, "DROP QUEUE IF EXISTS m")
    assert rows(connection, "SHOW TABLES") == [("ackstream_limits",), ("m_dead",)]


ODDLY = [
    """/* one */ cReAtE -- two\n QUEUE\t"m"("a" INT)max_attempts 2,dead_letter="m_dead" ;""",
    """ALTER/**/QUEUE\n`m`ACK_WAIT\t5\u0020;""",
    """# a line\nPAUSE QUEUE "m";""",
    """rEsUmE\r\nQUEUE\u0020/* here: */ {database} . "m" """,
    """/*;*/PURGE\fQUEUE\vm""",
    """REDRIVE QUEUE/* dead */`m_dead`TO"m"WHERE"a"=1-- so""",
    """SHOW QUEUES/**/LIKE'm'#""",
    """\n\nSHOW\nSTREAMS;\n""",
    """/**/SHOW CREATE QUEUE`m`""",
    """drop queue IF/**/EXISTS m;""",
]


def test_each_statement_with_comments_odd_spacing_and_quotes(proxy, database) -> None:
    settings = {"sql_mode": "ANSI_QUOTES", "autocommit": True, "ssl_disabled": True}
    with (
        proxy.connect(database=database, sql_mode="ANSI_QUOTES") as connection,
        mysql.connector.connect(host=proxy.host, port=proxy.port, user="root", database=database, **settings) as client,
    ):
        statements = [template.format(database=database) for template in ODDLY]
        for statement in statements:
            rows(connection, statement)
        for statement in statements:
            cursor = client.cursor(prepared=True)
            cursor.execute(statement)
            if cursor.description:
                cursor.fetchall()
            cursor.close()
        assert rows(connection, "SHOW TABLES") == [("m_dead",)]


def test_with_autocommit_off_nothing_is_left_open(proxy, database) -> None:
    with proxy.connect(database=database, autocommit=False) as connection:
        for statement in (
            "CREATE QUEUE m (a INT)",
            "SHOW CREATE QUEUE m",
            "SHOW QUEUES",
            "PURGE QUEUE m",
            "PAUSE QUEUE m",
        ):
            rows(connection, statement)
            assert not connection.server_status & 1, statement
        refused(connection, "DROP QUEUE nothing")
        with connect(proxy.server, database=database) as direct:
            run(direct, "SET lock_wait_timeout = 2")
            run(direct, "ALTER TABLE m ADD b INT")


def test_beside_another_statement_it_is_the_servers_1064(proxy, database) -> None:
    with proxy.connect(database=database, client_flag=pymysql.constants.CLIENT.MULTI_STATEMENTS) as connection:
        assert refused(connection, "CREATE QUEUE m (a INT); SELECT 1")[0] == 1064
        assert refused(connection, "SHOW QUEUES; SELECT 1")[0] == 1064


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("PAUSE m", "write PAUSE QUEUE m"),
        ("SHOW QUEUE", "write SHOW QUEUES, or SHOW CREATE QUEUE and the name of a queue"),
        ("EXPLAIN STREAM * FROM m", "EXPLAIN is not possible for STREAM"),
        ("DESCRIBE QUEUE m", "write SHOW CREATE QUEUE and its name"),
        ("STREAM * FROM m NOWAIT; SELECT 1", "has to be alone in its packet"),
    ],
)
@pytest.mark.parametrize("flags", [0, pymysql.constants.CLIENT.MULTI_STATEMENTS])
def test_what_is_nearly_a_queue_statement_gets_the_servers_error_and_a_hint(
    proxy, database, flags: int, statement: str, hint: str
) -> None:
    with proxy.connect(database=database, client_flag=flags) as connection:
        code, text = refused(connection, statement)
        assert code == (1146 if statement.startswith("DESCRIBE") else 1064)
        assert hint in text
        assert rows(connection, "SELECT 1") == [(1,)]


def test_a_hint_is_not_given_where_the_server_knows_the_statement(connection) -> None:
    run(connection, "CREATE TABLE queue (m INT, n INT)")
    run(connection, "CREATE TABLE stream (id INT)")
    assert [row[0] for row in rows(connection, "DESCRIBE queue m")] == ["m"]
    assert [row[0] for row in rows(connection, "EXPLAIN stream id")] == ["id"]
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        assert refused(connection, "PAUSE m")[0] == 1064
        assert connection.server_status & 1


def test_names_that_are_also_our_words_stay_the_applications(connection) -> None:
    run(connection, "CREATE TABLE queue (queue INT, queues INT)")
    run(connection, "ALTER TABLE queue ADD streams INT")
    run(connection, "INSERT INTO queue VALUES (1, 2, 3)")
    assert rows(connection, "SELECT queue, queues, streams FROM queue") == [(1, 2, 3)]
    assert re.match("CREATE TABLE `queue`", str(rows(connection, "SHOW CREATE TABLE queue")[0][1]))
    run(connection, "DROP TABLE queue")


# Nothing that a statement did not make is dropped by it.


def test_if_not_exists_leaves_alone_what_another_session_makes_at_the_same_time(proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE dead (a INT)")
    with proxy.connect(database=database) as holder, proxy.connect(database=database) as late:
        run(holder, "BEGIN")
        rows(holder, "SELECT * FROM dead")
        insides.send(late, 3, b"CREATE QUEUE IF NOT EXISTS q (a INT) MAX_ATTEMPTS = 3 DEAD_LETTER = dead")
        waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'ALTER TABLE%%' AND id = %s"
        eventually(lambda: rows(connection, waiting, [late.thread_id()]) == [(1,)], what="it has found no q")
        run(connection, "CREATE TABLE q (id INT) COMMENT 'vitess_message'")
        run(connection, "INSERT INTO q VALUES (7)")
        run(holder, "COMMIT")
        insides.answer(late)
        assert [row[1] for row in rows(late, "SHOW WARNINGS")] == [1050]
    assert rows(connection, "SELECT id FROM q") == [(7,)]


def test_a_dead_letter_table_stays_when_its_queue_cannot_be_made_and_the_next_one_uses_it(connection) -> None:
    create = "CREATE QUEUE {} (a BIGINT{}) MAX_ATTEMPTS = 3 DEAD_LETTER = dead"
    assert refused(connection, create.format("q", ", FOREIGN KEY (a) REFERENCES nothing (id)"))[0] in (1005, 1824)
    run(connection, create.format("other", ""))
    assert comment(connection, "dead").endswith(",dead_letter_of=q|other")


# What the client's character set cannot spell.


@pytest.mark.parametrize("charset", ["latin1", "ascii"])
def test_a_client_that_cannot_spell_a_comment_changes_it_all_the_same(
    proxy, connection, database, charset: str
) -> None:
    create_queue(connection, "m", "`订单` TEXT, `größe` TEXT", note="价格 → ''\\\\€''")
    before = comment(connection, "m")
    with proxy.connect(database=database, charset=charset) as client:
        run(client, "PAUSE QUEUE m")
        run(client, "ALTER QUEUE m MAX_RATE = 5 PAUSED = DEFAULT")
        run(client, "ALTER QUEUE m MAX_ATTEMPTS = 3 DEAD_LETTER = dead")
        assert rows(client, "SELECT @@character_set_client, @@character_set_results") == [(charset, charset)]
        assert "`??` text" in show(client, "m")
    found = {*comment(connection, "m").split(",")}
    assert found == {*before.split(","), "max_rate=5", "max_attempts=3", "dead_letter=dead"}
    assert [row[0] for row in rows(connection, "SHOW COLUMNS FROM dead")][5:] == ["订单", "größe"]


@pytest.mark.parametrize("charset", ["latin1", "ascii"])
def test_a_client_that_cannot_spell_a_visible_name_gets_question_marks(
    proxy, connection, database, charset: str
) -> None:
    run(connection, "CREATE QUEUE `订单` (a INT) MAX_ATTEMPTS = 3 DEAD_LETTER = `死`")
    run(connection, "INSERT INTO `订单` (a) VALUES (1), (2)")
    with proxy.connect(database=database, charset=charset) as client:
        found = rows(client, f"SHOW FULL QUEUES FROM {database}")
        assert [(row[1], row[3], row[6]) for row in found] == [("?", 0, None), ("??", 2, 0)]
        assert rows(client, "SELECT @@character_set_client") == [(charset,)]


def test_redrive_and_purge_by_clients_that_cannot_spell_a_column(proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE m (`订单` INT) MAX_ATTEMPTS = 3 DEAD_LETTER = dead")
    run(connection, "INSERT INTO dead (`订单`, priority) VALUES (1, 0), (2, 1)")
    with proxy.connect(database=database, charset="latin1") as client:
        assert run(client, "REDRIVE QUEUE dead WHERE priority = 0") == 1
        assert run(client, "ACK m WHERE TRUE") == 1
        assert run(client, "PURGE QUEUE m") == 1
    assert rows(connection, "SELECT `订单` FROM dead") == [(2,)]


@pytest.mark.parametrize(
    ("grants", "statement"),
    [
        (["CREATE ON {}.*"], "REDRIVE QUEUE dead TO m"),
        (["CREATE ON {}.m", "SELECT, DELETE ON {}.dead"], "REDRIVE QUEUE dead TO m"),
        (["CREATE ON {}.dead", "SELECT, INSERT ON {}.m"], "REDRIVE QUEUE dead TO m"),
        (["CREATE ON {}.*"], "PURGE QUEUE m"),
    ],
)
def test_who_may_see_a_queue_and_not_its_columns_is_denied_in_the_servers_words(
    connection, database, stranger, grants: list[str], statement: str
) -> None:
    run(connection, "CREATE QUEUE m (a INT) MAX_ATTEMPTS = 3 DEAD_LETTER = dead")
    run(connection, "INSERT INTO dead (a) VALUES (1)")
    user = stranger(*(grant.format(database) for grant in grants))
    number, text = refused(user, statement)
    assert (number, "command denied to user" in text) == (1142, True)
    assert rows(user, "SELECT 1") == [(1,)]
