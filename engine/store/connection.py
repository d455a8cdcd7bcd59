"""One connection to the server, on which the engine reads rows as the bytes they came in.

PyMySQL connects and authenticates (engine.store.pymysql_adapter). Commands and replies are written
and read here, on its socket, because a fetch passes row packets on unread, and because decoding
thousands of keys value by value would cost more than all else that the engine does. A reply is read
in large pieces: commands go out one after the other and nothing arrives unasked, so whatever comes
belongs to the replies that are owed.

Errors leave as StoreError. One that the server reported leaves the connection usable; any other
breaks it.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.packets import EOF, EOF_MAX, ERR, OK, PAYLOAD_MAX, error_fields, frame, lenenc_at, ok_head_at, prepare_ok_at
from engine.quoting import text_literal
from engine.store.port import StoreError
from engine.store.pymysql_adapter import (
    CLIENT,
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
"""A reply is read in pieces of this size: a thousand keys, or the rows of a small fetch, at
once."""

DENIED = frozenset(
    {
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
        ER.PROCACCESS_DENIED_ERROR,
    }
)
"""The account lacks a privilege."""

LASTING = DENIED | {ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR, ER.BAD_FIELD_ERROR, ER.KEY_DOES_NOT_EXITS}
"""What does not go away until somebody changes the table or its privileges."""

_Kind = TypeVar("_Kind", bound=Connection)

_WRITING = ("INSERT", "UPDATE", "DELETE")
"""How statements begin that have triggers run."""

COM_RESET_CONNECTION = 0x1F
"""PyMySQL has no name for it."""


@dataclass(frozen=True, slots=True)
class BackendAddress:
    """Where the server is, and who the engine is there. The password is in no text that this
    makes."""

    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)
    unix_socket: str | None = None
    tls: bool | None = None
    """True: always. None: where the server offers it, except on this very machine, where it
    protects nothing and costs 60 ms a connection."""
    ca: str | None = None
    """A file with who signed the server's certificate, which is verified then, with the host name,
    and TLS is not done without. None: it is not verified."""

    @property
    def local(self) -> bool:
        """Whether nothing that is sent there leaves this machine."""
        if self.unix_socket or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long anything on a connection may take."""

    connect_s: float = 5.0
    """A server on a reachable network answers in less, and the dispatcher tries again anyway."""
    login_s: float = 10.0
    """For each answer of the server's until the login is done: a thread that opens a connection
    cannot be interrupted. A name server that does not answer makes the server itself wait for five
    seconds."""
    statement_s: int = 20
    """For the server: no statement of the engine takes a second unless a table has no index; then
    this frees the thread. The server's error says so, where a timeout of ours would say nothing."""
    read_s: float = 30.0
    """Without an answer for so long the server or the network is gone: it would have ended the
    statement before."""
    lock_wait_s: int = 1
    """Rows are skipped when locked, so only a table being altered makes us wait, and that is better
    done by trying again."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The session variables that change the bytes of a row, read or written."""

    charset: str | None = "utf8mb4"
    time_zone: str = "+00:00"
    sql_mode: str = ""


OWN_CONTEXT = SessionContext()
"""What all statements run under but those that read or write an application's values."""

MOVING = SessionContext(sql_mode="STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES")
"""For copying rows on the server: a value that does not fit is an error, 0 is an id, and dates that
another sql_mode let in are dates. In UTC, no two instants look the same."""


@dataclass(frozen=True, slots=True)
class Result:
    """One statement's answer: its rows as packets, or how many it changed."""

    rows: list[bytes]
    affected: int = 0
    warnings: int = 0


