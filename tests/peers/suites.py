"""The suites: where each one comes from, what it needs from a server, and how it is run.

Nothing of theirs is kept here. A suite is its project's source at one version, checked by its hash, and an environment
that locks/peers-NAME.txt names. Where a suite has the server's address written into it, our copy of the file is
changed before the run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

from proxy.embedded.server import Flavour
from tests.peers.outcomes import Reader, read_connector, read_go, read_junit
from tests.support.certificates import Certificates

BOTH: tuple[Flavour, ...] = ("mysql", "mariadb")
PASSWORD = "some password"
DIGITS = "01234567890123456789"
RUN_LIMIT_S = 900.0
CONNECTOR_RUNNER = Path(__file__).with_name("connector_runner.py")


@dataclass(frozen=True, slots=True)
class Source:
    """A project's source. `debian` is the release that has it, for projects whose sdist holds no tests."""

    package: str
    version: str
    sha256: str
    debian: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One run: a server (or a proxy before it), a fresh copy of the source, and where the report goes."""

    flavour: Flavour
    host: str
    port: int
    source: Path
    python: Path
    certificate: Certificates
    report: Path

    def edit(self, place: str, old: str, new: str) -> None:
        """Change one line of the copy."""
        path = self.source / place
        text = path.read_text()
        assert old in text, f"{path} has no {old!r}: another version?"
        path.write_text(text.replace(old, new))

    def write(self, place: str, text: str) -> Path:
        """Add a file to the copy."""
        path = self.source / place
        path.write_text(text)
        return path

    def pytest(self, *arguments: str) -> list[str]:
        """The command for suites that pytest runs."""
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={self.report}"]
        return [str(self.python), "-m", "pytest", *options, *arguments]


@dataclass(frozen=True, slots=True)
class Command:
    """What runs a suite, and what it wants to find in the environment."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    prints_report: bool = False
    """Instead of writing it to a file."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One project's tests. `setup` is SQL that makes its users and databases on a server of its own."""

    name: str
    source: Source
    command: Callable[[Stage], Command]
    setup: Sequence[str] = ()
    mysql_setup: Sequence[str] = ()
    mariadb_setup: Sequence[str] = ()
    password: str = ""
    """root's."""
    flavours: Sequence[Flavour] = BOTH
    options: Sequence[str] = ()
    """For the server."""
    certificate: Callable[[Path], Certificates] | None = None
    """Where the suite brings one of its own."""
    python: bool = True
    """Whether it has an environment of Python's, made from its lock."""
    builds: bool = True
    """Whether the package itself is built from the source; else the lock names it."""
    reader: Reader = read_junit


def _pymysql(stage: Stage) -> Command:
    address = {"host": stage.host, "port": stage.port}
    first = {**address, "user": "root", "password": "", "database": "test1", "use_unicode": True, "local_infile": True}
    second = {**address, "user": "test2", "password": PASSWORD, "database": "test2"}
    stage.write("pymysql/tests/databases.json", json.dumps([first, second]))
    tests = ["pymysql/tests"]
    if stage.flavour == "mysql":
        stage.edit("tests/test_auth.py", "port = 3306", f"port = {stage.port}")
        stage.edit("tests/test_auth.py", 'os.path.expanduser("~/ca.pem")', repr(str(stage.certificate.ca)))
        tests.append("tests/test_auth.py")
    return Command(stage.pytest(*tests), stage.source)


def _mysqlclient(stage: Stage) -> Command:
    option_file = f"""\
        [MySQLdb-tests]
        host = {stage.host}
        port = {stage.port}
        user = root
        database = test
        default-character-set = utf8mb4
        """
    stage.write("tests/peers.cnf", dedent(option_file))
    return Command(stage.pytest("tests"), stage.source, {"TESTDB": "peers.cnf"})


def _aiomysql(stage: Stage) -> Command:
    address = f"--mysql-address=server={stage.host}:{stage.port}"
    return Command(stage.pytest(address, "tests"), stage.source, {"MYSQL_ROOT_PASSWORD": PASSWORD})


def _aiomysql_certificate(source: Path) -> Certificates:
    folder = source / "tests/ssl_resources/ssl"
    return Certificates(folder / "ca.pem", folder / "server-cert.pem", folder / "server-key.pem")


def _asyncmy(stage: Stage) -> Command:
    stage.edit("conftest.py", "port=3306", f"port={stage.port}")
    shutil.rmtree(stage.source / "asyncmy")  # Not compiled, it would hide the one that is.
    return Command(stage.pytest("tests"), stage.source, {"MYSQL_PASS": PASSWORD})


