"""The messages of other shares, for one filter group: when this proxy takes them nevertheless.

Several proxies with streams on a queue divide its messages into shares by a hash of the id
(`Share`). A proxy scans its own share and claims from it at once. A message of another share is left
to its own proxy for a *grace*. If a scan of the other shares shows it again after that, its proxy
has no demand, is slower, or is gone, and this proxy takes it. The proxy that comes next in the order
of numbers waits for one grace, the one after it for two, and so on: they do not all try at once.

Shares are a hint for efficiency. They may be wrong on any proxy, for ever: each due message is shown
by the scan of the own share or by that of the others, and any proxy may claim it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from engine.dispatch.doubt import Doubt
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.time_order import Place, place_of
from engine.model import Entry, Key, Portion, ScanResult, Share

OUTDATED_MIN = 64
"""With fewer outdated entries, the heap is not made anew."""


class _Waiting(NamedTuple):
    """A due message of another share: its epoch, when this proxy may take it at the earliest, and
    when at the latest (monotonic)."""

    epoch: int
    free_ns: int
    overdue_ns: int
    logged: bool
    """Whether the binary log has shown it, and no scan yet."""
    place: Place


@dataclass(frozen=True, slots=True)
class OtherAnswer:
    """What follows from a scan of the other shares."""

    free: list[Entry]
    """The messages that this proxy takes, in the order of delivery."""
    hidden: list[Key]
    """Messages that the binary log has shown, and not the scan: they may not be visible yet."""


class OtherShares:
    """The due messages of other shares that are known, and when to scan for them. Times are
    monotonic."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.share: Share | None = None
        """The own share; None: all messages are this proxy's."""
        self.running = False
        """Whether a scan of the other shares has not come back yet."""
        self.limit = limits.others_scan_min
        """How many due messages the next scan reads."""
        self._waiting: dict[Key, _Waiting] = {}
        self._free_heap: list[tuple[int, Key]] = []
        self._scan_ns: int | None = None
        """When to scan for messages that are not known."""
        self._due_ns: int | None = None
        """When the next of them comes due (server's clock, which may be set meanwhile)."""
        self._requested = False
        self._begun_ns = 0
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
        self._free_heap.clear()
        self.limit = self._limits.others_scan_min
        self._scan_ns = now.mono_ns + self.grace_ns

    # Reports of messages of other shares.

    def request_scan(self) -> None:
        """Any message may have become due: scan after a grace."""
        self._requested = self.share is not None

    def expect(self, entry: Entry, now: Instant, *, logged: bool = False) -> None:
        """This message is reported as due, or as due later. Scan for it a grace after that.
        `logged`: the binary log shows it, so it may not be visible yet."""
        if entry.due_ns > now.server_ns:
            self._waiting.pop(entry.key, None)
            self._due_ns = min(entry.due_ns, self._due_ns or entry.due_ns)
        elif len(self._waiting) < self._limits.window_max:
            self._wait(entry, now, logged=logged)
            self._drop_outdated()
        else:
            self.scan_at(now.mono_ns + self.grace_ns)

    def forget(self, keys: Iterable[Key]) -> None:
        """These messages are over."""
        if self._waiting:
            for key in keys:
                self._waiting.pop(key, None)

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

    def scan_ns(self, now: Instant, poller_interval_ns: int, *, busy: bool) -> int | None:
        """When the next scan is due; None: without a share. `busy`: many messages of the own share
        are ready."""
        if self.share is None or self.running:
            return None
        while self._free_heap:
            free_ns, key = self._free_heap[0]
            waiting = self._waiting.get(key)
            if waiting is not None and waiting.free_ns == free_ns:
                break
            heapq.heappop(self._free_heap)
        times = [self._begun_ns + poller_interval_ns]
        times += [self._scan_ns] if self._scan_ns is not None else []
        times += [self._free_heap[0][0]] if self._free_heap else []
        times += [now.until(self._due_ns) + self.grace_ns] if self._due_ns is not None else []
        pause_ns = max(self.grace_ns, self._limits.share_check_ns if busy else 0)
        return max(min(times), self._begun_ns + pause_ns)

    def start_scan(self, now: Instant) -> Portion:
        """A scan starts. Returns what it reads."""
        assert self.share is not None
        self.running = True
        self._begun_ns = now.mono_ns
        self._scan_ns = self._due_ns = None
        return Portion(self.share, others=True)

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
            return OtherAnswer([], [])
        shown = [entry for entry in result.entries if entry.due_ns <= now.server_ns]
        due = [entry for entry in shown if not is_known(entry)]
        before, self._waiting = self._waiting, {}
        found = {entry.key for entry in due}
        reach = place_of(shown[-1]) if shown and result.more else None
        absent = []
        for key, known in before.items():
            if reach is not None and known.place > reach and len(self._waiting) < self._limits.window_max:
                self._waiting[key] = known  # This scan read fewer messages than an earlier one.
            elif key not in found:
                absent.append(key)
        overdue: list[Entry] = []
        for entry in due:
            waiting = before.get(entry.key)
            if waiting is None or waiting.epoch != entry.epoch:
                self._wait(entry, now, logged=False)
                continue
            self._waiting[entry.key] = waiting._replace(logged=False)
            if waiting.free_ns <= now.mono_ns:
                overdue.append(entry)
        # As many as others have taken since the last scan, they take until the next one: these are
        # left to them. This proxy then takes as many.
        progress = len(absent)
        late = [entry for entry in overdue[:progress] if self._waiting[entry.key].overdue_ns <= now.mono_ns]
        share = max(progress, self._limits.others_scan_min) if progress else len(overdue)
        free = (late + overdue[progress : progress + share])[:room]
        for entry in free:
            del self._waiting[entry.key]
        for entry in overdue:
            if (waiting := self._waiting.get(entry.key)) is not None:
                self._set(entry.key, waiting._replace(free_ns=now.mono_ns + self.grace_ns))
        hidden = [] if result.more else [key for key in absent if before[key].logged]
        self._drop_outdated()
        self._plan(result, now)
        if result.more and len(free) < room and (len(overdue) > progress or not busy):
            self.limit = min(2 * self.limit, most)
        else:
            self.limit = max(self.limit // 2, self._limits.others_scan_min)
        return OtherAnswer(free, hidden)

    def _plan(self, result: ScanResult, now: Instant) -> None:
        """Set the time of the next scan for messages that this one has not shown."""
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
        if before is None or before.epoch != entry.epoch:
            patience_ns = self.share.turn(entry.key) * self.grace_ns
            overdue_ns = now.mono_ns + patience_ns + 4 * self.grace_ns
            waiting = _Waiting(entry.epoch, now.mono_ns + patience_ns, overdue_ns, logged, place_of(entry))
            self._set(entry.key, waiting)

    def _set(self, key: Key, waiting: _Waiting) -> None:
        self._waiting[key] = waiting
        heapq.heappush(self._free_heap, (waiting.free_ns, key))

    def _drop_outdated(self) -> None:
        """Make the heap anew if most of it is outdated: a message that no scan reaches stays at its front."""
        if len(self._free_heap) > 2 * len(self._waiting) + OUTDATED_MIN:
            self._free_heap = [(waiting.free_ns, key) for key, waiting in self._waiting.items()]
            heapq.heapify(self._free_heap)
