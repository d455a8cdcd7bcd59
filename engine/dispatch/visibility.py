"""Messages awaiting visibility: the binary log has shown them, and no scan has.

A server writes its binary log before other sessions can read the rows: microseconds before, or
seconds where a commit waits for a replica. A scan that starts at once may be too early, and no
event would cause another one. The scan is therefore repeated, at growing intervals of the
monotonic clock, until it shows the message, or the message is known to be over or scheduled, or
the intervals have become long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.dispatch.scan_position import SETTLING_NS
from engine.model import NS_PER_S, Key

RESCAN_MIN_NS = 10_000_000
"""After this time nearly every commit is visible."""
RESCAN_MAX_NS = 10 * NS_PER_S
"""A commit waits for a replica this long by default (rpl_semi_sync_source_timeout). After it,
scans are not repeated any more."""


@dataclass(slots=True)
class AwaitingVisibility:
    """The messages to scan for again, and when. Times are monotonic."""

    keys_max: int
    """Keys remembered. With more, scans are repeated until the time is over."""
    rescan_ns: int | None = None
    """When to scan again; None: nothing is awaited."""
    _keys: set[Key] = field(default_factory=set)
    _any: bool = False
    _pause_ns: int = RESCAN_MIN_NS

    def await_key(self, now_ns: int, key: Key) -> None:
        """A scan should show this message soon."""
        if len(self._keys) < self.keys_max:
            self._keys.add(key)
            self._restart_pause(now_ns)
        else:
            self.await_any(now_ns)

    def await_any(self, now_ns: int) -> None:
        """A scan may show some message soon."""
        self._any = True
        self._restart_pause(now_ns)

    def stop_awaiting(self, keys: Iterable[Key]) -> None:
        """A scan has shown these messages, or they are not to be scanned for any more."""
        if self._keys:
            self._keys.difference_update(keys)
            if not self._keys and not self._any:
                self.rescan_ns = None

    @property
    def commit_is_slow(self) -> bool:
        """Whether a commit takes so long that its rows may be behind the scan position."""
        return self._pause_ns >= SETTLING_NS // 2

    def start_rescan(self, now_ns: int) -> bool:
        """Whether to scan again now. If so, this sets the time of the next scan."""
        if self.rescan_ns is None or self.rescan_ns > now_ns:
            return False
        self._pause_ns *= 2
        self.rescan_ns = now_ns + self._pause_ns
        if self._pause_ns > RESCAN_MAX_NS:
            self.rescan_ns = None
            self._keys.clear()
            self._any = False
        return True

    def _restart_pause(self, now_ns: int) -> None:
        self._pause_ns = RESCAN_MIN_NS
        self.rescan_ns = min(self.rescan_ns or now_ns + RESCAN_MIN_NS, now_ns + RESCAN_MIN_NS)
