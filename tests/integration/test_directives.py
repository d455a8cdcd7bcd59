"""Each directive of a message table's comment, as its consumers see it: through a proxy, on both servers."""

from __future__ import annotations

import contextlib
import itertools

import pymysql
import pytest

from tests.support.insides import vanish
from tests.support.proxies import environment, running_proxy
from tests.support.queues import create_queue, directives, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"


@pytest.fixture
def queue(proxy, database):
    """Makes the queue `m` with these directives; gives a connection through the proxy."""
    connections = []

    def make(**changed: str):
        connection = proxy.connect(database=database)
        create_queue(connection, "m", **changed)
        assert rows(connection, "STREAM id FROM m NOWAIT") == []
        connections.append(connection)
        return connection

    yield make
    for connection in connections:
        connection.close()


# Attempts and dead letters.


def test_a_message_delivered_as_often_as_it_may_be_moves_to_the_dead_letter_table(queue) -> None:
    connection = queue(vt_ack_wait="0.05", max_attempts="2", dead_letter="graves")
    create_queue(connection, "graves", dead_letter_of="m")
    enqueue(connection, "m", ["poison"])
    epochs = [rows(connection, "STREAM id, epoch FROM m LIMIT 1 WAIT 5") for _ in range(2)]
    assert epochs == [[(1, 1)], [(1, 2)]]
    eventually(
        lambda: rows(connection, "SELECT id, epoch, payload, time_acked FROM graves") == [(1, 2, "poison", None)]
    )
    assert rows(connection, "SELECT * FROM m") == []
    assert rows(connection, "STREAM id, payload FROM graves LIMIT 1 WAIT 5") == [(1, "poison")]


@pytest.mark.parametrize("end", ["NACK", "the client vanishes"])
def test_a_message_whose_last_delivery_fails_is_dead_though_nobody_streams(queue, proxy, database, end) -> None:
    connection = queue(vt_ack_wait="60", max_attempts="1", dead_letter="graves")
    create_queue(connection, "graves", dead_letter_of="m")
    enqueue(connection, "m", ["poison"])
    worker = proxy.connect(database=database)
    assert rows(worker, "STREAM id FROM m LIMIT 1 WAIT 5") == [(1,)]
    if end == "NACK":
        assert run(worker, "NACK FROM m WHERE id = 1") == 1
    else:
        vanish(worker)
    eventually(lambda: rows(connection, "SELECT id, epoch FROM graves") == [(1, 1)])
    assert rows(connection, "SELECT * FROM m") == []


# Rates and pauses.


def test_a_rate_is_kept_over_all_streams_and_spread_over_the_second(queue, proxy, database) -> None:
    connection = queue()
    run(connection, "ALTER QUEUE m MAX_RATE = 50")
    enqueue(connection, "m", [str(number) for number in range(60)])
    began = rows(connection, f"SELECT {NOW}")[0][0]
    got = rows(connection, "STREAM id FROM m LIMIT 30 WAIT 5")
    took_ns = rows(connection, f"SELECT {NOW}")[0][0] - began
    assert len(got) == 30
    assert took_ns >= 29 / 50 * 1e9
    claimed = sorted(row[0] for row in rows(connection, "SELECT time_next FROM m WHERE epoch = 1"))
    gaps_ns = [late - early for early, late in itertools.pairwise(claimed)]
    assert sum(gap < 5_000_000 for gap in gaps_ns) <= 3, "messages went in bursts"


def test_a_paused_queue_takes_messages_and_acknowledgements_and_delivers_nothing_until_it_is_resumed(queue) -> None:
    connection = queue(paused="1")
    enqueue(connection, "m", ["a", "b"])
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 0.1") == []
    assert run(connection, "ACK FROM m WHERE id = 1") == 1
    run(connection, f"ALTER TABLE m COMMENT '{directives()}'")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 5") == [(2,)]


def test_no_more_than_max_in_flight_are_out_over_all_streams(queue, proxy, database) -> None:
    connection = queue()
    run(connection, "ALTER QUEUE m MAX_IN_FLIGHT = 3")
    enqueue(connection, "m", list("abcde"))
    with proxy.connect(database=database) as other:
        first = rows(connection, "STREAM id FROM m LIMIT 2 NOWAIT")
        second = rows(other, "STREAM id FROM m NOWAIT")
        assert (len(first), len(second)) == (2, 1)
        assert run(other, "ACK FROM m WHERE id = 1") == 1
        assert len(rows(connection, "STREAM id FROM m WAIT 10")) == 1


