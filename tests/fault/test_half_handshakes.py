"""Peers that never finish their login, in numbers: each holds a connection no longer than `login_timeout_s`, and the
clients beside them notice nothing."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from tests.support.proxies import environment, running_proxy
from tests.support.queues import create_queue, enqueue, rows
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

PEERS = 60
"""The test servers accept a hundred or more connections."""
HALVES = (b"", b"\x20", b"\x20\0\0\1\x85\xa6", b"\xff\xff\xff\1")
"""Nothing, a byte of a packet's head, the begin of a login, and a login of 16 MB that never comes."""


def test_many_peers_that_never_log_in_harm_nobody(server, database, tmp_path: Path) -> None:
    with (
        environment(ACKSTREAM_LOGIN_TIMEOUT_S="3"),
        running_proxy(server, tmp_path / "log") as proxy,
        proxy.connect(database=database) as client,
        contextlib.ExitStack() as stack,
    ):
        create_queue(client, "m")
        for _ in range(2):
            peers = [stack.enter_context(socket.create_connection((proxy.host, proxy.port))) for _ in range(PEERS)]
            for number, peer in enumerate(peers):
                peer.sendall(HALVES[number % len(HALVES)])
            enqueue(client, "m", "a")
            assert len(rows(client, "STREAM id FROM m LIMIT 1 WAIT 20")) == 1
            for peer in peers:
                peer.settimeout(30)
                while peer.recv(4096):
                    pass
            eventually(lambda: proxy.metric("connections") == 1)
