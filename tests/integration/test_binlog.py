"""What is written straight to the server is noticed through its binary log, and by polling where that cannot be read.

The queues here are polled once an hour, so whatever arrives was seen in the log.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymysql.connections import Connection

from tests.support.proxies import RunningProxy, environment, running_proxy
from tests.support.queues import create_queue, directives, enqueue, rows, run
from tests.support.servers import connect, running_server
from tests.support.waiting import eventually, settled
from tests.support.writing import NOW_NS, WAYS


def following(proxy: RunningProxy) -> bool:
    return proxy.metric("binlog_following") == 1


def reader_pid(proxy: RunningProxy) -> int:
    """The process that reads the log for this proxy."""
    children = Path(f"/proc/{proxy.pid}/task/{proxy.pid}/children").read_text().split()
    (pid,) = (int(child) for child in children if "engine.binlog.reader" in Path(f"/proc/{child}/cmdline").read_text())
    return pid


@pytest.fixture
def direct(server, database, proxy) -> Iterator[Connection[Any]]:
    """A session on the server itself, with the queue `m`, which the proxy knows and follows."""
    with (
        connect(server, database=database, local_infile=True) as connection,
        proxy.connect(database=database) as client,
    ):
        create_queue(client, "m")
        assert rows(client, "STREAM id FROM m NOWAIT") == []
        eventually(lambda: following(proxy), what="the proxy follows the log")
        yield connection


@pytest.fixture
def consumer(direct, proxy, database, consume):
    """A stream on `m` that has seen that there is nothing."""
    started = consume(proxy.connect(database=database), "STREAM id, payload FROM m")
    run(direct, "INSERT INTO m (id, payload) VALUES (999, 'first')")
    eventually(lambda: started.received == [(999, "first")])
    started.received.clear()
    return started


def await_count(consumer, count: int) -> None:
    eventually(lambda: len(consumer.received) == count, what=f"{count} messages")


def payloads(consumer) -> list[str]:
    return sorted(payload for _, payload in consumer.received)


def test_an_insert_on_the_server_is_delivered(direct, consumer) -> None:
    run(direct, "INSERT INTO m (payload) VALUES ('a'), ('b')")
    eventually(lambda: payloads(consumer) == ["a", "b"])


def test_a_transaction_is_delivered_when_it_commits(direct, consumer) -> None:
    direct.autocommit(False)
    run(direct, "INSERT INTO m (payload) VALUES ('a')")
    direct.rollback()
    run(direct, "INSERT INTO m (payload) VALUES ('b')")
    run(direct, "INSERT INTO m (payload) VALUES ('c')")
    direct.commit()
    eventually(lambda: payloads(consumer) == ["b", "c"])


@pytest.mark.parametrize("write", WAYS)
def test_every_way_to_write_is_noticed(direct, consumer, tmp_path: Path, write) -> None:
    write(direct, tmp_path)
    eventually(lambda: payloads(consumer) == ["x"])


def test_what_an_event_of_the_server_writes_is_noticed(direct, consumer) -> None:
    (before,) = rows(direct, "SELECT @@GLOBAL.event_scheduler")
    run(direct, "SET GLOBAL event_scheduler = ON")
    try:
        run(direct, "CREATE EVENT e ON SCHEDULE AT CURRENT_TIMESTAMP DO INSERT INTO m (payload) VALUES ('x')")
        eventually(lambda: payloads(consumer) == ["x"])
    finally:
        run(direct, f"SET GLOBAL event_scheduler = {before[0]}")


def test_an_acknowledgement_by_update_gives_credit_back(direct, proxy, database, consume) -> None:
    enqueue(direct, "m", "abc")
    consumer = consume(proxy.connect(database=database), "STREAM id FROM m PREFETCH 1")
    for number in (1, 2, 3):
        await_count(consumer, number)
        run(direct, f"UPDATE m SET time_acked = {NOW_NS}, time_next = NULL WHERE id = {consumer.received[-1][0]}")
    assert sorted(consumer.received) == [(1,), (2,), (3,)]


@pytest.mark.parametrize("statement", ["DELETE FROM m WHERE id = {}", "UPDATE m SET id = id + 1000 WHERE id = {}"])
def test_what_is_taken_away_gives_credit_back(direct, proxy, database, consume, statement) -> None:
    enqueue(direct, "m", "ab")
    consumer = consume(proxy.connect(database=database), "STREAM id FROM m PREFETCH 1")
    eventually(lambda: len(consumer.received) == 1)
    run(direct, statement.format(consumer.received[0][0]))
    eventually(lambda: len(consumer.received) == 2)


def test_a_truncated_table_gives_credit_back_and_serves_what_comes_after(direct, proxy, database, consume) -> None:
    enqueue(direct, "m", "a")
    consumer = consume(proxy.connect(database=database), "STREAM payload FROM m PREFETCH 1")
    eventually(lambda: len(consumer.received) == 1)
    run(direct, "TRUNCATE TABLE m")
    enqueue(direct, "m", "b")
    eventually(lambda: consumer.received == [("a",), ("b",)])


def test_a_scheduled_message_comes_when_it_is_rescheduled_to_earlier(direct, consumer) -> None:
    run(direct, f"INSERT INTO m (id, payload, time_next) VALUES (7, 'late', {NOW_NS} + 3600000000000)")
    run(direct, f"INSERT INTO m (id, payload, time_next) VALUES (8, 'soon', {NOW_NS} + 300000000)")
    eventually(lambda: payloads(consumer) == ["soon"])
    run(direct, f"UPDATE m SET time_next = {NOW_NS} + 200000000 WHERE id = 7")
    eventually(lambda: payloads(consumer) == ["late", "soon"])


def test_a_message_that_is_put_off_is_not_delivered_before(direct, consumer) -> None:
    run(direct, f"INSERT INTO m (id, payload, time_next) VALUES (7, 'x', {NOW_NS} + 400000000)")
    run(direct, f"UPDATE m SET time_next = {NOW_NS} + 800000000 WHERE id = 7")
    ((due_ns,),) = rows(direct, "SELECT time_next FROM m WHERE id = 7")
    eventually(lambda: payloads(consumer) == ["x"])
    assert rows(direct, f"SELECT {NOW_NS} >= {due_ns}") == [(1,)]


def test_a_table_altered_on_the_server_is_looked_at_again(direct, proxy, database) -> None:

    def said(text: str, times: int) -> bool:
        output: str = proxy.output
        return output.count(text) == times

    # The catalog is read ten seconds after the last time anyway, so the first may be chance.
    for times in (1, 2, 3):
        run(direct, "ALTER TABLE m COMMENT 'vitess_message'")
        eventually(partial(said, f"{database}.m cannot be", times), timeout_s=7)
        run(direct, f"ALTER TABLE m COMMENT '{directives()}'")
        eventually(partial(said, f"queue {database}.m: ", times + 1), timeout_s=7)


def test_a_queue_made_on_the_server_is_followed(direct, proxy, database, consume) -> None:
    create_queue(direct, "n")
    eventually(lambda: f"queue {database}.n: " in proxy.output, timeout_s=5)
    consumer = consume(proxy.connect(database=database), "STREAM payload FROM n")
    for number in range(1, 4):
        enqueue(direct, "n", ["x"])
        await_count(consumer, number)


def test_rows_of_other_tables_are_passed_over(direct, consumer, proxy) -> None:
    run(direct, "CREATE TABLE other (id BIGINT PRIMARY KEY, v INT)")
    before = proxy.metric("binlog_rows_total")
    run(direct, "INSERT INTO other VALUES " + ", ".join(f"({number}, 0)" for number in range(1_000)))
    run(direct, "UPDATE other SET v = 1")
    enqueue(direct, "m", "a")
    eventually(lambda: payloads(consumer) == ["a"])
    eventually(lambda: proxy.metric("binlog_rows_total") > before)
    assert proxy.metric("binlog_rows_total") < before + 100  # Ours, and what other queues of this server do meanwhile.


def test_our_own_claims_and_acknowledgements_are_not_read_and_cause_no_scan(direct, proxy, database) -> None:
    enqueue(direct, "m", ["x"] * 300)
    with proxy.connect(database=database) as client:
        client.autocommit(True)
        assert len(rows(client, "STREAM id FROM m LIMIT 100 WAIT 10")) == 100

        def batch() -> None:
            ids = [number for (number,) in rows(client, "STREAM id FROM m LIMIT 100 WAIT 10")]
            assert run(client, f"ACK FROM m WHERE id IN ({', '.join(map(str, ids))})") == 100

        rows_before = settled(lambda: proxy.metric("binlog_rows_total"))  # The inserted rows are read by now.
        scans_before = proxy.metric("scans_total")
        batch()
        batch()
        enqueue(direct, "m", ["behind them"])
        eventually(lambda: proxy.metric("binlog_rows_total") > rows_before)
        # Without 400 of claims and acknowledgements. A connection of the engine's that is new may be read once.
        assert proxy.metric("binlog_rows_total") <= rows_before + 1 + 100
        # Each bounded stream may look once by itself.
        assert proxy.metric("scans_total") <= scans_before + 4


def test_an_insert_through_the_proxy_costs_one_scan(consumer, proxy, database) -> None:
    """The report of the commit starts it, and the binary log's report finds it under way or done."""
    before = proxy.metric("scans_total")
    with proxy.connect(database=database) as producer:
        producer.autocommit(True)
        for number in range(1, 101):
            enqueue(producer, "m", "a")
            await_count(consumer, number)
    # A dozen scans at growing intervals follow the start of a reader.
    assert proxy.metric("scans_total") <= before + 100 + 12 + 20


