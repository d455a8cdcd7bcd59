"""The reader of the binary log: the program `python -m engine.binlog.reader`, started by
engine.binlog.supervisor.

Reading the binary log in Python costs tens of µs an event. A process of its own keeps that off the
proxy's event loop. The tables to follow and the password come on standard input, so the password is
in no process list. Change batches go to standard output. The reader ends with its input, and so
with its parent, however that ends.

Losing a reader is harmless. It begins at the end of the binary log and reports that, and its parent
then scans all tables. At the first problem it reports the reason and ends. It has three threads:
one reads the binary log; one writes the changes gathered so far, so a parent that reads slowly gets
fewer and coarser batches; one waits for requests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from engine.binlog.changes import ChangeSet, Layout, Transactions, UnreadableRowError
from engine.binlog.event_filter import EventFilter, OwnTransactions
from engine.binlog.pipe import (
    BinlogLimits,
    ChangeBatch,
    FollowRequest,
    OwnConnections,
    ReaderEnded,
    ReaderStarted,
    message,
    read_message,
)
from engine.binlog.replication_adapter import (
    Committed,
    Event,
    FilteredConnection,
    Idle,
    LogStream,
    Other,
    Prepared,
    Rows,
    Statement,
    Unreadable,
)
from engine.binlog.row_image import ColumnType, field_of
from engine.binlog.scope import FollowedTables, Scope
from engine.model import TableId
from engine.packets import text_values
from engine.quoting import text_literal
from engine.store.connection import StoreConnection, session_statement
from engine.store.information_schema import now_ns
from engine.store.opening import ConnectionLimits, connect
from engine.store.port import StoreError
from engine.store.pymysql_adapter import ER, Connection, Cursor, IncompatibleVersionError, InterfaceError, MySQLError
from engine.store.queries import statement

SERVER_IDS = range(3_000_000_000, 4_294_967_295)
"""A reader needs a server id that no replica has. Each attempt draws one from the upper end of the
range, which nobody configures by hand."""

DENIED = frozenset(
    {
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
        ER.ACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.TABLEACCESS_DENIED_ERROR,
    }
)
"""Errors that another attempt does not solve."""

UNREADABLE_IN_A_ROW_MAX = 100
"""Unreadable events in a row before the reader gives up. Few kinds of events are unreadable, so
this many mean that the library is stuck: each attempt then fails at once and reads nothing."""


LAYOUTS_MAX = 10_000
"""Table numbers whose layout is remembered. The server gives a table a new number whenever it opens
it."""


TO_CONFIGURE: Final = "set log_bin = binlog and binlog_format = ROW in the server's configuration and restart it"
"""MariaDB's defaults are other ones."""


class UnreadableLogError(Exception):
    """The binary log cannot be followed: the server writes none, or denies it to this account."""


class StuckLogError(Exception):
    """The library cannot read events any more."""


