"""A small asyncio client, for accounts without a password.

Drivers cost more CPU for a row than the proxy does. This client parses rows of a stream as they
come and gives them out in batches. With `prepares`, it prepares the proxy's statements, with their
integers as parameters, and reads binary rows.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

Row = list[bytes | None]

FLAGS = 0x00000001 | 0x00000008 | 0x00000200 | 0x00002000 | 0x00008000 | 0x00080000
"""Long password, database, protocol 4.1, transactions, secure connection, plugins."""
PATIENCE_S = 20.0
OK, ERR, EOF, SWITCH = 0, 0xFF, 0xFE, 0xFE
UTF8MB4 = 45
QUERY, PREPARE, EXECUTE, CLOSE = b"\x03", b"\x16", b"\x17", b"\x19"
INTEGERS = {1: "<b", 2: "<h", 3: "<i", 8: "<q"}
"""Of the types in a binary row, those that are integers; the others here are length-encoded strings."""
PREPARED = ("STREAM ", "ACK ", "NACK ", "EXTEND ")
"""How the statements begin that a client prepares."""
PREPARED_MAX = 20
"""Statements that a connection keeps prepared."""
INTEGER = re.compile(r"(?<![\w.'])\d+(?![\w.'])")


class LostError(Exception):
    """The connection ended, or did not answer in time: the outcome of what was under way is unknown."""


class ServerError(Exception):
    """An ERR packet."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{number} {text}")
        self.number, self.text = number, text


class Result(NamedTuple):
    """The end of an answer: affected rows of an OK, rows of a result set."""

    affected: int
    rows: list[Row]


