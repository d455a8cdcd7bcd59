"""A proxy with `streams = off`: it relays statements, delivers nothing, and wakes the streams of other proxies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer
from proxy.wire.commands import COM_STMT_PREPARE
from tests.support import insides
from tests.support.proxies import RunningProxy, proxies_of
from tests.support.queues import Consumer, create_queue, enqueue, rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

Begin = Callable[..., RunningProxy]


@pytest.fixture
def begin(server: EmbeddedServer, tmp_path: Path) -> Iterator[Begin]:
    """Begin a proxy that only relays, with these settings."""
    with proxies_of(tmp_path) as start:

        def relaying(**settings: str) -> RunningProxy:
            return start(server, "--streams", "off", **settings)

        yield relaying


def test_a_stream_is_refused_with_what_to_do_and_the_session_goes_on(begin: Begin, database: str) -> None:
    with begin().connect(database=database) as client:
        run(client, "CREATE QUEUE m (payload TEXT)")
        for statement in ("STREAM * FROM m", "STREAM id FROM m LIMIT 1 NOWAIT", "STREAM * FROM m WAIT 1 FOR UPDATE"):
            with pytest.raises(pymysql.MySQLError) as refused:
                rows(client, statement)
            code, text = refused.value.args
            assert code == 1105
            assert "(streams = off): connect to one that has streams" in text
        insides.send(client, COM_STMT_PREPARE, b"STREAM * FROM m")
        with pytest.raises(pymysql.MySQLError, match="streams = off"):
            insides.packet(client)
        assert rows(client, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("binlog", ["auto", "off"])
def test_what_is_inserted_there_goes_to_the_streams_of_others_and_may_be_acknowledged_there(
    begin: Begin, proxy: RunningProxy, database: str, consume: Callable[..., Consumer], binlog: str
) -> None:
    """By the binary log of the other proxy, whether or not this one follows it."""
    with begin(binlog=binlog).connect(database=database) as client:
        create_queue(client, "m", vt_ack_wait="600")
        consumer = consume(proxy.connect(database=database), "STREAM * FROM m PREFETCH 1")
        eventually(lambda: proxy.metric("streams") >= 1 and proxy.metric("binlog_following") == 1)
        for number in range(1, 6):
            enqueue(client, "m", "a")
            eventually(lambda: len(consumer.received) == number)  # noqa: B023
            assert run(client, f"ACK m WHERE id = {number}") == 1


def test_without_a_binary_log_the_poller_of_the_queue_finds_what_was_inserted_there(
    begin: Begin, server: EmbeddedServer, database: str, consume: Callable[..., Consumer], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with proxies_of(tmp_path / "other") as start, begin(binlog="off").connect(database=database) as client:
        polling = start(server, binlog="off")
        create_queue(client, "m", vt_poller_interval="1")
        consumer = consume(polling.connect(database=database), "STREAM * FROM m")
        eventually(lambda: polling.metric("streams") == 1)
        enqueue(client, "m", "a")
        eventually(lambda: len(consumer.received) == 1)


def test_it_has_no_slot_and_shows_all_proxies(begin: Begin, proxy: RunningProxy, database: str) -> None:
    with begin().connect(database=database) as here, proxy.connect(database=database) as there:
        (own,) = [row for row in rows(here, "SHOW PROXIES") if row[0] is None]
        assert (own[4], own[5]) == (0, 0)

        def slots(client: Any) -> set[int]:
            return {row[0] for row in rows(client, "SHOW PROXIES")} - {None}

        eventually(lambda: slots(there) and slots(here) == slots(there))
