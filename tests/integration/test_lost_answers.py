"""Acknowledgements that the proxy gets neither an answer to nor a change in the binary log of: the messages are over
all the same, and their credit is free.

The proxy leaves out of the binary log what has its slot in `time_acked`: it was made through it, nearly always.
"""

from __future__ import annotations

import pytest
from mysql_mimic.types import Commands

from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server


OWN_ACKS = "SET @ackstream_acks = 'session'"


def slot_in_acks(proxy: RunningProxy, database: str) -> int:
    """The slot that acknowledgements through the proxy have; 0: it has none yet."""
    with proxy.connect(database=database) as client:
        run(client, OWN_ACKS)
        enqueue(client, "m", ["before"])
        ((number,),) = rows(client, "STREAM id FROM m LIMIT 1 WAIT 10")
        assert run(client, f"ACK m WHERE id = {number}") == 1
        ((slot,),) = rows(client, f"SELECT time_acked % 1000 FROM m WHERE id = {number}")
        return int(slot)


@pytest.mark.parametrize("vanishes", [False, True], ids=["the answer is late", "its client has left"])
def test_the_next_message_comes_though_the_answer_to_the_acknowledgement_does_not(
    server, database, gated_proxy, gate, consume, vanishes: bool
) -> None:
    with gated_proxy.connect(database=database) as client:
        create_queue(client, "m")
    eventually(lambda: gated_proxy.metric("binlog_following") == 1, timeout_s=30)
    eventually(lambda: slot_in_acks(gated_proxy, database))
    consumer = consume(gated_proxy.connect(database=database), "STREAM id FROM m PREFETCH 1")
    with connect(server, database=database) as direct:
        enqueue(direct, "m", ["a", "b"])
        eventually(lambda: len(consumer.received) == 1)
        ((held,),) = consumer.received
        client = RawClient(gated_proxy, database=database)
        client.query(OWN_ACKS)
        gate.hold(client.greeting.connection_id, passing=1)  # The session's context is read before its first ACK.
        client.send(bytes([Commands.COM_QUERY]) + f"ACK m WHERE id = {held}".encode())
        eventually(lambda: rows(direct, f"SELECT time_acked % 1000 > 0 FROM m WHERE id = {held}") == [(1,)])
        eventually(gate.held)
        if vanishes:
            client.sock.close()
        eventually(lambda: len(consumer.received) == 2)
    gate.release()
    if not vanishes:
        client.answer(int(Commands.COM_QUERY))
        client.sock.close()


def test_the_next_message_comes_though_another_program_acknowledges_with_the_slot_of_the_proxy(
    server, database, gated_proxy, consume
) -> None:
    with gated_proxy.connect(database=database) as client:
        create_queue(client, "m")
    eventually(lambda: gated_proxy.metric("binlog_following") == 1, timeout_s=30)
    eventually(lambda: slot_in_acks(gated_proxy, database))
    slot = slot_in_acks(gated_proxy, database)
    consumer = consume(gated_proxy.connect(database=database), "STREAM id FROM m PREFETCH 1")
    with connect(server, database=database) as direct:
        enqueue(direct, "m", ["a", "b"])
        eventually(lambda: len(consumer.received) == 1)
        ((held,),) = consumer.received
        acked = f"UNIX_TIMESTAMP() * 1000000000 + {slot}"
        assert run(direct, f"UPDATE m SET time_acked = {acked}, time_next = NULL WHERE id = {held}") == 1
        eventually(lambda: len(consumer.received) == 2)
