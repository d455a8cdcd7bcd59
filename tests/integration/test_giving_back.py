"""NACK and EXTEND through a real driver: when a message comes again, to whom, and what they leave alone."""

from __future__ import annotations

import struct

import mysql.connector
import pymysql
import pytest
from pymysql.constants import COMMAND

from tests.support import insides
from tests.support.queues import create_queue, enqueue, rows, run, user
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

NOW_NS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
DUE_IN_S = f"SELECT id, ROUND((CAST(time_next AS SIGNED) - {NOW_NS}) / 1e9) FROM m ORDER BY id"


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        yield connection


@pytest.fixture
def delivered(connection):
    """Messages 1 and 2, delivered to this connection and due again in 30 s."""
    create_queue(connection, "m")
    enqueue(connection, "m", "ab")
    assert rows(connection, "STREAM id, epoch FROM m NOWAIT") == [(1, 1), (2, 1)]
    return connection


@pytest.fixture
def driver(proxy, database):
    connection = mysql.connector.connect(
        host=proxy.host,
        port=proxy.port,
        user="root",
        use_pure=True,
        ssl_disabled=True,
        autocommit=True,
        database=database,
    )
    yield connection
    connection.close()


def due_in_s(connection) -> dict[int, int]:
    return {number: int(seconds) for number, seconds in rows(connection, DUE_IN_S)}


def test_a_message_given_back_goes_to_another_consumer_at_once(delivered, proxy, database, consume) -> None:
    other = consume(proxy.connect(database=database), "STREAM id, epoch FROM m LIMIT 1")
    assert run(delivered, "NACK FROM m WHERE id = 2") == 1
    assert other.ended.wait(10)
    assert other.received == [(2, 2)]


def test_a_message_given_back_with_a_delay_comes_after_it(delivered, proxy, database, consume) -> None:
    other = consume(proxy.connect(database=database), "STREAM id, epoch FROM m LIMIT 1")
    assert run(delivered, "NACK m WHERE id = 1 DELAY 0.3") == 1
    assert other.ended.wait(10)
    assert other.received == [(1, 2)]
    assert run(delivered, "NACK m WHERE id IN (1, 2) AND epoch = 1 DELAY 3600") == 1
    assert due_in_s(delivered)[2] in (3599, 3600)


def test_floats_of_a_driver_are_seconds(delivered) -> None:
    with delivered.cursor() as cursor:
        assert cursor.execute("NACK m WHERE id = %s DELAY %s", (1, 3600.0)) == 1
        assert cursor.execute("EXTEND m WHERE id = %s BY %s", (2, 0.1 + 7200.2)) == 1
        assert cursor.execute("NACK m WHERE id = %s DELAY %s", (2, 1e-7)) == 1
    assert due_in_s(delivered)[1] in (3599, 3600)
    assert due_in_s(delivered)[2] <= 0


@pytest.mark.parametrize("order", ["DELAY ? REASON ?", "REASON ? DELAY ?"])
def test_a_delay_and_a_reason_come_in_either_order(connection, driver, order) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) REASON = why")
    enqueue(connection, "m", "a")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
    values = (50, "the supplier") if order.startswith("DELAY") else ("the supplier", 50)
    with driver.cursor(prepared=True) as cursor:
        cursor.execute(f"NACK m WHERE id = ? {order}", (1, *values))
        assert cursor.rowcount == 1
    assert due_in_s(connection)[1] in (49, 50)
    assert rows(connection, "SELECT why FROM m") == [("the supplier",)]


def test_a_message_with_a_later_end_stays_with_its_holder(connection, proxy, database, consume) -> None:
    create_queue(connection, "m", vt_ack_wait="0.5", vt_min_backoff="0.5")
    enqueue(connection, "m", "ab")
    assert rows(connection, "STREAM id, epoch FROM m NOWAIT") == [(1, 1), (2, 1)]
    assert run(connection, "EXTEND FROM m WHERE id = 1 AND epoch = 1 BY 3600") == 1
    other = consume(proxy.connect(database=database), "STREAM id, epoch FROM m LIMIT 3")
    eventually(lambda: len(other.received) >= 2)
    assert {number for number, _ in other.received} == {2}
    assert run(connection, "ACK FROM m WHERE id = 1 AND epoch = 1") == 1


