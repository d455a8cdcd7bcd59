"""Following a server's answers without reading them.

A relay that wants to know when an answer is over, whether a transaction is open and what a
statement changed must follow the answers' structure, and must do so for a fraction of what relaying
costs. So the walker looks at packet headers and at the first bytes of the few packets that begin or
end something; rows are stepped over, and a chunk in the middle of a large row costs the same as an
empty one.

The state is the method that takes the next packet. A query's answer goes `_head`, then per result
set `_columns`, `_columns_eof` (not under DEPRECATE_EOF) and `_rows`; the MORE_RESULTS flag leads
back to `_head`. Nothing is reported before the packet that ends an answer is whole, so that `idle`
means: what is written to the client now does not land inside a packet of the server's.

Answers come in the order of the commands, so the session announces each command with `expect`,
together with whatever it wants to remember about it (`PendingT`).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from engine.packets import (
    EOF,
    EOF_MAX,
    ERR,
    HEADER,
    OK,
    PAYLOAD_MAX,
    OkHead,
    PrepareOk,
    WireError,
    err_code_at,
    lenenc_at,
    ok_head_at,
    prepare_ok_at,
)
from proxy.wire.commands import (
    COM_CHANGE_USER,
    COM_CLONE,
    COM_SEMI_SYNC_ACK,
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
_FIRST: Final = 1 << 24
"""In a packet's first four bytes, the number that the first packet of an answer has."""
_EOF_LEN: Final = 5

_ALIKE_MIN: Final = 16
_ALIKE_MAX: Final = 4096
"""So many rows of one length are worth being taken together, and so many are taken at a time."""

_ALIKE_FROM: Final = 4096
"""They are looked for in more bytes than this, which a small result does not have."""

_HEAD_MAX: Final = OK_HEAD_MAX + 1
"""As many bytes of a packet must be at hand before it is judged."""

_KEPT_MAX: Final = 2048
"""Bytes of an answer that are kept to be recognised: some thirty definitions. Each connection may keep as many."""

_word_at = struct.Struct("<I").unpack_from
_packet_at = struct.Struct("<IB").unpack_from
_row_at = struct.Struct("<HBxB").unpack_from
"""Of a packet: its length and number; its payload's first byte too; the length in two small numbers, and that byte."""


@dataclass(slots=True)  # Not frozen: that takes twice as long to make, and there is one for each command.
class Outcome(Generic[PendingT]):
    """How one command ended.

    `status` are the session's flags after it; an ERR carries none, so then they are those of the
    last packet that did. `results` counts the result sets and OKs of the answer, which an error in
    a later statement of a multi-statement does not take back. `affected_rows` and `insert_id` are
    the last OK's. A pending of None with command None is an error that the server sent unasked, before
    it hung up.
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


_NOTHING: Final = Outcome[Any](None, None, True, 0)


class FileRequest(NamedTuple):
    """The server asks for a file: the client's next packets are its data (`enter_infile`)."""


Step = Callable[["ResponseWalker[PendingT]", bytes, int, int], None]


