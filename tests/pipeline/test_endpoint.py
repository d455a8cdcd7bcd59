"""Where the proxy is: URLs, passwords, connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from pipeline.endpoint import (
    FIRST_CONTACT,
    Endpoint,
    Patience,
    Tls,
    again,
    is_transient,
)
from pipeline.errors import JobError, PipelineError, ProblemsError
from tests.support.queues import rows, run


def test_a_url_says_all_but_the_password() -> None:
    endpoint = Endpoint.from_url("mysql://o%27hara@db.example:3310/a%20b", environ={"ACKSTREAM_PASSWORD": "s3cret"})
    assert (endpoint.host, endpoint.port, endpoint.user, endpoint.database) == ("db.example", 3310, "o'hara", "a b")
    assert endpoint.password == "s3cret"
    assert "s3cret" not in repr(endpoint)


def test_tls_is_on_by_default_except_on_this_machine() -> None:
    assert Endpoint.from_url("mysql://u@db.example/d").tls is Tls.ON
    assert Endpoint.from_url("mysql://u@127.0.0.1/d").tls is Tls.OFF
    assert Endpoint.from_url("mysql://u@[::1]:3307/d").tls is Tls.OFF
    verified = Endpoint.from_url("mysql://u@db.example/d?tls=verify&ca=ca.pem")
    assert (verified.tls, verified.ca) == (Tls.VERIFY, "ca.pem")


def test_a_password_file_goes_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from the file\n")
    endpoint = Endpoint.from_url("mysql://u@h/d", password_file=file, environ={"ACKSTREAM_PASSWORD": "other"})
    assert endpoint.password == "from the file"
    with pytest.raises(PipelineError, match="cannot be read"):
        Endpoint.from_url("mysql://u@h/d", password_file=tmp_path / "none")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://u:p@h/d", "a password does not belong in the URL"),
        ("postgres://u@h/d", "must look like mysql://"),
        ("mysql://h/d", "must look like"),
        ("mysql://u@h:port/d", "must look like"),
        ("mysql://u@h/d?tls=maybe", "'maybe' is not a valid Tls"),
        ("mysql://u@h/d?color=red", "must look like"),
        ("mysql://u@h/d?tls=on&ca=x", "with tls=verify only"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_with_its_shape(url: str, complaint: str) -> None:
    with pytest.raises(PipelineError, match=complaint.replace("?", r"\?")) as caught:
        Endpoint.from_url(url)
    assert "u:p" not in str(caught.value)


def test_the_session_is_strict_in_utc_and_in_utf8(endpoint: Endpoint) -> None:
    with endpoint.connect() as connection:
        question = "SELECT DATABASE() AS d, @@time_zone AS z, @@sql_mode AS m, @@character_set_client AS c"
        (answer,) = rows(connection, question)
    assert answer == (endpoint.database, "+00:00", "NO_AUTO_VALUE_ON_ZERO,STRICT_ALL_TABLES", "utf8mb4")


def test_a_first_login_by_the_servers_rsa_key(endpoint: Endpoint, connection: Any) -> None:
    user = f"rsa_{endpoint.database}"
    run(connection, f"CREATE USER {user}@localhost IDENTIFIED BY 'p w'")  # caching_sha2_password on MySQL
    try:
        with Endpoint(endpoint.host, endpoint.port, user, "p w").connect() as other:
            assert rows(other, "SELECT 1") == [(1,)]
    finally:
        run(connection, f"DROP USER {user}@localhost")


def test_tls_with_the_certificate_that_the_proxy_made_for_itself(endpoint: Endpoint) -> None:
    with Endpoint(endpoint.host, endpoint.port, "root", tls=Tls.ON).connect() as connection:
        assert rows(connection, "SHOW STATUS LIKE 'Ssl_cipher'")[0][1] is not None


def test_transient_errors_are_tried_again_and_others_are_not() -> None:
    def failing(*errors: Exception) -> Any:
        left = list(errors)

        def attempt() -> int:
            if left:
                raise left.pop(0)
            return 7

        return attempt

    patience = Patience(longest_wait_s=0.01)
    lost = pymysql.OperationalError(2013, "Lost connection")
    deadlock = pymysql.OperationalError(1213, "Deadlock")
    assert again(failing(lost, deadlock, pymysql.err.InterfaceError(0, "")), patience) == 7
    with pytest.raises(pymysql.IntegrityError):
        again(failing(pymysql.IntegrityError(1062, "Duplicate")), patience)
    with pytest.raises(pymysql.OperationalError, match="2013"):
        again(failing(lost), Patience(attempts=1))


@pytest.mark.parametrize(
    ("reason", "passes"),
    [
        ("the connection to the server broke: [Errno 104] Connection reset by peer", True),
        ("Can't connect to MySQL server on '127.0.0.1' ([Errno 111] Connection refused) (2003)", True),
        ("Server shutdown in progress (1053)", True),
        ("Table 'd.m' doesn't exist (1146)", False),
    ],
)
def test_what_keeps_the_proxy_from_reading_a_queue_passes_or_does_not(reason: str, passes: bool) -> None:
    error = pymysql.OperationalError(1105, f"ackstream cannot read the queue: {reason}")
    assert is_transient(error) is passes
    assert not is_transient(pymysql.OperationalError(1105, reason))


@pytest.mark.parametrize("reason", ["cannot connect to", "has no TLS connection to"])
def test_a_proxy_whose_server_is_away_may_have_it_back_soon(reason: str) -> None:
    assert is_transient(pymysql.OperationalError(1105, f"ackstream {reason} the backing server at db:3306: refused"))


def test_what_stays_wrong_is_not_tried_again(
    endpoint: Endpoint, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = f"u_{endpoint.database}"
    run(connection, f"CREATE USER {user}@localhost IDENTIFIED BY 'right'")
    try:
        for wrong in (replace(endpoint, user=user, password="wrong"), replace(endpoint, database="nowhere")):
            with pytest.raises(PipelineError, match=r":\d+ refuses the login: .* \(10\d\d\)\. The URL names"):
                wrong.run(lambda _: None)
    finally:
        run(connection, f"DROP USER {user}@localhost")

    def no_such_name(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", no_such_name)
    with pytest.raises(PipelineError, match=r"there is no host 'db\.exmaple'"):
        replace(endpoint, host="db.exmaple").run(lambda _: None)


def test_what_is_tried_again_for_long_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once. A first contact ends after its time, however many attempts are left."""
    monkeypatch.setattr("pipeline.endpoint.SILENT_S", 0)

    def refused() -> None:
        raise pymysql.OperationalError(2003, "cannot connect to h:3307 (refused)")

    with pytest.raises(pymysql.OperationalError):
        again(refused, Patience(attempts=5, longest_wait_s=0.001))
    assert [record.getMessage() for record in caplog.records] == [
        "cannot connect to h:3307 (refused), trying for a minute or two"
    ]
    with pytest.raises(pymysql.OperationalError):
        again(refused, Patience(attempts=10**9, longest_wait_s=0.001, longest_s=0.01))


