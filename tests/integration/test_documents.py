"""The examples in docs/: every statement is run, and its result compared with the page."""

from __future__ import annotations

import http.server
import os
import re
import shlex
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from proxy.embedded.server import EmbeddedServer
from tests.support.documents import COMMANDS, GROUPS, MIGRATE, READY, REPOSITORY, SHOWN, STATEMENTS, blocks_of
from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, rows, run
from tests.support.servers import client_program, connect
from tests.support.transcripts import Step, play, steps
from tests.support.waiting import eventually

DOCS = REPOSITORY / "docs"
PROGRAM = re.compile(r"^```(python|bash)\n((?:(?!```).*\n)*)```\n```output\n((?:(?!```).*\n)*)```$", re.MULTILINE)

VOLATILE = re.compile(
    r"^( *(?:Id|Connection|Proxy|Host|Since|Until|Idle_s|Oldest_ready_s|Enqueued_per_s|Acked_per_s): ).*$",
    re.MULTILINE,
)
"""Columns whose values differ from run to run."""

DIALECT = (
    (re.compile(r"\b(bigint|int)\((?:20|11)\)"), r"\1"),
    (re.compile(r"_utf8mb4'"), "'"),
    (re.compile(r"DEFAULT '(\d+)'"), r"DEFAULT \1"),
    (re.compile(r" COLLATE=\w+"), ""),
    (re.compile(r"INVISIBLE DEFAULT NULL|DEFAULT NULL INVISIBLE"), "DEFAULT NULL /*!80023 INVISIBLE */"),
    (re.compile(r"a queue has [A-Z_]+(, [A-Z_]+)+$", re.MULTILINE), "a queue has …"),
    (re.compile(r"\(\("), "("),
    (re.compile(r"\)\)"), ")"),
)
"""What the servers print differently for the same table, and a list that the page leaves out, with what replaces
it."""


def comparable(text: str) -> str:
    text = VOLATILE.sub(r"\1…", text.rstrip("\n"))
    for pattern, same in DIALECT:
        text = pattern.sub(same, text)
    return text


@pytest.mark.parametrize("name", sorted({block.page.name for block in blocks_of(STATEMENTS)}))
def test_the_statements_of_a_page_answer_what_it_says(proxy, database, consume, name: str) -> None:
    def as_written(text: str) -> str:
        return text.replace(database, "shop")

    failures: list[str] = []
    with proxy.connect(database=database, program_name="mysql") as connection:
        for step in steps(DOCS / name):
            if step.elsewhere:
                consumer = consume(proxy.connect(database=database, program_name="mysql"), step.sql)
                eventually(partial(len, consumer.received))
            elif comparable(answer := play(connection, step, as_written)) != comparable(step.answer):
                failures.append(f"{name}:{step.line}: {step.statement}\nreturned\n{answer}instead of\n{step.answer}")
    assert not failures, "\n".join(failures)


def test_the_statements_on_groups_that_show_no_answer_are_accepted(proxy, database) -> None:
    statements = re.findall(r"^(.+?);", "".join(block.text for block in blocks_of(GROUPS)), re.MULTILINE)
    assert {statement.split()[0] for statement in statements} == {"CREATE", "ALTER", "SHOW"}
    with proxy.connect(database=database) as connection:
        run(connection, "CREATE QUEUE orders (customer BIGINT NOT NULL, region INT NOT NULL)")
        for statement in statements:
            run(connection, statement)


def programs() -> list[tuple[str, ...]]:
    return PROGRAM.findall((DOCS / "recipes.md").read_text())


@pytest.mark.parametrize(("language", "text", "output"), programs())
def test_the_programs_of_the_recipes_print_what_the_page_says(
    proxy: RunningProxy, database: str, server_name, language: str, text: str, output: str
) -> None:
    text = (
        text.replace("3307", str(proxy.port))
        .replace('"shop"', f'"{database}"')
        .replace("root shop", f"root {database}")
    )
    if language == "python":
        argv = [sys.executable, "-c", text]
    else:
        argv = ["bash", "-c", text.replace('"mysql -h', f'"{shlex.join(client_program(server_name))} -h')]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.stderr) == (output, "")


def typed(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a page in this folder by Bash, with this repository's `ackstream`."""
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, **variables}
    argv = ["bash", "-c", line]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=50, check=False, env=variables)


