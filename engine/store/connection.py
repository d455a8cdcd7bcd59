"""One connection of the engine to the server. It reads rows as raw bytes.

PyMySQL connects and authenticates (engine.store.pymysql_adapter). Commands and replies are written
and read here, on its socket: a fetch passes row packets on unread, and decoding thousands of keys
value by value would cost more than all else in the engine. A reply is read in large pieces.
Commands are sent one after the other, so whatever arrives belongs to the pending replies.

Errors are raised as StoreError. After an error that the server reported the connection is usable;
any other error breaks it.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from engine.packets import (
    EOF,
    EOF_MAX,
    ERR,
    HEADER,
    OK,
    PAYLOAD_MAX,
    Result,
    error_fields,
    frame,
    lenenc_at,
    ok_head_at,
    prepare_ok_at,
)
from engine.quoting import text_literal
from engine.store.opening import PROGRAM, BackendAddress, ConnectionLimits, connect
from engine.store.port import Origin, StoreError
from engine.store.pymysql_adapter import (
    COMMAND,
    CR,
    ER,
    Connection,
    IncompatibleVersionError,
    MySQLError,
    channel,
)
from engine.store.queries import statement

READ_BYTES = 64 * 1024
"""A reply is read in pieces of this size: a thousand keys, or the rows of a small fetch."""

DENIED = frozenset(
    {
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
        ER.PROCACCESS_DENIED_ERROR,
    }
)
"""Errors of an account without a privilege."""

LASTING = DENIED | {ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR, ER.BAD_FIELD_ERROR, ER.KEY_DOES_NOT_EXITS}
"""Errors that last until somebody changes the table or its privileges."""

_WRITING = ("INSERT", "UPDATE", "DELETE")
"""The first words of statements that may run triggers."""

_LEAVING = (*_WRITING, "SET SESSION")
"""The first words of statements behind which a session is reset: they leave something in it, or may."""

_CHANGING = (*_WRITING, "ALTER")
"""The first words of all statements of the engine that change data or tables."""

COM_RESET_CONNECTION = 0x1F
"""PyMySQL defines no name for it."""

RESET_REPLIES = 2
"""To a reset and to the settings behind it."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The session variables that change the bytes of a row, read or written."""

    charset: str | None = "utf8mb4"
    time_zone: str = "+00:00"
    sql_mode: str = ""


OWN_CONTEXT = SessionContext()
"""The context of all statements except those that read or write an application's values."""

MOVING = SessionContext(sql_mode="STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES")
"""For copying rows on the server: a value that does not fit is an error, 0 is an id, and dates that
another sql_mode accepted are accepted. In UTC, no two instants have the same text."""


@dataclass(frozen=True, slots=True)
class Begun:
    """Statements that were sent, and what comes before their results."""

    statements: int
    """Their number."""
    entered: SessionContext | None
    """The context that the session is put into first; None if it has the right one."""
    checked: bool
    """Whether it is checked first that the server is writable."""
    behind: int = 0
    """The number of replies that follow theirs, whether or not one fails."""

    @property
    def replies(self) -> int:
        """The number of replies up to theirs, if none fails."""
        return (self.entered is not None) + self.checked + self.statements


