"""How much the dispatcher does at a time, and how long it leaves things alone.

Its limits, each with the reason, and the two small clocks by which it keeps them: a pause that doubles with each
failure, and the account of scans.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.model import NS_PER_S

MS = 1_000_000

BURST_S = 0.01
"""What `max_rate` allows at once: the messages of so long, so that a second's worth is spread over the second."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The dispatcher's own bounds, each with its reason."""

    scan_min: int = 64
    """Keys read by a scan of an idle table: enough that a trickle needs one scan, cheap when most are not due."""
    window_max: int = 10_000
    """Keys read ahead at most: at 10,000 the scan costs a few µs a message, and more would only be staler."""
    claim_max: int = 1_000
    """Rows a claim takes at most: larger ones gain nothing (FACTS) and hold their locks longer."""
    claims_max: int = 2
    """Claims under way: a second one hides the commit of the first."""
    lanes_max: int = 64
    """Different conditions that the streams of one table have: each is looked for by itself."""
    scans_max: int = 2
    """Scans of one table under way, for different conditions: they share the engine's threads with other tables."""
    ahead_ns: int = 10 * NS_PER_S
    """How far into the future a scan for a condition reads; after so long there is another one."""
    bury_retry_ns: int = 60 * NS_PER_S
    """A dead message that cannot be moved is left alone for so long: somebody has to mend its dead-letter table."""
    fetch_max: int = 1_000
    """Rows one fetch asks for at most, to keep the statement small."""
    lookup_max: int = 1_000
    doubted_max: int = 10_000
    """Messages of other proxies that wait for a lookup: with more, the whole table is looked at instead."""
    """Leases looked up in one statement."""
    lookup_pause_min_ns: int = 20 * MS
    lookup_pause_max_ns: int = 1_000 * MS
    """Pause between lookups that find nothing: acknowledgements that bypass the proxy are seen within it."""
    rescan_pause_ns: int = 50 * MS
    """Pause between scans while there still are ready keys: bounds how long a more urgent message goes unseen."""
    stale_ns: int = 100 * MS
    """Keys read ahead longer ago than that, while nobody could be given any, are read again before one is claimed, if
    something was committed since: or a message would go before more urgent ones that were there long before."""
    failure_pause_min_ns: int = 100 * MS
    failure_pause_max_ns: int = 5_000 * MS
    """Pause after a failure of the database, doubling: soon enough for a restart, no storm on a sick server."""
    purge_rows: int = 500
    """Rows deleted at a time: a few ms of locks."""
    purge_pause_max_ns: int = 60 * NS_PER_S
    purge_pause_min_ns: int = NS_PER_S
    """A tenth of vt_purge_after, between these."""


@dataclass(slots=True)
class Pause:
    """A pause that doubles with every failure in a row."""

    least_ns: int
    most_ns: int
    until_ns: int = 0
    last_ns: int = 0

    def lengthen(self, now_ns: int) -> None:
        """Something failed (again)."""
        self.last_ns = min(max(2 * self.last_ns, self.least_ns), self.most_ns)
        self.until_ns = now_ns + self.last_ns

    def reset(self) -> None:
        """It went well."""
        self.until_ns = self.last_ns = 0


@dataclass(slots=True)
class Pace:
    """At most so many messages a second, and no more at once than come in `BURST_S`: a bucket of tokens."""

    rate: float | None
    now_ns: int
    _tokens: float = 1.0

    @property
    def _burst(self) -> float:
        return max(1.0, (self.rate or 0) * BURST_S)

    def allowance(self, now_ns: int) -> int | None:
        """How many may go now; None for any number. High rates go in handfuls, so that each need not wake anybody."""
        if self.rate is None:
            return None
        self._refill(now_ns)
        return int(self._tokens) if self._tokens >= self._handful else 0

    def spend(self, count: int) -> None:
        """So many went; a negative count: did not go after all."""
        if self.rate is not None:
            self._tokens = min(self._tokens - count, self._burst)

    def ready_ns(self) -> int | None:
        """When the next may go."""
        if self.rate is None:
            return None
        return self.now_ns + max(0, math.ceil((self._handful - self._tokens) / self.rate * NS_PER_S))

    def change(self, rate: float | None, now_ns: int) -> None:
        """Another rate from now on."""
        self._refill(now_ns)
        self.rate = rate
        self._tokens = min(self._tokens, self._burst)

    @property
    def _handful(self) -> float:
        return max(1.0, self._burst / 2)

    def _refill(self, now_ns: int) -> None:
        if self.rate is not None and now_ns > self.now_ns:
            self._tokens = min(self._tokens + (now_ns - self.now_ns) * self.rate / NS_PER_S, self._burst)
        self.now_ns = max(now_ns, self.now_ns)


@dataclass(slots=True)
class Scanning:
    """What is known about scans: whether one runs, why another is wanted, and when."""

    limit: int
    started: int = 0
    completed: int = 0
    at_ns: int = 0
    full_at_ns: int = 0
    """When the last one began that leaves nothing out."""
    dirty: bool = True
    """Something may have become due since the last scan began."""
    again_ns: int | None = None
    """When rows that a claim missed are worth another look."""
    trusted_until_ns: int = 0
    """Until when what was read ahead may be claimed, whatever was committed since."""
    stale: bool = False
    """Nothing is claimed before the next scan has come back."""

    @property
    def running(self) -> bool:
        """Whether a scan has not come back yet."""
        return self.started > self.completed

    def begun(self, now_ns: int) -> None:
        """A scan was asked for: it shows all that is committed by now."""
        self.started += 1
        self.at_ns = now_ns
        self.dirty = False
        self.again_ns = None

    def returned(self, now_ns: int, stale_ns: int) -> None:
        """The scan came back. One that took long is trusted for long, or a slow table would be scanned all the time."""
        self.completed = self.started
        self.stale = False
        self.trusted_until_ns = now_ns + max(stale_ns, now_ns - self.at_ns)

    def is_stale(self, now_ns: int) -> bool:
        """Whether what was read ahead has to be read again before any of it is claimed."""
        self.stale |= self.dirty and not self.running and now_ns >= self.trusted_until_ns
        return self.stale
