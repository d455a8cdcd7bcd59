"""Classifying a client's commands, given the earlier commands of its session."""

from __future__ import annotations

from itertools import product

import pytest
from mysql_mimic.types import Capabilities, Commands

from engine.model import TableId
from engine.packets import PrepareOk, frame
from proxy.session.command_classifier import LAST_PREPARED, NOT_FAST, CommandClassifier
from proxy.session.commit_notices import (
    Killed,
    Prepared,
    PreparedSettle,
    PreparedStream,
    Preparing,
    Settled,
    Touched,
)
from proxy.session.prepared import TrackedStatement
from proxy.session.proven_rights import TABLES_MAX, ProvenRights
from proxy.wire.framing import Command
from proxy.wire.params import make_query
from proxy.wire.walker import Outcome
from sqlrewrite.ack import KEYS_MAX, parse_settle
from sqlrewrite.classify import QUEUE_STATEMENT_VERBS, Kill, Verb
from sqlrewrite.stream import parse_stream

PREPARE, EXECUTE = int(Commands.COM_STMT_PREPARE), int(Commands.COM_STMT_EXECUTE)
RESET, CLOSE = int(Commands.COM_RESET_CONNECTION), int(Commands.COM_STMT_CLOSE)
TABLE = TableId("shop", "orders")
ATTRIBUTES = int(Capabilities.CLIENT_QUERY_ATTRIBUTES)

STATEMENTS = [
    b"SELECT 1",
    b"INSERT INTO orders VALUES (1)",
    b"UPDATE orders SET a = 1",
    b"DROP TABLE orders",
    b"KILL QUERY 5",
    b"USE shop",
    b"CALL p()",
    b"STREAM * FROM orders",
    b"ACK FROM orders WHERE id = 1",
    b"SHOW QUEUES",
    b"",
    b"\xff\xfe nonsense",
]
PREPARED: list[Prepared] = [
    Touched("orders", inserts=True),
    Killed(Kill(7, query_only=False)),
    PreparedStream(TABLE, parse_stream(b"STREAM * FROM orders"), ("id",)),
    PreparedSettle(TABLE, parse_settle(b"ACK FROM orders WHERE id = 1")),
]


def command(payload: bytes) -> Command:
    return Command(payload[0], frame(payload, 0), True)


def about(byte: int, number: int) -> Command:
    return command(bytes([byte]) + number.to_bytes(4, "little") + b"\0\1\0\0\0")


def answered(classifier: CommandClassifier, statement: Prepared | None, number: int) -> None:
    """A PREPARE of a statement has got this number."""
    pending = None if statement is None else Preparing(statement)
    classifier.command_answered(Outcome(PREPARE, pending, True, 0, prepared=PrepareOk(number, 0, 0)))


@pytest.mark.parametrize(("text", "attributes"), list(product(STATEMENTS, [False, True])))
def test_a_glance_at_a_query_sees_what_a_look_would(text: bytes, attributes: bool) -> None:
    classifier, twin = CommandClassifier(RIGHTS_S), CommandClassifier(RIGHTS_S)
    for fresh in (classifier, twin):
        fresh.logged_in(ATTRIBUTES * attributes)
        fresh.remember_db("shop")
    query = command(make_query(text, attributes=attributes))
    seen = classifier.classify_fast(query.data)
    verb, pending = twin.classify(query)
    if seen is NOT_FAST:
        assert verb in QUEUE_STATEMENT_VERBS
    else:
        assert verb not in QUEUE_STATEMENT_VERBS
        assert seen == pending
        assert classifier.known_db == twin.known_db


@pytest.mark.parametrize("statement", [None, *PREPARED])
def test_a_glance_at_an_execution_sees_what_a_look_would_or_leaves_it_to_that(statement: Prepared | None) -> None:
    classifier = CommandClassifier(RIGHTS_S)
    answered(classifier, statement, 7)
    for number in (7, LAST_PREPARED, 8):
        seen = classifier.classify_fast(about(EXECUTE, number).data)
        assert seen is NOT_FAST or (Verb.OTHER, seen) == classifier.classify(about(EXECUTE, number))
    assert classifier.classify_fast(about(EXECUTE, 8).data) is None


def test_no_execution_is_classified_before_the_number_of_a_queue_statement_is_known() -> None:
    classifier = CommandClassifier(RIGHTS_S)
    classifier.preparing = True
    assert classifier.classify_fast(about(EXECUTE, 7).data) is NOT_FAST
    answered(classifier, PREPARED[2], 7)
    assert classifier.classify_fast(about(EXECUTE, 8).data) is None


