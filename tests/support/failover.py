"""What tests need of a proxy in front of several servers."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from typing import Any

import pymysql

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy
from tests.support.queues import rows
from tests.support.waiting import eventually


def url(server: EmbeddedServer) -> str:
    """A further server, for `--backend`."""
    return f"mysql://root@{server.host}:{server.port}"


def health(proxy: RunningProxy) -> str:
    """The text of /health, whatever its status."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{proxy.admin_port}/health") as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def client_of(proxy: RunningProxy, server: EmbeddedServer) -> Any:
    """A client through the proxy, as soon as the proxy uses this server."""

    def connected() -> Any:
        with contextlib.suppress(pymysql.MySQLError):
            client = proxy.connect(database="shop")
            if rows(client, "SELECT @@port") == [(server.port,)]:
                return client
            client.close()
        return None

    return eventually(connected, timeout_s=20, what=f"a client of {server.port}")
