"""Which messages are handed out next: the most urgent ready ones (`ScanScheduler`), for the groups
with credit, as many as the bounds of the table allow (`Capacity`)."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dispatch.filter_groups import FilterGroup
from engine.dispatch.instant import Instant
from engine.dispatch.parts import Parts
from engine.model import Entry, Key

Picked = dict[Key, tuple[FilterGroup, Entry]]
"""Messages in the order of delivery, each with the group that it was picked for. They are out of
the read-ahead buffers, and count against the rate."""


class Picking:
    """Takes messages out of the read-ahead buffers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def pick_ready(self, now: Instant, *, locks: bool) -> Picked:
        """Take the most urgent ready messages for the groups that lock, or for those that claim."""
        parts = self._parts
        demand = [
            (group, parts.scans.available(group, now, group.credit, len(parts.claims)) if group.locks is locks else 0)
            for group in parts.groups
        ]
        wanted = sum(messages for _, messages in demand)
        most = (parts.capacity.lock_size if locks else parts.capacity.claim_size)(wanted, now)
        taken = parts.scans.take_entries(demand, most) if most else []
        picked = {entry.key: (group, entry) for group, entry in taken}
        if locks:
            parts.locks_more = parts.limits.locks_turn_max == len(taken) < wanted
        if parts.dead_letters.in_use:
            for group, entry in taken:
                if parts.dead_letters.add_if_dead(entry, now) or entry.key in parts.dead_letters:
                    del picked[entry.key]
                    parts.in_flight.note_unused(entry.group)
                    group.scans.buffer.forget_misses((entry.key,))  # No claim of it will be answered.
        parts.capacity.use(len(picked))
        return picked

    def pick_inserted(self, now: Instant, keys: Sequence[Key]) -> Picked | None:
        """Take messages that a transaction has inserted, if all of them can be claimed at once
        without a scan; None: a scan has to find them. A later scan shows whether the keys were
        right. Messages of other shares are left to their proxies."""
        parts = self._parts
        keys = parts.scans.keep_own(keys, now)
        if not self._may_claim_unscanned(now, keys):
            return None
        parts.scans.inserted_unscanned(parts.groups.main, now)
        parts.capacity.use(len(keys))
        return {key: (parts.groups.main, Entry(key, 0, 0, 0)) for key in keys}

    def _may_claim_unscanned(self, now: Instant, keys: Sequence[Key]) -> bool:
        """Whether all these messages can be claimed at once, and no other message or stream comes
        first."""
        parts, main, count = self._parts, self._parts.groups.main, len(keys)
        if parts.draining or parts.is_failing(now) or parts.groups.with_credit() != [main]:
            return False
        if parts.places.limited:
            return False  # An INSERT does not show the group.
        if main.credit < count or parts.capacity.claim_size(count, now) != count:
            return False
        known = (parts.is_taken(key) or parts.leases.get(key) or parts.releases.is_under_way(key) for key in keys)
        return parts.scans.has_nothing_due(main, now) and not any(known)
