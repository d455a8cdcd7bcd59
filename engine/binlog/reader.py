"""The reader of the binary log, a program of its own: `python -m engine.binlog.reader`, started by
engine.binlog.supervisor.

Reading the log in Python costs tens of µs an event, which must not be taken from the proxy's event
loop; so it happens in a process beside it. What to follow comes on standard input, the password
too, which is therefore in no list of processes; news go to standard output. It ends when its input
does, that is with its parent, however that ends.

It is made to be simple to lose: it begins at the end of the log, says so (then its parent looks at
all tables), and at the first trouble it says what it was and ends. Three threads: one reads the
log; one writes what came together meanwhile, so that a parent that reads slowly gets fewer and
coarser news; one waits for orders.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from engine.binlog.changes import ChangeSet, Layout, Transactions, UnreadableRowError
from engine.binlog.event_filter import EventFilter
from engine.binlog.pipe import (
    BinlogLimits,
    ChangeBatch,
    FollowRequest,
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
from engine.model import TableId
from engine.packets import text_values
from engine.quoting import text_literal
from engine.store.connection import ConnectionLimits, StoreConnection, connect
from engine.store.information_schema import now_ns
from engine.store.port import StoreError
from engine.store.pymysql_adapter import ER, Connection, Cursor, IncompatibleVersionError, InterfaceError, MySQLError
from engine.store.queries import statement

SERVER_IDS = range(3_000_000_000, 4_294_967_295)
"""A reader needs a number that no replica of the server has; one is drawn for each attempt, from
the upper end, which nobody uses by hand."""

DENIED = frozenset(
    {
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
        ER.ACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.TABLEACCESS_DENIED_ERROR,
    }
)
"""What does not get better by trying again soon."""

UNREADABLE_IN_A_ROW_MAX = 100
"""Events that the library cannot read, one after another, before the reader gives up. Few kinds of
event are unreadable, so as many in a row mean that the library is stuck: then each attempt fails at
once and reads nothing."""


LAYOUTS_MAX = 10_000
"""Numbers of tables whose layout is remembered. The server gives a table another number whenever it
opens it."""


class UnreadableLogError(Exception):
    """The log cannot be followed: the server keeps none, or not for this account."""


class StuckLogError(Exception):
    """The library reads no event any more."""


class Outbox:
    """What is to be told, until it is; for one thread that reads the log and one that writes."""

    def __init__(self, limits: BinlogLimits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._changes = ChangeSet(limits.rows_max)  # guarded by _changed, as is all below
        self._rows = 0
        self._lag_s = 0.0
        self._lag_reported_s = 0.0

    def add(self, changes: ChangeSet) -> None:
        """A transaction's changes."""
        with self._changed:
            self._changes.add(changes)
            self._changed.notify()

    def count(self, rows: int, lag_s: float) -> None:
        """So many rows were read, so far behind the server."""
        with self._changed:
            self._rows += rows
            self._lag_s = lag_s
            if lag_s != self._lag_reported_s:
                self._changed.notify()

    def is_unknown(self, table: TableId) -> bool:
        """Whether more rows of that table would add nothing to what is to be told."""
        return self._changes.is_unknown(table)

    def write_to(self, pipe: BinaryIO) -> None:
        """Write what there is, whenever there is something; for ever."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._changes or self._rows or self._lag_s != self._lag_reported_s)
                changes, self._changes = self._changes, ChangeSet(self._limits.rows_max)
                rows, self._rows = self._rows, 0
                self._lag_reported_s = self._lag_s
            pipe.write(message(_batch(changes, rows, self._lag_reported_s)))
            pipe.flush()
            time.sleep(self._limits.unknown_pause_s if changes.has_unknown else self._limits.pause_s)


def _batch(changes: ChangeSet, rows: int, lag_s: float) -> ChangeBatch:
    return ChangeBatch(
        tuple(
            (
                each.table.db,
                each.table.name,
                tuple((entry.key, entry.epoch, entry.priority, entry.due_ns) for entry in each.seen),
                each.over,
            )
            for each in changes.by_table()
        ),
        changes.everything,
        changes.schema_changed,
        rows,
        lag_s,
    )


@dataclass(slots=True)
class FollowedTables:
    """The tables to follow. The library looks into the two sets at each table map, and passes over
    all others."""

    tables: frozenset[TableId] = frozenset()
    names: set[str] = field(default_factory=set)
    databases: set[str] = field(default_factory=set)
    generation: int = 0

    def replace(self, tables: frozenset[TableId]) -> frozenset[TableId]:
        """Follow these from now on; those among them that are new."""
        new = tables - self.tables
        self.names |= {each.name for each in tables}
        self.databases |= {each.db for each in tables}
        self.tables = tables
        self.generation += 1
        return new


class LogReader:
    """Follows the log from its present end."""

    def __init__(self, order: FollowRequest, outbox: Outbox, on_started: Callable[[str], None]) -> None:
        """`begun` is called once, with the place in the log, when the server has accepted the
        request."""
        self.followed = FollowedTables()
        self.followed.replace(order.tables)
        self._address, self._limits = order.address, order.limits
        self._connection_limits = ConnectionLimits()
        self._outbox, self._on_started = outbox, on_started
        self._transactions = Transactions(order.limits.rows_max, outbox.add)
        self._event_filter = EventFilter(self._follows, lambda: bool(self._transactions.pending))
        self._layouts: dict[int, tuple[TableId, Layout | None] | None] = {}
        self._generation = 0
        self._connections = 0
        self._stream_connection: FilteredConnection | None = None
        self._ahead_s = 0.0
        self._lag_s = 0.0
        self._rows = 0

    def run(self) -> None:
        """Read until the server ends it.

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
                self._on_started(f"{file}:{position}")
                first = False
                self._filter_events()
            self._handle(event)

    def _begin(self) -> tuple[str, int]:
        """Where the log ends, if it can be followed at all."""
        with closing(StoreConnection(self._address, self._connection_limits)) as connection:
            now, variables = connection.run([statement("now"), statement("binlog_settings")])
            self._ahead_s = time.monotonic() - now_ns(now) / 1e9
            values = dict(_texts(row)[:2] for row in variables.rows)
            if values.get("log_bin", "ON") != "ON":
                raise UnreadableLogError("the server keeps no binary log (log_bin is off)")
            if (kind := values.get("binlog_format", "ROW")) != "ROW":
                raise UnreadableLogError(f"its binary log holds statements, not rows: binlog_format is {kind}, not ROW")
            try:
                (end,) = connection.run([statement("binlog_end")])
            except StoreError as error:
                if error.code != ER.PARSE_ERROR:
                    raise
                (end,) = connection.run([statement("binlog_end_formerly")])
            if not end.rows:
                raise UnreadableLogError("the server does not say where its binary log ends")
            file, position = _texts(end.rows[0])[:2]
            return file, int(position)

    def _connect(self, **options: Any) -> Any:
        """The library's two connections. When one is lost it would go on with what it knew of
        tables: we begin anew."""
        self._connections += 1
        if self._connections > 2:
            raise InterfaceError("the connection was lost")
        asked = {
            "database": options.get("database") or options.get("db"),
            "cursorclass": options.get("cursorclass", Cursor),
        }
        if asked["database"] is not None:  # It asks information_schema.
            return connect(self._address, self._connection_limits, Connection, **asked)
        self._stream_connection = connect(self._address, self._connection_limits, FilteredConnection, **asked)
        return self._stream_connection

    def _filter_events(self) -> None:
        """Pass over events that are of no interest before the library takes them apart."""
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
                transactions.pending.everything = transactions.pending.schema_changed = True
                transactions.committed()
            case Other():
                pass

    def _committed(self, event: Committed) -> None:
        behind_s = time.monotonic() - self._ahead_s - event.timestamp
        self._lag_s = max(0.0, behind_s - 1)  # The log tells the second in which it happened.
        self._outbox.count(self._rows, round(self._lag_s, 1))
        self._rows = 0
        self._transactions.committed()

    def _handle_rows(self, event: Rows) -> None:
        known = self._layout(event)
        if known is None:
            return
        table, layout = known
        pending = self._transactions.pending
        if pending.is_unknown(table) or self._outbox.is_unknown(table):
            pending.add_unknown(table)
            return
        if layout is None or self._lag_s > self._limits.lag_max_s or event.partial:
            pending.add_unknown(table)
            return
        present, data = event.images()
        try:
            for key, entry in layout.changes(event.change, present, data):
                self._rows += 1
                pending.add_row(table, key, entry)
        except (UnreadableRowError, UnicodeDecodeError, IndexError):
            pending.add_unknown(table)

    def _follows(self, db: bytes, name: bytes) -> bool:
        wanted = self.followed
        return name.decode("utf-8", "replace") in wanted.names and db.decode("utf-8", "replace") in wanted.databases

    def _layout(self, event: Rows) -> tuple[TableId, Layout | None] | None:
        """The queue whose rows these are, and how to read them if that is known; None when they are
        of no queue."""
        if self._generation != self.followed.generation:
            self._generation = self.followed.generation
            self._layouts.clear()
        number = event.number
        if number not in self._layouts:
            if len(self._layouts) >= LAYOUTS_MAX:
                self._layouts.clear()
            table = TableId(event.schema, event.table)
            self._layouts[number] = (
                (table, self._read_layout(table, event.columns())) if table in self.followed.tables else None
            )
        return self._layouts[number]

    def _read_layout(self, table: TableId, logged: Sequence[Mapping[str, Any]]) -> Layout | None:
        names = {"db": text_literal(table.db), "name": text_literal(table.name)}
        with closing(StoreConnection(self._address, self._connection_limits)) as connection:
            (found,) = connection.run([statement("binlog_columns", **names)])
        rows = [_texts(row) for row in found.rows]
        columns = [ColumnType(*rest) for db, name, *rest in rows if (db, name) == (table.db, table.name)]
        try:
            return Layout(columns, [field_of(told) for told in logged])
        except UnreadableRowError:
            return None


