"""Message tables for tests, in the Vitess format, and consumers of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pymysql.connections import Connection
from pymysql.cursors import SSCursor

from tests.support import insides

PATIENT = {"vt_ack_wait": "30", "vt_poller_interval": "3600"}
"""Waits longer than any test: what arrives was woken, and what comes again was released."""


def directives(**changed: str) -> str:
    """A message table's comment."""
    values = {
        "vt_ack_wait": "30",
        "vt_purge_after": "86400",
        "vt_batch_size": "100",
        "vt_cache_size": "10000",
        "vt_poller_interval": "3600",
        **changed,
    }
    return "vitess_message," + ",".join(f"{name}={value}" for name, value in values.items())


def create_queue(connection: Connection[Any], name: str, own: str = "payload TEXT", **changed: str) -> None:
    """A message table with columns of its own."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {name} (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, priority INT NOT NULL DEFAULT 0,"
            f" epoch BIGINT NOT NULL DEFAULT 0, time_next BIGINT DEFAULT 0, time_acked BIGINT DEFAULT NULL, {own},"
            " KEY next_idx (time_acked, priority, time_next)) ENGINE=InnoDB"
            f" COMMENT '{directives(**changed)}'"
        )


def enqueue(connection: Connection[Any], name: str, payloads: Iterable[str]) -> None:
    """Insert messages, in one statement."""
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {name} (payload) VALUES (%s)", [(payload,) for payload in payloads])


def rows(connection: Connection[Any], statement: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments or None)
        return list(cursor.fetchall())


def run(connection: Connection[Any], statement: str) -> int:
    """Affected rows of a statement."""
    with connection.cursor() as cursor:
        return int(cursor.execute(statement))


@contextlib.contextmanager
def user(root: Connection[Any], database: str, *grants: str) -> Iterator[str]:
    """A local user without a password and with these privileges on table m only."""
    name = f"u_{database}"
    run(root, f"CREATE USER {name}@localhost")
    try:
        for grant in grants:
            run(root, f"GRANT {grant} ON {database}.m TO {name}@localhost")
        yield name
    finally:
        run(root, f"DROP USER {name}@localhost")


class Consumer:
    """A stream read row by row on a thread of its own; `received` grows as rows come."""

    def __init__(self, connection: Connection[Any], statement: str) -> None:
        self.connection: Any = connection
        self.received: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.ended = threading.Event()
        self._statement = statement
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def vanish(self) -> None:
        """Close without COM_QUIT, as a killed process does."""
        insides.cut(self.connection)
        assert self.ended.wait(10)
        insides.vanish(self.connection)

    def _read(self) -> None:
        cursor: Any = SSCursor(self.connection)
        try:
            cursor.execute(self._statement)
            while (row := cursor.fetchone()) is not None:
                self.received.append(row)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
            insides.forget_result(self.connection)
        finally:
            self.ended.set()
