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
    PendingCommand,
    Prepared,
    PreparedSettle,
    PreparedStream,
    Preparing,
    Settled,
    Touched,
)
from proxy.session.own_acks import AckForm
from proxy.session.prepared import TrackedStatement
from proxy.wire.framing import Command
from proxy.wire.packets import make_ok
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
    classifier, twin = CommandClassifier(), CommandClassifier()
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
    classifier = CommandClassifier()
    answered(classifier, statement, 7)
    for number in (7, LAST_PREPARED, 8):
        seen = classifier.classify_fast(about(EXECUTE, number).data)
        assert seen is NOT_FAST or (Verb.OTHER, seen) == classifier.classify(about(EXECUTE, number))
    assert classifier.classify_fast(about(EXECUTE, 8).data) is None


def test_no_execution_is_classified_before_the_number_of_a_queue_statement_is_known() -> None:
    classifier = CommandClassifier()
    classifier.preparing = True
    assert classifier.classify_fast(about(EXECUTE, 7).data) is NOT_FAST
    answered(classifier, PREPARED[2], 7)
    assert classifier.classify_fast(about(EXECUTE, 8).data) is None


def test_an_execution_that_is_cut_off_takes_more_than_a_glance() -> None:
    assert CommandClassifier().classify_fast(frame(bytes([EXECUTE]) + b"\1\0", 0)) is NOT_FAST


def test_a_closed_statement_and_a_reset_connection_are_forgotten() -> None:
    classifier = CommandClassifier()
    answered(classifier, PREPARED[0], 1)
    answered(classifier, PREPARED[0], 2)
    classifier.classify(about(CLOSE, 1))
    assert (classifier.statement(1), classifier.statement(2) is not None) == (None, True)
    classifier.classify(command(bytes([RESET])))
    classifier.command_answered(Outcome(RESET, None, True, 0))
    assert classifier.statement(2) is None


def test_a_default_database_is_not_remembered_once_a_use_was_prepared() -> None:
    classifier = CommandClassifier()
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
        (["SET TRANSACTION READ ONLY", "ACK FROM orders WHERE id = 1"], False),
        (["SET TRANSACTION READ ONLY", bytes([RESET])], False),
        (["SET TRANSACTION READ ONLY", bytes([EXECUTE, 1, 0, 0, 0, 0, 1, 0, 0, 0])], False),
        ([bytes([PREPARE]) + b"SET TRANSACTION READ ONLY"], False),
    ],
)  # fmt: skip
def test_what_is_set_for_the_next_transaction_is_remembered_until_one_may_have_begun(
    statements: list[str | bytes], is_set: bool
) -> None:
    classifier = CommandClassifier()
    classifier.logged_in(0)
    for statement in statements:
        payload = statement if isinstance(statement, bytes) else make_query(statement.encode(), attributes=False)
        if classifier.classify_fast(frame(payload, 0)) is NOT_FAST:
            classifier.classify(command(payload))
    assert classifier.next_transaction_is_set == is_set


# -- Whether a temporary table may stand before a queue


def relay(classifier: CommandClassifier, payload: bytes) -> None:
    """The client sends a command, seen at a glance or looked at."""
    if classifier.classify_fast(frame(payload, 0)) is NOT_FAST:
        classifier.classify(command(payload))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x03SELECT f()",
        b"\x03CREATE TEMPORARY TABLE orders (id INT)",
        b"\x03INSERT INTO orders VALUES (1)",
        b"\x03CALL p",
        b"\x03PURGE QUEUE orders",
        bytes([EXECUTE]) + b"\x09\0\0\0\0\1\0\0\0",
        bytes([EXECUTE]) + b"\xff\xff\xff\xff\0\1\0\0\0",
        bytes([EXECUTE]),
        b"\x03",
    ],
)
def test_whatever_may_run_something_stored_may_have_made_a_temporary_table(payload: bytes) -> None:
    classifier = CommandClassifier()
    for harmless in (b"SET NAMES utf8mb4", b"BEGIN", b"STREAM * FROM orders", b"ACK orders WHERE id = 1"):
        relay(classifier, b"\x03" + harmless)
    assert not classifier.may_be_hidden(TABLE)
    relay(classifier, payload)
    assert classifier.may_be_hidden(TABLE)


