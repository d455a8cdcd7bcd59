"""Statements of ours that are as long as a program may make them."""

from __future__ import annotations

import pymysql
import pytest

from sqlrewrite.ack import KEYS_MAX
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.waiting import eventually


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
