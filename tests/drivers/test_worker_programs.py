"""The workers to copy, of examples/: killed, stopped, failing, slow, and with their proxy killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import rows, run
from tests.support.waiting import eventually

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
LANGUAGES = {
    "python": [sys.executable, str(HERE / "worker_under_test.py")],
    "node": ["node", str(HERE / "worker_under_test.mjs")],
}
STOPPED_S = 10
"""The poll alone takes 20 s."""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=[pytest.param("python"), pytest.param("node", marks=pytest.mark.drivers)])
def program(request: pytest.FixtureRequest) -> list[str]:
    return LANGUAGES[request.param]


@pytest.fixture
def tables(proxy: RunningProxy, database: str) -> Iterator[Any]:
    """A connection to the database with the tables of the workers."""
    with proxy.connect(database=database) as connection:
        make_tables(connection)
        yield connection


def make_tables(connection: Any) -> None:
    text = (EXAMPLES / "jobs.sql").read_text()
    for statement in text.split(";\n"):
        if statement.strip():
            run(connection, statement)


@pytest.fixture
def start(program: list[str], database: str) -> Iterator[Start]:
    """Starts a worker; all that are left are killed."""
    started: list[subprocess.Popen[str]] = []

    def one(proxy: RunningProxy, *, ack_wait_s: int = 30, grace_s: float = 30) -> subprocess.Popen[str]:
        argv = [*program, str(proxy.port), database, str(ack_wait_s), str(grace_s)]
        started.append(subprocess.Popen(argv, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield one
    for worker in started:
        worker.kill()
        worker.communicate()


@contextlib.contextmanager
def gate(proxy: RunningProxy, database: str, name: str) -> Iterator[None]:
    """The worker's message of this name is not finished before the end of the block."""
    with proxy.connect(database=database) as holder:
        assert rows(holder, f"SELECT GET_LOCK('{name}', 0)") == [(1,)]
        yield


def enqueue(connection: Any, *tasks: str) -> None:
    for task in tasks:
        run(connection, f"INSERT INTO jobs (task) VALUES ('{task}')")


def working(connection: Any, name: str) -> bool:
    """Whether a worker stands at this gate. The server may still show the statement of `gate`, which is answered."""
    query = "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'SELECT GET_LOCK%'"
    return bool(rows(connection, f"{query} AND info LIKE '%{name}%' AND info NOT LIKE '%, 0)'"))


def outcome(connection: Any) -> tuple[list[str], int]:
    """The tasks done, and the number of messages that are not acknowledged."""
    done = [task for (task,) in rows(connection, "SELECT task FROM done ORDER BY task")]
    ((left,),) = rows(connection, "SELECT COUNT(*) FROM jobs WHERE time_acked IS NULL")
    return done, left


