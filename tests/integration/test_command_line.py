"""The real `mysql` command line client: a person's view."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import ServerName, client_program, connect
from tests.support.terminal import Terminal, as_printed, type_session
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

README = Path(__file__).parents[2] / "README.md"
START = Path(__file__).parents[2] / "docs" / "start.md"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def terminal(proxy: RunningProxy, database: str, server_name: ServerName) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*options: str) -> Terminal:
        argv = [*client_program(server_name), "-h", proxy.host, "-P", str(proxy.port), "-uroot", *options, database]
        opened.append(Terminal(argv))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def test_quick_shows_each_message_as_it_is_inserted_in_another_terminal(terminal, proxy, database) -> None:
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m")
        consumer = terminal("--quick")
        consumer.shows("> ")
        consumer.type("STREAM * FROM m;\n")
        consumer.shows("STREAM")
        for word in ("first", "second"):
            enqueue(connection, "m", [word])
            consumer.shows(rf"\d+ +\| {word}|\d+\s+{word}")


def test_ctrl_c_ends_the_stream_with_1317_and_leaves_the_session_usable(terminal, proxy, database) -> None:
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m")
        enqueue(connection, "m", ["delivered"])
    consumer = terminal("--quick")
    consumer.shows("> ")
    consumer.type("STREAM * FROM m;\n")
    # MySQL's client shows no number when it is interrupted in the midst of a row's printing, at a server, too.
    consumer.shows(r"delivered *\|?\r\n")
    consumer.waits()
    consumer.press_ctrl_c()
    consumer.shows(r"ERROR 1317 \(70100\)")
    consumer.type("SELECT 6 * 7;\n")
    consumer.shows(r"42")


def test_a_batch_client_gets_a_bounded_stream_as_a_result(proxy, database, server_name) -> None:
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m")
        enqueue(connection, "m", "ab")
    argv = [*client_program(server_name), "-h", proxy.host, "-P", str(proxy.port), "-uroot", "--batch", database]
    done = subprocess.run(
        [*argv, "-e", "STREAM * FROM m WAIT 5; BEGIN; ACK FROM m WHERE id = 1; SELECT ROW_COUNT(); COMMIT"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.stdout == "id\tpayload\n1\ta\n2\tb\nROW_COUNT()\n1\n", done.stderr


def test_the_connection_id_is_the_servers_and_kill_query_from_elsewhere_ends_the_stream(
    proxy, database, consume
) -> None:
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m")
        enqueue(connection, "m", ["a"])
        other = proxy.connect(database=database)
        assert rows(other, "SELECT CONNECTION_ID()") == [(other.thread_id(),)]
        consumer = consume(other, "STREAM * FROM m")
        eventually(lambda: consumer.received)
        run(connection, f"KILL QUERY {other.thread_id()}")
        assert consumer.ended.wait(10)
        assert consumer.error is not None
        assert consumer.error.args[0] == 1317
        assert rows(other, "SELECT 1") == [(1,)]
        assert run(other, "ACK FROM m WHERE id = 1") == 1


def test_the_session_that_opens_the_readme_works_as_typed(proxy, database, server_name) -> None:
    def adapted(text: str) -> str:
        return text.replace("shop", database).replace("127.0.0.1", proxy.host).replace("3307", str(proxy.port))

    with proxy.connect() as connection:
        run(connection, f"DROP DATABASE {database}")
    _, session = (adapted(block).splitlines() for block in CONSOLE.findall(README.read_text()))
    type_session(client(session[0], server_name), session[1:])
    (program,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(program.splitlines()) == 10
    strictly = [sys.executable, "-W", "error", "-c", adapted(program)]  # A reader sees each warning.
    worker = subprocess.Popen(strictly, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "working on bread\n"
        with proxy.connect(database=database) as connection:
            run(connection, "INSERT INTO orders (item) VALUES ('milk')")
            assert worker.stdout.readline() == "working on milk\n"
            eventually(lambda: rows(connection, "SELECT id FROM orders WHERE time_acked IS NULL") == [])
    finally:
        worker.kill()
        worker.communicate()


def test_the_endless_stream_of_the_start_page_works_as_typed(proxy, database, server_name) -> None:
    def adapted(text: str) -> str:
        return text.replace("shop", database).replace("127.0.0.1", proxy.host).replace("3307", str(proxy.port))

    with proxy.connect(database=database) as connection:
        run(connection, "CREATE QUEUE orders (item TEXT)")
        run(connection, "INSERT INTO orders (item) VALUES ('tea'), ('bread')")
        run(connection, "ACK orders WHERE TRUE")
    first, second, interrupted = (adapted(block).splitlines() for block in CONSOLE.findall(START.read_text())[-3:])
    opened, statement, *received = first
    worker, application = Terminal(client(opened, server_name)), Terminal(client(second[0], server_name))
    try:
        worker.type(f"{statement}\n")
        worker.shows(re.escape(statement))
        for line in filter(None, second[1:]):
            if line.startswith("> "):
                application.shows("> ")
                application.type(f"{line[2:]}\n")
                continue
            application.shows(as_printed(line))
            while received:  # They come before the next statement, an ACK, is typed.
                worker.shows(as_printed(received.pop(0)))
        worker.waits()
        worker.press_ctrl_c()
        if server_name == "mysql":  # Its client has its own words for the first line.
            interrupted.pop(0)
        for line in interrupted:
            worker.shows(as_printed(line))
    finally:
        worker.close()
        application.close()


def test_the_account_of_the_start_page_serves_a_queue_without_a_complaint(server, tmp_path, flavour) -> None:
    (page,) = re.findall(r"^```sql\n(CREATE USER.*?)^```$", START.read_text(), re.MULTILINE | re.DOTALL)
    name, database = f"ackstream_{flavour}", f"shop_{flavour}"
    text = page.replace("shop", database).replace("ackstream@", f"{name}@")
    if flavour == "mariadb":  # As the page says behind it.
        text = text.replace("CONNECTION_ADMIN", "CONNECTION ADMIN")
    with connect(server) as root:
        run(root, f"CREATE DATABASE {database}")
        try:
            for statement in re.findall(r"^(.*);", text, re.MULTILINE):
                run(root, statement)
            with running_proxy(server, tmp_path / "log", account=f"{name}:a%20long%20password") as proxy:
                with proxy.connect(database=database) as worker:
                    run(worker, "CREATE QUEUE orders (item TEXT) MAX_ATTEMPTS = 3 DEAD_LETTER = orders_dead")
                    run(root, f"INSERT INTO {database}.orders (item) VALUES ('tea')")
                    assert rows(worker, "STREAM * FROM orders LIMIT 1 WAIT 20") == [(1, "tea")]
                    assert run(worker, "ACK orders WHERE id = 1") == 1
                    with worker.cursor() as cursor:
                        cursor.execute("SHOW FULL QUEUES")
                        problem = [column[0] for column in cursor.description].index("Problem")
                        assert [row[problem] for row in cursor.fetchall()] == [None, None]
                assert "GRANT" not in proxy.output
        finally:
            run(root, f"DROP DATABASE {database}")
            run(root, f"DROP USER {name}@'%'")


def client(line: str, server_name: ServerName) -> list[str]:
    """The command of a line of a page, with this server's own client."""
    dollar, program, *arguments = shlex.split(line)
    assert (dollar, program) == ("$", "mysql")
    return [*client_program(server_name), *arguments]
