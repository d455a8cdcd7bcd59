"""NACK … REASON, which keeps why a message was given back; DELAY_BY, the column by which producers delay messages."""

from __future__ import annotations

import decimal
from typing import Any

import mysql.connector
import pymysql
import pytest

from tests.support.queues import create_queue, enqueue, rows, run, user
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

NOW_NS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        yield connection


def refused(connection: Any, statement: str) -> tuple[int, str]:
    with pytest.raises(pymysql.MySQLError) as caught:
        run(connection, statement)
    return caught.value.args


def test_a_reason_and_its_time_are_kept_with_the_message(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) REASON = reason")
    enqueue(connection, "m", "ab")
    assert rows(connection, "STREAM * FROM m LIMIT 2 NOWAIT") == [(1, "a"), (2, "b")]
    assert run(connection, r"""NACK m WHERE id = 1 DELAY 60 REASON 'it''s "broken\'; DELAY 5'""") == 1
    recent = "reason_at BETWEEN UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE AND UTC_TIMESTAMP(6)"
    assert rows(connection, f"SELECT reason, {recent} FROM m") == [("it's \"broken'; DELAY 5", 1), (None, None)]
    assert rows(connection, f"SELECT time_next > {NOW_NS} + 50000000000 FROM m WHERE id = 1") == [(1,)]
    assert run(connection, "NACK m WHERE id IN (2) AND epoch = 1 REASON 'no delay'") == 1
    assert rows(connection, "STREAM id, reason, epoch FROM m LIMIT 1 WAIT 10") == [(2, "no delay", 2)]
    assert run(connection, "NACK m WHERE id = 2") == 1  # A NACK without a reason keeps the last one.
    assert rows(connection, "SELECT reason FROM m WHERE id = 2") == [("no delay",)]


def test_a_prepared_nack_takes_its_delay_and_reason_from_parameters(proxy, database, connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) REASON = reason")
    enqueue(connection, "m", "ab")
    client = mysql.connector.connect(
        host=proxy.host, port=proxy.port, user="root", database=database, autocommit=True, ssl_disabled=True
    )
    with client, client.cursor(prepared=True) as cursor:
        cursor.execute("STREAM id FROM m LIMIT 2 WAIT 10")
        assert cursor.fetchall() == [(1,), (2,)]
        cursor.execute("NACK m WHERE id = ? AND epoch = ? DELAY ? REASON ?", (1, 1, decimal.Decimal("60.5"), "zu spät"))
        assert cursor.rowcount == 1
        cursor.execute("NACK m WHERE id = ? DELAY 60 REASON ?", (2, "x" * 20_000))
        assert cursor.rowcount == 1
    assert rows(connection, "SELECT LEFT(reason, 7), CHAR_LENGTH(reason), epoch FROM m ORDER BY id") == [
        ("zu spät", 7, 1), ("x" * 7, 16_000, 1)
    ]  # fmt: skip
    assert rows(connection, f"SELECT COUNT(*) FROM m WHERE time_next > {NOW_NS} + 50000000000") == [(2,)]


def test_the_reason_goes_with_a_dead_message(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) ACK_WAIT = 30 MAX_ATTEMPTS = 1 DEAD_LETTER = m_dead REASON = why")
    enqueue(connection, "m", "a")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
    run(connection, "NACK m WHERE id = 1 REASON 'bad address'")
    eventually(lambda: rows(connection, "SELECT id, why FROM m_dead") == [(1, "bad address")])
    assert rows(connection, "SELECT why_at IS NOT NULL FROM m_dead") == [(1,)]


def test_a_queue_in_use_gets_the_column_and_its_dead_letter_table_too(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) MAX_ATTEMPTS = 1 DEAD_LETTER = m_dead")
    enqueue(connection, "m", "a")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
    code, text = refused(connection, "NACK m WHERE id = 1 REASON 'bad'")
    assert code == 1105
    assert "has no column for a REASON: ALTER QUEUE" in text
    run(connection, "ALTER QUEUE m REASON = reason")
    run(connection, "NACK m WHERE id = 1 REASON 'bad'")
    eventually(lambda: rows(connection, "SELECT id, reason FROM m_dead") == [(1, "bad")])


