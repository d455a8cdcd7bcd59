"""Accounts bound to a client's host: with the PROXY protocol, without it, and on servers that do not take it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import binary_or_skip, connect, running_server

pytestmark = pytest.mark.either_server

SAID: dict[Flavour, str] = {
    "mysql": "Got packets out of order",
    "mariadb": "Proxy header is not accepted from 127.0.0.1",
}


def refused_from(proxy: RunningProxy, address: str) -> str:
    with pytest.raises(pymysql.OperationalError) as refused:
        proxy.connect(user="worker", bind_address=address)
    return str(refused.value)


def test_an_account_of_one_host_is_for_clients_on_that_host(tmp_path: Path) -> None:
    binary_or_skip("mariadb")
    with (
        running_server("mariadb", options=["--proxy-protocol-networks=127.0.0.1"]) as server,
        running_proxy(server, tmp_path / "on.log", ["--proxy-protocol", "on"]) as telling,
        running_proxy(server, tmp_path / "off.log") as silent,
    ):
        with connect(server) as root:
            run(root, "CREATE DATABASE shop")
            run(root, "CREATE USER worker@127.0.0.2")
            run(root, "GRANT ALL ON shop.* TO worker@127.0.0.2")
        for secure in (False, True):
            options = {"user": "worker", "bind_address": "127.0.0.2", "database": "shop", "ssl_disabled": not secure}
            with telling.connect(**options) as client:
                assert rows(client, "SELECT CURRENT_USER()") == [("worker@127.0.0.2",)]
                ((_, cipher),) = rows(client, "SHOW STATUS LIKE 'Ssl_cipher'")
                assert bool(cipher) is secure
        with telling.connect(user="worker", bind_address="127.0.0.2", database="shop") as client:
            create_queue(client, "m")
            enqueue(client, "m", "a")
            assert rows(client, "STREAM * FROM m LIMIT 1 WAIT 20") == [(1, "a")]
        assert "1130" in refused_from(telling, "127.0.0.3")
        assert "1045" in refused_from(telling, "127.0.0.1")
        assert "1045" in refused_from(silent, "127.0.0.2")


def test_a_server_that_does_not_take_it_is_found_at_start_with_its_own_words(
    server: EmbeddedServer, flavour: Flavour, tmp_path: Path
) -> None:
    options = ["--backend", f"mysql://root@{server.host}:{server.port}", "--data-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "serve", *options, "--listen", "127.0.0.1:0", "--proxy-protocol", "on"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ackstream: ")]
    assert "does not take the header of the PROXY protocol" in line
    assert SAID[flavour] in line
