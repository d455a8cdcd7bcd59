"""STREAM through a real driver: what is delivered, in what order, and when it ends."""

from __future__ import annotations

import time

import pymysql
import pytest

from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, directives, enqueue, rows, run, user
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server


@pytest.fixture
def connection(proxy: RunningProxy, database: str):
    with proxy.connect(database=database) as connection:
        yield connection


def test_a_stream_delivers_what_was_enqueued_before_it_without_the_queues_own_columns(connection) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", ["a", "b", "c"])
    assert rows(connection, "STREAM * FROM m LIMIT 3") == [(1, "a"), (2, "b"), (3, "c")]


def test_a_message_committed_while_the_stream_is_idle_wakes_it(proxy, database, connection, consume) -> None:
    create_queue(connection, "m")
    consumer = consume(proxy.connect(database=database), "STREAM * FROM m LIMIT 1")
    enqueue(connection, "m", ["hello"])
    assert consumer.ended.wait(10)
    assert consumer.received == [(1, "hello")]


def test_messages_of_a_transaction_come_when_it_commits_and_not_before(proxy, database, connection, consume) -> None:
    create_queue(connection, "m")
    run(connection, "BEGIN")
    enqueue(connection, "m", ["a", "b"])
    with proxy.connect(database=database) as other:
        assert rows(other, "STREAM * FROM m NOWAIT") == []
        consumer = consume(other, "STREAM * FROM m LIMIT 2")
        run(connection, "COMMIT")
        assert consumer.ended.wait(10)
        assert [payload for _, payload in consumer.received] == ["a", "b"]


def test_messages_of_a_transaction_that_rolls_back_never_come(proxy, database, connection) -> None:
    create_queue(connection, "m")
    run(connection, "BEGIN")
    enqueue(connection, "m", ["a", "b"])
    run(connection, "ROLLBACK")
    assert rows(connection, "STREAM * FROM m NOWAIT") == []


def test_columns_can_be_named_and_the_epoch_with_them(connection) -> None:
    create_queue(connection, "m", "payload TEXT, tenant INT DEFAULT 7")
    enqueue(connection, "m", ["a"])
    assert rows(connection, "STREAM tenant, epoch, payload FROM m NOWAIT") == [(7, 1, "a")]


def test_the_star_and_the_epoch_go_together(connection) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", ["a"])
    with connection.cursor() as cursor:
        cursor.execute("STREAM *, epoch FROM m NOWAIT")
        assert [column[0] for column in cursor.description] == ["id", "payload", "epoch"]
        assert cursor.fetchall() == ((1, "a", 1),)


def test_a_lower_priority_value_goes_first_then_the_earlier_time_then_the_smaller_id(connection) -> None:
    create_queue(connection, "m")
    run(
        connection,
        "INSERT INTO m (id, priority, time_next, payload)"
        " VALUES (1, 5, 0, 'd'), (2, 1, 20, 'c'), (3, 1, 10, 'a'), (4, 1, 10, 'b')",
    )
    assert [payload for _, payload in rows(connection, "STREAM * FROM m NOWAIT")] == ["a", "b", "c", "d"]


