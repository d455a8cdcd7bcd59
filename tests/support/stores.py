"""One message table on either kind of store, and the sessions of others that work on it.

The contract suite runs on a `Subject`: the store, its table, and methods that insert, read and lock rows and let time
pass. `MemorySubject` does this in the in-memory store, `ServerSubject` by SQL on a connection of its own.
"""

from __future__ import annotations

import contextlib
import select
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from pymysql.connections import Connection

from engine.catalog.directives import parse_comment
from engine.catalog.own_tables import LIMITS_TABLE, OWN_TABLES
from engine.model import NS_PER_S, Key, Selection, TableId
from engine.packets import HEADER, Result
from engine.queue_table import SEMAPHORES, BatchColumn, GroupColumn, IdKind, Policy, QueueTable
from engine.store.connection import COM_RESET_CONNECTION, OWN_CONTEXT, Begun, SessionContext, StoreConnection
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress, ConnectionLimits
from engine.store.pool import Pool
from engine.store.port import Answer, BegunCall, Origin, Store
from engine.store.queries import statement
from proxy.embedded.server import EmbeddedServer
from proxy.session.queries import sql as client_sql
from tests.support.memory_store import MemoryStore, Row
from tests.support.servers import ServerPool, connect, server_named
from tests.support.waiting import eventually

T = TypeVar("T")

# A proxy that other tests run on the same server sees these tables too: it must never find anything to purge in them,
# and some of their rows were acknowledged in 1970.
COMMENT = (
    "vitess_message,vt_ack_wait=30,vt_purge_after=3153600000,vt_batch_size=100,vt_cache_size=1000,vt_poller_interval=30"
)
TAKING = f"{COMMENT},dead_letter_of=messages"
"""With consent to take the subject's dead messages."""
COLUMNS = """
    id BIGINT NOT NULL PRIMARY KEY, priority INT NOT NULL DEFAULT 0, epoch BIGINT NOT NULL DEFAULT 0,
    time_next BIGINT DEFAULT 0, time_acked BIGINT, body VARCHAR(5000)
"""
GROWING = COLUMNS.replace("NOT NULL PRIMARY KEY", "NOT NULL AUTO_INCREMENT PRIMARY KEY")
"""The same with ids given out by the server."""
BATCH_COLUMNS = (
    ", batch BIGINT, after_batch BIGINT, INDEX by_batch (batch, time_acked)"
    ", INDEX by_after (time_acked, after_batch, id)"
)
NEEDS = ", needs VARCHAR(600)"
SCAN_INDEXES = {
    "ascending": "INDEX next_up (time_acked, priority, time_next)",
    "descending": "INDEX next_up (time_acked, priority, time_next DESC)",
}
EVEN = Selection("id % 2 = 0")
PARTITIONED = COLUMNS.replace("PRIMARY KEY", "") + ", UNIQUE KEY by_id (id, time_acked)"
"""With a clause for partitions by time_acked: such a table cannot have a primary key on id."""
NEXT_UP_BY_ID = "INDEX next_up (time_acked, priority, time_next, id)"

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

    def dead_letter(self) -> TableId:
        """A table like the first one, empty at the first call, that takes its dead messages."""

    def close_dead_letter(self) -> None:
        """That table takes no dead messages any more."""

    def put_dead(self, *rows: Row) -> None:
        """Insert rows there."""

    def dead(self, key: Key) -> Row | None:
        """The row there, without its payload."""

    @property
    def origin(self) -> Origin:
        """The store's server."""

    def acknowledge(self, *keys: Key) -> None:
        """What an ACK does."""

    def semaphore(self, name: str, capacity: int | None) -> None:
        """Let there be a semaphore of this capacity, or none."""

    def locked(self, *keys: Key) -> contextlib.AbstractContextManager[None]:
        """An open transaction of another session that has changed these rows."""

    def updates_refused(self, *keys: Key) -> contextlib.AbstractContextManager[None]:
        """The server refuses to change these rows."""

    def deletions_refused(self, *keys: Key) -> contextlib.AbstractContextManager[None]:
        """The server refuses to delete these rows."""

    def now_ns(self) -> int:
        """The clock of the store's server."""

    def wait_until(self, time_ns: int) -> None:
        """Let time pass until then."""