class StoreConnection:
    """A connection. One thread at a time, except for `abort`."""

    def __init__(self, address: BackendAddress, limits: ConnectionLimits) -> None:
        self.broken = False
        self.context: SessionContext | None = None
        self._address = address
        self._limits = limits
        self._wrote = False
        self._reset_due = False
        self._buffer, self._at = b"", 0
        with self._as_store_errors():
            self._connection: Connection = connect(address, limits, Connection, read_timeout=limits.login_s)
        try:
            self._socket = channel(self._connection)
        except IncompatibleVersionError as error:
            self._connection.close()
            raise StoreError(str(error), lasting=True) from error
        self._socket.settimeout(limits.read_s)
        try:
            self.run(self._settings())
        except StoreError:
            self.close()
            raise

    @property
    def peer(self) -> tuple[str, int]:
        """The address that it went to; of a server that is reached by a unix socket, the one where
        it listens too."""
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
        """Send statements in one packet and read the answer of each. The first that fails ends
        them: StoreError.

        The rows of the last one go to `keep_last` one by one, if there is one, and are not held.
        """
        reset = self._reset_due
        entering = [] if context == self.context else [_context_statement(context)]
        if reset:
            entering = [statement("names"), *self._settings(), *entering]
        command = _framed(COMMAND.COM_QUERY, ";\n".join([*entering, *statements]).encode())
        self._send(_framed(COM_RESET_CONNECTION, b"") + command if reset else command)
        if reset:
            self._finish_reset()
        self._wrote = self._wrote or any(each.startswith(_WRITING) for each in statements)
        for _ in entering:
            self.result()
        if entering:
            self.context = context
        return [*(self.result() for _ in statements[:-1]), self.result(keep_last)]

    def send(self, command: int, payload: bytes) -> None:
        """Send one command, whose reply is then owed."""
        self._send(_framed(command, payload))

    def reset_before_next_use(self) -> None:
        """Whoever uses it next finds the session as it was in the beginning. A table's triggers run
        in the session that writes to it, and may SET what it likes there, the clock too: that must
        reach no other table, and nothing that the engine believes. Costs no round trip, and nothing
        where nothing was written."""
        if self._wrote:
            self._reset_due, self.context = True, None

    def _settings(self) -> list[str]:
        return [statement("isolation"), _session_statement(self._limits)]

    def _finish_reset(self) -> None:
        try:
            self._reply()
        except StoreError:
            self.broken = True  # What follows would run in the old session.
            raise
        self._wrote = self._reset_due = False

    def _send(self, framed: bytes) -> None:
        with self._as_store_errors():
            self._socket.sendall(framed)

    def result(self, keep: Callable[[bytes], None] | None = None) -> Result:
        """The next result, its rows handed to `keep` one by one, if there is one, and not held."""
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
        """The statement id in the reply to a COM_STMT_PREPARE."""
        reply = self._reply()
        prepared = prepare_ok_at(reply, 0, len(reply))
        for definitions in (prepared.param_count, prepared.column_count):
            if definitions:
                self._skip(definitions + 1)
        return prepared.statement_id

    def stale(self) -> bool:
        """Whether something has arrived while nothing was owed: the server's farewell, or the end
        of the stream."""
        if self.broken or self._at < len(self._buffer):
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def abort(self) -> None:
        """Let the thread that waits for an answer fail at once. The one method for other
        threads."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close. Never blocks: the connection is cut first, so that PyMySQL's farewell is not
        waited for."""
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
            del packet  # It may be large, and so may the next.

    def _skip(self, packets: int) -> None:
        for _ in range(packets):
            self._packet()

    def _packet(self) -> bytes:
        """The next packet's payload, put together when it was too large for one."""
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
        """Drop what was read, and read on until there are `size` bytes."""
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
            raise StoreError(f"the connection to the server broke: {error}", code=CR.CR_SERVER_LOST) from error


def connect(address: BackendAddress, limits: ConnectionLimits, kind: type[_Kind], **more: Any) -> _Kind:
    """A bare connection of PyMySQL's or of a kind of it, with `more` of its options."""
    options: dict[str, Any] = {
        "program_name": "ackstream",
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": address.password,
        "unix_socket": address.unix_socket,
        "charset": "utf8mb4",
        "autocommit": None,
        "ssl": _tls(address) if address.tls or address.ca else None,
        "ssl_disabled": address.local and not address.ca if address.tls is None else not address.tls,
        "connect_timeout": limits.connect_s,
        "read_timeout": limits.read_s,
        "write_timeout": limits.read_s,
        "client_flag": CLIENT.MULTI_STATEMENTS,
    }
    return kind(**(options | more))


def _framed(command: int, payload: bytes) -> bytes:
    return frame(bytes([command]) + payload, 0)


def _tls(address: BackendAddress) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if address.ca is not None:
        context.load_verify_locations(address.ca)
        return context
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _session_statement(limits: ConnectionLimits) -> str:
    return statement(
        "session",
        lock_wait_s=limits.lock_wait_s,
        statement_s=limits.statement_s,
        statement_ms=limits.statement_s * 1000,
    )


def _context_statement(context: SessionContext) -> str:
    return statement(
        "context",
        charset="NULL" if context.charset is None else text_literal(context.charset),
        time_zone=text_literal(context.time_zone),
        sql_mode=text_literal(context.sql_mode),
    )


def _server_error(packet: bytes) -> StoreError:
    code, _, message = error_fields(packet)
    return StoreError(f"{message} ({code})", code=code, lasting=code in LASTING)
