"""A long queue statement is read while other sessions go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import cast

import pytest

from proxy.session.session import Session
from proxy.statements.long_statements import AT_ONCE_BYTES_MAX, LongStatementReader, in_steps
from proxy.wire.packets import ServerError

SHORT, LONG = b"x" * AT_ONCE_BYTES_MAX, b"x" * (AT_ONCE_BYTES_MAX + 1)
KILLED = ServerError(1317, "70100", "Query execution was interrupted")


class Client:
    """A session that may be interrupted."""

    def __init__(self, *, interrupted: bool = False) -> None:
        self.interrupted = interrupted

    def check_interrupted(self) -> None:
        if self.interrupted:
            raise KILLED


def session(*, interrupted: bool = False) -> Session:
    return cast(Session, Client(interrupted=interrupted))


def played(play: Callable[[LongStatementReader], Awaitable[None]]) -> None:
    async def run() -> None:
        reader = LongStatementReader()
        try:
            await play(reader)
        finally:
            reader.close()

    asyncio.run(run())


def test_a_short_text_is_read_at_once() -> None:
    async def play(reader: LongStatementReader) -> None:
        read = reader.read(session(), SHORT, lambda text: (len(text), threading.get_ident()))
        with pytest.raises(StopIteration) as done:  # It waits for nothing.
            read.send(None)
        assert done.value.value == (AT_ONCE_BYTES_MAX, threading.get_ident())

    played(play)


def test_the_loop_goes_on_while_a_long_text_is_read() -> None:
    async def play(reader: LongStatementReader) -> None:
        goes_on = threading.Event()

        def read(text: bytes) -> int:
            assert goes_on.wait(30)
            return len(text)

        asyncio.get_running_loop().call_soon(goes_on.set)
        assert await reader.read(session(), LONG, read) == AT_ONCE_BYTES_MAX + 1

    played(play)


def test_one_long_text_is_read_at_a_time_and_those_of_clients_that_are_gone_not_at_all() -> None:
    async def play(reader: LongStatementReader) -> None:
        begun: list[str] = []
        first_may_end = threading.Event()
        first_has_begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def first(_text: bytes) -> None:
            begun.append("first")
            loop.call_soon_threadsafe(first_has_begun.set)
            assert first_may_end.wait(30)

        one = asyncio.create_task(reader.read(session(), LONG, first))
        gone = asyncio.create_task(reader.read(session(), LONG, lambda _text: begun.append("gone")))
        last = asyncio.create_task(reader.read(session(), LONG, lambda _text: begun.append("last")))
        await first_has_begun.wait()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert begun == ["first"]
        first_may_end.set()
        await asyncio.gather(one, last)
        assert begun == ["first", "last"]

    played(play)


def test_what_is_wrong_with_a_long_text_is_raised() -> None:
    async def play(reader: LongStatementReader) -> None:
        def refuse(_text: bytes) -> None:
            raise ValueError("here")

        with pytest.raises(ValueError, match="here"):
            await reader.read(session(), LONG, refuse)

    played(play)


def steps(count: int) -> Generator[None, None, str]:
    for _ in range(count):
        yield
    return "read"


def test_others_have_their_turn_between_steps() -> None:
    async def play(_reader: LongStatementReader) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        assert await in_steps(session(), steps(50)) == "read"
        assert turns >= 50
        task.cancel()

    played(play)


def test_an_interruption_while_a_text_is_read_is_raised() -> None:
    async def play(reader: LongStatementReader) -> None:
        with pytest.raises(ServerError) as long:
            await reader.read(session(interrupted=True), LONG, len)
        with pytest.raises(ServerError) as stepped:
            await in_steps(session(interrupted=True), steps(1))
        assert long.value is stepped.value is KILLED

    played(play)
