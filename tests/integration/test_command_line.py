"""The real `mysql` command line client: a person's view."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.embedded.server import Flavour
from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import client_program
from tests.support.transcripts import play, steps
from tests.support.waiting import eventually

README = Path(__file__).parents[2] / "README.md"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Terminal:
    """`mysql` on a terminal of its own."""

    def __init__(self, argv: list[str]) -> None:
        self.screen = ""
        try:
            self._master, slave = pty.openpty()
        except OSError as error:  # A bare chroot has none.
            pytest.skip(f"this system gives out no terminals: {error}")
        environment = {**os.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - so that Ctrl-C reaches it as from a keyboard
        )  # fmt: skip
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def shows(self, pattern: str) -> str:
        """Wait until the screen shows it; forget the screen up to there."""

        def found() -> re.Match[str] | None:
            while select.select([self._master], [], [], 0)[0]:
                try:
                    self.screen += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # The program has closed its side.
                    break
            return re.search(pattern, self.screen)

        try:
            match = eventually(found, timeout_s=20)
        except AssertionError as error:
            raise AssertionError(f"not on the screen: {pattern!r}; it shows {self.screen!r}") from error
        assert match is not None
        self.screen = self.screen[match.end() :]
        return match[0]

    def waits(self) -> None:
        """Wait until the program sleeps, all that it had to print being on the screen: for the server, then."""
        eventually(lambda: Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(proxy: RunningProxy, database: str, flavour: Flavour) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*options: str) -> Terminal:
        argv = [*client_program(flavour), "-h", proxy.host, "-P", str(proxy.port), "-uroot", *options, database]
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


def test_a_batch_client_gets_a_bounded_stream_as_a_result(proxy, database, flavour) -> None:
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m")
        enqueue(connection, "m", "ab")
    argv = [*client_program(flavour), "-h", proxy.host, "-P", str(proxy.port), "-uroot", "--batch", database]
    done = subprocess.run(
        [*argv, "-e", "STREAM * FROM m WAIT 5; ACK FROM m WHERE id = 1; SELECT ROW_COUNT()"],
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


def test_the_session_that_opens_the_readme_works_as_typed(proxy, database, flavour) -> None:
    def adapted(text: str) -> str:
        return text.replace("shop", database).replace("127.0.0.1", proxy.host).replace("3307", str(proxy.port))

    def client(line: str) -> list[str]:
        dollar, program, *arguments = shlex.split(line)
        assert (dollar, program) == ("$", "mysql")
        return [*client_program(flavour), *arguments]

    def expect(terminal: Terminal, line: str) -> None:
        words = re.escape(line).replace("\\\t", r"\s+")
        terminal.shows(re.sub(r"\d\\\.\d+\\ sec", r"[\\d.]+ sec", words))

    with proxy.connect() as connection:
        run(connection, f"DROP DATABASE {database}")
    _, first, second, interrupted = (adapted(block).splitlines() for block in CONSOLE.findall(README.read_text()))
    made, opened, statement, *received = first
    subprocess.run(client(made), check=True, timeout=30)
    worker, application = Terminal(client(opened)), Terminal(client(second[0]))
    try:
        worker.type(f"{statement}\n")
        worker.shows(re.escape(statement))
        for line in filter(None, second[1:]):
            if line.startswith("> "):
                application.shows("> ")
                application.type(f"{line[2:]}\n")
                continue
            expect(application, line)
            while received:  # They come before the next statement, an ACK, is typed.
                expect(worker, received.pop(0))
        worker.waits()
        worker.press_ctrl_c()
        if flavour == "mysql":  # Its client has its own words for the first line.
            interrupted.pop(0)
        for line in interrupted:
            expect(worker, line)
    finally:
        worker.close()
        application.close()
    with proxy.connect(database=database) as connection:
        for step in steps(README):
            assert play(connection, step).rstrip() == step.answer.rstrip()