class Outbox:
    """The changes until they are written, for one thread that reads the binary log and one that writes."""

    def __init__(self, limits: BinlogLimits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._changes = self._new_change_set()  # guarded by _changed, as is all below
        self._rows = 0
        self._lag_s = 0.0
        self._lag_reported_s = 0.0

    def _new_change_set(self) -> ChangeSet:
        return ChangeSet(self._limits.rows_max)

    def add(self, changes: ChangeSet) -> None:
        """Add a change set. The caller keeps no reference to it."""
        with self._changed:
            if self._changes:
                self._changes.add(changes)
            else:
                self._changes = changes
            self._changed.notify()

    def add_unknown(self, tables: Iterable[TableId]) -> None:
        """Any message of these tables may have changed."""
        changes = self._new_change_set()
        for table in tables:
            changes.add_unknown(table)
        if changes:
            self.add(changes)

    def count(self, rows: int, lag_s: float) -> None:
        """Add to the count of rows read, and set the lag behind the server."""
        with self._changed:
            self._rows += rows
            self._lag_s = lag_s
            if lag_s != self._lag_reported_s:
                self._changed.notify()

    def is_unknown(self, table: TableId) -> bool:
        """Whether the pending changes of the table are unknown, so more rows would add nothing."""
        return self._changes.is_unknown(table)

    def write_to(self, pipe: BinaryIO, writing: threading.Lock) -> None:
        """Write batches whenever there is something to report. Does not return. `writing`: held
        while a message is written, because the reader's end is written by another thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._changes or self._rows or self._lag_s != self._lag_reported_s)
                changes, self._changes = self._changes, self._new_change_set()
                rows, self._rows = self._rows, 0
                self._lag_reported_s = self._lag_s
            written = message(_batch(changes, rows, self._lag_reported_s))
            with writing:
                pipe.write(written)
                pipe.flush()
            time.sleep(self._limits.unknown_pause_s if changes.has_unknown else self._limits.pause_s)


def _batch(changes: ChangeSet, rows: int, lag_s: float) -> ChangeBatch:
    return ChangeBatch(
        tuple(
            (
                found.table.db,
                found.table.name,
                tuple([entry[:] for entry in found.seen]),  # Plain tuples: they are pickled faster.
                found.over,
                {key: delivery[:] for key, delivery in found.before.items()},
            )
            for found in changes.by_table()
        ),
        changes.everything,
        changes.schema_changed,
        rows,
        lag_s,
    )


@dataclass(slots=True)
class Followed:
    """The tables that are followed now.

    The library checks the two sets at each table map, and skips other tables.
    """

    tables: FollowedTables = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    databases: set[str] = field(default_factory=set)
    generation: int = 0

    def replace(self, tables: FollowedTables) -> frozenset[TableId]:
        """Follow these tables from now on. Returns those among them of which changes may have been left
        out until now: the new ones, and those with another scope."""
        before = self.tables
        new = frozenset(table for table, scope in tables.items() if before.get(table) != scope)
        self.names |= {table.name for table in tables}
        self.databases |= {table.db for table in tables}
        self.tables = tables
        self.generation += 1
        return new


@dataclass(frozen=True, slots=True)
class _Known:
    """A queue under its number in the binary log."""

    table: TableId
    scope: Scope
    layout: Layout | None
    """None: its rows cannot be read."""


class LogReader:
    """Follows the binary log from its present end."""

    def __init__(self, request: FollowRequest, outbox: Outbox, on_started: Callable[[ReaderStarted], None]) -> None:
        """`on_started` is called once, when the server sends events."""
        self.followed = Followed()
        self.followed.replace(request.tables)
        self._address, self._limits = request.address, request.limits
        self._connection_limits = ConnectionLimits()
        self._outbox, self._on_started = outbox, on_started
        self._transactions = Transactions(request.limits.rows_max, outbox.add)
        self._own = OwnTransactions(request.mark.encode())
        self._lock, self._locked = request.lock, False
        self._event_filter = EventFilter(self._follows, lambda: bool(self._transactions), self._own)
        self._layouts: dict[int, _Known | None] = {}
        self._generation = 0
        self._connections = 0
        self._stream_connection: FilteredConnection | None = None
        self._ahead_s = 0.0
        self._lag_s = 0.0
        self._rows = 0

    def run(self) -> None:
        """Read events until the server ends the connection.

        Raises UnreadableLogError, StuckLogError, StoreError, MySQLError, IncompatibleVersionError.
        """
        file, position = self._begin()
        stream = LogStream(
            self._connect,
            server_id=random.choice(SERVER_IDS),
            file=file,
            position=position,
            tables=self.followed.names,
            schemas=self.followed.databases,
            heartbeat_s=self._limits.heartbeat_s,
        )
        first = True
        for event in readable_events(stream.fetchone, self._changes_unknown):
            if first:
                self._on_started(ReaderStarted(f"{file}:{position}", self._locked))
                first = False
                self._filter_events()
            self._handle(event)

    def _begin(self) -> tuple[str, int]:
        """The present end of the binary log. Raises UnreadableLogError if it cannot be followed."""
        with closing(StoreConnection(self._address, self._connection_limits)) as connection:
            now, variables = connection.run([statement("now"), statement("binlog_settings")])
            self._ahead_s = time.monotonic() - now_ns(now) / 1e9
            values = dict(_texts(row)[:2] for row in variables.rows)
            if values.get("log_bin", "ON") != "ON":
                raise UnreadableLogError(f"log_bin is OFF: {TO_CONFIGURE}")
            if (kind := values.get("binlog_format", "ROW")) != "ROW":
                raise UnreadableLogError(
                    f"binlog_format is {kind}, and its binary log holds statements: {TO_CONFIGURE}"
                )
            try:
                (end,) = connection.run([statement("binlog_end")])
            except StoreError as error:
                if error.code != ER.PARSE_ERROR:
                    raise
                (end,) = connection.run([statement("binlog_end_formerly")])
            if values.get("wsrep_on", "OFF") == "ON":
                self._lock = ""  # Other nodes' transactions are in this log, perhaps under the same server_id.
            self._own.server_id = int(values.get("server_id", 0)).to_bytes(4, "little")
            if not end.rows:
                raise UnreadableLogError("the server does not report the end of its binary log")
            file, position = _texts(end.rows[0])[:2]
            return file, int(position)

    def _connect(self, **options: Any) -> Any:
        """Open one of the library's two connections.

        A third one would replace a lost connection, and the library would go on with outdated
        tables. It raises InterfaceError instead, and the parent starts another reader.
        """
        self._connections += 1
        if self._connections > 2:
            raise InterfaceError("the connection was lost")
        chosen = {
            "database": options.get("database") or options.get("db"),
            "cursorclass": options.get("cursorclass", Cursor),
            "init_command": session_statement(self._connection_limits),
        }
        if chosen["database"] is not None:  # For queries on information_schema.
            return connect(self._address, self._connection_limits, Connection, **chosen)
        self._stream_connection = connect(self._address, self._connection_limits, FilteredConnection, **chosen)
        if not self._stream_connection.is_mariadb and self._lock:
            self._locked = self._stream_connection.take_lock(self._lock)
        return self._stream_connection

    def follow(self, tables: FollowedTables) -> None:
        """Follow these tables from now on. Any message of those that are new may have changed: their
        changes until now were skipped."""
        self._outbox.add_unknown(self.followed.replace(tables))

    def own_connections(self, numbers: frozenset[int]) -> None:
        """These connections are the engine's own from now on."""
        self._own.connections = frozenset(number.to_bytes(8, "little")[:4] for number in numbers)

    def _filter_events(self) -> None:
        """Skip events of other tables before the library decodes them."""
        assert self._stream_connection is not None
        self._stream_connection.wants = self._event_filter.wants

    def _changes_unknown(self) -> None:
        self._transactions.pending.everything = True

    def _handle(self, event: Event) -> None:
        transactions = self._transactions
        match event:
            case Rows():
                self._handle_rows(event)
            case Committed():
                self._committed(event)
            case Statement():
                transactions.statement(event.text)
            case Prepared():
                transactions.rolled_back()
            case Idle():
                self._lag_s = 0.0
                self._outbox.count(0, 0.0)
            case Unreadable():
                pending = transactions.pending
                pending.everything = pending.schema_changed = True
                transactions.committed()
            case Other():
                pass

    def _committed(self, event: Committed) -> None:
        behind_s = time.monotonic() - self._ahead_s - event.timestamp
        self._lag_s = max(0.0, behind_s - 1)  # The binary log has times in whole seconds.
        self._outbox.count(self._rows, round(self._lag_s, 1))
        self._rows = 0
        self._transactions.committed()

    def _handle_rows(self, event: Rows) -> None:
        known = self._layout(event)
        if known is None:
            return
        table, layout = known.table, known.layout
        pending = self._transactions.pending
        if pending.is_unknown(table) or self._outbox.is_unknown(table):
            pending.add_unknown(table)
            return
        if layout is None or self._lag_s > self._limits.lag_max_s or event.partial:
            pending.add_unknown(table)
            return
        try:
            changes = layout.changes(event.change, event.present, event.data)
        except (UnreadableRowError, UnicodeDecodeError, IndexError):
            pending.add_unknown(table)
            return
        if changes:
            self._rows += len(changes)
            pending.add_rows(table, changes)

    def _follows(self, db: bytes, name: bytes) -> bool:
        return TableId(db.decode("utf-8", "replace"), name.decode("utf-8", "replace")) in self.followed.tables

    def _layout(self, event: Rows) -> _Known | None:
        """The queue of these rows, and its layout. None if they are of no queue that is followed."""
        if self._generation != self.followed.generation:
            self._generation, tables = self.followed.generation, self.followed.tables
            kept = ((number, known) for number, known in self._layouts.items() if known is not None)
            self._layouts = {at: known for at, known in kept if tables.get(known.table) == known.scope}
        number = event.table.number
        if number not in self._layouts:
            if len(self._layouts) >= LAYOUTS_MAX:
                self._layouts.clear()
            table = TableId(event.table.schema, event.table.name)
            scope = self.followed.tables.get(table)
            self._layouts[number] = (
                None if scope is None else _Known(table, scope, self._read_layout(table, event.table.columns, scope))
            )
        return self._layouts[number]

    def _read_layout(self, table: TableId, logged: Sequence[Mapping[str, Any]], scope: Scope) -> Layout | None:
        names = {"db": text_literal(table.db), "name": text_literal(table.name)}
        with closing(StoreConnection(self._address, self._connection_limits)) as connection:
            (found,) = connection.run([statement("binlog_columns", **names)])
        rows = [_texts(row) for row in found.rows]
        columns = [ColumnType(*rest) for db, name, *rest in rows if (db, name) == (table.db, table.name)]
        try:
            return Layout(columns, [field_of(column) for column in logged], scope)
        except UnreadableRowError:
            return None


def readable_events(fetch: Callable[[], Any], unreadable: Callable[[], None]) -> Iterator[Any]:
    """Yield the events that `fetch` returns, up to its first None.

    Calls `unreadable` for each event that `fetch` cannot read, because its changes are unknown.
    Raises MySQLError, IncompatibleVersionError, and StuckLogError after UNREADABLE_IN_A_ROW_MAX of
    them.
    """
    failures = 0
    while True:
        try:
            event = fetch()
        except (MySQLError, IncompatibleVersionError):
            raise
        except Exception as error:
            unreadable()
            failures += 1
            if failures == UNREADABLE_IN_A_ROW_MAX:
                raise StuckLogError(f"{failures} events in a row could not be read, the last for {error!r}") from error
            continue
        if event is None:
            return
        failures = 0
        yield event


def _texts(row: bytes) -> list[str]:
    return [(value or b"").decode() for value in text_values(row)]


def _follow_requests(reader: LogReader, requests: BinaryIO) -> None:
    """Take the tables to follow, and the engine's connections, until the input ends."""
    while (request := read_message(requests)) is not None:
        if isinstance(request, OwnConnections):
            reader.own_connections(request.numbers)
            continue
        reader.follow(request)


def _thread(work: Callable[..., None], *args: object) -> None:
    """Start a thread whose end, with or without an error, ends the program.

    No thread runs without the others.
    """

    def run() -> None:
        status = 1
        try:
            work(*args)
            status = 0
        finally:
            os._exit(status)

    threading.Thread(target=run, daemon=True).start()


def read_until_ended(read: Callable[[], None]) -> ReaderEnded:
    """Read the binary log until it ends.

    Returns the reason for the parent, which starts another reader.
    """
    try:
        read()
    except (UnreadableLogError, IncompatibleVersionError) as error:
        return ReaderEnded(str(error), refused=True)
    except StoreError as error:
        return ReaderEnded(str(error), refused=error.code in DENIED)
    except (MySQLError, OSError) as error:
        code = error.args[0] if error.args else 0
        return ReaderEnded(f"{error.args[-1] if error.args else error} ({code})", refused=code in DENIED)
    except StuckLogError as error:
        return ReaderEnded(str(error))
    except Exception as error:  # noqa: BLE001  # a fault in ackstream or of the library: the next reader begins again
        return ReaderEnded(f"its reader failed: {error!r}")
    return ReaderEnded("the server ended it")


def main() -> None:
    """Run the program."""
    requests, pipe = sys.stdin.buffer, sys.stdout.buffer
    logging.disable()  # The library's log lines are not for the proxy's users.
    request = read_message(requests)
    if request is None:
        return
    outbox = Outbox(request.limits)
    writing = threading.Lock()

    def on_started(started: ReaderStarted) -> None:
        pipe.write(message(started))
        pipe.flush()
        _thread(outbox.write_to, pipe, writing)

    reader = LogReader(request, outbox, on_started)
    _thread(_follow_requests, reader, requests)
    ended = read_until_ended(reader.run)
    with writing:
        with contextlib.suppress(BrokenPipeError):  # The parent has ended.
            pipe.write(message(ended))
            pipe.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
