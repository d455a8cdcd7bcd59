"""Whether the server accepts the engine's connections.

While the server is down, every statement of every queue fails, many times a second. These failures
are counted (`store_errors`) and not logged: engine.store.server_states has a line for the begin, with the
reason, and one for the end.

Nor is the server tried that often: after a failed attempt there is none for a pause, which doubles
with each failure. Calls that need a connection meanwhile fail with the same error. The pause is up to
a quarter shorter by chance, so several proxies do not keep step. When the server takes a client's
connection, the pause is over: statements of that client need the engine's connections.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from engine.store.port import NoPrimaryError, StoreError
from engine.store.pymysql_adapter import ER
from engine.store.server_states import ServerStates

FULL = "the server refuses connections (1040): it has as many as its max_connections allows"

PAUSE_MIN_S = 0.02
PAUSE_MAX_S = 0.5
"""Between two attempts to connect: two a second are no load, and clients wait for the return."""


class Reach:
    """The outcome of the last attempt to open a connection. Safe for threads."""

    def __init__(
        self, clock_s: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        """`chance` returns a number from [0, 1)."""
        self._clock_s, self._chance = clock_s, chance
        self.states = ServerStates(clock_s)
        self._pause_s = 0.0
        self._next_s = 0.0
        """When the server is tried again."""
        self._last: StoreError | None = None
        """The error of the last attempt, if it failed."""
        self._guard = threading.Lock()
        self._ever = False
        self.opened = 0
        """Connections that were opened."""
        self.refused = 0
        """Attempts that failed."""
        self.on_opened: Callable[[], None] = lambda: None
        """Called after each connection that was opened, on any thread."""

    def check(self) -> None:
        """Raise the error of the last attempt if it is too early for another one. Before the first
        success, the program that starts the engine decides when."""
        with self._guard:
            last = self._last
            if last is None or not self._ever:
                return
            now_s = self._clock_s()
            if now_s < self._next_s:
                raise StoreError(str(last), code=last.code, lasting=last.lasting)
            self._next_s = now_s + self._drawn_pause_s()  # One caller tries.

    @property
    def away(self) -> bool:
        """Whether the last attempt failed, after others had not."""
        return self._ever and self._last is not None

    def answered(self) -> None:
        """The server has taken a connection of a client: it can be tried at once."""
        with self._guard:
            self._next_s = 0.0

    def server_changed(self) -> None:
        """Another server is used: it can be tried at once."""
        with self._guard:
            self._last, self._pause_s = None, 0.0

    def _drawn_pause_s(self) -> float:
        return self._pause_s * (1 - self._chance() / 4)

    def reached(self) -> None:
        """A connection was opened."""
        with self._guard:
            self._last, self._pause_s = None, 0.0
            self.opened += 1
            self._ever = True
            self.states.unreachable.end()
        self.on_opened()

    def failed(self, error: StoreError) -> None:
        """A connection could not be opened.

        Before the first success, the program that starts the engine reports it.
        """
        with self._guard:
            self.refused += 1
            self._last = error
            self._pause_s = min(max(2 * self._pause_s, PAUSE_MIN_S), PAUSE_MAX_S)
            self._next_s = self._clock_s() + self._drawn_pause_s()
            if error.code == ER.CON_COUNT_ERROR:
                self.states.exhausted.report(FULL, logged=self._ever)
            else:  # engine.primary logs that there is no primary.
                logged = self._ever and not isinstance(error, NoPrimaryError)
                self.states.unreachable.report(str(error), logged=logged)
