"""The search for messages in flight at proxies that are gone, in a table with a lease column.

A claim writes the end of its lease into the row twice, as time_next and as lease, with the slot of
its proxy. The row is in flight while both are equal and not over. A proxy holds the lock of its slot
on the server while it lives. So the table and the server show which messages a proxy has left, and
any other proxy releases them.

A proxy may lose its connection with the lock and lock it again at once. So messages are released only
if a second search, a pause after the first, shows their slot without its lock again. A statement of a
proxy that is gone may be carried out late, so a few searches follow even if one finds nothing. Before
a proxy uses its slot in a table, it releases what an earlier proxy of this slot has left there. Until
then its claims carry no slot, not the one that it had before: others may release what carries that.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.dispatch.backoff import ExponentialBackoff
from engine.dispatch.effects import Effect, FindAbandoned
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.model import SLOTS, Return
from engine.queue_table import OnDisconnect, Policy

SEARCHES = 4
"""Searches after a proxy is gone, at least. With pauses that double, the last one is 3.5 s after the
first."""


class Abandoned:
    """The searches of one table, and the slot of its claims. Times are monotonic."""

    def __init__(self, policy: Policy, limits: Limits, now: Instant) -> None:
        self._policy = policy
        self._limits = limits
        self._pause = ExponentialBackoff(limits.failure_pause_min_ns, limits.failure_pause_max_ns)
        self.slot = 0
        """The slot of claims that start now; 0: none."""
        self._given = 0
        """The slot that this proxy has."""
        self._under_way: FindAbandoned | None = None
        self._search_ns: int | None = now.mono_ns
        """When to search for slots without a lock; None: not before another proxy is gone."""
        self._again = ExponentialBackoff(limits.abandoned_pause_ns, limits.failure_pause_max_ns)
        """The pause between searches while they find messages."""
        self._more = 1
        """How many searches follow even if they find nothing. One at first: a proxy that starts searches
        every queue."""
        self._gone_since_ns: dict[int, int] = {}
        """The slots that the last search showed without their locks, and the first of the searches in a
        row that did."""

    @property
    def under_way(self) -> bool:
        """Whether a search is under way."""
        return self._under_way is not None

    @property
    def search_ns(self) -> int | None:
        """When the next search may start; None: none is needed."""
        if self._under_way is not None or not self._searches:
            return None
        if self._given != self.slot:
            return self._pause.until_ns
        return None if self._search_ns is None else max(self._search_ns, self._pause.until_ns)

    @property
    def _searches(self) -> bool:
        """Whether messages of vanished proxies are released before their waits end."""
        return self._policy.lease is not None and self._policy.on_disconnect is OnDisconnect.RELEASE

    def slot_given(self, slot: int) -> None:
        """This proxy has this slot from now on; 0: it has none."""
        self._given = slot
        if not self._searches:
            self.slot = slot
        elif slot != self.slot:
            self.slot = 0

    def request_search(self, now: Instant) -> None:
        """Another proxy may be gone."""
        self._search_ns = now.mono_ns
        self._more = SEARCHES
        self._again.reset()

    def start_search(self, now: Instant, own: int) -> list[Effect]:
        """Start a search if it is time for one. `own`: how many messages this proxy has in flight. If it had the
        same slot before, a search for the slot finds these too."""
        search_ns = self.search_ns
        if search_ns is None or now.mono_ns < search_ns:
            return []
        limit = self._limits.claim_max
        if self._given != self.slot:
            self._under_way = FindAbandoned(self._given, limit + own)
        else:
            self._under_way = FindAbandoned(None, limit)
            self._search_ns = None
        return [self._under_way]

    def search_answered(self, now: Instant, found: Sequence[Return]) -> list[Return]:
        """The search under way has found these messages. Returns those to release."""
        search, self._under_way = self._under_way, None
        assert search is not None
        self._pause.reset()
        complete = len(found) < search.limit
        if search.slot is not None:
            if not complete:
                self._pause.lengthen(now.mono_ns)  # The next search finds the others, once these are released.
            elif search.slot == self._given:
                self.slot = search.slot
            return list(found)
        slots = {claim.deadline_ns % SLOTS for claim in found}
        self._gone_since_ns = {slot: self._gone_since_ns.get(slot, now.mono_ns) for slot in slots}
        latest_ns = now.mono_ns - self._limits.abandoned_pause_ns
        self._more -= 1
        if found or self._more > 0:  # A row that another session has locked is not released at once.
            self._again.lengthen(now.mono_ns)
            self._search_ns = self._again.until_ns if self._search_ns is None else self._search_ns
        return [claim for claim in found if self._gone_since_ns[claim.deadline_ns % SLOTS] <= latest_ns]

    def search_failed(self, now: Instant) -> None:
        """The search under way failed: it is repeated after a pause."""
        search, self._under_way = self._under_way, None
        self._pause.lengthen(now.mono_ns)
        if search is not None and search.slot is None:
            self._search_ns = now.mono_ns

    def set_policy(self, policy: Policy, now: Instant) -> None:
        """The table's comment has changed."""
        self._policy = policy
        self.request_search(now)
        self.slot_given(self._given)