class ResponseWalker(Generic[PendingT]):
    """Follows the answers on one connection whose login is over.

    `capabilities` are those the server was told, MariaDB's extended ones shifted left by 32;
    `status` is what the login's OK said.
    """

    __slots__ = (
        "_before_rows",
        "_columns_left",
        "_command",
        "_continued",
        "_done",
        "_ending",
        "_expected",
        "_more_columns",
        "_out_params",
        "_pending",
        "_plain",
        "_prepared",
        "_results",
        "_skip",
        "_step",
        "_tail",
        "_within",
        "cache_metadata",
        "deprecate_eof",
        "status",
    )

    def __init__(self, capabilities: int, status: int) -> None:
        self.deprecate_eof = bool(capabilities & DEPRECATE_EOF)
        self.cache_metadata = bool(capabilities & MARIADB_CACHE_METADATA)
        self.status = status
        self._expected: deque[tuple[int, PendingT]] = deque()
        self._command: int | None = None
        self._pending: PendingT | None = None
        self._step: Step[PendingT] = ResponseWalker._unasked
        self._tail = b""
        """The beginning of a packet of which too little has come to judge it."""
        self._skip = 0
        """Bytes of the current packet that are still to come."""
        self._continued = False
        """Whether the next packet continues the current payload."""
        self._done: Outcome[PendingT] | FileRequest | None = None
        """What is to be reported when the current packet is whole."""
        self._results = 0
        self._within = False
        """Whether the next byte may be another than an answer's first, as any of the above says."""
        self._columns_left = 0
        self._more_columns = 0
        """Columns of a prepared statement, while its parameters are being passed."""
        self._out_params = False
        """Whether the rows are the OUT parameters of a procedure, which something always follows."""
        self._prepared: PrepareOk | None = None
        self._before_rows = self._ending = b""
        """What the last plain answer had before its rows, and the packet behind them."""
        self._plain: Outcome[PendingT] = _NOTHING
        """What that packet meant, of an answer without a pending."""

    @property
    def idle(self) -> bool:
        """Whether no answer is outstanding and the last packet is whole."""
        return self._command is None and not (self._tail or self._skip or self._continued)

    @property
    def outstanding(self) -> int:
        """How many answers are to come: a client that runs far ahead should not be read further."""
        return len(self._expected) + (self._command is not None)

    @property
    def in_transaction(self) -> bool:
        """Whether the last flags that the server sent show an open transaction."""
        return bool(self.status & IN_TRANS)

    def expect(self, command: int, pending: PendingT) -> int:
        """A command is on its way to the server; how many answers are `outstanding` then.

        Commands that are never answered are ignored.
        """
        if command in SILENT or (command == COM_SEMI_SYNC_ACK and self._command in DUMPS):
            return self.outstanding
        if self._command is None:
            self._begin(command, pending)
            return 1
        self._expected.append((command, pending))
        return len(self._expected) + 1

    def feed(self, chunk: bytes) -> Sequence[Outcome[PendingT] | FileRequest]:
        """What `chunk` ended, in order. Raises `WireError` when no server would send this here."""
        if self._step is ResponseWalker._head and not self._within:
            end = len(chunk)
            # An answer of the usual kind is taken at once. The steps would say the same of it.
            is_ok = end >= _OK_MIN + HEADER and chunk[HEADER] == OK and _word_at(chunk)[0] == _FIRST + end - HEADER
            outcome = self._whole_ok(chunk, end) if is_ok else self._whole_result(chunk, end)
            if outcome is not None:
                return (outcome,)
        events = self._walk(chunk)
        self._within = bool(self._skip or self._tail or self._results or self._continued)
        return events

    def _whole_ok(self, chunk: bytes, end: int) -> Outcome[PendingT] | None:
        """One packet, an OK, which is all of the answer; None where more follows."""
        affected_rows, insert_id, status, _ = ok_head_at(chunk, HEADER, end)
        if status & MORE_RESULTS or end >= PAYLOAD_MAX + HEADER:
            return None
        outcome = Outcome(self._command, self._pending, True, status, affected_rows, insert_id, results=1)
        self.status = status
        self._next()
        return outcome

    def _whole_result(self, chunk: bytes, end: int) -> Outcome[PendingT] | None:
        """One result, which the chunk is, from end to end; None for any other answer.

        Who asks the same again gets the same before the rows and behind them: it is kept, and then need not be taken
        apart.
        """
        at = len(self._before_rows)
        if not at or chunk[:at] != self._before_rows:
            at = self._end_of_head(chunk, end)
            if not at:
                return None
            self._before_rows = chunk[:at] if at <= _KEPT_MAX else b""
        length = len(self._ending)
        if self._pending is None and chunk[end - length :] == self._ending and self._plain.command == self._command:
            stop = end - length - HEADER
            at = _pass_rows(chunk, at, stop)
            if at == stop and _word_at(chunk, at)[0] & PAYLOAD_MAX == length:
                self.status = self._plain.status
                self._next()
                return self._plain
        at = _pass_rows(chunk, at, end)
        if at + HEADER >= end:
            return None
        low, high, marker = _row_at(chunk, at)
        at += HEADER
        length = low + (high << 16)
        if marker != EOF or at + length != end:
            return None
        if length >= (PAYLOAD_MAX if self.deprecate_eof else EOF_MAX):
            return None
        head = _end_head_at(chunk, at, end)
        if head.status & MORE_RESULTS:
            return None
        outcome = Outcome(
            self._command, self._pending, True, head.status, head.affected_rows, head.insert_id, results=1
        )
        if self._pending is None and length <= _KEPT_MAX:
            self._ending, self._plain = chunk[at:], outcome
        self.status = outcome.status
        self._next()
        return outcome

    def _end_of_head(self, chunk: bytes, end: int) -> int:
        """Where the rows of a result begin that the chunk begins with; 0 where that is not so plain."""
        if end <= HEADER or _word_at(chunk, 0)[0] & PAYLOAD_MAX != 1 or not 0 < chunk[HEADER] < LOCAL_INFILE:
            return 0
        last = end - HEADER - 1
        at, left = _pass_definitions(chunk, HEADER + 1, end, chunk[HEADER])
        if left or at > last:
            return 0
        if not self.deprecate_eof:
            word, marker = _packet_at(chunk, at)
            if word & PAYLOAD_MAX != _EOF_LEN or marker != EOF or at + HEADER + _EOF_LEN > last:
                return 0
            if eof_status_at(chunk, at + HEADER, end) & (CURSOR_EXISTS | PS_OUT_PARAMS):
                return 0
            at += HEADER + _EOF_LEN
        return at

    def _walk(self, chunk: bytes) -> Sequence[Outcome[PendingT] | FileRequest]:
        """Packet by packet."""
        if self._tail:
            chunk = self._tail + chunk
            self._tail = b""
        at, end = self._skip, len(chunk)
        if at > end:
            self._skip = at - end
            return ()
        events: list[Outcome[PendingT] | FileRequest] = []
        while True:
            if not self._continued:
                if self._done is not None:
                    self._report(self._done, events)
                if self._step is ResponseWalker._rows:
                    at = _pass_rows(chunk, at, end)
                elif self._step is ResponseWalker._columns:
                    at = self._pass_columns(chunk, at, end)
            payload = at + HEADER
            if payload > end:
                break
            length = _word_at(chunk, at)[0] & PAYLOAD_MAX
            if not self._continued:
                if payload + min(length, _HEAD_MAX) > end:
                    break
                self._step(self, chunk, payload, payload + length)
            self._continued = length == PAYLOAD_MAX
            at = payload + length
            if at > end:
                break
        self._skip = max(at - end, 0)
        self._tail = chunk[at:]
        return events

    def _begin(self, command: int, pending: PendingT) -> None:
        self._command = command
        self._pending = pending
        self._step = self._FIRST_STEPS.get(command, ResponseWalker._head)

    def _report(self, done: Outcome[PendingT] | FileRequest, events: list[Outcome[PendingT] | FileRequest]) -> None:
        """Hand out what the packet, now whole, meant."""
        events.append(done)
        self._done = None
        if isinstance(done, FileRequest):
            return
        self._prepared = None
        self._results = 0
        self._next()

    def _next(self) -> None:
        """Turn to the next answer."""
        if self._expected:
            self._begin(*self._expected.popleft())
        else:
            self._command = self._pending = None
            self._step = ResponseWalker._unasked

    def _pass_columns(self, chunk: bytes, at: int, end: int) -> int:
        """Step over all definitions but the last, which ends them."""
        at, left = _pass_definitions(chunk, at, end, self._columns_left - 1)
        self._columns_left = left + 1
        return at

    # The steps. Each takes the bounds of a payload whose first `_HEAD_MAX` bytes are at hand.

    def _unasked(self, chunk: bytes, at: int, end: int) -> None:
        if at == end or chunk[at] != ERR:
            raise WireError("the server sent a packet that answers no command")
        self._fail(chunk, at, end)

    def _head(self, chunk: bytes, at: int, end: int) -> None:
        if at == end:
            raise WireError("the server began an answer with an empty packet")
        marker = chunk[at]
        if marker in (OK, EOF):
            self._end_of_result(_end_head_at(chunk, at, end))
        elif marker == ERR:
            self._fail(chunk, at, end)
        elif marker == LOCAL_INFILE:
            self._done = FileRequest()
        else:
            count, after = lenenc_at(chunk, at, end)
            follow = not self.cache_metadata or after >= end or chunk[after] != 0
            self._expect_columns(count if follow else 0)

    def _expect_columns(self, count: int) -> None:
        self._columns_left = count
        if count:
            self._step = ResponseWalker._columns
        else:
            self._end_of_columns()

    def _columns(self, chunk: bytes, at: int, end: int) -> None:
        if at < end and chunk[at] == ERR:
            self._fail(chunk, at, end)
            return
        self._columns_left -= 1
        if self._columns_left == 0:
            self._end_of_columns()

    def _end_of_columns(self) -> None:
        if not self.deprecate_eof:
            self._step = ResponseWalker._columns_eof
        else:
            self._after_columns()

    def _columns_eof(self, chunk: bytes, at: int, end: int) -> None:
        if at == end or chunk[at] < EOF:
            raise WireError("the server sent something other than EOF after column definitions")
        if chunk[at] == ERR:
            self._fail(chunk, at, end)
            return
        status = eof_status_at(chunk, at, end)
        if self._command != COM_STMT_PREPARE and status & CURSOR_EXISTS:
            self._end_of_result(OkHead(0, 0, status, 0))
        else:
            # MySQL says only here that more is to come, and takes it back where the rows end.
            self._out_params = bool(status & PS_OUT_PARAMS)
            self._after_columns()

    def _after_columns(self) -> None:
        if self._prepared is None:
            self._step = ResponseWalker._rows
        elif self._more_columns:
            count, self._more_columns = self._more_columns, 0
            self._expect_columns(count)
        else:
            self._succeed(OkHead(0, 0, self.status, 0))

    def _rows(self, chunk: bytes, at: int, end: int) -> None:
        marker = chunk[at] if at < end else OK
        if marker == ERR:
            self._fail(chunk, at, end)
        elif marker == EOF and end - at < (PAYLOAD_MAX if self.deprecate_eof else EOF_MAX):
            self._end_of_result(_end_head_at(chunk, at, end))

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
            self._succeed(ok_head_at(chunk, at, end))
        elif at < end and chunk[at] == ERR:
            self._fail(chunk, at, end)

    def _single(self, chunk: bytes, at: int, end: int) -> None:
        if at < end and chunk[at] == ERR:
            self._fail(chunk, at, end)
        else:
            self._succeed(OkHead(0, 0, self.status, 0))

    def _dump(self, chunk: bytes, at: int, end: int) -> None:
        if at < end and chunk[at] == ERR:
            self._fail(chunk, at, end)
        elif at < end and chunk[at] == EOF and end - at < EOF_MAX:
            self._succeed(OkHead(0, 0, self.status, 0))

    def _unread(self, chunk: bytes, at: int, end: int) -> None:
        """Another protocol has begun (COM_CLONE); it has no end that we know of."""

    def _end_of_result(self, head: OkHead) -> None:
        self._results += 1
        more = head.status & MORE_RESULTS or self._out_params
        self._out_params = False
        if more and self._command in MULTI_RESULT:
            self.status = head.status
            self._step = ResponseWalker._head
        else:
            self._succeed(head)

    def _succeed(self, head: OkHead) -> None:
        self.status = head.status
        self._done = Outcome(
            self._command,
            self._pending,
            True,
            head.status,
            head.affected_rows,
            head.insert_id,
            0,
            self._results,
            self._prepared,
        )

    def _fail(self, chunk: bytes, at: int, end: int) -> None:
        self._out_params = False
        self._done = Outcome(
            self._command,
            self._pending,
            False,
            self.status,
            error_code=err_code_at(chunk, at, end),
            results=self._results,
        )

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


