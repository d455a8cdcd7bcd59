"""Following a server's answers without decoding them.

The proxy must know when an answer is over, whether a transaction is open and what a statement
changed, at a fraction of the cost of relaying. The walker therefore reads the packet headers, and
the first bytes of the few packets that begin or end something. It steps over rows and column
definitions by their headers. A chunk in the middle of a large row costs the same as an empty one.
An answer with the opening and the ending of an earlier one is recognised by its bytes (`_repeats`).

The state is `_step`, the method that takes the next packet. The answer to a query takes `_head`,
then for each result set `_columns`, `_columns_eof` (not under DEPRECATE_EOF) and `_rows`; the flag
MORE_RESULTS leads back to `_head`. An outcome is reported when the packet that ends the answer is
whole. While the walker is `idle`, bytes written to the client cannot land inside a packet of the
server's.

Answers come in the order of the commands. The session announces each command with `expect`,
together with the pending command (`PendingT`) that it gets back with the outcome.

A flag or a first byte counts only in the answer to a command that can cause it. The server's status
flags are the session's: a procedure or a function that opens a cursor sets CURSOR_EXISTS in whatever
is sent meanwhile.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from engine.packets import (
    EOF,
    EOF_MAX,
    ERR,
    HEADER,
    OK,
    PAYLOAD_MAX,
    PrepareOk,
    WireError,
    err_code_at,
    lenenc_at,
    ok_numbers_at,
    prepare_ok_at,
)
from proxy.wire.commands import (
    COM_CHANGE_USER,
    COM_CLONE,
    COM_SEMI_SYNC_ACK,
    COM_STMT_EXECUTE,
    COM_STMT_PREPARE,
    DUMPS,
    MULTI_RESULT,
    SILENT,
)
from proxy.wire.handshake import MARIADB_CACHE_METADATA
from proxy.wire.mimic_adapter import Commands
from proxy.wire.packets import (
    CURSOR_EXISTS,
    DEPRECATE_EOF,
    IN_TRANS,
    LOCAL_INFILE,
    MORE_RESULTS,
    OK_HEAD_MAX,
    PS_OUT_PARAMS,
    eof_status_at,
)

PendingT = TypeVar("PendingT")

_OK_MIN: Final = 7
"""An OK packet has at least this length. A shorter packet that begins with 0xFE is an EOF."""

_EOF_LEN: Final = 5

_ALIKE_MIN: Final = 16
_ALIKE_MAX: Final = 4096
"""How many rows of one length are stepped over together, at least and at most."""

_ALIKE_FROM: Final = 4096
"""Rows of one length are looked for if more bytes than this are at hand: not in small results."""

_HEAD_MAX: Final = OK_HEAD_MAX + 1
"""This many bytes of a payload, or all of it, must be at hand before a step takes the packet."""

_KEPT_MAX: Final = 2048
"""Bytes of an opening, and of an ending, that a connection keeps: about thirty column definitions."""

_word_at = struct.Struct("<I").unpack_from
"""A packet's length and sequence number."""
_packet_at = struct.Struct("<IB").unpack_from
"""A packet's length and sequence number, and the first byte of the payload."""
_row_at = struct.Struct("<HBxB").unpack_from
"""A packet's length as its low 16 and its high 8 bits, and the first byte of the payload."""


class Outcome(NamedTuple, Generic[PendingT]):
    """How one command ended.

    `status` are the session's status flags after the command. An ERR carries none: then they are
    the flags of the last packet that did. `results` counts the result sets and OKs of the answer,
    also those before an error in a later statement of a multi-statement. `affected_rows` and
    `insert_id` are those of the last OK. `command` is None for an error that answers no command: the
    server sent it before it closed the connection.
    """

    command: int | None
    pending: PendingT | None
    ok: bool
    status: int
    affected_rows: int = 0
    insert_id: int = 0
    error_code: int = 0
    results: int = 0
    prepared: PrepareOk | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open after the command."""
        return bool(self.status & IN_TRANS)


class FileRequest(NamedTuple):
    """The server requests a file: the client's next packets are its content (`enter_infile`)."""