def test_an_execution_that_is_cut_off_takes_more_than_a_glance() -> None:
    assert CommandClassifier(RIGHTS_S).classify_fast(frame(bytes([EXECUTE]) + b"\1\0", 0)) is NOT_FAST


def test_a_closed_statement_and_a_reset_connection_are_forgotten() -> None:
    classifier = CommandClassifier(RIGHTS_S)
    answered(classifier, PREPARED[0], 1)
    answered(classifier, PREPARED[0], 2)
    classifier.classify(about(CLOSE, 1))
    assert (classifier.statement(1), classifier.statement(2) is not None) == (None, True)
    classifier.classify(command(bytes([RESET])))
    classifier.command_answered(Outcome(RESET, None, True, 0))
    assert classifier.statement(2) is None


def test_a_default_database_is_not_remembered_once_a_use_was_prepared() -> None:
    classifier = CommandClassifier(RIGHTS_S)
    classifier.remember_db("shop")
    assert classifier.known_db == "shop"
    classifier.classify(command(bytes([PREPARE]) + b"USE other"))
    classifier.remember_db("shop")
    assert classifier.known_db is None


@pytest.mark.parametrize(
    ("statements", "is_set"),
    [
        (["SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"], True),
        (["/* x */ set\ttransaction read only", "SELECT @@version", "SET @x = 1", "USE shop", "KILL 7"], True),
        (["SET @a = 1, @@transaction_isolation = 'SERIALIZABLE'"], True),
        (["SET @@`tx_read_only` = 1", "STREAM * FROM orders", "SHOW CREATE TABLE orders"], True),
        (["SET SESSION TRANSACTION READ ONLY", "SET @@SESSION.transaction_read_only = 1"], False),
        (["SET @transaction_read_only = 1"], False),
        (["SET transaction_isolation = 'SERIALIZABLE'", "SET @@transaction_isolations = 1"], False),
        (["SET TRANSACTION READ ONLY", "SELECT * FROM orders"], False),
        (["SET TRANSACTION READ ONLY", "START TRANSACTION"], False),
        (["SET TRANSACTION READ ONLY", "COMMIT"], False),
        (["SET TRANSACTION READ ONLY", "UPDATE orders SET a = 1"], False),
        (["SET TRANSACTION READ ONLY", "ACK FROM orders WHERE id = 1"], True),
        (["SET TRANSACTION READ ONLY", bytes([RESET])], False),
        (["SET TRANSACTION READ ONLY", bytes([EXECUTE, 1, 0, 0, 0, 0, 1, 0, 0, 0])], False),
        ([bytes([PREPARE]) + b"SET TRANSACTION READ ONLY"], False),
    ],
)  # fmt: skip
def test_what_is_set_for_the_next_transaction_is_remembered_until_one_may_have_begun(
    statements: list[str | bytes], is_set: bool
) -> None:
    classifier = CommandClassifier(RIGHTS_S)
    classifier.logged_in(0)
    for statement in statements:
        payload = statement if isinstance(statement, bytes) else make_query(statement.encode(), attributes=False)
        if classifier.classify_fast(frame(payload, 0)) is NOT_FAST:
            classifier.classify(command(payload))
    assert classifier.next_transaction_is_set == is_set


RIGHTS_S = 60.0


def relay(classifier: CommandClassifier, payload: bytes) -> None:
    """The client sends a command, seen at a glance or looked at."""
    if classifier.classify_fast(frame(payload, 0)) is NOT_FAST:
        classifier.classify(command(payload))


