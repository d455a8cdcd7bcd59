"""The log of a running proxy: each line is an event, and shows neither statements nor secrets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import connect

pytestmark = pytest.mark.either_server

ENGINE, CLIENT = "EnginesPassword4711", "ClientsPassword0815"
PAYLOAD, CONDITION = "the-payload", "the-condition"
REFUSED = (
    f"STREAM * FROM m WHERE payload = '{CONDITION}' AND",
    f"STREAM * FROM m WHERE nothing = '{CONDITION}'",
    f"ACK m WHERE id = '{CONDITION}'",
    f"ACK m WHERE payload = (SELECT '{CONDITION}')",
    f"CREATE QUEUE m (payload TEXT DEFAULT '{CONDITION}' DEFAULT)",
    f"SELECT '{CONDITION}' FROM",
)


@contextlib.contextmanager
def account(server: EmbeddedServer, database: str, password: str) -> Iterator[str]:
    """An account with all rights."""
    user = f"{database}_{password[:3]}"
    with connect(server) as root:
        run(root, f"CREATE USER {user}@localhost IDENTIFIED BY '{password}'")
        run(root, f"GRANT ALL ON *.* TO {user}@localhost")
        try:
            yield user
        finally:
            run(root, f"DROP USER {user}@localhost")


def test_neither_statements_nor_payloads_nor_passwords_are_logged(
    server: EmbeddedServer, database: str, tmp_path: Path
) -> None:
    with account(server, database, ENGINE) as engine, account(server, database, CLIENT) as user:
        credentials, form = f"{engine}:{ENGINE}", ["--log-format", "json"]
        with running_proxy(server, tmp_path / "log", form, account=credentials, forked=False) as proxy:
            with pytest.raises(pymysql.OperationalError):
                proxy.connect(user=user, password=CLIENT + "x")
            with proxy.connect(user=user, password=CLIENT, database=database) as client:
                create_queue(client, "m")
                enqueue(client, "m", [PAYLOAD])
                for statement in REFUSED:
                    with contextlib.suppress(pymysql.MySQLError):
                        run(client, statement)
                assert len(rows(client, "STREAM * FROM m NOWAIT")) == 1
            with connect(server) as root:
                run(root, f"ALTER TABLE {database}.m COMMENT 'vitess_message,vt_ack_wait=x'")
            again = proxy.connect(user=user, password=CLIENT, database=database)
            with again as client, pytest.raises(pymysql.MySQLError):
                rows(client, "STREAM * FROM m NOWAIT")
            proxy.terminate()
        lines = [
            line
            for line in proxy.output.splitlines()
            if not line.startswith(("ackstream ready ", "the page of queues: "))
        ]
        events = {json.loads(line)["event"] for line in lines}
        assert {"proxy.ready", "queue.ready", "queue.unusable", "drain.began"} <= events
        for secret in (ENGINE, CLIENT, PAYLOAD, CONDITION):
            assert secret not in proxy.output
