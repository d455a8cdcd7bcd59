"""What ackstream requires of PyMySQL beyond its documentation. A release that lacks it fails here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from click.testing import CliRunner

from engine.store import pymysql_adapter
from engine.store.connection import StoreConnection
from engine.store.opening import BackendAddress, ConnectionLimits, connect
from engine.store.port import StoreError
from engine.store.pymysql_adapter import CLIENT, CR, Connection, IncompatibleVersionError, OperationalError
from proxy.serve import EXIT_BAD_SETTING, serve
from tests.support.scripted import DONE, GONE, OK, Say, rows, scripted_server


def test_the_installed_release_fits() -> None:
    pymysql_adapter.check()


def test_a_connection_after_login_has_its_socket_and_no_bytes_read_ahead() -> None:
    def script(command: int, payload: bytes) -> Say:
        return Say(rows(["a", "b"])) if payload == b"SELECT" else DONE

    with scripted_server(script) as server:
        connection = connect(BackendAddress(server.host, server.port, "root"), ConnectionLimits(), Connection)
        channel = pymysql_adapter.channel(connection)
        channel.settimeout(ConnectionLimits().read_s)
        channel.sendall(b"\x07\0\0\0\x03SELECT")
        expected = Say(rows(["a", "b"])).data
        assert channel.makefile("rb").read(len(expected)) == expected
        assert server.commands == [b"\x03SET NAMES utf8mb4", b"\x03SELECT"]
        connection.close()


def test_the_login_agrees_on_nothing_that_changes_the_form_of_packets() -> None:
    with scripted_server() as server:
        connection = connect(BackendAddress(server.host, server.port, "root"), ConnectionLimits(), Connection)
        assert not any(connection.client_flag & flag for flag in pymysql_adapter.FOREIGN_FLAGS.values())
        connection.close()


def test_required_tls_is_never_left_out() -> None:
    with scripted_server() as server:
        with pytest.raises(StoreError, match="SSL is required") as caught:
            StoreConnection(BackendAddress(server.host, server.port, "root", tls=True), ConnectionLimits())
        assert (caught.value.code, server.logins) == (CR.CR_SSL_CONNECTION_ERROR, 0)


def test_optional_tls_is_left_out_if_the_server_does_not_offer_it() -> None:
    with scripted_server() as server:
        connection = Connection(host=server.host, port=server.port, user="root", ssl=None, ssl_disabled=False)
        assert server.logins == 1
        connection.close()


def test_a_connection_can_be_closed_twice_and_is_stale_then() -> None:
    with scripted_server() as server:
        connection = StoreConnection(BackendAddress(server.host, server.port, "root"), ConnectionLimits())
        connection.close()
        connection.close()
        assert connection.stale()


def test_a_login_that_is_cut_off_is_an_error_of_the_library() -> None:
    with scripted_server(lambda *_: GONE) as server, pytest.raises(OperationalError) as caught:
        connect(BackendAddress(server.host, server.port, "root"), ConnectionLimits(), Connection)
    assert caught.value.args[0] == CR.CR_SERVER_LOST


@pytest.mark.parametrize(
    ("release", "lack"),
    [
        (SimpleNamespace(client_flag=0), "its connections have no `_sock`"),
        (SimpleNamespace(_sock=None), "have no `client_flag`"),
        (SimpleNamespace(_sock=None, client_flag=1 << 24), "requests CLIENT_DEPRECATE_EOF, which"),
    ],
)
def test_a_release_that_does_not_fit_is_named_with_what_it_lacks(
    release: Any, lack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pymysql, "connect", lambda **_: release)
    with pytest.raises(IncompatibleVersionError) as caught:
        pymysql_adapter.check()
    assert lack in str(caught.value)
    assert f"PyMySQL {pymysql.__version__} does not fit" in str(caught.value)


def test_the_program_does_not_start_on_a_release_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymysql, "connect", lambda **_: SimpleNamespace(client_flag=0))
    outcome = CliRunner().invoke(serve, ["--backend", "mysql://root@127.0.0.1:1", "--data-dir", "/nowhere"])
    assert outcome.exit_code == EXIT_BAD_SETTING
    assert outcome.output.startswith(f"ackstream: PyMySQL {pymysql.__version__} does not fit this ackstream")


def test_the_engine_refuses_a_connection_with_other_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        CLIENT, "CAPABILITIES", CLIENT.CAPABILITIES | pymysql_adapter.FOREIGN_FLAGS["CLIENT_DEPRECATE_EOF"]
    )
    with scripted_server(lambda *_: Say([OK])) as server:
        with pytest.raises(StoreError, match="CLIENT_DEPRECATE_EOF") as caught:
            StoreConnection(BackendAddress(server.host, server.port, "root"), ConnectionLimits())
        assert caught.value.lasting
