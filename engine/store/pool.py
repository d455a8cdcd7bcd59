"""A bounded number of connections, opened when needed and shared by the engine's threads.

The connection given back last is taken first, so a quiet engine uses one connection, and the
server's timeouts may end the others. A connection that the server ended is noticed when it is
taken, and replaced. Among the idle ones, a session that already has the required context is taken
first: a subscriber with its own character set then costs one SET, not one for each fetch. A session
that has written is reset when it is given back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from engine.store.connection import OWN_CONTEXT, SessionContext, StoreConnection
from engine.store.own_writes import OwnWrites
from engine.store.port import Origin, StoreError
from engine.store.pymysql_adapter import CR
from engine.store.queries import statement
from engine.store.reach import Reach

CLOSED: Final = "the store is closed"
ABANDONED: Final = "another server is the primary now"


class Pool:
    """At most `most` connections at a time. A caller that needs another one waits. Safe for
    threads.

    `reach` records the outcome of each attempt to open a connection, `own_writes` each connection.
    """

    def __init__(
        self,
        open_link: Callable[[], StoreConnection],
        most: int,
        reach: Reach | None = None,
        own_writes: OwnWrites | None = None,
        on_error: Callable[[StoreError], None] = lambda _: None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_error` is called with each error of a statement or a connection, on any thread.
        `check` is called before a connection is lent, and raises StoreError if none may be used."""
        self._check = check
        self._on_error = on_error
        self._open_connection = open_link
        self._most, self._more = most, 0
        self._own_writes = own_writes or OwnWrites()
        self._reach = reach or Reach()
        self._changed = threading.Condition()
        self._idle: list[StoreConnection] = []  # guarded by _changed, as is all below
        self._busy: set[StoreConnection] = set()
        self._outdated: set[StoreConnection] = set()
        """The busy connections that will be closed when they are given back."""
        self._opening = 0
        self._wanted = 0
        """Callers that wait for a connection. They get one before `ready` does."""
        self._closed = False
        self._abandoned = 0
        """How often all connections were abandoned."""

    @contextmanager
    def connection(self, context: SessionContext = OWN_CONTEXT) -> Iterator[StoreConnection]:
        """Lend a connection, the best one for `context`, as `lent` does."""
        self._check()
        with self.lent(self._take(context)) as connection:
            self._own_writes.check(connection)
            yield connection

    def ready(self, server: Origin | None = None, context: SessionContext = OWN_CONTEXT) -> StoreConnection | None:
        """Take a connection that can be used without waiting for anything, the best one for `context`; None if
        there is none. With `server`, it is known to lead to that one. The caller uses it with `lent`, unless the
        pool is closed."""
        try:
            self._check()
        except StoreError:
            return None
        with self._changed:
            if self._closed or self._wanted or not self._idle:
                return None
            at = self._best(context)
            connection = self._idle[at]
            if server is not None and connection.server != server:
                return None
            if not (self._own_writes.checked(connection) and connection.ready()):
                return None
            self._busy.add(self._idle.pop(at))
        return connection

    @contextmanager
    def lent(self, connection: StoreConnection) -> Iterator[StoreConnection]:
        """Give a connection back at the end of the block. After an error its transaction is rolled
        back."""
        try:
            yield connection
        except BaseException as error:
            if isinstance(error, StoreError):
                self._on_error(error)
            self._recover(connection, error)
            raise
        finally:
            self._give_back(connection)

    def close(self) -> None:
        """Close all connections. Calls on busy ones, and later calls, raise StoreError."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
            self._changed.notify_all()
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.abort()

    def abandon(self) -> None:
        """End the present connections, and those that are being opened: the server is not used any
        more. Calls on busy ones raise StoreError."""
        with self._changed:
            self._abandoned += 1
            self._reach.server_changed()
            idle, self._idle = self._idle, []
            self._outdated |= self._busy
            busy = list(self._busy)
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.abort()

    def set_more(self, connections: int) -> None:
        """There may be so many connections more from now on. Those that are too many then end when they are given
        back."""
        with self._changed:
            self._more = connections
            self._changed.notify_all()

    def renew(self) -> None:
        """Replace the present connections: a session keeps the global privileges that it began
        with."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._outdated |= self._busy
        for connection in idle:
            connection.close()

    def _recover(self, connection: StoreConnection, error: BaseException) -> None:
        if not isinstance(error, StoreError):
            connection.broken = True  # Replies may be left unread.
        if not connection.broken:
            try:
                connection.run([statement("rollback")])
            except StoreError:
                connection.broken = True  # Its end rolls back the transaction.

    def _take(self, context: SessionContext) -> StoreConnection:
        while (connection := self._idle_one(context)) is not None:
            if not connection.stale():
                return connection
            with self._changed:
                self._busy.discard(connection)
                self._outdated.discard(connection)
                self._changed.notify()
            connection.close()
        return self._opened()

    def _idle_one(self, context: SessionContext) -> StoreConnection | None:
        """An idle connection; None: the caller has to open one."""
        with self._changed:
            self._wanted += 1
            try:
                return self._awaited(context)
            finally:
                self._wanted -= 1

    def _awaited(self, context: SessionContext) -> StoreConnection | None:
        """`_idle_one`, with the lock held."""
        while True:
            self._changed.wait_for(self._may_go_on)
            if self._closed:
                raise StoreError(CLOSED)
            if self._idle:
                connection = self._idle.pop(self._best(context))
                self._busy.add(connection)
                return connection
            if not (self._opening and self._reach.away):
                break
            self._changed.wait()  # Another call tries whether the server is back: one attempt is enough.
        self._reach.check()
        self._opening += 1
        return None

    def _opened(self) -> StoreConnection:
        connection, closed, abandoned = None, False, self._abandoned
        try:
            connection = self._open_connection()
            self._reach.reached()
        except StoreError as error:
            self._on_error(error)
            self._reach.failed(error)
            raise
        finally:
            with self._changed:
                self._opening -= 1
                closed = self._closed or abandoned != self._abandoned
                if connection is not None and not closed:
                    self._busy.add(connection)
                self._changed.notify_all()  # Several may wait for the outcome.
        if closed:
            connection.close()
            raise StoreError(CLOSED if self._closed else ABANDONED, code=0 if self._closed else CR.CR_SERVER_LOST)
        return connection

    def _may_go_on(self) -> bool:
        return self._closed or bool(self._idle) or len(self._busy) + self._opening < self._most + self._more

    def _best(self, context: SessionContext) -> int:
        """The index of the last used idle connection with this context, else without one, else of
        any."""
        for wanted in (context, None):
            for at in reversed(range(len(self._idle))):
                if self._idle[at].context == wanted:
                    return at
        return len(self._idle) - 1

    def _give_back(self, connection: StoreConnection) -> None:
        connection.reset()
        with self._changed:
            self._busy.discard(connection)
            keep = not (self._closed or connection.broken or connection in self._outdated)
            keep = keep and len(self._busy) + len(self._idle) < self._most + self._more
            self._outdated.discard(connection)
            if keep:
                self._idle.append(connection)
            self._changed.notify()
        if not keep:
            connection.close()
