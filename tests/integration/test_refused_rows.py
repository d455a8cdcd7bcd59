"""One row that the server refuses to change holds up no other: claims, releases, purges, dead letters, REDRIVE."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from tests.support.queues import create_queue, rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

EPOCH_MAX = 2**63 - 1
REFUSES_BAD = """CREATE TRIGGER refuses BEFORE {event} ON {table} FOR EACH ROW
    IF OLD.payload = 'bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF"""
GOOD = [f"good {number:02}" for number in range(20)]


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        yield connection


def problem(connection: Any, table: str) -> str:
    """What SHOW QUEUES says is wrong with a queue; empty: nothing."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(f"SHOW FULL QUEUES LIKE '{table}'")
        return cursor.fetchone()["Problem"] or ""


def insert_bad_and_good(connection: Any, bad: str = "(3, DEFAULT, 'bad')") -> None:
    """A message that is refused, in front of twenty others that are not."""
    run(connection, f"INSERT INTO m (id, epoch, payload) VALUES {bad}")
    values = ", ".join(f"({10 + number}, '{payload}')" for number, payload in enumerate(GOOD))
    run(connection, f"INSERT INTO m (id, payload) VALUES {values}")


def refused_by_its_epoch(connection: Any) -> str:
    create_queue(connection, "m")
    insert_bad_and_good(connection, f"(3, {EPOCH_MAX}, 'bad')")
    return "epoch"


def refused_by_a_trigger(connection: Any) -> str:
    create_queue(connection, "m")
    run(connection, REFUSES_BAD.format(event="UPDATE", table="m"))
    insert_bad_and_good(connection)
    return "not this one (1644)"


def refused_by_a_check(connection: Any) -> str:
    create_queue(connection, "m", "payload TEXT, CONSTRAINT only_good CHECK (epoch = 0 OR payload <> 'bad')")
    insert_bad_and_good(connection)
    return "only_good"


@pytest.mark.parametrize("refused", [refused_by_its_epoch, refused_by_a_trigger, refused_by_a_check])
def test_a_message_whose_claim_is_refused_is_passed_over_and_named(
    proxy, connection, database, consume, refused
) -> None:
    reason = refused(connection)
    consumer = consume(proxy.connect(database=database), "STREAM payload FROM m")
    eventually(lambda: sorted(payload for (payload,) in consumer.received) == GOOD)
    found = problem(connection, "m")
    assert reason in found
    assert "(id 3)" in found
    assert rows(connection, "STREAM payload FROM m WAIT 1") == []
    assert problem(connection, "m") == found


def test_a_message_that_is_repaired_is_delivered_and_is_no_problem_any_more(
    proxy, connection, database, consume
) -> None:
    refused_by_a_trigger(connection)
    consumer = consume(proxy.connect(database=database), "STREAM payload FROM m")
    eventually(lambda: len(consumer.received) == len(GOOD))
    run(connection, "DROP TRIGGER refuses")
    eventually(lambda: ("bad",) in consumer.received, timeout_s=60)
    eventually(lambda: problem(connection, "m") == "")


def test_a_poll_gets_the_messages_behind_one_that_is_refused(connection) -> None:
    refused_by_a_trigger(connection)
    received: list[str] = []
    while polled := rows(connection, "STREAM id, payload FROM m LIMIT 10 WAIT 2"):
        received += [payload for _, payload in polled]
        run(connection, f"ACK FROM m WHERE id IN ({', '.join(str(key) for key, _ in polled)})")
    assert sorted(received) == GOOD


def test_a_refused_claim_counts_as_no_delivery(proxy, connection, database, consume) -> None:
    create_queue(connection, "m", max_attempts="1", dead_letter="m_dead")
    run(connection, REFUSES_BAD.format(event="UPDATE", table="m"))
    insert_bad_and_good(connection)
    consumer = consume(proxy.connect(database=database), "STREAM payload FROM m")
    eventually(lambda: len(consumer.received) == len(GOOD))
    assert rows(connection, "SELECT epoch, time_next FROM m WHERE id = 3") == [(0, 0)]


def test_messages_of_a_vanished_consumer_are_released_past_one_that_is_refused(proxy, connection, database) -> None:
    create_queue(connection, "m")
    insert_bad_and_good(connection)
    with proxy.connect(database=database) as gone:
        assert len(rows(gone, "STREAM payload FROM m LIMIT 21 WAIT 5")) == len(GOOD) + 1
        run(connection, REFUSES_BAD.format(event="UPDATE", table="m"))
    received: list[str] = []

    def all_came() -> bool:
        received.extend(payload for (payload,) in rows(connection, "STREAM payload FROM m WAIT 1"))
        return sorted(received) == GOOD

    eventually(all_came)
    assert "not given back" in problem(connection, "m")


def refer_to(connection: Any, table: str, message: int) -> None:
    """Another table has a row that refers to this message."""
    run(connection, f"CREATE TABLE child (message BIGINT NOT NULL, FOREIGN KEY (message) REFERENCES {table} (id))")
    run(connection, f"INSERT INTO child VALUES ({message})")


def left(connection: Any, table: str) -> list[int]:
    return [key for (key,) in rows(connection, f"SELECT id FROM {table} ORDER BY id")]


def test_the_automatic_purge_deletes_the_others_and_names_the_one_that_is_referred_to(connection) -> None:
    create_queue(connection, "m", vt_purge_after="1")
    run(connection, "INSERT INTO m (payload) VALUES " + ", ".join(["('x')"] * 100))
    refer_to(connection, "m", 7)
    run(connection, "UPDATE m SET time_acked = 5, time_next = NULL")
    rows(connection, "STREAM * FROM m NOWAIT")  # The proxy knows the queue.
    eventually(lambda: left(connection, "m") == [7])
    eventually(lambda: "foreign key (1451) (id 7)" in problem(connection, "m"))


def test_the_automatic_purge_deletes_the_others_of_one_that_a_trigger_keeps(connection) -> None:
    create_queue(connection, "m", vt_purge_after="1")
    run(connection, "INSERT INTO m (payload) VALUES ('bad'), " + ", ".join(["('x')"] * 28) + ", ('bad')")
    run(connection, REFUSES_BAD.format(event="DELETE", table="m"))
    run(connection, "UPDATE m SET time_acked = 5, time_next = NULL")
    rows(connection, "STREAM * FROM m NOWAIT")
    eventually(lambda: left(connection, "m") == [1, 30])


def test_purge_queue_deletes_the_others_and_ends_with_the_servers_error(connection) -> None:
    create_queue(connection, "m")
    run(connection, "INSERT INTO m (payload) VALUES " + ", ".join(["('x')"] * 1_200))
    run(connection, "ACK FROM m WHERE id > 0")
    refer_to(connection, "m", 7)
    with pytest.raises(pymysql.IntegrityError, match="1 row stays: id 7; 1199 rows are deleted") as refused:
        run(connection, "PURGE QUEUE m")
    assert refused.value.args[0] == 1451
    assert left(connection, "m") == [7]


def test_redrive_moves_the_others_and_ends_with_the_servers_error(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) MAX_ATTEMPTS = 2 DEAD_LETTER = m_dead")
    run(connection, "INSERT INTO m_dead (payload, epoch) VALUES ('x', 2), ('bad', 2), ('y', 2), ('z', 2)")
    run(connection, REFUSES_BAD.format(event="DELETE", table="m_dead"))
    with pytest.raises(pymysql.OperationalError, match="not this one: 1 row stays: id 2; 3 rows are moved") as refused:
        run(connection, "REDRIVE QUEUE m_dead")
    assert refused.value.args[0] == 1644
    assert left(connection, "m") == [1, 3, 4]
    assert left(connection, "m_dead") == [2]


def test_a_dead_message_that_can_be_neither_moved_nor_postponed_holds_back_no_other(connection) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) MAX_ATTEMPTS = 2 DEAD_LETTER = m_dead")
    run(connection, REFUSES_BAD.format(event="DELETE", table="m"))
    run(connection, REFUSES_BAD.format(event="UPDATE", table="m").replace("refuses", "refuses_changes"))
    run(connection, "INSERT INTO m (payload, epoch) VALUES ('x', 2), ('bad', 2), ('y', 2), ('z', 2)")
    rows(connection, "STREAM * FROM m NOWAIT")
    eventually(lambda: left(connection, "m_dead") == [1, 3, 4])
    assert left(connection, "m") == [2]
