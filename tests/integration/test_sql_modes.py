"""Queue statements do the same in sessions of every sql_mode that a server has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import mysql.connector
import pymysql
import pytest
from pymysql.connections import Connection

from proxy.embedded.server import Flavour
from tests.support.proxies import RunningProxy
from tests.support.queues import rows, run
from tests.support.servers import connect

COMMON: Final = [
    "ANSI",
    "TRADITIONAL",
    "STRICT_ALL_TABLES",
    "ANSI_QUOTES",
    "PIPES_AS_CONCAT",
    "IGNORE_SPACE",
    "REAL_AS_FLOAT",
    "ONLY_FULL_GROUP_BY",
    "NO_UNSIGNED_SUBTRACTION",
    "NO_DIR_IN_CREATE",
    "NO_AUTO_VALUE_ON_ZERO",
    "NO_BACKSLASH_ESCAPES",
    "NO_ZERO_IN_DATE",
    "NO_ZERO_DATE",
    "ALLOW_INVALID_DATES",
    "ERROR_FOR_DIVISION_BY_ZERO",
    "HIGH_NOT_PRECEDENCE",
    "NO_ENGINE_SUBSTITUTION",
    "PAD_CHAR_TO_FULL_LENGTH",
]
MODES: Final[dict[Flavour, list[str]]] = {
    "mysql": [*COMMON, "TIME_TRUNCATE_FRACTIONAL"],
    "mariadb": [
        *COMMON,
        *[
            "DB2",
            "MAXDB",
            "MSSQL",
            "MYSQL323",
            "MYSQL40",
            "ORACLE",
            "POSTGRESQL",
            "SIMULTANEOUS_ASSIGNMENT",
            "TIME_ROUND_FRACTIONAL",
        ],
        *[
            "EMPTY_STRING_IS_NULL",
            "IGNORE_BAD_TABLE_OPTIONS",
            "NO_AUTO_CREATE_USER",
            "NO_FIELD_OPTIONS",
            "NO_KEY_OPTIONS",
            "NO_TABLE_OPTIONS",
        ],
    ],
}

REWRITING: Final[dict[Flavour, list[str]]] = {
    "mysql": ["ANSI", "NO_BACKSLASH_ESCAPES"],
    "mariadb": ["ANSI", "ORACLE,EMPTY_STRING_IS_NULL", "MYSQL323", "NO_BACKSLASH_ESCAPES"],
}
"""Those under which definitions are written or read in another way."""

QUEUE: Final = (
    "CREATE QUEUE m (label VARCHAR(20) DEFAULT 'it''s', tenant INT) MAX_ATTEMPTS = 5 DEAD_LETTER = m_dead"
    " REASON = reason DELAY_BY = delay_s GROUP_BY = (tenant) GROUP_LIMIT = 100 ENGINE = InnoDB"
)


@pytest.fixture
def other(proxy: RunningProxy, database: str) -> Iterator[Any]:
    """A connection for prepared statements."""
    connection = mysql.connector.connect(
        host=proxy.host, port=proxy.port, user="root", database=database, autocommit=True, ssl_disabled=True
    )
    with connection:
        yield connection


def of_messages(client: Connection[Any], other: Any) -> list[Any]:
    """What a client gets of the statements about messages, with four new ones. `other`: as in the fixture."""
    prepared = other.cursor(prepared=True)
    run(client, "DELETE FROM m WHERE id IN (1, 2, 3, 4)")
    run(client, "INSERT INTO m (id, label, tenant) VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', NULL), (4, 'd', 4)")
    seen: list[Any] = rows(client, "STREAM id, label, tenant FROM m WHERE NOT (label IN ('x')) LIMIT 4 WAIT 10")
    seen.append(run(client, "EXTEND m WHERE id = 1 AND epoch = 1 BY 500"))
    prepared.execute("EXTEND m WHERE id = ? AND epoch = ? BY ?", (2, 1, 500))
    seen.append(prepared.rowcount)
    seen += rows(client, "SELECT id, lease = time_next FROM m ORDER BY id LIMIT 2")
    seen.append(run(client, "NACK m WHERE id = 3 DELAY 600 REASON 'bad'"))
    prepared.execute("NACK m WHERE id = ? DELAY ? REASON ?", (4, 600, "worse"))
    seen.append(prepared.rowcount)
    seen += rows(client, "SELECT reason FROM m ORDER BY id LIMIT 4")
    seen += [row[:6] for row in rows(client, "SHOW QUEUES LIKE 'm'")]
    seen += [len(rows(client, f"SHOW {what}")) for what in ("GROUPS FROM m", "DELIVERIES FROM m", "SEMAPHORES")]
    seen.append(run(client, "ACK m WHERE id = 1 AND epoch = 1"))
    prepared.execute("ACK m WHERE id = ?", (2,))
    seen.append(prepared.rowcount)
    seen.append(run(client, "PURGE QUEUE m"))
    seen.append(run(client, "REDRIVE QUEUE m_dead TO m WHERE label = 'c'"))
    prepared.close()
    return seen + rows(client, "SHOW CREATE QUEUE m")


def test_statements_about_messages_do_the_same_in_every_sql_mode(proxy, database, flavour, other) -> None:
    with proxy.connect(database=database) as client:
        run(client, "SET sql_mode = ''")
        run(client, QUEUE)
        expected = of_messages(client, other)
        for mode in MODES[flavour]:
            run(client, f"SET sql_mode = '{mode}'")
            other.sql_mode = mode
            assert of_messages(client, other) == expected, mode


def test_definitions_are_the_same_in_every_sql_mode(proxy, database, flavour) -> None:
    with proxy.connect(database=database) as client:
        run(client, QUEUE)
        expected = rows(client, "SHOW CREATE QUEUE m")
        for mode in REWRITING[flavour]:
            run(client, f"SET sql_mode = '{mode}'")
            run(client, "ALTER QUEUE m MAX_IN_FLIGHT = 50 GROUP_ORDER = STRICT REASON = why")
            run(client, "ALTER QUEUE m MAX_IN_FLIGHT = NONE GROUP_ORDER = NONE REASON = reason")
            run(client, "DROP QUEUE m")
            run(client, str(expected[0][1]))
            assert rows(client, "SHOW CREATE QUEUE m") == expected, mode


def test_these_are_all_modes_that_a_server_has(server, flavour) -> None:
    known = {*MODES[flavour], "STRICT_TRANS_TABLES", "NOT_USED", "INTERPRET_UTF8_AS_UTF8MB4"}
    with connect(server) as root:
        for number in range(64):
            with contextlib.suppress(pymysql.MySQLError):  # No mode has this bit.
                run(root, f"SET sql_mode = {2**number}")
                ((modes,),) = rows(root, "SELECT @@sql_mode")
                assert not modes or set(modes.split(",")) & known, modes
