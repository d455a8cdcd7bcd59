"""The binary log: statements, transactions, merged change sets; and messages awaiting visibility."""

from __future__ import annotations

import pytest

from engine.binlog.changes import (
    Change,
    ChangeSet,
    Layout,
    RowChange,
    StatementEffect,
    TableChanges,
    Transactions,
    UnreadableRowError,
    effect_of,
)
from engine.binlog.row_image import ColumnType, Field, field_of
from engine.binlog.scope import Scope
from engine.dispatch.effects import Scan
from engine.dispatch.instant import Instant
from engine.dispatch.read_ahead import ReadAhead
from engine.dispatch.visibility import RESCAN_MAX_NS, RESCAN_MIN_NS, AwaitingVisibility
from engine.model import Delivery, Entry, ScanResult, TableId
from tests.support.play import TABLE as STAGE_TABLE
from tests.support.play import Asked, Stage

TABLE = TableId("shop", "orders")
OTHER = TableId("shop", "mails")
INT, BIGINT = 3, 8
COLUMNS = [
    ColumnType("note", "varchar", "varchar(10)", "gbk"),
    ColumnType("id", "int", "int unsigned", ""),
    ColumnType("Priority", "int", "int", ""),
    ColumnType("epoch", "bigint", "bigint", ""),
    ColumnType("time_next", "bigint", "bigint", ""),
    ColumnType("time_acked", "bigint", "bigint", ""),
]
FIELDS = [
    Field(15, 1, counted=True, width=10),
    Field(INT, 4),
    Field(INT, 4),
    Field(BIGINT, 8),
    Field(BIGINT, 8),
    Field(BIGINT, 8),
]
ALL = 0b111111
MISSING = object()


