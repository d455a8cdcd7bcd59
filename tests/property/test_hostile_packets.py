"""A session under hostile packets, without a network: real sessions, their two connections made up.

Whatever either side sends, however it is cut: no exception leaves the session, a session that goes on still answers,
and what it holds stays within its bounds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st

from engine.packets import frame
from engine.store.opening import BackendAddress
from engine.store.route import Route
from proxy.server.listener import Proxy
from proxy.session.ports import ClientSession
from proxy.session.session import Session
from proxy.settings import Settings
from proxy.transport.tls import Tls
from proxy.wire.packets import IN_TRANS
from sqlrewrite.classify import Verb
from tests.support import wire
from tests.support.raw import ALL, BASE, DEPRECATE_EOF

GREETING = (
    b"\n9.7.4\0\x08\0\0\0" + b"a" * 8 + b"\0\xff\xf7\xff\x02\0\xff\xd7\x15" + bytes(6) + b"\x3c\0\0\0" + b"e" * 12
    + b"\0caching_sha2_password\0"
)  # fmt: skip
OK = wire.ok()
HELD_MAX = 3 << 20
"""What was sent ahead (a megabyte), a packet that is being gathered, and a chunk."""


class Pipe:
    """A transport that remembers what was written, and whether it is read."""

    def get_extra_info(self, _name: str) -> None:
        """There is no socket to tell of."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class NoEngine:
    """An engine that is told things."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_options: None


SERVER = BackendAddress("127.0.0.1", 1, "root")


class House(Proxy):
    """A proxy whose own statements ask the server one thing and answer OK."""

    def __init__(self) -> None:
        settings = Settings(tls=False, backend_tls="never")
        super().__init__(cast(Any, NoEngine()), settings, Route(None), Tls.of(settings))
        self.carry_out = self._carry_out

    def session_begun(self, session: Session) -> None:
        """No connection is opened: the test has it."""

    def abandoned(self, session: Session) -> None:
        """Nothing to kill."""

    async def _carry_out(self, session: ClientSession, verb: Verb, payload: bytes) -> None:
        await session.internal_query(b"SELECT 1")
        session.send(OK)


def logged_in(capabilities: int) -> tuple[Session, Pipe, Pipe]:
    """A session that the server has let in."""
    client, server = Pipe(), Pipe()
    session = Session(House(), 1)
    session.backend = SERVER
    session.client_connected(cast(Any, client))
    session.server_connected(cast(Any, server))
    session.server_sent(frame(GREETING, 0))
    head = (capabilities & 0xFFFFFFFF).to_bytes(4, "little") + bytes(4) + b"\x2d" + bytes(23)
    session.client_sent(frame(head + b"app\0\0" + b"shop\0" + b"caching_sha2_password\0", 1))
    session.server_sent(wire.ok())
    assert not session.logging_in
    client.written.clear()
    server.written.clear()
    return session, client, server


STATEMENTS = (
    b"STREAM * FROM m",
    b"ACK FROM m WHERE id = 1",
    b"INSERT INTO m VALUES (1)",
    b"SELECT 1; SELECT 2",
    b"KILL QUERY 5",
    b"USE db",
    b"/* " + b"x" * 5_000 + b" */ STREAM * FROM m",
    b"x" * 20_000,
)
bodies = st.one_of(
    st.sampled_from(STATEMENTS).map(lambda text: b"\x03" + text),
    st.sampled_from(STATEMENTS).map(lambda text: b"\x03\0\1" + text),
    st.sampled_from(STATEMENTS).map(lambda text: b"\x16" + text),
    st.builds(
        lambda byte, number, rest: bytes([byte]) + number + rest,
        st.sampled_from([0x17, 0x18, 0x19, 0x1A, 0x1C, 0xFA]),
        st.sampled_from([b"\7\0\0\0", b"\xff\xff\xff\xff", b"\0"]),
        st.binary(max_size=20),
    ),
    st.builds(lambda byte, rest: bytes([byte]) + rest, st.integers(0, 255), st.binary(max_size=20)),
    st.binary(max_size=5),
)
packets = st.one_of(
    st.builds(frame, bodies, st.sampled_from([0, 0, 0, 0, 1, 7])),
    st.binary(max_size=12),  # No packet at all: what follows is out of step.
)
answers = st.one_of(
    st.sampled_from(
        [
            OK,
            wire.ok(IN_TRANS),
            wire.err(),
            wire.err(4031, "idle", seq=0),
            wire.result([b"\x011"]),
            wire.result([b"\x011"] * 40, DEPRECATE_EOF),
            wire.prepared(1, 2),
            wire.prepared(0, 0),
            frame(b"\xfbfile", 1),
            frame(b"Uptime: 1", 1),
        ]
    ),
    st.binary(max_size=12),
)
scripts = st.lists(st.one_of(packets.map(lambda data: ("client", data)), answers.map(lambda data: ("server", data))))


class Complaints(logging.Handler):
    """Errors in the log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


