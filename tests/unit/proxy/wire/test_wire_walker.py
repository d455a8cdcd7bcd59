"""What a server's answers look like, and what the walker makes of them."""

from __future__ import annotations

import pytest
from mysql_mimic.types import Commands

from engine.packets import PAYLOAD_MAX, PrepareOk, WireError, frame
from proxy.wire.commands import COM_CLONE, COM_SEMI_SYNC_ACK
from proxy.wire.framing import frame_rows
from proxy.wire.handshake import MARIADB_CACHE_METADATA
from proxy.wire.packets import (
    AUTOCOMMIT,
    CURSOR_EXISTS,
    DEPRECATE_EOF,
    IN_TRANS,
    MORE_RESULTS,
    PS_OUT_PARAMS,
    make_end,
    make_eof,
    make_err,
    make_ok,
    make_prepare_ok,
)
from proxy.wire.walker import FileRequest, Outcome, ResponseWalker
from tests.support import wire

BOTH_ENDINGS = pytest.mark.parametrize("capabilities", [0, DEPRECATE_EOF], ids=["eof", "deprecate-eof"])


def walker(capabilities: int = 0) -> ResponseWalker[str]:
    return ResponseWalker(capabilities, AUTOCOMMIT)


def only(
    machine: ResponseWalker[str], command: int, answer: bytes, pending: str = "it", *, cursor: bool = False
) -> Outcome[str]:
    """The one outcome of `answer`, which must not be over before its last byte."""
    machine.expect(command, pending, cursor=cursor)
    early, idle_early = machine.feed(answer[:-1]), machine.idle
    (outcome,) = machine.feed(answer[-1:])
    assert (list(early), idle_early, machine.idle) == ([], False, True)
    assert isinstance(outcome, Outcome)
    assert (outcome.command, outcome.pending) == (command, pending)
    return outcome


def test_an_ok_ends_a_query_with_its_numbers() -> None:
    answer = frame(make_ok(affected_rows=70_000, insert_id=2**40, status=IN_TRANS, info=b"Rows matched: 1"), 1)
    outcome = only(walker(), wire.QUERY, answer)
    assert outcome.ok
    assert (outcome.affected_rows, outcome.insert_id) == (70_000, 2**40)
    assert outcome.in_transaction


def test_an_error_keeps_the_flags_of_the_packet_before_it() -> None:
    machine = walker()
    only(machine, wire.QUERY, wire.ok(IN_TRANS))
    outcome = only(machine, wire.QUERY, wire.err(1213))
    assert not outcome.ok
    assert outcome.error_code == 1213
    assert outcome.in_transaction
    assert machine.in_transaction


@BOTH_ENDINGS
@pytest.mark.parametrize("rows", [0, 1, 300])
@pytest.mark.parametrize("columns", [1, 2, 40])
def test_a_result_set_ends_with_its_last_packet(capabilities: int, rows: int, columns: int) -> None:
    answer = wire.result([b"\x01x\xfb"] * rows, capabilities, columns=columns, status=IN_TRANS)
    outcome = only(walker(capabilities), wire.QUERY, answer)
    assert outcome.ok
    assert outcome.in_transaction
    assert outcome.results == 1


def test_a_row_of_sixteen_megabytes_looks_like_an_eof_and_is_none() -> None:
    # A text row whose first value has an eight-byte length begins with 0xFE, like an EOF.
    row = b"\xfe" + PAYLOAD_MAX.to_bytes(8, "little") + bytes(PAYLOAD_MAX)
    for capabilities in (0, DEPRECATE_EOF):
        outcome = only(walker(capabilities), wire.QUERY, wire.result([row, b"\x00"], capabilities))
        assert outcome.ok


def test_a_payload_of_exactly_the_greatest_length_is_closed_by_an_empty_packet() -> None:
    row = b"\xfd" + (PAYLOAD_MAX - 4).to_bytes(3, "little") + bytes(PAYLOAD_MAX - 4)
    answer = wire.result([row])
    assert b"\0" * 8 + b"\0\0\0\x05" in answer
    assert only(walker(), wire.QUERY, answer).ok


def test_a_chunk_inside_a_large_row_keeps_nothing() -> None:
    machine = walker()
    machine.expect(wire.QUERY, "it")
    answer = wire.result([bytes(1_000_000)])
    machine.feed(answer[:1000])
    machine.feed(answer[1000:900_000])
    assert not machine.idle
    (outcome,) = machine.feed(answer[900_000:])
    assert isinstance(outcome, Outcome)


