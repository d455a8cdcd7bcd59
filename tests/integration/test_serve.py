"""The program itself: how it starts, refuses to, and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pymysql
import pytest

from proxy.embedded import EmbeddedServer
from proxy.settings import load
from tests.support.proxies import READY, RunningProxy, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import connect
from tests.support.waiting import eventually


def serve(*options: str, timeout_s: float = 30, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "proxy", "serve", *options],
        capture_output=True, text=True, timeout=timeout_s, check=False, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "environment", "complaint"),
    [
        (["--listen", "nowhere"], {}, "--listen: 'nowhere' is not HOST:PORT"),
        (["--backend", "postgres://a@b"], {}, "--backend: it takes the form mysql://USER:PASSWORD@HOST:PORT"),
        (["--log-level", "loud"], {}, "--log-level: input should be 'debug', 'info', 'warning' or 'error'"),
        ([], {"ACKSTREAM_CONNECTIONS_MAX": "many"}, "ACKSTREAM_CONNECTIONS_MAX: input should be a valid integer"),
        (["--config", "/nonexistent.toml"], {}, "--config /nonexistent.toml: "),
        (["--backend", "mysql://root@127.0.0.1:1"], {}, "--backend 127.0.0.1:1: "),
    ],
)
def test_a_bad_setting_is_one_clear_line_and_exit_2(options, environment, complaint) -> None:
    done = serve(*options, **environment)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ackstream: ")]
    assert complaint in line


def test_an_unknown_name_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ackstream.toml"
    file.write_text("lisen = '127.0.0.1:0'\n")
    done = serve("--config", str(file))
    assert done.returncode == 2
    assert f"lisen in {file}: there is no such setting" in done.stderr


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
        pymysql.connect(host="127.0.0.1", port=int(ready[5].rpartition(":")[2]), user="root")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_ends_streams_with_1053_releases_what_is_unacknowledged_and_exits_0(
    server: EmbeddedServer, database: str, tmp_path: Path, consume, number: signal.Signals
) -> None:
    with running_proxy(server, tmp_path / "log") as proxy, connect(server, database=database) as direct:
        create_queue(direct, "m")
        enqueue(direct, "m", "ab")
        consumer = consume(proxy.connect(database=database), "STREAM * FROM m")
        eventually(lambda: len(consumer.received) == 2)
        idle = proxy.connect()
        assert proxy.terminate(number) == 0
        assert consumer.ended.wait(10)
        assert consumer.error is not None
        assert consumer.error.args[0] == 1053
        now_ns = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
        assert rows(direct, f"SELECT COUNT(*) FROM m WHERE time_next <= {now_ns}") == [(2,)]
        idle._force_close()


def test_a_second_proxy_on_the_same_address_says_so(proxy: RunningProxy, server: EmbeddedServer) -> None:
    done = serve("--backend", f"mysql://root@{server.host}:{server.port}", "--listen", f"{proxy.host}:{proxy.port}")
    assert done.returncode == 2
    assert f"--listen {proxy.host}:{proxy.port}: " in done.stderr


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


def test_the_engines_account_needs_select_update_and_delete_on_the_queues_and_nothing_else(
    server: EmbeddedServer, database: str, tmp_path: Path
) -> None:
    user = f"e_{database}"
    with connect(server, database=database) as root:
        create_queue(root, "m", vt_purge_after="1")
        run(root, f"CREATE USER {user}@localhost IDENTIFIED BY 'p@ss:w/rd'")
        run(root, f"GRANT SELECT, UPDATE, DELETE ON {database}.m TO {user}@localhost")
        try:
            with (
                running_proxy(server, tmp_path / "log", account=f"{user}:p%40ss%3Aw%2Frd") as proxy,
                proxy.connect(database=database) as client,
            ):
                enqueue(client, "m", "ab")
                assert len(rows(client, "STREAM * FROM m WAIT 10")) == 2
                assert run(client, "ACK FROM m WHERE id = 1") == 1
                eventually(lambda: rows(root, "SELECT id FROM m") == [(2,)], timeout_s=20)
            assert "p@ss" not in proxy.output
            assert "p%40ss" not in proxy.output
        finally:
            run(root, f"DROP USER {user}@localhost")
