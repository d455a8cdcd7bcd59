"""Every session variable of a server is set by the engine's sessions, or cannot change what they do."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from engine.store.connection import StoreConnection, session_statement
from engine.store.opening import BackendAddress, ConnectionLimits
from engine.store.port import StoreError
from tests.support.queues import rows, run
from tests.support.servers import connect

REASONS = Path(__file__).parents[1] / "fixtures" / "session_variables.txt"
BY_NAMES = {"character_set_client", "character_set_connection", "collation_connection"}
"""What SET NAMES sets."""


def patterns() -> list[str]:
    lines = [line for line in REASONS.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9_* ]+: \S.*", line) for line in lines)
    return [pattern for line in lines for pattern in line.partition(":")[0].split()]


def inherited(connection: Connection[Any]) -> set[str]:
    """The session variables that new sessions take over from the server."""
    found = set()
    for name, _ in rows(connection, "SHOW SESSION VARIABLES"):
        try:
            run(connection, f"SELECT @@SESSION.`{name}`, @@GLOBAL.`{name}`")
            found.add(name)
        except pymysql.MySQLError:  # It is of the server alone, or of the session alone.
            pass
    return found


def test_each_variable_is_set_or_has_a_reason_why_not(server) -> None:
    chosen = set(re.findall(r"SESSION (\w+) =", session_statement(ConnectionLimits()))) | BY_NAMES
    with connect(server) as root:
        for name in inherited(root) - chosen:
            matching = [pattern for pattern in patterns() if fnmatch.fnmatchcase(name, pattern)]
            assert matching, f"{name} is new: decide in engine/store/queries.sql (session) or in {REASONS.name}"
    assert not [name for name in chosen if name in patterns()]


@pytest.mark.either_server
def test_an_init_connect_that_fails_is_the_error_of_the_connection(private_server) -> None:
    with connect(private_server) as root:
        run(root, "CREATE USER engine@localhost")
        run(root, "SET GLOBAL init_connect = 'SELECT nothing'")
    with pytest.raises(StoreError, match="init_connect"):
        StoreConnection(BackendAddress(private_server.host, private_server.port, "engine"), ConnectionLimits())
