"""No more rights through the proxy than without it: 22 accounts, 29 statements, on each server, direct and proxied.

A plain statement runs on both connections, one after the other, on the same rows. A queue statement is compared with a
plain one that needs some of the same rights. An answer is its error's number, or its rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pymysql
import pytest
from pymysql.connections import Connection
from pymysql.constants import COMMAND

from proxy.embedded.server import EmbeddedServer
from tests.support import insides
from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, directives, run
from tests.support.servers import connect

DB, PASSWORD = "rights_of_all", "Pass-word-1"


@dataclass(frozen=True)
class Account:
    """How an account is made: what stands behind its name in CREATE USER, and what is run then."""

    made: str = ""
    then: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    """What its session says first."""
    after: tuple[str, ...] = ()
    """What is run when the account is gone."""
    mysql_alone: bool = False
    """Whether MariaDB has no such account."""


def granted(*privileges: str) -> Account:
    return Account(then=tuple(f"GRANT {privilege} TO {{user}}" for privilege in privileges))


SOME: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER"

ACCOUNTS: Final[dict[str, Account]] = {
    "nothing": Account(),
    "SELECT alone": granted(f"SELECT ON {DB}.m"),
    "UPDATE alone": granted(f"UPDATE ON {DB}.m"),
    "SELECT and UPDATE": granted(f"SELECT, UPDATE ON {DB}.m"),
    "INSERT alone": granted(f"INSERT ON {DB}.m"),
    "columns without the payload": granted(
        f"SELECT (id, priority, epoch, time_next, time_acked), UPDATE (epoch, time_next, time_acked) ON {DB}.m"
    ),
    "columns without time_acked": granted(f"SELECT ON {DB}.m", f"UPDATE (epoch, time_next, payload) ON {DB}.m"),
    "all on the table": granted(f"ALL ON {DB}.m"),
    "all on the database": granted(f"ALL ON {DB}.*"),
    "all on another database": granted("ALL ON not_there.*"),
    "temporary tables": granted(f"CREATE TEMPORARY TABLES ON {DB}.*"),
    "SELECT everywhere": granted("SELECT ON *.*"),
    "everything": granted("ALL ON *.*"),
    "a role in use": Account(then=("GRANT rights_role TO {user}",), first=("SET ROLE rights_role",)),
    "a role not in use": Account(then=("GRANT rights_role TO {user}",)),
    "a role by default": Account(then=("GRANT rights_role TO {user}", "SET DEFAULT ROLE rights_role {to} {user}")),
    "a role of a role": Account(
        then=("CREATE ROLE rights_outer", "GRANT rights_role TO rights_outer", "GRANT rights_outer TO {user}"),
        first=("SET ROLE rights_outer",),
        after=("DROP ROLE rights_outer",),
    ),
    "all but this database": Account(
        then=(
            "SET GLOBAL partial_revokes = ON",
            f"GRANT {SOME} ON *.* TO {{user}}",
            f"REVOKE {SOME} ON {DB}.* FROM {{user}}",
        ),
        after=("SET GLOBAL partial_revokes = OFF",),
        mysql_alone=True,
    ),
    "all but UPDATE on this database": Account(
        then=(
            "SET GLOBAL partial_revokes = ON",
            f"GRANT {SOME} ON *.* TO {{user}}",
            f"REVOKE UPDATE ON {DB}.* FROM {{user}}",
        ),
        after=("SET GLOBAL partial_revokes = OFF",),
        mysql_alone=True,
    ),
    "an expired password": Account(then=(f"GRANT ALL ON {DB}.* TO {{user}}", "ALTER USER {user} PASSWORD EXPIRE")),
    "TLS required": Account("REQUIRE SSL", (f"GRANT ALL ON {DB}.* TO {{user}}",)),
    "locked": Account("ACCOUNT LOCK", (f"GRANT ALL ON {DB}.* TO {{user}}",)),
}

QUEUE_STATEMENTS: Final = {
    f"STREAM id FROM {DB}.m NOWAIT": f"UPDATE {DB}.m SET epoch = epoch + 1, time_next = 1, time_acked = NULL LIMIT 0",
    f"STREAM payload FROM {DB}.m LIMIT 1 NOWAIT": f"SELECT payload FROM {DB}.m LIMIT 0",
    f"STREAM id FROM {DB}.m WHERE payload = 'a' NOWAIT": f"SELECT id FROM {DB}.m WHERE payload = 'a' LIMIT 0",
    f"ACK FROM {DB}.m WHERE id = 1": (
        f"UPDATE {DB}.m SET time_acked = 7, time_next = NULL WHERE time_acked IS NULL AND (id = 1)"
    ),
    f"ACK FROM {DB}.m WHERE payload = 'a'": (
        f"UPDATE {DB}.m SET time_acked = 7, time_next = NULL WHERE time_acked IS NULL AND (payload = 'a')"
    ),
    f"NACK FROM {DB}.m WHERE id = 1": (
        f"UPDATE {DB}.m SET time_next = 7 WHERE time_acked IS NULL AND epoch > 0 AND (id = 1)"
    ),
    f"EXTEND FROM {DB}.m WHERE id = 1 BY 60": (
        f"UPDATE {DB}.m SET time_next = 7 WHERE time_acked IS NULL AND epoch > 0"
        f" AND time_next > UNIX_TIMESTAMP() * 1000000000 AND (id = 1)"
    ),
    f"DROP QUEUE {DB}.q": f"DROP TABLE {DB}.q",
    f"CREATE QUEUE {DB}.made (a INT)": f"CREATE TABLE {DB}.made (id BIGINT)",
    f"PAUSE QUEUE {DB}.m": f"ALTER TABLE {DB}.m COMMENT '{directives()}'",
    f"SHOW CREATE QUEUE {DB}.m": f"SHOW CREATE TABLE {DB}.m",
}
"""Each queue statement with a plain one: an account that is denied the plain one is denied the queue statement."""

PLAIN: Final = (
    "SELECT 1",
    "SELECT CURRENT_USER()",
    f"SELECT id FROM {DB}.m",
    f"SELECT * FROM {DB}.m",
    f"SELECT COUNT(*) FROM {DB}.plain",
    f"INSERT INTO {DB}.m (payload) VALUES ('x')",
    f"UPDATE {DB}.m SET payload = 'y' WHERE id = 1",
    f"DELETE FROM {DB}.m WHERE id = 2",
    f"TRUNCATE TABLE {DB}.plain",
    f"CREATE TABLE {DB}.made (a INT)",
    f"DROP TABLE {DB}.plain",
    f"ALTER TABLE {DB}.plain ADD b INT",
    f"CREATE TEMPORARY TABLE {DB}.made (a INT)",
    f"SHOW COLUMNS FROM {DB}.m",
    f"USE {DB}",
    "SHOW GRANTS FOR root@localhost",
    "SET GLOBAL max_connections = 151",
    "KILL 4000000000",
)

Answer = int | str


ROWS: Final = f"REPLACE INTO {DB}.m (id, payload, epoch, time_acked) VALUES (1, 'a', 1, NULL), (2, 'b', 1, NULL)"
QUEUE, PLAIN_TABLE, MADE = f"CREATE QUEUE {DB}.q (a INT)", f"CREATE TABLE {DB}.plain (a INT)", f"DROP TABLE {DB}.made"

UNDONE: Final[dict[str, tuple[str, ...]]] = {
    "INSERT": (f"DELETE FROM {DB}.m WHERE id > 2",),
    **dict.fromkeys(("UPDATE", "DELETE", "ACK", "NACK", "EXTEND", "STREAM"), (ROWS,)),
    "CREATE TABLE": (MADE,),
    "CREATE QUEUE": (f"DROP TABLE {DB}.made", f"DROP TABLE {DB}.made_dead"),
    "DROP TABLE": (f"DROP TABLE IF EXISTS {DB}.q", QUEUE, f"DROP TABLE IF EXISTS {DB}.plain", PLAIN_TABLE),
    "DROP QUEUE": (QUEUE,),
    "ALTER TABLE": (f"DROP TABLE {DB}.plain", PLAIN_TABLE),
    "PAUSE QUEUE": (f"RESUME QUEUE {DB}.m",),
}
"""By its first words, what is said when a statement was not denied, so that the next one finds what it found."""


@pytest.fixture(scope="module")
def root(server: EmbeddedServer, proxy: RunningProxy) -> Iterator[Connection[Any]]:
    """An administrator, through the proxy; a role, the tables, and nothing that was there before."""
    with connect(server) as before:
        run(before, f"DROP DATABASE IF EXISTS {DB}")
        run(before, f"CREATE DATABASE {DB}")
    with proxy.connect() as root:
        run(root, "CREATE ROLE rights_role")
        run(root, f"GRANT SELECT, UPDATE ON {DB}.* TO rights_role")
        create_queue(root, f"{DB}.m")
        for statement in (ROWS, PLAIN_TABLE, QUEUE):
            run(root, statement)
        yield root
        run(root, f"DROP DATABASE IF EXISTS {DB}")
        run(root, "DROP ROLE rights_role")


def effect_of(root: Connection[Any], connection: Connection[Any], statement: str) -> Answer:
    """What became of a statement, which is undone."""
    answer = outcome(connection, statement)
    if not isinstance(answer, int):
        for words, undoing in UNDONE.items():
            if statement.startswith(words):
                for undo in undoing:
                    with contextlib.suppress(pymysql.MySQLError):
                        run(root, undo)
        if statement.startswith("CREATE TEMPORARY"):
            run(connection, f"DROP TEMPORARY TABLE {DB}.made")
    return answer


@contextlib.contextmanager
def made(root: Connection[Any], account: Account) -> Iterator[str]:
    name = "rights_user"
    run(root, f"CREATE USER {name}@localhost IDENTIFIED BY '{PASSWORD}' {account.made}")
    try:
        for statement in account.then:
            run(root, statement.format(user=f"{name}@localhost", to="FOR" if is_mariadb(root) else "TO"))
        yield name
    finally:
        run(root, f"DROP USER {name}@localhost")
        for statement in account.after:
            run(root, statement)


def is_mariadb(connection: Connection[Any]) -> bool:
    return "MariaDB" in connection.get_server_info()


def outcome(connection: Connection[Any], statement: str) -> Answer:
    """An error's number, or what came."""
    try:
        with connection.cursor() as cursor:
            count = cursor.execute(statement)
            return f"{count}: {cursor.fetchall()}"
    except pymysql.MySQLError as error:
        return int(error.args[0])