class Client(asyncio.Protocol):
    """One connection. One command at a time, by one task at a time."""

    def __init__(self, *, prepares: bool = False) -> None:
        self._prepares = prepares
        self._prepared: dict[str, bytes] = {}
        self._row: Callable[[bytes], Row] = _row
        self._buffer = bytearray()
        self._packets: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._lost: str | None = None

    @classmethod
    async def connect(
        cls, host: str, port: int, database: str, *, patience_s: float = PATIENCE_S, prepares: bool = False
    ) -> Client:
        """A logged in connection. Raises LostError, ServerError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(patience_s):
                _, client = await loop.create_connection(partial(cls, prepares=prepares), host, port)
                try:
                    await client._log_in(database)
                except BaseException:
                    client.abort()
                    raise
        except (OSError, TimeoutError) as failure:
            raise LostError(str(failure)) from failure
        return client

    async def query(self, sql: str, *, patience_s: float = PATIENCE_S) -> Result:
        """Run a statement and read its whole answer. Raises LostError, ServerError."""
        rows: list[Row] = []
        affected = 0
        try:
            async with asyncio.timeout(patience_s):
                await self._ask(sql)
                first = await self._packet()
                if first[0] == ERR:
                    raise _error(first)
                if first[0] == OK:
                    affected = _integer(first, 1)[0]
                else:
                    await self._columns()
                    while (packet := await self._packet())[0] != EOF or len(packet) > 8:
                        if packet[0] == ERR:
                            raise _error(packet)
                        rows.append(self._row(packet))
        except TimeoutError:
            self.abort()
            raise LostError("no answer in time") from None
        return Result(affected, rows)

    async def stream(self, sql: str, *, patience_s: float) -> AsyncIterator[list[Row]]:
        """Run a STREAM; the rows, as many at a time as have arrived; an empty list while none comes for a second.

        Ends with the result. Raises LostError, ServerError. `patience_s`: how long its head may take.
        """
        try:
            async with asyncio.timeout(patience_s):
                await self._ask(sql)
                first = await self._packet()
                if first[0] == ERR:
                    raise _error(first)
                await self._columns()
        except TimeoutError:
            self.abort()
            raise LostError("no answer in time") from None
        while True:
            if not self._packets:
                try:
                    async with asyncio.timeout(1):
                        await self._wait()
                except TimeoutError:
                    yield []
                    continue
            rows: list[Row] = []
            while self._packets:
                packet = self._packets.popleft()
                if (packet[0] == EOF and len(packet) < 9) or packet[0] == ERR:
                    if rows:
                        yield rows
                    if packet[0] == ERR:
                        raise _error(packet)
                    return
                rows.append(self._row(packet))
            yield rows

    def pause_reading(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()

    def abort(self) -> None:
        """End it without a word."""
        if self._transport is not None:
            self._transport.abort()
        self._lose("ended here")

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass.

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at, end = 0, len(buffer)
        while end - at >= 4:
            stop = at + 4 + (buffer[at] | buffer[at + 1] << 8 | buffer[at + 2] << 16)
            if stop > end:
                break
            self._packets.append(bytes(buffer[at + 4 : stop]))
            self._sequence = buffer[at + 3]
            at = stop
        if at:
            del buffer[:at]
            self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc else "closed by the peer")

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        self._arrived.set()

    async def _wait(self) -> None:
        while not self._packets:
            if self._lost is not None:
                raise LostError(self._lost)
            self._arrived.clear()
            await self._arrived.wait()

    async def _packet(self) -> bytes:
        await self._wait()
        return self._packets.popleft()

    async def _columns(self) -> list[int]:
        """The types of the columns."""
        types = []
        while (packet := await self._packet())[0] != EOF or len(packet) > 8:
            if packet[0] == ERR:
                raise _error(packet)
            types.append(packet[-6])  # Before flags, decimals and a filler.
        self._row = partial(_binary_row, types) if self._row is not _row else _row
        return types

    async def _ask(self, sql: str) -> None:
        if not (self._prepares and sql.startswith(PREPARED)):
            self._row = _row
            self._send(QUERY + sql.encode())
            return
        values = [int(value) for value in INTEGER.findall(sql)]
        statement = await self._prepare(INTEGER.sub("?", sql))
        self._row = _binary
        nulls = bytes((len(values) + 7) // 8)
        bound = nulls + b"\1" + b"\x08\0" * len(values) + struct.pack(f"<{len(values)}q", *values) if values else b""
        self._send(EXECUTE + statement + b"\0" + b"\1\0\0\0" + bound)

    async def _prepare(self, sql: str) -> bytes:
        """The number of a prepared statement. The one that was used longest ago is closed for it."""
        if statement := self._prepared.pop(sql, b""):
            self._prepared[sql] = statement
            return statement
        while len(self._prepared) >= PREPARED_MAX:
            self._send(CLOSE + self._prepared.pop(next(iter(self._prepared))))
        self._send(PREPARE + sql.encode())
        first = await self._packet()
        if first[0] == ERR:
            raise _error(first)
        columns, parameters = struct.unpack_from("<HH", first, 5)
        for count in (parameters, columns):
            if count:
                await self._columns()
        self._prepared[sql] = first[1:5]
        return first[1:5]

    def _send(self, command: bytes) -> None:
        if self._lost is not None or self._transport is None:
            raise LostError(self._lost or "not connected")
        self._write(command, 0)

    def _write(self, payload: bytes, sequence: int) -> None:
        assert self._transport is not None
        self._transport.write(len(payload).to_bytes(3, "little") + bytes([sequence]) + payload)

    async def _log_in(self, database: str) -> None:
        greeting = await self._packet()
        if greeting[0] == ERR:
            raise _error(greeting)
        plugin = greeting.rstrip(b"\0").rsplit(b"\0", 1)[-1]
        head = FLAGS.to_bytes(4, "little") + (1 << 24).to_bytes(4, "little") + bytes([UTF8MB4]) + bytes(23)
        self._write(head + b"root\0\0" + database.encode() + b"\0" + plugin + b"\0", 1)
        while (reply := await self._packet())[0] != OK:
            if reply[0] == ERR:
                raise _error(reply)
            if reply[0] == SWITCH:
                self._write(b"", self._sequence + 1)


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer and the place behind it."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _row(packet: bytes) -> Row:
    row: Row = []
    at, end = 0, len(packet)
    while at < end:
        size = packet[at]
        if size < 0xFB:
            at += 1
        elif size == 0xFB:
            row.append(None)
            at += 1
            continue
        else:
            size, at = _integer(packet, at)
        row.append(packet[at : at + size])
        at += size
    return row


def _binary(packet: bytes) -> Row:
    """In the place of a reader of binary rows, until the types of the columns are known."""
    raise AssertionError("a row before its columns")


def _binary_row(types: Sequence[int], packet: bytes) -> Row:
    """The values as in the text protocol."""
    row: Row = []
    at = 1 + (len(types) + 9) // 8
    for number, kind in enumerate(types):
        if packet[1 + (number + 2) // 8] >> (number + 2) % 8 & 1:
            row.append(None)
        elif form := INTEGERS.get(kind):
            row.append(str(*struct.unpack_from(form, packet, at)).encode())
            at += struct.calcsize(form)
        else:
            size, at = _integer(packet, at)
            row.append(packet[at : at + size])
            at += size
    return row


def _error(packet: bytes) -> ServerError:
    text = packet[3:].decode(errors="replace")
    return ServerError(int.from_bytes(packet[1:3], "little"), text[6:] if text.startswith("#") else text)
