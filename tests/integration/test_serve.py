"""The program itself: how it starts, refuses to, and ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer
from proxy.settings import load
from proxy.transport.addresses import url_of
from proxy.transport.backlog import SOMAXCONN, warn_if_cut
from tests.support import insides
from tests.support.proxies import READY, RunningProxy, environment, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import ServerName, client_program, connect
from tests.support.waiting import eventually

BURST = 300
"""More clients than a listening socket keeps by default (asyncio: 100, aiohttp: 128), fewer than the server allows."""


def serve(*options: str, timeout_s: float = 30, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "proxy", "serve", *options],
        capture_output=True, text=True, timeout=timeout_s, check=False, env={**os.environ, **variables},
    )  # fmt: skip


@contextlib.contextmanager
def serving(*options: str, tmp_path: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program under way, its log in tmp_path/log; killed in the end."""
    argv = [sys.executable, "-m", "proxy", "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *options]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*argv, "--data-dir", str(tmp_path / "data")], stdout=log, stderr=log, env={**os.environ, **variables}
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def health(proxy: RunningProxy) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{proxy.admin_port}/health", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def shown_by_program(proxy: RunningProxy, server_name: ServerName) -> str:
    argv = [*client_program(server_name), f"-h{proxy.host}", f"-P{proxy.port}", "-uroot", "-e", "SELECT 1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    return done.stderr


def shown_by_mysql(proxy: RunningProxy) -> str:
    return shown_by_program(proxy, "mysql")


def shown_by_mariadb(proxy: RunningProxy) -> str:
    return shown_by_program(proxy, "mariadb")


def shown_by_pymysql(proxy: RunningProxy) -> str:
    with pytest.raises(pymysql.MySQLError) as caught:
        proxy.connect()
    return str(caught.value)


def health_becomes(proxy: RunningProxy, wanted: int) -> Any:
    """Wait until /health has this status; what it says then."""

    def found() -> list[Any]:
        status, said = health(proxy)
        return [said] if status == wanted else []

    return eventually(found, timeout_s=30)[0]


def not_locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def processes_of(pid: int) -> list[str]:
    """The command lines of a process and of its children, as anybody can read them."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ") for process in [str(pid), *children]]


@pytest.mark.parametrize(
    ("options", "variables", "complaint"),
    [
        (["--listen", "nowhere"], {}, "--listen: 'nowhere' is not HOST:PORT"),
        (["--backend", "postgres://a@b"], {}, "--backend: it takes the form mysql://USER:PASSWORD@HOST:PORT"),
        (["--log-level", "loud"], {}, "--log-level: input should be 'debug', 'info', 'warning' or 'error'"),
        ([], {"ACKSTREAM_CONNECTIONS_MAX": "many"}, "ACKSTREAM_CONNECTIONS_MAX: input should be a valid integer"),
        (["--config", "/nonexistent.toml"], {}, "--config /nonexistent.toml: "),
        (["--backend", "mysql://root@127.0.0.1:1"], {"ACKSTREAM_BACKEND_WAIT_S": "0"}, "--backend 127.0.0.1:1: "),
        (["--backend", "mysql://root:a#b@127.0.0.1"], {}, "--backend-password-file takes the password as it is"),
        (["--listen", "0.0.0.0:0"], {}, "other machines can reach 0.0.0.0, and root of the private server has no pass"),
        (["--listen", "[::]:0"], {}, "other machines can reach ::, and root of the private server has no password"),
        (["--workers", "2"], {}, "--workers: there is no such setting any more; processes takes its place"),
        (["--listen-statements", "127.0.0.1:0"], {}, "--listen-statements: there is no such setting any more; start a"),
        (["--data-dir", "/dev/null/data"], {}, "/dev/null/data cannot be used (Not a directory): give a --data-dir"),
    ],
)
def test_a_bad_setting_is_one_clear_line_and_exit_2(options, variables, complaint) -> None:
    done = serve(*options, **variables)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ackstream: ")]
    assert complaint in line


def test_an_unknown_name_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ackstream.toml"
    file.write_text("lisen = '127.0.0.1:0'\n")
    done = serve("--config", str(file))
    assert done.returncode == 2
    assert f"lisen in {file}: there is no such setting; did you mean listen?" in done.stderr


def test_an_unknown_name_in_the_environment_is_a_line_in_the_log() -> None:
    done = serve("--backend", "mysql://root@127.0.0.1:1", ACKSTREAM_LISTN="[::]:1", ACKSTREAM_BACKEND_WAIT_S="0")
    assert (
        "WARNING settings.advice: ACKSTREAM_LISTN is ignored: there is no such setting; did you mean ACKSTREAM_LISTEN?"
        in (done.stderr)
    )


def test_the_file_is_overruled_by_the_environment_and_that_by_flags(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "ackstream.toml"
    file.write_text("listen = '127.0.0.1:1'\nadmin = '127.0.0.1:1'\nconnections-max = 7\n")
    monkeypatch.setenv("ACKSTREAM_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("ACKSTREAM_ADMIN", "127.0.0.1:2")
    settings = load({"listen": "127.0.0.1:3", "admin": None}, file)
    assert (settings.listen.port, settings.admin.port, settings.connections_max) == (3, 2, 7)


def test_a_password_is_not_shown(server: EmbeddedServer, tmp_path: Path) -> None:
    done = serve("--backend", f"mysql://nobody:hush@{server.host}:{server.port}", "--log-level", "debug")
    assert done.returncode == 2
    assert "hush" not in done.stdout + done.stderr


def test_without_a_backend_it_runs_a_server_of_its_own_and_ends_it_with_itself(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "proxy", "serve", "--listen", "127.0.0.1:0"),
            *("--admin", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = READY.match(process.stdout.readline())
        assert ready is not None
        with pymysql.connect(host=ready[1], port=int(ready[2]), user="root", autocommit=True) as client:
            with client.cursor() as cursor:
                cursor.execute("CREATE DATABASE shop")
            client.select_db("shop")
            create_queue(client, "m")
            enqueue(client, "m", "a")
            assert rows(client, "STREAM * FROM m NOWAIT") == [(1, "a")]
        process.terminate()
        _, complaints = process.communicate(timeout=20)
        assert process.returncode == 0, complaints
        assert "Traceback" not in complaints
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(pymysql.err.OperationalError):
        pymysql.connect(host="127.0.0.1", port=int(ready[4].rpartition(":")[2]), user="root")


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM] * 3])
def test_a_drain_ends_streams_with_1053_releases_what_is_unacknowledged_and_exits_0(
    server: EmbeddedServer, database: str, tmp_path: Path, consume, numbers: list[signal.Signals]
) -> None:
    with running_proxy(server, tmp_path / "log") as proxy, connect(server, database=database) as direct:
        create_queue(direct, "m")
        enqueue(direct, "m", "ab")
        consumer = consume(proxy.connect(database=database), "STREAM * FROM m")
        eventually(lambda: len(consumer.received) == 2)
        idle = proxy.connect()
        for number in numbers[1:]:
            proxy.send(number)
        assert proxy.terminate(numbers[0]) == 0
        assert consumer.ended.wait(10)
        assert consumer.error is not None
        assert consumer.error.args[0] == 1053
        now_ns = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
        assert rows(direct, f"SELECT COUNT(*) FROM m WHERE time_next <= {now_ns}") == [(2,)]
        insides.vanish(idle)


@pytest.mark.parametrize("taken", ["listen", "admin"])
def test_a_second_proxy_on_the_same_address_says_so(proxy: RunningProxy, server: EmbeddedServer, taken: str) -> None:
    address = f"{proxy.host}:{proxy.port if taken == 'listen' else proxy.admin_port}"
    addresses = {"listen": f"{proxy.host}:0", "admin": f"{proxy.host}:0", taken: address}
    options = [text for name, value in addresses.items() for text in (f"--{name}", value)]
    done = serve("--backend", f"mysql://root@{server.host}:{server.port}", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"ackstream: --{taken} {address}: Address already in use: another program" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.either_server
@pytest.mark.parametrize("place", ["listen", "listen_socket", "admin"])
def test_clients_that_come_all_at_once_while_the_proxy_is_busy_are_all_served(
    private_server: EmbeddedServer, tmp_path: Path, place: str
) -> None:
    path = str(tmp_path / "socket")
    with contextlib.ExitStack() as stack:
        stack.enter_context(environment(ACKSTREAM_ADMIN_CONNECTIONS_MAX=str(BURST)))
        proxy = stack.enter_context(running_proxy(private_server, tmp_path / "log", ["--listen-socket", path]))
        address: dict[str, Any] = {
            "listen": (proxy.host, proxy.port),
            "listen_socket": path,
            "admin": ("127.0.0.1", proxy.admin_port),
        }
        proxy.send(signal.SIGSTOP)
        stack.callback(proxy.send, signal.SIGCONT)
        clients = []
        for _ in range(BURST):
            family = socket.AF_UNIX if place == "listen_socket" else socket.AF_INET
            clients.append(stack.enter_context(contextlib.closing(socket.socket(family))))
            clients[-1].settimeout(30)
            clients[-1].connect(address[place])
        proxy.send(signal.SIGCONT)
        for client in clients:
            if place == "admin":
                client.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            assert client.recv(1 << 16)


def test_a_system_that_keeps_fewer_clients_waiting_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "somaxconn").write_text("128\n")
    for allowed in (SOMAXCONN, tmp_path / "missing", tmp_path / "somaxconn"):
        warn_if_cut(allowed)
    lines = [record.getMessage() for record in caplog.records]
    assert "net.core.somaxconn is 128" in lines[-1]


def test_a_server_that_is_away_at_start_is_waited_for(private_server: EmbeddedServer, tmp_path: Path) -> None:
    private_server.kill()
    proxy = RunningProxy(private_server, tmp_path / "log")
    with environment(ACKSTREAM_BACKEND_WAIT_S="60"), ThreadPoolExecutor(1) as threads:
        started = threads.submit(proxy.start)
        eventually(lambda: "waiting up to 60 s for the server at" in proxy.output)
        private_server.start()
        started.result()
    try:
        with proxy.connect() as client:
            assert rows(client, "SELECT 1") == [(1,)]
        assert proxy.output.count("waiting up to") == 1
    finally:
        proxy.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_server_is_waited_for_ends_the_program(number: signal.Signals, tmp_path: Path) -> None:
    with serving("--backend", "mysql://root@127.0.0.1:1", tmp_path=tmp_path, ACKSTREAM_BACKEND_WAIT_S="600") as process:
        eventually(lambda: "waiting up to" in (tmp_path / "log").read_text(), timeout_s=30)
        process.send_signal(number)
        assert process.wait(20) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_signal_while_the_private_server_is_made_ends_both(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with serving(tmp_path=tmp_path) as process:
        eventually((data_dir / "data").exists, timeout_s=30)
        process.terminate()
        assert process.wait(20) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
    with (data_dir / "server.lock").open() as lock:
        eventually(lambda: not_locked(lock))


def test_a_server_that_dies_is_told_of_once_to_clients_in_words_and_to_health(
    private_server: EmbeddedServer, private_proxy: RunningProxy, consume
) -> None:
    assert health(private_proxy) == (200, {"status": "ok"})
    logged_before = len(private_proxy.output)
    with private_proxy.connect() as client:
        run(client, "CREATE DATABASE shop")
        client.select_db("shop")
        consumers = []
        for name in ("m", "n", "o"):
            create_queue(client, name)
            enqueue(client, name, "ab")
            consumers.append(consume(private_proxy.connect(database="shop"), f"STREAM * FROM {name}"))
        eventually(lambda: all(len(consumer.received) == 2 for consumer in consumers))
    errors_before = private_proxy.metric("store_errors_total")
    private_server.kill()
    eventually(lambda: private_proxy.metric("store_errors_total") > errors_before + 10)
    said = health_becomes(private_proxy, 503)
    assert said["status"] == "unreachable"
    first = ("Connection refused", "Lost connection")  # The server may have been killed amid a login.
    assert any(text in said["reasons"][0] for text in first), said
    assert private_proxy.metric("server_reachable") == 0
    text = f"ackstream cannot connect to the backing server at {private_server.host}:{private_server.port}"
    for show in (shown_by_mysql, shown_by_mariadb, shown_by_pymysql):
        complaint = show(private_proxy)
        assert "1105" in complaint, (show, complaint)
        assert text in complaint, (show, complaint)
    private_server.start()
    assert health_becomes(private_proxy, 200) == {"status": "ok"}
    assert private_proxy.metric("server_reachable") == 1
    eventually(lambda: private_proxy.metric("binlog_following") == 1, timeout_s=30)
    told = [
        line.partition(" WARNING ")[2]
        for line in private_proxy.output[logged_before:].splitlines()
        if " WARNING " in line
    ]
    assert len(told) == 1, told
    assert told[0].startswith(
        "server.unreachable: the server takes no connection; until it does, only a count is kept: "
    )
    assert private_proxy.output.count("the server takes connections again, after ") == 1


def test_what_doctor_finds_of_the_server_is_logged_once_at_the_start(server, tmp_path) -> None:
    with running_proxy(server, tmp_path / "log") as proxy:
        advice = [line for line in proxy.output.splitlines() if "server.advice" in line]
    about = [line.partition(" server.advice: ")[2].split(":")[0] for line in advice]
    assert about == ["max_connections", "time zones"]
    assert "SET GLOBAL max_connections = " in advice[0]


def test_a_server_that_does_not_answer_is_not_healthy(
    private_server: EmbeddedServer, private_proxy: RunningProxy
) -> None:
    os.kill(private_server.pid, signal.SIGSTOP)
    try:
        said = health_becomes(private_proxy, 503)
        assert said["reasons"] == ["the server has not answered within 2 s"]
    finally:
        os.kill(private_server.pid, signal.SIGCONT)
    assert health_becomes(private_proxy, 200) == {"status": "ok"}


def test_it_prints_the_url_of_the_page_of_queues(proxy: RunningProxy) -> None:
    url = re.search(r"^the page of queues: (http://\S+)$", proxy.output, re.MULTILINE)
    assert url is not None
    with urllib.request.urlopen(url[1], timeout=10) as page:
        assert page.headers.get_content_type() == "text/html"


@pytest.mark.parametrize(
    ("admin", "secure", "url"),
    [
        ("127.0.0.1:9307", False, "http://127.0.0.1:9307/"),
        ("127.0.0.1:9307,127.0.0.1:9308", False, "http://127.0.0.1:9307/"),
        ("0.0.0.0:9307", True, "https://127.0.0.1:9307/"),
        ("[::]:9307", True, "https://[::1]:9307/"),
        ("db1:9307", True, "https://db1:9307/"),
    ],
)
def test_the_url_can_be_opened_on_the_machine_itself(admin: str, url: str, *, secure: bool) -> None:
    assert url_of(admin, secure=secure) == url


def test_health_and_metrics_are_served_over_http(proxy: RunningProxy, database: str) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        enqueue(client, "m", "a")
        assert len(rows(client, "STREAM * FROM m NOWAIT")) == 1
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.admin_port}/health") as answer:
        assert json.load(answer) == {"status": "ok"}
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.admin_port}/metrics") as answer:
        text = answer.read().decode()
    delivered = next(line for line in text.splitlines() if line.startswith("ackstream_delivered_total "))
    assert float(delivered.split()[1]) >= 1


@pytest.mark.parametrize("place", ["URL", "file"])
def test_the_engines_account_needs_select_update_and_delete_on_the_queues_and_its_password_is_shown_nowhere(
    server: EmbeddedServer, database: str, tmp_path: Path, place: str
) -> None:
    password_file = tmp_path / "password"
    password_file.write_text("p@ss:w/rd\n")
    account, options = (
        (":p%40ss%3Aw%2Frd", []) if place == "URL" else ("", ["--backend-password-file", str(password_file)])
    )
    user = f"e_{database}"
    with connect(server, database=database) as root:
        create_queue(root, "m", vt_purge_after="1")
        run(root, f"CREATE USER {user}@localhost IDENTIFIED BY 'p@ss:w/rd'")
        run(root, f"GRANT SELECT, UPDATE, DELETE ON {database}.m TO {user}@localhost")
        try:
            with (
                running_proxy(server, tmp_path / "log", options, account=f"{user}{account}", forked=False) as proxy,
                proxy.connect(database=database) as client,
            ):
                enqueue(client, "m", "ab")
                assert len(rows(client, "STREAM * FROM m WAIT 10")) == 2
                assert run(client, "ACK FROM m WHERE id = 1") == 1
                eventually(lambda: rows(root, "SELECT id FROM m") == [(2,)], timeout_s=20)
                shown = [*processes_of(proxy.pid), proxy.output]
            assert user in shown[0]
            assert not [text for text in shown if "p@ss" in text or "p%40ss" in text]
        finally:
            run(root, f"DROP USER {user}@localhost")