@pytest.mark.parametrize(
    ("greeting", "kind", "text"),
    [
        (None, JobError, "cannot connect to 127.0.0.1:{} (Connection refused)"),
        (b"", JobError, "cannot connect to 127.0.0.1:{} (no MySQL answers there)"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", PipelineError, "127.0.0.1:{} does not speak MySQL: correct the port in the URL"),
    ],
    ids=["closed", "silent", "of another program"],
)
def test_a_wrong_port_is_one_line_and_a_first_contact_ends_soon(
    greeting: bytes | None, kind: type, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.endpoint.FIRST_CONTACT", Patience(longest_s=0))
    monkeypatch.setattr("pipeline.endpoint.FIRST_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def greet() -> None:
            with contextlib.suppress(OSError):  # closed by the test
                accepted.append(server.accept()[0])
                accepted[0].sendall(greeting or b"")

        accepted: list[socket.socket] = []
        if greeting is None:
            server.close()
        else:
            threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(PipelineError) as caught:
            Endpoint("127.0.0.1", port, "u").first(lambda _: None)
        assert (type(caught.value), str(caught.value)) == (kind, text.format(port))
        for connection in accepted:
            connection.close()


def test_a_job_under_way_is_more_patient_than_its_first_contact() -> None:
    assert FIRST_CONTACT.longest_s == 20
    assert Patience().longest_s is None
    assert Patience().attempts * Patience().longest_wait_s / 2 > 3 * FIRST_CONTACT.longest_s


def test_an_error_is_its_text_in_a_notebook() -> None:
    """IPython asks an exception for the lines that it shows."""
    assert PipelineError("no host")._render_traceback_() == ["PipelineError: no host"]
    assert ProblemsError("wrong", ["a", "b"])._render_traceback_() == ["ProblemsError: wrong:", "  - a", "  - b"]