def test_a_table_that_the_server_has_shown_is_not_hidden_until_something_runs() -> None:
    classifier = CommandClassifier()
    relay(classifier, b"\x03CALL p")
    classifier.not_hidden(TABLE)
    relay(classifier, b"\x03ACK orders WHERE id = 1")
    assert not classifier.may_be_hidden(TABLE)
    assert classifier.may_be_hidden(TableId("shop", "others"))
    relay(classifier, b"\x03CALL p")
    assert classifier.may_be_hidden(TABLE)


def test_what_drops_temporary_tables_is_believed_when_it_is_done_but_for_what_was_sent_behind_it() -> None:
    classifier = CommandClassifier()
    reset: Outcome[PendingCommand] = Outcome(RESET, None, True, 0)
    relay(classifier, b"\x03CALL p")
    relay(classifier, bytes([RESET]))
    assert classifier.may_be_hidden(TABLE)
    classifier.command_answered(reset)
    assert not classifier.may_be_hidden(TABLE)
    relay(classifier, bytes([RESET]))
    relay(classifier, b"\x03CALL p")
    classifier.command_answered(reset)
    assert classifier.may_be_hidden(TABLE)


def test_a_prepared_ack_is_certain_where_no_temporary_table_can_be() -> None:
    classifier = CommandClassifier()
    answered(classifier, PreparedSettle(TABLE, parse_settle(b"ACK FROM orders WHERE id = 1")), 3)
    assert classifier.classify(about(EXECUTE, 3))[1] == Settled(Verb.ACK, TABLE, [1], certain=True)
    relay(classifier, b"\x03CALL p")
    assert classifier.classify(about(EXECUTE, 3))[1] == Settled(Verb.ACK, TABLE, [1], certain=False)


