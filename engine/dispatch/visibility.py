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

AGAIN_MIN_NS = 10_000_000
"""By then nearly every commit is visible."""
AGAIN_MAX_NS = 10 * NS_PER_S
"""A commit that waits for a replica waits that long by default (rpl_semi_sync_source_timeout). No
scans are made for it after that."""


@dataclass(slots=True)
class AwaitingVisibility:
    """What to scan for again, and when. Times are monotonic."""

    most: int
    """Ids remembered; beyond, the scans go on without knowing for what."""
    again_ns: int | None = None
    _keys: set[Key] = field(default_factory=set)
    _anything: bool = False
    _pause_ns: int = AGAIN_MIN_NS

    def add(self, now_ns: int, key: Key) -> None:
        """This message should be there."""
        if len(self._keys) < self.most:
            self._keys.add(key)
            self._begin(now_ns)
        else:
            self.anything(now_ns)

    def anything(self, now_ns: int) -> None:
        """Something may be there."""
        self._anything = True
        self._begin(now_ns)

    def met(self, keys: Iterable[Key]) -> None:
        """These were seen, or are over."""
        if self._keys:
            self._keys.difference_update(keys)
            if not self._keys and not self._anything:
                self.again_ns = None

    @property
    def slow(self) -> bool:
        """Whether it takes longer than any INSERT is taken to."""
        return self._pause_ns >= SETTLING_NS // 2

    def due(self, now_ns: int) -> bool:
        """Whether to scan again now. If so, the next time is set."""
        if self.again_ns is None or self.again_ns > now_ns:
            return False
        self._pause_ns *= 2
        self.again_ns = now_ns + self._pause_ns
        if self._pause_ns > AGAIN_MAX_NS:
            self.again_ns = None
            self._keys.clear()
            self._anything = False
        return True

    def _begin(self, now_ns: int) -> None:
        self._pause_ns = AGAIN_MIN_NS
        self.again_ns = min(self.again_ns or now_ns + AGAIN_MIN_NS, now_ns + AGAIN_MIN_NS)