# Waits.


def test_the_wait_for_an_acknowledgement_doubles_between_its_bounds(queue) -> None:
    connection = queue(vt_ack_wait="0.05", vt_min_backoff="0.1", vt_max_backoff="0.2")
    enqueue(connection, "m", ["again and again"])
    waits_ns = []
    for _ in range(4):
        assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 5") == [(1,)]
        now_ns = rows(connection, f"SELECT time_next - {NOW} FROM m")[0][0]
        waits_ns.append(now_ns)
    assert all(waits_ns[0] <= 100_000_000 for _ in waits_ns[:1])
    assert all(50_000_000 <= wait_ns <= 200_000_000 * 1.33 for wait_ns in waits_ns[1:])


def test_messages_that_failed_together_do_not_come_back_together(queue) -> None:
    connection = queue(vt_ack_wait="100", vt_max_backoff="3600")
    enqueue(connection, "m", [str(number) for number in range(200)])
    run(connection, "UPDATE m SET epoch = 3")
    assert len(rows(connection, "STREAM id FROM m LIMIT 200 WAIT 5")) == 200
    waits_s = sorted(row[0] / 1e9 for row in rows(connection, f"SELECT time_next - {NOW} FROM m"))
    assert len({int(wait_s) for wait_s in waits_s}) > 60
    assert waits_s[0] > 800 - 30
    assert waits_s[-1] <= 800 * 1.33
    assert 800 * 1.1 < sum(waits_s) / 200 < 800 * 1.23


@pytest.mark.parametrize("epoch", [54, 63, 64, 1_000_000, 2**62])
def test_a_wait_is_safe_at_any_epoch(queue, epoch: int) -> None:
    connection = queue(vt_ack_wait="30", vt_max_backoff="3600")
    enqueue(connection, "m", ["old"])
    run(connection, f"UPDATE m SET epoch = {epoch}")
    assert rows(connection, "STREAM id, epoch FROM m LIMIT 1 WAIT 5") == [(1, epoch + 1)]
    (wait_ns,) = rows(connection, f"SELECT time_next - {NOW} FROM m")[0]
    assert 3_500 * 1e9 < wait_ns <= 3_600 * 1.33 * 1e9


# Live changes.


def test_a_changed_comment_changes_running_streams(queue, proxy, database, consume) -> None:
    connection = queue(vt_message_cols="id")
    stream = consume(proxy.connect(database=database), "STREAM * FROM m")
    enqueue(connection, "m", ["a"])
    eventually(lambda: stream.received == [(1,)])
    run(connection, "ALTER TABLE m ADD COLUMN more INT NOT NULL DEFAULT 7")
    run(connection, f"ALTER TABLE m COMMENT '{directives(vt_message_cols='id|payload', vt_ack_wait='0.05')}'")

    def comes_again() -> bool:
        enqueue(connection, "m", ["b"])
        return any(stream.received.count(row) > 1 for row in stream.received)

    eventually(comes_again, what="the new wait holds")
    assert {len(row) for row in stream.received} == {1}, "the columns of an open stream stay as announced"
    with proxy.connect(database=database) as other, other.cursor() as cursor:
        cursor.execute("STREAM * FROM m NOWAIT")
        assert [column[0] for column in cursor.description] == ["id", "payload"]


def test_a_broken_table_says_all_that_is_wrong_and_harms_no_other(queue) -> None:
    connection = queue()
    run(connection, "CREATE TABLE broken (id INT) COMMENT 'vitess_message,vt_ack_wait=soon,vt_batch_size=0'")
    with pytest.raises(pymysql.MySQLError) as refused:
        rows(connection, "STREAM * FROM broken")
    text = str(refused.value)
    for problem in ("vt_ack_wait='soon'", "vt_purge_after is missing", "vt_batch_size='0'", "column epoch is missing"):
        assert problem in text
    enqueue(connection, "m", ["fine"])
    assert rows(connection, "STREAM payload FROM m LIMIT 1 WAIT 5") == [("fine",)]