def stopped(worker: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status of a worker that ends soon, and its complaints."""
    _, complaints = worker.communicate(timeout=STOPPED_S)
    return worker.returncode, complaints


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_waiting_worker_within_seconds(start, proxy, tables, number: signal.Signals) -> None:
    worker = start(proxy)
    enqueue(tables, "a", "b")
    eventually(lambda: outcome(tables) == (["a", "b"], 0), timeout_s=20)
    eventually(lambda: rows(tables, "SHOW STREAMS"))
    worker.send_signal(number)
    assert stopped(worker) == (0, "")
    eventually(lambda: not rows(tables, "SHOW STREAMS"))


def test_a_signal_amid_work_lets_the_message_be_finished(start, proxy, database, tables) -> None:
    enqueue(tables, "gate", "other")
    with gate(proxy, database, "gate"):
        worker = start(proxy)
        eventually(lambda: working(tables, "gate"), timeout_s=20)
        worker.send_signal(signal.SIGTERM)
    assert stopped(worker) == (0, "")
    assert outcome(tables) == (["gate"], 1)


def test_a_message_that_takes_longer_than_the_grace_goes_to_another_worker(start, proxy, database, tables) -> None:
    enqueue(tables, "gate")
    with gate(proxy, database, "gate"):
        worker = start(proxy, grace_s=0.1)
        eventually(lambda: working(tables, "gate"), timeout_s=20)
        worker.send_signal(signal.SIGTERM)
        assert stopped(worker) == (0, "")
        assert outcome(tables) == ([], 1)
    start(proxy)
    eventually(lambda: outcome(tables) == (["gate"], 0), timeout_s=20)
    assert rows(tables, "SELECT epoch FROM jobs") == [(2,)]


def test_a_killed_worker_leaves_no_effect_and_its_message_to_another(start, proxy, database, tables) -> None:
    enqueue(tables, "gate")
    with gate(proxy, database, "gate"):
        worker = start(proxy)
        eventually(lambda: working(tables, "gate"), timeout_s=20)
        worker.kill()
        worker.wait()
        start(proxy)
        eventually(lambda: rows(tables, "SELECT epoch FROM jobs") == [(2,)], timeout_s=20)
    eventually(lambda: outcome(tables) == (["gate"], 0), timeout_s=20)


def test_an_error_rolls_the_effect_back_and_the_message_comes_again(start, proxy, tables) -> None:
    enqueue(tables, "fail")
    worker = start(proxy)
    eventually(lambda: outcome(tables) == (["fail"], 0), timeout_s=20)
    worker.send_signal(signal.SIGTERM)
    status, complaints = stopped(worker)
    assert status == 0
    assert complaints.startswith("fail, delivery 1: ")
    assert "no water" in complaints
    ((reason,),) = rows(tables, "SELECT reason FROM jobs")
    assert "no water" in reason


@pytest.mark.parametrize(("attempt", "least_s"), [(3, 8), (11, 2048), (12, 3600), (24, 3600)])
def test_the_delay_doubles_up_to_an_hour_with_a_quarter_at_random(start, tables, proxy, attempt, least_s) -> None:
    run(tables, f"INSERT INTO jobs (task, epoch) VALUES ('broken', {attempt - 1}), ('broken', {attempt - 1})")
    start(proxy)
    given_back_us = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', reason_at)"
    delays_s = f"SELECT (time_next / 1e3 - {given_back_us}) / 1e6 FROM jobs WHERE reason IS NOT NULL"
    eventually(lambda: len(rows(tables, f"{delays_s} AND epoch = {attempt}")) == 2, timeout_s=20)
    (first,), (second,) = rows(tables, delays_s)
    assert all(least_s - 0.1 <= delay <= least_s * 1.25 + 0.1 for delay in (first, second)), (first, second)
    assert first != second


def test_a_message_that_takes_longer_than_its_wait_is_kept(start, proxy, database, tables) -> None:
    run(tables, "ALTER QUEUE jobs ACK_WAIT = 4")
    enqueue(tables, "gate")
    with gate(proxy, database, "gate"):
        start(proxy, ack_wait_s=4)
        eventually(lambda: working(tables, "gate"), timeout_s=20)
        ((first,),) = rows(tables, "SELECT time_next FROM jobs")
        eventually(lambda: rows(tables, f"SELECT 1 FROM jobs WHERE time_next > {first} + 2500000000"), timeout_s=30)
    eventually(lambda: outcome(tables) == (["gate"], 0), timeout_s=20)
    assert rows(tables, "SELECT epoch FROM jobs") == [(1,)]


def test_a_worker_whose_proxy_is_killed_goes_on_with_the_next(start, server, database, tmp_path) -> None:
    with running_proxy(server, tmp_path / "log") as proxy:
        with proxy.connect(database=database) as connection:
            make_tables(connection)
            enqueue(connection, "gate")
            with gate(proxy, database, "gate"):
                start(proxy)
                eventually(lambda: working(connection, "gate"), timeout_s=20)
                proxy.kill()
        proxy.start()  # On the same port.
        with proxy.connect(database=database) as connection:
            eventually(lambda: outcome(connection) == (["gate"], 0), timeout_s=30)
