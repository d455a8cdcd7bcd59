"""Polls through several proxies on one server: STREAM … NOWAIT returns what is due, whichever proxy's share it is."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import running_proxy
from tests.support.queues import create_queue, enqueue, rows
from tests.support.servers import connect

pytestmark = pytest.mark.either_server


def test_each_proxy_gets_messages_as_long_as_some_are_due(
    server: EmbeddedServer, database: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        proxies = [stack.enter_context(running_proxy(server, tmp_path / f"{number}.log")) for number in range(3)]
        clients = [stack.enter_context(proxy.connect(database=database)) for proxy in proxies]
        direct = stack.enter_context(connect(server))
        direct.select_db(database)
        for turn in range(8):  # The shares change when a proxy gets its first stream of a queue.
            queue = f"q{turn}"
            create_queue(clients[0], queue)
            enqueue(direct, queue, "abcdef")
            counts = [len(rows(client, f"STREAM id FROM {queue} LIMIT 2 NOWAIT")) for client in clients]
            assert counts == [2, 2, 2]
