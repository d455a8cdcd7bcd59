"""A temporary table of a queue's name: what is acknowledged there says nothing about the queue's messages."""

from __future__ import annotations

import contextlib

import pymysql
import pytest

from engine.keys import certain, key_of
from engine.queue_table import IdKind
from tests.support.queues import create_queue, enqueue, rows, run, user
from tests.support.raw import RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

COLUMNS = "id BIGINT PRIMARY KEY, priority INT, epoch BIGINT, time_next BIGINT, time_acked BIGINT"
TEMPORARY = f"CREATE TEMPORARY TABLE m ({COLUMNS})"
MAKING = f"BEGIN {TEMPORARY}; RETURN 1; END"

WAYS = {
    "by itself": ([], [TEMPORARY]),
    "by a procedure": ([f"CREATE PROCEDURE make() BEGIN {TEMPORARY}; END"], ["CALL make"]),
    "by a function": ([f"CREATE FUNCTION make() RETURNS INT DETERMINISTIC {MAKING}"], ["SELECT make()"]),
    "by a view": (
        [f"CREATE FUNCTION make() RETURNS INT DETERMINISTIC {MAKING}", "CREATE VIEW v AS SELECT make() AS x"],
        ["SELECT x FROM v"],
    ),
    "by a trigger": (
        ["CREATE TABLE t (a INT)", f"CREATE TRIGGER x BEFORE INSERT ON t FOR EACH ROW BEGIN {TEMPORARY}; END"],
        ["INSERT INTO t VALUES (1)"],
    ),
    "in text": ([], [f"PREPARE s FROM '{TEMPORARY}'", "EXECUTE s"]),
}


@pytest.mark.parametrize(("prepared", "made"), WAYS.values(), ids=WAYS)
def test_an_ack_of_a_temporary_table_leaves_the_message_to_be_given_to_others_at_once(
    proxy, database, consume, prepared, made
) -> None:
    with proxy.connect(database=database) as owner, RawClient(proxy, database=database) as other:
        create_queue(owner, "m")
        run(owner, "SET GLOBAL log_bin_trust_function_creators = 1")
        for statement in prepared:
            run(owner, statement)
        enqueue(owner, "m", "a")
        holder = consume(proxy.connect(database=database), "STREAM * FROM m")
        eventually(lambda: holder.received)
        number = other.prepare("ACK FROM m WHERE id = 1")
        for statement in made:
            other.query(statement)
        for acknowledge in (lambda: other.query("ACK FROM m WHERE id = 1"), lambda: other.execute(number)):
            other.query("DELETE FROM m")
            other.query("INSERT INTO m (id, epoch) VALUES (1, 1)")
            assert acknowledge()[-1].payload[:2] == b"\0\1"
        holder.vanish()
        assert rows(owner, "STREAM id, epoch FROM m WAIT 20") == [(1, 2)]


def test_one_who_may_not_touch_the_queue_delays_nothing_by_a_table_of_its_name(proxy, database, consume) -> None:
    with proxy.connect(database=database) as owner:
        create_queue(owner, "m")
        enqueue(owner, "m", "a")
        holder = consume(proxy.connect(database=database), "STREAM * FROM m")
        eventually(lambda: holder.received)
        with user(owner, database) as name:
            run(owner, f"GRANT CREATE TEMPORARY TABLES ON {database}.* TO {name}@localhost")
            with proxy.connect(database=database, user=name) as intruder:
                run(intruder, TEMPORARY)
                run(intruder, "INSERT INTO m (id, epoch) VALUES (1, 1)")
                assert run(intruder, "ACK FROM m WHERE id = 1") == 1
            holder.vanish()
            assert rows(owner, "STREAM id, epoch FROM m WAIT 20") == [(1, 2)]


def test_a_trigger_that_takes_acknowledgements_back_is_believed_before_the_ack(proxy, database, consume) -> None:
    undo = "CREATE TRIGGER x BEFORE UPDATE ON m FOR EACH ROW SET NEW.time_acked = NULL, NEW.time_next = OLD.time_next"
    with proxy.connect(database=database) as owner, proxy.connect(database=database) as other:
        create_queue(owner, "m")
        enqueue(owner, "m", "a")
        holder = consume(proxy.connect(database=database), "STREAM * FROM m")
        eventually(lambda: holder.received)
        run(owner, undo + ", NEW.payload = CONCAT(NEW.payload, '!')")
        assert run(other, "ACK FROM m WHERE id = 1") == 1
        run(owner, "DROP TRIGGER x")
        holder.vanish()
        assert rows(owner, "STREAM id, epoch FROM m WAIT 20") == [(1, 2)]


IDS = {
    "BIGINT": (IdKind.INTEGER, ["0", "1", "7", "1000", "9007199254740992", "9007199254740993", "-5"]),
    "DECIMAL(30, 2)": (IdKind.DECIMAL, ["0.00", "1.00", "1.50", "9007199254740992.00", "9007199254740993.00"]),
    "VARCHAR(40)": (IdKind.TEXT, ["0", "1", "01", "1.0", "1000", "1_000", "a", "b c", "abc", "+1", "0x1", " 1"]),
    "VARBINARY(40)": (IdKind.BINARY, ["0", "1", "01", "1.0", "a", "A", "a ", "1000", "1_000"]),
    "DATETIME": (IdKind.OTHER, ["2026-01-02 00:00:00", "2026-01-02 03:04:05"]),
}
WRITTEN = ["0", "1", "01", "1000", "-5", "9007199254740993", "9007199254740992", "-0", "007"]
QUOTED = [*WRITTEN, "1_000", " 1", "1 ", "+1", "1e3", "0x1", "1.0", "1.5", "a", "A", "a ", "B C", "2026-01-02", "", "x"]


@pytest.mark.parametrize("kind_sql", IDS)
def test_a_literal_that_is_certain_equals_the_id_of_its_key_and_no_other(server, database, kind_sql) -> None:
    """By the server's own word, which compares numbers with text, and text under a collation: an id that is only alike
    cannot be there beside one that is the same."""
    kind, ids = IDS[kind_sql]
    with connect(server, database=database) as root:
        run(root, f"CREATE TABLE ids (id {kind_sql} PRIMARY KEY)")
        for text in ids:
            run(root, f"INSERT INTO ids VALUES ('{text}')")
        literals: list[tuple[str, object]] = [(text, int(text)) for text in WRITTEN]
        literals += [(f"'{text}'", text.encode()) for text in QUOTED]
        for written, value in literals:
            key = key_of(kind, value)
            if key is None or not certain(kind, value):
                continue
            with contextlib.suppress(pymysql.OperationalError):  # MySQL compares no DATETIME with such text.
                found = rows(root, f"SELECT CAST(id AS CHAR) FROM ids WHERE id = {written}")
                expected = [text for text in ids if key_of(kind, text.encode()) == key]
                assert len(found) <= 1, written
                assert not expected or [text for (text,) in found] == expected, written