@pytest.mark.parametrize("statement", ["NACK m WHERE id = 1", "EXTEND m WHERE id = 1 BY 3600"])
def test_rolled_back_it_leaves_the_message_as_it_was(delivered, proxy, database, statement) -> None:
    before = rows(delivered, "SELECT * FROM m")
    run(delivered, "BEGIN")
    assert run(delivered, statement) == 1
    run(delivered, "ROLLBACK")
    assert rows(delivered, "SELECT * FROM m") == before
    with proxy.connect(database=database) as other:
        assert rows(other, "STREAM id FROM m NOWAIT") == []


def test_in_a_transaction_it_takes_effect_with_the_commit(delivered, proxy, database, consume) -> None:
    other = consume(proxy.connect(database=database), "STREAM id, epoch FROM m LIMIT 1")
    run(delivered, "BEGIN")
    assert run(delivered, "NACK m WHERE id = 1") == 1
    assert run(delivered, "ACK m WHERE id = 2") == 1
    assert other.received == []
    run(delivered, "COMMIT")
    assert other.ended.wait(10)
    assert other.received == [(1, 2)]


@pytest.mark.parametrize("time", ["NACK m WHERE {}", "NACK m WHERE {} DELAY 5", "EXTEND m WHERE {} BY 5"])
def test_only_messages_that_are_delivered_and_not_acknowledged_are_touched(delivered, time) -> None:
    enqueue(delivered, "m", "c")
    run(delivered, "ACK m WHERE id = 1")
    before = rows(delivered, "SELECT * FROM m WHERE id <> 2 ORDER BY id")
    assert run(delivered, time.format("id = 2 AND epoch = 7")) == 0
    assert run(delivered, time.format("id IN (1, 3)")) == 0
    assert run(delivered, time.format("id IN (1, 2, 3)")) == 1
    assert run(delivered, time.format("id = 2 OR TRUE /* all */")) == 1
    assert rows(delivered, "SELECT * FROM m WHERE id <> 2 ORDER BY id") == before


@pytest.fixture(params=["%s", "?"], ids=["text", "prepared"])
def extend(request, driver):
    """EXTEND of the first delivery of message 1 by ten minutes; returns the affected rows."""
    cursor = driver.cursor(prepared=request.param == "?")

    def extended() -> int:
        places = request.param
        cursor.execute(f"EXTEND m WHERE id = {places} AND epoch = {places} BY {places}", (1, 1, 600))
        return int(cursor.rowcount)

    yield extended
    cursor.close()


@pytest.mark.parametrize("delay", ["", "DELAY 60"])
def test_a_heartbeat_that_comes_after_the_message_was_given_back_leaves_it_alone(connection, extend, delay) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", "a")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
    assert extend() == 1
    assert run(connection, f"NACK m WHERE id = 1 AND epoch = 1 {delay}") == 1
    before = rows(connection, "SELECT time_next, lease FROM m")
    assert extend() == 0
    assert rows(connection, "SELECT time_next, lease FROM m") == before
    if not delay:
        assert rows(connection, "STREAM id, epoch FROM m LIMIT 1 WAIT 10") == [(1, 2)]


def test_without_a_lease_column_a_message_that_was_given_back_at_once_is_left_alone(delivered, extend) -> None:
    assert extend() == 1
    assert run(delivered, "NACK m WHERE id = 1 AND epoch = 1") == 1
    assert extend() == 0
    assert rows(delivered, "STREAM id, epoch FROM m LIMIT 1 WAIT 10") == [(1, 2)]


def test_a_delivery_whose_wait_is_over_is_not_extended(connection, extend) -> None:
    """The message may be with another consumer in a moment."""
    run(connection, "CREATE QUEUE m (payload TEXT) ACK_WAIT = 0.2")
    enqueue(connection, "m", "a")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 10") == [(1,)]
    eventually(lambda: rows(connection, f"SELECT 1 FROM m WHERE time_next < {NOW_NS}") == [(1,)])
    assert extend() == 0
    assert run(connection, "ACK m WHERE id = 1 AND epoch = 1") == 1


def test_the_epoch_stays_that_of_the_delivery(delivered) -> None:
    run(delivered, "NACK m WHERE id = 1 DELAY 5")
    run(delivered, "EXTEND m WHERE id = 2 BY 5")
    assert rows(delivered, "SELECT epoch FROM m") == [(1,), (1,)]


@pytest.mark.parametrize("statement", ["NACK m WHERE id = 1 DELAY 5", "EXTEND m WHERE id = 1 BY 5"])
def test_a_client_needs_update_on_the_table(delivered, proxy, database, statement) -> None:
    with user(delivered, database, "SELECT") as name, proxy.connect(user=name, database=database) as reader:
        with pytest.raises(pymysql.MySQLError) as error:
            run(reader, statement)
        assert error.value.args[0] == 1142