def log_in(place: EmbeddedServer | RunningProxy, name: str, account: Account, *, tls: bool) -> Any:
    options: dict[str, Any] = (
        {"ssl": {"check_hostname": False, "verify_mode": "none"}} if tls else {"ssl_disabled": True}
    )
    connection: Any = pymysql.connect(
        host=place.host, port=place.port, user=name, password=PASSWORD, autocommit=True, **options
    )
    for statement in account.first:
        run(connection, statement)
    return connection


def different(root: Connection[Any], direct: Connection[Any], proxied: Connection[Any]) -> list[str]:
    """Each plain statement with another answer through the proxy, and each queue statement that is allowed more than
    its plain one."""
    found: list[str] = []
    for statement in PLAIN:
        here, there = (effect_of(root, connection, statement) for connection in (direct, proxied))
        if here != there:
            found.append(f"{statement}: {here} direct, {there} through the proxy")
    for statement, plain in QUEUE_STATEMENTS.items():
        least, got = effect_of(root, direct, plain), effect_of(root, proxied, statement)
        if isinstance(least, int) and not isinstance(got, int):
            found.append(f"{statement}: {got}, where {plain} is denied ({least})")
        if statement.startswith(("ACK", "NACK", "EXTEND")) and got != least:
            found.append(f"{statement}: {got}, and {plain}: {least}")
    return found


