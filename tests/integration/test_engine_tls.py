"""The engine's own connections under TLS, where PyMySQL's socket is another one than it began with."""

from __future__ import annotations

import ssl
import threading

import pytest

from engine.packets import text_values
from engine.store.connection import StoreConnection
from engine.store.opening import BackendAddress, ConnectionLimits
from engine.store.port import StoreError
from proxy.embedded.server import EmbeddedServer
from tests.support.servers import connect
from tests.support.waiting import eventually


@pytest.fixture
def connection(server: EmbeddedServer) -> StoreConnection:
    return StoreConnection(BackendAddress(server.host, server.port, "root", tls=True), ConnectionLimits())


def test_commands_and_rows_go_through_tls(connection: StoreConnection) -> None:
    assert isinstance(connection._socket, ssl.SSLSocket)
    size = 100_000
    status, row = connection.run(
        ["SHOW SESSION STATUS LIKE 'Ssl_version'", f"SELECT '{'x' * size}', LENGTH(@@version) > 0"]
    )
    assert (text_values(status.rows[0])[1] or b"").startswith(b"TLS")
    assert text_values(row.rows[0]) == [b"x" * size, b"1"]
    assert not connection.stale()
    connection.close()
    assert connection.stale()


def test_a_thread_that_waits_for_an_answer_under_tls_can_be_made_to_fail(
    server: EmbeddedServer, connection: StoreConnection
) -> None:
    errors: list[StoreError] = []

    def wait() -> None:
        try:
            connection.run(["SELECT SLEEP(60)"])
        except StoreError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    asleep = "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP(60)%'"
    with connect(server) as root, root.cursor() as cursor:
        eventually(lambda: cursor.execute(asleep) == 1)
    connection.abort()
    waiting.join(20)
    assert [error.code for error in errors] == [2013]
    connection.close()