ALIKE = [b"\x04" + number.to_bytes(4, "little") + bytes([1]) * 5 for number in range(3000)]
OTHERS = [b"\x01" * (1 + number % 7) for number in range(3000)]


LENGTHS = (1, 250, 0xFF, 0x100, 0xFFFE, 0xFFFF, 0x10000, 0x10001, 70_000, 0xFEFFFF, 0xFF0000, PAYLOAD_MAX - 1)
ALL_LENGTHS = [bytes([number]) * length for number, length in enumerate(LENGTHS)]


@BOTH_ENDINGS
@pytest.mark.parametrize(
    "rows",
    [ALIKE, ALIKE + OTHERS, OTHERS + ALIKE, [b"\x00"] * 9000, [*ALIKE[:700], b"\x01" * 300_000, *ALIKE], ALL_LENGTHS],
    ids=["alike", "then others", "after others", "short", "around a long one", "all lengths"],
)
@pytest.mark.parametrize("piece", [1 << 20, 65_536, 10_000, 4_097])
def test_rows_of_one_length_are_taken_together_and_end_where_they_end(
    capabilities: int, rows: list[bytes], piece: int
) -> None:
    answer = wire.result(rows, capabilities, status=IN_TRANS) + wire.ok(affected_rows=7)
    machine = walker(capabilities)
    machine.expect(wire.QUERY, "rows")
    machine.expect(wire.QUERY, "ok")
    outcomes = [outcome for at in range(0, len(answer), piece) for outcome in machine.feed(answer[at : at + piece])]
    assert [(outcome.pending, outcome.affected_rows) for outcome in outcomes if isinstance(outcome, Outcome)] == [
        ("rows", 0),
        ("ok", 7),
    ]
    assert machine.idle


