"""Clients that send ahead: commands behind one another in one segment, some of them ours."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from engine.packets import frame
from tests.support import insides
from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import RawClient
from tests.support.servers import MARIADBS
from tests.support.waiting import eventually


def queries(*statements: str) -> bytes:
    """One COM_QUERY packet each."""
    return b"".join(frame(b"\x03" + statement.encode(), 0) for statement in statements)


def results(connection: Any, count: int) -> list[tuple[tuple[Any, ...], ...]]:
    """The rows of the next results, as PyMySQL reads them; of an OK the affected rows."""
    found = []
    for _ in range(count):
        insides.expect_answer(connection)
        result = insides.answer(connection)
        found.append(result.rows if result.rows is not None else ((result.affected_rows,),))
    return found


def test_commands_before_and_behind_a_stream_are_answered_in_order(proxy: RunningProxy, database: str) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        enqueue(client, "m", "ab")
        insides.socket_of(client).sendall(
            queries("SELECT 1", "STREAM * FROM m NOWAIT", "SELECT 2", "ACK FROM m WHERE id IN (1, 2)", "SELECT 3")
        )
        assert results(client, 5) == [((1,),), ((1, "a"), (2, "b")), ((2,),), ((2,),), ((3,),)]


def test_a_statement_of_ours_may_come_a_byte_at_a_time(proxy: RunningProxy, database: str) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        enqueue(client, "m", "a")
        insides.socket_of(client).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in queries("STREAM * FROM m NOWAIT", "SELECT 1"):
            insides.socket_of(client).sendall(bytes([byte]))
        assert results(client, 2) == [((1, "a"),), ((1,),)]


def test_an_acknowledgement_of_many_kilobytes_is_ours_too(proxy: RunningProxy, database: str) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        enqueue(client, "m", map(str, range(3_000)))
        keys = ", ".join(map(str, range(1, 3_001)))
        assert run(client, f"/* {'x' * 3_000} */ ACK FROM m WHERE id IN ({keys})") == 3_000


def test_a_thousand_commands_sent_ahead_are_all_answered(proxy: RunningProxy, database: str) -> None:
    with proxy.connect(database=database) as client:
        insides.socket_of(client).sendall(queries(*(f"SELECT {i}" for i in range(5_000))))
        assert results(client, 5_000) == [((i,),) for i in range(5_000)]
        assert rows(client, "SELECT 'done'") == [("done",)]


def test_a_stream_sent_ahead_of_a_stream_begins_when_that_ends(proxy: RunningProxy, database: str) -> None:
    with proxy.connect(database=database) as client, proxy.connect(database=database) as producer:
        create_queue(client, "m")
        insides.socket_of(client).sendall(
            queries("STREAM id FROM m LIMIT 1", "STREAM id FROM m LIMIT 1", "SELECT 'end'")
        )
        enqueue(producer, "m", "ab")
        assert results(client, 3) == [((1,),), ((2,),), (("end",),)]


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")  # MySQL knows no such number.
def test_a_stream_may_be_executed_before_its_prepare_is_answered(proxy: RunningProxy, database: str) -> None:
    """MariaDB's drivers do it, by the number that means "the statement prepared last"."""
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        enqueue(client, "m", "a")
        prepare = frame(b"\x16STREAM id FROM m NOWAIT", 0)
        execute = frame(b"\x17\xff\xff\xff\xff\x00\x01\x00\x00\x00", 0)
        insides.socket_of(client).sendall(prepare + execute + queries("SELECT 'end'"))
        insides.expect_answer(client)
        _prepared, _column, _eof = (insides.packet(client) for _ in range(3))
        insides.expect_answer(client)
        _count, _column, _eof, row, _end = (insides.packet(client) for _ in range(5))
        assert row == b"\x00\x00" + (1).to_bytes(8, "little")
        assert results(client, 1) == [(("end",),)]


@pytest.mark.parametrize("prepared", [False, True], ids=["text", "prepared"])
@pytest.mark.parametrize("undo", ["ROLLBACK AND CHAIN", "ROLLBACK TO SAVEPOINT s"])
def test_an_acknowledgement_that_is_undone_by_what_was_sent_ahead_leaves_its_message_in_flight(
    proxy: RunningProxy, database: str, consume: Any, undo: str, prepared: bool
) -> None:
    with proxy.connect(database=database) as other, RawClient(proxy, database=database) as client:
        create_queue(other, "m")
        refreshed = proxy.metric("catalog_refreshes_total")
        enqueue(other, "m", "ab")
        consumer = consume(proxy.connect(database=database), "STREAM id FROM m PREFETCH 1")
        eventually(lambda: consumer.received == [(1,)])
        # Only then does the engine know that the table has no trigger, and trust any ACK.
        eventually(lambda: proxy.metric("catalog_refreshes_total") > refreshed)
        acknowledge = b"\x03ACK m WHERE id = 1"
        if prepared:
            acknowledge = client.execution(client.prepare("ACK m WHERE id = ?"), 1)
        client.query("BEGIN")
        client.query("SAVEPOINT s")
        client.sock.sendall(frame(acknowledge, 0) + queries(undo))
        assert [len(client.answer(command)) for command in (acknowledge[0], 3)] == [1, 1]
        client.query("COMMIT")
        assert rows(other, "STREAM id FROM m LIMIT 1 NOWAIT") == [(2,)]
        assert consumer.received == [(1,)]
