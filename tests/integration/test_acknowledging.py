"""ACK through a real driver: what it counts, what it fences, and what it is part of."""

from __future__ import annotations

import mysql.connector
import pymysql
import pytest
from pymysql.constants import CLIENT

from tests.support.queues import create_queue, enqueue, rows, run, user
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        yield connection


def test_affected_rows_are_the_messages_that_this_statement_acknowledged(connection) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", "abcd")
    assert run(connection, "ACK FROM m WHERE id IN (1, 2)") == 2
    assert run(connection, "ACK m WHERE id IN (1, 2, 3)") == 1
    assert run(connection, "ACK FROM m WHERE id = 99") == 0


def test_an_acknowledged_message_has_its_time_and_no_next_delivery(connection) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", "a")
    run(connection, "ACK FROM m WHERE id = 1")
    now_ns = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
    assert rows(connection, f"SELECT time_next, {now_ns} - time_acked BETWEEN 0 AND 60000000000 FROM m") == [(None, 1)]


def test_an_acknowledged_message_is_not_delivered_again(connection) -> None:
    create_queue(connection, "m", vt_ack_wait="0.3", vt_min_backoff="0.1")
    enqueue(connection, "m", "ab")
    assert len(rows(connection, "STREAM id FROM m NOWAIT")) == 2
    run(connection, "ACK FROM m WHERE id = 1")
    assert rows(connection, "STREAM id, epoch FROM m WAIT 10") == [(2, 2)]


def test_the_epoch_fences_a_late_consumer(connection) -> None:
    create_queue(connection, "m", vt_ack_wait="0.3", vt_min_backoff="0.1")
    enqueue(connection, "m", "a")
    assert rows(connection, "STREAM id, epoch FROM m NOWAIT") == [(1, 1)]
    assert rows(connection, "STREAM id, epoch FROM m WAIT 10") == [(1, 2)]
    assert run(connection, "ACK FROM m WHERE id = 1 AND epoch = 1") == 0
    assert run(connection, "ACK FROM m WHERE id = 1 AND epoch = 2") == 1


def test_an_acknowledgement_is_part_of_the_clients_transaction(connection, proxy, database, consume) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", "a")
    consumer = consume(proxy.connect(database=database), "STREAM * FROM m PREFETCH 1 LIMIT 2")
    eventually(lambda: consumer.received)
    enqueue(connection, "m", "b")
    run(connection, "BEGIN")
    assert run(connection, "ACK FROM m WHERE id = 1") == 1
    run(connection, "ROLLBACK")
    assert rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(2,)]
    run(connection, "BEGIN")
    assert run(connection, "ACK FROM m WHERE id = 1") == 1
    run(connection, "COMMIT")
    assert consumer.ended.wait(10)
    assert [number for number, _ in consumer.received] == [1, 2]


def test_a_message_acknowledged_by_plain_update_frees_the_consumers_credit(
    connection, proxy, database, consume
) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", "ab")
    consumer = consume(proxy.connect(database=database), "STREAM * FROM m PREFETCH 1 LIMIT 2")
    eventually(lambda: consumer.received)
    run(connection, "UPDATE m SET time_acked = 1, time_next = NULL WHERE id = 1")
    assert consumer.ended.wait(10)
    assert [number for number, _ in consumer.received] == [1, 2]


def test_a_condition_cannot_undo_the_guard(connection) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", "ab")
    assert run(connection, "ACK FROM m WHERE id = 1") == 1
    assert run(connection, "ACK FROM m WHERE id = 1 OR TRUE -- all of them") == 1
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, "ACK FROM m WHERE id = 1) OR (TRUE")
    assert error.value.args[0] == 1064


def test_a_client_needs_update_on_the_table(connection, proxy, database) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", "a")
    with user(connection, database, "SELECT") as name, proxy.connect(user=name, database=database) as reader:
        with pytest.raises(pymysql.MySQLError) as error:
            run(reader, "ACK FROM m WHERE id = 1")
        assert error.value.args[0] == 1142


def test_words_of_ours_stay_names_of_the_applications(connection) -> None:
    run(connection, "CREATE TABLE stream (ack INT, `stream` INT)")
    assert run(connection, "INSERT INTO stream VALUES (1, 2)") == 1
    assert rows(connection, "SELECT ack AS nack, stream.`stream` AS extend FROM stream") == [(1, 2)]


def test_an_ack_beside_another_statement_in_a_packet_is_refused_by_the_server(proxy, database, connection) -> None:
    create_queue(connection, "m")
    with proxy.connect(database=database, client_flag=CLIENT.MULTI_STATEMENTS) as multi:
        with pytest.raises(pymysql.MySQLError) as error:
            rows(multi, "STREAM * FROM m NOWAIT; SELECT 1")
        assert error.value.args[0] == 1064


@pytest.mark.parametrize("prepared_in", ["other", "database"])
def test_prepared_statements_stream_and_acknowledge_in_the_binary_protocol(proxy, database, prepared_in) -> None:
    with proxy.connect(database=database) as plain:
        create_queue(plain, "m", "payload TEXT, amount DECIMAL(8,2), nothing INT, moment DATETIME(3), tiny TINYINT")
        run(
            plain,
            "INSERT INTO m (payload, amount, moment, tiny)"
            " VALUES ('a', 1.5, '2026-01-02 03:04:05.678', -3), ('b', NULL, NULL, 4)",
        )
        columns = "id, payload, amount, nothing, moment, tiny"
        with plain.cursor() as cursor:
            cursor.execute(f"SELECT {columns} FROM m ORDER BY id")
            expected = list(cursor.fetchall())
    options = {"database": database} if prepared_in == "database" else {}
    name = "m" if prepared_in == "database" else f"`{database}`.m"
    connection = mysql.connector.connect(
        host=proxy.host, port=proxy.port, user="root", use_pure=True, ssl_disabled=True, autocommit=True, **options
    )
    try:
        cursor = connection.cursor(prepared=True)
        received: list[object] = []
        for _ in range(2):  # the second execution reuses the statement
            cursor.execute(f"STREAM {columns} FROM {name} LIMIT ? WAIT ?", (1, 5))
            received += cursor.fetchall()
        assert received == expected
        cursor.execute(f"ACK FROM {name} WHERE id IN (?, ?) AND epoch = ?", (1, 2, 1))
        assert cursor.rowcount == 2
        cursor.execute(f"STREAM * FROM {name} NOWAIT")
        assert cursor.fetchall() == []
        cursor.close()
    finally:
        connection.close()
