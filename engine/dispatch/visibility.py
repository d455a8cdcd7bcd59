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
VISIBLE_NS = 2 * RESCAN_MAX_NS
"""So long after the binary log has shown a message, scans for it have ended: the pauses double."""


@dataclass(slots=True)
class _Rescans:
    """Scans at growing intervals."""

    next_ns: int | None = None
    """None: none is needed."""
    pause_ns: int = RESCAN_MIN_NS

    def restart(self, now_ns: int) -> None:
        """Scan soon, and then again."""
        self.pause_ns = RESCAN_MIN_NS
        self.next_ns = min(self.next_ns or now_ns + RESCAN_MIN_NS, now_ns + RESCAN_MIN_NS)

    def start(self, now_ns: int) -> int:
        """If it is time for a scan, set the time of the next one. Returns the pause before that; 0:
        it is not time."""
        if self.next_ns is None or self.next_ns > now_ns:
            return 0
        self.pause_ns *= 2
        self.next_ns = now_ns + self.pause_ns if self.pause_ns <= RESCAN_MAX_NS else None
        return self.pause_ns


@dataclass(slots=True)
class AwaitingVisibility:
    """The messages to scan for again, and when. Times are monotonic.

    Messages that are known by their keys have scans of their own. Otherwise each of them would
    begin anew the many scans for messages that are not known, as after the start of the reader.
    """

    keys_max: int
    """Keys remembered. With more, scans are repeated until the time is over."""
    _keys: set[Key] = field(default_factory=set)
    _for_keys: _Rescans = field(default_factory=_Rescans)
    _for_any: _Rescans = field(default_factory=_Rescans)
    _pause_ns: int = 0

    @property
    def rescan_ns(self) -> int | None:
        """When to scan again; None: nothing is awaited."""
        times = (self._for_keys.next_ns, self._for_any.next_ns)
        return min([at_ns for at_ns in times if at_ns is not None], default=None)

    def await_key(self, now_ns: int, key: Key) -> None:
        """A scan should show this message soon."""
        if len(self._keys) < self.keys_max:
            self._keys.add(key)
            self._for_keys.restart(now_ns)
        else:
            self.await_any(now_ns)

    def await_any(self, now_ns: int) -> None:
        """A scan may show some message soon."""
        self._for_any.restart(now_ns)

    def __contains__(self, key: Key) -> bool:
        """Whether no scan has shown this message since the binary log did."""
        return key in self._keys

    def stop_awaiting(self, keys: Iterable[Key]) -> None:
        """A scan has shown these messages, or they are not to be scanned for any more."""
        if self._keys:
            self._keys.difference_update(keys)
            if not self._keys:
                self._for_keys = _Rescans()

    @property
    def commit_is_slow(self) -> bool:
        """Whether a commit takes so long that its rows may be behind the scan position, as of the
        scan that was started last."""
        return self._pause_ns >= SETTLING_NS // 2

    def start_rescan(self, now_ns: int) -> bool:
        """Whether to scan again now. If so, this sets the time of the next scan."""
        pause_ns = max(self._for_keys.start(now_ns), self._for_any.start(now_ns))
        if not pause_ns:
            return False
        self._pause_ns = pause_ns
        if self._for_keys.next_ns is None:
            self._keys.clear()
        return True