async def play(capabilities: int, script: Sequence[tuple[str, bytes]], cuts: Sequence[int], vanish: bool) -> None:
    """Feed both sides; see that nothing escapes and everything ends."""
    loop = asyncio.get_running_loop()
    escaped: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: escaped.append(context))
    session, client, server = logged_in(capabilities)
    for sender, data in script:
        for piece in wire.pieces(data, cuts):
            if sender == "client" and not client.closed:
                session.client_sent(piece)
            elif sender == "server" and not (server.closed or client.closed):
                session.server_sent(piece)
            await asyncio.sleep(0)
        assert session._relay.withheld.size + len(session._relay._framer._held) < HELD_MAX
    if vanish or client.closed:
        session.client_lost()
    session.server_lost()
    session.client_lost()
    for _ in range(3):  # Its task, if there is one, hears of it.
        await asyncio.sleep(0)
    assert session._task is None
    assert not escaped


@given(
    st.sampled_from([BASE, BASE | DEPRECATE_EOF, ALL]),
    scripts,
    st.lists(st.integers(1, 40), max_size=4),
    st.booleans(),
)
@example(
    BASE,
    [
        ("client", b"\x10\0\0\0\x03STREAM * FROM m"),
        ("server", b"\x07\0\0\x01\0\0\0\x02\0\0\0"),
        ("client", b"\x10\0\0\0\x03STREAM * FROM m"),
        ("server", b"\0"),  # The beginning of a packet that nobody asked for, while a statement of ours is at work.
        ("client", b"\x10\0\0\0\x03STREAM * FROM m"),
    ],
    [],
    False,
)
def test_nothing_that_either_side_sends_escapes_a_session(
    capabilities: int, script: Sequence[tuple[str, bytes]], cuts: Sequence[int], vanish: bool
) -> None:
    complaints = Complaints()
    logging.getLogger("proxy").addHandler(complaints)
    try:
        asyncio.run(play(capabilities, script, cuts, vanish))
    finally:
        logging.getLogger("proxy").removeHandler(complaints)
    assert not complaints.records


@given(st.one_of(st.binary(max_size=200), packets), st.lists(st.integers(1, 60), max_size=4), st.booleans())
def test_nothing_that_a_stranger_sends_escapes_the_login(data: bytes, cuts: Sequence[int], greeted: bool) -> None:
    async def knock() -> None:
        client, server = Pipe(), Pipe()
        session = Session(House(), 1)
        session.backend = SERVER
        session.client_connected(cast(Any, client))
        if greeted:
            session.server_connected(cast(Any, server))
            session.server_sent(frame(GREETING, 0))
        for piece in wire.pieces(data, cuts):
            if not client.closed:
                session.client_sent(piece)
        session.client_lost()

    asyncio.run(knock())


def test_a_client_is_not_read_while_its_server_does_not_read_whatever_else_has_become_possible() -> None:
    async def both_reasons() -> None:
        session, client, _server = logged_in(BASE)
        session.client_sent(wire.command(wire.QUERY, b"SELECT 1") * (session.proxy.settings.pipelined_max + 1))
        read = [client.reading]
        session.server_full()
        session.server_sent(OK * 10)  # Few enough are unanswered now.
        read.append(client.reading)
        session.server_has_room()
        read.append(client.reading)
        assert read == [False, False, True]
        session.server_lost()
        session.client_lost()

    asyncio.run(both_reasons())
