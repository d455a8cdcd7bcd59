"""STREAM … FOR UPDATE: the lock of the client's transaction is the claim, on both servers."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pymysql
import pytest
from mysql_mimic.types import Commands
from pymysql.cursors import SSCursor

from proxy.wire.packets import parse_err, parse_ok
from tests.support import insides
from tests.support.proxies import running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import ALL, BASE, DEPRECATE_EOF, RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually, settled

pytestmark = pytest.mark.either_server

ENOUGH_SCANS = 12
"""Of a queue with due messages that others have locked: more than come before they are tried."""
ROW = "SELECT epoch, time_next, time_acked FROM m ORDER BY id"


@pytest.fixture
def queue(proxy, database):
    """A queue with three messages, through the proxy."""
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m")
        enqueue(connection, "m", "abc")
        yield connection


@pytest.fixture
def begin(proxy, database, queue):
    """Open another connection, with a transaction."""
    opened = []

    def open_one(**options):
        opened.append(proxy.connect(database=database, **options))
        run(opened[-1], "BEGIN")
        return opened[-1]

    yield open_one
    for connection in opened:
        if connection.open:
            connection.close()


def lock(connection, limit=10, how="NOWAIT", columns="payload", where=""):
    statement = f"STREAM {columns} FROM m {where} LIMIT {limit} {how} FOR UPDATE"
    return [value for (value,) in rows(connection, statement)]


def refused(connection, statement):
    with pytest.raises(pymysql.MySQLError) as caught:
        run(connection, statement)
    return caught.value.args


def test_messages_come_in_order_and_nothing_is_written(queue, begin, server, database) -> None:
    with connect(server, database=database) as direct:
        before = rows(direct, ROW)
        worker = begin()
        assert lock(worker, 2) == ["a", "b"]
        assert lock(worker, 2) == ["c"]
        assert rows(direct, ROW) == before
        run(worker, "COMMIT")
        assert rows(direct, ROW) == before


def test_an_ack_commits_with_the_transaction_and_what_was_not_acknowledged_is_free(queue, begin) -> None:
    worker = begin()
    assert lock(worker) == ["a", "b", "c"]
    assert run(worker, "ACK m WHERE id IN (1, 3)") == 2
    run(worker, "COMMIT")
    assert lock(begin(), how="WAIT 10") == ["b"]
    ((epoch, _, acked), *_) = rows(queue, ROW)
    assert epoch == 0
    assert acked


def test_the_order_is_the_queues_whatever_the_order_of_ids(queue, begin) -> None:
    run(queue, "UPDATE m SET priority = 1 WHERE id = 1")
    run(queue, "UPDATE m SET time_next = 7 WHERE id = 2")
    assert lock(begin()) == ["c", "b", "a"]


def test_two_workers_share_what_there_is(begin) -> None:
    one, two = begin(), begin()
    assert lock(one, 2) == ["a", "b"]
    assert lock(two) == ["c"]
    run(one, "ACK m WHERE id = 1")
    run(one, "COMMIT")
    assert lock(two, how="WAIT 10") == ["b"]


def test_a_rollback_counts_as_a_failed_attempt(queue, begin) -> None:
    worker = begin()
    lock(worker, 1)
    run(worker, "ACK m WHERE id = 1")
    run(worker, "ROLLBACK")
    eventually(lambda: rows(queue, ROW)[0][0] == 1, what="the failure counted")
    ((_, time_next, acked), *_) = rows(queue, ROW)
    ((now,),) = rows(queue, "SELECT UNIX_TIMESTAMP(NOW(6)) * 1000000000")
    assert acked is None
    assert 0 < time_next - now <= 30 * 10**9, "it backs off for the queue's first wait"
    assert lock(begin()) == ["b", "c"]


@pytest.mark.parametrize("statement", ["ROLLBACK TO SAVEPOINT s", "SAVEPOINT s2", "SELECT 1", "SELECT nonsense"])
def test_a_statement_within_the_transaction_ends_no_lock(begin, statement) -> None:
    worker = begin()
    run(worker, "SAVEPOINT s")
    assert lock(worker, 2) == ["a", "b"]
    try:
        run(worker, statement)
    except pymysql.MySQLError:
        assert statement == "SELECT nonsense"
    assert lock(begin()) == ["c"]
    assert run(worker, "ACK m WHERE id IN (1, 2)") == 2


@pytest.mark.parametrize(
    "statement",
    ["COMMIT", "commit and chain", "BEGIN", "START TRANSACTION", "CREATE TABLE other (a INT)", "COMMIT WORK;"],
)
def test_whatever_commits_frees_without_counting(queue, begin, statement) -> None:
    worker = begin()
    assert lock(worker) == ["a", "b", "c"]
    run(worker, statement)
    assert lock(begin(), how="WAIT 10") == ["a", "b", "c"]
    assert {epoch for epoch, _, _ in rows(queue, ROW)} == {0}


def test_a_reset_of_the_connection_counts_as_a_rollback(queue, begin) -> None:
    worker = begin()
    lock(worker, 1)
    insides.send(worker, Commands.COM_RESET_CONNECTION, b"")
    insides.affected(worker)
    eventually(lambda: rows(queue, ROW)[0][0] == 1, what="the failure counted")


def test_autocommit_off_is_a_transaction(proxy, database, begin) -> None:
    with proxy.connect(database=database, autocommit=False) as worker:
        assert lock(worker, 1) == ["a"]
        assert lock(begin()) == ["b", "c"]
        assert run(worker, "ACK m WHERE id = 1") == 1
        worker.commit()
        assert lock(worker, 1) == []


def test_without_a_transaction_it_is_refused(queue) -> None:
    code, text = refused(queue, "STREAM * FROM m LIMIT 1 NOWAIT FOR UPDATE")
    assert code == 1105
    assert "BEGIN first" in text
    run(queue, "BEGIN")
    assert lock(queue) == ["a", "b", "c"]
    run(queue, "COMMIT")


def test_a_read_only_transaction_gets_the_servers_error(proxy, database, queue) -> None:
    with proxy.connect(database=database) as worker:
        run(worker, "START TRANSACTION READ ONLY")
        assert refused(worker, "STREAM * FROM m LIMIT 1 NOWAIT FOR UPDATE")[0] == 1792


@pytest.mark.parametrize("capabilities", [BASE, BASE | DEPRECATE_EOF, ALL])
def test_it_can_be_prepared(proxy, database, queue, capabilities) -> None:
    with RawClient(proxy, capabilities, database) as client, RawClient(proxy, capabilities, database) as plain:
        number = client.prepare("STREAM id, payload, time_acked FROM m WHERE id > ? LIMIT ? NOWAIT FOR UPDATE")
        assert parse_err(client.execute(number, 1, 2)[-1].payload).code == 1105
        client.query("BEGIN")
        plain.query("BEGIN")
        select = plain.prepare("SELECT id, payload, time_acked FROM m WHERE id > ? ORDER BY id LIMIT 2")
        for _ in range(2):
            expected = [packet.payload for packet in plain.execute(select, 1)]
            taken = [packet.payload for packet in client.execute(number, 1, 2)]
            assert taken[:-1] == expected[:-1]
            client.query("COMMIT")
            client.query("BEGIN")
        client.execute(number, 0, 1)
        assert parse_ok(client.query("ACK m WHERE id = 1")[0].payload).head.affected_rows == 1


def test_an_insert_wakes_it(proxy, database, queue, begin) -> None:
    worker = begin()
    assert len(lock(worker)) == 3
    other = begin()
    got = []
    thread = threading.Thread(target=lambda: got.extend(lock(other, 1, "WAIT 60")))
    thread.start()
    eventually(lambda: rows(queue, "SHOW STREAMS"), what="the waiting stream")
    enqueue(queue, "m", "d")
    thread.join(20)
    assert got == ["d"]


def wait_for_insert(proxy, database, queue, begin, values):
    """Begin a stream FOR UPDATE; insert when it waits, and nothing else happens. Returns its session, what it got,
    and how many scans that took."""
    worker, got = begin(), []
    thread = threading.Thread(target=lambda: got.extend(lock(worker, 1, "WAIT 60")))
    thread.start()
    eventually(lambda: rows(queue, "SHOW STREAMS"), what="the waiting stream")
    scans = settled(lambda: proxy.metric("scans_total"))
    run(queue, f"INSERT INTO m (payload, priority, time_next) VALUES {values}")
    thread.join(20)
    return worker, got, proxy.metric("scans_total") - scans


def test_a_message_is_locked_without_a_scan_when_it_is_inserted(proxy, database, queue, begin) -> None:
    run(queue, "DELETE FROM m")
    scans = []
    for _ in range(3):  # Each second, one scan confirms what was locked without one.
        worker, got, taken = wait_for_insert(proxy, database, queue, begin, "('d', 0, 0)")
        assert got == ["d"]
        run(worker, "ACK m WHERE id > 0")
        run(worker, "COMMIT")
        scans.append(taken)
    assert min(scans) == 0


@pytest.mark.parametrize("values", ["('d', 0, 0)", "('d', 7, 1)", "('d', NULL, NULL)"])
def test_a_rollback_counts_whatever_the_insert_has_set(proxy, database, queue, begin, values) -> None:
    run(queue, "DELETE FROM m")
    run(queue, "ALTER TABLE m MODIFY priority INT, MODIFY epoch BIGINT")  # NULL, if nothing else is given.
    worker, got, _ = wait_for_insert(proxy, database, queue, begin, values)
    assert got == ["d"]
    run(worker, "ROLLBACK")
    eventually(lambda: rows(queue, ROW)[0][0] == 1, what="the failure counted")


def test_a_message_that_is_inserted_for_later_does_not_come_before_its_time(proxy, database, queue, begin) -> None:
    run(queue, "DELETE FROM m")
    later = "('later', 0, UNIX_TIMESTAMP() * 1000000000 + 3600000000000), ('d', 0, 0)"
    _, got, _ = wait_for_insert(proxy, database, queue, begin, later)
    assert got == ["d"]


def questions(worker) -> int:
    """How many statements the server has run for this session."""
    ((_, count),) = rows(worker, "SHOW SESSION STATUS LIKE 'Questions'")
    return int(count)


@pytest.mark.parametrize("messages", [1, 60])
def test_a_batch_costs_few_statements_and_no_claim(proxy, queue, begin, messages) -> None:
    run(queue, "DELETE FROM m")
    enqueue(queue, "m", [str(number) for number in range(6 * messages)])  # Those behind a batch are read ahead.
    worker = begin()
    before = {name: proxy.metric(name) for name in ("claims_total", "released_total")}
    status, costs = 1, list[int]()
    run(worker, "COMMIT")
    for _ in range(6):  # The first one is proven at length.
        count = questions(worker)
        run(worker, "BEGIN")
        taken = [key for (key,) in rows(worker, f"STREAM id FROM m LIMIT {messages} WAIT 10 FOR UPDATE")]
        assert len(taken) == messages
        costs.append(questions(worker) - count - status)
        count = questions(worker)
        assert run(worker, f"ACK m WHERE id IN ({', '.join(map(str, taken))})") == messages
        run(worker, "COMMIT")
        assert questions(worker) - count - status == 2, "ACK, COMMIT"
    assert min(costs) == 1 + 3 + 1, "BEGIN, the proof behind the statement that counts, the rows"
    assert lock(begin()) == []
    assert {name: proxy.metric(name) for name in before} == before


def test_a_client_that_is_killed_frees_its_messages_at_once_and_is_counted(proxy, database, queue) -> None:
    program = (
        "import pymysql, sys, time\n"
        f"c = pymysql.connect(host={proxy.host!r}, port={proxy.port}, user='root', database={database!r}).cursor()\n"
        "c.execute('BEGIN')\n"
        "print(c.execute('STREAM * FROM m LIMIT 2 WAIT 20 FOR UPDATE'), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "2\n"
        client.send_signal(signal.SIGKILL)
        client.wait()
    eventually(lambda: [epoch for epoch, _, _ in rows(queue, ROW)] == [1, 1, 0], what="the failures counted")
    run(queue, "BEGIN")
    assert sorted(lock(queue, 3, "WAIT 10", columns="id")) == [1, 2, 3]


def test_a_message_is_dead_after_so_many_rollbacks(proxy, database) -> None:
    with proxy.connect(database=database) as connection:
        run(connection, "CREATE QUEUE dead (payload TEXT) DEAD_LETTER_OF = 'm'")
        run(connection, "CREATE QUEUE m (payload TEXT) MAX_ATTEMPTS = 2, DEAD_LETTER = dead, ACK_WAIT = 0.01")
        run(connection, "INSERT INTO m (payload) VALUES ('poison')")
        for attempt in range(2):
            run(connection, "BEGIN")
            assert lock(connection, 1, "WAIT 20") == ["poison"], attempt
            run(connection, "ROLLBACK")
        eventually(
            lambda: rows(connection, "SELECT payload, epoch FROM dead") == [("poison", 2)], what="the dead letter"
        )


def test_a_condition_selects_what_is_locked(queue, begin) -> None:
    assert lock(begin(), where="WHERE payload > 'a'", limit=1) == ["b"]
    assert lock(begin(), where="WHERE payload > 'a'") == ["c"]


def test_kill_query_ends_a_waiting_stream_and_the_transaction_keeps_its_locks(proxy, queue, begin) -> None:
    worker = begin()
    assert lock(worker, 3) == ["a", "b", "c"]
    failed = []
    thread = threading.Thread(
        target=lambda: failed.append(refused(worker, "STREAM id FROM m LIMIT 1 WAIT 60 FOR UPDATE"))
    )
    thread.start()
    eventually(lambda: rows(queue, "SHOW STREAMS"), what="the waiting stream")
    run(queue, f"KILL QUERY {worker.thread_id()}")
    thread.join(20)
    assert failed[0][0] == 1317
    assert run(worker, "ACK m WHERE id < 10") == 3
    run(worker, "COMMIT")


def test_two_proxies_never_hand_out_a_message_twice(proxy, server, database, queue, tmp_path) -> None:
    run(queue, "DELETE FROM m")
    enqueue(queue, "m", [str(number) for number in range(600)])
    taken: list[int] = []

    def work(through) -> None:
        with through.connect(database=database) as connection:
            while True:
                run(connection, "BEGIN")
                ids = lock(connection, 7, "WAIT 1", columns="id")
                if ids:
                    assert run(connection, f"ACK m WHERE id IN ({', '.join(map(str, ids))})") == len(ids)
                run(connection, "COMMIT")
                taken.extend(ids)
                if not ids:
                    return

    with running_proxy(server, tmp_path / "log") as other:
        threads = [threading.Thread(target=work, args=[through]) for through in (proxy, other) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert len(taken) == 600
    assert len(set(taken)) == 600
    assert rows(queue, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(0,)]


@pytest.fixture
def engines(proxy, server, tmp_path):
    """Two proxies."""
    with running_proxy(server, tmp_path / "log") as other:
        yield proxy, other


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "READ COMMITTED"])
def test_producers_do_not_wait_for_a_consumer_that_waits_for_what_another_engine_has_locked(
    engines, database, queue, isolation
) -> None:
    """Under REPEATABLE READ, a session that skips a locked row locks the gap behind it until its transaction ends.
    Behind the last row, that would be the place of all new messages."""
    holder, waiting = (engine.connect(database=database) for engine in engines)
    for worker in (holder, waiting):
        run(worker, f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
        run(worker, "BEGIN")
    assert len(lock(holder, 3)) == 3
    received = []
    thread = threading.Thread(target=lambda: received.append(lock(waiting, 5, "WAIT 30")))
    scans = engines[1].metric("scans_total")
    thread.start()
    # Longer than another engine's messages are left to it.
    eventually(lambda: engines[1].metric("scans_total") >= scans + ENOUGH_SCANS)
    run(queue, "SET SESSION innodb_lock_wait_timeout = 1")
    enqueue(queue, "m", "d")
    thread.join(60)
    assert received == [["d"]]
    for worker in (holder, waiting):
        run(worker, "ROLLBACK")
        worker.close()


def test_producers_do_not_wait_for_a_consumer_after_an_insert_into_another_table_of_the_same_name(
    proxy, server, database, queue, begin
) -> None:
    """A statement's head shows a table's name without its database, so the ids may be of another table. A session that
    looks for an id behind the last row locks the place of all new messages."""
    run(queue, "DELETE FROM m")
    with connect(server) as elsewhere:
        run(elsewhere, f"CREATE DATABASE {database}_too")
        run(elsewhere, f"CREATE TABLE {database}_too.m (id BIGINT PRIMARY KEY AUTO_INCREMENT, payload TEXT)")
        run(elsewhere, f"ALTER TABLE {database}_too.m AUTO_INCREMENT = 1000000")
    worker, got = begin(), []
    thread = threading.Thread(target=lambda: got.extend(lock(worker, 1, "WAIT 60")))
    thread.start()
    eventually(lambda: rows(queue, "SHOW STREAMS"), what="the waiting stream")
    scans = settled(lambda: proxy.metric("scans_total"))
    run(queue, f"INSERT INTO {database}_too.m (payload) VALUES ('not here')")
    eventually(lambda: proxy.metric("scans_total") > scans, what="the other table's message looked for")
    settled(lambda: proxy.metric("scans_total"))
    run(queue, "SET SESSION innodb_lock_wait_timeout = 1")
    enqueue(queue, "m", "d")
    thread.join(20)
    assert got == ["d"]


def test_a_killed_proxy_frees_its_messages_by_the_server_and_counts_nothing(
    proxy, server, database, queue, tmp_path
) -> None:
    with running_proxy(server, tmp_path / "log", check=False) as other, other.connect(database=database) as worker:
        run(worker, "BEGIN")
        assert lock(worker, 2) == ["a", "b"]
        other.kill()
        run(queue, "BEGIN")
        assert lock(queue, 1, "WAIT 10")  # Whichever was free first.
        run(queue, "COMMIT")
    assert {epoch for epoch, _, _ in rows(queue, ROW)} == {0}


@pytest.mark.parametrize("charset", ["utf8mb4", "latin1"])
def test_rows_pass_unchanged_in_the_characters_of_the_client(proxy, database, queue, charset) -> None:
    run(queue, "DELETE FROM m")
    run(queue, "ALTER TABLE m MODIFY payload LONGTEXT")
    ((size,),) = rows(queue, "SELECT @@max_allowed_packet DIV 8")
    enqueue(queue, "m", ["ä", ""])
    run(queue, f"INSERT INTO m (payload) VALUES (REPEAT('ö', {size}))")
    with proxy.connect(database=database, charset=charset) as worker:
        run(worker, "BEGIN")
        assert lock(worker, 3, "WAIT 10") == ["ä", "", "ö" * size]


@pytest.mark.parametrize(
    ("id_type", "ids"),
    [
        ("VARCHAR(20) CHARACTER SET latin1", ["Zürich", "aarau"]),
        ("CHAR(10)", ["b", "c"]),
        ("BINARY(2)", [b"\x00\xff", b"ab"]),
        ("DECIMAL(10, 3)", ["1.500", "2.000"]),
        ("DOUBLE", [0.1, 1e300]),
        ("DATETIME(6)", ["2026-01-01 00:00:00.000001", "2026-01-01 00:00:00.000002"]),
        ("TIMESTAMP", ["2026-01-01 00:00:00", "2026-01-01 00:00:01"]),
    ],
)
@pytest.mark.parametrize("sql_mode", ["", "PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES,NO_BACKSLASH_ESCAPES"])
def test_ids_of_any_type_in_any_session(proxy, flavour, database, id_type, ids, sql_mode) -> None:
    with proxy.connect(database=database) as worker:
        run(worker, f"CREATE QUEUE m (id {id_type} PRIMARY KEY)")
        with worker.cursor() as cursor:
            cursor.executemany("INSERT INTO m (id) VALUES (%s)", [(one,) for one in ids])
        run(worker, f"SET sql_mode = '{sql_mode}', time_zone = '+05:00', character_set_connection = ucs2")
        for _ in range(2):
            run(worker, "BEGIN")
            assert len(rows(worker, "STREAM * FROM m LIMIT 5 WAIT 5 FOR UPDATE")) == 2
            run(worker, "COMMIT")
        run(worker, "BEGIN")
        rows(worker, "STREAM * FROM m LIMIT 5 WAIT 5 FOR UPDATE")
        run(worker, "ROLLBACK")
        eventually(lambda: rows(worker, "SELECT epoch FROM m") == [(1,), (1,)], what="both failures counted")


def big_messages(queue, count: int) -> int:
    """So many messages of a megabyte."""
    run(queue, "DELETE FROM m")
    run(queue, "ALTER TABLE m MODIFY payload LONGTEXT")
    run(queue, f"INSERT INTO m (payload) SELECT REPEAT('x', 1000000) FROM information_schema.columns LIMIT {count}")
    return count


def resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


def test_a_client_that_reads_slowly_costs_little_memory_and_gets_all(proxy, queue, begin) -> None:
    count = big_messages(queue, 90)
    worker = begin()
    before = resident_bytes(proxy.pid)
    with worker.cursor(SSCursor) as cursor:
        cursor.execute(f"STREAM payload FROM m LIMIT {count} WAIT 10 FOR UPDATE")
        got = len(cursor.fetchmany(2))
        held = settled(lambda: resident_bytes(proxy.pid) // 2_000_000)  # Until the proxy reads no more.
        assert held * 2_000_000 - before < 40_000_000
        got += len(cursor.fetchall())
    assert got == count
    run(worker, "COMMIT")


def test_kill_query_in_the_middle_of_rows_keeps_the_transaction(proxy, queue, begin) -> None:
    count = big_messages(queue, 90)
    worker = begin()
    cursor = SSCursor(worker)
    cursor.execute(f"STREAM payload FROM m LIMIT {count} WAIT 10 FOR UPDATE")
    cursor.fetchmany(2)
    run(queue, f"KILL QUERY {worker.thread_id()}")
    with pytest.raises(pymysql.MySQLError, match="1317"):
        cursor.fetchall()
    insides.forget_result(worker)
    assert 0 < run(worker, "ACK m WHERE id > 0") <= count
    run(worker, "ROLLBACK")
    run(queue, "BEGIN")
    eventually(lambda: len(lock(queue, count, "WAIT 5", columns="id")) or None, what="what was not delivered")
    run(queue, "ROLLBACK")


def vanish(worker, _queue) -> None:
    insides.cut(worker)
    insides.forget_result(worker)


def be_killed(worker, queue) -> None:
    run(queue, f"KILL {worker.thread_id()}")
    insides.forget_result(worker)


@pytest.mark.parametrize("end", [vanish, be_killed])
def test_what_a_client_had_got_when_its_connection_ended_in_the_middle_of_rows_is_counted(
    proxy, queue, begin, end
) -> None:
    """It does not read any more, so the proxy does not read the rest of the rows."""
    count = big_messages(queue, 90)
    worker = begin()
    cursor = SSCursor(worker)
    cursor.execute(f"STREAM id, payload FROM m LIMIT {count} WAIT 10 FOR UPDATE")
    ((first, _),) = cursor.fetchmany(1)
    settled(lambda: proxy.metric('received_bytes_total{from="server"}'))
    end(worker, queue)
    eventually(lambda: rows(queue, f"SELECT epoch FROM m WHERE id = {first}") == [(1,)], what="the attempt counted")
    ((counted,),) = rows(queue, "SELECT COUNT(*) FROM m WHERE epoch > 0")
    assert counted < count, "what was not sent is no attempt"
    run(queue, "BEGIN")
    eventually(lambda: lock(queue, 1, "WAIT 5", columns="id", where=f"WHERE id = {first}"), what="the message again")


def test_a_client_that_is_cut_off_in_the_middle_of_rows_holds_nothing(proxy, queue, begin) -> None:
    count = big_messages(queue, 90)
    worker = begin()
    cursor = SSCursor(worker)
    cursor.execute(f"STREAM payload FROM m LIMIT {count} WAIT 10 FOR UPDATE")
    cursor.fetchone()
    insides.cut(worker)
    insides.forget_result(worker)
    taken: set[int] = set()
    run(queue, "BEGIN")

    def all_taken() -> bool:
        taken.update(lock(queue, count, "WAIT 1", columns="id"))
        return len(taken) == count

    eventually(all_taken)
    run(queue, "COMMIT")
