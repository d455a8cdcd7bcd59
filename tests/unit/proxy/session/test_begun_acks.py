"""An ACK that the engine carries out: what its session does until the result is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from engine.model import TableId
from engine.packets import frame
from engine.queue_table import SettleColumns
from engine.service import Engine
from engine.store.port import AckResult, AckUnknownError, Origin
from proxy.session.stream import INTERRUPTED
from proxy.settings import Settings
from proxy.statements.statements import Statements
from proxy.wire.framing import frame_rows
from proxy.wire.packets import AUTOCOMMIT, IN_TRANS, ServerError, make_err, make_ok, parse_err
from sqlrewrite.ack import parse_settle
from tests.support.scripted import rows
from tests.support.sessions import FakeProxy, PlayedSession

TABLE = TableId("shop", "m")
DONE, VOID = (
    frame(make_ok(affected_rows=count, info=b"Rows matched: %d  Changed: %d  Warnings: 0" % (count, count)), 1)
    for count in (1, 0)
)
OK = make_ok()
ACK = b"ACK shop.m WHERE id = 7"
UPDATE = parse_settle(ACK).update(by_primary_key=True)
DEFINITION = rows(("m", "CREATE TABLE `m` (id INT) COMMENT='vitess_message'"), status=AUTOCOMMIT)
TEMPORARY = rows(("m", "CREATE TEMPORARY TABLE `m` (id INT)"), status=AUTOCOMMIT)


class Acting:
    """An engine that carries out each ACK, and leaves its result to the test."""

    def __init__(self) -> None:
        self.acts = self.has_no_trigger = True
        self.waiting: list[tuple[tuple[object, ...], Callable[[AckResult], object]]] = []

    def known_to_settle(self, table: TableId) -> SettleColumns:
        return SettleColumns(table, by_primary_key=True)

    async def to_settle(self, table: TableId) -> SettleColumns:
        return self.known_to_settle(table)

    def may_carry_out_acks(self, _table: TableId) -> bool:
        return self.has_no_trigger

    def carry_out_ack(
        self,
        _table: TableId,
        values: Sequence[object],
        _epoch: int | None,
        _at: Origin,
        answer: Callable[[AckResult], object],
    ) -> bool:
        if self.acts:
            self.waiting.append((tuple(values), answer))
        return self.acts

    def __getattr__(self, _name: str) -> Any:
        """What else an engine is called for does nothing."""
        return lambda *_args, **_options: None


class Played(PlayedSession):
    """A session that has shown that it may acknowledge messages."""

    def __init__(self) -> None:
        self.acting = Acting()
        statements = Statements(cast(Engine, self.acting), Settings(), tuple)
        super().__init__(statements.carry_out, self.acting)
        cast(FakeProxy, self.session.proxy).begin_settling = statements.begin_settling
        rights = self.session.classifier.proven_rights
        rights.remember(TABLE, fenced=False, begun_s=rights.begin())

    def give(self, result: AckResult) -> None:
        """The result of the ACK that waits."""
        ((_, answer),) = self.acting.waiting
        self.acting.waiting.clear()
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


def test_its_answer_is_that_of_an_update_and_no_task_is_needed() -> None:
    async def scene(played: Played) -> None:
        for number, (count, answer) in enumerate([(1, DONE), (0, VOID), (1, DONE)]):
            played.query(b"ACK shop.m WHERE id = %d" % number)
            assert [keys for keys, _ in played.acting.waiting] == [(number,)]
            assert not played.session.idle
            played.give(count)
            assert played.answers == answer
            assert played.session.idle
        assert len(asyncio.all_tasks()) == 1
        assert played.relayed == []

    play(scene)


def test_one_of_several_messages_is_answered_with_their_number() -> None:
    async def scene(played: Played) -> None:
        played.query(b"ACK FROM shop.m WHERE id IN (7, 8, 9)")
        assert [keys for keys, _ in played.acting.waiting] == [(7, 8, 9)]
        played.give(2)
        assert b"Rows matched: 2  Changed: 2" in played.answers

    play(scene)


def test_what_the_client_sends_behind_it_waits_for_its_answer() -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.query(ACK)
        played.query(b"SELECT 1")
        assert (played.relayed, len(played.acting.waiting)) == ([], 1)
        played.give(1)
        assert (played.answers, played.relayed, len(played.acting.waiting)) == (DONE, [], 1)
        played.give(0)
        assert (played.answers, played.relayed) == (VOID, [b"SELECT 1"])

    play(scene)


def test_it_waits_for_the_answers_to_what_was_sent_before_it() -> None:
    async def scene(played: Played) -> None:
        played.query(b"SELECT 1")
        played.query(ACK)
        assert played.acting.waiting == []
        played.answer(make_ok(status=AUTOCOMMIT))
        assert len(played.acting.waiting) == 1

    play(scene)


@pytest.mark.parametrize("before", [b"SET TRANSACTION READ ONLY", b"LOCK TABLES m WRITE"])
def test_it_is_forwarded_behind_what_another_connection_does_not_have(before: bytes) -> None:
    async def scene(played: Played) -> None:
        played.query(before)
        played.answer(make_ok(status=AUTOCOMMIT))
        played.query(ACK)
        assert played.acting.waiting == []
        assert played.relayed == [before, UPDATE]

    play(scene)


@pytest.mark.parametrize(("begin", "status"), [(b"BEGIN", AUTOCOMMIT | IN_TRANS), (b"SET autocommit = 0", 0)])
def test_it_is_forwarded_in_a_transaction(begin: bytes, status: int) -> None:
    async def scene(played: Played) -> None:
        played.query(begin)
        played.answer(make_ok(status=status))
        played.query(ACK)
        assert played.acting.waiting == []
        assert played.relayed == [begin, UPDATE]

    play(scene)


@pytest.mark.parametrize("lacks", ["acts", "has_no_trigger"])
def test_it_is_forwarded_if_the_engine_does_not_act(lacks: str) -> None:
    async def scene(played: Played) -> None:
        setattr(played.acting, lacks, False)
        played.query(ACK)
        assert (played.acting.waiting, played.relayed) == ([], [UPDATE])

    play(scene)


@pytest.mark.parametrize("text", [b"NACK shop.m WHERE id = 7", b"ACK shop.m WHERE id = 7 OR TRUE"])
def test_any_other_statement_about_messages_is_forwarded_without_a_task(text: bytes) -> None:
    async def scene(played: Played) -> None:
        played.query(text)
        assert played.acting.waiting == []
        assert [b"UPDATE" in command for command in played.relayed] == [True]
        assert len(asyncio.all_tasks()) == 1

    play(scene)


def test_without_a_proof_the_session_shows_first_that_it_may() -> None:
    async def scene(played: Played) -> None:
        played.session.classifier.proven_rights.forget()
        played.session.server_is("server")
        for refused in (True, False):
            played.query(ACK)
            assert (await played.next_to_server())[1:12] == b"SHOW CREATE"
            update = await played.next_to_server()
            assert update.startswith(b"\x03UPDATE `shop`.`m`")
            assert update.endswith(b"LIMIT 0")
            shown = make_err(1142, "42000", "denied") if refused else make_ok()
            played.session.server_sent(frame_rows(DEFINITION, 1)[0] + frame(shown, 1))
            if refused:
                assert await played.next_to_server() == b"\x03" + UPDATE
                played.answer(shown)
                assert parse_err((await played.next_to_client()).payload).code == 1142
        await asyncio.sleep(0)
        played.give(1)
        assert (await played.next_to_client()).payload == DONE[4:]
        for _ in range(3):  # The task of the first one ends.
            await asyncio.sleep(0)
        played.query(ACK)
        assert len(played.acting.waiting) == 1

    play(scene)


def test_a_temporary_table_of_its_name_is_no_proof() -> None:
    async def scene(played: Played) -> None:
        played.session.classifier.proven_rights.forget()
        played.session.server_is("server")
        played.query(ACK)
        await played.next_to_server()
        await played.next_to_server()
        played.session.server_sent(frame_rows(TEMPORARY, 1)[0] + frame(make_ok(), 1))
        assert await played.next_to_server() == b"\x03" + UPDATE
        assert not played.session.classifier.proven_rights

    play(scene)


def test_one_that_is_not_carried_out_is_forwarded_before_what_follows() -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.query(b"SELECT 1")
        played.give(None)
        assert (played.answers, played.relayed) == (b"", [UPDATE, b"SELECT 1"])

    play(scene)


def test_one_that_was_interrupted_and_not_carried_out_ends_with_the_interruption() -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.session.interrupt(INTERRUPTED)
        played.give(None)
        assert parse_err((await played.next_to_client()).payload).code == INTERRUPTED.code
        assert played.relayed == []

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
        assert played.relayed == []

    play(scene)


@pytest.mark.parametrize("result", [1, None, AckUnknownError("the connection broke")])
def test_for_a_client_that_has_left_nothing_more_is_done(result: AckResult) -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.client.close()
        played.session.client_lost()
        played.give(result)
        await asyncio.sleep(0)
        assert played.relayed == []

    play(scene)


@pytest.mark.parametrize("result", [1, None])
def test_an_error_that_ends_the_connection_does_not_wait_for_it(result: int | None) -> None:
    async def scene(played: Played) -> None:
        played.query(ACK)
        played.session.hang_up(ServerError(1053, "08S01", "Server shutdown in progress"))
        assert parse_err((await played.next_to_client()).payload).code == 1053
        played.give(result)
        await asyncio.sleep(0)
        assert (played.answers, played.relayed) == (b"", [])

    play(scene)
