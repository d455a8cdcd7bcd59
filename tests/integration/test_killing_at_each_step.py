"""KILL QUERY while a queue statement is carried out: it is effective at each of its steps."""

from __future__ import annotations

import socket
from itertools import count

import pytest
from mysql_mimic.types import Commands

from engine.packets import OK
from proxy.wire.framing import Packet
from proxy.wire.packets import parse_err
from tests.support.gate import Gate
from tests.support.queues import create_queue, enqueue
from tests.support.raw import RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

STREAM = "STREAM * FROM m NOWAIT"
PREPARE_STREAM = bytes([Commands.COM_STMT_PREPARE]) + STREAM.encode()
QUERY = int(Commands.COM_QUERY)
EXECUTE = int(Commands.COM_STMT_EXECUTE)


@pytest.fixture
def queue(gated_proxy, database: str) -> str:
    with gated_proxy.connect(database=database) as connection:
        create_queue(connection, "m")
        enqueue(connection, "m", ["a"])
    return database


def killed_at(step: int, gate: Gate, killer: RawClient, client: RawClient, payload: bytes) -> list[Packet] | None:
    """The answer to a statement that is killed when so many internal queries are answered and the next one is under
    way; None if there are no more than so many."""
    number = client.greeting.connection_id
    gate.hold(number, passing=step)
    client.send(payload)

    def held_or_done() -> bool:
        client.sock.setblocking(False)
        try:
            return gate.held() or bool(client.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            client.sock.setblocking(True)

    eventually(held_or_done)
    if not gate.held():
        client.answer(payload[0])
        gate.release()
        return None
    killer.query(f"KILL QUERY {number}")
    gate.release()
    return client.answer(payload[0])


def query(text: str) -> bytes:
    return bytes([QUERY]) + text.encode()


@pytest.mark.parametrize(
    ("payload", "least", "relayed"),
    [
        (query(STREAM), 4, False),
        (PREPARE_STREAM, 3, True),
        (query("ACK FROM m WHERE payload = 'ü'"), 1, True),
    ],
    ids=["STREAM", "PREPARE STREAM", "ACK"],
)
def test_a_queue_statement_is_interrupted_at_each_of_its_internal_queries(
    gate, gated_proxy, queue, payload, least, relayed
) -> None:
    with RawClient(gated_proxy, database=queue) as killer, RawClient(gated_proxy, database=queue) as client:
        for step in count():
            answer = killed_at(step, gate, killer, client, payload)
            if answer is None:
                break
            if relayed and answer[0].payload[0] == OK:
                break  # It is the server's own answer to the UPDATE or PREPARE, which was done when the KILL came.
            assert [parse_err(packet.payload).code for packet in answer] == [1317], f"at query {step}"
        assert step >= least
        assert client.query("SELECT 'alive'")[-2].payload == b"\x05alive"


def test_a_known_stream_is_interrupted_between_the_answers_to_its_internal_queries(gate, gated_proxy, queue) -> None:
    with RawClient(gated_proxy, database=queue) as killer, RawClient(gated_proxy, database=queue) as client:
        for payload in (query(STREAM), client.execution(client.prepare(STREAM))):
            client.ask(payload)
            for step in count():
                answer = killed_at(step, gate, killer, client, payload)
                if answer is None:
                    break
                assert [parse_err(packet.payload).code for packet in answer] == [1317], f"at answer {step}"
            assert 1 <= step <= 3
            assert client.query("SELECT 'alive'")[-2].payload == b"\x05alive"


def test_the_execution_of_a_prepared_stream_is_interrupted_at_each_of_its_internal_queries(
    gate, gated_proxy, queue
) -> None:
    with RawClient(gated_proxy, database=queue) as killer, RawClient(gated_proxy, database=queue) as client:
        execution = client.execution(client.prepare(STREAM))
        for step in count():
            answer = killed_at(step, gate, killer, client, execution)
            if answer is None:
                break
            assert [parse_err(packet.payload).code for packet in answer] == [1317], f"at query {step}"
        assert step >= 4


def test_kill_query_right_after_an_endless_stream_began_ends_it(server, proxy, database) -> None:
    with connect(server, database=database) as root:
        create_queue(root, "m")
    with RawClient(proxy) as killer, RawClient(proxy, database=database) as client:
        for _ in range(16):
            client.send(query("STREAM * FROM m"))
            killer.query(f"KILL QUERY {client.greeting.connection_id}")
            assert parse_err(client.answer(QUERY)[-1].payload).code == 1317
