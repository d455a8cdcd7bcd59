"""A claim of one message and its row in one packet: the same result as any other claim, on both servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.model import NS_PER_S, ClaimResult, RowFormat, Wanted
from engine.store.mysql import MySQLStore
from engine.store.port import StoreError, Timed
from proxy.embedded.server import EmbeddedServer
from tests.support.servers import connect
from tests.support.stores import COLUMNS, ServerSubject, counted_store, result_of
from tests.support.waiting import eventually

S = NS_PER_S
SLOT = 37
BODY = RowFormat(("body",), binary=False)
FORMATS = [
    BODY,
    replace(BODY, binary=True),
    replace(BODY, charset="latin1", time_zone="+05:30"),
    replace(BODY, charset="utf16"),
    replace(BODY, charset="utf16", binary=True, time_zone="-03:00"),
    replace(BODY, charset=None),
]


@pytest.fixture
def subject(server: EmbeddedServer) -> Iterator[ServerSubject]:
    made = ServerSubject(server, lease=True)
    yield made
    made.close()


@pytest.fixture(params=["called", "begun", "begun without triggers"])
def counted(
    request: pytest.FixtureRequest, subject: ServerSubject, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[MySQLStore, list[bytes]]]:
    """A store, and the packets that it sends. It begins each claim before the result is waited for, or not."""
    with counted_store(subject) as (store, sent):
        store.ping()
        sent.clear()
        if request.param != "called":
            called = store.claim_and_fetch

            def begin(*claim: Any) -> Timed[ClaimResult]:
                begun = store.begin_claim(*claim, no_triggers=request.param == "begun without triggers")
                result = result_of(begun) if begun else None
                return result if isinstance(result, Timed) else called(*claim)

            monkeypatch.setattr(store, "claim_and_fetch", begin)
        yield store, sent


def insert(subject: ServerSubject, key: int, body: str = "é", time_next: int = 5) -> None:
    subject.execute("INSERT INTO messages (id, time_next, body) VALUES (%s, %s, %s)", key, time_next, body)


def row_of(subject: ServerSubject, key: int) -> tuple[object, ...]:
    (row,) = subject.execute("SELECT epoch, time_next, lease, time_acked FROM messages WHERE id = %s", key)
    return tuple(row)


@pytest.mark.parametrize("row_format", FORMATS, ids=str)
def test_it_shows_the_claim_and_the_bytes_of_the_row(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]], row_format: RowFormat
) -> None:
    store, sent = counted
    insert(subject, 1)
    insert(subject, 2)
    before_ns = subject.now_ns()
    alone = store.claim_and_fetch(subject.table, [Wanted(1, 0, 30 * S)], row_format, 1 << 20, SLOT)
    assert len(sent) == (3 if row_format.binary else 1)  # A prepared statement is executed and closed.
    (claim,) = alone.value.claims
    assert (claim.key, claim.epoch, claim.priority, claim.due_ns) == (1, 1, 0, 5)
    assert before_ns <= alone.now_ns <= claim.deadline_ns - claim.deadline_ns % 1_000 - 30 * S <= subject.now_ns()
    assert claim.deadline_ns % 1_000 == SLOT
    assert row_of(subject, 1) == (1, claim.deadline_ns, claim.deadline_ns, None)
    beside = store.claim(subject.table, [Wanted(2, 0, 30 * S)], SLOT).value
    rows = store.fetch(subject.table, row_format, {2: beside[0].delivery}, 1 << 20).value.rows
    assert alone.value.rows is not None
    assert alone.value.rows.rows == {1: rows[2]}


def test_without_a_lease_column_the_lease_ends_to_the_nanosecond(server: EmbeddedServer) -> None:
    subject = ServerSubject(server)
    insert(subject, 1)
    with counted_store(subject) as (store, _):
        (claim,) = store.claim_and_fetch(subject.table, [Wanted(1, 0, 30 * S + 123)], BODY, 1000, SLOT).value.claims
    assert claim.deadline_ns % 1_000 == 123
    assert subject.execute("SELECT epoch, time_next FROM messages") == [(1, claim.deadline_ns)]
    subject.close()


@pytest.mark.parametrize(
    ("epoch", "change"),
    [
        (1, "epoch = 0"),
        (0, "epoch = 1"),
        (0, "time_acked = 1"),
        (0, "time_next = 4000000000000000000"),
        (0, "id = 3"),
    ],
)
def test_a_message_that_has_changed_is_not_claimed(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]], epoch: int, change: str
) -> None:
    store, sent = counted
    insert(subject, 1)
    subject.execute(f"UPDATE messages SET {change}")
    before = subject.execute("SELECT id, epoch, time_next, time_acked FROM messages")
    result = store.claim_and_fetch(subject.table, [Wanted(1, epoch, S)], BODY, 1000).value
    assert (result.claims, result.rows) == ((), None)
    assert len(sent) == 1
    assert subject.execute("SELECT id, epoch, time_next, time_acked FROM messages") == before


def test_a_message_without_epoch_and_time_is_claimed(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    store, _ = counted
    insert(subject, 1)
    subject.execute("ALTER TABLE messages MODIFY epoch BIGINT NULL")
    subject.execute("UPDATE messages SET epoch = NULL, time_next = NULL")
    (claim,) = store.claim_and_fetch(subject.table, [Wanted(1, 0, S)], BODY, 1000).value.claims
    assert (claim.epoch, claim.due_ns) == (1, 0)
    assert row_of(subject, 1)[:2] == (1, claim.deadline_ns)


def test_a_message_that_another_transaction_has_locked_is_left_out_without_waiting(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    """A wait would end with an error (1205)."""
    store, _ = counted
    insert(subject, 1)
    with connect(subject.server, database=subject.database) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM messages WHERE id = 1 FOR UPDATE")
        result = store.claim_and_fetch(subject.table, [Wanted(1, 0, S)], BODY, 1000).value
        assert (result.claims, result.rows) == ((), None)
        other.rollback()
    (claim,) = store.claim_and_fetch(subject.table, [Wanted(1, 0, S)], BODY, 1000).value.claims
    assert row_of(subject, 1)[:2] == (1, claim.deadline_ns)


def test_a_locked_table_is_waited_for_once(subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]) -> None:
    """On MariaDB, NOWAIT is about the table too. So what reads the row waits, or the claim that follows."""
    store, sent = counted
    started_s = time.monotonic()
    insert(subject, 1)
    with connect(subject.server, database=subject.database) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES messages WRITE")
        with pytest.raises(StoreError) as caught:
            store.claim_and_fetch(subject.table, [Wanted(1, 0, S)], BODY, 1000)
        cursor.execute("UNLOCK TABLES")
    assert caught.value.waited
    claims = [data for data in sent if b"ackstream claim" in data]
    assert len(claims) == 1 or (len(claims) == 2 and time.monotonic() - started_s < 2)


def test_a_statement_that_the_server_refuses_leaves_nothing_claimed_or_locked(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    store, _ = counted
    insert(subject, 1)
    subject.execute(
        "CREATE TRIGGER t BEFORE UPDATE ON messages FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'"
    )
    with pytest.raises(StoreError, match="no"):
        store.claim_and_fetch(subject.table, [Wanted(1, 0, S)], BODY, 1000)
    subject.execute("DROP TRIGGER t")
    (claim,) = store.claim_and_fetch(subject.table, [Wanted(1, 0, S)], BODY, 1000).value.claims
    assert claim.epoch == 1


@pytest.mark.parametrize("binary", [False, True])
def test_a_row_that_cannot_be_read_leaves_the_claim(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]], *, binary: bool
) -> None:
    store, _ = counted
    gone = RowFormat(("gone",), binary=binary)
    insert(subject, 1)
    claims, rows, *_ = store.claim_and_fetch(subject.table, [Wanted(1, 0, S)], gone, 1000).value
    assert rows is None
    assert [claim.key for claim in claims] == [1]


def test_a_session_without_the_time_zone_of_its_subscriber_claims_all_the_same(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    store, _ = counted
    insert(subject, 1)
    mars = replace(BODY, time_zone="Mars/Base")
    claims, rows, *_ = store.claim_and_fetch(subject.table, [Wanted(1, 0, S)], mars, 1000).value
    assert ([claim.key for claim in claims], rows) == ([1], None)
    insert(subject, 2)
    assert [claim.key for claim in store.claim(subject.table, [Wanted(2, 0, S)]).value] == [2]


@pytest.mark.parametrize("counted", ["called", "begun"], indirect=True)
def test_what_a_trigger_sets_does_not_change_the_bytes_of_the_row(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    store, sent = counted
    insert(subject, 1)
    subject.execute(
        "CREATE TRIGGER t BEFORE UPDATE ON messages FOR EACH ROW SET SESSION character_set_results = 'utf16'"
    )
    rows = store.claim_and_fetch(subject.table, [Wanted(1, 0, S)], BODY, 1000).value.rows
    assert rows is not None
    assert (rows.rows, len(sent)) == ({1: b"\x02\xc3\xa9"}, 1)


def test_a_claim_that_was_begun_is_carried_out_before_its_result_is_waited_for(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    store, _ = counted
    insert(subject, 1)
    call = store.begin_claim(subject.table, [Wanted(1, 0, 30 * S)], BODY, 1000, SLOT)
    assert call is not None
    eventually(lambda: row_of(subject, 1)[0] == 1, what="the claim")
    result = result_of(call)
    assert result is not None
    (claim,) = result.value.claims
    assert not call.waits
    assert row_of(subject, 1)[:2] == (1, claim.deadline_ns)


def test_without_triggers_the_row_is_read_before_the_commit_and_the_session_keeps_its_context(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    store, sent = counted
    body = replace(BODY, time_zone="+05:30")
    for key in (1, 2):
        insert(subject, key)
        call = store.begin_claim(subject.table, [Wanted(key, 0, 30 * S)], body, 1000, SLOT, no_triggers=True)
        assert call is not None
        result = result_of(call)
        assert result is not None
        assert result.value.rows is not None
        assert result.value.rows.rows == {key: b"\x02\xc3\xa9"}
    for data in sent:
        assert data.index(b"ackstream fetch") < data.index(b"COMMIT")
    assert [data.index(b"SET @ackstream_now") < 10 for data in sent] == [False, True]


@pytest.mark.parametrize("what", ["binary rows", "a computed column", "an unknown trigger"])
def test_where_the_claim_may_depend_on_the_session_the_row_is_read_behind_it(server: EmbeddedServer, what: str) -> None:
    computed = ", seen TIMESTAMP NULL ON UPDATE CURRENT_TIMESTAMP"
    subject = ServerSubject(server, columns=COLUMNS + (computed if what == "a computed column" else ""))
    insert(subject, 1)
    with counted_store(subject) as (store, sent):
        store.ping()
        sent.clear()
        row_format = replace(BODY, binary=what == "binary rows")
        no_triggers = what != "an unknown trigger"
        claim = store.begin_claim(subject.table, [Wanted(1, 0, S)], row_format, 1000, no_triggers=no_triggers)
        assert (claim is None) is row_format.binary
        if claim is not None:
            assert result_of(claim)
            assert sent[0].index(b"ackstream fetch") > sent[0].index(b"COMMIT")
    subject.close()


def test_a_claim_is_not_begun_where_it_would_have_to_wait(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    """For a connection, or for the result of its first packet."""
    store, sent = counted
    for key in (1, 2):
        insert(subject, key)
    wanted = [Wanted(1, 0, S)]
    assert store.begin_claim(subject.table, [*wanted, Wanted(2, 0, S)], BODY, 1000) is None
    assert store.begin_claim(subject.table, wanted, None, 1000) is None
    assert store.begin_claim(subject.table, wanted, replace(BODY, binary=True), 1000) is None
    call = store.begin_claim(subject.table, wanted, BODY, 1000)
    assert call is not None
    assert store.begin_claim(subject.table, [Wanted(2, 0, S)], BODY, 1000) is None
    result = result_of(call)
    assert result is not None
    assert [claim.key for claim in result.value.claims] == [1]
    assert len(sent) == 1
    store.close()
    assert store.begin_claim(subject.table, [Wanted(2, 0, S)], BODY, 1000) is None


def test_a_claim_of_several_messages_takes_two_packets(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    store, sent = counted
    for key in (1, 2):
        insert(subject, key)
    claims = store.claim_and_fetch(subject.table, [Wanted(1, 0, S), Wanted(2, 0, S)], BODY, 1000).value.claims
    assert ([claim.key for claim in claims], len(sent)) == ([1, 2], 2)