def test_there_are_22_accounts_and_29_statements() -> None:
    assert (len(ACCOUNTS), len(PLAIN) + len(QUEUE_STATEMENTS)) == (22, 29)


@pytest.mark.parametrize("kind", ACCOUNTS)
def test_an_account_may_do_through_the_proxy_what_it_may_do_without_and_nothing_else(root, server, proxy, kind) -> None:
    account = ACCOUNTS[kind]
    if account.mysql_alone and is_mariadb(root):
        pytest.skip("MariaDB has no partial revokes")
    with made(root, account) as name:
        for tls in (False, True):
            outcomes: list[Answer | None] = []
            connections = []
            for place in (server, proxy):
                try:
                    connections.append(log_in(place, name, account, tls=tls))
                    outcomes.append(None)
                except pymysql.MySQLError as error:
                    outcomes.append(int(error.args[0]))
            assert outcomes[0] == outcomes[1], f"logging in, TLS {tls}"
            if connections and (tls or kind != "TLS required"):
                direct, proxied = connections
                assert different(root, direct, proxied) == []
            for connection in connections:
                connection.close()
            if kind != "TLS required":
                break


OF_ANY_TABLE: Final = (
    "STREAM * FROM {table} NOWAIT",
    "STREAM payload FROM {table} WHERE id = 1 LIMIT 1 NOWAIT",
    "STREAM payload FROM {table} LIMIT 1 NOWAIT FOR UPDATE",
    "ACK FROM {table} WHERE id = 1",
    "ACK {table} WHERE id = 1 AND epoch = 1",
    "ACK {table} WHERE payload = 'a'",
    "NACK {table} WHERE id = 1",
    "NACK {table} WHERE id = 1 REASON 'none'",
    "EXTEND {table} WHERE id = 1 BY 5",
    "SHOW CREATE QUEUE {table}",
    "SHOW GROUPS FROM {table}",
    "SHOW BATCHES FROM {table}",
    "SHOW DELIVERIES FROM {table}",
    "ALTER QUEUE {table} ACK_WAIT = 5",
    "ALTER QUEUE {table} MAX_RATE = 5",
    "PAUSE QUEUE {table}",
    "RESUME QUEUE {table}",
    "PURGE QUEUE {table}",
    "REDRIVE QUEUE {table}",
    "REDRIVE QUEUE {table} TO elsewhere.t",
    "CREATE QUEUE {table} (a INT)",
    "CREATE QUEUE IF NOT EXISTS {table} (a INT)",
    "DROP QUEUE {table}",
    "DROP QUEUE IF EXISTS {table}",
)
"""Queue statements on a table, whatever it is."""