def _sqlalchemy(stage: Stage) -> Command:
    dialect = f"{stage.flavour}+mysqldb"
    url = f"{dialect}://scott:tiger@{stage.host}:{stage.port}/test?charset=utf8mb4"
    tests = ["test/dialect/mysql", "test/dialect/test_suite.py"]
    return Command(stage.pytest("--dburi", url, "--maxfail=100000", *tests), stage.source)


def _connector(stage: Stage) -> Command:
    server = ["--use-external-server", f"--host={stage.host}", f"--port={stage.port}"]
    how = ["--skip-install", "--verbosity=2"]
    # The rest is about Django, telemetry and machine learning.
    wanted = "--test-regex=^(?!ai|otel|django|concurrency)"
    runner = [str(stage.python), str(CONNECTOR_RUNNER), str(stage.report)]
    return Command([*runner, *server, *how, wanted], stage.source)


def _go(stage: Stage) -> Command:
    env = {
        "MYSQL_TEST_ADDR": f"{stage.host}:{stage.port}",
        "GOPATH": str(stage.source / ".go"),
        "GOCACHE": str(stage.source.parent / "go-build"),
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
    }
    return Command(
        ["go", "test", "-json", "-count=1", "-vet=off", "-timeout=300s", "."], stage.source, env, prints_report=True
    )


SUITES: tuple[Suite, ...] = (
    Suite(
        "connector",
        Source("mysql-connector-python", "26.10.0", "cdc02299905b6bc335de396246e751e7c568c8cf61f3abc38c7fec8b0b0c4580"),
        _connector,
        flavours=("mysql",),
        builds=False,
        reader=read_connector,
    ),
    Suite(
        "SQLAlchemy",
        Source("SQLAlchemy", "2.1.9", "d700a8b2edfb26282a470333d6bc4a454c4acda4d201a3bea7b72fa76c217d28"),
        _sqlalchemy,
        setup=(
            "CREATE DATABASE test",
            "CREATE DATABASE test_schema",
            "CREATE USER scott IDENTIFIED BY 'tiger'",
            "GRANT ALL ON *.* TO scott",
        ),
        options=("--collation-server=utf8mb4_unicode_ci",),
    ),
    Suite(
        "go-sql-driver",
        Source(
            "golang-github-go-sql-driver-mysql",
            "1.5.0",
            "9d98b46623037447a26a51a203540bf605b6e6220d31f2efc7396242fcb660b5",
            "bookworm",
        ),
        _go,
        setup=("CREATE DATABASE gotest",),
        python=False,
        reader=read_go,
    ),
    Suite(
        "aiomysql",
        Source("aiomysql", "0.3.2", "72d15ef5cfc34c03468eb41e1b90adb9fd9347b0b589114bd23ead569a02ac1a"),
        _aiomysql,
        password=PASSWORD,
        certificate=_aiomysql_certificate,
    ),
    Suite(
        "PyMySQL",
        Source("python-pymysql", "1.1.1", "a501d7580f3db3738272838d01d31701c14cd3f3db804f798f6f3324ef83821e", "trixie"),
        _pymysql,
        setup=(
            "CREATE DATABASE test1",
            "CREATE DATABASE test2",
            f"CREATE USER test2 IDENTIFIED BY '{PASSWORD}'",
            "GRANT ALL ON test2.* TO test2",
        ),
        mysql_setup=(
            f"CREATE USER user_sha256 IDENTIFIED WITH sha256_password BY 'pass_sha256_{DIGITS}'",
            "CREATE USER nopass_sha256 IDENTIFIED WITH sha256_password",
            f"CREATE USER user_caching_sha2 IDENTIFIED WITH caching_sha2_password BY 'pass_caching_sha2_{DIGITS}'",
            "CREATE USER nopass_caching_sha2 IDENTIFIED WITH caching_sha2_password",
            "GRANT RELOAD ON *.* TO user_caching_sha2",
        ),
    ),
    Suite(
        "mysqlclient",
        Source("mysqlclient", "2.3.1", "c07e1b83b530fd6c5888259f36afad1980d21fcb33ba97384650dd23c8f73ea8"),
        _mysqlclient,
        setup=("CREATE DATABASE test",),
    ),
    Suite(
        "asyncmy",
        Source(
            "python-asyncmy", "0.2.10", "b6cae1934eeae6e2fd5efcbf23f4bc643641060307f88d7c75f0cac1b3f60f73", "trixie"
        ),
        _asyncmy,
        password=PASSWORD,
    ),
)
"""The longest first, so that two at a time end soonest."""


def lock_of(suite: Suite) -> str:
    """The name of its lock in locks/."""
    return f"peers-{suite.name.lower()}.txt"


def environment(command: Command) -> dict[str, str]:
    """The environment of a run: this one's, without what would change how tests or Python behave."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "MYSQL"))
    }
    return {**inherited, **command.env}
