"""The stream of messages between the parent and a worker, one of which reads slowly or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import pytest

from proxy.server import channel as module
from proxy.server.channel import Channel
from proxy.server.messages import ClientsGone, Failed, Missed

LONG = Failed("x" * 100_000)


class End:
    """One end, and what has come there."""

    def __init__(self) -> None:
        self.received: list[object] = []
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()
        self.channel = Channel(self.receive, self.lost.set)

    def receive(self, message: object) -> None:
        self.received.append(message)
        self.changed.set()

    async def until(self, count: int) -> None:
        while len(self.received) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 30)


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[tuple[End, End]]:
    ends, sockets = (End(), End()), socket.socketpair()
    for end, half in zip(ends, sockets, strict=True):
        await end.channel.open(half)
    yield ends
    for end in ends:
        end.channel.close()
    for end in ends:
        await asyncio.wait_for(end.lost.wait(), 30)


def test_messages_of_any_length_come_in_their_order() -> None:
    async def play() -> None:
        async with opened() as (here, there):
            sent = [ClientsGone(1), LONG, ClientsGone(2), LONG, ClientsGone(3)]
            for message in sent:
                here.channel.send(message)
            await there.until(len(sent))
            assert there.received == sent
            here.channel.close()
            await asyncio.wait_for(there.lost.wait(), 30)

    asyncio.run(play())


def test_offers_to_a_slow_reader_are_dropped_and_it_learns_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OFFERED_BYTES", 1_000_000)

    async def play() -> None:
        async with opened() as (here, there):
            for _ in range(200):  # 20 MB at once: nothing is read before this returns.
                here.channel.offer(LONG)
            here.channel.send(ClientsGone(1))
            while Missed() not in there.received:
                await there.until(len(there.received) + 1)
            assert there.received.count(LONG) < 50
            assert ClientsGone(1) in there.received
            here.channel.offer(ClientsGone(2))
            while ClientsGone(2) not in there.received:
                await there.until(len(there.received) + 1)

    asyncio.run(play())


def test_a_reader_that_hangs_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 5_000_000)

    async def play() -> None:
        async with opened() as (here, _):
            for _ in range(200):
                here.channel.send(LONG)
            await asyncio.wait_for(here.lost.wait(), 30)
            here.channel.send(LONG)

    asyncio.run(play())


def test_a_message_that_cannot_be_processed_is_logged_and_the_next_one_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        async with opened() as (here, there):

            def receive(message: object) -> None:
                there.receive(message)
                if message == ClientsGone(1):
                    raise ValueError("it")

            there.channel._receive = receive
            here.channel.send(ClientsGone(1))
            here.channel.send(ClientsGone(2))
            await there.until(2)

    with caplog.at_level(logging.ERROR):
        asyncio.run(play())
    assert [record.levelname for record in caplog.records] == ["ERROR"]
