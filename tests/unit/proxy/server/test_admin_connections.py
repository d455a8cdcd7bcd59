"""The bounds of the admin port's connections, on the event loop that the program runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest
import uvloop
from aiohttp import web

from proxy.server.admin_connections import SILENT_S, AdminConnections

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """A listening port with an application that answers when `answers` is set."""

    def __init__(self, connections_max: int, silent_s: float) -> None:
        self._connections = AdminConnections(connections_max, None, silent_s)
        app = web.Application(middlewares=[self._connections.follow])
        app.add_routes([web.get("/", self._answer)])
        self._runner = web.AppRunner(app, access_log=None)
        self.answers, self.asked = asyncio.Event(), asyncio.Event()
        self.answers.set()
        self._address = ("", 0)
        self._clients: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        await self._runner.setup()
        assert self._runner.server is not None
        self._address = await self._connections.listen(self._runner.server, "127.0.0.1", 0)

    async def stop(self) -> None:
        for writer in self._clients:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        self._connections.close()
        await self._runner.cleanup()

    async def open(self, sent: bytes = b"") -> Opened:
        reader, writer = await asyncio.open_connection(*self._address)
        self._clients.append(writer)
        writer.write(sent)
        return reader, writer

    async def _answer(self, _: web.Request) -> web.Response:
        self.asked.set()
        await self.answers.wait()
        return web.Response(text="answer")


@contextlib.asynccontextmanager
async def listening(connections_max: int = 4, silent_s: float = SILENT_S) -> AsyncIterator[Port]:
    port = Port(connections_max, silent_s)
    await port.start()
    try:
        async with asyncio.timeout(30):
            yield port
    finally:
        await port.stop()


async def answered(opened: Opened) -> bool:
    return (await opened[0].readuntil(b"answer")).startswith(b"HTTP/1.1 200")


def test_the_connection_that_is_silent_longest_makes_room_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with listening(connections_max=4) as port:
            silent = [await port.open() for _ in range(20)]
            assert await answered(await port.open(REQUEST))
            for reader, _ in silent[:17]:
                assert await reader.read() == b""
            silent[-1][1].write(REQUEST)  # One of the three last.
            assert await answered(silent[-1])

    with caplog.at_level(logging.WARNING):
        uvloop.run(play())
    assert [record.event for record in caplog.records] == ["admin.full"]  # type: ignore[attr-defined]


def test_a_connection_whose_request_is_under_way_stays() -> None:
    async def play() -> None:
        async with listening(connections_max=4, silent_s=0.05) as port:
            port.answers.clear()
            busy = await port.open(REQUEST)
            await port.asked.wait()
            for _ in range(8):
                await (await port.open())[0].read()  # Each is closed.
            port.answers.set()
            assert await answered(busy)

    uvloop.run(play())


def test_when_all_have_requests_under_way_a_further_one_is_closed() -> None:
    async def play() -> None:
        async with listening(connections_max=4) as port:
            port.answers.clear()
            busy = []
            for _ in range(4):
                port.asked.clear()
                busy.append(await port.open(REQUEST))
                await port.asked.wait()
            assert await (await port.open())[0].read() == b""
            port.answers.set()
            for opened in busy:
                assert await answered(opened)

    uvloop.run(play())


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc", REQUEST], ids=["nothing", "half", "one"])
def test_a_connection_without_a_request_is_closed_after_a_while(sent: bytes) -> None:
    async def play() -> None:
        async with listening(silent_s=0.05) as port:
            reader, _ = await port.open(sent)
            received = await reader.read()  # Up to its end.
            assert received.startswith(b"HTTP/1.1 200") is (sent == REQUEST)

    uvloop.run(play())


def test_closed_connections_count_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with listening(connections_max=4) as port:
            for _ in range(20):
                opened = await port.open(REQUEST)
                assert await answered(opened)
                opened[1].close()
                await opened[1].wait_closed()

    with caplog.at_level(logging.WARNING):
        uvloop.run(play())
    assert not [record for record in caplog.records if getattr(record, "event", "") == "admin.full"]
