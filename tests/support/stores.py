"""One message table on either kind of store, and the other sessions that work on it beside the engine.

A `Subject` is what the contract suite runs on: the store, its table, and a way to put rows, look at them, lock them and
let time pass. `MemorySubject` does it to the twin's dict, `ServerSubject` by SQL on a connection of its own.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any, Protocol

from pymysql.connections import Connection

from engine.link import BackendAddress
from engine.model import NS_PER_S, IdKind, Key, Policy, QueueTable, Selection, TableId
from engine.store import Store
from engine.store_memory import MemoryStore, Row
from engine.store_mysql import MySQLStore
from proxy.embedded import EmbeddedServer
from tests.support.servers import connect
from tests.support.waiting import eventually

# A proxy that other tests run on the same server sees these tables too: it must never find anything to purge in them.
COMMENT = (
    "vitess_message,vt_ack_wait=30,vt_purge_after=315360000,vt_batch_size=100,vt_cache_size=10000,vt_poller_interval=30"
)
COLUMNS = """
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, priority INT NOT NULL DEFAULT 0, epoch BIGINT NOT NULL DEFAULT 0,
    time_next BIGINT DEFAULT 0, time_acked BIGINT, body VARCHAR(5000)
"""
SCAN_INDEXES = {
    "ascending": "INDEX next_up (time_acked, priority, time_next)",
    "descending": "INDEX next_up (time_acked, priority, time_next DESC)",
}
EVEN = Selection("id % 2 = 0")
POLICY = Policy(
    ack_wait_ns=30 * NS_PER_S,
    purge_after_ns=3600 * NS_PER_S,
    batch_size=100,
    cache_size=10_000,
    poller_interval_ns=30 * NS_PER_S,
    min_backoff_ns=30 * NS_PER_S,
)


class Subject(Protocol):
    """A store with one message table."""

    table: QueueTable

    @property
    def store(self) -> Store:
        """The store; the table's rows are reached by it and by the methods below."""

    def put(self, *rows: Row) -> None:
        """Insert rows. Payloads count by their length only."""

    def row(self, key: Key) -> Row | None:
        """The row as it now is, without its payload."""

    def acknowledge(self, *keys: Key) -> None:
        """What an ACK does."""

    @property
    def grave(self) -> TableId:
        """The name of its dead-letter table, which is there and empty."""

    def buried(self, key: Key) -> Row | None:
        """The row as it is in the dead-letter table, without its payload."""

    def break_grave(self) -> None:
        """Remove the dead-letter table."""

    def locked(self, *keys: Key) -> contextlib.AbstractContextManager[None]:
        """Somebody else's open transaction that has changed these rows."""

    def now_ns(self) -> int:
        """The clock of the store's server."""

    def wait_until(self, time_ns: int) -> None:
        """Let time pass until then."""


class MemorySubject:
    """The twin in memory."""

    def __init__(self) -> None:
        self.table = QueueTable(
            TableId("test", "messages"),
            POLICY,
            IdKind.INTEGER,
            "PRIMARY",
            "next_up",
            scan_descending=False,
            scan_ties_by_id=True,
            columns=("id", "priority", "epoch", "time_next", "time_acked", "body"),
            default_columns=("id", "body"),
            id_grows=True,
        )
        self.store = MemoryStore(now_ns=1_800_000_000 * NS_PER_S)
        self.store.conditions = {str(EVEN.condition): lambda row: int(str(row.key)) % 2 == 0}
        self.store.add_table(self.table)
        self.store.rows[self.grave] = {}

    def put(self, *rows: Row) -> None:
        for row in rows:
            self.store.put(self.table.id, row)

    @property
    def grave(self) -> TableId:
        return TableId("test", "graveyard")

    def buried(self, key: Key) -> Row | None:
        return self.store.rows[self.grave].get(key)

    def break_grave(self) -> None:
        del self.store.rows[self.grave]

    def row(self, key: Key) -> Row | None:
        return self.store.rows[self.table.id].get(key)

    def acknowledge(self, *keys: Key) -> None:
        for key in keys:
            self.store.acknowledge(self.table.id, key)

    @contextlib.contextmanager
    def locked(self, *keys: Key) -> Iterator[None]:
        self.store.locked |= set(keys)
        yield
        self.store.locked -= set(keys)

    def now_ns(self) -> int:
        return self.store.now_ns

    def wait_until(self, time_ns: int) -> None:
        self.store.now_ns = max(self.store.now_ns, time_ns)


