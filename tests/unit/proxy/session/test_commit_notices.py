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
from sqlrewrite.classify import Verb

M = TableId("shop", "m")


class Engineer:
    """Records the notices."""

    def __init__(self) -> None:
        self.notices: list[tuple[object, ...]] = []

    def written(self, name: str | None, *, inserted: bool = False) -> None:
        self.notices.append(("inserted" if inserted else "written", name))

    def schema_changed(self, name: str | None = None) -> None:
        self.notices.append(("schema", name))

    def acknowledged(self, table: TableId, values: Iterable[object] | None, *, certain: bool) -> None:
        self.notices.append(("acked", None if values is None else list(values), certain))

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
    return CommitNotices(cast(Engine, engineer), clock)


def done(
    pending: PendingCommand, *, open_transaction: bool = False, ok: bool = True, affected_rows: int = 1
) -> Outcome[PendingCommand]:
    status = IN_TRANS if open_transaction else AUTOCOMMIT
    return Outcome(3, pending, ok, status, affected_rows=affected_rows, results=int(ok))


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
    assert settled(statement, M, may_be_hidden=False) == Settled(Verb.ACK, M, values, certain)
    assert not settled(statement, M, may_be_hidden=True).certain


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
