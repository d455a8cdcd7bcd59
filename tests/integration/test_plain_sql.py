"""Plain SQL on message tables, sent through the proxy, is noticed at once.

There is no binary log to read for this proxy, its queues are polled and its catalog is read once an hour: whatever
arrives was seen in the statements that passed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymysql.connections import Connection

from tests.support.proxies import RunningProxy, environment, running_proxy
from tests.support.queues import Consumer, create_queue, enqueue, rows, run
from tests.support.waiting import eventually
from tests.support.writing import NOW_NS, WAYS, Way

pytestmark = pytest.mark.either_server

HOUR_NS = 3_600_000_000_000


@pytest.fixture(scope="module")
def proxy(server, flavour, tmp_path_factory) -> Iterator[RunningProxy]:
    log = tmp_path_factory.mktemp(f"deaf-{flavour}") / "log"
    with (
        environment(ACKSTREAM_BINLOG="off", ACKSTREAM_CATALOG_INTERVAL_S="3600"),
        running_proxy(server, log) as proxy,
    ):
        yield proxy


@pytest.fixture
def connection(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database, local_infile=True) as connection:
        create_queue(connection, "m")
        yield connection


@pytest.fixture
def consumer(connection, proxy, database, consume) -> Consumer:
    """A stream that has been given all there was."""
    started: Consumer = consume(proxy.connect(database=database), "STREAM id, payload FROM m")
    enqueue(connection, "m", ["first"])
    eventually(lambda: started.received == [(1, "first")])
    started.received.clear()
    return started


def payloads(consumer: Consumer) -> list[str]:
    return [payload for _, payload in consumer.received]


@pytest.mark.parametrize("write", WAYS)
def test_every_way_to_write_delivers_at_once(connection, consumer, tmp_path: Path, write: Way) -> None:
    write(connection, tmp_path)
    eventually(lambda: payloads(consumer) == ["x"])


def test_a_file_of_the_servers_own_is_noticed_too(connection, consumer, tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text("x\n")
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o755)
    run(connection, f"LOAD DATA INFILE '{file}' INTO TABLE m (payload)")
    eventually(lambda: payloads(consumer) == ["x"])


def test_what_a_trigger_writes_in_a_transaction_comes_with_its_commit(connection, consumer) -> None:
    run(connection, "CREATE TABLE orders (p TEXT)")
    run(connection, "CREATE TRIGGER t AFTER INSERT ON orders FOR EACH ROW INSERT INTO m (payload) VALUES (NEW.p)")
    run(connection, "BEGIN")
    run(connection, "INSERT INTO orders VALUES ('x')")
    assert consumer.received == []
    run(connection, "COMMIT")
    eventually(lambda: payloads(consumer) == ["x"])


def test_what_a_trigger_on_a_queue_writes_follows_an_acknowledgement(connection, consumer) -> None:
    create_queue(connection, "step_1")
    run(
        connection,
        "CREATE TRIGGER t AFTER UPDATE ON step_1 FOR EACH ROW"
        " INSERT INTO m (payload) SELECT NEW.payload WHERE NEW.time_acked IS NOT NULL",
    )
    enqueue(connection, "step_1", ["a", "b"])
    assert rows(connection, "STREAM payload FROM step_1 LIMIT 2 WAIT 10") == [("a",), ("b",)]
    for payload in "ab":
        assert run(connection, f"ACK FROM step_1 WHERE payload = '{payload}'") == 1
        eventually(lambda: payloads(consumer)[-1:] == [payload])  # noqa: B023


def test_what_a_trigger_does_to_the_session_of_a_claim_changes_no_row(connection, consumer) -> None:
    enqueue(connection, "m", ["é"])
    eventually(lambda: payloads(consumer) == ["é"])
    run(connection, "CREATE TRIGGER t BEFORE UPDATE ON m FOR EACH ROW SET SESSION character_set_results = 'utf16'")
    enqueue(connection, "m", ["è"])
    eventually(lambda: payloads(consumer) == ["é", "è"])


def test_procedures_called_all_the_time_cost_scans_at_a_bounded_rate(connection, consumer, proxy) -> None:
    run(connection, "CREATE PROCEDURE nothing() DO 0")
    ((began_ns,),) = rows(connection, f"SELECT {NOW_NS}")
    before = proxy.metric("scans_total")
    for _ in range(500):
        run(connection, "CALL nothing()")
    scans = proxy.metric("scans_total") - before
    ((ended_ns,),) = rows(connection, f"SELECT {NOW_NS}")
    assert 1 <= scans <= 100 * (ended_ns - began_ns) / 1e9 + 2
    run(connection, "CREATE PROCEDURE put() INSERT INTO m (payload) VALUES ('x')")
    run(connection, "CALL put()")
    eventually(lambda: payloads(consumer) == ["x"])


# Changes of what is there.


def test_a_message_rescheduled_to_earlier_comes_then_and_one_put_off_not_before(connection, consumer) -> None:
    run(connection, f"INSERT INTO m (id, payload, time_next) VALUES (7, 'early', {NOW_NS} + {HOUR_NS})")
    run(connection, f"INSERT INTO m (id, payload, time_next) VALUES (8, 'late', {NOW_NS} + 300000000)")
    run(connection, f"UPDATE m SET time_next = {NOW_NS} + 700000000 WHERE id = 8")
    run(connection, f"UPDATE m SET time_next = {NOW_NS} + 100000000 WHERE id = 7")
    ((due_ns,),) = rows(connection, "SELECT time_next FROM m WHERE id = 8")
    eventually(lambda: payloads(consumer) == ["early", "late"])
    assert rows(connection, f"SELECT {NOW_NS} >= {due_ns}") == [(1,)]


def test_a_delivered_message_rescheduled_by_hand_comes_again_then(connection, consumer) -> None:
    run(connection, "UPDATE m SET time_next = 0 WHERE id = 1 AND time_acked IS NULL")
    eventually(lambda: payloads(consumer) == ["first"])


def test_a_message_whose_priority_was_lowered_goes_before_those_that_wait_with_it(connection) -> None:
    enqueue(connection, "m", "abcd")
    assert rows(connection, "STREAM payload FROM m LIMIT 1 NOWAIT") == [("a",)]
    run(connection, "UPDATE m SET priority = -1 WHERE payload = 'd'")
    # What was read ahead may be a tenth of a second old (Limits.stale_ns).
    ((seen_ns,),) = rows(connection, f"SELECT {NOW_NS} + 200000000")
    eventually(lambda: rows(connection, f"SELECT {NOW_NS} >= {seen_ns}") == [(1,)])
    assert rows(connection, "STREAM payload FROM m NOWAIT") == [("d",), ("b",), ("c",)]


def test_a_message_whose_epoch_was_set_back_waits_as_if_it_were_new(connection) -> None:
    enqueue(connection, "m", "a")
    run(connection, "UPDATE m SET epoch = 6")
    assert rows(connection, "STREAM id, epoch FROM m NOWAIT") == [(1, 7)]
    assert rows(connection, f"SELECT time_next - {NOW_NS} > 30 * 60 * 1000000000 FROM m") == [(1,)]
    run(connection, "UPDATE m SET epoch = 0, time_next = 0")
    assert rows(connection, "STREAM id, epoch FROM m NOWAIT") == [(1, 1)]
    assert rows(connection, f"SELECT time_next - {NOW_NS} <= 30 * 1000000000 FROM m") == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE m SET time_acked = {NOW_NS}, time_next = NULL WHERE {{}} AND time_acked IS NULL",
        "DELETE FROM m WHERE {}",
        "UPDATE m SET id = id + 100, time_acked = 1, time_next = NULL WHERE {}",
    ],
)
def test_what_is_taken_away_before_its_turn_is_not_delivered_and_what_was_delivered_frees_its_place(
    connection, proxy, database, consume, statement: str
) -> None:
    enqueue(connection, "m", "ab")
    consumer = consume(proxy.connect(database=database), "STREAM payload FROM m PREFETCH 1")
    eventually(lambda: consumer.received == [("a",)])
    run(connection, statement.format("payload = 'a'"))
    eventually(lambda: consumer.received == [("a",), ("b",)])
    enqueue(connection, "m", "cd")  # They wait, for b uses up what may be out.
    run(connection, statement.format("payload = 'c'"))
    assert run(connection, "ACK FROM m WHERE payload = 'b'") == 1
    eventually(lambda: consumer.received == [("a",), ("b",), ("d",)])


def test_a_truncated_table_frees_its_places_and_serves_what_comes_after(connection, proxy, database, consume) -> None:
    enqueue(connection, "m", "abc")
    consumer = consume(proxy.connect(database=database), "STREAM payload FROM m PREFETCH 1")
    eventually(lambda: consumer.received == [("a",)])
    run(connection, "TRUNCATE TABLE m")
    enqueue(connection, "m", "d")
    eventually(lambda: consumer.received == [("a",), ("d",)])


def test_messages_of_one_transaction_come_together_and_in_several_tables(connection, proxy, database, consume) -> None:
    create_queue(connection, "n")
    consumers = [consume(proxy.connect(database=database), f"STREAM payload FROM {name}") for name in "mn"]
    run(connection, "BEGIN")
    for name, payload in itertools.product("mn", "ab"):
        run(connection, f"INSERT INTO {name} (payload) VALUES ('{payload}')")
    assert [waiting.received for waiting in consumers] == [[], []]
    run(connection, "COMMIT")
    eventually(lambda: [waiting.received for waiting in consumers] == [[("a",), ("b",)]] * 2)
