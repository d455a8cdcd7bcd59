"""Queue statements of the greatest length that a program may make."""

from __future__ import annotations

import pymysql
import pytest

from engine.packets import frame
from proxy.wire.packets import parse_err
from sqlrewrite.ack import KEYS_MAX
from tests.support.proxies import running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import BASE, RawClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server


def test_an_ack_of_more_ids_than_are_read_acknowledges_them_and_frees_the_credit(proxy, consume, database) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        enqueue(client, "m", "abcd")
        consumer = consume(proxy.connect(database=database), "STREAM payload FROM m PREFETCH 2")
        eventually(lambda: len(consumer.received) == 2)
        ids = ", ".join(map(str, range(KEYS_MAX * 5)))
        assert run(client, f"ACK FROM m WHERE id IN ({ids}) AND epoch = 1") == 2
        eventually(lambda: len(consumer.received) == 4)
        assert consumer.received == [("a",), ("b",), ("c",), ("d",)]


def test_a_stream_with_as_many_parameters_as_a_statement_can_have_is_refused(proxy, database) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        with pytest.raises(pymysql.MySQLError, match="at most 1000 constants") as refused:
            rows(client, f"STREAM payload FROM m WHERE id IN ({', '.join('?' * 65_535)}) NOWAIT")
        assert refused.value.args[0] == 1064
        assert rows(client, "SELECT 1") == [(1,)]


def test_a_long_statement_that_never_ends_makes_room_for_one_that_does(server, database, tmp_path) -> None:
    """Together they have more than all clients may; the one that stalls is refused, and its connection goes on."""
    long = "ACK FROM m WHERE id IN (1, 2) /*" + "x" * (9 << 20) + "*/"
    config = tmp_path / "config.toml"
    config.write_text(f"statement_bytes_max = {16 << 20}")
    with (
        running_proxy(server, tmp_path / "log", ["--config", str(config)]) as proxy,
        RawClient(proxy, BASE, database) as stalled,
        proxy.connect(database=database) as client,
    ):
        create_queue(client, "m")
        enqueue(client, "m", "abc")
        packet = frame(b"\x03" + long.encode().ljust(12 << 20), 0)
        stalled.sock.sendall(packet[:-1])
        assert run(client, long) == 2
        assert parse_err(stalled.packet().payload).code == 1105
        stalled.sock.sendall(packet[-1:])
        assert len(stalled.query("SELECT 1")) > 1