def image(*values: object) -> bytes:
    """A row of the columns above as in the binary log, without the MISSING ones."""
    nulls, body, bit = 0, b"", 0
    for value, field in zip(values, FIELDS, strict=True):
        if value is MISSING:
            continue
        if value is None:
            nulls |= 1 << bit
        elif isinstance(value, bytes):
            body += bytes([len(value)]) + value
        else:
            assert isinstance(value, int)
            body += (value % 2 ** (8 * field.size)).to_bytes(field.size, "little")
        bit += 1
    return nulls.to_bytes((bit + 7) // 8, "little") + body


def entry(key: int, epoch: int = 0, priority: int = 0, due_ns: int = 0) -> Entry:
    return Entry(key, epoch, priority, due_ns)


@pytest.fixture
def layout() -> Layout:
    return Layout(COLUMNS, FIELDS)


def test_an_inserted_message_has_the_entry_that_a_scan_returns(layout: Layout) -> None:
    rows = image(b"hello", 2**32 - 1, -7, 3, 10**18, None) + image(None, 2, None, None, None, None)
    assert list(layout.changes(Change.INSERT, [ALL], rows)) == [
        (2**32 - 1, RowChange(Entry(2**32 - 1, 3, -7, 10**18))),
        (2, RowChange(Entry(2, 0, -(2**63), 0))),
    ]


def test_an_update_has_the_messages_new_state_and_the_delivery_before(layout: Layout) -> None:
    before = image(b"", 1, 0, 1, 70, None)
    acked = image(b"", 1, 0, 1, None, 5)
    moved = image(b"", 9, 0, 1, 70, None)
    over, delivery = RowChange(None, Delivery(1, 70)), Delivery(1, 70)
    assert list(layout.changes(Change.UPDATE, [ALL, ALL], before + acked)) == [(1, over)]
    assert list(layout.changes(Change.UPDATE, [ALL, ALL], before + moved)) == [
        (1, over),
        (9, RowChange(entry(9, 1, due_ns=70), delivery)),
    ]
    assert list(layout.changes(Change.UPDATE, [ALL, ALL], acked + before)) == [
        (1, RowChange(entry(1, 1, due_ns=70), Delivery(1, 0)))
    ]
    assert list(layout.changes(Change.UPDATE, [ALL, ALL], acked + acked)) == []


def test_a_deleted_message_is_over_unless_it_was_before(layout: Layout) -> None:
    rows = image(b"x", 1, 0, 3, 70, None) + image(b"x", 2, 0, 0, None, 5)
    assert list(layout.changes(Change.DELETE, [ALL], rows)) == [(1, RowChange(None, Delivery(3, 70)))]


def test_columns_that_an_image_leaves_out_were_not_changed(layout: Layout) -> None:
    only_id = image(MISSING, 1, MISSING, MISSING, MISSING, MISSING)
    acked = image(MISSING, MISSING, MISSING, MISSING, None, 5)
    rescheduled = image(MISSING, MISSING, MISSING, MISSING, 7, MISSING)
    whole = image(b"x", 1, 2, 3, 4, None)
    assert list(layout.changes(Change.UPDATE, [0b10, 0b110000], only_id + acked)) == [(1, RowChange(None))]
    assert list(layout.changes(Change.UPDATE, [ALL, 0b010000], whole + rescheduled)) == [
        (1, RowChange(Entry(1, 3, 2, 7), Delivery(3, 4)))
    ]
    assert list(layout.changes(Change.DELETE, [0b10], only_id)) == [(1, RowChange(None))]
    with pytest.raises(UnreadableRowError):
        list(layout.changes(Change.UPDATE, [0b10, 0b010000], only_id + rescheduled))


def test_a_message_whose_delivery_before_a_change_is_unknown_is_not_reported_as_if_it_were_inserted(
    layout: Layout,
) -> None:
    only_id = image(MISSING, 1, MISSING, MISSING, MISSING, MISSING)
    reset = image(MISSING, MISSING, 0, 0, 0, None)
    with pytest.raises(UnreadableRowError):
        list(layout.changes(Change.UPDATE, [0b10, 0b111100], only_id + reset))


def test_the_message_group_of_an_entry_is_read_where_the_image_has_it() -> None:
    columns = [ColumnType("note", "varchar", "varchar(10)", "utf8mb4"), *COLUMNS[1:]]
    layout = Layout(columns, FIELDS, Scope(None, ("NOTE", "id")))
    rows = image("ä".encode(), 1, 0, 0, 0, None) + image(None, 2, 0, 0, 0, None) + image(b"\xff", 3, 0, 0, 0, None)
    entries = [change.entry for _, change in layout.changes(Change.INSERT, [ALL], rows)]
    assert entries == [Entry(1, 0, 0, 0, ("ä", 1)), Entry(2, 0, 0, 0, (None, 2)), Entry(3, 0, 0, 0)]
    whole, rescheduled = image(b"x", 1, 2, 3, 4, None), image(MISSING, MISSING, MISSING, MISSING, 7, MISSING)
    ((_, change),) = layout.changes(Change.UPDATE, [ALL, 0b010000], whole + rescheduled)
    assert change.entry == Entry(1, 3, 2, 7, ("x", 1))
    without = image(MISSING, 1, 2, 3, 4, None)
    ((_, change),) = layout.changes(Change.UPDATE, [0b111110, 0b010000], without + rescheduled)
    assert change.entry == Entry(1, 3, 2, 7)


@pytest.mark.parametrize("scope", [Scope(None, ("note",)), Scope(None, ("id", "note")), Scope(None, ("id", "gone"))])
def test_no_group_is_read_if_a_column_is_unknown_or_only_the_server_knows_its_text(scope: Scope) -> None:
    ((_, change),) = Layout(COLUMNS, FIELDS, scope).changes(Change.INSERT, [ALL], image(b"x", 1, 0, 0, 0, None))
    assert change.entry == Entry(1, 0, 0, 0)


@pytest.mark.parametrize(
    ("declared", "raw", "priority"),
    [("mediumint", b"\xf9\xff\xff", -7), ("mediumint unsigned", b"\xf9\xff\xff", 2**24 - 7)],
)
def test_integers_of_three_bytes_are_read(declared: str, raw: bytes, priority: int) -> None:
    columns = [*COLUMNS[:2], ColumnType("priority", "mediumint", declared, ""), *COLUMNS[3:]]
    layout = Layout(columns, [*FIELDS[:2], Field(9, 3), *FIELDS[3:]])
    values = (9).to_bytes(4, "little") + raw + (1).to_bytes(8, "little") + (70).to_bytes(8, "little")
    found = layout.changes(Change.INSERT, [ALL], bytes([0b100001]) + values)
    assert found == [(9, RowChange(Entry(9, 1, priority, 70)))]
    found = layout.changes(Change.INSERT, [ALL], bytes([0b100101]) + values[:4] + values[7:])
    assert found == [(9, RowChange(Entry(9, 1, -(2**63), 70)))]


def test_a_row_that_is_cut_off_is_an_error(layout: Layout) -> None:
    with pytest.raises(IndexError):
        list(layout.changes(Change.INSERT, [ALL], image(b"hello", 1, 0, 0, 0, None)[:-1]))


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        (COLUMNS, FIELDS[:-1]),
        (COLUMNS[:-1], FIELDS[:-1]),
        (COLUMNS, [None, *FIELDS[1:]]),
        ([ColumnType("id", "enum", "enum('a')", "utf8mb4"), *COLUMNS[:1], *COLUMNS[2:]], FIELDS),
    ],
)
def test_a_table_that_cannot_be_read_for_certain_has_no_layout(
    columns: list[ColumnType], fields: list[Field | None]
) -> None:
    with pytest.raises(UnreadableRowError):
        Layout(columns, fields)


