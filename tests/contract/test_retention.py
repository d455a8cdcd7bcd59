"""Tables with acknowledged rows in partitions by time: dropped when old, made ahead, and nobody is delayed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.model import NS_PER_S, MoveResult, TableId, Wanted
from engine.queue_table import QueueTable
from engine.store import partitions
from engine.store.mysql import MySQLStore, StoreLimits
from engine.store.opening import BackendAddress
from engine.store.partition_plan import AHEAD
from engine.store.partitions import NOWAIT_ROUNDS
from engine.store.queries import partition_clause
from proxy.embedded.server import EmbeddedServer
from tests.support.servers import ServerName, server_or_skip
from tests.support.stores import PARTITIONED, ServerSubject, partitioned_queue
from tests.support.waiting import eventually

S = NS_PER_S
HOUR = 3600 * S


@pytest.fixture(scope="module")
def server(server_name: ServerName) -> Iterator[EmbeddedServer]:
    """A server whose partitions no other test's proxy maintains."""
    with server_or_skip(server_name) as made:
        yield made


@pytest.fixture
def subject(server: EmbeddedServer) -> Iterator[ServerSubject]:
    """A table whose first partition by time ended ten and a half hours ago; the last one ends in one and a half."""
    now_ns = clock_ns(server)
    made = partitioned_queue(server, partition_clause(now_ns - 11 * HOUR - HOUR // 2, HOUR, 13))
    yield made
    made.close()


@pytest.fixture
def impatient(subject: ServerSubject) -> Iterator[Callable[..., MySQLStore]]:
    """Makes stores without pauses before another attempt."""
    made: list[MySQLStore] = []

    def make(user: str = "root") -> MySQLStore:
        limits = StoreLimits(partition_busy_pause_s=0, partition_refused_pause_s=0)
        made.append(MySQLStore(BackendAddress(subject.server.host, subject.server.port, user), limits))
        return made[-1]

    yield make
    for made_store in made:
        made_store.close()


def clock_ns(server: EmbeddedServer) -> int:
    store = MySQLStore(BackendAddress(server.host, server.port, "root"))
    now_ns = store.discover().now_ns
    store.close()
    return now_ns


def put_acked(subject: ServerSubject, *hours_ago: float) -> None:
    """An acknowledged message each; its id is how many hours ago that was, times ten."""
    now_ns = subject.now_ns()
    for hours in hours_ago:
        subject.execute(
            "INSERT INTO messages (id, time_next, time_acked) VALUES (%s, NULL, %s)",
            int(hours * 10),
            now_ns - int(hours * HOUR),
        )


def names(subject: ServerSubject) -> list[str]:
    found = subject.execute(
        "SELECT partition_name FROM information_schema.partitions WHERE table_schema = %s AND table_name = 'messages'"
        " ORDER BY partition_ordinal_position",
        subject.database,
    )
    return [name for (name,) in found]


def ids(subject: ServerSubject) -> list[Any]:
    return [key for (key,) in subject.execute("SELECT id FROM messages ORDER BY id")]


class TestDropping:
    def test_old_partitions_are_dropped_and_live_rows_stay(self, subject: ServerSubject) -> None:
        put_acked(subject, 0.1, 1, 2, 3.2, 4, 7, 9)
        subject.execute("INSERT INTO messages (id, time_next) VALUES (1000, 0), (1001, 0)")
        before = names(subject)
        assert subject.store.purge(subject.table, 3 * HOUR, 100).value.rows == 0
        assert ids(subject) == [1, 10, 20, 32, 1000, 1001]
        after = names(subject)
        assert after[0] == "live"
        assert after[-1] == "later"
        assert set(before) - set(after) == set(before[1:9])

    def test_old_rows_in_other_partitions_are_deleted_row_by_row(self, subject: ServerSubject) -> None:
        """In the lowest partition, where somebody put back what is older than all of them, and in the last one."""
        put_acked(subject, 200, 300, -50)
        assert subject.store.purge(subject.table, 3 * HOUR, 1).value.rows == 1
        assert subject.store.purge(subject.table, 3 * HOUR, 100).value.rows == 1
        assert ids(subject) == [-500]

    def test_everything_acknowledged_can_be_purged_now(self, subject: ServerSubject) -> None:
        put_acked(subject, 0.1, 5.5)
        subject.execute("INSERT INTO messages (id) VALUES (1000)")
        assert subject.store.purge(subject.table, 0, 100).value.rows == 1
        assert ids(subject) == [1000]

    def test_two_proxies_may_maintain_partitions_at_once(
        self, subject: ServerSubject, impatient: Callable[..., MySQLStore], caplog: pytest.LogCaptureFixture
    ) -> None:
        put_acked(subject, *range(10))
        stores = [impatient() for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            for _ in range(5):
                for done in [threads.submit(store.purge, subject.table, 3 * HOUR, 100) for store in stores]:
                    done.result()
        assert ids(subject) == [0, 10, 20, 30]
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


class TestAhead:
    def future(self, subject: ServerSubject) -> list[str]:
        now_ns = subject.now_ns()
        return [name for name in names(subject) if name.startswith("p") and int(name[1:]) - HOUR > now_ns]

    def test_new_partitions_are_made_ahead_and_once(self, subject: ServerSubject) -> None:
        for _ in range(3):
            subject.store.purge(subject.table, 100 * HOUR, 100)
            assert len(self.future(subject)) == AHEAD
        assert names(subject)[-1] == "later"
        put_acked(subject, 0)
        assert subject.execute("SELECT COUNT(*) FROM messages PARTITION (later)") == [(0,)]

    def test_a_table_without_a_last_partition_for_all_the_rest_gets_them_too(self, subject: ServerSubject) -> None:
        subject.execute("ALTER TABLE messages DROP PARTITION later")
        subject.store.purge(subject.table, 100 * HOUR, 100)
        assert len(self.future(subject)) == AHEAD

    def test_a_last_partition_with_rows_is_not_split_and_the_remedy_is_logged(
        self, subject: ServerSubject, impatient: Callable[..., MySQLStore], caplog: pytest.LogCaptureFixture
    ) -> None:
        put_acked(subject, -50, 7.5)
        store, before = impatient(), names(subject)
        for _ in range(3):
            store.purge(subject.table, 3 * HOUR, 100)
        (logged,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert "later, which has rows" in logged
        assert set(names(subject)) < set(before)
        assert ids(subject) == [-500]
        subject.execute("ALTER TABLE messages " + logged[logged.index("REORGANIZE") :])
        assert len(self.future(subject)) >= AHEAD

    def test_range_columns_partitions_are_maintained_too(self, server: EmbeddedServer) -> None:
        now_ns = clock_ns(server)
        clause = partition_clause(now_ns - 11 * HOUR, HOUR, 13).replace("RANGE (", "RANGE COLUMNS (")
        subject = partitioned_queue(server, clause)
        put_acked(subject, 7.5)
        assert subject.store.purge(subject.table, 3 * HOUR, 100).value.rows == 0
        assert (ids(subject), len(self.future(subject))) == ([], AHEAD)
        subject.close()


class TestNobodyWaits:
    def test_a_transaction_on_the_table_is_not_delayed_and_the_next_round_succeeds(
        self, subject: ServerSubject, impatient: Callable[..., MySQLStore]
    ) -> None:
        put_acked(subject, 7.5)
        store, before = impatient(), names(subject)
        with subject.connect(autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("INSERT INTO messages (id) VALUES (1000)")
            assert store.purge(subject.table, 3 * HOUR, 100).value.rows == 0
            assert names(subject) == before
            cursor.execute("UPDATE messages SET epoch = 1 WHERE id = 1000 AND time_acked IS NULL")
            other.commit()
        store.purge(subject.table, 3 * HOUR, 100)
        assert (ids(subject), len(names(subject)) < len(before)) == ([1000], True)

    def test_a_table_that_is_locked_for_a_moment_is_tried_again_at_once(
        self, subject: ServerSubject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put_acked(subject, 7.5)
        with ThreadPoolExecutor(1) as threads, subject.connect(autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("SELECT * FROM messages LIMIT 1")
            paused = threading.Event()

            def pause(_seconds: float) -> None:
                paused.set()
                other.rollback()

            monkeypatch.setattr(time, "sleep", pause)
            monkeypatch.setattr(partitions, "WAITED_S", 60.0)  # On a busy machine NOWAIT may take that long.
            purging = threads.submit(subject.store.purge, subject.table, 3 * HOUR, 100)
            if not paused.wait(0.7):  # MySQL's ALTER TABLE waits by itself.
                other.rollback()
            purging.result()
        assert ids(subject) == []

    def test_for_a_table_that_is_always_in_use_the_alter_waits_in_the_end(
        self, subject: ServerSubject, impatient: Callable[..., MySQLStore]
    ) -> None:
        put_acked(subject, 7.5)
        store = impatient()
        with ThreadPoolExecutor(1) as threads, subject.connect(autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("SELECT * FROM messages LIMIT 1")
            for _ in range(NOWAIT_ROUNDS):
                store.purge(subject.table, 3 * HOUR, 100)
            waiting = threads.submit(store.purge, subject.table, 3 * HOUR, 100)
            eventually(
                lambda: subject.execute(
                    "SELECT * FROM information_schema.processlist"
                    " WHERE info LIKE 'ALTER%%' AND state LIKE 'Waiting for table%%' AND db IS NULL"
                ),
                what="the ALTER TABLE waits",
            )
            other.rollback()
            waiting.result()
        assert ids(subject) == []

    def test_it_is_not_tried_again_at_once(self, subject: ServerSubject) -> None:
        put_acked(subject, 7.5)
        with subject.connect(autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("SELECT * FROM messages LIMIT 1")
            subject.store.purge(subject.table, 3 * HOUR, 100)
            other.rollback()
        subject.store.purge(subject.table, 3 * HOUR, 100)
        assert ids(subject) == [75]

    @pytest.mark.parametrize("lacking", ["ALTER, DROP", "DROP"])
    def test_an_account_without_the_privilege_deletes_row_by_row_and_logs_it_once(
        self,
        subject: ServerSubject,
        impatient: Callable[..., MySQLStore],
        caplog: pytest.LogCaptureFixture,
        lacking: str,
    ) -> None:
        user = f"u_{subject.database}"
        subject.execute(f"CREATE USER {user}")
        subject.execute(f"GRANT ALL ON {subject.database}.messages TO {user}")
        subject.execute(f"REVOKE {lacking} ON {subject.database}.messages FROM {user}")
        put_acked(subject, 0.5, 7.5, 8.5)
        store = impatient(user)
        # The server itself may use the table for a moment, and then no partition can be added.
        eventually(lambda: store.purge(subject.table, 3 * HOUR, 100).value.rows == 2)
        assert store.purge(subject.table, 3 * HOUR, 100).value.rows == 0
        assert ids(subject) == [5]
        (logged,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert "command denied" in logged
        subject.execute(f"GRANT {lacking} ON {subject.database}.messages TO {user}")
        before = len(names(subject))
        store.purge(subject.table, 3 * HOUR, 100)
        assert len(names(subject)) < before
        subject.execute(f"DROP USER {user}")


class TestRows:
    def test_an_id_that_was_acknowledged_before_can_come_again(self, subject: ServerSubject) -> None:
        """Two rows with one id, one of them acknowledged: operations on the live row do not touch the other."""
        put_acked(subject, 0.5)
        subject.execute("INSERT INTO messages (id, body) VALUES (5, 'again')")
        before = subject.execute("SELECT * FROM messages WHERE time_acked IS NOT NULL")
        store, table = subject.store, subject.table
        (entry,) = store.scan(table, 10).value.entries
        (claimed,) = store.claim(table, [Wanted(entry.key, 0, HOUR)]).value
        assert claimed.epoch == 1
        subject.execute("UPDATE messages SET time_next = 0 WHERE time_acked IS NULL")
        assert store.move_dead_letters(table, [Wanted(5, 1, HOUR)], TableId(subject.database, "absent")).value.problem
        subject.execute("UPDATE messages SET time_next = 0 WHERE time_acked IS NULL")
        assert store.move_dead_letters(table, [Wanted(5, 1, HOUR)], subject.dead_letter()).value == MoveResult((5,))
        assert subject.execute("SELECT * FROM messages") == before

    def test_it_warns_that_ids_are_not_unique(self, subject: ServerSubject) -> None:
        assert subject.table.kept_by_partition
        (advice,) = subject.table.advice
        assert "cannot keep ids unique" in advice

    def test_any_index_that_begins_with_id_is_accepted_there(self, subject: ServerSubject) -> None:
        subject.execute("ALTER TABLE messages DROP KEY by_id, ADD KEY plain (id)")
        found = subject.store.describe(subject.table.id).value
        assert isinstance(found, QueueTable)
        assert found.id_index == "plain"

    def test_an_id_of_another_type_and_a_descending_index_work_there(self, server: EmbeddedServer) -> None:
        made = ServerSubject(
            server,
            columns=PARTITIONED.replace("id BIGINT", "id VARCHAR(40)"),
            index="INDEX next_up (time_acked, priority, time_next DESC)",
            partitions=partition_clause(clock_ns(server), HOUR, 3),
        )
        made.execute("INSERT INTO messages (id) VALUES ('b'), ('a')")
        entries = made.store.scan(made.table, 10).value.entries
        claims = made.store.claim(made.table, [Wanted(entry.key, 0, HOUR) for entry in entries]).value
        assert {claim.key for claim in claims} == {"a", "b"}
        made.close()


ORDINARY = {
    "hash": "PARTITION BY HASH (id) PARTITIONS 4",
    "key": "PARTITION BY KEY (id) PARTITIONS 4",
    "range": "PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (50), PARTITION b VALUES LESS THAN MAXVALUE)",
    "list": "PARTITION BY LIST (id % 3) (PARTITION a VALUES IN (0), PARTITION b VALUES IN (1, 2))",
}


@pytest.mark.parametrize("how", ORDINARY)
def test_a_table_that_is_partitioned_by_its_id_is_a_queue_like_any_other(server: EmbeddedServer, how: str) -> None:
    subject = ServerSubject(server, partitions=ORDINARY[how])
    store, table = subject.store, subject.table
    assert (table.id_index, table.kept_by_partition, table.advice) == ("PRIMARY", False, ())
    now_ns = subject.now_ns()
    subject.execute(
        "INSERT INTO messages (id, time_next) VALUES " + ", ".join(f"({key}, {now_ns - key})" for key in range(1, 101))
    )
    entries = store.scan(table, 40).value.entries
    assert [entry.key for entry in entries] == list(range(100, 60, -1))
    claims = store.claim(table, [Wanted(entry.key, 0, HOUR) for entry in entries]).value
    assert len(claims) == 40
    subject.acknowledge(*(claim.key for claim in claims[:10]))
    assert len(store.lookup(table, [claim.key for claim in claims]).value) == 30
    assert (
        store.move_dead_letters(
            table, [Wanted(key, 0, HOUR) for key in range(1, 11)], subject.dead_letter()
        ).value.problem
        is None
    )
    assert store.purge(table, 0, 100).value.rows == 10
    assert subject.execute("SELECT COUNT(*) FROM messages") == [(80,)]
    subject.close()
