"""The messages of other shares, for one filter group: when this proxy takes them nevertheless.

Several proxies with streams on a queue divide its messages into shares by a hash of the id
(`Share`). A proxy scans its own share and claims from it at once. A message of another share is left
to its own proxy for a *grace*. If a scan of the other shares shows it again after that, its proxy
has no demand, is slower, or is gone, and this proxy takes it. The proxy that comes next in the order
of numbers waits for one grace, the one after it for two, and so on: they do not all try at once.

For a group with a condition, the scans of the other shares have a scan position, as those of its own
share have. It stays before all messages that are left to their proxies.

Shares are a hint for efficiency. They may be wrong on any proxy, for ever: each due message is shown
by the scan of the own share or by that of the others, and any proxy may claim it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from engine.dispatch.doubt import Doubt
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.scan_position import ScanPosition
from engine.dispatch.time_order import place_of
from engine.dispatch.timed_keys import TimedKeys
from engine.model import Entry, Key, Portion, Range, ScanResult, Share


class _Waiting(NamedTuple):
    """A due message of another share, and when this proxy takes it at the latest (monotonic)."""

    entry: Entry
    overdue_ns: int
    logged: bool
    """Whether the binary log has shown it, and no scan yet."""


@dataclass(frozen=True, slots=True)
class OtherAnswer:
    """What follows from a scan of the other shares."""

    free: list[Entry]
    """The messages that this proxy takes, in the order of delivery."""
    hidden: list[Key]
    """Messages that the binary log has shown, and not the scan: they may not be visible yet."""
    taken_elsewhere: int
    """How many of those that were left to their proxies are not due any more."""


class OtherShares:
    """The due messages of other shares that are known, and when to scan for them. Times are
    monotonic."""

    def __init__(self, limits: Limits, position: ScanPosition | None = None) -> None:
        """`position`: that of its scans, for a group with a condition."""
        self._limits = limits
        self.position = position
        self.share: Share | None = None
        """The own share; None: all messages are this proxy's."""
        self.running = False
        """Whether a scan of the other shares has not come back yet."""
        self.limit = limits.others_scan_min
        """How many due messages the next scan reads."""
        self._waiting: dict[Key, _Waiting] = {}
        self._free = TimedKeys()
        """When this proxy may take each of them at the earliest."""
        self._scan_ns: int | None = None
        """When to scan for messages that are not known."""
        self._due_ns: int | None = None
        """When the next of them comes due (server's clock, which may be set meanwhile)."""
        self._requested = False
        self._begun_ns = self._read_ns = self._full_begun_ns = 0
        self._doubt = Doubt(limits)
        self._took_ns = 0
        """How long scans and claims took here lately."""

    def __contains__(self, key: Key) -> bool:
        """Whether a message belongs to another share."""
        return self.share is not None and self.share.turn(key) != 0

    @property
    def known(self) -> int:
        """How many due messages are left to their own proxies at present."""
        return len(self._waiting)

    @property
    def grace_ns(self) -> int:
        """How long messages are left to the next proxy. A slow server slows its proxies equally."""
        return max(self._limits.share_grace_ns, min(3 * self._took_ns, self._limits.share_grace_max_ns))

    def note_duration(self, took_ns: int, now: Instant) -> None:
        """A scan or a claim of this proxy took so long."""
        if took_ns > self.grace_ns:
            self._doubt.begin(now)
        self._took_ns = max(took_ns, self._took_ns * 3 // 4)

    # The messages that were read ahead.

    def was_read(self, now: Instant) -> None:
        """A scan of the own share has come back."""
        self._doubt.end(now)

    def claim_size_max(self, most: int, now: Instant, claims_under_way: int, locked: int) -> int:
        """How many of `most` messages that were read ahead may be claimed now. `locked`: how many messages
        were missed before."""
        if self.share is None or not most:
            return most
        bound = self._doubt.claim_size_max(now, self.grace_ns, claims_under_way, locked)
        return most if bound is None else min(most, bound)

    def judge_claim(self, now: Instant, started_ns: int, missed: int, taken: int) -> bool:
        """A claim that was started then missed so many messages that were read ahead, for the first time,
        and took so many. Returns whether they have to be read again."""
        return self.share is not None and self._doubt.judge_claim(now, started_ns, missed, taken)

    def set_share(self, share: Share | None, now: Instant) -> None:
        """This proxy's share is another one from now on."""
        self.share = share
        self._waiting.clear()
        self._free.clear()
        if self.position is not None:
            self.position.reset_to_front()
        self.limit = self._limits.others_scan_min
        self._scan_ns = now.mono_ns + self.grace_ns

    # Reports of messages of other shares.

    def request_scan(self) -> None:
        """Any message may have become due: scan after a grace."""
        self._requested = self.share is not None

    def expect(self, entry: Entry, now: Instant, *, logged: bool = False) -> None:
        """This message is reported as due, or as due later. Scan for it a grace after that.
        `logged`: the binary log shows it, so it may not be visible yet."""
        if self.position is not None:
            self.position.lower(entry)
        if entry.due_ns > now.server_ns:
            self.forget((entry.key,))
            self._due_ns = min(entry.due_ns, self._due_ns or entry.due_ns)
        elif len(self._waiting) < self._limits.window_max:
            self._wait(entry, now, logged=logged)
        else:
            self.scan_at(now.mono_ns + self.grace_ns)

    def forget(self, keys: Collection[Key]) -> None:
        """These messages are over."""
        if self._waiting:
            for key in keys:
                self._waiting.pop(key, None)
            self._free.discard(keys)

    def scan_at(self, at_ns: int) -> None:
        """Scan at this time at the latest."""
        if self.share is not None:
            self._scan_ns = min(at_ns, self._scan_ns or at_ns)

    def note_requests(self, now: Instant) -> None:
        """Set the time of the scan that was requested."""
        if self._requested:
            self._requested = False
            self.scan_at(now.mono_ns + self.grace_ns)

    # Scans of the other shares.

    def polled(self, begun_ns: int) -> None:
        """A poll that was started then has shown that no message is unacknowledged."""
        self._read_ns = max(self._read_ns, begun_ns)

    def scan_ns(self, now: Instant, poller_interval_ns: int | None, *, busy: bool) -> int | None:
        """When the next scan is due; None: not before a report. `poller_interval_ns`: the time between two of
        them at most (None: polls take their place). `busy`: many messages of the own share are ready."""
        if self.share is None or self.running:
            return None
        times = [] if poller_interval_ns is None else [self._read_ns + poller_interval_ns]
        times += [self._scan_ns] if self._scan_ns is not None else []
        times += [free_ns] if (free_ns := self._free.next_ns) is not None else []
        times += [now.until(self._due_ns) + self.grace_ns] if self._due_ns is not None else []
        pause_ns = max(self.grace_ns, self._limits.share_check_ns if busy else 0)
        return max(min(times), self._begun_ns + pause_ns) if times else None

    def start_scan(self, now: Instant, poller_interval_ns: int) -> tuple[Portion, Range | None]:
        """A scan starts. Returns the messages and the part of the table that it reads (None: all of it)."""
        assert self.share is not None
        self.running = True
        self._begun_ns = self._read_ns = now.mono_ns
        self._scan_ns = self._due_ns = None
        portion = Portion(self.share, others=True)
        if self.position is None:
            return portion, None
        if now.mono_ns >= self._full_begun_ns + poller_interval_ns:
            self.position.reset_to_front()
        if self.position.at_front:
            self._full_begun_ns = now.mono_ns
        return portion, Range(self.position.scan_from(now), now.server_ns + self._limits.ahead_ns)

    def scan_failed(self, now: Instant) -> None:
        """The scan under way failed."""
        self.running = False
        self.scan_at(now.mono_ns + self.grace_ns)

    def scan_answered(
        self, result: ScanResult, now: Instant, is_known: Callable[[Entry], bool], most: int, room: int, *, busy: bool
    ) -> OtherAnswer:
        """The scan under way came back. `is_known`: whether a message is in the read-ahead buffer
        already. `most`: how many messages the next scan may read. `room`: how many messages may be
        taken now."""
        self.running = False
        self.note_duration(now.mono_ns - self._begun_ns, now)
        if self.share is None:
            return OtherAnswer([], [], 0)
        shown = [entry for entry in result.entries if entry.due_ns <= now.server_ns]
        due = [entry for entry in shown if not is_known(entry)]
        before, self._waiting = self._waiting, {}
        found = {entry.key for entry in due}
        reach = place_of(shown[-1]) if shown and result.more else None
        absent = []
        for key, known in before.items():
            behind = reach is not None and place_of(known.entry) > reach
            if behind and len(self._waiting) < self._limits.window_max:
                self._waiting[key] = known  # This scan read fewer messages than an earlier one.
            elif key not in found:
                absent.append(key)
        self._free.discard(absent)
        overdue: list[Entry] = []
        for entry in due:
            waiting = before.get(entry.key)
            if waiting is None or waiting.entry.epoch != entry.epoch:
                self._wait(entry, now, logged=False)
                continue
            self._waiting[entry.key] = waiting._replace(entry=entry, logged=False)
            if self._free[entry.key] <= now.mono_ns:
                overdue.append(entry)
        # As many as others have taken since the last scan, they take until the next one: these are
        # left to them. This proxy then takes as many.
        progress = len(absent)
        late = [entry for entry in overdue[:progress] if self._waiting[entry.key].overdue_ns <= now.mono_ns]
        share = max(progress, self._limits.others_scan_min) if progress else len(overdue)
        free = (late + overdue[progress : progress + share])[:room]
        self.forget([entry.key for entry in free])
        for entry in overdue:
            if entry.key in self._waiting:
                self._free.set(entry.key, now.mono_ns + self.grace_ns)
        hidden = [] if result.more else [key for key in absent if before[key].logged]
        self._plan(result, now)
        if result.more and len(free) < room and (len(overdue) > progress or not busy):
            self.limit = min(2 * self.limit, most)
        else:
            self.limit = max(self.limit // 2, self._limits.others_scan_min)
        return OtherAnswer(free, hidden, progress)

    def _plan(self, result: ScanResult, now: Instant) -> None:
        """Set the time and the place of the next scan for messages that this one has not shown, or that are
        left to their proxies."""
        if self.position is not None:
            self.position.advance(result.reached, result.greatest_id, now)
            for waiting in self._waiting.values():
                self.position.lower(waiting.entry)
        if result.more:
            self.scan_at(now.mono_ns + self.grace_ns)
        later = [entry.due_ns for entry in result.entries if entry.due_ns > now.server_ns]
        if result.horizon_ns is not None:
            later.append(result.horizon_ns)
        if later:
            self._due_ns = min(*later, self._due_ns or later[0])

    def _wait(self, entry: Entry, now: Instant, *, logged: bool) -> None:
        """Leave a message to its own proxy for a while."""
        assert self.share is not None
        before = self._waiting.get(entry.key)
        if before is None or before.entry.epoch != entry.epoch:
            free_ns = now.mono_ns + self.share.turn(entry.key) * self.grace_ns
            self._waiting[entry.key] = _Waiting(entry, free_ns + 4 * self.grace_ns, logged)
            self._free.set(entry.key, free_ns)