class ServerSubject:
    """A table of a real server, in a database of its own."""

    def __init__(
        self, server: EmbeddedServer, *, columns: str = COLUMNS, index: str = SCAN_INDEXES["ascending"]
    ) -> None:
        self.server = server
        self.database = database = f"store_{uuid.uuid4().hex[:12]}"
        self.connection = connect(server, ssl_disabled=True)
        self.execute(f"CREATE DATABASE {database}")
        self.connection.select_db(database)
        self.execute(f"CREATE TABLE messages ({columns}{index and ','}{index}) COMMENT '{COMMENT}'")
        self.store = mysql_store(server)
        described = self.store.describe(TableId(database, "messages")).value
        assert isinstance(described, QueueTable), described
        self.table = described
        self._dug = False

    def connect(self, **options: Any) -> Connection[Any]:
        """A session of somebody else's."""
        return connect(self.server, database=self.database, ssl_disabled=True, **options)

    def renew(self) -> None:
        """An empty table and a store that remembers nothing."""
        self.store.close()
        self.store = mysql_store(self.server)
        self.execute("DELETE FROM messages")
        self.execute("DROP TABLE IF EXISTS graveyard")
        self._dug = False

    def close(self) -> None:
        """Gone with its database."""
        self.store.close()
        self.execute(f"DROP DATABASE {self.database}")
        self.connection.close()

    def execute(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of one statement of somebody else's."""
        with self.connection.cursor() as cursor:
            cursor.execute(text, values or None)
            return list(cursor.fetchall())

    def put(self, *rows: Row) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO messages (id, priority, epoch, time_next, time_acked, body)"
                " VALUES (%s, %s, %s, %s, %s, %s)",
                [
                    (row.key, row.priority, row.epoch, row.time_next_ns, row.time_acked_ns, "x" * len(row.payload))
                    for row in rows
                ],
            )

    @property
    def grave(self) -> TableId:
        if not self._dug:
            self.execute(f"CREATE TABLE graveyard ({COLUMNS}, {SCAN_INDEXES['ascending']}) COMMENT '{COMMENT}'")
            self._dug = True
        return TableId(self.database, "graveyard")

    def buried(self, key: Key) -> Row | None:
        return self._row("graveyard", key)

    def break_grave(self) -> None:
        self.execute(f"DROP TABLE {self.grave}")

    def row(self, key: Key) -> Row | None:
        return self._row("messages", key)

    def _row(self, table: str, key: Key) -> Row | None:
        found = self.execute(f"SELECT id, priority, epoch, time_next, time_acked FROM {table} WHERE id = %s", key)
        return Row(*found[0]) if found else None

    def acknowledge(self, *keys: Key) -> None:
        self.execute("UPDATE messages SET time_acked = %s, time_next = NULL WHERE id IN %s", self.now_ns(), keys)

    @contextlib.contextmanager
    def locked(self, *keys: Key) -> Iterator[None]:
        with self.connect(autocommit=False) as other, other.cursor() as cursor:
            for key in keys:
                cursor.execute("SELECT id FROM messages WHERE id = %s FOR UPDATE", [key])
            yield
            other.rollback()

    def now_ns(self) -> int:
        return self.store.lookup(self.table, []).now_ns

    def wait_until(self, time_ns: int) -> None:
        eventually(lambda: self.now_ns() >= time_ns, what=f"the server's clock says {time_ns}")


def mysql_store(server: EmbeddedServer) -> MySQLStore:
    """A store on the server, as root."""
    return MySQLStore(BackendAddress(server.host, server.port, "root"))
