"""Whether the server accepts the engine's connections, with one log line for each change.

While the server is down, every statement of every queue fails, many times a second. These failures
are counted (`store_errors`) and not logged. The lines here contain the begin, the reason and the
duration.

Nor is the server tried that often: after a failed attempt there is none for a pause, which doubles
with each failure. Calls that need a connection meanwhile fail with the same error. The pause is up to
a quarter shorter by chance, so several proxies do not keep step. When the server takes a client's
connection, the pause is over: statements of that client need the engine's connections.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from engine.store.port import NoPrimaryError, StoreError

log = logging.getLogger(__name__)

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
        self._pause_s = 0.0
        self._next_s = 0.0
        """When the server is tried again."""
        self._last: StoreError | None = None
        """The error of the last attempt, if it failed."""
        self._guard = threading.Lock()
        self._ever = False
        self._reason: str | None = None
        self._since_s = 0.0
        self.opened = 0
        """Connections that were opened."""
        self.refused = 0
        """Attempts that failed."""
        self._logged = False
        """Whether there was a line for the present state."""

    @property
    def reason(self) -> str | None:
        """Why the server accepts no connection. None if it does, or before the first attempt."""
        return self._reason

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
            before, self._reason = self._reason, None
            ever, self._ever = self._ever, True
            if before is not None and ever and self._logged:
                log.info(
                    "the server takes connections again, after %.1f s",
                    self._clock_s() - self._since_s,
                    extra={"event": "server.reached"},
                )

    def failed(self, error: StoreError) -> None:
        """A connection could not be opened.

        Before the first success, the program that starts the engine reports it.
        """
        with self._guard:
            self.refused += 1
            self._last = error
            self._pause_s = min(max(2 * self._pause_s, PAUSE_MIN_S), PAUSE_MAX_S)
            self._next_s = self._clock_s() + self._drawn_pause_s()
            before, self._reason = self._reason, str(error)
            if before is None:
                self._since_s = self._clock_s()
                self._logged = not isinstance(error, NoPrimaryError)  # engine.primary logs that.
                if self._ever and self._logged:
                    log.warning(
                        "the server takes no connection; until it does, only a count is kept: %s",
                        error,
                        extra={"event": "server.unreachable"},
                    )