class MemorySubject:
    """The in-memory store."""

    def __init__(
        self,
        *,
        lease: bool = False,
        groups: Sequence[GroupColumn] = (),
        in_flight: int | None = None,
        group_limit: int | None = None,
        strict: bool = False,
        rate: float | None = None,
        group_rate: float | None = None,
        batches: bool = False,
        semaphores: bool = False,
    ) -> None:
        """`in_flight`: the messages in flight over all proxies at most; `group_limit`: those of a group; `strict`:
        groups are in strict order; `semaphores`: messages need those in their column `needs`. All imply `lease`.
        `rate`: their deliveries a second; `group_rate`: those of a group. `batches`: messages may be parts and
        follow-ups."""
        counted = in_flight is not None or group_limit is not None or strict or semaphores
        group_by = tuple(column.name for column in groups)
        groups = (*groups, *([GroupColumn("needs", IdKind.TEXT)] if semaphores else ()))
        lease = lease or counted
        self.table = QueueTable(
            TableId("test", "messages"),
            replace(
                POLICY,
                max_in_flight=in_flight,
                group_by=group_by,
                group_limit=group_limit,
                group_strict=strict,
                max_rate=rate,
                group_rate=group_rate,
                batch_by="batch" if batches else None,
                after_batch="after_batch" if batches else None,
                semaphores="needs" if semaphores else None,
            ),
            IdKind.INTEGER,
            "PRIMARY",
            "next_up",
            scan_descending=False,
            scan_ties_by_id=True,
            columns=("id", "priority", "epoch", "time_next", "time_acked", "body"),
            default_columns=("id", "body"),
            id_grows=True,
            lease_column="lease" if lease else None,
            lease_index="by_lease" if counted else None,
            group_columns=tuple(groups),
            group_index="by_group" if groups else None,
            batch=BatchColumn("batch", IdKind.INTEGER, "by_batch") if batches else None,
            after_batch=BatchColumn("after_batch", IdKind.INTEGER, "by_after") if batches else None,
        )
        self.store = MemoryStore(now_ns=1_800_000_000 * NS_PER_S)
        self.store.conditions = {str(EVEN.condition): lambda row: int(str(row.key)) % 2 == 0}
        self.store.add_table(self.table)

    def put(self, *rows: Row) -> None:
        for row in rows:
            self.store.put(self.table.id, row)

    def row(self, key: Key) -> Row | None:
        return self.store.rows[self.table.id].get(key)

    def dead_letter(self) -> TableId:
        taking = replace(POLICY, dead_letter_of=((None, self.table.id.name),))
        dead = replace(self.table, id=TableId("test", "dead"), policy=taking)
        if dead.id not in self.store.tables:
            self.store.add_table(dead)
        return dead.id

    def close_dead_letter(self) -> None:
        self.store.tables[self.dead_letter()] = replace(self.table, id=self.dead_letter())

    def put_dead(self, *rows: Row) -> None:
        for row in rows:
            self.store.put(self.dead_letter(), row)

    def dead(self, key: Key) -> Row | None:
        return self.store.rows[self.dead_letter()].get(key)

    @property
    def origin(self) -> Origin:
        return Origin(("127.0.0.1", 3306))

    def acknowledge(self, *keys: Key) -> None:
        for key in keys:
            self.store.acknowledge(self.table.id, key)

    def semaphore(self, name: str, capacity: int | None) -> None:
        self.store.semaphores.pop((self.table.id.db, name), None)
        if capacity is not None:
            self.store.semaphores[self.table.id.db, name] = capacity

    @contextlib.contextmanager
    def locked(self, *keys: Key) -> Iterator[None]:
        self.store.locked |= set(keys)
        yield
        self.store.locked -= set(keys)

    @contextlib.contextmanager
    def updates_refused(self, *keys: Key) -> Iterator[None]:
        self.store.unclaimable |= set(keys)
        yield
        self.store.unclaimable -= set(keys)

    @contextlib.contextmanager
    def deletions_refused(self, *keys: Key) -> Iterator[None]:
        self.store.undeletable |= set(keys)
        yield
        self.store.undeletable -= set(keys)

    def now_ns(self) -> int:
        return self.store.now_ns

    def wait_until(self, time_ns: int) -> None:
        self.store.now_ns = max(self.store.now_ns, time_ns)