_FILE_REQUEST: Final = FileRequest()

Step = Callable[["ResponseWalker[PendingT]", bytes, int, int], None]


class ResponseWalker(Generic[PendingT]):
    """Follows the answers on one connection after its login.

    `capabilities` are those sent to the server, MariaDB's extended ones shifted left by 32;
    `status` are the flags of the OK that ended the login.
    """

    __slots__ = (
        "_at_head", "_columns_left", "_command", "_continued", "_cursor", "_done", "_ending", "_ending_outcome",
        "_expected", "_more_columns", "_opening", "_out_params", "_pending", "_prepared", "_results", "_skip", "_step",
        "_tail", "cache_metadata", "deprecate_eof", "status",
    )  # fmt: skip

    def __init__(self, capabilities: int, status: int) -> None:
        self.deprecate_eof = bool(capabilities & DEPRECATE_EOF)
        self.cache_metadata = bool(capabilities & MARIADB_CACHE_METADATA)
        self.status = status
        self._expected: deque[tuple[int, PendingT, bool]] = deque()
        """Commands whose answers come after the current one, as `expect` got them."""
        self._command: int | None = None
        self._cursor = False
        """Whether the command has asked for a cursor."""
        self._pending: PendingT | None = None
        self._step: Step[PendingT] = ResponseWalker._unsolicited
        self._at_head = False
        """Whether the next bytes, behind `_tail`, begin an answer, `_head` is its first step, and no cursor was
        asked for: only then may the answer be compared with earlier ones."""
        self._tail = b""
        """The beginning of a packet of which too little has come for its step."""
        self._skip = 0
        """Bytes of the current packet that are still to come."""
        self._continued = False
        """Whether the next packet continues the current payload."""
        self._done: Outcome[PendingT] | FileRequest | None = None
        """What is reported when the current packet is whole."""
        self._results = 0
        self._columns_left = 0
        """How many column definitions are still to come, if the step is `_columns`; 0 in all other steps."""
        self._more_columns = 0
        """How many column definitions follow those of a prepared statement's parameters."""
        self._out_params = False
        """Whether the rows are the OUT parameters of a procedure. Another result always follows them."""
        self._prepared: PrepareOk | None = None
        self._opening = b""
        """What an earlier answer had before its rows: its head, its column definitions, and their EOF."""
        self._ending = b""
        """The payload that an earlier answer had behind its rows, which ended it."""
        self._ending_outcome: Outcome[PendingT] = Outcome(None, None, True, 0)
        """The outcome of an answer of one result with that ending, for a command without a pending one."""

    @property
    def idle(self) -> bool:
        """Whether no answer is outstanding and the last packet is whole."""
        return self._command is None and not (self._tail or self._skip or self._continued)

    @property
    def outstanding(self) -> int:
        """How many answers are still to come."""
        return len(self._expected) + (self._command is not None)

    @property
    def in_transaction(self) -> bool:
        """Whether the last status flags from the server show an open transaction."""
        return bool(self.status & IN_TRANS)

    def expect(self, command: int, pending: PendingT, *, cursor: bool = False) -> int:
        """Announce a command that is sent to the server. Returns the new number of `outstanding` answers.

        `cursor`: the command asks for one (`params.asks_for_cursor`). Commands without an answer are
        ignored.
        """
        if command in SILENT or (command == COM_SEMI_SYNC_ACK and self._command in DUMPS):
            return self.outstanding
        if self._command is None:
            self._begin_answer(command, pending, cursor)
            return 1
        self._expected.append((command, pending, cursor))
        return len(self._expected) + 1

    def feed(self, chunk: bytes) -> Sequence[Outcome[PendingT] | FileRequest]:
        """Follow the server's next bytes. Returns what ended in them, in order.

        Raises `WireError` if they cannot stand here.
        """
        at_answer = self._at_head and not self._tail
        if at_answer and self._repeats(chunk):
            return (self._repeated_outcome(),)
        self._at_head = False
        if self._tail:
            chunk = self._tail + chunk
        at, end = self._skip, len(chunk)
        self._skip = 0
        events: list[Outcome[PendingT] | FileRequest] = []
        while at <= end:
            if not self._continued:
                if self._columns_left:
                    at = self._pass_columns(chunk, at, end)
                    if at > end:
                        break
                if self._done is not None:
                    events.append(self._done)
                    if self._done is not _FILE_REQUEST:
                        self._next_answer()
                    self._done = None
                    at_answer = False
                if self._step is ResponseWalker._rows:
                    if at_answer:
                        self._opening = b"" if self._out_params or at > _KEPT_MAX else chunk[:at]
                        at_answer = False
                    at = _pass_rows(chunk, at, end)
            payload = at + HEADER
            if payload > end:
                break
            length = _word_at(chunk, at)[0] & PAYLOAD_MAX
            if not self._continued:
                if payload + length > end and payload + _HEAD_MAX > end:
                    break
                self._at_head = False
                self._step(self, chunk, payload, payload + length)
            self._continued = length == PAYLOAD_MAX
            at = payload + length
        self._skip = at - end if at > end else 0
        self._tail = chunk[at:]
        return events

    def _begin_answer(self, command: int, pending: PendingT, cursor: bool) -> None:  # noqa: FBT001
        self._command = command
        self._pending = pending
        self._cursor = cursor
        self._step = step = self._FIRST_STEPS.get(command, ResponseWalker._head)
        self._at_head = step is ResponseWalker._head and not (self._skip or self._continued or cursor)

    def _next_answer(self) -> None:
        self._prepared = None
        self._results = 0
        if self._expected:
            self._begin_answer(*self._expected.popleft())
        else:
            self._command = self._pending = None
            self._step = ResponseWalker._unsolicited
            self._at_head = False

    def _repeated_outcome(self) -> Outcome[PendingT]:
        """The outcome of an answer that `_repeats` has recognised, which is over."""
        outcome, command, pending = self._ending_outcome, self._command, self._pending
        if pending is not None or outcome.command != command:
            _, _, _, status, affected_rows, insert_id, *_ = outcome
            outcome = Outcome(command, pending, True, status, affected_rows, insert_id, 0, 1, None)
        self.status = outcome.status
        self._next_answer()
        return outcome

    def _repeats(self, chunk: bytes) -> bool:
        """Whether `chunk` is one answer with the opening and the ending of an earlier one, and any rows between.

        The steps have followed the same opening to `_rows`, and the same ending to an outcome. They
        would do so again.
        """
        opening, ending = self._opening, self._ending
        if not (opening and ending and chunk.startswith(opening) and chunk.endswith(ending)):
            return False
        stop = len(chunk) - len(ending) - HEADER
        at = _pass_rows(chunk, len(opening), stop)
        return at == stop and _word_at(chunk, at)[0] & PAYLOAD_MAX == len(ending)

    def _pass_columns(self, chunk: bytes, at: int, end: int) -> int:
        """Step over column definitions by their headers. Returns where the first packet begins that needs a step."""
        last = end - HEADER - 1
        left = self._columns_left
        while left and at <= last:
            word, marker = _packet_at(chunk, at)
            length = word & PAYLOAD_MAX
            if marker == ERR or length == PAYLOAD_MAX:
                break
            at += HEADER + length
            left -= 1
        self._columns_left = left
        if not left:
            self._end_of_columns()
        return at

    # The steps. Each takes the bounds of a payload whose first `_HEAD_MAX` bytes are at hand.

    def _unsolicited(self, chunk: bytes, at: int, end: int) -> None:
        if at == end or chunk[at] != ERR:
            raise WireError("the server sent a packet that answers no command")
        self._fail(chunk, at, end)

    def _head(self, chunk: bytes, at: int, end: int) -> None:
        if at == end:
            raise WireError("the server began an answer with an empty packet")
        marker = chunk[at]
        if marker in (OK, EOF):
            self._end_of_result(chunk, at, end)
        elif marker == ERR:
            self._fail(chunk, at, end)
        elif marker == LOCAL_INFILE and self._command in MULTI_RESULT:
            self._done = _FILE_REQUEST
        else:
            count, after = lenenc_at(chunk, at, end)
            follow = not self.cache_metadata or after >= end or chunk[after] != 0
            self._expect_columns(count if follow else 0)

    def _columns(self, chunk: bytes, at: int, end: int) -> None:
        if at < end and chunk[at] == ERR:
            self._fail(chunk, at, end)
            return
        self._columns_left -= 1
        if not self._columns_left:
            self._end_of_columns()

    def _columns_eof(self, chunk: bytes, at: int, end: int) -> None:
        if at == end or chunk[at] < EOF:
            raise WireError("the server sent something other than EOF after column definitions")
        if chunk[at] == ERR:
            self._fail(chunk, at, end)
            return
        status = eof_status_at(chunk, at, end)
        if self._cursor and status & CURSOR_EXISTS and not status & MORE_RESULTS:
            self._end_of_result(chunk, at, at + _EOF_LEN)
        else:
            # MySQL announces here that another result follows, and not again where the rows end.
            self._out_params = self._command == COM_STMT_EXECUTE and bool(status & PS_OUT_PARAMS)
            self._after_columns()

    def _rows(self, chunk: bytes, at: int, end: int) -> None:
        marker = chunk[at] if at < end else OK
        if marker == ERR:
            self._fail(chunk, at, end)
        elif marker == EOF and end - at < (PAYLOAD_MAX if self.deprecate_eof else EOF_MAX):
            numbers = self._end_of_result(chunk, at, end)
            if not self.status & MORE_RESULTS and end - at <= _KEPT_MAX and end <= len(chunk):
                self._ending = chunk[at:end]
                self._ending_outcome = Outcome(self._command, None, True, *numbers, 0, 1, None)

    def _prepare(self, chunk: bytes, at: int, end: int) -> None:
        if at < end and chunk[at] == ERR:
            self._fail(chunk, at, end)
            return
        prepared = self._prepared = prepare_ok_at(chunk, at, end)
        first, self._more_columns = prepared.param_count, prepared.column_count
        if first:
            self._expect_columns(first)
        else:
            self._after_columns()

    def _login(self, chunk: bytes, at: int, end: int) -> None:
        if at < end and chunk[at] == OK:
            affected_rows, insert_id, self.status, _ = ok_numbers_at(chunk, at, end)
            self._succeed(affected_rows, insert_id)
        elif at < end and chunk[at] == ERR:
            self._fail(chunk, at, end)

    def _single(self, chunk: bytes, at: int, end: int) -> None:
        if at < end and chunk[at] == ERR:
            self._fail(chunk, at, end)
        else:
            self._succeed()

    def _dump(self, chunk: bytes, at: int, end: int) -> None:
        if at < end and chunk[at] == ERR:
            self._fail(chunk, at, end)
        elif at < end and chunk[at] == EOF and end - at < EOF_MAX:
            self._succeed()

    def _unread(self, chunk: bytes, at: int, end: int) -> None:
        """Another protocol has begun (COM_CLONE). Its end is not known."""

    _FIRST_STEPS: ClassVar[dict[int, Step[Any]]] = {
        int(Commands.COM_FIELD_LIST): _rows,
        int(Commands.COM_STATISTICS): _single,
        int(Commands.COM_STMT_FETCH): _rows,
        COM_CHANGE_USER: _login,
        COM_STMT_PREPARE: _prepare,
        COM_CLONE: _unread,
        **dict.fromkeys(DUMPS, _dump),
    }
    """How an answer begins, where that is not `_head`."""

    # What the steps lead to.

    def _expect_columns(self, count: int) -> None:
        self._columns_left = count
        if count:
            self._step = ResponseWalker._columns
        else:
            self._end_of_columns()

    def _end_of_columns(self) -> None:
        if not self.deprecate_eof:
            self._step = ResponseWalker._columns_eof
        else:
            self._after_columns()

    def _after_columns(self) -> None:
        if self._prepared is None:
            self._step = ResponseWalker._rows
        elif self._more_columns:
            count, self._more_columns = self._more_columns, 0
            self._expect_columns(count)
        else:
            self._succeed()

    def _end_of_result(self, chunk: bytes, at: int, end: int) -> tuple[int, int, int]:
        """Take the packet that ends a result: an OK, or a shorter EOF. Returns status, affected rows, insert id."""
        if end - at < _OK_MIN:
            affected_rows, insert_id, status = 0, 0, eof_status_at(chunk, at, end)
        else:
            affected_rows, insert_id, status, _ = ok_numbers_at(chunk, at, end)
        self._results += 1
        self.status = status
        more = status & MORE_RESULTS or self._out_params
        self._out_params = False
        if more and self._command in MULTI_RESULT:
            self._step = ResponseWalker._head
        else:
            self._succeed(affected_rows, insert_id)
        return status, affected_rows, insert_id

    def _succeed(self, affected_rows: int = 0, insert_id: int = 0) -> None:
        self._done = Outcome(
            self._command, self._pending, True, self.status, affected_rows, insert_id, 0, self._results, self._prepared
        )

    def _fail(self, chunk: bytes, at: int, end: int) -> None:
        self._columns_left = 0
        self._out_params = False
        code = err_code_at(chunk, at, end)
        self._done = Outcome(self._command, self._pending, False, self.status, error_code=code, results=self._results)