class Hook(http.server.BaseHTTPRequestHandler):
    """Accepts each message."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.mark.either_server
def test_the_commands_of_their_page_work_as_typed(proxy: RunningProxy, database: str, tmp_path: Path) -> None:
    """Each `consume` takes the messages of its queue and ends, each `enqueue` adds those of its file."""
    for name in ("handle-order", "load-events", "sendmail"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$*" >> {name}.arguments\ncat >> {name}.input\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "orders.jsonl").write_text('{"item": "tea"}\n{"item": "bread"}\n')
    (tmp_path / "orders.csv").write_text("item\nmilk\n")
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    consuming, enqueuing, completion = (block.text.splitlines() for block in blocks_of(COMMANDS))
    place = f"mysql://root@{proxy.host}:{proxy.port}/{database}"
    try:
        with proxy.connect(database=database) as connection:
            run(connection, "CREATE QUEUE orders (item TEXT)")
            for line in enqueuing:
                done = typed(line, tmp_path, ACKSTREAM_URL=place)
                assert done.returncode == 0, done.stderr
            assert rows(connection, "SELECT item FROM orders ORDER BY id") == [("tea",), ("bread",), ("milk",)]
            for queue in ("mails", "events", "hooks"):
                run(connection, f"CREATE QUEUE {queue} (address TEXT)")
                run(connection, f"INSERT INTO {queue} (address) VALUES ('ann@example.org'), ('bob@example.org')")
            for line in consuming:
                queue = line.split()[2]
                ending = f"{line} --until-empty".replace(":8080/", f":{receiver.server_port}/")
                done = typed(ending, tmp_path, ACKSTREAM_URL=place)
                assert done.returncode == 0, done.stderr
                assert rows(connection, f"SELECT id FROM {queue} WHERE time_acked IS NULL") == [], line
    finally:
        receiver.shutdown()
        receiver.server_close()
    mailed = (tmp_path / "sendmail.arguments").read_text().splitlines()
    assert sorted(mailed) == ["ann@example.org", "bob@example.org"]
    assert (tmp_path / "handle-order.input").read_text().count("item") == 3
    assert (tmp_path / "load-events.input").read_text().count("\n") == 2
    (line,) = completion
    assert "ackstream" in typed(f"{line} && complete -p ackstream", tmp_path).stdout


def test_the_commands_that_migrate_work_as_typed(server: EmbeddedServer, database: str, tmp_path: Path) -> None:
    name = f"admin_{database}"
    (tmp_path / "FILE").write_text("secret")
    (block,) = blocks_of(MIGRATE)
    with connect(server) as root:
        run(root, f"CREATE USER {name} IDENTIFIED BY 'secret'")
        run(root, f"GRANT ALL ON {database}.* TO {name}")
        run(root, f"USE {database}")
        create_queue(root, "orders", max_rate="5")
        try:
            lines = block.text.replace("admin@db:3306", f"{name}@{server.host}:{server.port}").splitlines()
            check, make = (typed(line, tmp_path) for line in lines)
        finally:
            run(root, f"DROP USER {name}")
    assert (check.returncode, check.stdout.splitlines()[0]) == (
        1,
        f"missing   {database}.ackstream_limits: version 1",
    ), check.stderr
    assert (make.returncode, make.stdout.split()[0]) == (0, "made"), make.stderr


@pytest.mark.either_server
def test_a_sample_has_the_columns_of_the_statement(proxy: RunningProxy, database: str) -> None:
    for block in blocks_of(SHOWN):
        statement = block.text.removeprefix("> ").partition("\\G\n")[0]
        with proxy.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            assert re.findall(r"^ *(\w+): ", block.text, re.MULTILINE) == [name for name, *_ in cursor.description]


@pytest.mark.either_server
def test_the_line_that_reports_the_start_is_as_written(proxy: RunningProxy) -> None:
    for block in blocks_of(READY):
        line = re.sub(r"\S+:\w+", lambda place: f"{place[0].partition('=')[0]}=ADDRESS", block.text.strip())
        written = next(line for line in proxy.output.splitlines() if line.startswith("ackstream ready"))
        assert re.sub(r"=\S+", "=ADDRESS", written.partition(" socket=")[0]) == line


def test_a_page_that_is_wrong_is_found(proxy, database) -> None:
    step = Step("SELECT 1 AS a;", "+---+\n| a |\n+---+\n| 2 |\n+---+\n", elsewhere=False, page=DOCS, line=1)
    with proxy.connect(database=database) as connection:
        answer = play(connection, step)
    assert answer == "+---+\n| a |\n+---+\n| 1 |\n+---+\n"
    assert comparable(answer) != comparable(step.answer)


def test_every_recipe_and_statement_is_exercised() -> None:
    recipes = (DOCS / "recipes.md").read_text()
    sections = re.split(r"^## ", recipes, flags=re.MULTILINE)[1:]
    assert len(sections) == 12
    assert all(re.search(r"^```(sql\n> |python\n|bash\n)", section, re.MULTILINE) for section in sections)
    verbs = {step.statement.split()[0].upper() for step in steps(DOCS / "sql.md")}
    assert verbs >= {
        "CREATE",
        "ALTER",
        "DROP",
        "PAUSE",
        "RESUME",
        "PURGE",
        "REDRIVE",
        "SHOW",
        "STREAM",
        "ACK",
        "NACK",
        "EXTEND",
        "INSERT",
    }
