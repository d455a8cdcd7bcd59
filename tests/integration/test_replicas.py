"""Replicas and readers of the binary log through the proxy."""

from __future__ import annotations

from typing import Any

import pytest
from mysql_mimic.types import Commands
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from engine.packets import EOF
from proxy.wire.packets import parse_err
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import BASE, RawClient
from tests.support.servers import connect

pytestmark = pytest.mark.either_server

EVENT_TYPE_AT = 5
HEARTBEATS = {27, 41}
"""Events that tell of nothing but that the server is there."""

REPLICA = 4_711
DO_NOT_WAIT = 1


def register(client: RawClient) -> None:
    """Say that a replica is here, which knows of checksums."""
    client.query("SET @source_binlog_checksum = @@GLOBAL.binlog_checksum")
    client.query("SET @master_binlog_checksum = @@GLOBAL.binlog_checksum")
    client.query("SET @mariadb_slave_capability = 4")
    names = b"\x04host\x04user\x00"
    body = REPLICA.to_bytes(4, "little") + names + (3306).to_bytes(2, "little") + bytes(8)
    client.ask(bytes([Commands.COM_REGISTER_SLAVE]) + body)


def dump(file: str, flags: int) -> bytes:
    """The command that asks for a binary log from its beginning."""
    head = bytes([Commands.COM_BINLOG_DUMP]) + (4).to_bytes(4, "little") + flags.to_bytes(2, "little")
    return head + REPLICA.to_bytes(4, "little") + file.encode()


@pytest.fixture
def file(server, database) -> str:
    """The name of a binary log that begins with what happens in this test."""
    with connect(server, database=database) as root:
        create_queue(root, "m")
        run(root, "FLUSH BINARY LOGS")
        enqueue(root, "m", ["first"])
        return str(rows(root, "SHOW BINARY LOGS")[-1][0])


def test_a_binary_log_comes_event_for_event_as_on_a_direct_connection(server, proxy, file) -> None:
    logs = []
    for place in (server, proxy):
        with RawClient(place, BASE) as client:
            register(client)
            *events, end = client.ask(dump(file, DO_NOT_WAIT))
            assert end.payload[0] == EOF
            with pytest.raises(ConnectionResetError):  # A dump is the last that a connection is for.
                client.query("SELECT 1")
            logs.append([event.payload for event in events if event.payload[EVENT_TYPE_AT] not in HEARTBEATS])
    direct, relayed = logs
    assert relayed[: len(direct)] == direct
    assert any(b"first" in event for event in direct)


def test_a_replica_that_waits_gets_events_as_they_are_committed(proxy, database, file) -> None:
    with RawClient(proxy, BASE) as client, proxy.connect(database=database) as producer:
        register(client)
        client.send(dump(file, 0))
        for word in ("second", "third"):
            enqueue(producer, "m", [word])
            while word.encode() not in client.packet().payload:
                pass


def test_a_log_that_is_not_there_is_the_servers_own_error(proxy) -> None:
    with RawClient(proxy, BASE) as client:
        register(client)
        assert parse_err(client.ask(dump("no_such_log.000001", 0))[-1].payload).code == 1236


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Of the library, which calls PyMySQL as of old.
def test_a_reader_of_changes_follows_a_queue_through_the_proxy(proxy, database, file) -> None:
    settings = {"host": proxy.host, "port": proxy.port, "user": "root", "password": "", "ssl_disabled": True}
    reader: Any = BinLogStreamReader(
        connection_settings=settings,
        server_id=REPLICA,
        log_file=file,
        log_pos=4,
        resume_stream=True,
        blocking=True,
        only_events=[WriteRowsEvent],
        only_schemas=[database],
    )
    with proxy.connect(database=database) as producer:
        enqueue(producer, "m", ["second"])
    try:
        events = iter(reader)
        texts = [str(next(events).rows) for _ in range(2)]
    finally:
        reader.close()
    assert "first" in texts[0]
    assert "second" in texts[1]