def _pass_rows(chunk: bytes, at: int, end: int) -> int:
    """Step over rows. Returns where the first packet begins that may be something else."""
    if end - at > _ALIKE_FROM:
        at = _pass_alike(chunk, at, end)
    last = end - HEADER - 1
    while at <= last:
        low, high, marker = _row_at(chunk, at)
        if marker >= EOF or high:  # Rare: rows are short. This loop is most of what a result costs.
            if marker >= EOF or low + (high << 16) == PAYLOAD_MAX:
                break
            at += high << 16
        at += HEADER + low
    return at


def _pass_alike(chunk: bytes, at: int, end: int) -> int:
    """Step over rows of one length, such as those of fixed types, together. Returns where it stopped.

    Each header gives the length of its row, so it proves where the next row begins. If all rows have
    the first one's length, a slice with that step contains one byte of every header. If rows differ in
    length, this costs one comparison for each chunk.
    """
    while True:
        length = _word_at(chunk, at)[0] & PAYLOAD_MAX if at + HEADER <= end else 0
        step = HEADER + length
        ahead = chunk[at : at + _ALIKE_MIN * step : step]
        if ahead != ahead[:1] * _ALIKE_MIN:  # Also for packets of PAYLOAD_MAX: no chunk has so many.
            return at
        stop = min(end, at + _ALIKE_MAX * step)
        markers = chunk[at + HEADER : stop : step]
        count = min(len(markers), *(_run(chunk[at + byte : stop : step]) for byte in range(3)))
        if count < _ALIKE_MIN or markers.find(EOF, 0, count) >= 0 or markers.find(ERR, 0, count) >= 0:
            return at
        at += count * step


def _run(data: bytes) -> int:
    """How many bytes at the beginning of `data` equal the first one."""
    return len(data) if data == data[:1] * len(data) else len(data) - len(data.lstrip(data[:1]))
