"""SHOW QUEUES and SHOW STREAMS: what they count, what they admit not to know, and who sees what."""

from __future__ import annotations

from typing import Any

import mysql.connector
import pymysql
import pytest

from proxy.statements.depth import COUNT_MAX, LOOKUPS_MAX
from tests.support.queues import create_queue, enqueue, rows, run, user
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

NOW_NS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
MANY = """WITH RECURSIVE digits AS (SELECT 0 AS d UNION ALL SELECT d + 1 FROM digits WHERE d < 9)
    SELECT {columns} FROM digits a, digits b, digits c, digits e, digits f WHERE f.d < {tens}"""


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        yield connection


def listed(connection, database: str) -> dict[str, dict[str, Any]]:
    """What SHOW QUEUES says of each queue of a database."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(f"SHOW FULL QUEUES FROM {database}")
        return {row["Name"]: row for row in cursor.fetchall()}


@pytest.mark.parametrize("unit", [1, 10**3, 10**6])
def test_a_time_in_another_unit_is_a_problem(connection, database, unit: int) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    run(connection, "INSERT INTO m (time_next) VALUES (0), (NULL)")
    enqueue(connection, "m", "ab")
    assert listed(connection, database)["m"]["Problem"] is None
    run(connection, f"INSERT INTO m (time_next, priority) VALUES ((UNIX_TIMESTAMP() + 300) * {unit}, 3)")
    assert "is no time in nanoseconds since 1970" in listed(connection, database)["m"]["Problem"]


def test_without_full_the_columns_fit_a_terminal(connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) MAX_ATTEMPTS = 9 DEAD_LETTER = m_dead")
    enqueue(connection, "m", "abc")
    assert len(rows(connection, "STREAM * FROM m LIMIT 1 NOWAIT")) == 1
    run(connection, "INSERT INTO m_dead (epoch) VALUES (9), (9)")
    run(connection, "INSERT INTO m (time_next) VALUES (1)")
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(f"SHOW QUEUES FROM {database} LIKE 'm'")
        shown = cursor.fetchall()
    assert shown == [
        {"Queue": f"{database}.m", "State": "running", "Ready": 3, "Scheduled": 0, "In_flight": 1, "Dead": 2,
         "Problem": "see FULL"}
    ]  # fmt: skip
    widths = [max(len(name), len(str(value))) + 3 for name, value in shown[0].items() if name != "Queue"]
    assert sum(widths) + len("store.orders_old") + 4 <= 80


def streams(connection) -> list[dict[str, Any]]:
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute("SHOW STREAMS")
        return list(cursor.fetchall())


def test_messages_are_counted_by_what_they_wait_for(connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) MAX_ATTEMPTS = 9 DEAD_LETTER = m_dead")
    enqueue(connection, "m", "abcdefgh")
    assert len(rows(connection, "STREAM * FROM m LIMIT 3 NOWAIT")) == 3
    run(connection, "ACK m WHERE id = 1")
    run(connection, f"UPDATE m SET time_next = {NOW_NS} + 3600000000000, priority = 5 WHERE id = 8")
    run(connection, f"UPDATE m SET time_next = {NOW_NS} - 90000000000, priority = -5 WHERE id = 7")
    run(connection, "UPDATE m SET time_next = NULL, priority = 3 WHERE id = 6")
    run(connection, "INSERT INTO m_dead (epoch) VALUES (9), (9)")
    row = listed(connection, database)["m"]
    counts = {
        name: row[name] for name in ("State", "Ready", "Scheduled", "In_flight", "Dead", "Acknowledged", "Subscribers")
    }
    assert counts == {
        "State": "running", "Ready": 4, "Scheduled": 1, "In_flight": 2, "Dead": 2, "Acknowledged": 1, "Subscribers": 0,
    }  # fmt: skip
    assert 90 <= row["Oldest_ready_s"] < 150
    assert float(row["Acked_per_s"]) == pytest.approx(1 / 60, abs=0.01)
    assert (row["Estimated"], row["Problem"]) == ("", None)


def test_an_empty_queue_and_one_without_dead_letters(connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    row = listed(connection, database)["m"]
    assert [row[name] for name in ("Ready", "Scheduled", "In_flight", "Acknowledged")] == [0, 0, 0, 0]
    assert [row[name] for name in ("Dead", "Oldest_ready_s")] == [None, None]


def test_the_rate_of_enqueueing_is_known_from_the_second_look_on(connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    assert listed(connection, database)["m"]["Enqueued_per_s"] is None
    enqueue(connection, "m", "abc")
    rate = listed(connection, database)["m"]["Enqueued_per_s"]
    assert rate is not None
    assert rate > 0


def test_the_rate_of_a_dead_letter_table_is_not_taken_from_ids_that_others_gave_out(connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) MAX_ATTEMPTS = 9 DEAD_LETTER = m_dead")
    listed(connection, database)
    run(connection, "INSERT INTO m_dead (id, epoch) VALUES (5000, 9)")
    row = listed(connection, database)["m_dead"]
    assert (row["Ready"], row["Enqueued_per_s"]) == (1, None)


def test_paused_and_broken_queues_say_so(connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT) PAUSED = 1")
    run(connection, "CREATE TABLE broken (id INT) COMMENT 'vitess_message'")
    create_queue(connection, "slow")
    run(connection, "ALTER TABLE slow DROP KEY next_idx")
    eventually(lambda: len(listed(connection, database)) == 3)
    found = listed(connection, database)
    assert found["m"]["State"] == "paused"
    assert found["broken"]["State"] == "broken"
    assert "column epoch is missing" in found["broken"]["Problem"]
    assert found["broken"]["Ready"] is None
    assert "ADD INDEX (time_acked, priority, time_next)" in found["slow"]["Problem"]
    assert [row[0] for row in rows(connection, "SHOW QUEUES WITH PROBLEMS")] == [
        f"{database}.broken",
        f"{database}.slow",
    ]


def test_a_directive_that_does_not_exist_is_shown_as_a_problem_and_once_in_the_log(proxy, connection, database) -> None:
    create_queue(connection, "m", max_attemps="3")
    said = "max_attemps=… in the COMMENT is ignored, because there is no such directive: was max_attempts meant?"
    for _ in range(2):
        run(connection, "CREATE TABLE IF NOT EXISTS another (a INT)")  # The queue is looked at anew.
        row = listed(connection, database)["m"]
        assert (row["State"], row["Ready"], row["Problem"]) == ("running", 0, said)
    assert proxy.output.count(f"queue {database}.m: {said}") == 1


LEASES = pytest.mark.parametrize("lease", ["lease", "NONE"])
"""With a lease column, and without."""


def test_a_message_that_was_scheduled_after_a_delivery_is_not_in_flight(connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", "ab")
    assert len(rows(connection, "STREAM id FROM m LIMIT 2 WAIT 10")) == 2
    run(connection, "UPDATE m SET time_next = time_next + 1000000 WHERE id = 1")
    row = listed(connection, database)["m"]
    assert (row["In_flight"], row["Scheduled"]) == (1, 1)


def test_beyond_the_bound_counts_are_estimates_and_marked(connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    run(connection, "INSERT INTO m (priority) " + MANY.format(columns="a.d % 3", tens=2))
    run(connection, f"UPDATE m SET time_next = {NOW_NS} + 7200000000000 WHERE id % 8 = 0 AND priority = 0")
    run(connection, "ANALYZE TABLE m")
    row = listed(connection, database)["m"]
    assert row["Estimated"] == "ready"
    assert COUNT_MAX < 20_000
    assert row["Ready"] == pytest.approx(rows(connection, "SELECT COUNT(*) FROM m")[0][0] - row["Scheduled"], rel=0.2)
    assert row["In_flight"] == 0
    due = rows(connection, f"SELECT COUNT(*) FROM m WHERE time_next > {NOW_NS}")[0][0]
    assert row["Scheduled"] == due
    run(connection, "SET sql_select_limit = 0, sql_mode = 'ANSI_QUOTES'")
    again = listed(connection, database)["m"]
    assert (again["Estimated"], again["Ready"], again["Scheduled"]) == ("ready", row["Ready"], due)


@LEASES
@pytest.mark.parametrize(("one_more", "estimated"), [(0, ""), (1, "in_flight, scheduled")])
def test_as_many_as_are_looked_up_are_in_flight_or_scheduled_for_certain(
    connection, database, lease, one_more, estimated
) -> None:
    run(connection, f"CREATE QUEUE m (payload TEXT) LEASE = {lease}")
    run(connection, f"INSERT INTO m (priority) {MANY.format(columns='0', tens=1)} LIMIT {LOOKUPS_MAX + one_more}")
    run(connection, f"UPDATE m SET epoch = id > {one_more} + 600, time_next = {NOW_NS} + 70000000000 + id")
    if lease != "NONE":
        run(connection, "UPDATE m SET lease = IF(epoch > 0, time_next, NULL)")
    run(connection, f"INSERT INTO m (epoch, time_next) VALUES (0, {NOW_NS} + 360000000000000)")
    row = listed(connection, database)["m"]
    assert row["Estimated"] == estimated
    if not one_more:
        assert (row["In_flight"], row["Scheduled"]) == (LOOKUPS_MAX - 600, 601)


@LEASES
def test_a_few_thousand_of_one_kind_are_counted_to_the_last(connection, database, lease) -> None:
    run(connection, f"CREATE QUEUE m (payload TEXT) LEASE = {lease}")
    run(connection, "INSERT INTO m (priority) " + MANY.format(columns="0", tens=2) + " LIMIT 3000")
    run(connection, f"UPDATE m SET epoch = 1, time_next = {NOW_NS} + 70000000000 + id")
    if lease != "NONE":
        run(connection, "UPDATE m SET lease = IF(epoch > 0, time_next, NULL)")
    row = listed(connection, database)["m"]
    assert (row["Estimated"], row["In_flight"], row["Scheduled"]) == ("in_flight, scheduled", 3_000, 0)


def test_an_id_of_another_numeric_type(connection, database) -> None:
    run(connection, "CREATE QUEUE m (id MEDIUMINT UNSIGNED AUTO_INCREMENT, payload TEXT)")
    enqueue(connection, "m", "abc")
    assert listed(connection, database)["m"]["Ready"] == 3
    run(connection, "CREATE QUEUE f (id DOUBLE, payload TEXT)")
    run(connection, "INSERT INTO f (id) VALUES (0.5)")
    assert listed(connection, database)["f"]["Ready"] == 1


@LEASES
def test_what_is_in_flight_is_estimated_from_a_part_of_it(connection, database, lease) -> None:
    run(connection, f"CREATE QUEUE m (payload TEXT) LEASE = {lease}")
    run(connection, "INSERT INTO m (priority) " + MANY.format(columns="0", tens=2))
    run(connection, f"UPDATE m SET epoch = id % 2, time_next = {NOW_NS} + 7000000000 + id * 1000")
    if lease != "NONE":
        run(connection, "UPDATE m SET lease = IF(epoch > 0, time_next, NULL)")
    run(connection, "ANALYZE TABLE m")
    row = listed(connection, database)["m"]
    assert row["Estimated"] == "in_flight, scheduled"
    assert row["In_flight"] == pytest.approx(10_000, rel=0.2)
    assert row["Scheduled"] == pytest.approx(row["In_flight"], rel=0.01)
    assert row["Ready"] == 0


def test_the_cost_of_a_look_does_not_grow_with_the_queue(connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    states = f"""a.d % 3, a.d % 7 = 3, CASE a.d % 4 WHEN 0 THEN {NOW_NS} - 5000000000 WHEN 1 THEN NULL
        WHEN 2 THEN {NOW_NS} + 60000000000 ELSE {NOW_NS} + 86400000000000 END, IF(a.d % 4 = 1, {NOW_NS} - 5, NULL)"""
    fill = "INSERT INTO m (priority, epoch, time_next, time_acked) " + MANY.format(columns=states, tens=4)

    def entries_read() -> int:
        run(connection, "FLUSH STATUS")
        assert listed(connection, database)["m"]["Ready"] > 0
        return sum(int(value) for _, value in rows(connection, "SHOW SESSION STATUS LIKE 'Handler_read%'"))

    run(connection, fill)
    run(connection, "ANALYZE TABLE m")
    before = entries_read()
    run(connection, fill)
    run(connection, fill)
    assert entries_read() <= before * 1.1
    assert before < 10 * COUNT_MAX  # What is counted lies in a temporary table meanwhile.


def test_like_and_from_narrow_it_down(connection, database) -> None:
    for name in ("orders", "orders_dead", "mail"):
        run(connection, f"CREATE QUEUE {name} (payload TEXT)")

    def names(clauses: str) -> list[str]:
        return [row[1] for row in rows(connection, f"SHOW FULL QUEUES {clauses}") if row[0] == database]

    assert names("") == ["mail", "orders", "orders_dead"]
    assert names(f"FROM {database} LIKE 'orders%'") == ["orders", "orders_dead"]
    assert names("LIKE 'mail'") == ["mail"]
    assert names("FROM nothing_of_that_name") == []


def test_only_tables_that_the_client_may_see_are_listed_and_counted_with_its_rights(
    server, proxy, connection, database
) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    run(connection, "CREATE QUEUE other (payload TEXT)")
    with connect(server) as root:
        with user(root, database, "SELECT") as name, proxy.connect(user=name, password="") as client:
            assert [(row[1], row[3]) for row in rows(client, "SHOW FULL QUEUES")] == [("m", 0)]
        with user(root, database, "INSERT") as name, proxy.connect(user=name, password="") as client:
            (row,) = rows(client, "SHOW FULL QUEUES")
            assert (row[1], row[3]) == ("m", None)
            assert "SELECT command denied" in row[-1]


def test_what_is_not_committed_is_not_in_the_way(proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    with proxy.connect(database=database) as other:
        run(other, "BEGIN")
        enqueue(other, "m", "abc")
        assert listed(connection, database)["m"]["Ready"] == 0
        assert listed(other, database)["m"]["Ready"] == 3
        run(other, "ROLLBACK")


def test_streams_are_shown_with_their_clients_and_where_they_stand(proxy, connection, database, consume) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    enqueue(connection, "m", "abc")
    other = proxy.connect(database=database, program_name="worker 7")
    consumer = consume(other, "STREAM * FROM m PREFETCH 2")
    eventually(lambda: len(consumer.received) == 2)
    (row,) = [stream for stream in streams(connection) if stream["Queue"] == f"{database}.m"]
    assert row["Id"] == other.thread_id()
    assert (row["User"], row["Program"], row["Condition"]) == ("root", "worker 7", None)
    assert row["Host"].startswith("127.0.0.1:")
    assert (row["Delivered"], row["In_flight"], row["Credit"]) == (2, 2, 0)
    assert rows(connection, "SELECT TIMESTAMPDIFF(SECOND, %s, NOW()) BETWEEN 0 AND 60", [row["Since"]]) == [(1,)]
    assert 0 <= row["Idle_s"] < 60
    assert listed(connection, database)["m"]["Subscribers"] == 1
    run(connection, f"KILL QUERY {row['Id']}")
    assert consumer.ended.wait(10)
    assert [stream for stream in streams(connection) if stream["Queue"] == f"{database}.m"] == []


@pytest.mark.parametrize(
    ("clauses", "condition"),
    [
        ("", None),
        (" WHERE 3 < a AND `größe` = 'x' PREFETCH 5", "3 < a AND `größe` = 'x'"),
        (" PARTITION (p0)", "PARTITION (`p0`)"),
        (" PARTITION (p0, `p1`)where a=5 -- five", "PARTITION (`p0`, `p1`) WHERE a=5"),
        (f" WHERE a IN ({', '.join(['12345'] * 900)})", f"a IN ({'12345, ' * 141}12345,…"),
    ],
)
def test_a_stream_is_shown_with_what_it_wants(
    proxy, connection, database, consume, clauses: str, condition: str | None
) -> None:
    run(connection, "CREATE QUEUE m (a INT, `größe` TEXT) PARTITION BY HASH (id) PARTITIONS 2")
    consume(proxy.connect(database=database), f"STREAM id FROM m{clauses}")
    eventually(lambda: [stream["Condition"] for stream in streams(connection)] == [condition])


def test_a_prepared_stream_is_shown_with_its_values(proxy, connection, database) -> None:
    run(connection, "CREATE QUEUE m (a INT)")
    run(connection, "INSERT INTO m (a) VALUES (7)")
    with (
        mysql.connector.connect(
            host=proxy.host, port=proxy.port, user="root", database=database, ssl_disabled=True, autocommit=True
        ) as client,
        client.cursor(prepared=True) as cursor,
    ):
        cursor.execute("STREAM * FROM m WHERE a = %s LIMIT 2", (7,))
        assert [stream["Condition"] for stream in streams(connection)] == ["(`a` = 7)"]
        run(connection, "INSERT INTO m (a) VALUES (8), (7)")
        assert cursor.fetchall() == [(1, 7), (3, 7)]


def test_only_ones_own_streams_are_shown_without_the_process_privilege(
    server, proxy, connection, database, consume
) -> None:
    run(connection, "CREATE QUEUE m (payload TEXT)")
    consumer = consume(proxy.connect(database=database), "STREAM * FROM m")
    eventually(lambda: streams(connection))
    with connect(server) as root, user(root, database, "SELECT", "UPDATE") as name:
        with proxy.connect(user=name, password="", database=database) as client:
            assert streams(client) == []
            mine = consume(proxy.connect(user=name, password="", database=database), "STREAM * FROM m")
            eventually(lambda: [stream["User"] for stream in streams(client)] == [name])
            run(root, f"GRANT PROCESS ON *.* TO {name}@localhost")
        with proxy.connect(user=name, password="", database=database) as client:
            assert {stream["User"] for stream in streams(client)} >= {name, "root"}
        mine.vanish()
    consumer.vanish()


@pytest.mark.parametrize(("charset", "name"), [("latin1", "größe"), ("utf16", "größe"), ("gbk", "订单")])
def test_results_come_in_the_clients_character_set(proxy, connection, database, charset: str, name: str) -> None:
    run(connection, f"CREATE QUEUE `{name}` (payload TEXT)")
    with proxy.connect(database=database, use_unicode=False, conv={}) as client:
        run(client, f"SET character_set_results = {charset}")
        codec = {"utf16": "utf-16-be"}.get(charset, charset)
        assert rows(client, f"SHOW FULL QUEUES FROM {database}")[0][1].decode(codec) == name
        shown = rows(client, f"SHOW CREATE QUEUE `{name}`")[0][1].decode(codec)
        assert shown.startswith(f"CREATE QUEUE `{name}` (")
        assert rows(client, "SELECT @@character_set_results")[0][0].decode(codec) == charset
