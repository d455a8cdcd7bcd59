"""What docs/workers.md states of pools and ORMs: when a message goes back, and the model of a queue.

The programs of pools/ read commands from standard input, and answer each with a number. Their pools close connections
as soon as the pool allows.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.proxies import RunningProxy
from tests.support.queues import rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.drivers

sqlalchemy = pytest.importorskip("sqlalchemy", reason="the drivers are installed by make test-drivers")
orm = pytest.importorskip("sqlalchemy.orm")
pools = pytest.importorskip("sqlalchemy.pool")

PAGE = (Path(__file__).parents[2] / "docs" / "workers.md").read_text()
NEXT = sqlalchemy.text("STREAM id FROM jobs LIMIT 1 WAIT 10")

POOLS = Path(__file__).parent / "pools"
JARS = [f"/usr/share/java/{name}.jar" for name in ("HikariCP", "slf4j-api", "slf4j-nop", "mariadb-java-client")]
JAVA = ["java", "-cp", ":".join(JARS), str(POOLS / "Pool.java")]
PROGRAMS = {
    "mysql2": ["node", str(POOLS / "pool.mjs"), "PORT", "DATABASE", "0"],
    "hikari": [*JAVA, "PORT", "DATABASE", "evict"],
    "go": ["go", "run", str(POOLS / "pool.go"), "PORT", "DATABASE"],
}
IN_GO = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}  # where Debian puts its packages
CLOSED_S = 30
"""HikariCP closes an idle connection after ten seconds; a first run compiles."""


@pytest.fixture
def client(proxy: RunningProxy, database: str) -> Iterator[Any]:
    with proxy.connect(database=database) as connection:
        run(connection, "CREATE QUEUE jobs (task VARCHAR(100)) ACK_WAIT = 600")
        yield connection


def engine(proxy: RunningProxy, database: str, **options: Any) -> Any:
    address = f"mysql+pymysql://root@{proxy.host}:{proxy.port}/{database}"
    return sqlalchemy.create_engine(address, isolation_level="AUTOCOMMIT", **options)


def epoch(client: Any) -> int:
    """The epoch of the delivery that another worker gets now; 0: it gets none."""
    delivered = rows(client, "STREAM id, epoch FROM jobs LIMIT 1 NOWAIT")
    return int(delivered[0][1]) if delivered else 0


def test_without_a_pool_the_message_goes_back_when_the_block_ends(proxy: RunningProxy, database: str, client) -> None:
    run(client, "INSERT INTO jobs (task) VALUES ('a')")
    with engine(proxy, database, poolclass=pools.NullPool).connect() as worker:
        assert worker.execute(NEXT).scalar_one() == 1
        assert epoch(client) == 0
    eventually(lambda: epoch(client) == 2)


def test_the_default_pool_keeps_the_connection_and_so_the_message(proxy: RunningProxy, database: str, client) -> None:
    run(client, "INSERT INTO jobs (task) VALUES ('a')")
    pooled = engine(proxy, database)
    with pooled.connect() as worker:
        assert worker.execute(NEXT).scalar_one() == 1
    assert epoch(client) == 0
    pooled.dispose()
    eventually(lambda: epoch(client) == 2)


def test_a_connection_beyond_the_pools_size_is_closed_when_it_is_returned(
    proxy: RunningProxy, database: str, client
) -> None:
    run(client, "INSERT INTO jobs (task) VALUES ('a')")
    pooled = engine(proxy, database, pool_size=1, max_overflow=1)
    with pooled.connect() as worker, pooled.connect():  # The second one is returned first.
        assert worker.execute(NEXT).scalar_one() == 1
    eventually(lambda: epoch(client) == 2)
    pooled.dispose()


def test_pool_recycle_closes_the_connection_when_it_is_taken_again(proxy: RunningProxy, database: str, client) -> None:
    run(client, "INSERT INTO jobs (task) VALUES ('a')")
    pooled = engine(proxy, database, pool_recycle=0)
    with pooled.connect() as worker:
        assert worker.execute(NEXT).scalar_one() == 1
    assert epoch(client) == 0
    with pooled.connect():
        eventually(lambda: epoch(client) == 2)
    pooled.dispose()


def test_with_on_disconnect_keep_any_connection_acknowledges(proxy: RunningProxy, database: str, client) -> None:
    run(client, "ALTER QUEUE jobs ON_DISCONNECT = keep")
    run(client, "INSERT INTO jobs (task) VALUES ('a')")
    without = engine(proxy, database, poolclass=pools.NullPool)
    with without.connect() as worker:
        assert worker.execute(NEXT).scalar_one() == 1
    assert epoch(client) == 0
    with without.connect() as other:
        assert other.execute(sqlalchemy.text("ACK jobs WHERE id = 1 AND epoch = 1")).rowcount == 1


def test_the_model_on_the_page_enqueues(proxy: RunningProxy, database: str, client) -> None:
    (text,) = re.findall(r"^```python\n(class Job\(Base\).*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {
        "Base": orm.declarative_base(),
        "Mapped": orm.Mapped,
        "mapped_column": orm.mapped_column,
    }
    exec(compile(text, "docs/workers.md", "exec", dont_inherit=True), names)
    with orm.Session(engine(proxy, database)) as session:
        session.add(names["Job"](task="tea"))
        session.commit()
    assert rows(client, "STREAM * FROM jobs LIMIT 1 WAIT 10") == [(1, "tea")]


class Program:
    """A program of pools/, begun with this proxy and database."""

    def __init__(self, argv: list[str], proxy: RunningProxy, database: str) -> None:
        places = {"PORT": str(proxy.port), "DATABASE": database}
        self._process = subprocess.Popen(
            [places.get(argument, argument) for argument in argv],
            env={**os.environ, **IN_GO},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, command: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def begin(proxy: RunningProxy, database: str, client) -> Iterator[Callable[[list[str]], Program]]:
    """Begins programs, which have one message."""
    run(client, "INSERT INTO jobs (task) VALUES ('a')")
    begun: list[Program] = []

    def one(argv: list[str]) -> Program:
        begun.append(Program(argv, proxy, database))
        return begun[-1]

    yield one
    for program in begun:
        program.close()


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest, begin: Callable[[list[str]], Program]) -> Program:
    return begin(PROGRAMS[request.param])


def connected(client: Any, condition: str) -> bool:
    return bool(rows(client, f"SELECT 1 FROM information_schema.processlist WHERE {condition}"))


def others_are_gone(client: Any) -> bool:
    return not connected(client, "db = DATABASE() AND id != CONNECTION_ID()")


@pytest.mark.either_server
def test_a_pool_closes_no_connection_that_is_checked_out(client, program: Program) -> None:
    assert program("hold") == 1
    idle = program("idle")
    eventually(lambda: not connected(client, f"id = {idle}"), timeout_s=CLOSED_S)
    assert epoch(client) == 0
    program("return")
    eventually(lambda: epoch(client) == 2, timeout_s=CLOSED_S)


@pytest.mark.either_server
def test_a_pool_gives_the_message_of_a_single_statement_back(client, program: Program) -> None:
    assert program("query") == 1
    eventually(lambda: epoch(client) == 2, timeout_s=CLOSED_S)


@pytest.mark.either_server
def test_with_on_disconnect_keep_another_connection_of_the_pool_acknowledges(client, program: Program) -> None:
    run(client, "ALTER QUEUE jobs ON_DISCONNECT = keep")
    assert program("query") == 1
    eventually(lambda: others_are_gone(client), timeout_s=CLOSED_S)
    assert epoch(client) == 0
    assert program("ack") == 1


@pytest.mark.either_server
def test_hikari_closes_idle_connections_after_its_idle_timeout(client, begin) -> None:
    program = begin([*JAVA, "PORT", "DATABASE", "no"])
    assert program("hold") == 1
    idle = program("idle")
    eventually(lambda: not connected(client, f"id = {idle}"), timeout_s=CLOSED_S)
    assert epoch(client) == 0


@pytest.mark.either_server
@pytest.mark.parametrize(("name", "answer"), [("go", 0), ("hikari", 1317)])
def test_a_wait_is_cancelled_as_the_page_says(client, begin, name: str, answer: int) -> None:
    run(client, "DELETE FROM jobs")
    program = begin(PROGRAMS[name])
    assert program("cancel") == answer
    eventually(lambda: not rows(client, "SHOW STREAMS"))


@pytest.mark.either_server
def test_mysql2_closes_idle_connections_only_beyond_max_idle(client, begin) -> None:
    keeps = begin(["node", str(POOLS / "pool.mjs"), "PORT", "DATABASE", "3"])  # As many as it may have: the default.
    assert keeps("query") == 1
    closes = begin(PROGRAMS["mysql2"])
    idle = closes("idle")
    eventually(lambda: not connected(client, f"id = {idle}"))
    assert epoch(client) == 0


@pytest.mark.either_server
@pytest.mark.parametrize("end", ["finish", "close-old"])
def test_django_closes_its_connection_at_the_end_of_a_request(client, begin, end: str) -> None:
    program = begin([sys.executable, str(POOLS / "pool_django.py"), "PORT", "DATABASE", "0"])
    assert program("query") == 1
    assert epoch(client) == 0
    program(end)
    eventually(lambda: epoch(client) == 2)


@pytest.mark.either_server
@pytest.mark.parametrize("max_age", ["600", "None"])
def test_django_keeps_its_connection_with_conn_max_age(client, begin, max_age: str) -> None:
    program = begin([sys.executable, str(POOLS / "pool_django.py"), "PORT", "DATABASE", max_age])
    assert program("query") == 1
    program("finish")
    program("close-old")
    assert epoch(client) == 0
    assert program("ack") == 1


@pytest.mark.either_server
def test_a_migration_of_django_makes_a_queue_and_the_model_on_the_page_enqueues(client, begin) -> None:
    run(client, "DELETE FROM jobs")
    program = begin([sys.executable, str(POOLS / "pool_django.py"), "PORT", "DATABASE", "0"])
    number = program("enqueue")
    assert rows(client, "STREAM * FROM jobs LIMIT 1 WAIT 10") == [(number, "tea")]
    program("migrate")
    run(client, "INSERT INTO mails (address) VALUES ('ann@example.org')")
    assert rows(client, "STREAM address FROM mails LIMIT 1 WAIT 10") == [("ann@example.org",)]


Request = Callable[..., int]


@pytest.fixture(params=["mysqli", "pdo"])
def php(request: pytest.FixtureRequest, proxy: RunningProxy, database: str) -> Iterator[Request]:
    """PHP's web server in one process, as it is behind Apache. Makes requests."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = subprocess.Popen(["php", "-S", address, str(POOLS / "pool.php")], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    assert "started" in server.stderr.readline()

    def ask(do: str, **options: str) -> int:
        query = urlencode({"port": proxy.port, "database": database, "by": request.param, "do": do, **options})
        with urllib.request.urlopen(f"http://{address}/?{query}") as answer:
            return int(answer.read())

    yield ask
    server.terminate()
    server.communicate()


@pytest.mark.either_server
def test_php_closes_its_connection_at_the_end_of_the_script(client, php: Request) -> None:
    run(client, "INSERT INTO jobs (task) VALUES ('a')")
    assert php("query") == 1
    eventually(lambda: epoch(client) == 2)


@pytest.mark.either_server
def test_php_keeps_a_persistent_connection_and_so_the_message(client, php: Request) -> None:
    run(client, "INSERT INTO jobs (task) VALUES ('a')")
    assert php("query", persistent="1") == 1
    assert epoch(client) == 0
    assert php("ack", persistent="1") == 1