def test_an_unknown_type_has_no_field() -> None:
    assert field_of({"type": 242}) is None


def test_only_the_last_state_of_a_message_counts() -> None:
    first, second = ChangeSet(10), ChangeSet(10)
    first.add_rows(TABLE, [(1, RowChange(entry(1)))])
    first.add_rows(TABLE, [(2, RowChange(entry(2)))])
    second.add_rows(TABLE, [(1, RowChange(None))])
    second.add_rows(TABLE, [(3, RowChange(entry(3)))])
    first.add(second)
    assert first.by_table() == [TableChanges(TABLE, (entry(2), entry(3)), (1,))]


def test_of_several_changes_the_latest_delivery_before_one_counts() -> None:
    """It shows that one of them was made after our claim, whichever it was."""
    changes = ChangeSet(10)
    for change in (
        RowChange(None, Delivery(2, 70)),
        RowChange(entry(1)),
        RowChange(entry(1, due_ns=5), Delivery(0, 0)),
    ):
        changes.add_rows(TABLE, [(1, change)])
    changes.add_rows(TABLE, [(2, RowChange(entry(2)))])
    assert changes.by_table() == [TableChanges(TABLE, (entry(1, due_ns=5), entry(2)), (), {1: Delivery(2, 70)})]


def test_with_too_many_rows_the_changes_of_their_table_alone_become_unknown() -> None:
    news = ChangeSet(3)
    news.add_rows(OTHER, [(1, RowChange(entry(1)))])
    for key in range(3):
        news.add_rows(TABLE, [(key, RowChange(entry(key)))])
    assert news.by_table() == [TableChanges(OTHER, (entry(1),)), TableChanges(TABLE)]
    assert news.has_unknown
    assert news.is_unknown(TABLE)
    assert not news.is_unknown(OTHER)
    news.add_rows(OTHER, [(2, RowChange(None))])  # There is room again.
    assert news.by_table()[0] == TableChanges(OTHER, (entry(1),), (2,))


@pytest.mark.parametrize(
    ("statement", "meaning"),
    [
        ("BEGIN", StatementEffect.NOTHING),
        ("COMMIT", StatementEffect.COMMITTED),
        ("ROLLBACK", StatementEffect.ROLLED_BACK),
        ("ROLLBACK TO `s`", StatementEffect.ANYTHING),
        ("SAVEPOINT `s`", StatementEffect.NOTHING),
        ("create table t (a int)", StatementEffect.SCHEMA | StatementEffect.COMMITTED),
        ("CREATE TABLE `t` (`a` int) START TRANSACTION", StatementEffect.SCHEMA),
        ("/* ours */ -- x\n DROP TABLE t", StatementEffect.SCHEMA | StatementEffect.COMMITTED),
        ("ALTER TABLE t COMMENT 'x'", StatementEffect.SCHEMA | StatementEffect.ANYTHING | StatementEffect.COMMITTED),
        ("TRUNCATE t", StatementEffect.SCHEMA | StatementEffect.ANYTHING | StatementEffect.COMMITTED),
        ("INSERT INTO t VALUES (1)", StatementEffect.ANYTHING),
        ("/*!40000 INSERT */ INTO t VALUES (1)", StatementEffect.ANYTHING),
        ("XA START X'78',X'',1", StatementEffect.NOTHING),
        ("XA COMMIT X'78',X'',1", StatementEffect.ANYTHING | StatementEffect.COMMITTED),
        ("XA ROLLBACK X'636f6d6d6974',X'',1", StatementEffect.NOTHING),
        ("GRANT SELECT ON t TO u", StatementEffect.NOTHING),
        ("", StatementEffect.ANYTHING),
    ],
)
def test_the_effect_of_a_statement(statement: str, meaning: StatementEffect) -> None:
    assert effect_of(statement) == meaning


