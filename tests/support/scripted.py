"""A server whose answers a test scripts, up to closing the connection.

It takes any login. A command is answered by the test's own function, with payloads that are framed
here, with bytes that stand as they are, or by the end of the connection. For what no real server
does on request.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from proxy.wire.columns import make_column, text_column
from proxy.wire.framing import frame_rows
from proxy.wire.packets import make_eof, make_ok

QUERY: Final = 0x03
QUIT: Final = 0x01
MORE_RESULTS: Final = 0x0008
CAPABILITIES: Final = 0x000F_F7DF & ~0x0820
"""Of the 4.1 protocol with plugins, without TLS, compression and EOF-less results."""


@dataclass(frozen=True, slots=True)
class Say:
    """An answer: payloads, or `raw` bytes as they are; `hang_up` then ends the connection."""

    payloads: Sequence[bytes] = ()
    raw: bytes = b""
    hang_up: bool = False

    @property
    def data(self) -> bytes:
        """The bytes to send."""
        return (frame_rows(list(self.payloads), 1)[0] if self.payloads else b"") + self.raw


OK: Final = make_ok()
DONE: Final = Say([OK])
GONE: Final = Say(hang_up=True)

Script = Callable[[int, bytes], Say]


def rows(*texts: Sequence[str], status: int = 0) -> list[bytes]:
    """A text result of so many rows."""
    width = len(texts[0]) if texts else 1
    columns = [make_column(text_column(f"c{number}")) for number in range(width)]
    values = [b"".join(bytes([len(text)]) + text.encode() for text in row) for row in texts]
    return [bytes([width]), *columns, make_eof(status), *values, make_eof(status)]


def ordinary(command: int, payload: bytes) -> Say:
    """A script that accepts everything: an OK for each of the statements that
    engine.store.connection sends in a packet."""
    return Say([OK] * (payload.count(b";\n") + 1)) if command == QUERY else DONE


@dataclass
class ScriptedServer:
    """Listens on a free port of the loopback address."""

    script: Script = ordinary
    greets: bool = True
    """Whether it speaks at all when a client has connected."""
    admits: bool = True
    """Whether a login is answered; else the connection ends there."""
    silent: bool = False
    """Whether it lets clients connect and never says a word."""
    commands: list[bytes] = field(default_factory=list)
    """All that was asked after the login, each with its command byte."""
    logins: int = 0
    host: str = "127.0.0.1"
    port: int = 0

    def serve(self, listening: socket.socket) -> None:
        """Take clients until the socket is shut down."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=self._serve_one, args=[client], daemon=True).start()

    def _serve_one(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as incoming, contextlib.suppress(OSError):
            if not self.greets:
                return
            if self.silent:
                incoming.read(1)
                return
            client.sendall(_framed(_greeting(), 0))
            if _packet(incoming) is None or not self.admits:
                return
            self.logins += 1
            client.sendall(_framed(OK, 2))
            while (packet := _packet(incoming)) is not None and packet[0] != QUIT:
                self.commands.append(packet)
                said = self.script(packet[0], packet[1:])
                client.sendall(said.data)
                if said.hang_up:
                    return


@contextlib.contextmanager
def scripted_server(
    script: Script = ordinary, *, greets: bool = True, admits: bool = True, silent: bool = False
) -> Iterator[ScriptedServer]:
    """A server that answers by `script`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = ScriptedServer(script, greets, admits, silent, port=listening.getsockname()[1])
        thread = threading.Thread(target=server.serve, args=[listening], daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _framed(payload: bytes, sequence: int) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([sequence]) + payload


def _packet(incoming: BinaryIO) -> bytes | None:
    """A command, put together when it was too large for one packet; None when the client has
    gone."""
    payload = b""
    while len(header := incoming.read(4)) == 4:
        part = incoming.read(int.from_bytes(header[:3], "little"))
        payload += part
        if len(part) < 0xFFFFFF:
            return payload
    return None


def _greeting() -> bytes:
    salt = b"12345678", b"123456789012\0"
    low, high = CAPABILITIES & 0xFFFF, CAPABILITIES >> 16
    return (
        b"\x0a8.0.0-scripted\0"
        + (7).to_bytes(4, "little")
        + salt[0]
        + b"\0"
        + low.to_bytes(2, "little")
        + b"\xff\x02\0"
        + high.to_bytes(2, "little")
        + bytes([21])
        + bytes(10)
        + salt[1]
        + b"mysql_native_password\0"
    )