def test_a_scheduled_message_comes_at_its_time_without_a_poll(connection) -> None:
    create_queue(connection, "m")
    ((due_ns,),) = rows(
        connection, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000 + 700000000"
    )
    run(connection, f"INSERT INTO m (payload, time_next) VALUES ('later', {due_ns})")
    assert rows(connection, "STREAM * FROM m NOWAIT") == []
    assert rows(connection, "STREAM * FROM m WAIT 20 LIMIT 1") == [(1, "later")]
    ((now_ns,),) = rows(connection, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000")
    assert now_ns >= due_ns


def test_nowait_ends_at_once_when_nothing_is_due(connection) -> None:
    create_queue(connection, "m")
    assert rows(connection, "STREAM * FROM m NOWAIT") == []


def test_wait_ends_when_its_time_is_up(connection) -> None:
    create_queue(connection, "m")
    began = time.monotonic()
    assert rows(connection, "STREAM * FROM m WAIT 0.3") == []
    assert time.monotonic() - began >= 0.3


def test_wait_returns_with_the_first_message_and_what_is_due_with_it(proxy, database, connection, consume) -> None:
    create_queue(connection, "m")
    consumer = consume(proxy.connect(database=database), "STREAM * FROM m LIMIT 10 WAIT 30")
    enqueue(connection, "m", ["a", "b"])
    assert consumer.ended.wait(10)
    assert [payload for _, payload in consumer.received] == ["a", "b"]


def test_prefetch_bounds_what_is_delivered_and_an_acknowledgement_frees_it(
    proxy, database, connection, consume
) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", "abcde")
    consumer = consume(proxy.connect(database=database), "STREAM * FROM m PREFETCH 2 LIMIT 4")
    eventually(lambda: len(consumer.received) == 2)
    assert rows(connection, "STREAM id FROM m LIMIT 1") == [(3,)]
    assert run(connection, "ACK FROM m WHERE id IN (1, 2)") == 2
    assert consumer.ended.wait(10)
    assert [number for number, _ in consumer.received] == [1, 2, 4, 5]


def test_two_streams_share_the_messages_and_no_message_goes_to_both(proxy, database, connection, consume) -> None:
    create_queue(connection, "m")
    consumers = [consume(proxy.connect(database=database), "STREAM * FROM m LIMIT 50") for _ in range(2)]
    enqueue(connection, "m", map(str, range(100)))
    for consumer in consumers:
        assert consumer.ended.wait(10)
    received = [number for consumer in consumers for number, _ in consumer.received]
    assert sorted(received) == list(range(1, 101))


def test_a_vanished_consumers_messages_go_to_the_next_at_once(proxy, database, connection, consume) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", ["a"])
    first = consume(proxy.connect(database=database), "STREAM *, epoch FROM m")
    eventually(lambda: first.received)
    assert rows(connection, "STREAM * FROM m NOWAIT") == []
    first.vanish()
    assert rows(connection, "STREAM *, epoch FROM m WAIT 20") == [(1, "a", 2)]


def test_on_disconnect_keep_keeps_them_until_their_wait_ends(proxy, database, connection) -> None:
    create_queue(connection, "m", on_disconnect="keep")
    enqueue(connection, "m", ["a"])
    with proxy.connect(database=database) as first:
        assert rows(first, "STREAM id FROM m NOWAIT") == [(1,)]
    assert rows(connection, "STREAM * FROM m WAIT 0.3") == []
    assert run(connection, "ACK FROM m WHERE id = 1") == 1


def test_an_unacknowledged_message_comes_again_after_its_wait_with_the_next_epoch(connection) -> None:
    create_queue(connection, "m", vt_ack_wait="0.4", vt_min_backoff="0.1")
    enqueue(connection, "m", ["a"])
    assert rows(connection, "STREAM id, epoch FROM m NOWAIT") == [(1, 1)]
    assert rows(connection, "STREAM id, epoch FROM m WAIT 20") == [(1, 2)]


def test_a_stream_runs_inside_a_transaction_when_it_is_bounded(connection) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", ["a"])
    run(connection, "BEGIN")
    assert rows(connection, "STREAM * FROM m LIMIT 1 WAIT 5") == [(1, "a")]
    assert run(connection, "ACK FROM m WHERE id = 1") == 1
    run(connection, "ROLLBACK")
    assert rows(connection, "SELECT time_acked, epoch FROM m") == [(None, 1)]


def test_an_endless_stream_inside_a_transaction_is_refused_with_a_hint(connection) -> None:
    create_queue(connection, "m")
    run(connection, "BEGIN")
    with pytest.raises(pymysql.MySQLError, match="COMMIT first, or bound it"):
        rows(connection, "STREAM * FROM m")


def test_a_stream_leaves_no_transaction_behind_when_autocommit_is_off(proxy, database, connection) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", ["a"])
    with proxy.connect(database=database, autocommit=False) as other:
        assert rows(other, "STREAM * FROM m NOWAIT") == [(1, "a")]
        run(connection, "ALTER TABLE m ADD COLUMN added INT")  # An open transaction would make it wait.


def test_a_refused_stream_leaves_no_transaction_behind_either(proxy, database, connection) -> None:
    create_queue(connection, "m")
    with proxy.connect(database=database, autocommit=False) as other:
        with pytest.raises(pymysql.MySQLError):
            rows(other, "STREAM nothing FROM m NOWAIT")
        run(connection, "ALTER TABLE m ADD COLUMN added INT")  # An open transaction would make it wait.


def test_the_table_can_be_quoted_and_qualified_and_comments_stand_before(proxy, database, connection) -> None:
    create_queue(connection, "`odd name`")
    run(connection, "INSERT INTO `odd name` (payload) VALUES ('a')")
    with proxy.connect() as elsewhere:
        statement = f"/* who */ -- what\n sTrEaM  payload\tFROM {database} . `odd name` nowait ;"
        assert rows(elsewhere, statement) == [("a",)]
        assert run(elsewhere, f"# why\nack from {database}.`odd name` where id = 1") == 1


def test_a_table_that_is_no_message_table_is_refused_with_the_reason(connection) -> None:
    run(connection, "CREATE TABLE plain (id INT PRIMARY KEY)")
    with pytest.raises(pymysql.MySQLError, match="does not hold the word vitess_message") as error:
        rows(connection, "STREAM * FROM plain")
    assert error.value.args[0] == 1105
    assert rows(connection, "SELECT 1") == [(1,)]


def test_a_broken_message_table_says_all_that_is_wrong_and_harms_no_other(connection) -> None:
    create_queue(connection, "good")
    run(connection, "CREATE TABLE bad (id INT PRIMARY KEY, epoch BIGINT) COMMENT 'vitess_message,vt_ack_wait=never'")
    with pytest.raises(pymysql.MySQLError) as error:
        rows(connection, "STREAM * FROM bad")
    for wrong in ("vt_ack_wait", "vt_purge_after", "vt_batch_size", "priority", "time_next", "time_acked"):
        assert wrong in error.value.args[1]
    with pytest.raises(pymysql.MySQLError, match="vt_ack_wait"):
        run(connection, "ACK FROM bad WHERE id = 1")
    enqueue(connection, "good", ["a"])
    assert rows(connection, "STREAM * FROM good NOWAIT") == [(1, "a")]


def test_a_table_that_becomes_a_queue_is_known_at_once(connection) -> None:
    create_queue(connection, "m")
    run(connection, "ALTER TABLE m COMMENT 'was a queue'")
    with pytest.raises(pymysql.MySQLError, match="vitess_message"):
        run(connection, "ACK FROM m WHERE id = 1")
    create_queue(connection, "n")
    enqueue(connection, "n", ["a"])
    assert rows(connection, "STREAM * FROM n NOWAIT") == [(1, "a")]


def test_dropping_the_table_ends_its_streams_with_a_clear_error(proxy, database, connection, consume) -> None:
    create_queue(connection, "m")
    enqueue(connection, "m", ["a"])
    consumer = consume(proxy.connect(database=database), "STREAM * FROM m")
    eventually(lambda: consumer.received)
    run(connection, "DROP TABLE m")
    assert consumer.ended.wait(20)
    assert "no message table any more" in str(consumer.error)
    assert rows(consumer.connection, "SELECT 1") == [(1,)]


def test_errors_are_mysqls_own_where_mysql_has_them(proxy, connection) -> None:
    def code(connection: pymysql.Connection, statement: str) -> int:
        with pytest.raises(pymysql.MySQLError) as error:
            rows(connection, statement)
        return int(error.value.args[0])

    create_queue(connection, "m")
    assert code(connection, "STREAM * FROM missing") == 1146
    assert code(connection, "STREAM nothing FROM m") == 1054
    assert code(connection, "STREAM * FORM m") == 1064
    assert code(connection, "ACK FROM m") == 1064
    with proxy.connect() as elsewhere:
        assert code(elsewhere, "STREAM * FROM m") == 1046


def test_a_client_needs_select_and_update_on_the_table(proxy, database, connection) -> None:
    create_queue(connection, "m")
    with user(connection, database, "SELECT") as name, proxy.connect(user=name, database=database) as reader:
        for table in ("m", "hidden"):
            with pytest.raises(pymysql.MySQLError) as error:
                rows(reader, f"STREAM * FROM {table} NOWAIT")
            assert error.value.args[0] == 1142
        run(connection, f"GRANT UPDATE ON {database}.m TO {name}@localhost")
        assert rows(reader, "STREAM * FROM m NOWAIT") == []


def test_rows_look_as_a_select_would_show_them_in_the_clients_charset_and_time_zone(
    proxy, database, connection
) -> None:
    create_queue(
        connection,
        "m",
        "word VARCHAR(20) CHARACTER SET utf8mb4, moment TIMESTAMP(6) NULL, amount DECIMAL(10,2), "
        "data BLOB, nothing INT",
    )
    values = "('Größe', '2026-01-02 03:04:05.678', 1.50, x'00ff27')"
    run(connection, f"INSERT INTO m (word, moment, amount, data) VALUES {values}")
    with proxy.connect(database=database, charset="latin1", init_command="SET time_zone = '+05:00'") as client:
        expected = rows(client, "SELECT id, word, moment, amount, data, nothing FROM m")
        assert rows(client, "STREAM * FROM m NOWAIT") == expected


def test_purge_removes_what_was_acknowledged_long_enough_ago(connection) -> None:
    create_queue(connection, "m", vt_purge_after="1")
    enqueue(connection, "m", "abc")
    assert run(connection, "ACK FROM m WHERE id < 3") == 2
    eventually(lambda: rows(connection, "SELECT id FROM m") == [(3,)], timeout_s=20)


def test_a_changed_comment_takes_effect_on_a_running_stream(proxy, database, connection, consume) -> None:
    create_queue(connection, "m")
    run(connection, "ALTER QUEUE m MAX_IN_FLIGHT = 1")
    enqueue(connection, "m", "abc")
    consumer = consume(proxy.connect(database=database), "STREAM * FROM m")
    eventually(lambda: len(consumer.received) == 1)
    run(connection, f"ALTER TABLE m COMMENT '{directives(lease='lease', max_in_flight='3')}'")
    eventually(lambda: len(consumer.received) == 3)


def test_a_dropped_column_ends_the_stream_that_shows_it_and_loses_no_message(
    proxy, database, connection, consume
) -> None:
    create_queue(connection, "m", "payload TEXT, extra INT")
    consumer = consume(proxy.connect(database=database), "STREAM id, extra FROM m")
    enqueue(connection, "m", "a")
    eventually(lambda: consumer.received)
    run(connection, "ALTER TABLE m DROP COLUMN extra")
    enqueue(connection, "m", "b")
    assert consumer.ended.wait(20)
    assert "extra" in str(consumer.error)
    assert rows(connection, "STREAM id, epoch FROM m LIMIT 1 WAIT 20") == [(2, 1)]
    assert run(consumer.connection, "ACK FROM m WHERE id = 1") == 1


def test_a_bounded_stream_ends_while_its_claim_is_under_way_and_the_message_comes_later(connection) -> None:
    create_queue(connection, "m")
    run(connection, "CREATE TRIGGER sleeps BEFORE UPDATE ON m FOR EACH ROW DO SLEEP(12)")
    run(connection, "INSERT INTO m (payload) VALUES ('a')")
    assert rows(connection, "STREAM payload, epoch FROM m WAIT 0.1") == []
    assert rows(connection, "SELECT 1 FROM information_schema.processlist WHERE state = 'User sleep'") == [(1,)]
    run(connection, "DROP TRIGGER sleeps")
    eventually(lambda: rows(connection, "STREAM payload, epoch FROM m WAIT 1") == [("a", 1)])


@pytest.mark.parametrize(
    ("begin", "statement"),
    [
        ("DO 0", "STREAM * FROM m WAIT 1"),
        ("DO 0", "STREAM * FROM m NOWAIT"),
        ("BEGIN", "STREAM * FROM m LIMIT 1 WAIT 1 FOR UPDATE"),
    ],
)
@pytest.mark.parametrize("is_known", [False, True], ids=["the-first-time", "again"])
def test_a_bounded_stream_ends_in_time_while_the_server_takes_no_writes(
    server, proxy, database, begin, statement, is_known
) -> None:
    with proxy.connect(database=database, read_timeout=60) as connection, connect(server) as backup:
        create_queue(connection, "m")
        if is_known:
            assert [rows(connection, text) for text in (begin, statement, "ROLLBACK")] == [[], [], []]
        run(connection, begin)  # The session has to prove again what it may.
        run(backup, "FLUSH TABLES WITH READ LOCK")
        with pytest.raises(pymysql.err.OperationalError) as stalled:
            run(connection, statement)
        assert stalled.value.args[0] == 1205
        run(backup, "UNLOCK TABLES")
        assert rows(connection, statement) == []


def test_a_lock_of_a_stream_for_update_ends_in_time_while_the_server_takes_no_writes(server, proxy, database) -> None:
    with proxy.connect(database=database, read_timeout=60) as connection, connect(server) as backup:
        create_queue(connection, "m")
        run(connection, "BEGIN")
        assert rows(connection, "STREAM * FROM m LIMIT 1 WAIT 1 FOR UPDATE") == []
        run(backup, f"INSERT INTO {database}.m (payload) VALUES ('a')")
        run(backup, "FLUSH TABLES WITH READ LOCK")
        with pytest.raises(pymysql.err.OperationalError) as stalled:
            run(connection, "STREAM * FROM m LIMIT 1 WAIT 1 FOR UPDATE")
        assert stalled.value.args[0] == 1205
        run(backup, "UNLOCK TABLES")
        assert rows(connection, "STREAM payload FROM m LIMIT 1 WAIT 20 FOR UPDATE") == [("a",)]