def test_a_column_of_the_applications_may_be_the_one(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT, error VARCHAR(5)) REASON = error")
    enqueue(connection, "m", "a")
    assert rows(connection, "STREAM id, payload FROM m LIMIT 1 WAIT 10") == [(1, "a")]
    run(connection, "NACK m WHERE id = 1 DELAY 60 REASON 'longer than that'")
    assert rows(connection, "SELECT error, error_at IS NULL FROM m") == [("longe", 0)]
    code, text = refused(connection, "CREATE QUEUE n (error INT) REASON = error")
    assert (code, "has to be VARCHAR or TEXT" in text) == (1105, True)


def test_a_column_named_reason_stays_a_column_in_conditions(connection) -> None:
    create_queue(connection, "m")
    run(connection, "ALTER TABLE m ADD COLUMN reason VARCHAR(20) DEFAULT 'x'")
    enqueue(connection, "m", "a")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
    assert run(connection, "NACK m WHERE id = 1 AND reason = 'x'") == 1


def test_the_right_to_change_the_column_is_the_clients_own(proxy, database, connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) REASON = reason")
    enqueue(connection, "m", "a")
    with user(connection, database, "SELECT", "UPDATE (epoch, time_next, time_acked)") as name, proxy.connect(
        user=name, database=database
    ) as client:  # fmt: skip
        assert rows(client, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
        assert refused(client, "NACK m WHERE id = 1 REASON 'x'")[0] == 1143
        assert run(client, "NACK m WHERE id = 1") == 1


def due_in_s(connection: Any, message: int) -> float:
    ((seconds,),) = rows(connection, f"SELECT (time_next - {NOW_NS}) / 1000000000 FROM m WHERE id = {message}")
    return float(seconds)


def test_a_producer_delays_a_message_by_seconds(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) DELAY_BY = delay_s")
    run(connection, "INSERT INTO m (payload, delay_s) VALUES ('later', 300), ('half', 0.5), ('now', NULL)")
    run(connection, "INSERT INTO m (payload) VALUES ('at once')")
    assert rows(connection, "STREAM payload FROM m LIMIT 2 WAIT 10") == [("now",), ("at once",)]
    assert rows(connection, "STREAM payload FROM m LIMIT 1 WAIT 10") == [("half",)]
    assert 250 < due_in_s(connection, 1) <= 300


@pytest.mark.parametrize("zone", ["+00:00", "-07:30"])
def test_a_producer_delays_a_message_until_a_time_of_its_own_time_zone(connection, zone: str) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT, send_at DATETIME(6)) DELAY_BY = send_at")
    run(connection, f"SET time_zone = '{zone}'")
    run(connection, "INSERT INTO m (payload, send_at) VALUES ('later', NOW(6) + INTERVAL 300 SECOND), ('now', NULL)")
    assert rows(connection, "STREAM payload FROM m LIMIT 1 WAIT 10") == [("now",)]
    assert 250 < due_in_s(connection, 1) <= 300


@pytest.mark.parametrize("column_type", ["DATETIME", "DATETIME(6)"])
def test_a_time_that_the_server_cannot_convert_is_not_due_at_once(connection, column_type: str) -> None:
    run(connection, f"CREATE QUEUE m (payload TEXT, send_at {column_type}) DELAY_BY = send_at")
    times = ["2037-06-01", "2038-01-20", "2262-01-01", "2262-05-01", "2999-12-31", "3001-02-01", "9999-12-31 23:59:59"]
    for zone in ("+00:00", "-07:30"):
        run(connection, f"SET time_zone = '{zone}'")
        for time in times:
            run(connection, f"INSERT INTO m (payload, send_at) VALUES ('{zone}', '{time}')")
    late = "LEAST(TIMESTAMPDIFF(SECOND, '1970-01-01', send_at) - IF(payload = '-07:30', -27000, 0), 9223372036)"
    found = rows(connection, f"SELECT time_next DIV 1000000000 - {late} FROM m")
    assert found == [(0,)] * 2 * len(times)
    assert rows(connection, "STREAM id FROM m NOWAIT") == []