class StoreConnection:
    """A connection, for one thread at a time, except for `abort`."""

    timed_out = False
    """Whether whoever waits for a reply has given it up, and aborts the connection."""

    def __init__(
        self,
        address: BackendAddress,
        limits: ConnectionLimits,
        mark: str = "",
        *,
        checks_writable: bool = False,
        program: str = PROGRAM,
    ) -> None:
        """`mark` is put before each statement that writes. `checks_writable`: nothing is written to
        a server that is read-only, whatever the account may. `program`: the name that the
        connection's attributes give the program."""
        self.broken = False
        self.context: SessionContext | None = OWN_CONTEXT
        """None: unknown."""
        self.server: Origin | None = None
        """The server that it leads to, if it was read."""
        self._address = address
        self._limits = limits
        self._mark = mark
        self._checks_writable = checks_writable
        self._wrote = False
        self._owed = 0
        """Replies to a reset that are to be read before those to the next statements."""
        self._buffer, self._at = b"", 0
        with self._as_store_errors():
            self._connection: Connection = connect(
                address, limits, Connection, read_timeout=limits.login_s, program_name=program
            )
        try:
            self._socket = channel(self._connection)
        except IncompatibleVersionError as error:
            self._connection.close()
            raise StoreError(str(error), lasting=True) from error
        self._socket.settimeout(limits.read_s)
        try:  # The reset undoes what `init_connect` has done.
            self._send(self._reset_to(OWN_CONTEXT))
            self._read_reset(OWN_CONTEXT)
        except StoreError:
            self.close()
            raise

    @property
    def peer(self) -> tuple[str, int]:
        """The server's address.

        Through a unix socket: the address on which the server listens too.
        """
        if self._address.unix_socket:
            return self._address.host, self._address.port
        host, port = self._socket.getpeername()[:2]
        return str(host), int(port)

    def run(
        self,
        statements: Sequence[str],
        context: SessionContext = OWN_CONTEXT,
        keep_last: Callable[[bytes], None] | None = None,
    ) -> list[Result]:
        """Send statements in one packet, in this context, and return the result of each.

        With `keep_last`, the rows of the last statement are passed to it one by one, and not held.
        The first statement that fails ends them all. Raises StoreError.
        """
        return list(self.results(self.begin(statements, context), keep_last))

    def begin(self, statements: Sequence[str], context: SessionContext = OWN_CONTEXT) -> Begun:
        """Send statements in one packet, in this context. `results` reads the replies. Raises StoreError."""
        assert statements  # The reply to none would be left.
        return self._write(statements, context)

    def results(self, begun: Begun, keep_last: Callable[[bytes], None] | None = None) -> Iterator[Result]:
        """The result of each statement that `begin` has sent, as it comes. Raises StoreError at the first
        that failed: those behind it did not run."""
        self._read_before(begun)
        for behind in reversed(range(begun.statements)):
            yield self.result(None if behind else keep_last)

    def send_with_command(
        self, statements: Sequence[str], context: SessionContext, command: int, payload: bytes
    ) -> Begun:
        """Send statements that commit what they write, and in the same packet one further command, for a
        session that was reset and has this context. `read_with_command` reads the replies. Raises
        StoreError."""
        command_behind = self._reset_to(context) + _framed(command, payload)
        return replace(self._write(statements, OWN_CONTEXT, command_behind, resets=False), behind=RESET_REPLIES + 1)

    def read_with_command(
        self,
        begun: Begun,
        context: SessionContext,
        read: Callable[[], object],
        on_results: Callable[[Sequence[Result]], None] = lambda _: None,
    ) -> bool:
        """Read the replies to what `send_with_command` has sent.

        `on_results` is called with the results of the statements. Then `read` reads the reply to the
        command. Returns whether the command succeeded. Raises StoreError if a statement failed; the server
        carries out the command all the same, and its reply is read.
        """
        try:
            self._read_before(begun)
            results = [self.result() for _ in range(begun.statements)]
        except StoreError:
            if not self.broken:
                with suppress(StoreError):
                    self._read_reset(context)
                    read()
            raise
        on_results(results)
        try:
            self._read_reset(context)
            read()
        except StoreError:
            return False
        return True

    def _write(
        self, statements: Sequence[str], context: SessionContext, behind: bytes = b"", *, resets: bool = True
    ) -> Begun:
        """Send statements and the packets `behind` them. `resets`: if they end with the commit of a
        transaction that has written, or set something, the session is reset with them."""
        entering = [] if context == self.context else [_context_statement(context)]
        checks = self._checks(statements)
        command = _framed(COMMAND.COM_QUERY, ";\n".join([*entering, *checks, *self._marked(statements)]).encode())
        wrote = self._wrote or any(text.startswith(_LEAVING) for text in statements)
        reset = self._reset_to(context) if resets and wrote and statements[-1] == statement("commit") else b""
        self._send(command + behind + reset)
        self._wrote, self._owed = wrote and not reset, RESET_REPLIES if reset else 0
        return Begun(len(statements), context if entering else None, bool(checks))

    def _read_before(self, begun: Begun) -> None:
        """Read the replies to what comes before the results of statements that were sent."""
        if begun.entered is not None:
            self.result()
            self.context = begun.entered
        if begun.checked:
            self._read_check()

    def send(self, command: int, payload: bytes) -> None:
        """Send one command. The caller reads its reply."""
        self._send(_framed(command, payload))

    def reset(self) -> None:
        """Reset the session if it has written and was not reset with that. Does not wait for the reply.

        A table's triggers run in the session that writes to it and may SET any variable, even the
        clock. That must not affect other tables or the engine's own reads. Never raises.
        """
        if not self._wrote or self.broken:
            return
        self.context = self.context or OWN_CONTEXT
        with suppress(StoreError):
            self._send(self._reset_to(self.context))
            self._wrote, self._owed = False, RESET_REPLIES

    def _reset_to(self, context: SessionContext) -> bytes:
        """The packets that reset the session and put it into this context: two replies."""
        settings = session_statement(self._limits, context).encode()
        return _framed(COM_RESET_CONNECTION, b"") + _framed(COMMAND.COM_QUERY, settings)

    def _marked(self, statements: Sequence[str]) -> list[str]:
        return [self._mark + text if text.startswith(_WRITING) else text for text in statements]

    def _checks(self, statements: Sequence[str]) -> list[str]:
        """What is to run before these statements."""
        if self._checks_writable and any(text.startswith(_CHANGING) for text in statements):
            return [statement("writable")]
        return []

    def _read_check(self) -> None:
        try:
            self.result()
        except StoreError as error:
            if error.code != ER.SUBQUERY_NO_1_ROW:
                raise
            raise StoreError(
                "the server is read-only, so it is no primary any more", code=ER.OPTION_PREVENTS_STATEMENT
            ) from None

    def _finish_reset(self) -> None:
        try:
            self._reply()
        except StoreError:
            self.broken = True  # The next statements would run in the old session.
            raise
        self._wrote = False

    def _read_reset(self, context: SessionContext) -> None:
        self._finish_reset()
        self._finish_reset()
        self.context = context

    def _read_owed(self) -> None:
        while self._owed:
            self._owed -= 1
            self._finish_reset()

    def _send(self, framed: bytes) -> None:
        self._read_owed()
        with self._as_store_errors():
            self._socket.sendall(framed)

    def result(self, keep: Callable[[bytes], None] | None = None) -> Result:
        """Read the next result. With `keep`, its rows are passed to it one by one, and not held."""
        first = self._reply()
        if first[0] == OK:
            head = ok_head_at(first, 0, len(first))
            return Result([], head.affected_rows, head.warnings)
        columns, _ = lenenc_at(first, 0, len(first))
        self._skip(columns + 1)
        rows: list[bytes] = []
        self._read_rows(keep or rows.append)
        return Result(rows)

    def prepared(self) -> int:
        """Read the reply to a COM_STMT_PREPARE. Returns the statement id."""
        reply = self._reply()
        prepared = prepare_ok_at(reply, 0, len(reply))
        for definitions in (prepared.param_count, prepared.column_count):
            if definitions:
                self._skip(definitions + 1)
        return prepared.statement_id

    def ready(self) -> bool:
        """Whether a statement can be sent without waiting for anything."""
        return self._has_owed() and not self.stale()

    def _has_owed(self) -> bool:
        """Whether the replies to a reset are here. Reads what has come of them, without waiting."""
        while not self._holds(self._owed):
            if not self.receive():
                return False
        return True

    def receive(self) -> int | None:
        """Read what has come, without waiting. Returns the number of bytes; 0 if the connection is lost, and
        None if nothing has come."""
        piece = b""
        self._socket.settimeout(0)
        try:
            piece = self._socket.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):  # The latter: a part of a TLS record, or a ticket.
            return None
        except (OSError, ValueError):  # The latter: `abort` has ended TLS meanwhile.
            pass
        finally:
            self._socket.settimeout(self._limits.read_s)
        self._buffer, self._at = self.unread + piece, 0
        return len(piece)

    @property
    def unread(self) -> bytes:
        """What was received and not read as a reply."""
        return self._buffer[self._at :]

    def fileno(self) -> int:
        """The file descriptor of its socket."""
        return self._socket.fileno()

    @property
    def read_s(self) -> float:
        """How long a reply is waited for."""
        return self._limits.read_s

    def _holds(self, packets: int) -> bool:
        """Whether so many packets are in the buffer."""
        at = self._at
        for _ in range(packets):
            at += HEADER + int.from_bytes(self._buffer[at : at + 3], "little")
        return at <= len(self._buffer)

    def _readable(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def stale(self) -> bool:
        """Whether bytes have arrived that no command caused: the server has ended the
        connection. Waits for the replies to a reset."""
        try:
            self._read_owed()
        except StoreError:
            return True
        if self.broken or self._at < len(self._buffer):
            return True
        return self._readable()

    def abort(self) -> None:
        """Make the thread that waits for a reply fail at once.

        The only method for other threads.
        """
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close.

        Never blocks: the socket is shut down first, so PyMySQL's COM_QUIT is not waited for.
        """
        self.broken = True
        self.abort()
        with suppress(MySQLError):
            self._connection.close()

    def _reply(self) -> bytes:
        packet = self._packet()
        if packet[0] == ERR:
            raise _server_error(packet)
        return packet

    def _read_rows(self, keep: Callable[[bytes], None]) -> None:
        while True:
            packet = self._packet()
            if packet[0] >= EOF:
                if packet[0] == ERR:
                    raise _server_error(packet)
                if len(packet) < EOF_MAX:
                    return
            keep(packet)
            del packet  # It may be large, and so may the next one.

    def _skip(self, packets: int) -> None:
        for _ in range(packets):
            self._packet()

    def _packet(self) -> bytes:
        """The next payload, joined if it came in several packets."""
        payload = self._part()
        if len(payload) < PAYLOAD_MAX:
            return payload
        parts = [payload]
        while len(parts[-1]) == PAYLOAD_MAX:
            parts.append(self._part())
        return b"".join(parts)

    def _part(self) -> bytes:
        buffer, start = self._buffer, self._at + 4
        if len(buffer) < start:
            self._fill(4)
            buffer, start = self._buffer, 4
        end = start + (buffer[start - 4] | buffer[start - 3] << 8 | buffer[start - 2] << 16)
        if len(buffer) < end:
            self._fill(end - start + 4)
            buffer, start, end = self._buffer, 4, end - start + 4
        self._at = end
        return buffer[start:end]

    def _fill(self, size: int) -> None:
        """Drop the bytes that were read, and read until there are `size` bytes."""
        pieces = [self._buffer[self._at :]]
        self._buffer, self._at = b"", 0
        have = len(pieces[0])
        with self._as_store_errors():
            while have < size:
                pieces.append(self._socket.recv(READ_BYTES))
                if not pieces[-1]:
                    raise ConnectionResetError("the server closed the connection")
                have += len(pieces[-1])
        self._buffer = b"".join(pieces)

    @contextmanager
    def _as_store_errors(self) -> Iterator[None]:
        try:
            yield
        except MySQLError as error:
            self.broken = True
            code, text = (*error.args, "", "")[:2]
            code = code if isinstance(code, int) else 0
            raise StoreError(f"{text or error} ({code})", code=code) from error
        except OSError as error:
            self.broken = True
            timed_out = self.timed_out or isinstance(error, TimeoutError)
            text = f"the connection to the server broke: {error}"
            raise StoreError(text, code=CR.CR_SERVER_LOST, timed_out=timed_out) from error


def _framed(command: int, payload: bytes) -> bytes:
    return frame(bytes([command]) + payload, 0)


def session_statement(limits: ConnectionLimits, context: SessionContext = OWN_CONTEXT) -> str:
    """The statement that puts a new session, or one that was reset, into the engine's settings."""
    return statement(
        "session",
        lock_wait_s=limits.lock_wait_s,
        statement_s=limits.statement_s,
        statement_ms=limits.statement_s * 1000,
        **_context_words(context),
    )


def _context_statement(context: SessionContext) -> str:
    return statement("context", **_context_words(context))


def _context_words(context: SessionContext) -> dict[str, str]:
    return {
        "charset": "NULL" if context.charset is None else text_literal(context.charset),
        "time_zone": text_literal(context.time_zone),
        "sql_mode": text_literal(context.sql_mode),
    }


def _server_error(packet: bytes) -> StoreError:
    code, _, message = error_fields(packet)
    return StoreError(f"{message} ({code})", code=code, lasting=code in LASTING)