@pytest.mark.parametrize(
    "kind", ["nothing", "all on another database", "a role not in use", "all but this database", "temporary tables"]
)
def test_an_account_without_rights_is_told_the_same_of_a_queue_as_of_any_other_name(root, proxy, kind) -> None:
    account = ACCOUNTS[kind]
    if account.mysql_alone and is_mariadb(root):
        pytest.skip("MariaDB has no partial revokes")
    with made(root, account) as name:
        session = log_in(proxy, name, account, tls=False)
        for statement in OF_ANY_TABLE:
            queue, *others = (told(session, statement, table) for table in ("m", "plain", "not_there"))
            assert others == [queue, queue], statement
            assert "denied" in str(queue), statement
        session.close()


def told(session: Any, statement: str, table: str) -> list[object]:
    """The answers to a statement on a table, as text and prepared, with another name in place of the table's."""
    text = statement.format(table=f"{DB}.{table}")
    answers: list[object] = [denied(lambda: session.query(text), table)]
    if statement.startswith(("STREAM", "ACK", "NACK", "EXTEND")):
        insides.send(session, COMMAND.COM_STMT_PREPARE, text.encode())
        answers.append(denied(lambda: insides.packet(session), table))
    return answers


def denied(answer: Callable[[], object], table: str) -> object:
    try:
        return answer()
    except pymysql.MySQLError as error:
        return error.args[0], str(error.args[1]).replace(f"'{table}'", "t").replace(f"`{table}`", "t")
