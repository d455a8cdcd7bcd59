"""A session without sockets: the test plays its client and its server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from mysql_mimic.types import Capabilities

from engine.packets import frame
from engine.store.opening import BackendAddress
from engine.store.port import Origin
from proxy.login.relay import TlsPolicy
from proxy.server.listener import Proxy
from proxy.session.ports import Begun
from proxy.session.session import Session
from proxy.session.statement_memory import StatementMemory
from proxy.session.traffic import Traffic
from proxy.settings import Settings
from proxy.wire.framing import Packet, Packets
from proxy.wire.handshake import PLUGIN_AUTH, PROTOCOL_41, SECURE_CONNECTION
from proxy.wire.packets import make_ok
from sqlrewrite.classify import Verb

GREETING = (
    b"\n9.7.4-2\x00\x08\x00\x00\x00an\x14\x0b-&8n\x00\xff\xf7\xff\x02\x00\xff\xdf\x15\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\x00e\x06N\x1fHe\x05\x14!QR\x19\x00caching_sha2_password\x00"
)
FLAGS = PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH | int(Capabilities.CLIENT_LONG_PASSWORD)
RESPONSE = FLAGS.to_bytes(4, "little") + (1 << 24).to_bytes(4, "little") + b"\x2d" + bytes(23) + b"app\0\0"
RESPONSE += b"caching_sha2_password\0"

CarryOut = Callable[[Session, Verb, bytes], Awaitable[None]]


class FakeTransport:
    """One end of a socket; `written` collects the packets, and `writes` counts the calls."""

    def __init__(self) -> None:
        self.written: list[Packet] = []
        self.writes = 0
        self._reading = True
        self.closed = asyncio.Event()
        self._came = asyncio.Event()
        self._packets = Packets()

    def write(self, data: bytes) -> None:
        assert not self.is_closing()
        self.writes += 1
        self.written += self._packets.feed(data)
        self._came.set()

    def taken(self) -> list[Packet]:
        """What was written since the last time."""
        taken, self.written = self.written, []
        return taken

    async def next(self) -> Packet:
        """The next packet that is written."""
        while not self.written:
            self._came.clear()
            await self._came.wait()
        return self.written.pop(0)

    def close(self) -> None:
        self.closed.set()

    abort = close

    def get_extra_info(self, _name: str) -> None:
        """None: there is no socket."""

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def pause_reading(self) -> None:
        """Nothing comes until `resume_reading`."""
        self._reading = False

    def is_reading(self) -> bool:
        """Whether what comes is read."""
        return self._reading

    def resume_reading(self) -> None:
        """What comes is read again."""
        self._reading = True


class _Unused:
    """An engine whose methods are not called or do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_options: None


class FakeProxy:
    """What a session needs of the proxy."""

    def __init__(self, carry_out: CarryOut, engine: object) -> None:
        self.settings = Settings()
        self.engine = engine
        self.tls: Any = self
        self.policy = TlsPolicy(offered=False)
        self.carry_out = carry_out
        self.begin_settling: Callable[..., Begun] = lambda *_: Begun.NOTHING
        self.statement_memory = StatementMemory(self.settings.statement_bytes_max)
        self.traffic = Traffic()

    def session_begun(self, session: Session) -> None: ...

    def session_opened(self, session: Session) -> None: ...

    def session_closed(self, session: Session) -> None: ...

    def login_refused(self, code: int) -> None: ...

    def server_in_doubt(self) -> None: ...

    def server_is(self, origin: Origin) -> None: ...

    def abandoned(self, session: Session) -> None: ...


class PlayedSession:
    """A session that is logged in, its client's end, and its server's. Takes a running loop."""

    def __init__(self, carry_out: CarryOut, engine: object | None = None) -> None:
        self.client, self.server = FakeTransport(), FakeTransport()
        self.session = Session(cast(Proxy, FakeProxy(carry_out, engine or _Unused())), 1)
        self.session.backend = BackendAddress("127.0.0.1", 3306, "root")
        self.session.client_connected(cast(asyncio.Transport, self.client))
        self.session.server_connected(cast(asyncio.Transport, self.server))
        self.session.server_sent(frame(GREETING, 0))
        self.session.client_sent(frame(RESPONSE, 1))
        self.session.server_sent(frame(make_ok(), 2))
        assert not self.session.logging_in
        self.client.taken()
        self.server.taken()

    def query(self, text: bytes) -> None:
        """The client sends a COM_QUERY."""
        self.session.client_sent(frame(b"\x03" + text, 0))

    def answer(self, payload: bytes) -> None:
        """The server answers with one packet."""
        self.session.server_sent(frame(payload, 1))

    async def next_to_server(self) -> bytes:
        """The next command that the server gets, without its header."""
        return (await self.server.next()).payload

    async def next_to_client(self) -> Packet:
        """The next packet that the client gets."""
        return await self.client.next()
