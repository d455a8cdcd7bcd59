"""What is wrong with the server for some time: the reasons, for people.

A state has one line in the log when it begins and one when it ends, however often it is reported meanwhile.
The page and the metrics read the reason.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

log = logging.getLogger(__name__)

EXHAUSTED_KEPT_S = 30.0
"""While a server is full, it takes one connection and refuses the next. It has room when none was refused for so
long. Prometheus, which scrapes every 15 s or so, sees each such state."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log."""

    event: str
    text: str
    """With a place for the reason, at the begin, or for the seconds that the state has lasted, at the end."""


class ServerState:
    """One state. Safe for threads."""

    def __init__(self, began: Line, ended: Line, clock_s: Callable[[], float], kept_s: float = 0.0) -> None:
        """`kept_s`: the state lasts at least so long after it was reported."""
        self.began, self.ended = began, ended
        self._clock_s, self._kept_s = clock_s, kept_s
        self._guard = threading.Lock()
        self._reason: str | None = None
        self._logged = False
        self._since_s = self._reported_s = 0.0

    @property
    def reason(self) -> str | None:
        """Why, while it lasts; None: it does not."""
        return self._reason

    def report(self, reason: str, *, logged: bool = True) -> None:
        """It holds now. `logged`: whether there are lines, if it begins."""
        with self._guard:
            self._reported_s = self._clock_s()
            before, self._reason = self._reason, reason
            if before is None:
                self._since_s, self._logged = self._reported_s, logged
                if logged:
                    log.warning(self.began.text, reason, extra={"event": self.began.event})

    def end(self) -> None:
        """It does not hold now: it ends, unless it was reported within `kept_s`."""
        with self._guard:
            now_s = self._clock_s()
            if self._reason is None or now_s < self._reported_s + self._kept_s:
                return
            self._reason = None
            if self._logged:
                log.info(self.ended.text, now_s - self._since_s, extra={"event": self.ended.event})


class ServerStates:
    """All states of the server."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.unreachable = ServerState(
            Line("server.unreachable", "the server takes no connection; until it does, only a count is kept: %s"),
            Line("server.reached", "the server takes connections again, after %.1f s"),
            clock_s,
        )
        self.exhausted = ServerState(
            Line("connections.exhausted", "%s; until none is refused any more, only a count is kept"),
            Line("connections.available", "connections are not refused any more, after %.1f s"),
            clock_s,
            EXHAUSTED_KEPT_S,
        )
        self.read_only = ServerState(
            Line("server.read_only", "%s"),
            Line("server.writable", "the server is writable again, after %.1f s"),
            clock_s,
        )

        self.all = (self.unreachable, self.exhausted, self.read_only)

    def reasons(self) -> Iterable[str]:
        """The reasons of those that hold now."""
        return [reason for state in self.all if (reason := state.reason) is not None]
