"""The window: message keys read ahead of need, without row data.

One look at the index (`scanned`) replaces the whole window; one that began where the last had ended adds to it
(`joined`). An entry is *ready* when it is due, *later* until then; a row that a claim missed although it looked due
(somebody has it locked, or another proxy was faster) waits a little longer each time before it is tried again, so
that a consumer's long transaction costs a few attempts and not a busy loop. The window is only a hint: what it says is
checked again by the claim, in the database. So stale entries cost a wasted key and never a wrong delivery.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.model import Entry, Key, ScanResult

RETRY_MIN_NS = 10_000_000
RETRY_MAX_NS = 1_000_000_000
"""A missed row is tried again after 10 ms, doubling up to a second: by then its lock's owner has committed, or is
slow."""


@dataclass(frozen=True, slots=True)
class _Missed:
    retry_ns: int
    pause_ns: int


class Window:
    """Keys of one table, in the order of delivery: lower priority, then earlier due, then id."""

    def __init__(self) -> None:
        self._ready: dict[Key, Entry] = {}
        self._ready_heap: list[tuple[int, int, Key, int]] = []
        self._later: dict[Key, Entry] = {}
        self._later_heap: list[tuple[int, Key, int]] = []
        self._missed: dict[Key, _Missed] = {}
        self.more = False
        """Due rows beyond the window exist."""
        self.horizon_ns: int | None = None
        """Rows due from then on may be missing from the window."""

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    @property
    def ready(self) -> int:
        """How many entries can be claimed now."""
        return len(self._ready)

    @property
    def missed(self) -> int:
        """How many rows are being left alone for a moment."""
        return len(self._missed)

    @property
    def next_ns(self) -> int | None:
        """When the window can offer more than now: the next entry becomes due, or the horizon is reached."""
        while self._later_heap and self._later_heap[0][1] not in self._later:
            heapq.heappop(self._later_heap)
        times = [self._later_heap[0][0]] if self._later_heap else []
        if self.horizon_ns is not None:
            times.append(self.horizon_ns)
        return min(times, default=None)

    def scanned(self, result: ScanResult, now_ns: int, unwanted: Callable[[Entry], bool]) -> None:
        """Take a scan's result in place of everything known, without the entries that are `unwanted`."""
        self._ready, self._ready_heap, self._later, self._later_heap = {}, [], {}, []
        missed, self._missed = self._missed, {}
        for entry in result.entries:
            if not unwanted(entry):
                if entry.key in missed:
                    self._missed[entry.key] = missed[entry.key]
                self._add(entry, now_ns)
        self.more, self.horizon_ns = result.more, result.horizon_ns

    def joined(self, result: ScanResult, now_ns: int, unwanted: Callable[[Entry], bool]) -> None:
        """Take a scan's result beside what is known."""
        for entry in result.entries:
            if not unwanted(entry):
                self.put(entry, now_ns)
        self.more, self.horizon_ns = result.more, result.horizon_ns

    def put(self, entry: Entry, now_ns: int) -> None:
        """One entry as it is now."""
        self._ready.pop(entry.key, None)
        self._later.pop(entry.key, None)
        self._add(entry, now_ns)

    def head(self) -> Entry | None:
        """The entry that goes first."""
        while self._ready_heap:
            _, due_ns, key, epoch = self._ready_heap[0]
            entry = self._ready.get(key)
            if entry is not None and (entry.epoch, entry.due_ns) == (epoch, due_ns):
                return entry
            heapq.heappop(self._ready_heap)
        return None

    def promote(self, now_ns: int) -> None:
        """Make ready what has come due."""
        while self._later_heap and self._later_heap[0][0] <= now_ns:
            _, key, epoch = heapq.heappop(self._later_heap)
            entry = self._later.get(key)
            if entry is not None and entry.epoch == epoch and entry.due_ns <= now_ns:  # Else it was put off since.
                del self._later[key]
                self._add_ready(entry)

    def knows(self, entry: Entry) -> bool:
        """Whether the window has this message as the entry shows it, or as it became later."""
        known = self._ready.get(entry.key) or self._later.get(entry.key)
        if known is None:
            return False
        return known.epoch > entry.epoch or (known.epoch, known.due_ns) == (entry.epoch, entry.due_ns)

    def await_due(self, entry: Entry, most: int) -> None:
        """Take a message that is not due yet from elsewhere than a scan; with `most` of them, leave it to a scan."""
        self.forget((entry.key,))
        if self.horizon_ns is not None and self.horizon_ns <= entry.due_ns:
            return
        if len(self._later_heap) >= most:
            self.horizon_ns = entry.due_ns
            return
        self._later[entry.key] = entry
        heapq.heappush(self._later_heap, (entry.due_ns, entry.key, entry.epoch))

    def take(self, count: int) -> list[Entry]:
        """Remove and return the first `count` ready entries (fewer when there are fewer)."""
        taken: list[Entry] = []
        while len(taken) < count and (entry := self.head()) is not None:
            heapq.heappop(self._ready_heap)
            del self._ready[entry.key]
            taken.append(entry)
        return taken

    def drop(self, key: Key) -> None:
        """Somebody else takes this one."""
        self._ready.pop(key, None)
        self._later.pop(key, None)

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop what is known to be over."""
        for key in keys:
            self._ready.pop(key, None)
            self._later.pop(key, None)
            self._missed.pop(key, None)

    def claimed(self, keys: Iterable[Key]) -> None:
        """These could be claimed: whoever had them has let go."""
        for key in keys:
            self._missed.pop(key, None)

    def miss(self, entries: Iterable[Entry], now_ns: int, *, keep: bool = False) -> int:
        """These could not be claimed; returns when to look again. `keep`: they are tried again without a scan
        that shows them."""
        retry_ns = now_ns + RETRY_MAX_NS
        for entry in entries:
            before = self._missed.get(entry.key)
            pause_ns = min(2 * before.pause_ns, RETRY_MAX_NS) if before else RETRY_MIN_NS
            self._missed[entry.key] = _Missed(now_ns + pause_ns, pause_ns)
            retry_ns = min(retry_ns, now_ns + pause_ns)
            if keep:
                self._add(entry, now_ns)
        return retry_ns

    def _add(self, entry: Entry, now_ns: int) -> None:
        missed = self._missed.get(entry.key)
        wake_ns = entry.due_ns if missed is None else max(entry.due_ns, missed.retry_ns)
        if wake_ns <= now_ns:
            self._add_ready(entry)
        else:
            self._later[entry.key] = entry
            heapq.heappush(self._later_heap, (wake_ns, entry.key, entry.epoch))

    def _add_ready(self, entry: Entry) -> None:
        self._ready[entry.key] = entry
        heapq.heappush(self._ready_heap, (entry.priority, entry.due_ns, entry.key, entry.epoch))
