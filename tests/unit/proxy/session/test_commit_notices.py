"""What a session's statements tell the engine, and when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest

from engine.model import TableId
from engine.service import Engine
from proxy.session.commit_notices import (
    SETTLED_VALUES_MAX,
    TOUCHED_TABLES_MAX,
    CommitNotices,
    PendingCommand,
    Settled,
    Touched,
    settled,
)
from proxy.wire.packets import AUTOCOMMIT, IN_TRANS
from proxy.wire.walker import Outcome
from sqlrewrite.ack import parse_settle
from sqlrewrite.classify import TransactionEnd, Verb

M = TableId("shop", "m")
SESSION = 7


class Engineer:
    """Records the notices."""

    def __init__(self) -> None:
        self.notices: list[tuple[object, ...]] = []

    def written(self, name: str | None, *, inserted: bool = False, ids: range = range(0)) -> None:
        self.notices.append(("inserted" if inserted else "written", name, *ids))

    def schema_changed(self, name: str | None = None) -> None:
        self.notices.append(("schema", name))

    def acknowledged(
        self, table: TableId, values: Iterable[object] | None, *, certain: bool, holder: int | None
    ) -> None:
        assert holder == SESSION
        self.notices.append(("acked", None if values is None else list(values), certain))

    def transaction_ended(self, holder: int, *, failed: bool) -> None:
        self.notices.append(("ended", holder, failed))

    def given_back(self, table: TableId, values: Iterable[object] | None) -> None:
        self.notices.append(("given back", None if values is None else list(values)))

    def extended(self, table: TableId, values: Iterable[object] | None) -> None:
        self.notices.append(("extended", None if values is None else list(values)))


@pytest.fixture
def engineer() -> Engineer:
    return Engineer()


class Clock:
    """Stands still unless it is set."""

    now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notices(engineer: Engineer, clock: Clock) -> CommitNotices:
    return CommitNotices(cast(Engine, engineer), SESSION, clock)


def done(
    pending: PendingCommand,
    *,
    open_transaction: bool = False,
    ok: bool = True,
    affected_rows: int = 1,
    insert_id: int = 0,
    results: int | None = None,
) -> Outcome[PendingCommand]:
    status = IN_TRANS if open_transaction else AUTOCOMMIT
    results = int(ok) if results is None else results
    return Outcome(3, pending, ok, status, affected_rows=affected_rows, insert_id=insert_id, results=results)


def test_the_ids_of_an_autocommitted_insert_are_reported(notices: CommitNotices, engineer: Engineer) -> None:
    inserted = Touched("m", inserts=True)
    notices.command_finished(done(inserted, insert_id=7))
    notices.command_finished(done(inserted, insert_id=8, affected_rows=3))
    assert engineer.notices == [("inserted", "m", 7), ("inserted", "m", 8, 9, 10)]


def test_no_ids_are_reported_where_they_do_not_follow_from_the_answer(
    notices: CommitNotices, engineer: Engineer
) -> None:
    inserted = Touched("m", inserts=True)
    notices.command_finished(done(inserted))  # The table gives out no ids.
    notices.command_finished(done(Touched("m"), insert_id=7))  # REPLACE, for instance.
    notices.command_finished(done(inserted, insert_id=7, results=2))  # One statement of several.
    notices.command_finished(done(inserted, insert_id=7, open_transaction=True))
    notices.command_finished(done(TransactionEnd.COMMIT))
    assert engineer.notices == [
        ("inserted", "m"),
        ("written", "m"),
        ("inserted", "m"),
        ("inserted", "m"),
    ]


def test_an_autocommitted_write_wakes_its_table_at_once(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(Touched("m")))
    assert engineer.notices == [("written", "m")]


def test_a_write_in_a_transaction_wakes_when_the_transaction_ends(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(Touched("m"), open_transaction=True))
    notices.command_finished(done(None, open_transaction=True))
    assert engineer.notices == []
    notices.command_finished(done(None))
    assert engineer.notices == [("written", "m")]
    notices.command_finished(done(None))
    assert len(engineer.notices) == 1


def test_a_write_that_failed_wakes_nobody(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(Touched("m"), ok=False))
    assert engineer.notices == []


def test_a_write_that_may_touch_any_table_wakes_all(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(Touched("m"), open_transaction=True))
    notices.command_finished(done(Touched(None)))
    assert engineer.notices == [("written", None)]


def test_a_transaction_over_very_many_tables_wakes_all(notices: CommitNotices, engineer: Engineer) -> None:
    for number in range(TOUCHED_TABLES_MAX + 1):
        notices.command_finished(done(Touched(f"t{number}"), open_transaction=True))
    notices.command_finished(done(None))
    assert engineer.notices == [("written", None)]


def test_a_changed_table_makes_the_catalog_stale(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(Touched("m", schema=True)))
    assert engineer.notices == [("schema", "m"), ("written", "m")]


def test_an_ack_is_certain_when_it_affected_all_that_it_names(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(Settled(Verb.ACK, M, [1, 2], certain=True), affected_rows=2))
    notices.command_finished(done(Settled(Verb.ACK, M, [1, 2], certain=True), affected_rows=1))
    notices.command_finished(done(Settled(Verb.ACK, M, [1, 2], certain=False), affected_rows=2))
    notices.command_finished(done(Settled(Verb.ACK, M, None), affected_rows=5))
    assert engineer.notices == [
        ("acked", [1, 2], True),
        ("acked", [1, 2], False),
        ("acked", [1, 2], False),
        ("acked", None, False),
    ]


@pytest.mark.parametrize("open_transaction", [False, True])
def test_an_ack_that_affected_more_than_it_names_may_have_been_of_any(
    notices: CommitNotices, engineer: Engineer, open_transaction: bool
) -> None:
    notices.command_finished(
        done(Settled(Verb.ACK, M, [0], certain=True), affected_rows=2, open_transaction=open_transaction)
    )
    notices.command_finished(done(None))
    assert engineer.notices == [("acked", None, False)]


@pytest.mark.parametrize(
    ("text", "values", "certain"),
    [
        (b"ACK FROM m WHERE id = 7", [7], True),
        (b"ACK FROM m WHERE id IN (1, -2, 1)", [1, -2, 1], True),
        (b"ACK FROM m WHERE id IN ('1_000', 'b')", [b"1_000", b"b"], True),
        (b"ACK FROM m WHERE id IN (0, 'b')", [b"0", b"b"], False),
        (b"ACK FROM m WHERE id = " + b"9" * 5000, None, False),
        (b"ACK FROM m WHERE payload = 7", None, False),
        (b"ACK FROM m WHERE id = ?", None, False),
    ],
)
def test_numbers_are_distinguished_from_strings_and_a_list_of_both_is_never_certain(
    text: bytes, values: list[object] | None, certain: bool
) -> None:
    statement = parse_settle(text)
    assert settled(statement, M) == Settled(Verb.ACK, M, values, certain)


def test_an_ack_that_affected_nothing_tells_nothing(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(Settled(Verb.ACK, M, [b"1"]), affected_rows=0))
    assert engineer.notices == []


def test_an_ack_in_a_transaction_is_a_doubt_when_that_ends(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(Settled(Verb.ACK, M, [b"1"]), open_transaction=True))
    notices.command_finished(done(Settled(Verb.ACK, M, [b"2"]), open_transaction=True))
    assert engineer.notices == []
    notices.command_finished(done(None))
    assert engineer.notices == [("acked", [b"1", b"2"], False)]


def test_very_many_acks_in_a_transaction_are_remembered_as_any(notices: CommitNotices, engineer: Engineer) -> None:
    for start in range(0, SETTLED_VALUES_MAX + 1, 1_000):
        values = list(range(start, start + 1_000))
        notices.command_finished(done(Settled(Verb.ACK, M, values), open_transaction=True, affected_rows=1_000))
    notices.command_finished(done(None))
    assert engineer.notices == [("acked", None, False)]


def test_acks_of_many_tables_in_a_transaction_are_remembered_within_one_bound(
    notices: CommitNotices, engineer: Engineer
) -> None:
    most = list(range(SETTLED_VALUES_MAX - 1))
    notices.command_finished(done(Settled(Verb.ACK, M, [1]), open_transaction=True))
    notices.command_finished(done(Settled(Verb.NACK, M, most), open_transaction=True, affected_rows=len(most)))
    notices.command_finished(done(Settled(Verb.ACK, M, [2]), open_transaction=True))
    notices.command_finished(done(None))
    assert engineer.notices == [("acked", None, False), ("given back", most)]
    notices.command_finished(done(Settled(Verb.ACK, M, [3]), open_transaction=True))
    notices.command_finished(done(None))
    assert engineer.notices[2:] == [("acked", [3], False)]


def test_a_quick_transaction_that_only_added_rows_says_so(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(Touched("m", inserts=True), open_transaction=True))
    notices.command_finished(done(Touched("m", inserts=True)))
    assert engineer.notices == [("inserted", "m")]


def test_one_change_among_rows_added_is_a_change(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(Touched("m", inserts=True), open_transaction=True))
    notices.command_finished(done(Touched("m"), open_transaction=True))
    notices.command_finished(done(Touched("m", inserts=True)))
    assert engineer.notices == [("written", "m")]


def test_rows_that_were_added_long_before_their_commit_may_be_anywhere(
    notices: CommitNotices, engineer: Engineer, clock: Clock
) -> None:
    notices.command_finished(done(Touched("m", inserts=True), open_transaction=True))
    clock.now_s += 60
    notices.command_finished(done(None))
    assert engineer.notices == [("written", "m")]


def test_what_was_given_back_or_extended_is_reported_as_that(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(Settled(Verb.NACK, M, [b"1"])))
    notices.command_finished(done(Settled(Verb.EXTEND, M, None)))
    assert engineer.notices == [("given back", [b"1"]), ("extended", None)]


def test_each_kind_is_remembered_for_itself_while_a_transaction_is_open(
    notices: CommitNotices, engineer: Engineer
) -> None:
    for verb, key in ((Verb.ACK, b"1"), (Verb.NACK, b"2"), (Verb.EXTEND, b"3"), (Verb.NACK, b"4")):
        notices.command_finished(done(Settled(verb, M, [key]), open_transaction=True))
    assert engineer.notices == []
    notices.command_finished(done(None))
    assert engineer.notices == [("acked", [b"1"], False), ("given back", [b"2", b"4"]), ("extended", [b"3"])]


ACK = Settled(Verb.ACK, M, [1, 2], certain=True)
COMMIT, ROLLBACK, TO_SAVEPOINT = TransactionEnd.COMMIT, TransactionEnd.ROLLBACK, TransactionEnd.TO_SAVEPOINT
ENDED = ("ended", 7, False)
FAILED = ("ended", 7, True)


@pytest.fixture
def locking(notices: CommitNotices) -> CommitNotices:
    notices.messages_locked(7)
    return notices


@pytest.mark.parametrize(
    ("outcome", "notice"),
    [
        (done(COMMIT), ENDED),
        (done(COMMIT, open_transaction=True), ENDED),
        (done(COMMIT, ok=False), ENDED),
        (done(ROLLBACK), FAILED),
        (done(ROLLBACK, ok=False), ENDED),
        (done(None), ENDED),
        (done(Touched("other", schema=True)), ENDED),
        (Outcome(3, None, False, IN_TRANS, error_code=1213), FAILED),
        (Outcome(3, None, False, IN_TRANS, error_code=1020), FAILED),
        (Outcome(0x1F, None, True, AUTOCOMMIT), FAILED),
        (Outcome(3, Touched(None), True, IN_TRANS, results=2), ENDED),
    ],
)
def test_the_end_of_a_transaction_with_locks_is_reported_once(
    locking: CommitNotices, engineer: Engineer, outcome: Outcome[PendingCommand], notice: tuple[object, ...]
) -> None:
    locking.command_finished(outcome)
    assert engineer.notices[-1] == notice or notice in engineer.notices
    assert not locking.locks_messages
    locking.command_finished(done(ROLLBACK))
    assert [word for word, *_ in engineer.notices].count("ended") == 1


@pytest.mark.parametrize(
    "outcome",
    [
        done(None, open_transaction=True),
        done(TO_SAVEPOINT, open_transaction=True),
        done(Touched(None), open_transaction=True),
        Outcome(3, None, False, IN_TRANS, error_code=1064),
        Outcome(3, None, False, IN_TRANS, error_code=1205),
    ],
)
def test_what_leaves_the_transaction_open_ends_no_lock(
    locking: CommitNotices, engineer: Engineer, outcome: Outcome[PendingCommand]
) -> None:
    locking.command_finished(outcome)
    assert locking.locks_messages
    assert ENDED not in engineer.notices


def test_an_ack_that_is_committed_is_certain(notices: CommitNotices, engineer: Engineer) -> None:
    notices.command_finished(done(ACK, open_transaction=True, affected_rows=2))
    notices.command_finished(done(None, open_transaction=True))
    assert engineer.notices == []
    followed = [notices.follows_transaction]
    notices.command_finished(done(COMMIT))
    followed.append(notices.follows_transaction)
    assert followed == [True, False]
    assert engineer.notices == [("acked", [1, 2], True)]
    notices.command_finished(done(COMMIT))
    assert len(engineer.notices) == 1


def test_an_ack_that_is_committed_with_its_locks_is_certain(locking: CommitNotices, engineer: Engineer) -> None:
    locking.command_finished(done(Touched("done"), open_transaction=True))
    locking.command_finished(done(ACK, open_transaction=True, affected_rows=2))
    locking.command_finished(done(None, open_transaction=True))
    locking.command_finished(done(COMMIT))
    assert engineer.notices == [("acked", [1, 2], True), ("written", "done"), ENDED]


@pytest.mark.parametrize("open_transaction", [True, False])
@pytest.mark.parametrize(
    "doubt",
    [
        done(TO_SAVEPOINT, open_transaction=True),
        done(Touched("m"), open_transaction=True),
        Outcome(0x17, None, True, IN_TRANS, results=1),
        Outcome(3, None, False, IN_TRANS, error_code=1213),
        Outcome(3, None, False, IN_TRANS, error_code=1205),
    ],
)
@pytest.mark.parametrize("locks", [True, False], ids=["with locks", "without locks"])
def test_an_ack_that_may_have_been_undone_is_not_certain(
    notices: CommitNotices, engineer: Engineer, doubt: Outcome[PendingCommand], open_transaction: bool, locks: bool
) -> None:
    if locks:
        notices.messages_locked(7)
    notices.command_finished(done(ACK, open_transaction=True, affected_rows=2))
    notices.command_finished(doubt)
    notices.command_finished(done(COMMIT, open_transaction=open_transaction))
    notices.command_finished(done(None))
    assert ("acked", [1, 2], False) in engineer.notices


@pytest.mark.parametrize(
    "end", [done(ROLLBACK), done(COMMIT, ok=False), done(None), Outcome(3, None, False, IN_TRANS, error_code=1213)]
)
@pytest.mark.parametrize("locks", [True, False], ids=["with locks", "without locks"])
def test_an_ack_whose_transaction_may_not_have_been_committed_is_not_certain(
    notices: CommitNotices, engineer: Engineer, end: Outcome[PendingCommand], locks: bool
) -> None:
    if locks:
        notices.messages_locked(7)
    notices.command_finished(done(ACK, open_transaction=True, affected_rows=2))
    notices.command_finished(end)
    if locks:
        notices.messages_locked(7)
    notices.command_finished(done(COMMIT))
    assert [notice for notice in engineer.notices if notice[0] == "acked"] == [("acked", [1, 2], False)]


def test_an_ack_of_fewer_messages_than_it_names_is_not_certain(locking: CommitNotices, engineer: Engineer) -> None:
    locking.command_finished(done(ACK, open_transaction=True, affected_rows=1))
    locking.command_finished(done(COMMIT))
    assert engineer.notices == [("acked", [1, 2], False), ENDED]