@pytest.mark.parametrize("longer", [1, 1 << 8, 1 << 16], ids=["a little", "more", "much"])
def test_a_row_that_looks_like_many_is_one(longer: int) -> None:
    row = b"\x01" * 50
    # Where the next rows would begin if this one were as long, its content has their headers, up to an end and an OK.
    trap = frame_rows([row] * 20, 0)[0] + wire.result([]) + wire.ok()
    length = len(row) + longer
    long_row = (row + trap * (1 + length // len(trap)))[:length]
    assert len(long_row) & 0xFF == len(row) or longer == 1
    answer = wire.result([*[row] * 200, long_row, *[row] * 200])
    assert only(walker(), wire.QUERY, answer).results == 1


@BOTH_ENDINGS
def test_an_error_as_long_as_the_rows_before_it_ends_them(capabilities: int) -> None:
    packets = [b"\x01", *wire.column_packets(1, capabilities), *ALIKE, make_err(1317, "70100", "x")]
    assert len(packets[-1]) == len(ALIKE[0])
    outcome = only(walker(capabilities), wire.QUERY, frame_rows(packets, 1)[0])
    assert outcome.error_code == 1317


@BOTH_ENDINGS
def test_an_error_among_rows_ends_the_answer(capabilities: int) -> None:
    packets = [b"\x01", *wire.column_packets(1, capabilities), b"\x01x", make_err(1317, "70100", "")]
    outcome = only(walker(capabilities), wire.QUERY, frame_rows(packets, 1)[0])
    assert outcome.error_code == 1317


@pytest.mark.parametrize("kept", [0, 1, 2, 3], ids=["first column", "second", "third", "the eof"])
@pytest.mark.parametrize("command", [wire.QUERY, wire.PREPARE], ids=["query", "prepare"])
def test_an_error_among_column_definitions_ends_the_answer(command: int, kept: int) -> None:
    first = make_prepare_ok(PrepareOk(1, 3, 0)) if command == wire.PREPARE else b"\x03"
    packets = [first, *wire.column_packets(3, 0)][: 1 + kept]
    machine = walker()
    outcome = only(machine, command, frame_rows([*packets, make_err(1317, "70100", "")], 1)[0])
    assert outcome.error_code == 1317
    assert only(machine, wire.QUERY, wire.ok(affected_rows=3)).affected_rows == 3
    assert only(machine, wire.QUERY, wire.result([b"\x01x"])).results == 1


@BOTH_ENDINGS
def test_many_results_are_one_answer(capabilities: int) -> None:
    answer = (
        wire.ok(MORE_RESULTS, affected_rows=5)
        + wire.result([b"\x01x"], capabilities, status=MORE_RESULTS)
        + wire.ok(affected_rows=2)
    )
    outcome = only(walker(capabilities), wire.QUERY, answer)
    assert (outcome.results, outcome.affected_rows) == (3, 2)


@BOTH_ENDINGS
def test_more_results_may_come_one_chunk_each(capabilities: int) -> None:
    machine = walker(capabilities)
    machine.expect(wire.QUERY, "it")
    assert machine.feed(wire.result([b"\x01x"], capabilities, status=MORE_RESULTS)) == []
    assert machine.feed(wire.result([b"\x01y"], capabilities, status=MORE_RESULTS)) == []
    (outcome,) = machine.feed(wire.result([b"\x01z"], capabilities))
    assert isinstance(outcome, Outcome)
    assert outcome.results == 3


def test_a_result_always_follows_out_parameters() -> None:
    # MySQL sets MORE_RESULTS before the rows of the OUT parameters and not after them.
    columns = wire.column_packets(1, 0, status=MORE_RESULTS | PS_OUT_PARAMS)
    parameters = frame_rows([b"\x01", *columns, b"\0\0\x05\0\0\0", make_eof()], 1)[0]
    machine = walker()
    assert only(machine, wire.EXECUTE, parameters + wire.ok(affected_rows=1)).results == 2
    machine.expect(wire.EXECUTE, "it")
    assert machine.feed(parameters) == []
    assert len(machine.feed(wire.ok(affected_rows=1))) == 1
    assert only(machine, wire.EXECUTE, wire.result([b"\0\0x"])).results == 1


def test_an_error_in_a_later_statement_does_not_hide_the_earlier_results() -> None:
    outcome = only(walker(), wire.QUERY, wire.ok(MORE_RESULTS | IN_TRANS) + wire.err(1064))
    assert not outcome.ok
    assert outcome.results == 1
    assert outcome.in_transaction


def test_results_are_counted_anew_for_each_command() -> None:
    machine = walker()
    only(machine, wire.QUERY, wire.ok(MORE_RESULTS) + wire.ok())
    assert only(machine, wire.QUERY, wire.err()).results == 0


def test_the_server_asks_for_a_file_and_answers_when_it_has_it() -> None:
    machine = walker()
    machine.expect(wire.QUERY, "load")
    assert machine.feed(frame(b"\xfb/etc/hosts", 1)) == [FileRequest()]
    assert not machine.idle
    (outcome,) = machine.feed(frame(make_ok(affected_rows=9), 4))
    assert isinstance(outcome, Outcome)
    assert outcome.affected_rows == 9


@BOTH_ENDINGS
@pytest.mark.parametrize("params", [0, 1, 3])
@pytest.mark.parametrize("columns", [0, 1, 3])
def test_a_prepared_statement_ends_with_its_last_definition(capabilities: int, params: int, columns: int) -> None:
    answer = wire.prepared(params, columns, capabilities)
    outcome = only(walker(capabilities), wire.PREPARE, answer)
    assert outcome.prepared == PrepareOk(7, columns, params)


def test_a_prepared_statement_is_forgotten_with_the_next_command() -> None:
    machine = walker()
    only(machine, wire.PREPARE, wire.prepared(1, 1))
    assert only(machine, wire.PING, wire.ok()).prepared is None


def test_a_statement_that_cannot_be_prepared_is_an_error() -> None:
    outcome = only(walker(), wire.PREPARE, wire.err(1146))
    assert (outcome.ok, outcome.error_code, outcome.prepared) == (False, 1146, None)


def test_the_status_in_a_prepare_is_not_an_end() -> None:
    machine = walker()
    packets = [
        make_prepare_ok(PrepareOk(7, 1, 1)),
        *wire.column_packets(1, 0, status=CURSOR_EXISTS),
        *wire.column_packets(1, 0, status=CURSOR_EXISTS),
    ]
    assert only(machine, wire.PREPARE, frame_rows(packets, 1)[0]).ok


def test_an_execute_that_opens_a_cursor_has_no_rows_and_a_fetch_has_no_columns() -> None:
    machine = walker()
    opened = frame_rows([b"\x01", *wire.column_packets(1, 0, status=CURSOR_EXISTS)], 1)[0]
    assert only(machine, wire.EXECUTE, opened, cursor=True).status & CURSOR_EXISTS
    fetched = frame_rows([b"\0\0x", b"\0\0y", make_eof(0x80)], 1)[0]
    assert only(machine, int(Commands.COM_STMT_FETCH), fetched).status == 0x80
    for _ in range(2):
        machine.expect(wire.EXECUTE, "execute", cursor=True)
        machine.expect(int(Commands.COM_STMT_FETCH), "fetch")
        assert len(machine.feed(opened + fetched)) == 2


@pytest.mark.parametrize("command", [wire.QUERY, wire.EXECUTE], ids=["text", "binary"])
@pytest.mark.parametrize(
    ("status", "cursor"),
    [(CURSOR_EXISTS, False), (CURSOR_EXISTS | MORE_RESULTS, False), (CURSOR_EXISTS | MORE_RESULTS, True)],
    ids=["of a function", "of a procedure", "of a procedure, and asked for"],
)
def test_a_cursor_that_the_statement_opened_for_itself_ends_no_answer(
    command: int, status: int, *, cursor: bool
) -> None:
    rows = [b"\0\0x", make_eof(status)]
    answer = frame_rows([b"\x01", *wire.column_packets(1, 0, status=status), *rows], 1)[0]
    if status & MORE_RESULTS:
        answer += wire.ok()
    machine = walker()
    for _ in range(2):
        assert only(machine, command, answer, cursor=cursor).ok
    # The same opening is all of the answer when the client has asked for a cursor.
    opened = frame_rows([b"\x01", *wire.column_packets(1, 0, status=CURSOR_EXISTS)], 1)[0]
    fetched = frame_rows([b"\0\0x", make_eof(status)], 1)[0]
    machine.expect(wire.EXECUTE, "execute", cursor=True)
    machine.expect(int(Commands.COM_STMT_FETCH), "fetch")
    assert len(machine.feed(opened + fetched)) == 2


@pytest.mark.parametrize("command", [wire.PING, int(Commands.COM_INIT_DB), int(Commands.COM_STMT_RESET)])
def test_only_a_statement_makes_the_server_ask_for_a_file(command: int) -> None:
    machine = walker()
    machine.expect(command, "it")
    with pytest.raises(WireError):
        machine.feed(frame(b"\xfb/etc/hosts", 1))


@pytest.mark.parametrize("command", [wire.PING, int(Commands.COM_STMT_FETCH), int(Commands.COM_FIELD_LIST)])
def test_only_a_statement_has_more_than_one_result(command: int) -> None:
    assert only(walker(), command, frame(make_eof(MORE_RESULTS), 1)).ok


def test_only_an_execution_returns_parameters() -> None:
    answer = frame_rows([b"\x01", *wire.column_packets(1, 0, status=PS_OUT_PARAMS), b"\x01x", make_eof()], 1)[0]
    assert only(walker(), wire.QUERY, answer).results == 1


def test_a_cursor_opens_with_a_single_ending_under_deprecate_eof() -> None:
    opened = frame_rows([b"\x01", *wire.column_packets(1, DEPRECATE_EOF), make_end(DEPRECATE_EOF, CURSOR_EXISTS)], 1)[0]
    assert only(walker(DEPRECATE_EOF), wire.EXECUTE, opened, cursor=True).status & CURSOR_EXISTS


@BOTH_ENDINGS
@pytest.mark.parametrize("cut", range(1, 30))
def test_an_opening_that_came_in_pieces_is_not_taken_for_a_whole_one(capabilities: int, cut: int) -> None:
    machine = walker(capabilities)
    answers = [wire.result([b"\x01" * 40] * number, capabilities) for number in (1, 2, 1)]
    machine.expect(wire.QUERY, "in pieces")
    assert [*machine.feed(answers[0][:cut]), *machine.feed(answers[0][cut:])]
    for answer in answers:
        machine.expect(wire.QUERY, "whole")
        assert len(machine.feed(answer)) == 1
    assert machine.idle


@BOTH_ENDINGS
def test_an_empty_packet_is_no_ending_that_was_seen_before(capabilities: int) -> None:
    answer = wire.result([b"\x01x"], capabilities)
    machine = walker(capabilities)
    machine.expect(wire.QUERY, "in pieces")
    machine.feed(answer[:-3])
    assert machine.feed(answer[-3:])
    machine.expect(wire.QUERY, "goes on")
    ending = make_end(capabilities)
    assert not machine.feed(answer[: -len(ending) - 4] + frame(b"", 5))
    assert len(machine.feed(frame(ending, 6))) == 1


def test_the_ending_of_the_last_answer_may_be_how_a_longer_one_begins() -> None:
    machine: ResponseWalker[str | None] = ResponseWalker(DEPRECATE_EOF, AUTOCOMMIT)
    rows = [b"\x01x"]
    plain = wire.result(rows, DEPRECATE_EOF)
    machine.expect(wire.QUERY, None)
    machine.feed(plain)
    ending = make_end(DEPRECATE_EOF)
    assert plain.endswith(ending)
    longer = plain[: -len(ending) - 4] + frame(ending + b"\x0athe session", plain[-len(ending) - 1])
    cut = len(plain)
    assert longer[:cut].endswith(ending)
    machine.expect(wire.QUERY, None)
    assert not machine.feed(longer[:cut])
    assert len(machine.feed(longer[cut:])) == 1


@pytest.mark.parametrize("begin", [make_ok(info=b"x"), make_ok(info=b"x" * 40), make_err(1064, "42000", "x" * 40)])
def test_what_looks_like_an_answer_inside_a_packet_is_none(begin: bytes) -> None:
    inner = wire.ok(IN_TRANS)
    answer = frame(begin + inner, 1)
    cut = len(answer) - len(inner)
    machine = walker()
    machine.expect(wire.QUERY, "it")
    assert not machine.feed(answer[:cut])
    (outcome,) = machine.feed(answer[cut:])
    assert isinstance(outcome, Outcome)
    assert not outcome.in_transaction


@pytest.mark.parametrize("begin", [make_ok(), make_err(1064, "42000", "no")])
def test_what_looks_like_an_answer_in_the_packet_that_continues_one_is_none(begin: bytes) -> None:
    machine = walker()
    machine.expect(wire.QUERY, "it")
    assert not machine.feed(frame(begin.ljust(PAYLOAD_MAX, b"x"), 1)[: 4 + PAYLOAD_MAX])
    (outcome,) = machine.feed(wire.ok(IN_TRANS))
    assert isinstance(outcome, Outcome)
    assert not outcome.in_transaction


def test_the_ending_of_the_last_answer_may_be_how_a_row_ends() -> None:
    machine: ResponseWalker[str | None] = ResponseWalker(DEPRECATE_EOF, AUTOCOMMIT)
    plain = wire.result([b"\x01x"], DEPRECATE_EOF)
    machine.expect(wire.QUERY, None)
    machine.feed(plain)
    row = plain[-len(make_end(DEPRECATE_EOF)) - 4 :]
    answer = wire.result([bytes([len(row)]) + row], DEPRECATE_EOF)
    cut = answer.index(row) + len(row)
    machine.expect(wire.QUERY, None)
    assert not machine.feed(answer[:cut])
    assert len(machine.feed(answer[cut:])) == 1


@BOTH_ENDINGS
@pytest.mark.parametrize("command", [Commands.COM_SET_OPTION, Commands.COM_DEBUG])
def test_some_commands_are_answered_by_an_eof(capabilities: int, command: int) -> None:
    assert only(walker(capabilities), int(command), frame(make_end(capabilities, 2), 1)).ok


def test_an_eof_with_session_changes_is_still_an_end() -> None:
    state = make_ok(status=2, header=0xFE, info=b"x" * 20)
    assert only(walker(DEPRECATE_EOF), int(Commands.COM_SET_OPTION), frame(state, 1)).ok


@BOTH_ENDINGS
def test_a_field_list_has_no_count(capabilities: int) -> None:
    packets = [*wire.column_packets(2, DEPRECATE_EOF), make_end(capabilities)]
    command = int(Commands.COM_FIELD_LIST)
    assert only(walker(capabilities), command, frame_rows(packets, 1)[0]).ok


def test_statistics_are_one_packet_of_text() -> None:
    assert only(walker(), int(Commands.COM_STATISTICS), frame(b"Uptime: 12  Threads: 1", 1)).ok


def test_a_change_of_user_ends_with_its_login_dialogue() -> None:
    switch = frame(b"\xfecaching_sha2_password\0" + b"s" * 20 + b"\0", 1)
    more = frame(b"\x01\x03", 3)
    answer = switch + more + frame(make_ok(status=AUTOCOMMIT), 4)
    assert only(walker(), int(Commands.COM_CHANGE_USER), answer).ok
    assert only(walker(), int(Commands.COM_CHANGE_USER), switch + wire.err(1045)).error_code == 1045


def test_a_binlog_dump_goes_on_until_an_error() -> None:
    machine = walker()
    machine.expect(int(Commands.COM_BINLOG_DUMP), "dump")
    assert not machine.feed(frame(b"\0" + b"event" * 10, 1) * 100)
    machine.expect(COM_SEMI_SYNC_ACK, "ack")
    (outcome,) = machine.feed(wire.err(1236))
    assert isinstance(outcome, Outcome)
    assert outcome.error_code == 1236
    assert machine.idle


def test_a_binlog_dump_that_does_not_block_ends_with_an_eof() -> None:
    answer = frame(b"\0event", 1) + frame(make_eof(), 2)
    assert only(walker(), int(Commands.COM_BINLOG_DUMP_GTID), answer).ok


def test_nothing_is_read_after_a_clone_has_begun() -> None:
    machine = walker()
    machine.expect(COM_CLONE, "clone")
    assert not machine.feed(wire.ok() + wire.err() + b"\x05\0\0\0abcde")
    assert not machine.idle


@pytest.mark.parametrize("command", [Commands.COM_QUIT, Commands.COM_STMT_CLOSE, Commands.COM_STMT_SEND_LONG_DATA])
def test_silent_commands_are_not_waited_for(command: int) -> None:
    machine = walker()
    machine.expect(int(command), "silent")
    assert machine.idle


def test_answers_are_told_apart_when_the_client_runs_ahead() -> None:
    machine = walker()
    machine.expect(wire.PREPARE, "a")
    machine.expect(int(Commands.COM_STMT_CLOSE), "b")
    machine.expect(wire.EXECUTE, "c")
    machine.expect(wire.PING, "d")
    assert machine.outstanding == 3
    events = machine.feed(wire.prepared(1, 1) + wire.result([b"\0\0x"]) + wire.ok())
    assert [(e.pending, e.ok) for e in events if isinstance(e, Outcome)] == [
        ("a", True),
        ("c", True),
        ("d", True),
    ]
    assert machine.idle


def test_an_error_out_of_the_blue_belongs_to_no_command() -> None:
    machine = walker()
    (outcome,) = machine.feed(frame(make_err(4031, "HY000", "timeout"), 0))
    assert isinstance(outcome, Outcome)
    assert (outcome.command, outcome.pending, outcome.error_code) == (None, None, 4031)
    assert machine.idle


def test_half_an_error_out_of_the_blue_is_no_place_to_write() -> None:
    machine = walker()
    error = frame(make_err(4031, "HY000", "timeout" * 10), 0)
    assert not machine.feed(error[:2])
    beginning = machine.idle
    assert not machine.feed(error[2:50])
    middle = machine.idle
    assert machine.feed(error[50:])
    assert (beginning, middle, machine.idle) == (False, False, True)


@pytest.mark.parametrize("packet", [wire.ok(), frame(b"", 0), frame(b"\x01", 1)])
def test_any_other_packet_out_of_the_blue_is_refused(packet: bytes) -> None:
    with pytest.raises(WireError, match="answers no command"):
        walker().feed(packet)


def test_mariadb_may_leave_out_column_definitions_that_the_client_has() -> None:
    capabilities = MARIADB_CACHE_METADATA | DEPRECATE_EOF
    cached = frame_rows([b"\x02\x00", b"\0\0x", make_end(capabilities)], 1)[0]
    full = frame_rows([b"\x02\x01", *wire.column_packets(2, capabilities), b"\0\0x", make_end(capabilities)], 1)[0]
    machine = walker(capabilities)
    assert only(machine, wire.EXECUTE, cached).results == 1
    assert only(machine, wire.EXECUTE, full).results == 1


def test_left_out_column_definitions_are_followed_by_their_eof() -> None:
    cached = frame_rows([b"\x02\x00", make_eof(), b"\0\0x", make_eof()], 1)[0]
    assert only(walker(MARIADB_CACHE_METADATA), wire.EXECUTE, cached).results == 1


@pytest.mark.parametrize(
    "answer",
    [
        frame(b"", 1),
        frame(b"\x00", 1),
        frame(b"\x00\xfc\x01", 1),
        frame(b"\x00\x00\x00\x02", 1),
        frame(b"\xff\x01", 1),
        frame(b"\xfe\x00", 1),
        frame(b"\xfc\x01", 1),
        frame(b"\x01", 1) + frame(b"\x03def", 2) + frame(b"\x05hello", 3),
    ],
    ids=["empty", "ok", "ok rows", "ok status", "err", "eof", "count", "no eof after columns"],
)
def test_a_packet_that_lies_about_its_fields_is_refused(answer: bytes) -> None:
    machine = walker()
    machine.expect(wire.QUERY, "it")
    with pytest.raises(WireError):
        machine.feed(answer + wire.ok())