def readable_events(fetch: Callable[[], Any], unreadable: Callable[[], None]) -> Iterator[Any]:
    """The events that `fetch` returns, up to its first None. `unreadable` is called for each event
    that it cannot read: what that one meant is unknown.

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


def _follow_requests(reader: LogReader, outbox: Outbox, orders: BinaryIO) -> None:
    """Take new orders until there is nobody to give them."""
    while (tables := read_message(orders)) is not None:
        changes = ChangeSet(0)
        for each in reader.followed.replace(tables):
            changes.add_unknown(each)  # What was changed in it until now was passed over.
        outbox.add(changes)


def _thread(work: Callable[..., None], *args: object) -> None:
    """Start a thread whose end, by an error or not, ends the program: no part works on without the
    others."""

    def run() -> None:
        status = 1
        try:
            work(*args)
            status = 0
        finally:
            os._exit(status)

    threading.Thread(target=run, daemon=True).start()


def read_until_ended(read: Callable[[], None]) -> ReaderEnded:
    """Read the log until that is over; what is to be told the parent, which starts another reader
    after a pause."""
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
    except Exception as error:  # noqa: BLE001  # of ours or of the library's: the next reader begins anew
        return ReaderEnded(f"its reader failed: {error!r}")
    return ReaderEnded("the server ended it")


def main() -> None:
    """The program."""
    orders, pipe = sys.stdin.buffer, sys.stdout.buffer
    logging.disable()  # The library's advice is not for our users.
    order = read_message(orders)
    if order is None:
        return
    outbox = Outbox(order.limits)

    def on_started(where: str) -> None:
        pipe.write(message(ReaderStarted(where)))
        pipe.flush()
        _thread(outbox.write_to, pipe)

    reader = LogReader(order, outbox, on_started)
    _thread(_follow_requests, reader, outbox, orders)
    ended = read_until_ended(reader.run)
    pipe.write(message(ended))
    pipe.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
