"""How the server's binary log shows which transactions are the engine's own.

The reader of the binary log skips them (engine.binlog.event_filter). If it takes a foreign
transaction for an own one, a change is missed until the next poll, so each sign must be certain.

MariaDB logs the text of each statement before its rows. Each statement of the engine's that writes
begins with `mark`, a comment with a random number that nobody else uses.

MySQL logs the number of the connection. A number belongs to one connection in one run of a server:
it is given again after a restart, or after 2³² connections. So a connection reports its number only
if it finds the lock that the reader's own connection holds. A lock is in the memory of one run of
one server: after a restart or a failover, or with several servers behind one address, the
connection and the reader are known to be on the same one. The reader ends with its connection, and
the next one has another lock, so the numbers of an earlier run are never used. Only a session with
the privilege to set pseudo_thread_id can log a number that is not its own (mysqlbinlog's output
does).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import suppress

from engine.packets import text_values
from engine.quoting import text_literal
from engine.store.connection import StoreConnection
from engine.store.port import StoreError
from engine.store.queries import statement


class OwnWrites:
    """The marks of one store's writes. Safe for threads."""

    def __init__(self) -> None:
        self.mark = f"/* ackstream:{secrets.token_hex(8)} */ "
        """What each statement that writes begins with."""
        self._lock = ""
        self._report: Callable[[frozenset[int]], None] = lambda _: None
        self._changing = threading.Lock()
        self._numbers: dict[StoreConnection, int | None] = {}
        """The connections that were checked for the present lock, and the numbers of those that
        found it."""

    def report_by(self, lock: str, report: Callable[[frozenset[int]], None]) -> None:
        """A reader of the binary log holds `lock`. Connections are checked when they are next used.
        `report` is called with the numbers of all that found it, on any thread. An empty name: no
        reader holds one any more."""
        with self._changing:
            self._lock, self._report = lock, report
            self._numbers.clear()

    def checked(self, connection: StoreConnection) -> bool:
        """Whether `check` has nothing to do."""
        return not self._lock or connection in self._numbers

    def check(self, connection: StoreConnection) -> None:
        """Check a connection that is about to be used, once for each lock. Never raises."""
        lock = self._lock
        if not lock or connection in self._numbers:
            return
        number = None
        with suppress(StoreError):  # If the connection is broken, its next statement raises.
            (found,) = connection.run([statement("binlog_own_connection", lock=text_literal(lock))])
            (raw,) = text_values(found.rows[0])
            number = None if raw is None else int(raw)
        with self._changing:
            if lock != self._lock:
                return
            self._numbers = {known: at for known, at in self._numbers.items() if not known.broken}
            self._numbers[connection] = number
            self._report(frozenset(at for at in self._numbers.values() if at is not None))