def test_changes_are_reported_when_a_transaction_is_complete_and_not_at_all_after_a_rollback() -> None:
    told: list[ChangeSet] = []
    transactions = Transactions(10, told.append)
    transactions.statement("BEGIN")
    transactions.pending.add_rows(TABLE, [(1, RowChange(entry(1)))])
    transactions.statement("ROLLBACK")
    transactions.committed()
    assert told == []
    transactions.pending.add_rows(TABLE, [(2, RowChange(entry(2)))])
    transactions.statement("ROLLBACK TO s")
    assert told == []
    transactions.statement("COMMIT")
    (news,) = told
    assert news.everything


def test_a_message_that_is_not_visible_yet_is_scanned_for_repeatedly_and_then_given_up() -> None:
    awaiting = AwaitingVisibility(10)
    awaiting.await_key(0, 1)
    rescans_ns: list[int] = []
    while awaiting.rescan_ns is not None:
        assert not awaiting.start_rescan(awaiting.rescan_ns - 1)
        rescans_ns.append(awaiting.rescan_ns)
        assert awaiting.start_rescan(awaiting.rescan_ns)
    assert rescans_ns[0] == RESCAN_MIN_NS
    assert len(rescans_ns) < 15
    assert RESCAN_MAX_NS < rescans_ns[-1] < 3 * RESCAN_MAX_NS


def test_a_message_that_was_found_awaits_visibility_no_longer() -> None:
    awaiting = AwaitingVisibility(10)
    awaiting.await_key(0, 1)
    awaiting.await_key(0, 2)
    awaiting.stop_awaiting([1, 7])
    assert awaiting.rescan_ns is not None
    awaiting.stop_awaiting([2])
    assert awaiting.rescan_ns is None


def test_a_message_that_comes_and_is_found_does_not_begin_the_scans_for_unknown_ones_anew() -> None:
    awaiting = AwaitingVisibility(10)
    awaiting.await_any(0)
    for _ in range(3):
        assert awaiting.start_rescan(awaiting.rescan_ns or 0)
    expected_ns = awaiting.rescan_ns
    assert expected_ns is not None
    awaiting.await_key(expected_ns - 2 * RESCAN_MIN_NS, 1)
    assert awaiting.rescan_ns == expected_ns - RESCAN_MIN_NS
    awaiting.stop_awaiting([1])
    assert awaiting.rescan_ns == expected_ns


def test_more_messages_than_can_be_remembered_are_scanned_for_without_their_ids() -> None:
    awaiting = AwaitingVisibility(1)
    awaiting.await_key(0, 1)
    awaiting.await_key(0, 2)
    awaiting.stop_awaiting([1, 2])
    assert awaiting.rescan_ns is not None


def test_a_postponed_message_does_not_come_at_its_old_time() -> None:
    buffer = ReadAhead()
    buffer.add_scheduled(entry(1, due_ns=10), most=10)
    buffer.add_scheduled(entry(1, due_ns=20), most=10)
    buffer.promote_due(Instant(10, 10))
    assert buffer.ready == 0
    buffer.promote_due(Instant(20, 20))
    assert buffer.take(1) == [entry(1, due_ns=20)]


def test_messages_beyond_the_bound_are_left_to_a_scan_at_their_time() -> None:
    buffer = ReadAhead()
    for key in range(1, 5):
        buffer.add_scheduled(entry(key, due_ns=100 - key), most=2)
    assert len(buffer) == 2
    assert buffer.horizon_ns == 96
    buffer.replace_with(ScanResult((), more=False, horizon_ns=None), Instant(0, 0), ())
    assert buffer.next_ns(Instant(0, 0)) is None