def test_a_burst_beyond_what_is_told_row_by_row_is_delivered(direct, consumer) -> None:
    enqueue(direct, "m", ["x"] * 5_000)
    eventually(lambda: len(consumer.received) == 5_000, timeout_s=20)


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_row_images_that_leave_columns_out_wake_all_the_same(direct, consumer, image) -> None:
    run(direct, f"SET SESSION binlog_row_image = '{image}'")
    run(direct, "INSERT INTO m (payload) VALUES ('a')")
    run(direct, f"INSERT INTO m (id, payload, time_next) VALUES (70, 'b', {NOW_NS} + 3600000000000)")
    eventually(lambda: payloads(consumer) == ["a"])
    run(direct, "UPDATE m SET time_next = 0 WHERE id = 70")
    eventually(lambda: payloads(consumer) == ["a", "b"])


def test_a_statement_in_the_log_wakes_all_the_same(direct, consumer) -> None:
    run(direct, "SET SESSION binlog_format = 'STATEMENT'")
    run(direct, "INSERT INTO m (payload) VALUES ('a')")
    eventually(lambda: payloads(consumer) == ["a"])


def test_a_compressed_transaction_wakes_all_the_same(direct, consumer, flavour) -> None:
    if flavour == "mysql":
        run(direct, "SET SESSION binlog_transaction_compression = ON")
        run(direct, "INSERT INTO m (payload) VALUES ('a')")
    else:
        run(direct, "SET GLOBAL log_bin_compress_min_len = 10")
        run(direct, "SET GLOBAL log_bin_compress = ON")
        try:
            run(direct, f"INSERT INTO m (payload) VALUES ('{'a' * 5000}')")
        finally:
            run(direct, "SET GLOBAL log_bin_compress = OFF")
    eventually(lambda: len(consumer.received) == 1)