def test_of_more_ids_than_are_read_it_is_not_remembered_which_are_under_way() -> None:
    classifier = CommandClassifier(RIGHTS_S)
    classifier.logged_in(0)
    ids = b", ".join(b"%d" % number for number in range(KEYS_MAX // 2 + 1))
    answered(classifier, PreparedSettle(TABLE, parse_settle(b"NACK FROM orders WHERE id IN (" + ids + b")")), 3)
    tags = [classifier.classify(about(EXECUTE, 3))[1] for _ in range(3)]
    assert [isinstance(pending, Settled) and pending.values is not None for pending in tags] == [True, False, False]
    for pending in tags:
        assert isinstance(pending, Settled)
        classifier.command_answered(Outcome(EXECUTE, pending, True, 0))
    pending = classifier.classify(about(EXECUTE, 3))[1]
    assert isinstance(pending, Settled)
    assert pending.values is not None


class TestAcksOfTheEngine:
    """Which executions are carried out here, and which statements matter for that."""

    PREPARED = PreparedSettle(TABLE, parse_settle(b"ACK FROM orders WHERE id = 1"))

    def classifier(self, prepared: PreparedSettle = PREPARED) -> CommandClassifier:
        classifier = CommandClassifier(RIGHTS_S)
        classifier.prepared[1] = TrackedStatement(prepared)
        classifier.proven_rights.remember(TABLE, fenced=False, begun_s=classifier.proven_rights.begin())
        return classifier

    def execution(self, flags: int = 0) -> Command:
        return command(bytes([EXECUTE]) + (1).to_bytes(4, "little") + bytes([flags]) + (1).to_bytes(4, "little"))

    def test_an_execution_of_an_ack_by_ids_is_carried_out_here(self) -> None:
        assert self.classifier().classify(self.execution()) == (Verb.OTHER, self.PREPARED)

    @pytest.mark.parametrize("text", [b"ACK FROM orders WHERE payload = 'x'", b"NACK FROM orders WHERE id = 1"])
    def test_any_other_is_relayed(self, text: bytes) -> None:
        classifier = self.classifier(PreparedSettle(TABLE, parse_settle(text)))
        assert isinstance(classifier.classify(self.execution())[1], Settled)

    def test_one_with_a_cursor_or_long_data_is_relayed(self) -> None:
        assert isinstance(self.classifier().classify(self.execution(flags=1))[1], Settled)
        classifier = self.classifier()
        classifier.prepared[1].long_data = frozenset((0,))
        assert isinstance(classifier.classify(self.execution())[1], Settled)

    @pytest.mark.parametrize(
        ("text", "kept"),
        [
            (b"SELECT 1", True),
            (b"INSERT INTO orders VALUES (1)", True),
            (b"SETTLE", True),
            (b"SET ROLE a", False),
            (b"/* */ set session_track_gtids = OWN_GTID", False),
        ],
    )
    def test_a_proof_is_forgotten_behind_a_setting(self, text: bytes, *, kept: bool) -> None:
        classifier = self.classifier()
        relay(classifier, b"\x03" + text)
        assert classifier.proven_rights.holds(TABLE, fenced=False) == kept

    def test_a_proof_is_forgotten_by_a_reset(self) -> None:
        classifier = self.classifier()
        classifier.command_answered(Outcome(RESET, None, True, 0))
        assert not classifier.proven_rights

    def test_a_proof_is_of_one_table_and_one_form(self) -> None:
        proven = self.classifier().proven_rights
        assert not proven.holds(TABLE, fenced=True)
        assert not proven.holds(TableId("shop", "others"), fenced=False)

    @pytest.mark.parametrize(
        ("texts", "locked"),
        [
            ([b"LOCK TABLES orders WRITE"], True),
            ([b"lock /* */ tables orders read", b"SELECT 1"], True),
            ([b"LOCK TABLES orders WRITE", b"UNLOCK TABLES"], False),
            ([b"SELECT 'LOCK TABLES'"], False),
        ],
    )
    def test_locked_tables_are_noticed(self, texts: list[bytes], *, locked: bool) -> None:
        classifier = self.classifier()
        for text in texts:
            relay(classifier, b"\x03" + text)
        assert classifier.has_locked_tables == locked
        classifier.classify(command(bytes([RESET])))
        assert not classifier.has_locked_tables


def test_a_proof_holds_for_its_time() -> None:
    now = [5.0]
    proven = ProvenRights(4.0, lambda: now[0])
    begun_s = proven.begin()
    now[0] = 6.0
    proven.remember(TABLE, fenced=False, begun_s=begun_s)
    held = []
    for now[0] in (6.0, 8.9, 9.0):
        held.append(proven.holds(TABLE, fenced=False))
    assert held == [True, True, False]


def test_of_very_many_tables_the_proofs_are_forgotten() -> None:
    proven = ProvenRights(4.0)
    for number in range(TABLES_MAX + 1):
        proven.remember(TableId("shop", f"t{number}"), fenced=False, begun_s=proven.begin())
    assert [proven.holds(TableId("shop", f"t{number}"), fenced=False) for number in (0, TABLES_MAX)] == [False, True]


@pytest.mark.parametrize(
    ("payload", "kept"),
    [
        (b"\x03BEGIN", True),
        (b"\x03 start transaction ;", True),
        (b"\x03Commit", True),
        (b"\x03ROLLBACK", True),
        (bytes([int(Commands.COM_PING)]), True),
        (b"\x03COMMIT AND CHAIN", False),
        (b"\x03BEGIN; SET NAMES gbk", False),
        (b"\x03SELECT 1", False),
        (bytes([RESET]), False),
    ],
)
def test_the_context_is_kept_by_what_frames_transactions(payload: bytes, *, kept: bool) -> None:
    assert CommandClassifier(RIGHTS_S).keeps_context(frame(payload, 0)) == kept