def holding(key: int) -> Stage:
    """A stream has been sent this message."""
    stage = Stage()
    stage.enqueue(key)
    stage.subscribe(1, holder=1)
    stage.run_until(lambda: stage.delivered.get(1) == [key])
    stage.settle()
    return stage


def test_our_own_claim_in_the_log_causes_no_work() -> None:
    stage = holding(7)
    stage.handle(stage.dispatcher.changes_logged, [stage.rows[7].entry], [])
    assert stage.asked == []


def test_a_claim_in_the_log_before_its_own_result_causes_no_work() -> None:
    stage = Stage()
    stage.enqueue(7)
    stage.subscribe(1, holder=1)
    while not any(pending.answer is None and type(pending.effect).__name__ == "Claim" for pending in stage.asked):
        asked = stage.asked[0]
        stage.do(asked)
        stage.answer(asked)
    (claim,) = (pending for pending in stage.asked if type(pending.effect).__name__ == "Claim")
    stage.do(claim)
    others = [pending for pending in stage.asked if pending is not claim]
    stage.handle(stage.dispatcher.changes_logged, [stage.rows[7].entry], [])
    assert [pending for pending in stage.asked if pending is not claim] == others


def test_a_message_changed_while_in_flight_is_looked_up() -> None:
    stage = holding(7)
    row = stage.rows[7].entry
    stage.handle(stage.dispatcher.changes_logged, [Entry(7, row.epoch + 1, 0, row.due_ns)], [])
    assert [type(pending.effect).__name__ for pending in stage.asked] == ["Lookup"]


def test_a_message_with_the_id_of_one_that_is_being_looked_up_is_not_confused_with_it() -> None:
    stage = holding(7)
    stage.unread_every = 1
    del stage.rows[7]  # TRUNCATE TABLE, and the ids begin anew.
    stage.holdings.clear()
    stage.handle(stage.dispatcher.changes_logged)
    (lookup,) = (pending for pending in stage.asked if type(pending.effect).__name__ == "Lookup")
    stage.do(lookup)
    stage.enqueue(7, wake=False)
    while not any(type(pending.effect).__name__ == "Fetch" for pending in stage.asked):
        asked = next(pending for pending in stage.asked if pending is not lookup)
        stage.do(asked)
        stage.answer(asked)
    stage.answer(lookup)
    stage.settle()
    assert stage.delivered == {1: [7, 7]}


def test_a_deletion_logged_before_a_claim_is_older_than_the_claim() -> None:
    stage = holding(7)
    stage.handle(stage.dispatcher.changes_logged, [], [7])
    stage.settle()
    stage.disconnect(1)
    stage.settle()
    assert stage.rows[7].entry.due_ns <= stage.now_ns


def test_a_message_that_is_replaced_while_in_flight_is_delivered_again() -> None:
    stage = holding(7)
    stage.handle(stage.dispatcher.changes_logged, [stage.rows[7].entry], [])
    del stage.rows[7]
    stage.holdings.clear()
    stage.enqueue(7, wake=False)
    stage.handle(stage.dispatcher.changes_logged, [stage.rows[7].entry], [])
    stage.run_until(lambda: stage.delivered.get(1) == [7, 7], within_ns=0)


def test_a_message_that_is_replaced_while_in_flight_is_delivered_again_if_the_log_hides_our_claim() -> None:
    stage = holding(7)
    claimed = stage.rows[7].entry
    del stage.rows[7]
    stage.holdings.clear()
    stage.enqueue(7, wake=False)
    before = {7: (claimed.epoch, claimed.due_ns)}
    stage.handle(stage.dispatcher.changes_logged, [stage.rows[7].entry], [], before)
    stage.run_until(lambda: stage.delivered.get(1) == [7, 7], within_ns=0)


