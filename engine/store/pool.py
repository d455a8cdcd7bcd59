"""A bounded number of connections, opened when first needed, shared by the engine's threads.

The last one given back is the first one taken, so that a quiet engine keeps one connection warm and the others
may be ended by the server's timeouts; such a dead one is noticed when it is next wanted, and replaced. Among the idle
ones, one whose session already is in the wanted context goes first: a subscriber with its own character set then
costs a SET once and not at each fetch. A session that has written begins anew when it is used again (Link.begin_anew).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from engine.store.connection import OWN_CONTEXT, Link, SessionContext
from engine.store.port import StoreError
from engine.store.queries import statement
from engine.store.reach import Reach

CLOSED: Final = "the store is closed"


class Pool:
    """At most `most` links at a time; whoever needs one more waits. Safe for threads. `reach` is told how each attempt
    to open one went."""

    def __init__(self, open_link: Callable[[], Link], most: int, reach: Reach | None = None) -> None:
        self._open_link = open_link
        self._most = most
        self._reach = reach or Reach()
        self._changed = threading.Condition()
        self._idle: list[Link] = []  # guarded by _changed, as is all below
        self._busy: set[Link] = set()
        self._outdated: set[Link] = set()
        """Those of the busy ones that are to be closed when they are given back."""
        self._opening = 0
        self._closed = False

    @contextmanager
    def link(self, context: SessionContext = OWN_CONTEXT) -> Iterator[Link]:
        """A link for a while, the best one for `context`. After an error its transaction is rolled back."""
        link = self._take(context)
        try:
            yield link
        except BaseException as error:
            self._recover(link, error)
            raise
        finally:
            self._give_back(link)

    def close(self) -> None:
        """Close all links, also under those who use them: they get a StoreError, as does whoever comes later."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
            self._changed.notify_all()
        for link in idle:
            link.close()
        for link in busy:
            link.abort()

    def renew(self) -> None:
        """Use the links of now no more: a session goes by the privileges that its account had when it began."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._outdated |= self._busy
        for link in idle:
            link.close()

    def _recover(self, link: Link, error: BaseException) -> None:
        if not isinstance(error, StoreError):
            link.broken = True  # Replies may be left unread.
        if not link.broken:
            try:
                link.run([statement("rollback")])
            except StoreError:
                link.broken = True  # Its end is what rolls back now.

    def _take(self, context: SessionContext) -> Link:
        with self._changed:
            self._changed.wait_for(self._may_go_on)
            if self._closed:
                raise StoreError(CLOSED)
            while self._idle:
                link = self._idle.pop(self._best(context))
                if not link.stale():
                    self._busy.add(link)
                    return link
                link.close()
            self._opening += 1
        return self._opened()

    def _opened(self) -> Link:
        link, closed = None, False
        try:
            link = self._open_link()
            self._reach.reached()
        except StoreError as error:
            self._reach.failed(error)
            raise
        finally:
            with self._changed:
                self._opening -= 1
                closed = self._closed
                if link is not None and not closed:
                    self._busy.add(link)
                self._changed.notify()
        if closed:
            link.close()
            raise StoreError(CLOSED)
        return link

    def _may_go_on(self) -> bool:
        return self._closed or bool(self._idle) or len(self._busy) + self._opening < self._most

    def _best(self, context: SessionContext) -> int:
        """The index of the link last used in this context, or else in none, or else of the last used one."""
        for wanted in (context, None):
            for at in reversed(range(len(self._idle))):
                if self._idle[at].context == wanted:
                    return at
        return len(self._idle) - 1

    def _give_back(self, link: Link) -> None:
        with self._changed:
            self._busy.discard(link)
            keep = not (self._closed or link.broken or link in self._outdated)
            self._outdated.discard(link)
            if keep:
                link.begin_anew()
                self._idle.append(link)
            self._changed.notify()
        if not keep:
            link.close()
