"""Messages that the log has shown and that no scan has shown yet.

A server writes its log before it lets others see the rows: by microseconds usually, by seconds
where a commit waits for a replica. A scan that is made at once may be too early, and nothing would
cause another one. So the scan is repeated, at growing intervals of the monotonic clock, until the
message was seen or it is clear that it went elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.dispatch.scan_position import SETTLING_NS
from engine.model import NS_PER_S, Key

RESCAN_MIN_NS = 10_000_000
"""By then nearly every commit is visible."""
RESCAN_MAX_NS = 10 * NS_PER_S
"""A commit that waits for a replica waits that long by default (rpl_semi_sync_source_timeout). No
scans are made for it after that."""


@dataclass(slots=True)
class AwaitingVisibility:
    """What to scan for again, and when. Times are monotonic."""

    keys_max: int
    """Ids remembered; beyond, the scans go on without knowing for what."""
    rescan_ns: int | None = None
    _keys: set[Key] = field(default_factory=set)
    _any: bool = False
    _pause_ns: int = RESCAN_MIN_NS

    def await_key(self, now_ns: int, key: Key) -> None:
        """This message should be there."""
        if len(self._keys) < self.keys_max:
            self._keys.add(key)
            self._restart_pause(now_ns)
        else:
            self.await_any(now_ns)

    def await_any(self, now_ns: int) -> None:
        """Something may be there."""
        self._any = True
        self._restart_pause(now_ns)

    def stop_awaiting(self, keys: Iterable[Key]) -> None:
        """These were seen, or are over."""
        if self._keys:
            self._keys.difference_update(keys)
            if not self._keys and not self._any:
                self.rescan_ns = None

    @property
    def commit_is_slow(self) -> bool:
        """Whether it takes longer than any INSERT is taken to."""
        return self._pause_ns >= SETTLING_NS // 2

    def start_rescan(self, now_ns: int) -> bool:
        """Whether to scan again now. If so, the next time is set."""
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
