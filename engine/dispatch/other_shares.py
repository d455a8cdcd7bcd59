"""The messages of other shares, for one filter group: when this proxy takes them nevertheless.

Several proxies with streams on a queue divide its messages into shares by a hash of the id
(`Share`). A proxy claims messages of its own share at once. It leaves one of another share to its own
proxy for a *grace*, and as long as it has older ones of its own. If a scan shows the message again
after that, its proxy has no demand, is slower, or is gone, and this proxy takes it. The proxy that
comes next in the order of numbers waits for one grace, the one after it for two, and so on: they do
not all try at once. As many as were taken from a share between two scans stay, the first ones: its
proxy takes them next.

A scan reads few messages of other shares, the first ones: usually their proxies take them before the
next scan. It reads more while most of them wait for too long. What lies behind them counts as waiting
for as long as this proxy has been further (`share_lag_ns`).

Shares are a hint for efficiency. They may be wrong on any proxy, for ever: each due message is read
as one of the own share or, sooner or later, as one of another, and any proxy may claim it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from engine.dispatch.doubt import Doubt
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.time_order import Place, place_of
from engine.dispatch.timed_keys import TimedKeys
from engine.model import Entry, Key, Share

FRONTS_A_LAG = 16
"""The place of the own front is noted so many times in `share_lag_ns`, at most."""

STAYS_MAX = 4
"""So many scans a message stays because others were taken from its share. Then it is one that its proxy does
not take."""


class _Waiting(NamedTuple):
    """A due message of another share."""

    entry: Entry
    free_ns: int
    """When this proxy may take it at the earliest (monotonic)."""
    logged: bool
    """Whether the binary log has shown it, and no scan yet."""
    stays: int = 0
    """How many scans it has stayed because others were taken from its share."""


@dataclass(frozen=True, slots=True)
class OtherAnswer:
    """What follows from a scan for the messages of other shares."""

    free: list[Entry]
    """Those that this proxy takes, in the order of delivery."""
    left: set[Key]
    """Those that it leaves to their proxies."""
    hidden: list[Key]
    """Those that the binary log has shown, and not the scan: they may not be visible yet."""
    taken_elsewhere: int
    """How many of those that were left to their proxies are not due any more."""


class OtherShares:
    """The due messages of other shares that are known. Times are monotonic."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.share: Share | None = None
        """The own share; None: all messages are this proxy's."""
        self._waiting: dict[Key, _Waiting] = {}
        self._checks = TimedKeys()
        """When to scan for each of them again."""
        self._due_ns: int | None = None
        """When the next of them comes due (server's clock, which may be set meanwhile)."""
        self._limit = limits.others_scan_min
        """How many due ones the next scan reads."""
        self._read_ns = 0
        """When a scan that reads them was started last."""
        self._unread = False
        """Whether some may be due that no scan has read."""
        self._last: Entry | None = None
        """The last one that the last scan has read, if it has not read all."""
        self._fronts: deque[tuple[int, Place]] = deque(maxlen=2 * FRONTS_A_LAG)
        """The places of the first ready messages of the own share, and when they were noted."""
        self._noted_ns = 0
        """When the last of them was."""
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
        """A scan has come back."""
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

    def set_share(self, share: Share | None) -> None:
        """This proxy's share is another one from now on."""
        self.share = share
        self._waiting.clear()
        self._checks.clear()
        self._fronts.clear()
        self._due_ns = self._last = None
        self._limit, self._read_ns, self._unread = self._limits.others_scan_min, 0, True

    # Reports of messages of other shares.

    def expect(self, entry: Entry, now: Instant, *, logged: bool = False) -> None:
        """This message is reported as due, or as due later. Scan for it a grace after that.
        `logged`: the binary log shows it, so it may not be visible yet."""
        if entry.due_ns > now.server_ns:
            self.forget((entry.key,))
            self._due_ns = min(entry.due_ns, self._due_ns or entry.due_ns)
        elif len(self._waiting) < self._limits.window_max:
            self._wait(entry, now, logged=logged)

    def forget(self, keys: Collection[Key]) -> None:
        """These messages are over."""
        if self._waiting:
            for key in keys:
                self._waiting.pop(key, None)
            self._checks.discard(keys)

    # Scans.

    def scan_ns(self, now: Instant, begun_ns: int, *, busy: bool) -> int | None:
        """When to scan for messages of other shares; None: not before a report. `begun_ns`: when the last scan
        was started. `busy`: messages of the own share are ready."""
        if self.share is None:
            return None
        times = [] if (check_ns := self._checks.next_ns) is None else [check_ns]
        times += [now.until(self._due_ns) + self.grace_ns] if self._due_ns is not None else []
        times += [self._read_ns + self.grace_ns] if self._unread else []
        pause_ns = max(self.grace_ns, self._limits.share_check_ns if busy else 0)
        return max(min(times), begun_ns + pause_ns) if times else None

    def scan_started(self, now: Instant, *, always: bool) -> int:
        """A scan of the own share starts. Returns how many due messages of the others it reads as well: none if the
        last one that did so was a moment ago, unless it reads them `always`."""
        if not always and now.mono_ns < self._read_ns + self.grace_ns:
            self._unread = True
            return 0
        self._read_ns, self._unread = now.mono_ns, False
        if self._due_ns is not None and self._due_ns <= now.server_ns:
            self._due_ns = None
        return self._limit

    def scan_failed(self) -> None:
        """The scan under way failed."""
        self._unread = True

    def unread_from(self) -> list[Entry]:
        """Messages that are left to their proxies, or behind which nothing was read: no scan begins behind one."""
        entries = [waiting.entry for waiting in self._waiting.values()]
        return entries if self._last is None else [*entries, self._last]

    def scan_answered(
        self,
        shown: Iterable[Entry],
        now: Instant,
        *,
        taken: Collection[Key] = (),
        reach: Place | None = None,
        front: Place | None = None,
        busy: bool,
        room: int,
    ) -> OtherAnswer:
        """A scan came back that shows these messages of other shares. `taken`: those of them that this proxy
        has. `reach`: the place of the last due one that it has read (None: it has read all that are due). `front`:
        that of the first ready message of the own share (None: none is ready, or it comes before no others by its
        place). `busy`: messages are ready. `room`: how many may be taken now."""
        others = [entry for entry in shown if entry.key not in taken]
        due = [entry for entry in others if not self._comes_due(entry, now)]
        before, self._waiting = self._waiting, {}
        absent = self._absent(before, {entry.key for entry in due}, taken, reach)
        self._checks.discard((*absent, *taken))
        if front is not None and now.mono_ns >= self._noted_ns + self._limits.share_lag_ns // FRONTS_A_LAG:
            self._noted_ns = now.mono_ns
            self._fronts.append((now.mono_ns, front))
        overdue = [entry for entry in due if self._is_overdue(entry, before.get(entry.key), front, now)]
        free = self._free_among(overdue, absent)[:room]
        self._last = due[-1] if due and reach is not None else None
        self._adapt_limit(front, more=not busy or 2 * len(overdue) >= len(due))
        self.forget([entry.key for entry in free])
        for entry in due:
            if (waiting := self._waiting.get(entry.key)) is not None and waiting.free_ns <= now.mono_ns:
                self._checks.set(entry.key, now.mono_ns + self.grace_ns)
        left = {entry.key for entry in others}.difference(entry.key for entry in free)
        self._unread = self._unread or reach is not None
        hidden = [] if reach is not None else [key for key in absent if before[key].logged]
        return OtherAnswer(free, left, hidden, len(absent))

    def _comes_due(self, entry: Entry, now: Instant) -> bool:
        """Whether this message is not due yet. Then there is a scan a grace after it is."""
        if entry.due_ns <= now.server_ns:
            return False
        self._due_ns = min(entry.due_ns, self._due_ns or entry.due_ns)
        return True

    def _absent(
        self, before: dict[Key, _Waiting], due: Collection[Key], taken: Collection[Key], reach: Place | None
    ) -> list[Key]:
        """Those that were left to their proxies, and that a scan would have shown and does not show. What it has
        not read goes on waiting."""
        absent = []
        for key, known in before.items():
            if key in due or key in taken:
                continue
            if reach is not None and place_of(known.entry) > reach and len(self._waiting) < self._limits.window_max:
                self._waiting[key] = known
            else:
                absent.append(key)
        return absent

    def _is_overdue(self, entry: Entry, waiting: _Waiting | None, front: Place | None, now: Instant) -> bool:
        """Note that a scan shows this message of another share. Returns whether its proxy has had its time."""
        if waiting is None or waiting.entry.epoch != entry.epoch:
            self._wait(entry, now, logged=False)
            return self._is_far_behind(entry, now)
        self._waiting[entry.key] = waiting._replace(entry=entry, logged=False)
        return waiting.free_ns <= now.mono_ns and (front is None or place_of(entry) < front)

    def _is_far_behind(self, entry: Entry, now: Instant) -> bool:
        """Whether this proxy has long passed the place of a message that the last scan did not read."""
        place, passed_ns = place_of(entry), now.mono_ns
        if self._last is None or place <= place_of(self._last):
            return False  # It has come since.
        for noted_ns, front in reversed(self._fronts):
            if front <= place:
                break
            passed_ns = noted_ns
        return now.mono_ns - passed_ns >= self._limits.share_lag_ns

    def _free_among(self, overdue: list[Entry], absent: Iterable[Key]) -> list[Entry]:
        """Those of these messages that this proxy takes. As many as were taken from a share, the first ones, are
        left to its proxy."""
        assert self.share is not None
        progress = Counter(map(self.share.turn, absent))
        free: list[Entry] = []
        for entry in overdue:
            waiting, turn = self._waiting[entry.key], self.share.turn(entry.key)
            if progress[turn] > 0 and waiting.stays < STAYS_MAX:
                progress[turn] -= 1
                self._waiting[entry.key] = waiting._replace(stays=waiting.stays + 1)
            else:
                free.append(entry)
        return free

    def _adapt_limit(self, front: Place | None, *, more: bool) -> None:
        """Read `more` next time: most of what was read waits for too long, or nothing else is to do. Read less if
        some come behind the first message of the own share, or if all were read."""
        if self._last is None or (front is not None and place_of(self._last) >= front):
            self._limit = max(self._limit // 2, self._limits.others_scan_min)
        elif more:
            self._limit = min(2 * self._limit, self._limits.window_max)

    def _wait(self, entry: Entry, now: Instant, *, logged: bool) -> None:
        """Leave a message to its own proxy for a while."""
        assert self.share is not None
        before = self._waiting.get(entry.key)
        if before is None or before.entry.epoch != entry.epoch:
            free_ns = now.mono_ns + self.share.turn(entry.key) * self.grace_ns
            self._waiting[entry.key] = _Waiting(entry, free_ns, logged)
            self._checks.set(entry.key, free_ns)
