"""Whether the server accepts the engine's connections, with one log line for each change.

While the server is down, every statement of every queue fails, many times a second. These failures
are counted (`store_errors`) and not logged. The lines here contain the begin, the reason and the
duration.
"""

from __future__ import annotations

import logging
import threading
import time

from engine.store.port import NoPrimaryError, StoreError

log = logging.getLogger(__name__)


class Reach:
    """The outcome of the last attempt to open a connection. Safe for threads."""

    def __init__(self) -> None:
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

    def reached(self) -> None:
        """A connection was opened."""
        with self._guard:
            self.opened += 1
            before, self._reason = self._reason, None
            ever, self._ever = self._ever, True
            if before is not None and ever and self._logged:
                log.info(
                    "the server takes connections again, after %.1f s",
                    time.monotonic() - self._since_s,
                    extra={"event": "server.reached"},
                )

    def failed(self, error: StoreError) -> None:
        """A connection could not be opened.

        Before the first success, the program that starts the engine reports it.
        """
        with self._guard:
            self.refused += 1
            before, self._reason = self._reason, str(error)
            if before is None:
                self._since_s = time.monotonic()
                self._logged = not isinstance(error, NoPrimaryError)  # engine.primary logs that.
                if self._ever and self._logged:
                    log.warning(
                        "the server takes no connection; until it does, only a count is kept: %s",
                        error,
                        extra={"event": "server.unreachable"},
                    )
