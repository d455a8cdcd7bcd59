"""A client on the level of packets: it sends any command and keeps every packet of the answers.

Drivers hide details that a proxy must not change. Two of these clients, one on the server and one on the proxy, play
the same script, and their transcripts must be equal. The proxy's own walker finds the end of an answer. If it is
wrong, one transcript breaks off or the next answer does not fit its command.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, Self

from mysql_mimic.types import Capabilities, Commands

from engine.packets import ERR, OK, frame
from proxy.wire import handshake
from proxy.wire.framing import Packet, Packets
from proxy.wire.handshake import Greeting
from proxy.wire.packets import parse_err, parse_ok
from proxy.wire.params import asks_for_cursor, make_query
from proxy.wire.walker import FileRequest, Outcome, ResponseWalker

BASE = int(
    Capabilities.CLIENT_PROTOCOL_41
    | Capabilities.CLIENT_SECURE_CONNECTION
    | Capabilities.CLIENT_PLUGIN_AUTH
    | Capabilities.CLIENT_CONNECT_WITH_DB
    | Capabilities.CLIENT_TRANSACTIONS
    | Capabilities.CLIENT_MULTI_STATEMENTS
    | Capabilities.CLIENT_MULTI_RESULTS
    | Capabilities.CLIENT_PS_MULTI_RESULTS
    | Capabilities.CLIENT_LOCAL_FILES
)
DEPRECATE_EOF = int(Capabilities.CLIENT_DEPRECATE_EOF)
SESSION_TRACK = int(Capabilities.CLIENT_SESSION_TRACK)
QUERY_ATTRIBUTES = int(Capabilities.CLIENT_QUERY_ATTRIBUTES)
ALL = handshake.PASSABLE & ~int(Capabilities.CLIENT_CONNECT_ATTRS | Capabilities.CLIENT_LONG_PASSWORD)
ALL &= ~int(Capabilities.CLIENT_PLUGIN_AUTH_LENENC_CLIENT_DATA | Capabilities.CLIENT_FOUND_ROWS)

EXECUTE = bytes([Commands.COM_STMT_EXECUTE])

UTF8MB4 = 45
PATIENCE_S = 30.0
"""An answer takes no longer, whatever else this machine does."""

STRING = 0xFD
NUMBER = 0x08
NEW_TYPES = 1


Told = Callable[[list[Packet]], list[Packet]]


class Place(Protocol):
    """A server or a proxy."""

    host: str
    port: int


class RawClient:
    """A connection, logged in as a user without a password. `received` is all that came since, `sent` each command."""

    def __init__(
        self, place: Place, capabilities: int = BASE, database: str = "", user: str = "root", claimed: int = 0
    ) -> None:
        """`capabilities` are used where they are offered, `claimed` ones are claimed in any case and not used."""
        self.received: list[Packet] = []
        self.sent: list[bytes] = []
        self.sock = socket.create_connection((place.host, place.port), PATIENCE_S)
        self._packets = Packets(1 << 30)
        self._arrived: list[Packet] = []
        self.greeting: Greeting
        self.greeting, self.capabilities = self._log_in(capabilities, claimed, database, user)

    @property
    def attributes(self) -> bool:
        return bool(self.capabilities & QUERY_ATTRIBUTES)

    # Commands.

    def ask(self, payload: bytes, *, file: Iterable[bytes] = (), told: Told = list) -> list[Packet]:
        """Send a command; the packets of its answer. `told` is what of them is the same on every connection."""
        self.send(payload)
        cursor = payload[:1] == EXECUTE and asks_for_cursor(payload)
        return self.answer(payload[0] if payload else 0, file=file, told=told, cursor=cursor)

    def send(self, payload: bytes) -> None:
        """Send a command."""
        self.sent.append(payload)
        self.sock.sendall(frame(payload, 0))

    def answer(
        self, command: int, *, file: Iterable[bytes] = (), told: Told = list, cursor: bool = False
    ) -> list[Packet]:
        """The packets that answer a command of this kind. `cursor`: it asked for one."""
        self._walker.expect(command, None, cursor=cursor)
        packets: list[Packet] = []
        while not self._walker.idle:
            packets.append(self.packet())
            self._follow(packets[-1], file)
        self.received += told(packets)
        return packets

    def query(self, text: str | bytes) -> list[Packet]:
        """A COM_QUERY."""
        text = text.encode() if isinstance(text, str) else text
        return self.ask(make_query(text, attributes=self.attributes))

    def prepare(self, text: str) -> int:
        """A COM_STMT_PREPARE; the statement's number, 0 when the server refused it."""
        first, *_rest = answer = self.ask(bytes([Commands.COM_STMT_PREPARE]) + text.encode())
        if first.payload[0] == ERR:
            return 0
        # MariaDB counts the statements of all connections: the number is not for the transcript.
        self.received[-len(answer)] = Packet(first.seq, first.payload[5:])
        return int.from_bytes(first.payload[1:5], "little")

    def execute(self, number: int, *values: int | str | None, cursor: int = 0) -> list[Packet]:
        """A COM_STMT_EXECUTE with new parameters."""
        return self.ask(self.execution(number, *values, cursor=cursor))

    def execution(self, number: int, *values: int | str | None, cursor: int = 0) -> bytes:
        """The payload of it."""
        head = bytes([Commands.COM_STMT_EXECUTE]) + number.to_bytes(4, "little") + bytes([cursor])
        return head + (1).to_bytes(4, "little") + (self._bindings(values) if values else b"")

    def about(self, command: int, number: int, more: bytes = b"") -> list[Packet]:
        """Another command about a prepared statement."""
        return self.ask(bytes([command]) + number.to_bytes(4, "little") + more)

    # Its end.

    def close(self) -> None:
        """Be gone."""
        self.sock.close()

    def reset(self) -> None:
        """Close with a RST, as when the machine is gone."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Below.

    def packet(self) -> Packet:
        """The next packet that comes."""
        while not self._arrived:
            self._arrived = self._receive()
        return self._arrived.pop(0)

    def _receive(self) -> list[Packet]:
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the connection was closed")
        return self._packets.feed(data)

    def _follow(self, packet: Packet, file: Iterable[bytes]) -> None:
        # The walker is shown each payload as one that came whole.
        for event in self._walker.feed(frame(packet.payload, packet.seq)):
            if isinstance(event, FileRequest):
                seq = packet.seq
                for part in (*file, b""):
                    seq += 1
                    self.sock.sendall(frame(part, seq))
            else:
                self.outcome: Outcome[None] = event

    def _bindings(self, values: Sequence[int | str | None]) -> bytes:
        count = bytes([len(values)]) if self.attributes else b""
        nulls = sum(1 << index for index, value in enumerate(values) if value is None)
        bitmap = nulls.to_bytes((len(values) + 7) // 8, "little")
        name = b"\0" if self.attributes else b""
        types = b"".join(bytes([NUMBER if isinstance(value, int) else STRING, 0]) + name for value in values)
        return count + bitmap + bytes([NEW_TYPES]) + types + b"".join(binary(value) for value in values)

    def _log_in(self, wanted: int, claimed: int, database: str, user: str) -> tuple[Greeting, int]:
        greeting = handshake.parse_greeting(self.packet().payload)
        flags = wanted & greeting.capabilities
        if not database:
            flags &= ~int(Capabilities.CLIENT_CONNECT_WITH_DB)
        extended = ((flags | claimed) >> 32).to_bytes(4, "little")
        body = (
            ((flags | claimed) & 0xFFFFFFFF).to_bytes(4, "little") + (1 << 30).to_bytes(4, "little") + bytes([UTF8MB4])
        )
        body += bytes(19) + extended + user.encode() + b"\0" + b"\0"
        body += (database.encode() + b"\0" if database else b"") + greeting.plugin.encode() + b"\0"
        self.sock.sendall(frame(body, 1))
        while (reply := self.packet()).payload[0] != OK:
            if reply.payload[0] == ERR:
                self.close()
                raise parse_err(reply.payload)
            self.sock.sendall(frame(b"", reply.seq + 1))  # Another plugin: the password is as empty there.
        self._walker: ResponseWalker[None] = ResponseWalker(flags, parse_ok(reply.payload).head.status)
        return greeting, flags


def binary(value: int | str | None) -> bytes:
    if value is None:
        return b""
    if isinstance(value, int):
        return value.to_bytes(8, "little", signed=True)
    text = value.encode()
    assert len(text) < 0xFB
    return bytes([len(text)]) + text


@contextlib.contextmanager
def both(one: Place, other: Place, capabilities: int, database: str = "") -> Iterator[tuple[RawClient, RawClient]]:
    """Two equal clients at two places."""
    with RawClient(one, capabilities, database) as first, RawClient(other, capabilities, database) as second:
        yield first, second