def test_a_scheduled_message_in_the_log_needs_no_scan() -> None:
    stage = Stage()
    stage.subscribe(1, holder=1)
    stage.settle()
    due_ns = stage.now_ns + 10**9
    stage.enqueue(7, due_ns=due_ns, wake=False)
    stage.handle(stage.dispatcher.changes_logged, [entry(7, due_ns=due_ns)], [])
    assert stage.asked == []
    stage.run_until(lambda: 1 in stage.delivered)
    assert stage.now_ns == due_ns


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("hidden_ns", [0, 5_000_000, 9 * 10**9])
def test_a_logged_message_that_is_not_visible_yet_is_found_later(named: bool, hidden_ns: int) -> None:
    stage = Stage()
    stage.subscribe(1, holder=1)
    stage.settle()
    stage.handle(stage.dispatcher.changes_logged, [entry(7)] if named else [])
    stage.settle()
    visible_ns = stage.mono_ns + hidden_ns
    stage.run_until(lambda: (stage.dispatcher.wake_at_ns or 0) > visible_ns)
    stage.enqueue(7, wake=False)
    stage.run_until(lambda: stage.delivered.get(1) == [7], within_ns=2 * RESCAN_MAX_NS)


def scan_under_way() -> tuple[Stage, Asked]:
    """A stream waits, and a commit has just caused a scan."""
    stage = Stage()
    stage.subscribe(1, holder=1)
    stage.settle()
    stage.handle(stage.dispatcher.woken)
    (scan,) = stage.asked
    return stage, scan


def scans(stage: Stage) -> int:
    return sum(isinstance(pending.effect, Scan) for pending in stage.asked)


def test_a_message_in_the_log_that_the_scan_under_way_shows_causes_no_other_scan() -> None:
    """As after each INSERT through the proxy."""
    stage, scan = scan_under_way()
    stage.enqueue(7, wake=False)
    stage.do(scan)
    stage.handle(stage.dispatcher.changes_logged, [entry(7)])
    stage.answer(scan)
    assert scans(stage) == 0
    stage.run_until(lambda: stage.delivered.get(1) == [7], within_ns=0)
    assert stage.dispatcher.parts.scans.rescan_ns is None


def test_a_message_in_the_log_that_the_scan_under_way_does_not_show_is_scanned_for_at_once() -> None:
    stage, scan = scan_under_way()
    stage.do(scan)
    stage.enqueue(7, wake=False)
    stage.handle(stage.dispatcher.changes_logged, [entry(7)])
    assert scans(stage) == 1
    stage.answer(scan)
    assert scans(stage) == 1
    stage.run_until(lambda: stage.delivered.get(1) == [7], within_ns=0)


def test_a_message_that_the_scan_under_way_shows_as_it_was_before_is_scanned_for_at_once() -> None:
    stage = Stage()
    stage.enqueue(7, due_ns=stage.now_ns + 10**9, wake=False)
    stage.subscribe(1, holder=1)
    stage.settle()
    stage.handle(stage.dispatcher.woken)
    (scan,) = stage.asked
    stage.do(scan)
    stage.enqueue(7, due_ns=1, wake=False)
    stage.handle(stage.dispatcher.changes_logged, [entry(7, due_ns=1)], [], {7: (0, stage.now_ns + 10**9)})
    stage.answer(scan)
    assert scans(stage) == 1
    assert stage.dispatcher.parts.scans.rescan_ns is not None
    stage.run_until(lambda: stage.delivered.get(1) == [7], within_ns=0)


def test_a_failed_scan_shows_no_message_of_the_log() -> None:
    stage, scan = scan_under_way()
    stage.enqueue(7, wake=False)
    stage.handle(stage.dispatcher.changes_logged, [entry(7)])
    stage.fail(scan)
    stage.run_until(lambda: stage.delivered.get(1) == [7], within_ns=10**9)


def test_a_message_that_is_settled_in_the_log_frees_its_credit_at_once() -> None:
    stage = Stage()
    stage.enqueue(7)
    stage.enqueue(8)
    stage.subscribe(1, holder=1, prefetch=1)
    stage.run_until(lambda: stage.delivered.get(1) == [7])
    stage.store.acknowledge(STAGE_TABLE, 7)
    stage.handle(stage.dispatcher.changes_logged, [], [7])
    stage.run_until(lambda: stage.delivered.get(1) == [7, 8], within_ns=0)
