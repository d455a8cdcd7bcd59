"""Group scans: which message groups have something due, while more is due than a scan of all reads.

A scan in the order of time shows the messages at the front. If one group has a million of them there,
it shows that group alone. While this lasts (*flooded*), three reads are added, for the priority at
which the scan was cut off. All more urgent messages are in its result.

* *Arrivals*: the messages that came due last, from the end of the order of time. They show a message
  that a quiet group has just sent.
* *Refills*: the next messages of groups by name. A group that had more due messages than were read is
  *deep*, and is read again when most of those are taken.
* *Rotation*: all groups, in the order of the group index, from behind the last group that was read,
  with a few messages of each. A pass finds whatever the two others have missed.

They only add to the read-ahead buffer. What is claimed next is decided by `TurnOrder`, and whatever
they miss is found by the scans in the order of time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import islice

from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.read_ahead import ReadAhead
from engine.dispatch.scan_position import SETTLING_NS
from engine.dispatch.turns import AnyOrder
from engine.model import Arrivals, Entry, Group, GroupScan, GroupScanResult

NARROW_NS = 50_000_000
"""How long the transaction of an INSERT usually takes at most: arrivals are read again so far back.
Those of longer transactions are found by the reads that go back by SETTLING_NS."""


class GroupScans:
    """The group scans of one filter group: one at a time. Times are monotonic."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.running = False
        """Whether one has not come back yet."""
        self.priority: int | None = None
        """The priority at which the last scan was cut off; None: it has shown all due messages."""
        self._deep: dict[Group, None] = {}
        """Groups with more due messages than were read, in the order in which that was found."""
        self._after: Group | None = None
        """The group behind which the rotation goes on; None: a pass begins."""
        self._pass_begun_ns = 0
        self._rotate_ns = 0
        """When the rotation may go on."""
        self._arrived = False
        """Messages may have come due since the last read of arrivals."""
        self._arrivals_ns = 0
        self._wide_ns = 0
        """When the last read of arrivals went back by SETTLING_NS."""
        self._probes: dict[Group, None] = {}
        """Groups of which only arrivals are known: older messages of theirs may be due, too."""
        self._seen: deque[tuple[int, int, int]] = deque(maxlen=1_024)
        """When arrivals were read lately: monotonic time, server's clock, greatest id of those without
        a time."""
        self._requested: GroupScan | None = None
        self._next_ns = 0
        self._begun_ns = 0

    @property
    def deep(self) -> int:
        """How many groups are known to have more due messages than were read."""
        return len(self._deep)

    # Events.

    def note_arrival(self) -> None:
        """A message may have come due."""
        self._arrived = True

    def cut_off(self, priority: int, shown: Iterable[Entry], now: Instant) -> None:
        """A scan in the order of time was cut off at this priority, and has shown these due
        messages."""
        if priority != self.priority:
            self._restart(priority, now)
        counts = Counter(entry.group for entry in shown if entry.priority == priority)
        least = max(2, counts.total() // self._limits.deep_share)
        for group, messages in counts.items():
            if group is not None and messages >= least:
                self._add_deep(group)

    def all_shown(self) -> None:
        """A scan in the order of time has shown all due messages."""
        self.priority = None
        self._deep.clear()
        self._probes.clear()
        self._seen.clear()

    def answered(self, result: GroupScanResult, now: Instant) -> None:
        """The group scan under way came back."""
        request, self._requested = self._requested, None
        self.running = False
        took_ns = now.mono_ns - self._begun_ns
        self._next_ns = now.mono_ns + self._limits.group_pause_ns
        if request is None or request.priority != self.priority:
            return
        for group, _ in request.named:
            self._deep.pop(group, None)
            self._probes.pop(group, None)
        for group in result.deep:
            self._add_deep(group)
        if request.room:
            self._after = result.after
            self._rotate_ns = now.mono_ns + self._limits.rotation_share * took_ns
            if result.after is None:
                pass_ns = now.mono_ns - self._pass_begun_ns
                self._rotate_ns = now.mono_ns + max(
                    self._limits.rotation_pause_ns, self._limits.rotation_share * pass_ns
                )
        if request.arrivals is not None:
            if result.arrivals_cut:
                self._rotate_ns = min(self._rotate_ns, now.mono_ns + self._limits.rotation_share * took_ns)
            self._seen.append((self._begun_ns, request.arrivals.until_ns, result.greatest_id))

    def failed(self, now: Instant) -> None:
        """The group scan under way failed."""
        self.running, self._requested = False, None
        self._next_ns = now.mono_ns + self._limits.group_pause_ns

    def is_wanted(self, arrival: Entry, order: AnyOrder) -> bool:
        """Whether this arrival may be claimed: its group has no older messages that are not known. If
        none is known, it is read by name, too."""
        if arrival.group is None or arrival.group in self._deep:
            return False
        if not order.depth(arrival.priority, arrival.group) and len(self._probes) < self._limits.deep_max:
            self._probes[arrival.group] = None
        return True

    def quota(self, most: int) -> int:
        """How many messages of one group are read at a time, if the buffer may contain `most` messages
        of the front."""
        share = most // (2 * len(self._deep) + 2)
        return min(self._limits.group_quota_max, max(self._limits.group_quota_min, share))

    # The next one.

    def next_ns(self) -> int | None:
        """When to decide about the next one; None: none is needed."""
        if self.priority is None or self.running:
            return None
        if self._arrived:
            return min(self._next_ns, self._begun_ns + self._limits.arrivals_pause_min_ns)
        return self._next_ns

    def start(self, now: Instant, buffer: ReadAhead, most: int, unavailable: int) -> GroupScan | None:
        """The group scan to start now; None: none. `most`: how many messages of the front the buffer
        may contain. `unavailable`: how many messages a scan shows as due although they are taken."""
        at_ns = self.next_ns()
        if at_ns is None or at_ns > now.mono_ns or self.priority is None:
            return None
        self._make_room(now, buffer, most)
        room, quota = 2 * most - len(buffer), self.quota(most)
        named = self._refills(buffer, quota, room, unavailable)
        arrivals = self._arrivals(now)
        rotates = room > 0 and now.mono_ns >= self._rotate_ns
        if not (named or arrivals or rotates):
            self._next_ns = now.mono_ns + self._limits.group_pause_ns
            return None
        if rotates and self._after is None:
            self._pass_begun_ns = now.mono_ns
        self.running = True
        self._begun_ns = now.mono_ns
        self._requested = GroupScan(
            self.priority,
            tuple(named),
            arrivals,
            self._after,
            quota,
            room if rotates else 0,
            self._limits.rotation_step_max,
            self._limits.rotation_entries_max,
        )
        return self._requested

    def _make_room(self, now: Instant, buffer: ReadAhead, most: int) -> None:
        """If the rotation is to go on and the buffer is nearly full, drop the later messages of groups
        that have more than an even share of it: they are read again by name. Otherwise slow consumers
        would keep groups from being found."""
        if buffer.order is None or self.priority is None or now.mono_ns < self._rotate_ns:
            return
        if len(buffer) > 2 * most - most // 4:
            even = most // max(1, buffer.order.groups(self.priority))
            for group in buffer.trim(self.priority, max(self._limits.group_quota_min, even)):
                self._add_deep(group)

    def _refills(self, buffer: ReadAhead, quota: int, room: int, unavailable: int) -> list[tuple[Group, int]]:
        """The groups to read by name, and how many messages of each: deep ones of which few messages are
        left in the buffer, and those of arrivals. Messages that cannot be claimed must not displace those
        that can."""
        order, named = buffer.order, list[tuple[Group, int]]()
        if order is None or self.priority is None:
            return named
        probes = list(islice(self._probes, self._limits.probes_max))
        for group in (*probes, *self._deep):
            if room <= 0 or len(named) >= self._limits.refills_max:
                break
            depth = order.depth(self.priority, group)
            if depth <= quota // 2:
                taken = min(order.rank(group)[0], unavailable) + buffer.missed_count
                named.append((group, quota + depth + taken))
                room -= quota
        return named

    def _arrivals(self, now: Instant) -> Arrivals | None:
        """The read of arrivals, if it is time for one."""
        if not self._arrived and now.mono_ns < self._arrivals_ns + self._limits.arrivals_pause_max_ns:
            return None
        self._arrived = False
        self._arrivals_ns = now.mono_ns
        back_ns = NARROW_NS
        if now.mono_ns >= self._wide_ns + SETTLING_NS // 4:
            self._wide_ns, back_ns = now.mono_ns, SETTLING_NS
        after_ns, after_id = 0, 0
        for mono_ns, server_ns, greatest_id in reversed(self._seen):
            if mono_ns <= now.mono_ns - back_ns:
                after_ns, after_id = server_ns - back_ns, greatest_id
                break
        return Arrivals(after_ns, after_id, now.server_ns, self._limits.arrivals_max)

    def _restart(self, priority: int, now: Instant) -> None:
        self.priority = priority
        self._deep.clear()
        self._probes.clear()
        self._seen.clear()
        self._after = None
        self._next_ns = self._rotate_ns = now.mono_ns
        self._arrived = True

    def _add_deep(self, group: Group) -> None:
        if len(self._deep) < self._limits.deep_max:
            self._deep[group] = None
