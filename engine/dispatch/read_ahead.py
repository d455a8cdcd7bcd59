"""The read-ahead buffer: message keys read ahead of need, without row data.

A scan of the whole index (`replace_with`) replaces the buffer; one that began where the last had
ended adds to it (`extend_with`). An entry is *ready* when it is due on the server's clock, *later*
until then. A row that a claim missed although it looked due (somebody has it locked, or another
proxy was faster) waits a little longer each time before it is tried again, on the monotonic clock,
so that a consumer's long transaction costs a few attempts and not a busy loop.

The buffer is only a hint: what it says is checked again by the claim, in the database. So stale
entries cost a wasted key and never a wrong delivery.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.dispatch.instant import Instant
from engine.model import Entry, Key, ScanResult

RETRY_MIN_NS = 10_000_000
RETRY_MAX_NS = 1_000_000_000
"""A missed row is tried again after 10 ms, doubling up to a second: by then its lock's owner has
committed, or is slow."""


@dataclass(frozen=True, slots=True)
class _Missed:
    retry_ns: int
    pause_ns: int


class ReadAhead:
    """Keys of one table, in the order of delivery: lower priority, then earlier due, then id."""

    def __init__(self) -> None:
        self._ready: dict[Key, Entry] = {}
        self._ready_heap: list[tuple[int, int, Key, int]] = []
        self._later: dict[Key, Entry] = {}
        self._due_heap: list[tuple[int, Key, int]] = []
        """By the server's time at which they come due."""
        self._retry_heap: list[tuple[int, Key, int]] = []
        """Due ones that were missed, by the monotonic time at which they are tried again."""
        self._missed: dict[Key, _Missed] = {}
        self.more = False
        """Due rows beyond the buffer exist."""
        self.horizon_ns: int | None = None
        """Rows that come due from then on (by the server's clock) may be missing from the
        buffer."""

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    @property
    def ready(self) -> int:
        """How many entries can be claimed now."""
        return len(self._ready)

    @property
    def missed_count(self) -> int:
        """How many rows are left alone for a moment."""
        return len(self._missed)

    def next_ns(self, now: Instant) -> int | None:
        """The monotonic time at which the buffer can offer more than now: an entry comes due or is
        tried again, or the horizon is reached."""
        for heap in (self._due_heap, self._retry_heap):
            while heap and heap[0][1] not in self._later:
                heapq.heappop(heap)
        times = [now.until(self._due_heap[0][0])] if self._due_heap else []
        times += [self._retry_heap[0][0]] if self._retry_heap else []
        if self.horizon_ns is not None:
            times.append(now.until(self.horizon_ns))
        return min(times, default=None)

    def replace_with(self, result: ScanResult, now: Instant, unwanted: Callable[[Entry], bool]) -> None:
        """Take a scan's result in place of everything known, without the entries that are
        `unwanted`."""
        self._ready, self._ready_heap, self._later = {}, [], {}
        self._due_heap, self._retry_heap = [], []
        missed, self._missed = self._missed, {}
        for entry in result.entries:
            if not unwanted(entry):
                if entry.key in missed:
                    self._missed[entry.key] = missed[entry.key]
                self._add(entry, now)
        self.more, self.horizon_ns = result.more, result.horizon_ns

    def extend_with(self, result: ScanResult, now: Instant, unwanted: Callable[[Entry], bool]) -> None:
        """Take a scan's result beside what is known."""
        for entry in result.entries:
            if not unwanted(entry):
                self.put(entry, now)
        self.more, self.horizon_ns = result.more, result.horizon_ns

    def put(self, entry: Entry, now: Instant) -> None:
        """One entry as it is now."""
        self.drop(entry.key)
        self._add(entry, now)

    def head(self) -> Entry | None:
        """The entry that goes first."""
        while self._ready_heap:
            _, due_ns, key, epoch = self._ready_heap[0]
            entry = self._ready.get(key)
            if entry is not None and (entry.epoch, entry.due_ns) == (epoch, due_ns):
                return entry
            heapq.heappop(self._ready_heap)
        return None

    def promote_due(self, now: Instant) -> None:
        """Make ready what has come due, and what may be tried again."""
        while self._due_heap and self._due_heap[0][0] <= now.server_ns:
            self._promote(*heapq.heappop(self._due_heap)[1:], now)
        while self._retry_heap and self._retry_heap[0][0] <= now.mono_ns:
            self._promote(*heapq.heappop(self._retry_heap)[1:], now)

    def knows(self, entry: Entry) -> bool:
        """Whether the buffer has this message as the entry shows it, or as it became later."""
        known = self._ready.get(entry.key) or self._later.get(entry.key)
        if known is None:
            return False
        return known.epoch > entry.epoch or (known.epoch, known.due_ns) == (entry.epoch, entry.due_ns)

    def add_scheduled(self, entry: Entry, most: int) -> None:
        """Take a message that is not due yet from elsewhere than a scan; with `most` of them, leave
        it to a scan."""
        self.forget((entry.key,))
        if self.horizon_ns is not None and self.horizon_ns <= entry.due_ns:
            return
        if len(self._due_heap) >= most:
            self.horizon_ns = entry.due_ns
            return
        self._later[entry.key] = entry
        heapq.heappush(self._due_heap, (entry.due_ns, entry.key, entry.epoch))

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

    def forget_misses(self, keys: Iterable[Key]) -> None:
        """These could be claimed: whoever had them has let go."""
        if self._missed:
            for key in keys:
                self._missed.pop(key, None)

    def add_missed(self, entries: Iterable[Entry], now: Instant, *, keep: bool = False) -> int:
        """These could not be claimed. Returns the monotonic time at which to scan for them. `keep`:
        they are tried again without a scan that shows them."""
        retry_ns = now.mono_ns + RETRY_MAX_NS
        for entry in entries:
            before = self._missed.get(entry.key)
            pause_ns = min(2 * before.pause_ns, RETRY_MAX_NS) if before else RETRY_MIN_NS
            self._missed[entry.key] = _Missed(now.mono_ns + pause_ns, pause_ns)
            retry_ns = min(retry_ns, now.mono_ns + pause_ns)
            if keep:
                self._add(entry, now)
        return retry_ns

    def _promote(self, key: Key, epoch: int, now: Instant) -> None:
        entry = self._later.get(key)
        if entry is not None and entry.epoch == epoch:
            del self._later[key]
            self._add(entry, now)  # It may have been put off since, or have to wait for its retry.

    def _add(self, entry: Entry, now: Instant) -> None:
        missed = self._missed.get(entry.key)
        if entry.due_ns > now.server_ns:
            self._later[entry.key] = entry
            heapq.heappush(self._due_heap, (entry.due_ns, entry.key, entry.epoch))
        elif missed is not None and missed.retry_ns > now.mono_ns:
            self._later[entry.key] = entry
            heapq.heappush(self._retry_heap, (missed.retry_ns, entry.key, entry.epoch))
        else:
            self._ready[entry.key] = entry
            heapq.heappush(self._ready_heap, (entry.priority, entry.due_ns, entry.key, entry.epoch))