def _pass_definitions(chunk: bytes, at: int, end: int, left: int) -> tuple[int, int]:
    """Step over column definitions by their headers; where it stopped, and how many are left then."""
    last = end - HEADER - 1
    while left > 0 and at <= last:
        word, marker = _packet_at(chunk, at)
        length = word & PAYLOAD_MAX
        if marker == ERR or length == PAYLOAD_MAX:
            break
        at += HEADER + length
        left -= 1
    return at, left


def _pass_rows(chunk: bytes, at: int, end: int) -> int:
    """Step over rows; where the first packet begins that may be something else."""
    if end - at > _ALIKE_FROM:
        at = _pass_alike(chunk, at, end)
    last = end - HEADER - 1
    while at <= last:
        low, high, marker = _row_at(chunk, at)
        if marker >= EOF or high:  # Hardly ever: rows are short, and this loop is what a result costs.
            if marker >= EOF or low + (high << 16) == PAYLOAD_MAX:
                break
            at += high << 16
        at += HEADER + low
    return at


def _pass_alike(chunk: bytes, at: int, end: int) -> int:
    """Step over rows that are all of one length, as those of fixed types are, without a look at each.

    If the first is so long, and what stands behind it says the same of the second, and so on, then that is where they
    begin: slices with that step hold a byte of every header. Where rows differ it costs one comparison a chunk.
    """
    while True:
        length = _word_at(chunk, at)[0] & PAYLOAD_MAX if at + HEADER <= end else 0
        step = HEADER + length
        ahead = chunk[at : at + _ALIKE_MIN * step : step]
        if ahead != ahead[:1] * _ALIKE_MIN:  # As it is for packets of the greatest length: no chunk has so many.
            return at
        stop = min(end, at + _ALIKE_MAX * step)
        markers = chunk[at + HEADER : stop : step]
        count = min(len(markers), *(_run(chunk[at + byte : stop : step]) for byte in range(3)))
        if count < _ALIKE_MIN or markers.find(EOF, 0, count) >= 0 or markers.find(ERR, 0, count) >= 0:
            return at
        at += count * step


def _run(data: bytes) -> int:
    """How many bytes at the beginning are the same."""
    return len(data) if data == data[:1] * len(data) else len(data) - len(data.lstrip(data[:1]))


def _end_head_at(chunk: bytes, at: int, end: int) -> OkHead:
    """The numbers of what ends a result: an OK, or an EOF, which is shorter."""
    if end - at < _OK_MIN:
        return OkHead(0, 0, eof_status_at(chunk, at, end), 0)
    return ok_head_at(chunk, at, end)
