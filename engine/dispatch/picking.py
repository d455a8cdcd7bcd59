"""Which messages are handed out next: the most urgent ones that were read ahead and are ready
(`ReadAhead`), for the groups with credit, as many as the bounds of the table allow (`Capacity`)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count as counted_from

from engine.dispatch.filter_groups import FilterGroup
from engine.dispatch.instant import Instant
from engine.dispatch.parts import Parts
from engine.model import ANYTHING, Entry, Key

Demand = Sequence[tuple[FilterGroup, int]]
"""Filter groups, each with how many messages it takes at most."""

Taken = tuple[FilterGroup, Entry]
"""An entry that was read ahead, with the group whose buffer it was taken from."""

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
        most = parts.capacity.lock_size(wanted) if locks else self._claim_size(wanted, now)
        taken = self._take(demand, most) if most else []
        if parts.refusals and not locks:
            taken = self._without_refused(taken, demand, now)
        picked = {entry.key: (group, entry) for group, entry in taken}
        if locks:
            parts.more |= parts.limits.locks_turn_max == len(taken) < wanted
        if parts.dead_letters.in_use:
            for group, entry in taken:
                if parts.dead_letters.add_if_dead(entry, now) or entry.key in parts.dead_letters:
                    del picked[entry.key]
                    parts.in_flight.note_unused(entry.group)
                    group.scans.buffer.forget_misses((entry.key,))  # No claim of it will be answered.
        return picked

    def _claim_size(self, wanted: int, now: Instant) -> int:
        """How many messages the next claim takes: what the bounds allow, or fewer while claims are refused."""
        parts = self._parts
        refusals = parts.refusals
        if now.mono_ns < refusals.pause_until_ns or (refusals.one_at_a_time and len(parts.claims)):
            return 0
        most = parts.capacity.claim_size(wanted, now)
        return most if refusals.claim_size.most is None else min(most, refusals.claim_size.most)

    def _without_refused(self, taken: list[Taken], demand: Demand, now: Instant) -> list[Taken]:
        """Those of the taken messages that one claim may have: a message that was refused before comes alone, and
        not at all before its pause is over. The others are ready again."""
        parts = self._parts
        while taken:
            kept: list[Taken] = []
            for at, (group, entry) in enumerate(taken):
                if (retry_ns := parts.refusals.retry_ns(entry.key, now)) is not None:
                    parts.in_flight.note_unused(entry.group)
                    parts.scans.retry_later([entry], now, group, at_ns=retry_ns)
                elif entry.key not in parts.refusals:
                    kept.append((group, entry))
                elif kept:
                    self._put_back(taken[at:], now)
                    break
                else:
                    self._put_back(taken[at + 1 :], now)
                    return [(group, entry)]
            if kept:
                return kept
            taken = self._take(demand, len(taken))
        return taken

    def _put_back(self, taken: Sequence[Taken], now: Instant) -> None:
        for group, entry in taken:
            self._parts.in_flight.note_unused(entry.group)
            self._parts.scans.left_out(group, entry, now)

    def pick_inserted(self, now: Instant, keys: Sequence[Key]) -> Picked | None:
        """Take messages that a transaction has inserted, for the streams without a condition that claim,
        or for those that lock, if all of them can be handed out at once without a scan. None: a scan has
        to find them. A later scan shows whether the keys were right. Messages of other shares are left to
        their proxies."""
        parts = self._parts
        keys = parts.scans.keep_own(keys, now)
        wanting = parts.groups.with_credit()
        if len(wanting) != 1 or not self._may_take_unscanned(wanting[0], now, keys):
            return None
        parts.scans.inserted_unscanned(wanting[0], now)
        return {key: (wanting[0], Entry(key, 0, 0, 0)) for key in keys}

    def _take(self, demand: Demand, count: int) -> list[Taken]:
        """Remove and return the first `count` ready entries of the groups' buffers, in the order of delivery.
        An entry that is taken for one group is removed from the buffers of the others."""
        groups = self._parts.groups
        turns = groups.turns
        if turns is not None:
            freed = turns.take_freed()
            for group in groups if freed else ():
                group.scans.buffer.requeue(freed)
        wanting = [(group, most) for group, most in demand if most > 0]
        if self._parts.policy.group_run > 1:
            taken = _take_runs(demand, count, self._parts.policy.group_run)
        elif len(wanting) == 1:
            ((group, most),) = wanting
            entries = group.scans.buffer.take(min(count, most))
            for other, _ in demand:
                if other is not group and len(other.scans.buffer):
                    other.scans.buffer.drop_all(entries)
            taken = [(group, entry) for entry in entries]
        else:
            taken = _take_merged(demand, count)
        if turns is not None:
            turns.end_round()
        return taken

    def _may_take_unscanned(self, group: FilterGroup, now: Instant, keys: Sequence[Key]) -> bool:
        """Whether all these messages can be handed out at once to this group, which alone has credit, and
        no other message comes first."""
        parts, count = self._parts, len(keys)
        if parts.draining or parts.is_failing(now) or group.selection != ANYTHING:
            return False
        if parts.places.limited or (group.locks and parts.groups.turns is not None):
            return False  # An INSERT does not show the message group. A claim returns it, and a lock does not.
        size = parts.capacity.lock_size(count) if group.locks else parts.capacity.claim_size(count, now)
        if group.credit < count or size != count:
            return False
        known = (parts.is_taken(key) or parts.leases.get(key) or parts.releases.is_under_way(key) for key in keys)
        return parts.scans.has_nothing_due(group, now) and not any(known)


def _take_merged(demand: Demand, count: int) -> list[Taken]:
    """`Picking._take` for several groups."""
    left = [most for _, most in demand]
    heads: list[tuple[int, tuple[int, ...], int, Key, int, int]] = []

    def push_head(at: int) -> None:
        buffer = demand[at][0].scans.buffer
        entry = buffer.head()
        if entry is not None and left[at] > 0:
            rank = buffer.rank(entry)
            heapq.heappush(heads, (entry.priority, rank, entry.due_ns, entry.key, -left[at], at))

    for at in range(len(demand)):
        push_head(at)
    taken: list[Taken] = []
    while heads and len(taken) < count:
        _, rank, due_ns, key, _, at = heapq.heappop(heads)
        group = demand[at][0]
        head = group.scans.buffer.head()
        if head is not None and (head.key, head.due_ns, group.scans.buffer.rank(head)) == (key, due_ns, rank):
            taken += [(group, entry) for entry in group.scans.buffer.take(1)]
            left[at] -= 1
            for other, _ in demand:
                other.scans.buffer.drop(key)
        push_head(at)
    return taken


def _take_runs(demand: Demand, count: int, most: int) -> list[Taken]:
    """`Picking._take` for runs of `most` messages at most: each has room in one stream."""
    left = [wanted for _, wanted in demand]
    turns = counted_from()
    rooms = [[(load, next(turns), room) for load, room in group.subscribers.rooms(wanted)] for group, wanted in demand]
    taken: list[Taken] = []
    while len(taken) < count:
        heads: list[tuple[int, tuple[int, ...], int, Key, int]] = []
        for at, (group, _) in enumerate(demand):
            buffer = group.scans.buffer
            if left[at] > 0 and rooms[at] and (entry := buffer.head()) is not None:
                heads.append((entry.priority, buffer.rank(entry), entry.due_ns, entry.key, at))
        if not heads:
            break
        at = min(heads)[-1]
        group = demand[at][0]
        load, _, room = heapq.heappop(rooms[at])
        run = group.scans.buffer.take_run(min(room, left[at], count - len(taken), most))
        if room > len(run):
            heapq.heappush(rooms[at], (load + len(run), next(turns), room - len(run)))
        left[at] -= len(run)
        taken += [(group, entry) for entry in run]
        for other, _ in demand:
            if other is not group:
                other.scans.buffer.drop_all(run)
    return taken