def test_of_more_ids_than_are_read_it_is_not_remembered_which_are_under_way() -> None:
    classifier = CommandClassifier()
    classifier.logged_in(0)
    ids = b", ".join(b"%d" % number for number in range(KEYS_MAX // 2 + 1))
    answered(classifier, PreparedSettle(TABLE, parse_settle(b"ACK FROM orders WHERE id IN (" + ids + b")")), 3)
    tags = [classifier.classify(about(EXECUTE, 3))[1] for _ in range(3)]
    assert [isinstance(pending, Settled) and pending.values is not None for pending in tags] == [True, False, False]
    for pending in tags:
        assert isinstance(pending, Settled)
        classifier.command_answered(Outcome(EXECUTE, pending, True, 0))
    pending = classifier.classify(about(EXECUTE, 3))[1]
    assert isinstance(pending, Settled)
    assert pending.values is not None


class TestGatheredAcks:
    """Which executions are carried out here, and which statements end that."""

    FORM = AckForm(TABLE, fenced=False, binary=True)
    ANSWER = frame(make_ok(affected_rows=1, info=b"Rows matched: 1  Changed: 1  Warnings: 0"), 1)
    PREPARED = PreparedSettle(TABLE, parse_settle(b"ACK FROM orders WHERE id = 1"), FORM)

    def classifier(self, *, proven: bool = True) -> CommandClassifier:
        classifier = CommandClassifier()
        classifier.prepared[1] = TrackedStatement(self.PREPARED)
        if proven:
            classifier.own_acks.shown(self.FORM, self.ANSWER)
        return classifier

    def execution(self, flags: int = 0) -> Command:
        return command(bytes([EXECUTE]) + (1).to_bytes(4, "little") + bytes([flags]) + (1).to_bytes(4, "little"))

    def test_an_execution_is_carried_out_here_once_its_like_was_relayed(self) -> None:
        _, relayed = self.classifier(proven=False).classify(self.execution())
        assert isinstance(relayed, Settled)
        assert relayed.form == self.FORM
        assert self.classifier().classify(self.execution()) == (Verb.OTHER, self.PREPARED)

    def test_one_with_a_cursor_or_long_data_is_relayed(self) -> None:
        assert isinstance(self.classifier().classify(self.execution(flags=1))[1], Settled)
        classifier = self.classifier()
        classifier.prepared[1].long_data = frozenset((0,))
        assert isinstance(classifier.classify(self.execution())[1], Settled)

    @pytest.mark.parametrize(
        ("text", "alike"),
        [
            ("SET NAMES utf8mb4", True),
            ("SET SESSION time_zone = '+00:00', @x = 1", True),
            ("BEGIN", True),
            ("SELECT 1", True),
            ("ACK FROM orders WHERE id = 1", True),
            ("SET timestamp = 1", False),
            ("SET @x = 1, timestamp = 1", False),
            ("SET ROLE a", False),
            ("SET TRANSACTION READ ONLY", False),
            ("SELECT f()", False),
            ("SELECT 1 FROM v", False),
            ("INSERT INTO orders VALUES (1)", False),
            ("CREATE TEMPORARY TABLE orders (id INT)", False),
        ],
    )
    @pytest.mark.parametrize("fast", [False, True])
    def test_after_what_may_change_the_session_nothing_is(self, text: str, *, alike: bool, fast: bool) -> None:
        classifier = self.classifier()
        packet = command(make_query(text.encode(), attributes=False))
        if not fast or classifier.classify_fast(packet.data) is NOT_FAST:
            classifier.classify(packet)
        assert classifier.updates_alike == alike
        assert (classifier.classify(self.execution())[1] is self.PREPARED) == alike

    def test_a_reset_makes_the_session_like_others_again(self) -> None:
        classifier = self.classifier()
        reset, setting = command(bytes([RESET])), command(make_query(b"SET timestamp = 1", attributes=False))
        alike = []
        for commands in ((setting, reset), (reset, setting)):
            for sent in commands:
                classifier.classify(sent)
                alike.append(classifier.updates_alike)
            classifier.command_answered(Outcome(RESET, None, True, 2))
            alike.append(classifier.updates_alike)
        assert alike == [False, False, True, True, False, False]

    @pytest.mark.parametrize(
        ("text", "shows"),
        [
            ("SELECT 1", False),
            ("BEGIN", False),
            ("STREAM * FROM orders", False),
            ("ACK FROM orders WHERE id = 1", False),
            ("SELECT ROW_COUNT()", True),
            ("select found_rows()", True),
            ("SHOW WARNINGS", True),
            ("GET DIAGNOSTICS @n = ROW_COUNT", True),
            ("SELECT f()", True),
            ("CALL p()", True),
            ("SELECT * FROM v", True),
            ("ACK FROM orders WHERE id = 1; SELECT 1", True),
        ],
    )
    def test_what_may_show_the_last_statement_is_recognised(self, text: str, *, shows: bool) -> None:
        packet = command(make_query(text.encode(), attributes=False))
        assert self.classifier().shows_counts(packet) == shows
        assert self.classifier().shows_counts(packet._replace(whole=False))

    def test_executions_show_it_unless_they_are_queue_statements(self) -> None:
        classifier = self.classifier()
        assert not classifier.shows_counts(self.execution())
        classifier.prepared.clear()
        assert classifier.shows_counts(self.execution())
        assert classifier.shows_counts(command(bytes([PREPARE]) + b"SELECT 1"))
        assert not classifier.shows_counts(command(bytes([CLOSE]) + bytes(4)))

    def test_a_session_that_reads_gtids_is_not_gathered_from_any_more(self) -> None:
        classifier = self.classifier()
        assert classifier.shows_counts(command(make_query(b"SELECT @@last_gtid", attributes=False)))
        assert not classifier.updates_alike