@pytest.mark.parametrize("column_type", ["DECIMAL(20,6)", "BIGINT UNSIGNED", "DOUBLE"])
def test_a_delay_beyond_all_times_is_for_ever(connection, column_type: str) -> None:
    run(connection, f"CREATE QUEUE m (payload TEXT, after_s {column_type}) DELAY_BY = after_s")
    run(connection, "INSERT INTO m (payload, after_s) VALUES ('never', 99999999999999)")
    assert rows(connection, "SELECT time_next FROM m") == [(9_223_372_036 * 10**9,)]


def test_an_older_time_is_due(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT, send_at DATETIME) DELAY_BY = send_at")
    run(connection, "INSERT INTO m (payload, send_at) VALUES ('old', '1960-01-01')")
    assert rows(connection, "STREAM payload FROM m LIMIT 1 WAIT 10") == [("old",)]


@pytest.mark.parametrize("column_type", ["DATE", "TIME", "YEAR"])
def test_a_column_that_is_no_number_of_seconds_and_no_time_is_refused(connection, column_type: str) -> None:
    told = f"names a column of the type {column_type}: it has to be a number of seconds, or the time"
    code, text = refused(connection, f"CREATE QUEUE m (payload TEXT, send_on {column_type}) DELAY_BY = send_on")
    assert (code, told in text) == (1105, True)
    run(connection, f"CREATE QUEUE m (payload TEXT, send_on {column_type})")
    code, text = refused(connection, "ALTER QUEUE m DELAY_BY = send_on")
    assert (code, told in text) == (1105, True)


def test_the_default_of_a_former_release_is_a_problem_until_alter_queue_renews_it(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT, send_at DATETIME) DELAY_BY = send_at")
    former = f"(COALESCE(CAST(UNIX_TIMESTAMP(`send_at`) * 1000000000 AS SIGNED), {NOW_NS}))"
    run(connection, f"ALTER TABLE m ALTER COLUMN time_next SET DEFAULT {former}")
    told = "ALTER QUEUE {} DELAY_BY = send_at renews it"
    ((database,),) = rows(connection, "SELECT DATABASE()")
    eventually(lambda: told.format(f"{database}.m") in str(rows(connection, "SHOW FULL QUEUES LIKE 'm'")[0][-1]))
    run(connection, "ALTER QUEUE m DELAY_BY = send_at")
    eventually(lambda: rows(connection, "SHOW FULL QUEUES LIKE 'm'")[0][-1] is None)


def test_alter_queue_adds_the_delay_and_takes_it_away(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    run(connection, "ALTER QUEUE m DELAY_BY = delay_s")
    run(connection, "INSERT INTO m (payload, delay_s) VALUES ('later', 300)")
    assert 250 < due_in_s(connection, 1) <= 300
    run(connection, "ALTER QUEUE m DELAY_BY = NONE")
    run(connection, "INSERT INTO m (payload, delay_s) VALUES ('now', 300)")
    assert due_in_s(connection, 2) <= 0


@pytest.mark.parametrize(
    "options", ["DELAY_BY = delay_s", "REASON = reason", "REASON = why DELAY_BY = pause LEASE = NONE"]
)
def test_show_create_queue_makes_the_same_queue_again(connection, options: str) -> None:
    run(connection, f"CREATE QUEUE m (payload TEXT) {options}")
    ((_, text),) = rows(connection, "SHOW CREATE QUEUE m")
    assert "payload" in text
    assert "time_next" not in text
    assert "INVISIBLE" not in text
    (before,) = rows(connection, "SHOW CREATE TABLE m")
    run(connection, "DROP QUEUE m")
    run(connection, text)
    assert rows(connection, "SHOW CREATE TABLE m") == [before]
