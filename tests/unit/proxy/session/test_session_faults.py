"""Unforeseen faults in a session: the client gets an error, and no connection ends without one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from engine.packets import frame
from engine.service import Engine
from proxy.server.listener import Proxy
from proxy.session.answers import ANSWER_MAX
from proxy.session.session import Session
from proxy.session.stream import INTERRUPTED, Stream
from proxy.settings import Settings
from proxy.statements.statements import Statements
from proxy.wire.packets import IN_TRANS, ServerError, make_err, make_ok, parse_err
from sqlrewrite.classify import Verb
from tests.support.sessions import FakeProxy, FakeTransport, PlayedSession

OK = make_ok()


class Broken:
    """An engine in which everything fails in its own way."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def statements() -> Statements:
    return Statements(cast(Engine, Broken()), Settings(), tuple)


async def never(_session: Session, _verb: Verb, _payload: bytes) -> None:
    raise AssertionError


def test_a_login_has_its_whole_time_from_when_the_client_is_connected(caplog: pytest.LogCaptureFixture) -> None:
    """As if the proxy were stopped between its accept and the report of the connection."""

    async def play() -> None:
        proxy, client = FakeProxy(never, Broken()), FakeTransport()
        proxy.settings = Settings(login_timeout_s=0.001)
        session = Session(cast(Proxy, proxy), 1)
        passed = asyncio.Event()
        asyncio.get_running_loop().call_later(proxy.settings.login_timeout_s, passed.set)
        await passed.wait()
        session.client_connected(cast(asyncio.Transport, client))
        assert not client.is_closing()
        await client.closed.wait()

    with caplog.at_level(logging.ERROR):
        asyncio.run(play())
    assert caplog.records == []


def test_a_fault_in_a_queue_statement_is_an_error_and_the_connection_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        played = PlayedSession(statements().carry_out)
        played.query(b"ACK FROM shop.m WHERE id = 1")
        seq, payload = await played.next_to_client()
        error = parse_err(payload)
        assert (seq, error.code, error.sqlstate) == (1, 1105, "HY000")
        assert "KeyError" in error.message
        assert "session 1" in error.message
        played.query(b"SELECT 1")
        assert await played.next_to_server() == b"\x03SELECT 1"
        assert not played.client.is_closing()

    with caplog.at_level(logging.ERROR):
        asyncio.run(play())
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_connection_that_ends_while_rows_come_has_its_error_behind_the_last_row() -> None:
    async def stream(session: Session, _verb: Verb, _payload: bytes) -> None:
        session.stream = Stream(session.send)
        session.stream.deliver((b"row",))
        await session.stream.wait(60)

    async def play() -> None:
        played = PlayedSession(stream)
        played.query(b"STREAM * FROM m")
        assert await played.next_to_client() == (1, b"row")
        played.session.hang_up(ServerError(1105, "HY000", "no"))
        seq, payload = await played.next_to_client()
        assert (seq, parse_err(payload).code) == (2, 1105)
        assert played.client.is_closing()

    asyncio.run(play())


def test_a_fault_between_the_statements_is_an_error_before_the_connection_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        played = PlayedSession(never)
        monkeypatch.setattr(played.session.classifier, "classify_fast", Broken().__getattr__)
        played.query(b"SELECT 1")
        assert parse_err((await played.next_to_client()).payload).code == 1105
        assert played.client.is_closing()

    asyncio.run(play())


def test_an_error_never_stands_inside_an_answer_of_the_server_but_behind_it() -> None:
    async def play() -> None:
        played = PlayedSession(never)
        played.query(b"SELECT 1")
        played.session.client_sent(frame(b"\x19\1", 0))  # A COM_STMT_CLOSE that is cut off.
        assert not played.client.is_closing()
        played.query(b"SELECT 2")
        played.answer(OK)
        assert [packet.payload[0] for packet in played.client.taken()] == [0, 0xFF]
        assert played.client.is_closing()
        assert [packet.payload for packet in played.server.taken()] == [b"\x03SELECT 1"]

    asyncio.run(play())


def test_a_server_that_is_gone_before_it_has_answered_an_internal_query_is_an_error() -> None:
    async def play() -> None:
        played = PlayedSession(statements().carry_out)
        played.query(b'ACK FROM "m" WHERE id = 1')
        await played.next_to_server()
        played.session.server_lost()
        assert parse_err((await played.next_to_client()).payload).code == 1053
        await played.client.closed.wait()

    asyncio.run(play())


def test_an_answer_too_large_for_us_is_the_statement_s_error_and_takes_no_memory() -> None:
    async def play() -> None:
        played = PlayedSession(statements().carry_out)
        played.query(b'ACK FROM "m" WHERE id = 1')
        await played.next_to_server()
        row = b"\1a" * 100_000
        played.session.server_sent(frame(b"\1", 1) + frame(b"def", 2) + frame(b"\xfe\0\0\2\0", 3))
        for seq in range(4, 4 + ANSWER_MAX // len(row) + 2):
            played.session.server_sent(frame(row, seq))
        assert not played.client.written
        played.session.server_sent(frame(b"\xfe\0\0\2\0", 40))
        error = parse_err((await played.next_to_client()).payload)
        assert (error.code, str(ANSWER_MAX) in error.message) == (1105, True)
        played.query(b"SELECT 1")
        assert await played.next_to_server() == b"\x03SELECT 1"

    asyncio.run(play())


def test_an_interruption_during_an_internal_query_ends_the_statement_with_that_error() -> None:
    async def play() -> None:
        played = PlayedSession(statements().carry_out)
        played.query(b'ACK FROM "m" WHERE id = 1')
        assert (await played.next_to_server()).startswith(b"\x03SELECT HEX(DATABASE())")
        played.session.interrupt(INTERRUPTED)
        played.answer(make_err(1317, "70100", "of the query"))
        assert parse_err((await played.next_to_client()).payload).code == 1317
        assert not played.server.written

    asyncio.run(play())


def test_an_interruption_that_comes_before_the_statement_has_begun_is_not_lost() -> None:
    async def play() -> None:
        played = PlayedSession(statements().carry_out)
        played.query(b'ACK FROM "m" WHERE id = 1')
        played.session.interrupt(INTERRUPTED)
        assert parse_err((await played.next_to_client()).payload).code == 1317
        assert not played.server.written

    asyncio.run(play())


def test_a_transaction_that_internal_queries_began_ends_before_the_client_gets_the_error() -> None:
    async def play() -> None:
        played = PlayedSession(statements().carry_out)
        played.query(b'ACK FROM "m" WHERE id = 1')
        await played.next_to_server()
        played.session.server_sent(
            frame(b"\1", 1)
            + frame(b"def", 2)
            + frame(b"\xfe\0\0\1\0", 3)
            + frame(b"\x02zz\4utf8\4utf8\6SYSTEM\0\x011", 4)  # No hexadecimal name of a database.
            + frame(b"\xfe\0\0" + IN_TRANS.to_bytes(2, "little"), 5)
        )
        assert await played.next_to_server() == b"\x03COMMIT AND NO CHAIN NO RELEASE"
        assert not played.client.written
        played.answer(OK)
        assert parse_err((await played.next_to_client()).payload).code == 1105

    asyncio.run(play())


@pytest.mark.parametrize("full", [True, False])
def test_a_client_that_ends_its_side_and_does_not_read_is_gone(*, full: bool) -> None:
    """One that reads gets what was written."""

    async def play() -> None:
        played = PlayedSession(never)
        if full:
            played.session.client_full()
        played.session.client_ended()
        assert played.client.is_closing() is full

    asyncio.run(play())
