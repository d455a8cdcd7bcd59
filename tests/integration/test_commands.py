"""The commands for people: consume, enqueue, peek and export, as programs."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy
from tests.support.queues import Consumer, create_queue, rows, run
from tests.support.servers import connect
from tests.support.terminal import Terminal
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server


@pytest.fixture
def client(proxy: RunningProxy, database: str) -> Iterator[Any]:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        yield client


@pytest.fixture
def variables(proxy: RunningProxy, database: str) -> dict[str, str]:
    return {**os.environ, "ACKSTREAM_URL": f"mysql://root@{proxy.host}:{proxy.port}/{database}"}


def ackstream(variables: dict[str, str], *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=50, check=False, env=variables)


def enqueue(variables: dict[str, str], *payloads: str) -> None:
    lines = "".join(json.dumps({"payload": payload}) + "\n" for payload in payloads)
    done = ackstream(variables, "enqueue", "m", "--json", given=lines)
    assert json.loads(done.stdout) == {"enqueued": len(payloads)}, done.stderr


def unacknowledged(client: Any) -> int:
    return int(rows(client, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL")[0][0])


def test_messages_go_in_and_come_out_as_lines_of_json(client: Any, variables: dict[str, str]) -> None:
    enqueue(variables, "a", "ü\n'\"\\")
    shown = [json.loads(line) for line in ackstream(variables, "peek", "m").stdout.splitlines()]
    assert [(message["id"], message["payload"]) for message in shown] == [(1, "a"), (2, "ü\n'\"\\")]
    exported = ackstream(variables, "export", "m", "--format", "csv").stdout
    assert exported.splitlines()[0].split(",")[0] == "id"
    assert unacknowledged(client) == 2


def test_what_is_exported_with_all_its_columns_can_be_enqueued_and_is_new(
    client: Any, variables: dict[str, str]
) -> None:
    own = "(payload TEXT, secret INT INVISIBLE, twice INT GENERATED ALWAYS AS (secret * 2) STORED)"
    run(client, f"CREATE QUEUE jobs {own} MAX_ATTEMPTS = 2 DEAD_LETTER = jobs_dead REASON = why LEASE = held")
    run(client, "INSERT INTO jobs_dead (id, epoch, payload, secret, why) VALUES (7, 2, 'a', 5, 'failed')")
    run(client, f"CREATE QUEUE others {own}")
    peeked = ackstream(variables, "peek", "jobs_dead").stdout
    shown = json.loads(peeked)
    assert (shown["id"], shown["secret"], shown["why"], "held" in shown) == (7, 5, "failed", True)
    exported = ackstream(variables, "export", "jobs_dead").stdout
    assert exported == peeked
    done = ackstream(variables, "enqueue", "jobs", given=exported)
    assert "1 message was enqueued" in done.stderr
    assert rows(client, "STREAM id, epoch, payload, secret FROM jobs LIMIT 1 WAIT 20") == [(7, 1, "a", 5)]
    as_csv = ackstream(variables, "export", "jobs", "--format", "csv").stdout
    ackstream(variables, "enqueue", "jobs", "--format", "csv", given=as_csv.replace("\n7,", "\n8,"))
    assert rows(client, "SELECT id, epoch, held, why FROM jobs WHERE id = 8") == [(8, 0, None, None)]
    done = ackstream(variables, "enqueue", "others", given=exported)
    assert "line 1: Unknown column 'held'" in done.stderr


def test_an_error_names_its_line_and_leaves_the_batches_before_it(client: Any, variables: dict[str, str]) -> None:
    lines = '{"payload": "a"}\n{"id": 50}\n\n{"payload": "b"}\n{"id": 50}\n{"payload": "c"}\n'
    done = ackstream(variables, "enqueue", "m", "--batch", "2", given=lines)
    assert done.returncode == 1
    assert "line 5: Duplicate entry '50'" in done.stderr
    assert "2 messages were enqueued before the error" in done.stderr
    assert unacknowledged(client) == 2
    assert "line 5: " in ackstream(variables, "enqueue", "m", "--all-or-none", given=lines.replace("50", "51")).stderr
    assert unacknowledged(client) == 2


def test_messages_are_enqueued_into_queues_alone(client: Any, variables: dict[str, str]) -> None:
    run(client, "CREATE TABLE plain (payload TEXT)")
    done = ackstream(variables, "enqueue", "plain", given='{"payload": "a"}\n')
    assert done.returncode == 1
    assert "is not a queue" in done.stderr
    assert rows(client, "SELECT COUNT(*) FROM plain") == [(0,)]


def test_all_or_none_leaves_nothing_behind(client: Any, variables: dict[str, str]) -> None:
    lines = '{"payload": "a"}\n{"payload": "b"}\nno JSON\n'
    done = ackstream(variables, "enqueue", "m", "--all-or-none", "--batch", "1", given=lines)
    assert done.returncode == 1
    assert "line 3 is not JSON" in done.stderr
    assert unacknowledged(client) == 0
    done = ackstream(variables, "enqueue", "m", "--batch", "1", given=lines)
    assert "2 messages were enqueued before the error" in done.stderr
    assert unacknowledged(client) == 2


def test_the_exit_status_decides_what_becomes_of_a_message(
    client: Any, variables: dict[str, str], tmp_path: Path
) -> None:
    enqueue(variables, "0", "75", "3")
    program = tmp_path / "handle"
    program.write_text('#!/bin/sh\nread line\necho "got $MESSAGE_ID $1"\nexit "$1"\n')
    program.chmod(0o755)
    arguments = ("consume", "m", "--exec", f"{program} {{payload}}", "--delay", "900", "--until-empty")
    done = ackstream(variables, *arguments)
    assert done.returncode == 0, done.stderr
    assert "m: message 1: got 1 0" in done.stderr
    assert "m: message 3: exit status 3" in done.stderr
    left = rows(client, "SELECT id, epoch FROM m WHERE time_acked IS NULL ORDER BY id")
    assert [number for number, _ in left] == [2, 3]
    in_s = "(time_next - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000) / 1000000000"
    ((later,),) = rows(client, f"SELECT {in_s} FROM m WHERE id = 2")
    assert 800 < later <= 900


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("echo {payload} {adress}", "{adress} is no column of m, which has epoch, id, payload"),
        ("no-such-program {payload}", "there is no program no-such-program"),
        ("echo 'payload", "No closing quotation"),
    ],
)
def test_a_command_that_cannot_work_costs_no_attempt(
    client: Any, variables: dict[str, str], command: str, complaint: str
) -> None:
    enqueue(variables, "a")
    done = ackstream(variables, "consume", "m", "--exec", command, "--until-empty")
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert rows(client, "SELECT epoch FROM m WHERE time_acked IS NULL") == [(0,)]


def test_a_value_is_put_in_once(client: Any, variables: dict[str, str], tmp_path: Path) -> None:
    enqueue(variables, "{id} {epoch} {nothing}")
    done = ackstream(variables, "consume", "m", "--exec", "echo {payload} {id}", "--until-empty")
    assert "m: message 1: {id} {epoch} {nothing} 1" in done.stderr


def test_why_a_message_failed_is_kept_where_the_queue_keeps_reasons(
    client: Any, variables: dict[str, str], tmp_path: Path
) -> None:
    run(client, "ALTER QUEUE m REASON = why")
    enqueue(variables, "a 100 % new", "75")
    program = tmp_path / "handle"
    program.write_text('#!/bin/sh\necho first\necho "it\'s $1" >&2\n[ "$1" = 75 ] && exit 75\nexit 3\n')
    program.chmod(0o755)
    done = ackstream(variables, "consume", "m", "--exec", f"{program} {{payload}}", "--until-empty")
    assert done.returncode == 0, done.stderr
    assert rows(client, "SELECT id, why FROM m ORDER BY id") == [
        (1, "exit status 3: it's a 100 % new"),
        (2, "exit status 75: it's 75"),
    ]


def test_a_batch_is_lines_of_json_for_one_run_of_the_program(
    client: Any, variables: dict[str, str], tmp_path: Path
) -> None:
    enqueue(variables, *map(str, range(250)))
    out = tmp_path / "out"
    done = ackstream(variables, "consume", "m", "--batch", "100", "--exec", f"tee -a {out}", "--until-empty", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(int(json.loads(line)["payload"]) for line in out.read_text().splitlines()) == list(range(250))
    assert unacknowledged(client) == 0


def test_the_columns_are_variables_of_the_program(client: Any, variables: dict[str, str], tmp_path: Path) -> None:
    run(client, "CREATE QUEUE wide (payload TEXT, `a b` INT, nothing INT, price DECIMAL(5, 2), large LONGTEXT)")
    run(client, "INSERT INTO wide (payload, `a b`, price, large) VALUES ('ü $(id)\n', 1, 1.5, REPEAT('x', 200000))")
    out = tmp_path / "out"
    program = tmp_path / "handle"
    program.write_text(f"#!/bin/sh\nenv -0 > {out}\n")
    program.chmod(0o755)
    done = ackstream(
        {**variables, "COLUMN_nothing": "inherited"}, "consume", "wide", "--exec", str(program), "--until-empty"
    )
    assert done.returncode == 0, done.stderr
    found = dict(entry.split("=", 1) for entry in out.read_text().split("\0") if entry)
    columns = {name: value for name, value in found.items() if name.startswith("COLUMN_")}
    assert columns == {"COLUMN_payload": "ü $(id)\n", "COLUMN_price": "1.50", "COLUMN_id": "1", "COLUMN_epoch": "1"}
    assert (found["MESSAGE_QUEUE"], found["MESSAGE_ID"], found["MESSAGE_COUNT"]) == ("wide", "1", "1")


def test_a_stop_lets_the_message_under_way_be_finished(client: Any, variables: dict[str, str], tmp_path: Path) -> None:
    enqueue(variables, "a", "b")
    begun, go = tmp_path / "begun", tmp_path / "go"
    os.mkfifo(go)
    program = tmp_path / "handle"
    program.write_text(f"#!/bin/sh\ntouch {begun}\ncat {go}\n")
    program.chmod(0o755)
    log = tmp_path / "log"
    command = [sys.executable, "-m", "proxy", "consume", "m", "--exec", str(program)]
    with log.open("w") as errors:
        process = subprocess.Popen(command, env=variables, stderr=errors)
    try:
        eventually(begun.exists, timeout_s=30)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: "m: stopping: " in log.read_text(), timeout_s=30)
        go.write_text("")
        assert process.wait(30) == 0
        assert unacknowledged(client) == 1
    finally:
        process.kill()
        process.wait()


def test_a_killed_consumer_loses_nothing(client: Any, variables: dict[str, str], tmp_path: Path) -> None:
    enqueue(variables, "a")
    begun = tmp_path / "begun"
    program = tmp_path / "handle"
    program.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 60\n")
    program.chmod(0o755)
    command = [sys.executable, "-m", "proxy", "consume", "m", "--exec", str(program)]
    process = subprocess.Popen(command, env=variables)
    eventually(begun.exists, timeout_s=30)
    process.kill()
    process.wait()
    assert eventually(lambda: rows(client, "STREAM id, epoch FROM m LIMIT 1 NOWAIT"), timeout_s=20) == [(1, 2)]


def test_messages_are_posted_to_a_url(client: Any, variables: dict[str, str]) -> None:
    enqueue(variables, "good", "early", "bad")
    bodies: list[dict[str, Any]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            self.send_response({"good": 204, "early": 503, "bad": 400}[body["payload"]])
            self.send_header("Retry-After", "9" * 30)  # A day at most is given back for.
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{receiver.server_port}/hook"
        done = ackstream(variables, "consume", "m", "--http", url, "--until-empty")
        receiver.shutdown()
    assert done.returncode == 0, done.stderr
    assert {body["payload"] for body in bodies} == {"good", "early", "bad"}
    assert "m: message 2: HTTP 503" in done.stderr
    now_ns = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
    days = f"ROUND((CAST(time_next AS DOUBLE) - {now_ns}) / 86400e9)"
    assert rows(client, f"SELECT id, {days} FROM m WHERE time_acked IS NULL ORDER BY id") == [(2, 1), (3, 0)]


def test_errors_are_one_line_that_says_what_to_do(client: Any, variables: dict[str, str]) -> None:
    done = ackstream(variables, "consume", "nowhere", "--exec", "true")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith("ackstream: ")
    assert "SHOW QUEUES lists what there is" in done.stderr
    assert ackstream(variables, "consume", "m").returncode == 2
    variables["ACKSTREAM_URL"] = "mysql://root:secret@127.0.0.1:x/y"
    done = ackstream(variables, "peek", "m")
    assert done.returncode == 2
    assert "secret" not in done.stderr


def test_doctor_names_what_is_missing_and_what_to_run(private_server: Any, tmp_path: Path) -> None:
    with connect(private_server) as root:
        for statement in (
            "CREATE DATABASE shop",
            "CREATE TABLE shop.broken (id INT PRIMARY KEY) COMMENT 'vitess_message'",
            "CREATE USER engine@localhost",
            "GRANT SELECT ON shop.* TO engine@localhost",
        ):
            run(root, statement)
    variables = {**os.environ, "ACKSTREAM_BACKEND": f"mysql://engine@{private_server.host}:{private_server.port}"}
    done = ackstream(variables, "doctor", "--json")
    assert done.returncode == 1, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    by_name = {(finding["about"], finding["level"]) for finding in found}
    assert ("version", "ok") in by_name
    assert ("queue shop.broken", "error") in by_name
    assert any("GRANT" in finding["text"] for finding in found if finding["about"].startswith("account"))
    assert ("max_connections", "warning") in by_name
    assert {("clock", "ok"), ("TLS to the server", "ok"), ("TLS to clients", "ok")} <= by_name
    variables["ACKSTREAM_BACKEND"] = "mysql://nobody:hush@127.0.0.1:1"
    done = ackstream(variables, "doctor")
    assert done.returncode == 1
    assert "hush" not in done.stdout + done.stderr


def test_doctor_names_a_queue_that_cannot_be_described_now(
    client: Any, server: EmbeddedServer, database: str, variables: dict[str, str]
) -> None:
    run(client, "CREATE QUEUE paced (body TEXT) MAX_RATE = 5")
    run(client, "CREATE QUEUE other (body TEXT)")
    variables["ACKSTREAM_BACKEND"] = f"mysql://root@{server.host}:{server.port}"
    with connect(server, database=database) as locker:
        run(locker, "LOCK TABLES ackstream_limits WRITE")
        done = ackstream(variables, "doctor", "--json")
    texts = {found["about"]: found["text"] for found in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1
    assert "cannot be described now" in texts[f"queue {database}.paced"]
    assert f"queue {database}.other" not in texts


@pytest.mark.parametrize(("setting", "coloured"), [("NO_COLOR=", True), ("NO_COLOR=1", False)])
def test_no_color_takes_the_colours_from_a_terminal(server: EmbeddedServer, setting: str, *, coloured: bool) -> None:
    backend = f"mysql://root@{server.host}:{server.port}"
    command = [sys.executable, "-m", "proxy", "doctor", "--backend", backend]
    with contextlib.closing(Terminal(["env", "TERM=xterm", setting, *command])) as terminal:
        line = terminal.shows(r"[^\n]*version[^\n]*\n")
    assert bool(re.search(r"\x1b\[(?:\d+;)*3[0-7]", line)) is coloured


def test_top_shows_queues_and_streams(
    client: Any, proxy: RunningProxy, variables: dict[str, str], database: str
) -> None:
    enqueue(variables, "a", "b")
    run(client, "CREATE QUEUE `[bold]x` (payload TEXT)")
    consumer = Consumer(proxy.connect(database=database), "STREAM * FROM m LIMIT 9 PREFETCH 2")
    eventually(lambda: len(consumer.received) == 2)
    done = ackstream({**variables, "COLUMNS": "200"}, "top", "--search", database, "--sort", "in-flight")
    lines = done.stdout.splitlines()
    (first,) = (line for line in lines if f"{database}.m " in line and "running" in line)
    assert first.split()[1:4] == ["running", "0", "–"]
    assert first.split()[5] == "2"
    assert f"{database}.[bold]x" in done.stdout
    assert f" {consumer.connection.thread_id()} " in done.stdout
    assert lines.index(first) < next(at for at, line in enumerate(lines) if "[bold]x" in line)
    found = [
        json.loads(line) for line in ackstream(variables, "top", "--json", "--search", database).stdout.splitlines()
    ]
    assert [(row["Name"], row["In_flight"]) for row in found if row["Name"] == "m"] == [("m", 2)]
    consumer.vanish()


def test_top_in_a_terminal_goes_on_while_the_proxy_is_restarted(
    private_proxy: RunningProxy, private_server: EmbeddedServer
) -> None:
    with connect(private_server) as root:
        run(root, "CREATE DATABASE shop")
    with private_proxy.connect(database="shop") as client:
        create_queue(client, "m")
    url = f"mysql://root@{private_proxy.host}:{private_proxy.port}/shop"
    terminal = Terminal(
        ["env", "TERM=xterm", "COLUMNS=160", sys.executable, "-m", "proxy", "top", "--url", url, "--interval", "0.5"]
    )
    with contextlib.closing(terminal):
        terminal.shows(r"shop\.m")
        private_proxy.kill()
        terminal.shows("trying again")
        private_proxy.start()
        terminal.shows(r"shop\.m")