@pytest.fixture
def change(proxy, database):
    """Gives the queue `m` other directives; returns when the proxy has said that it knows."""
    said = f"queue {database}.m: its policy changed"

    def alter(connection, **changed: str) -> None:
        before = proxy.output.count(said)
        run(connection, f"ALTER TABLE m COMMENT '{directives(**changed)}'")
        eventually(lambda: proxy.output.count(said) > before)

    return alter


def claims(connection) -> list[int]:
    """How many messages each claim took: those of one claim end at the same time."""
    return [int(count) for (count,) in rows(connection, "SELECT COUNT(*) FROM m WHERE epoch = 1 GROUP BY time_next")]


def test_a_batch_holds_no_more_than_the_batch_size_also_when_that_changes(
    queue, change, proxy, database, consume
) -> None:
    connection = queue(vt_batch_size="2")
    stream = consume(proxy.connect(database=database), "STREAM id FROM m")
    enqueue(connection, "m", "abcdefghij")
    eventually(lambda: len(stream.received) == 10)
    assert max(claims(connection)) == 2
    change(connection, vt_batch_size="5")
    enqueue(connection, "m", "klmnopqrst")
    eventually(lambda: len(stream.received) == 20)
    assert max(claims(connection)) == 5


def test_no_more_than_the_cache_size_are_out_also_when_that_changes(queue, change, proxy, database, consume) -> None:
    connection = queue(vt_cache_size="3")
    streams = [consume(proxy.connect(database=database), "STREAM id FROM m") for _ in range(2)]
    enqueue(connection, "m", "abcdefgh")

    def out() -> int:
        return sum(len(stream.received) for stream in streams)

    eventually(lambda: out() == 3)
    assert rows(connection, "SELECT COUNT(*) FROM m WHERE epoch = 1") == [(3,)]
    change(connection, vt_cache_size="5")
    eventually(lambda: out() == 5)
    assert rows(connection, "SELECT COUNT(*) FROM m WHERE epoch = 1") == [(5,)]


def test_the_age_of_what_is_purged_can_be_part_of_a_second_and_change(queue, change) -> None:
    connection = queue(vt_purge_after="3600")
    enqueue(connection, "m", "ab")
    assert run(connection, "ACK FROM m WHERE id = 1") == 1
    change(connection, vt_purge_after="0.5")
    eventually(lambda: rows(connection, "SELECT id FROM m") == [(2,)])


def test_the_table_is_polled_as_often_as_it_says_also_when_that_changes(
    queue, change, proxy, database, consume
) -> None:
    connection = queue(vt_poller_interval="3600")
    consume(proxy.connect(database=database), "STREAM id FROM m")
    change(connection, vt_poller_interval="0.02")
    before = proxy.metric("scans_total")
    eventually(lambda: proxy.metric("scans_total") > before + 20)


@pytest.mark.parametrize("neighbour", ["empty", "locked"])
def test_a_message_that_nothing_reports_is_found_by_a_poll_also_beside_a_locked_queue(
    private_server, tmp_path, consume, neighbour
) -> None:
    """Queues that were empty share a statement, which waits for the lock and then fails for all of them."""
    with contextlib.ExitStack() as stack:
        with environment(ACKSTREAM_BINLOG="off"):
            proxy = stack.enter_context(running_proxy(private_server, tmp_path / "log"))
        past, locker = (stack.enter_context(connect(private_server)) for _ in range(2))
        run(past, "CREATE DATABASE p")
        for connection in (past, locker):
            connection.select_db("p")
        for name in ("m", "other"):
            create_queue(past, name, vt_poller_interval="1")
        stream, _ = (consume(proxy.connect(database="p"), f"STREAM payload FROM {name}") for name in ("m", "other"))
        before = proxy.metric("scans_total")
        eventually(lambda: proxy.metric("scans_total") > before + 4, what="polls of empty queues")
        if neighbour == "locked":
            run(locker, "LOCK TABLES other WRITE")
        enqueue(past, "m", ["unreported"])
        eventually(lambda: stream.received == [("unreported",)])
        run(locker, "UNLOCK TABLES")


def test_the_bounds_of_the_wait_hold_for_the_next_delivery_after_they_changed(queue, change) -> None:
    connection = queue(vt_ack_wait="0.05", vt_max_backoff="0.05")
    enqueue(connection, "m", "a")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 5") == [(1,)]
    change(connection, vt_ack_wait="0.05", vt_min_backoff="100.5")
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 5") == [(1,)]
    ((wait_ns,),) = rows(connection, f"SELECT time_next - {NOW} FROM m")
    assert 100 * 1e9 < wait_ns < 100.5 * 1.34e9


