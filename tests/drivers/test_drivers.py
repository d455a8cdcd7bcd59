"""Each program of examples/, run as a person runs it: one driver each, through the proxy.

All of them do the same and say so in the same words. They enqueue their third message only after they have read the
second from the open stream, so a driver that holds rows back until the result's end hangs here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.embedded.server import Flavour
from tests.support.proxies import RunningProxy
from tests.support.queues import rows, run
from tests.support.servers import binary_or_skip, client_program

pytestmark = pytest.mark.drivers

EXAMPLES = Path(__file__).parents[2] / "examples"
JDBC_DRIVER = "/usr/share/java/mariadb-java-client.jar"
GO_PACKAGES = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}  # where Debian puts them

PASSWORD = "rain & sun's"
"""With what a shell, a URL and a quoted string would each take for their own."""

SLOWEST_S = 50
"""A compiler's first run included, on a busy machine."""


TEXT = ("text", "text", "text")
PREPARED = ("text", "prepared", "text")
PDO = ("emulated prepare", "native prepare", "emulated prepare")


@dataclass(frozen=True)
class Driver:
    """A driver's program, how it is started, and how it acknowledges the three streamed messages."""

    source: str
    launcher: Sequence[str]
    ways: tuple[str, str, str]
    environment: Callable[[], dict[str, str]] = dict

    @property
    def prepares(self) -> bool:
        """Whether it uses prepared statements of the server."""
        return self.ways != TEXT

    def command(self, directory: Path) -> Sequence[str]:
        """What starts it; `directory` is for what it compiles."""
        return [*self.launcher, self.source] if self.launcher else [compiled(EXAMPLES / self.source, directory)]


def compiled(source: Path, directory: Path) -> str:
    options = subprocess.check_output(["pkg-config", "--cflags", "--libs", "libmariadb"], text=True).split()
    program = str(directory / source.stem)
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", source, "-o", program, *options], check=True)
    return program


def mysql_client() -> dict[str, str]:
    return {"CLIENT": " ".join([*client_program("mysql"), "--get-server-public-key"])}


def mariadb_client() -> dict[str, str]:
    return {"CLIENT": " ".join(client_program("mariadb"))}


PYTHON = [sys.executable]
DRIVERS = {
    "mysql-command-line": Driver("shell/orders.bash", ["bash"], TEXT, mysql_client),
    "mariadb-command-line": Driver("shell/orders.bash", ["bash"], TEXT, mariadb_client),
    "pymysql": Driver("python/orders_pymysql.py", PYTHON, TEXT),
    "mysqlclient": Driver("python/orders_mysqlclient.py", PYTHON, TEXT),
    "asyncmy": Driver("python/orders_asyncmy.py", PYTHON, TEXT),
    "connector-python": Driver("python/orders_connector.py", PYTHON, PREPARED),
    "sqlalchemy": Driver("python/orders_sqlalchemy.py", PYTHON, TEXT),
    "node-mysql2": Driver("node/orders_mysql2.mjs", ["node"], PREPARED),
    "node-mariadb": Driver("node/orders_mariadb.mjs", ["node"], PREPARED),
    "java-mariadb": Driver("java/Orders.java", ["java", "-cp", JDBC_DRIVER], PREPARED),
    "go-sql-driver": Driver("go/orders.go", ["go", "run"], PREPARED, lambda: GO_PACKAGES),
    "php-mysqli": Driver("php/orders_mysqli.php", ["php"], PREPARED),
    "php-pdo": Driver("php/orders_pdo.php", ["php"], PDO),
    "ruby-mysql2": Driver("ruby/orders.rb", ["ruby"], PREPARED),
    "perl-dbd-mysql": Driver("perl/orders.pl", ["perl"], PREPARED),
    "c-libmariadb": Driver("c/orders.c", [], PREPARED),
}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest, flavour: Flavour) -> Driver:
    if request.param == "mysql-command-line":
        binary_or_skip("mysql")  # they come together
        if flavour == "mariadb":
            pytest.skip("MySQL 9's command line has no mysql_native_password, MariaDB 10.11 no caching_sha2_password")
    return DRIVERS[request.param]


@pytest.fixture
def clerk(proxy: RunningProxy, database: str) -> Iterator[str]:
    """A user who has never logged in, with a password, and the tables that the programs expect."""
    name = f"c_{database}"
    with proxy.connect(database=database) as root:
        for statement in (EXAMPLES / "orders.sql").read_text().split(";\n"):
            if statement.strip():
                run(root, statement)
        with root.cursor() as cursor:
            cursor.execute(f"CREATE USER {name}@localhost IDENTIFIED BY %s", [PASSWORD])
            cursor.execute(f"GRANT SELECT, INSERT, UPDATE ON {database}.* TO {name}@localhost")
        yield name
        run(root, f"DROP USER {name}@localhost")


def prepared_so_far(proxy: RunningProxy) -> int:
    with proxy.connect() as connection:
        return int(rows(connection, "SHOW GLOBAL STATUS LIKE 'Com_stmt_prepare'")[0][1])


def test_the_example_enqueues_streams_acknowledges_and_long_polls(driver, clerk, proxy, database, tmp_path) -> None:
    prepared_before = prepared_so_far(proxy)
    done = subprocess.run(
        [*driver.command(tmp_path), proxy.host, str(proxy.port), clerk, PASSWORD, database],
        cwd=EXAMPLES,
        env={**os.environ, **driver.environment()},
        capture_output=True,
        text=True,
        timeout=SLOWEST_S,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0

    with proxy.connect(database=database) as root:
        ids = {item: order for order, item in rows(root, "SELECT id, item FROM orders")}
        states = rows(root, "SELECT item, time_acked IS NOT NULL, time_next IS NULL, epoch FROM orders ORDER BY id")
        claims_left = rows(root, "STREAM id FROM orders NOWAIT")
    assert states == [(item, 1, 1, 1) for item in ("tea", "bread", "jam", "salt")]  # each delivered once; no milk
    assert claims_left == []

    *before, refusal, enqueued, received, acknowledged, end = done.stdout.splitlines()
    assert before == [
        "enqueued tea, bread",
        "rolled back milk",
        f"received {ids['tea']} tea",
        f"acknowledged {ids['tea']}, {driver.ways[0]}: 1",
        f"received {ids['bread']} bread",
        f"acknowledged {ids['bread']}, {driver.ways[1]}: 1",
        "enqueued jam",
        f"received {ids['jam']} jam",
        f"acknowledged {ids['jam']}, {driver.ways[2]}: 1",
        f"acknowledged {ids['tea']}, again: 0",
    ]
    assert re.match(rf"refused 1105: .*Table '{database}\.customers' is not a message table", refusal)
    assert [enqueued, received, acknowledged, end] == [
        "enqueued salt",
        f"received {ids['salt']} salt",
        f"acknowledged {ids['salt']}, in the transaction: 1",
        "nothing came",
    ]
    assert (prepared_so_far(proxy) > prepared_before) == driver.prepares


def test_every_program_is_run_and_stands_in_the_page_on_drivers() -> None:
    programs = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/[Oo]rders*")}
    assert programs == {driver.source for driver in DRIVERS.values()}
    page = (EXAMPLES.parent / "docs" / "drivers.md").read_text()
    assert programs == set(re.findall(r"\(\.\./examples/(\w+/[\w.]+)\)", page))