def test_prepared_they_take_parameters_everywhere(delivered, driver) -> None:
    cursor = driver.cursor(prepared=True)
    for seconds in (100, 200.5, "300", 3_155_760_000):  # Types differ from one execution to the next.
        cursor.execute("NACK FROM m WHERE id IN (?, ?) AND epoch = ? DELAY ?", (1, 9, 1, seconds))
        assert cursor.rowcount == 1
        assert abs(due_in_s(delivered)[1] - float(seconds)) <= 1
    cursor.execute("EXTEND FROM m WHERE id = ? BY 50", (2,))
    assert cursor.rowcount == 1
    cursor.execute("EXTEND m WHERE id = 1 BY ?", (60,))
    assert cursor.rowcount == 1
    assert all(abs(due_in_s(delivered)[number] - seconds) <= 1 for number, seconds in ((1, 60), (2, 50)))
    cursor.execute("NACK FROM m WHERE payload = ? AND ? IS NULL DELAY ?", ("b", None, 70))
    assert cursor.rowcount == 1
    assert abs(due_in_s(delivered)[2] - 70) <= 1
    cursor.close()


@pytest.mark.parametrize("seconds", [-1, None, "soon", 3_155_760_001])
def test_a_prepared_time_that_cannot_be_is_refused_and_the_statement_stays_usable(delivered, driver, seconds) -> None:
    cursor = driver.cursor(prepared=True)
    with pytest.raises(mysql.connector.Error, match="BY takes seconds from 0 to 3155760000") as error:
        cursor.execute("EXTEND m WHERE id = ? BY ?", (1, seconds))
    assert error.value.errno == 1210
    cursor.execute("EXTEND m WHERE id = ? BY ?", (1, 5))
    assert cursor.rowcount == 1
    cursor.close()


def test_a_prepared_statement_wakes_the_next_consumer(delivered, driver, proxy, database, consume) -> None:
    other = consume(proxy.connect(database=database), "STREAM id, epoch FROM m LIMIT 2")
    cursor = driver.cursor(prepared=True)
    cursor.execute("NACK m WHERE id = ? DELAY ?", (2, 0))
    eventually(lambda: other.received == [(2, 2)])
    cursor.execute("NACK m WHERE id = ?", (1,))
    assert other.ended.wait(10)
    cursor.close()


def test_types_and_long_data_find_their_place_though_the_parameters_change_theirs(delivered) -> None:
    def command(byte: int, body: bytes) -> None:
        insides.send(delivered, byte, body)

    def executed(body: bytes) -> int:
        command(COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", number, 0, 1) + body)
        return insides.affected(delivered)

    command(COMMAND.COM_STMT_PREPARE, b"NACK m WHERE payload = ? AND id = ? DELAY ?")
    number = struct.unpack_from("<I", insides.packet(delivered), 1)[0]
    for _ in range(4):  # Three parameters and what ends them.
        insides.packet(delivered)
    typed = b"\0\x01" + b"\xfd\0" + b"\x08\0" + b"\x08\0"
    with pytest.raises(pymysql.MySQLError, match="DELAY takes seconds"):
        executed(typed + b"\x01a" + struct.pack("<qq", 1, -1))
    # The server has not seen the types, and a driver does not send them twice.
    assert executed(b"\0\0" + b"\x01a" + struct.pack("<qq", 1, 50)) == 1
    for payload, message, seconds in ((b"a", 1, 100), (b"b", 2, 200)):  # The second finds nothing of the first.
        command(COMMAND.COM_STMT_SEND_LONG_DATA, struct.pack("<IH", number, 0) + payload)
        assert executed(typed + struct.pack("<qq", message, seconds)) == 1
        assert abs(due_in_s(delivered)[message] - seconds) <= 1
    assert executed(typed + b"\x01a" + struct.pack("<qq", 1, 300)) == 1
    command(COMMAND.COM_STMT_SEND_LONG_DATA, struct.pack("<IH", number, 2) + b"5")
    with pytest.raises(pymysql.MySQLError, match="DELAY takes seconds") as error:
        executed(typed + b"\x01a" + struct.pack("<q", 1))
    assert error.value.args[0] == 1210
    assert executed(typed + b"\x01a" + struct.pack("<qq", 1, 400)) == 1
    assert abs(due_in_s(delivered)[1] - 400) <= 1