def test_a_rate_that_is_lifted_lets_the_rest_go(queue, change, proxy, database, consume) -> None:
    connection = queue()
    run(connection, "ALTER QUEUE m MAX_RATE = 0.5")
    stream = consume(proxy.connect(database=database), "STREAM id FROM m")
    enqueue(connection, "m", [str(number) for number in range(50)])
    eventually(lambda: stream.received)
    assert len(stream.received) <= 3
    change(connection)
    eventually(lambda: len(stream.received) == 50)


def test_attempts_that_are_limited_later_count_from_the_beginning(queue, change, proxy, database, consume) -> None:
    connection = queue(vt_ack_wait="0.05", vt_max_backoff="0.05")
    create_queue(connection, "graves", dead_letter_of="m")
    stream = consume(proxy.connect(database=database), "STREAM epoch FROM m")
    enqueue(connection, "m", ["poison"])
    eventually(lambda: (3,) in stream.received)
    change(connection, vt_ack_wait="0.05", vt_max_backoff="0.05", max_attempts="2", dead_letter="graves")
    eventually(lambda: rows(connection, "SELECT payload FROM graves") == [("poison",)])
    assert rows(connection, "SELECT id FROM m") == []


def test_what_becomes_of_a_vanished_consumers_messages_is_decided_when_it_vanishes(
    queue, change, proxy, database, consume
) -> None:
    connection = queue()
    consumer = consume(proxy.connect(database=database), "STREAM id FROM m")
    enqueue(connection, "m", ["a"])
    eventually(lambda: consumer.received)
    change(connection, on_disconnect="keep")
    consumer.vanish()
    assert rows(connection, "STREAM id FROM m WAIT 0.5") == []
    second = consume(proxy.connect(database=database), "STREAM id FROM m")
    enqueue(connection, "m", ["b"])
    eventually(lambda: second.received == [(2,)])
    change(connection)
    second.vanish()
    assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 5") == [(2,)]


def test_words_that_nobody_knows_and_spaces_in_the_comment_are_passed_over(queue) -> None:
    connection = queue()
    comment = directives(vt_message_type="x", vt_ack_wait=" 7.5 ").replace(",", " , ")
    run(connection, f"ALTER TABLE m COMMENT 'orders; see the wiki , {comment}'")
    enqueue(connection, "m", ["a"])
    assert rows(connection, "STREAM payload FROM m LIMIT 1 WAIT 5") == [("a",)]
    assert rows(connection, f"SELECT (time_next - {NOW}) / 1e9 BETWEEN 3 AND 7.5 FROM m") == [(1,)]


# Schedules.


def test_scheduled_messages_go_out_in_the_order_of_time_and_none_early(queue, proxy, database, consume) -> None:
    connection = queue()
    run(
        connection,
        "INSERT INTO m (id, time_next, payload)"
        f" SELECT n, {NOW} + (60 - n) * 10000000 + 200000000, n FROM (WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL"
        " SELECT n + 1 FROM c WHERE n < 50) SELECT n FROM c) AS numbers",
    )
    due = dict(rows(connection, "SELECT id, time_next FROM m"))
    stream = consume(proxy.connect(database=database), "STREAM id FROM m")
    eventually(lambda: len(stream.received) == 50)
    assert [row[0] for row in stream.received] == sorted(due, key=due.__getitem__)
    claimed_at = dict(rows(connection, "SELECT id, time_next - 30000000000 FROM m"))
    assert all(claimed_at[number] >= due[number] for number in due)


def test_a_message_years_ahead_waits_and_can_be_called_earlier(queue, proxy, database, consume) -> None:
    connection = queue()
    stream = consume(proxy.connect(database=database), "STREAM id FROM m")
    run(connection, f"INSERT INTO m (time_next, payload) VALUES ({NOW} + 100000000000000000, 'in three years')")
    enqueue(connection, "m", ["now"])
    eventually(lambda: stream.received == [(2,)])
    run(connection, f"UPDATE m SET time_next = {NOW} + 50000000 WHERE id = 1")
    eventually(lambda: stream.received == [(2,), (1,)])