def test_a_killed_dump_is_taken_up_again_and_what_was_missed_is_found(direct, consumer, proxy, server) -> None:
    starts = proxy.metric("binlog_starts_total")
    listed = rows(direct, "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
    assert listed
    for (dump,) in listed:
        run(direct, f"KILL {dump}")
    eventually(lambda: proxy.metric("binlog_starts_total") > starts and following(proxy))
    run(direct, "INSERT INTO m (payload) VALUES ('a')")
    eventually(lambda: payloads(consumer) == ["a"])


def test_it_goes_on_into_the_next_file_of_the_log(direct, consumer, proxy) -> None:
    run(direct, "FLUSH BINARY LOGS")
    run(direct, "INSERT INTO m (payload) VALUES ('a')")
    eventually(lambda: payloads(consumer) == ["a"])


def test_after_a_restart_of_the_server_it_is_followed_again(private_server, private_proxy, consume) -> None:
    with connect(private_server) as direct:
        run(direct, "CREATE DATABASE shop")
        direct.select_db("shop")
        create_queue(direct, "m")
    eventually(lambda: following(private_proxy))
    private_server.kill()
    eventually(lambda: not following(private_proxy))
    private_server.start()
    eventually(lambda: following(private_proxy), timeout_s=20)
    consumer = consume(private_proxy.connect(database="shop"), "STREAM payload FROM m")
    with connect(private_server, database="shop") as direct:
        for number in (1, 2):
            enqueue(direct, "m", ["x"])
            await_count(consumer, number)
    told = re.findall("cannot be followed now|the server takes no connection", private_proxy.output)
    assert told in ([], ["the server takes no connection"])  # Perhaps nothing was sent while it was away.


@pytest.mark.parametrize("reason", ["account", "switched off", "no log"])
def test_without_a_log_to_read_it_says_so_once_and_polls(
    server_name, flavour, server, database, tmp_path: Path, reason, consume
) -> None:
    with contextlib.ExitStack() as stack:
        account, polled = "root", "binlog is not followed"
        if reason == "no log":
            off = "--disable-log-bin" if flavour == "mysql" else "--skip-log-bin"
            server = stack.enter_context(running_server(server_name, options=[off]))
        root = stack.enter_context(connect(server))
        run(root, f"CREATE DATABASE IF NOT EXISTS {database}")
        root.select_db(database)
        create_queue(root, "m", vt_poller_interval="0.2")
        if reason == "account":
            account = f"b_{database}"
            run(root, f"CREATE USER {account}@localhost")
            stack.callback(run, root, f"DROP USER {account}@localhost")
            run(root, f"GRANT SELECT, UPDATE, DELETE ON {database}.* TO {account}@localhost")
        if reason == "switched off":
            stack.enter_context(environment(ACKSTREAM_BINLOG="off"))
        proxy = stack.enter_context(running_proxy(server, tmp_path / "log", account=account))
        consumer = consume(proxy.connect(database=database), "STREAM payload FROM m")
        enqueue(root, "m", "a")
        eventually(lambda: consumer.received == [("a",)])
        enqueue(root, "m", "b")
        eventually(lambda: len(consumer.received) == 2)
        expected = 0 if reason == "switched off" else 1
        eventually(lambda: proxy.output.count(polled) == expected)
        assert proxy.output.count("the binlog") == expected
        if reason == "no log":
            assert "log_bin is OFF: set log_bin = binlog and binlog_format = ROW in the server's" in proxy.output
        consumer.vanish()


def test_an_account_needs_two_privileges_for_it(server, database, tmp_path: Path, flavour) -> None:
    user = f"b_{database}"
    with connect(server) as root:
        run(root, f"CREATE USER {user}@localhost IDENTIFIED BY 'h-u-s-h'")
        run(root, f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}@localhost")
        try:
            with running_proxy(server, tmp_path / "log", account=f"{user}:h-u-s-h") as proxy:
                eventually(lambda: following(proxy))
                reader = Path(f"/proc/{reader_pid(proxy)}")
                assert b"h-u-s-h" not in (reader / "cmdline").read_bytes()
                assert b"h-u-s-h" not in (reader / "environ").read_bytes()
                assert "h-u-s-h" not in proxy.output
        finally:
            run(root, f"DROP USER {user}@localhost")


@pytest.mark.parametrize("end", [RunningProxy.kill, RunningProxy.terminate])
def test_the_reader_ends_with_its_proxy_however_that_ends(server, tmp_path: Path, end) -> None:
    with running_proxy(server, tmp_path / "log") as proxy:
        eventually(lambda: following(proxy))
        reader = Path(f"/proc/{reader_pid(proxy)}")
        end(proxy)
        eventually(lambda: not reader.exists())


def test_a_killed_reader_is_replaced(server, database, tmp_path: Path) -> None:
    with running_proxy(server, tmp_path / "log") as proxy:
        eventually(lambda: following(proxy))
        os.kill(reader_pid(proxy), 9)
        eventually(lambda: proxy.metric("binlog_starts_total") == 2 and following(proxy))