class ServerSubject:
    """A table of a real server, in a database of its own."""

    def __init__(
        self,
        server: EmbeddedServer,
        *,
        columns: str = COLUMNS,
        index: str = SCAN_INDEXES["ascending"],
        partitions: str = "",
        lease: bool = False,
        groups: Sequence[str] = (),
        in_flight: int | None = None,
        group_limit: int | None = None,
        strict: bool = False,
        rate: float | None = None,
        group_rate: float | None = None,
        batches: bool = False,
        semaphores: bool = False,
    ) -> None:
        """`groups`: the names of the group columns, which are among `columns`. `in_flight`: the messages
        in flight over all proxies at most; `group_limit`: those of a group; `strict`: groups are in
        strict order; `semaphores`: messages need those in their column `needs`, which is added. All imply `lease`.
        `rate`: their deliveries a second; `group_rate`: those of a group. `batches`: messages may be parts and
        follow-ups."""
        lease = lease or in_flight is not None or group_limit is not None or strict or semaphores
        columns += NEEDS if semaphores else ""
        group_by, groups = groups, (*groups, *(("needs",) if semaphores else ()))
        counted_by = "".join(f", {name}" for name in (("needs",) if semaphores else groups))
        self.server = server
        self._batches = ", batch, after_batch" if batches else ""
        self._groups = "".join(f", {name}" for name in groups)
        self._lease = ", lease" if lease else ""
        columns += ", lease BIGINT DEFAULT NULL INVISIBLE" if lease else ""
        comment = COMMENT + (",lease=lease" if lease else "")
        comment += f",max_rate={rate:g}" if rate is not None else ""
        comment += f",group_rate={group_rate:g}" if group_rate is not None else ""
        if in_flight is not None:
            comment += f",max_in_flight={in_flight}"
            columns += ", INDEX by_lease (time_acked, lease, time_next)"
        comment += f",group_limit={group_limit}" if group_limit is not None else ""
        comment += ",group_order=STRICT" if strict else ""
        comment += ",semaphores=needs" if semaphores else ""
        comment += f",group_by={'|'.join(group_by)}" if group_by else ""
        if group_limit is not None or strict or semaphores:
            columns += f", INDEX by_lease_and_group (time_acked, lease, time_next{counted_by})"
        columns += f", INDEX by_order (time_acked{self._groups}, id)" if strict else ""
        columns += f", INDEX by_group (time_acked, priority{self._groups}, time_next, id)" if groups else ""
        if batches:
            comment += ",batch_by=batch,after_batch=after_batch,paused=1"  # Proxies fire no follow-ups of tests.
            columns += BATCH_COLUMNS
        self.database = database = f"store_{uuid.uuid4().hex[:12]}"
        self.connection = connect(server, ssl_disabled=True)
        self.execute(f"CREATE DATABASE {database}")
        self.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',NO_AUTO_VALUE_ON_ZERO')")
        self.connection.select_db(database)
        self._make_own_tables(comment)
        self.definition = f"({columns}{index and ','}{index}) COMMENT '{comment}' {partitions}"
        self.execute(f"CREATE TABLE messages ({columns}{index and ','}{index}) COMMENT '{comment}' {partitions}")
        self.store = mysql_store(server)
        described = self.store.describe(TableId(database, "messages")).value
        assert isinstance(described, QueueTable), described
        self.table = described

    def _make_own_tables(self, comment: str) -> None:
        policy = parse_comment(comment)
        assert isinstance(policy, Policy)
        self._own_tables = [own for own in OWN_TABLES.values() if own.limit(policy)]
        for own in self._own_tables:
            self.execute(client_sql(own.create, table=own.name, comment=f"'{own.comment()}'"))
        self._empty_own_tables()

    def _empty_own_tables(self) -> None:
        """What they hold when the queue has delivered its last message some time ago."""
        for own in self._own_tables:
            self.execute(f"DELETE FROM {own.name}")
            if own is LIMITS_TABLE:
                self.execute(f"INSERT INTO {own.name} VALUES ('messages', 0)")

    def connect(self, **options: Any) -> Connection[Any]:
        """Another session."""
        return connect(self.server, database=self.database, ssl_disabled=True, **options)

    def renew(self) -> None:
        """Empty the table and the own tables of ackstream beside it, and reset the store."""
        self.store.close()
        self.store = mysql_store(self.server)
        self.execute("DELETE FROM messages")
        self._empty_own_tables()
        self.execute("DROP TABLE IF EXISTS dead")
        self.execute("DROP TRIGGER IF EXISTS refuses")

    def close(self) -> None:
        """Drop its database."""
        self.store.close()
        self.execute(f"DROP DATABASE {self.database}")
        self.connection.close()

    def execute(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a statement on the other session."""
        with self.connection.cursor() as cursor:
            cursor.execute(text, values or None)
            return list(cursor.fetchall())

    def put(self, *rows: Row) -> None:
        self._put("messages", rows)

    def _put(self, name: str, rows: Sequence[Row]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {name} (id, priority, epoch, time_next, time_acked, body{self._groups}{self._batches})"
                f" VALUES ({', '.join(['%s'] * (6 + (self._groups + self._batches).count(',')))})",
                [
                    (
                        *(row.key, row.priority, row.epoch, row.time_next_ns, row.time_acked_ns),
                        *("x" * len(row.payload), *row.group),
                        *((row.batch, row.after_batch) if self._batches else ()),
                    )
                    for row in rows
                ],
            )

    def row(self, key: Key) -> Row | None:
        return self._row("messages", key)

    def _row(self, table: str, key: Key) -> Row | None:
        found = self.execute(
            f"SELECT id, priority, epoch, time_next, time_acked{self._lease} FROM {table} WHERE id = %s", key
        )
        return Row(*found[0]) if found else None

    def dead_letter(self) -> TableId:
        if not self.execute("SHOW TABLES LIKE 'dead'"):
            self.execute("CREATE TABLE dead LIKE messages")
            self.execute(f"ALTER TABLE dead COMMENT '{TAKING}'")
        return TableId(self.database, "dead")

    def close_dead_letter(self) -> None:
        self.execute(f"ALTER TABLE {self.dead_letter().name} COMMENT '{COMMENT}'")

    def put_dead(self, *rows: Row) -> None:
        self._put(self.dead_letter().name, rows)

    def dead(self, key: Key) -> Row | None:
        return self._row(self.dead_letter().name, key)

    @property
    def origin(self) -> Origin:
        ((name,),) = self.execute(statement("server_name"))
        return Origin((self.server.host, self.server.port), name)

    def acknowledge(self, *keys: Key) -> None:
        self.execute("UPDATE messages SET time_acked = %s, time_next = NULL WHERE id IN %s", self.now_ns(), keys)

    def semaphore(self, name: str, capacity: int | None) -> None:
        self.execute(f"DELETE FROM {SEMAPHORES} WHERE name = %s", name)
        if capacity is not None:
            self.execute(f"INSERT INTO {SEMAPHORES} VALUES (%s, %s)", name, capacity)

    @contextlib.contextmanager
    def locked(self, *keys: Key) -> Iterator[None]:
        with self.connect(autocommit=False) as other, other.cursor() as cursor:
            for key in keys:
                cursor.execute("SELECT id FROM messages WHERE id = %s FOR UPDATE", [key])
            yield
            other.rollback()

    def updates_refused(self, *keys: Key) -> contextlib.AbstractContextManager[None]:
        return self._refused("UPDATE", keys)

    def deletions_refused(self, *keys: Key) -> contextlib.AbstractContextManager[None]:
        return self._refused("DELETE", keys)

    @contextlib.contextmanager
    def _refused(self, statement: str, keys: Sequence[Key]) -> Iterator[None]:
        self.execute(
            f"CREATE TRIGGER refuses BEFORE {statement} ON messages FOR EACH ROW"
            f" IF OLD.id IN ({', '.join(map(str, keys))}) THEN SIGNAL SQLSTATE '45000'"
            " SET MESSAGE_TEXT = 'a trigger refuses the row'; END IF"
        )
        yield
        self.execute("DROP TRIGGER refuses")

    def now_ns(self) -> int:
        return self.store.lookup(self.table, []).now_ns

    def wait_until(self, time_ns: int) -> None:
        eventually(lambda: self.now_ns() >= time_ns, what=f"the server's clock says {time_ns}")


def partitioned_queue(server: EmbeddedServer, partitions: str) -> ServerSubject:
    """A message table that keeps its acknowledged rows in these partitions (engine.store.queries.partition_clause)."""
    return ServerSubject(server, columns=PARTITIONED, index=NEXT_UP_BY_ID, partitions=partitions)


def mysql_store(server: EmbeddedServer) -> MySQLStore:
    """A store on the server, as root."""
    return MySQLStore(BackendAddress(server.host, server.port, "root"))


class Interrupted(StoreConnection):
    """Calls `before` with the number of each packet that is about to be sent, and `after` when it was answered."""

    def __init__(
        self,
        address: BackendAddress,
        before: Callable[[int, StoreConnection], None],
        after: Callable[[int, StoreConnection], None],
    ):
        self._sent = 0
        self._before: Callable[[int, StoreConnection], None] | None = None
        super().__init__(address, ConnectionLimits())
        self._before, self._after = before, after

    def begin(self, statements: Sequence[str], context: SessionContext = OWN_CONTEXT) -> Begun:
        if self._before is not None:
            self._sent += 1
            self._before(self._sent, self)
        return super().begin(statements, context)

    def results(self, begun: Begun, keep_last: Callable[[bytes], None] | None = None) -> Iterator[Result]:
        yield from super().results(begun, keep_last)
        if self._before is not None:
            self._after(self._sent, self)


def nothing(_at: int, _connection: StoreConnection) -> None:
    """Happens."""


@contextlib.contextmanager
def interrupted_store(
    subject: ServerSubject,
    before: Callable[[int, StoreConnection], None] = nothing,
    after: Callable[[int, StoreConnection], None] = nothing,
) -> Iterator[MySQLStore]:
    """A store with one connection, on which something happens around each packet."""
    address = BackendAddress(subject.server.host, subject.server.port, "root")
    store = MySQLStore(address)
    store._pool = Pool(lambda: Interrupted(address, before, after), 1)
    yield store
    store.close()


class Counted(StoreConnection):
    """Counts the packets that are sent, as their bytes, apart from resets: nobody waits for these."""

    def __init__(self, address: BackendAddress, sent: list[bytes]) -> None:
        self.sent: list[bytes] = []
        super().__init__(address, ConnectionLimits())
        self.sent = sent

    def _send(self, framed: bytes) -> None:
        if framed[HEADER] != COM_RESET_CONNECTION:
            self.sent.append(framed)
        super()._send(framed)


@contextlib.contextmanager
def counted_store(subject: ServerSubject) -> Iterator[tuple[MySQLStore, list[bytes]]]:
    """A store with one connection, and the packets that it sends after the login."""
    address = BackendAddress(subject.server.host, subject.server.port, "root")
    store, sent = MySQLStore(address), list[bytes]()
    store._pool = Pool(lambda: Counted(address, sent), 1)
    yield store, sent
    store.close()


def result_of(call: BegunCall[T]) -> Answer[T] | None:
    """The result of a call that was begun, waited for as the event loop does it."""
    deadline_s = time.monotonic() + 10
    while not call.waits:
        assert select.select([call.fileno], [], [], deadline_s - time.monotonic())[0], "nothing has come"
        if call.arrived():
            break
    return call.finish()


AnySubject = MemorySubject | ServerSubject


def kept_subjects(
    pool: ServerPool, make: Callable[[EmbeddedServer, str], ServerSubject]
) -> Iterator[Callable[[str], ServerSubject]]:
    """A fixture's body. Yields a function that returns the empty table of a name ("mysql", or "mysql partitioned"). The
    first word is the server's. A table is made by `make`, which gets its server and the rest of its name, and
    is kept until the end: creating it takes longer than most tests."""
    subjects: dict[str, ServerSubject] = {}

    def find(name: str) -> ServerSubject:
        if name not in subjects:
            server, _, kind = name.partition(" ")
            subjects[name] = make(pool.get(server_named(server)), kind)
        subjects[name].renew()
        return subjects[name]

    yield find
    for subject in subjects.values():
        subject.close()
