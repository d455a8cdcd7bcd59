"""An ACK that is carried out together with those of other clients: what its session does until the result is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from engine.model import TableId
from engine.packets import frame
from engine.runtime.gathered_acks import AckResult
from engine.service import Engine
from engine.store.port import AckUnknownError, Origin
from proxy.session.own_acks import AckForm
from proxy.session.session import Session
from proxy.session.stream import INTERRUPTED
from proxy.settings import Settings
from proxy.statements.statements import Statements
from proxy.wire.packets import AUTOCOMMIT, IN_TRANS, ServerError, make_ok, parse_err
from sqlrewrite.classify import Verb
from tests.support.sessions import FakeProxy, PlayedSession

TABLE = TableId("shop", "m")
FORM = AckForm(TABLE, fenced=False)
DONE, VOID = (
    frame(make_ok(affected_rows=count, info=b"Rows matched: %d  Changed: %d  Warnings: 0" % (count, count)), 1)
    for count in (1, 0)
)
OK = make_ok()
ACK = b"ACK shop.m WHERE id = 7"


class Gathering:
    """An engine that gathers each ACK, and leaves its result to the test."""

    def __init__(self) -> None:
        self.gathers = True
        self.waiting: list[tuple[object, Callable[[AckResult], object]]] = []

    def gather_ack(
        self, _table: TableId, key: object, _epoch: int | None, _at: Origin, answer: Callable[[AckResult], object]
    ) -> bool:
        if self.gathers:
            self.waiting.append((key, answer))
        return self.gathers

    def __getattr__(self, _name: str) -> Any:
        """What else an engine is called for does nothing."""
        return lambda *_args, **_options: None


class Played(PlayedSession):
    """A session that has shown what the server answers to ACKs."""

    def __init__(self) -> None:
        self.gathering = Gathering()
        statements = Statements(cast(Engine, self.gathering), Settings(), tuple)
        self.alone: list[bytes] = []

        async def carry_out(session: Session, verb: Verb, payload: bytes) -> None:
            try:
                session.check_interrupted()
            except ServerError:
                await statements.carry_out(session, verb, payload)
                return
            self.alone.append(payload)
            session.send(VOID)

        super().__init__(carry_out, self.gathering)
        cast(FakeProxy, self.session.proxy).begin_ack = statements.begin_ack
        self.session.own_acks.learn(ACK, b"7", FORM, None)
        self.session.own_acks.shown(FORM, DONE)

    def give(self, result: AckResult) -> None:
        """The result of the ACK that waits."""
        ((_, answer),) = self.gathering.waiting
        self.gathering.waiting.clear()
        answer(result)

    @property
    def answers(self) -> bytes:
        """What was written to the client since the last time."""
        return b"".join(frame(packet.payload, packet.seq) for packet in self.client.taken())

    @property
    def relayed(self) -> list[bytes]:
        """The commands that the server got since the last time."""
        return [packet.payload[1:] for packet in self.server.taken()]


def play(scene: Callable[[Played], Awaitable[None]]) -> None:
    async def played() -> None:
        async with asyncio.timeout(10):
            await scene(Played())

    asyncio.run(played())


def test_its_answer_is_made_from_the_servers_own_and_no_task_is_needed() -> None:
    async def scene(played: Played) -> None:
        for number, (count, answer) in enumerate([(1, DONE), (0, VOID), (1, DONE)]):
            played.query(b"ACK shop.m WHERE id = %d" % number)
            assert [key for key, _ in played.gathering.waiting] == [number]
            assert not played.session.idle
            played.give(count)
            assert played.answers == answer
            assert played.session.idle
        assert len(asyncio.all_tasks()) == 1
        assert played.relayed == []

    play(scene)


def test_what_the_client_sends_behind_it_waits_for_its_answer() -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.query(ACK)
        played.query(b"SELECT 1")
        assert (played.relayed, len(played.gathering.waiting)) == ([], 1)
        played.give(1)
        assert (played.answers, played.relayed, len(played.gathering.waiting)) == (DONE, [], 1)
        played.give(0)
        assert (played.answers, played.relayed) == (VOID, [b"SELECT 1"])

    play(scene)


def test_it_waits_for_the_answers_to_what_was_sent_before_it() -> None:
    async def scene(played: Played) -> None:
        played.query(b"SELECT 1")
        played.query(ACK)
        assert played.gathering.waiting == []
        played.answer(make_ok(status=AUTOCOMMIT))
        assert len(played.gathering.waiting) == 1

    play(scene)


@pytest.mark.parametrize("before", [b"SET TRANSACTION READ ONLY", b"DO f()", b"LOCK TABLES m WRITE"])
def test_it_is_the_sessions_own_behind_what_could_change_what_it_does(before: bytes) -> None:
    async def scene(played: Played) -> None:
        played.query(before)
        played.answer(make_ok(status=AUTOCOMMIT))
        played.query(ACK)
        assert played.gathering.waiting == []
        assert [packet.payload for packet in (await played.client.next(), await played.client.next())] == [OK, VOID[4:]]

    play(scene)


@pytest.mark.parametrize(("begin", "status"), [(b"BEGIN", AUTOCOMMIT | IN_TRANS), (b"SET autocommit = 0", 0)])
def test_it_is_the_sessions_own_in_a_transaction(begin: bytes, status: int) -> None:
    async def scene(played: Played) -> None:
        played.query(begin)
        played.answer(make_ok(status=status))
        played.query(ACK)
        assert played.gathering.waiting == []

    play(scene)


def test_one_that_is_not_gathered_is_carried_out_by_the_session_before_what_follows() -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.query(b"SELECT 1")
        played.give(None)
        assert (played.answers, played.relayed) == (b"", [])
        assert (await played.next_to_client()).payload == VOID[4:]
        assert played.alone == [b"\x03" + ACK]
        assert await played.next_to_server() == b"\x03SELECT 1"

    play(scene)


def test_one_that_was_interrupted_and_not_gathered_ends_with_the_interruption() -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.session.interrupt(INTERRUPTED)
        played.give(None)
        assert parse_err((await played.next_to_client()).payload).code == INTERRUPTED.code
        assert played.alone == []

    play(scene)


def test_one_that_is_done_in_spite_of_an_interruption_is_answered_so() -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.session.interrupt(INTERRUPTED)
        played.give(1)
        assert played.answers == DONE

    play(scene)


def test_an_unknown_outcome_is_an_error_and_the_connection_goes_on() -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.give(AckUnknownError("the connection broke"))
        error = parse_err((await played.next_to_client()).payload)
        assert (error.code, "Send the ACK again" in error.message) == (1105, True)
        played.query(b"SELECT 1")
        assert played.relayed == [b"SELECT 1"]

    play(scene)


@pytest.mark.parametrize("result", [1, None])
def test_a_client_whose_server_is_lost_meanwhile_learns_the_result_before_its_connection_ends(
    result: int | None,
) -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.session.server_lost()
        assert not played.client.is_closing()
        played.give(result)
        if result:
            assert played.answers == DONE
        else:
            assert parse_err((await played.next_to_client()).payload).code == 1053
        assert played.client.is_closing()
        assert played.alone == []

    play(scene)


@pytest.mark.parametrize("result", [1, None, AckUnknownError("the connection broke")])
def test_for_a_client_that_has_left_nothing_more_is_done(result: AckResult) -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.client.close()
        played.session.client_lost()
        played.give(result)
        await asyncio.sleep(0)
        assert (played.alone, played.relayed) == ([], [])

    play(scene)


@pytest.mark.parametrize("result", [1, None])
def test_an_error_that_ends_the_connection_does_not_wait_for_it(result: int | None) -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.session.hang_up(ServerError(1053, "08S01", "Server shutdown in progress"))
        assert parse_err((await played.next_to_client()).payload).code == 1053
        played.give(result)
        await asyncio.sleep(0)
        assert (played.answers, played.alone) == (b"", [])

    play(scene)
