"""The bound of all incomplete queue statements, and which of them is refused beyond it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from engine.packets import frame
from proxy.session.session import Session
from proxy.session.statement_memory import StatementMemory
from proxy.wire.packets import make_ok, parse_err
from sqlrewrite.classify import Verb
from tests.support.sessions import FakeProxy, PlayedSession

ACK = b"ACK FROM shop.m WHERE id IN ("
"""How a long statement begins."""


class Sender:
    """It is dropped, or not."""

    def __init__(self) -> None:
        self.dropped = 0

    def drop_statement(self) -> None:
        self.dropped += 1


def test_below_the_bound_everybody_has_room() -> None:
    memory, senders = StatementMemory(100), [Sender(), Sender()]
    assert memory.grown(senders[0], 40)
    assert memory.grown(senders[0], 60)
    assert memory.grown(senders[1], 40)
    assert (memory.used, [sender.dropped for sender in senders]) == (100, [0, 0])


def test_beyond_it_the_longest_statement_is_dropped_whoever_asks() -> None:
    memory, long, short = StatementMemory(100), Sender(), Sender()
    assert memory.grown(long, 90)
    assert memory.grown(short, 20)
    assert (memory.used, long.dropped, short.dropped) == (20, 1, 0)


def test_the_sender_of_the_longest_one_gets_the_error() -> None:
    memory, long, short = StatementMemory(100), Sender(), Sender()
    assert memory.grown(short, 20)
    assert not memory.grown(long, 90)
    assert (memory.used, long.dropped, short.dropped) == (20, 0, 0)


def test_what_is_complete_is_not_dropped_and_counts_until_it_is_done() -> None:
    memory, running, sender = StatementMemory(100), Sender(), Sender()
    memory.holds(running, 0, 90)
    assert not memory.grown(sender, 20)
    memory.holds(running, 0, 0)
    assert memory.grown(sender, 20)
    assert (memory.used, running.dropped, sender.dropped) == (20, 0, 0)


def test_more_than_one_is_dropped_where_it_takes_that() -> None:
    memory, senders, running = StatementMemory(100), [Sender() for _ in range(4)], Sender()
    for size, sender in enumerate(senders):
        assert memory.grown(sender, 20 + size)
    memory.holds(running, 0, 50)
    assert memory.full
    assert memory.grown(senders[0], 21)
    assert [sender.dropped for sender in senders] == [0, 0, 1, 1]
    assert memory.used == 21 + 21 + 50


def play(scene: Callable[[PlayedSession], object], carry_out: Callable[..., object] | None = None) -> None:
    async def nothing(session: Session, _verb: Verb, _payload: bytes) -> None:
        session.send(frame(make_ok(), 1))

    async def run() -> None:
        found = scene(PlayedSession(carry_out or nothing))  # type: ignore[arg-type]
        if asyncio.iscoroutine(found):
            await found

    asyncio.run(run())


def begin(played: PlayedSession, size: int) -> bytes:
    """The client sends all of a long ACK but its last byte, in pieces; the last byte."""
    packet = frame(b"\x03" + ACK.ljust(size, b"1"), 0)
    for at in range(0, len(packet) - 1, 60_000):
        played.session.client_sent(packet[at : min(at + 60_000, len(packet) - 1)])
    return packet[-1:]


def test_a_dropped_statement_is_an_error_and_the_connection_goes_on() -> None:
    def scene(played: PlayedSession) -> None:
        memory = played.session.proxy.statement_memory
        memory.bytes_max = 200_000
        last = begin(played, 300_000)
        (refused,) = played.client.taken()
        error = parse_err(refused.payload)
        assert (refused.seq, error.code, "statement_bytes_max" in error.message) == (1, 1105, True)
        assert memory.used == 0
        played.session.client_sent(last)
        played.query(b"SELECT 1")
        assert [packet.payload for packet in played.server.taken()] == [b"\x03SELECT 1"]

    play(scene)


def test_the_error_comes_in_its_turn() -> None:
    def scene(played: PlayedSession) -> None:
        played.session.proxy.statement_memory.bytes_max = 200_000
        played.query(b"SELECT 1")
        begin(played, 300_000)
        assert played.client.taken() == []
        played.answer(make_ok())
        answers = [packet.payload[0] for packet in played.client.taken()]
        assert answers == [0, 0xFF]

    play(scene)


def test_a_statement_counts_while_it_is_carried_out_and_no_longer() -> None:
    async def carry_out(session: Session, _verb: Verb, payload: bytes) -> None:
        assert session.proxy.statement_memory.used >= len(payload)
        session.send(frame(make_ok(), 1))

    async def scene(played: PlayedSession) -> None:
        played.session.client_sent(begin(played, 100_000))
        assert (await played.next_to_client()).payload == make_ok()
        await asyncio.sleep(0)
        assert played.session.proxy.statement_memory.used == 0

    play(scene, carry_out)


def test_a_client_that_is_gone_holds_nothing() -> None:
    def scene(played: PlayedSession) -> None:
        begin(played, 100_000)
        assert played.session.proxy.statement_memory.used > 0
        played.session.client_lost()
        assert played.session.proxy.statement_memory.used == 0

    play(scene)


def test_what_is_sent_ahead_counts_too() -> None:
    async def scene(played: PlayedSession) -> None:
        may_end = asyncio.Event()

        async def carry_out(session: Session, verb: Verb, payload: bytes) -> None:
            assert (verb, payload[0]) == (Verb.ACK, 3)
            await may_end.wait()
            session.send(frame(make_ok(), 1))

        cast(FakeProxy, played.session.proxy).carry_out = carry_out
        played.query(b"ACK FROM shop.m WHERE id = 1")
        played.query(b"SELECT '" + bytes(50_000) + b"'")
        assert played.session.proxy.statement_memory.used > 50_000
        may_end.set()
        await played.next_to_server()
        assert played.session.proxy.statement_memory.used == 0

    play(scene)
