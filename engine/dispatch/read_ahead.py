"""The read-ahead buffer: message keys that were scanned before they are needed, without row data.

A scan of the whole index (`replace_with`) replaces the buffer. A scan that began at a scan position
(`extend_with`) adds to it. An entry is *ready* when it is due on the server's clock, and *later*
until then. A claim may miss a row that looked due, because the row is locked or another proxy
claimed it first. Such a row is tried again after a pause (monotonic clock) that doubles each time.
A long transaction of a consumer therefore costs a few attempts, and not a busy loop.

Missed rows become ready again a claim's worth at a time. After a claim that misses rows, they pause
for the part of its duration that these took, if others are ready. So half of the time is left to the
others, however many rows are locked and however slow the server is.

In a queue with groups, the ready entries are in the order of turns (`Order`), and a scan that
shows that more is due leaves the entries that it did not reach: other scans have found these.

The buffer is only a hint: the claim checks each entry in the database. A stale entry costs a
wasted key and never a wrong delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import filterfalse, islice

from engine.dispatch.instant import Instant
from engine.dispatch.time_order import TimeOrder
from engine.dispatch.timed_keys import TimedKeys
from engine.dispatch.turns import AnyOrder
from engine.model import Entry, Group, Key, ScanResult

RETRY_MIN_NS = 10_000_000
RETRY_MAX_NS = 1_000_000_000
"""A missed row is tried again after 10 ms, then after twice as long each time, up to a second: by
then the lock's owner has committed, or is slow."""

MISSED_MIN = 64
"""So many misses are remembered, however old they are."""

OUTDATED_MIN = 64
"""With fewer outdated entries, the order of the ready ones is not made anew."""


@dataclass(frozen=True, slots=True)
class _Missed:
    retry_ns: int
    pause_ns: int


class ReadAhead:
    """Keys of one table, in the order of delivery: lower priority, then earlier due, then id; with
    groups, that of turns."""

    def __init__(self, order: AnyOrder | None = None) -> None:
        self.order = order
        """The order of turns; None: the queue has no groups."""
        self._ready: dict[Key, Entry] = {}
        self._by_time = TimeOrder()
        """The order of the ready entries without groups."""
        self._later: dict[Key, Entry] = {}
        self._scheduled = TimedKeys()
        """Those of them that are not due, with the times at which they come due (server's clock)."""
        self._retries = TimedKeys()
        """The others, which are due and were missed, with the times of the next attempts (monotonic)."""
        self._missed: dict[Key, _Missed] = {}
        self._missed_most = MISSED_MIN
        """With more of them, those that are not tried again are forgotten."""
        self._retrying: set[Key] = set()
        """Entries that were missed and taken again since: they are being claimed."""
        self._retries_most = 1
        """How many of them may be ready or being claimed: as many as the last claim tried."""
        self._retries_left = 1
        """How many more may become ready before a claim is answered."""
        self._retries_from_ns = 0
        """When the next of them may become ready (monotonic)."""
        self.more = False
        """Whether more rows are due than the buffer contains."""
        self.horizon_ns: int | None = None
        """Rows that come due from this time on may be missing in the buffer (server's clock);
        None: no row is missing."""

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    @property
    def ready(self) -> int:
        """How many entries may be claimed now. With groups that have a limit, an estimate: those of
        groups without a place are left out, and 0 is exact."""
        if self.order is None or not self.order.limited:
            return len(self._ready)
        return 0 if self.head() is None else max(1, len(self._ready) - self.order.parked)

    @property
    def due(self) -> int:
        """How many entries are due, those of groups without a place included."""
        return len(self._ready)

    @property
    def missed_count(self) -> int:
        """How many rows wait for another attempt after a miss."""
        return len(self._missed)

    def was_missed(self, key: Key) -> bool:
        """Whether a claim has missed this message, and it was not claimed since."""
        return key in self._missed

    def next_ns(self, now: Instant) -> int | None:
        """When an entry becomes ready, or the horizon is reached (monotonic); None: never."""
        due_ns = self._scheduled.next_ns
        times = [] if due_ns is None else [now.until(due_ns)]
        times += [self._next_retry_ns] if self._retries and self._may_retry else []
        if self.horizon_ns is not None:
            times.append(now.until(self.horizon_ns))
        return min(times, default=None)

    def replace_with(
        self,
        result: ScanResult,
        now: Instant,
        unwanted: Collection[Key],
        stays: Callable[[Entry], bool] | None = None,
    ) -> None:
        """Replace all entries by a scan's result, without the `unwanted` ones. `stays`: whether an entry that it
        does not show stays, because it was not read; None: none does."""
        entries = [entry for entry in result.entries if entry.key not in unwanted]
        if self._missed:
            self._keep_misses({entry.key for entry in result.entries}, now, all_read=stays is None)
        shown = {entry.key for entry in entries}
        for entries_before in (self._ready, self._later):
            hidden = [entry for entry in entries_before.values() if entry.key not in shown]
            for entry in hidden if stays is None else filterfalse(stays, hidden):
                self.drop(entry.key)
        self.put_all([entry for entry in entries if self._ready.get(entry.key) != entry], now)
        self.more, self.horizon_ns = result.more, result.horizon_ns

    def _keep_misses(self, shown: set[Key], now: Instant, *, all_read: bool) -> None:
        """Forget the misses of the messages that a scan does not show, as in `replace_with`."""
        recent_ns = now.mono_ns - RETRY_MAX_NS  # Others may have taken the older ones, and nothing reports that.
        self._missed = {
            key: attempt
            for key, attempt in self._missed.items()
            # Those that are being claimed, too: the claim may miss them again.
            if key in shown or (not all_read and (attempt.retry_ns > recent_ns or key in self._retrying))
        }
        self._retrying &= self._missed.keys()

    def extend_with(self, result: ScanResult, now: Instant, unwanted: Collection[Key], most: int) -> None:
        """Add a scan's result, without the `unwanted` ones. If `most` messages are there that are not due
        yet, the horizon is before the others."""
        self.more, self.horizon_ns = result.more, result.horizon_ns
        for entry in result.entries:
            if entry.key in unwanted or self._later.get(entry.key) == entry:
                continue
            if entry.due_ns > now.server_ns and len(self._scheduled) >= most:
                self.drop(entry.key)  # It was due when it was read last.
                self.horizon_ns = min(entry.due_ns, self.horizon_ns or entry.due_ns)
            else:
                self.put(entry, now)

    def put(self, entry: Entry, now: Instant) -> None:
        """Add an entry, or replace that of the same key."""
        self.drop(entry.key)
        self._add(entry, now)

    def put_all(self, entries: Sequence[Entry], now: Instant) -> None:
        """`put` for each of these entries. Takes the event loop 1 to 2 µs for each."""
        if 2 * len(entries) <= len(self._ready):
            for entry in entries:
                self.put(entry, now)
            return
        # They are so many that ordering all of them anew costs less.
        server_ns, missed = now.server_ns, self._missed
        at_once = {entry.key: entry for entry in entries if entry.due_ns <= server_ns and entry.key not in missed}
        if self._later or len(at_once) < len(entries):
            for entry in entries:
                self.drop(entry.key)
                if entry.key not in at_once:
                    self._add(entry, now)
        self._ready |= at_once
        self._order_ready()

    def set_order(self, order: AnyOrder | None) -> None:
        """The ready entries are in this order from now on."""
        self.order = order
        self._order_ready()

    def head(self) -> Entry | None:
        """The first ready entry in the order of delivery; None: no entry is ready."""
        if self.order is not None:
            return self.order.head(self._ready)
        return self._by_time.head(self._ready)

    def rank(self, entry: Entry) -> tuple[int, ...]:
        """What decides between this entry and those of other buffers, behind the priority and before the
        time."""
        return () if self.order is None else self.order.rank(entry.group)

    def requeue(self, groups: Iterable[Group | None]) -> None:
        """These message groups may be next earlier than before."""
        if self.order is not None:
            self.order.requeue(groups)

    def trim(self, priority: int, keep: int) -> list[Group]:
        """Leave `keep` ready messages of each message group at this priority, the first ones. Returns the
        groups that had more."""
        trimmed = self.order.trim(priority, keep) if self.order is not None else []
        for _, keys in trimmed:
            for key in keys:
                self._ready.pop(key, None)
        return [group for group, _ in trimmed]

    def can_order(self, entry: Entry) -> bool:
        """Whether the place of an entry in the order of delivery is known."""
        return self.order is None or entry.group is not None

    def promote_due(self, now: Instant) -> None:
        """Make the entries ready that have come due, or may be tried again."""
        while (due_ns := self._scheduled.next_ns) is not None and due_ns <= now.server_ns:
            self._promote(self._scheduled.pop(), now)
        if self._retries and self._next_retry_ns <= now.mono_ns:
            self._promote_missed(now)

    def knows(self, entry: Entry, before: tuple[int, int] | None = None) -> bool:
        """Whether the buffer contains this message in the same or a later state. `before`: the
        epoch and time_next that its row showed before it was changed to this."""
        known = self._ready.get(entry.key) or self._later.get(entry.key)
        return known is not None and known.is_at_least(entry, before)

    def add_scheduled(self, entry: Entry, most: int) -> None:
        """Add a message that is not due yet, and that no scan has shown. If `most` such messages
        are there, or twice so many in all, lower the horizon instead, so that a scan finds it. Those
        that are ready by now count, too: without a stream that takes them, they stay."""
        self.forget((entry.key,))
        if self.horizon_ns is not None and self.horizon_ns <= entry.due_ns:
            return
        if len(self._scheduled) >= most or len(self) >= 2 * most:
            self.horizon_ns = entry.due_ns
            return
        self._later[entry.key] = entry
        self._scheduled.set(entry.key, entry.due_ns)

    def take(self, count: int) -> list[Entry]:
        """Remove and return the first `count` ready entries (fewer when there are fewer)."""
        if self.order is None:
            taken = self._by_time.take(self._ready, count)
        else:
            taken = []
            while len(taken) < count and (entry := self.order.head(self._ready)) is not None:
                self.order.pop()
                del self._ready[entry.key]
                taken.append(entry)
        self._note_retries(taken)
        return taken

    def take_run(self, most: int) -> list[Entry]:
        """Remove and return the first ready entry, and those behind it in the strict order of its message
        group, `most` in all at most."""
        run = self.take(1)
        while run and len(run) < most and self.order is not None:
            entry = self.order.pop_behind(run[-1], self._ready)
            if entry is None:
                break
            del self._ready[entry.key]
            run.append(entry)
        self._note_retries(run)
        return run

    def upcoming(self, count: int) -> list[Key]:
        """Some of the messages that are ready, nearly always the next ones."""
        return list(islice(self._ready, count))

    def drop(self, key: Key) -> None:
        """Remove the entry of `key`, because it is claimed for another group or replaced. The
        record of its misses stays. Without effect if there is none."""
        self._ready.pop(key, None)
        if self._later.pop(key, None) is not None:
            self._scheduled.discard((key,))
            self._retries.discard((key,))

    def drop_all(self, entries: Iterable[Entry]) -> None:
        """`drop` for the keys of these entries."""
        for entry in entries:
            self.drop(entry.key)

    def forget(self, keys: Collection[Key]) -> None:
        """Remove these messages and the records of their misses: they are over."""
        for messages in (self._ready, self._later, self._missed):
            if messages:
                for key in keys:
                    messages.pop(key, None)
        self._scheduled.discard(keys)
        self._retries.discard(keys)
        self._retrying.difference_update(keys)

    def forget_all(self, unwanted: Callable[[Key], bool]) -> None:
        """`forget` for the `unwanted` messages."""
        self.forget([key for key in (*self._ready, *self._later) if unwanted(key)])

    def forget_misses(self, keys: Iterable[Key]) -> None:
        """Forget the misses of these messages: they could be claimed."""
        if self._missed:
            for key in keys:
                self._missed.pop(key, None)
                self._retrying.discard(key)

    def add_missed(
        self, entries: Iterable[Entry], now: Instant, *, keep: bool = False, at_ns: int | None = None
    ) -> int:
        """Note that a claim missed these entries. Returns when to scan for them (monotonic).
        `keep`: they stay in the buffer and are tried again without a scan. `at_ns`: when (monotonic); None:
        after a pause that doubles each time."""
        retry_ns = now.mono_ns + RETRY_MAX_NS if at_ns is None else at_ns
        for entry in entries:
            before = self._missed.get(entry.key)
            pause_ns = min(2 * before.pause_ns, RETRY_MAX_NS) if before else RETRY_MIN_NS
            self._missed[entry.key] = _Missed(at_ns or now.mono_ns + pause_ns, pause_ns)
            self._retrying.discard(entry.key)
            retry_ns = min(retry_ns, self._missed[entry.key].retry_ns)
            if keep:
                self._add(entry, now)
        if len(self._missed) > self._missed_most:
            self._forget_old_misses(now)
        return retry_ns

    def _forget_old_misses(self, now: Instant) -> None:
        """Forget the misses of messages that are not tried again: others have taken them, and no scan comes
        that shows it, as in a group without streams."""
        recent_ns = now.mono_ns - RETRY_MAX_NS
        tried_again = (self._later, self._ready, self._retrying)
        self._missed = {
            key: missed
            for key, missed in self._missed.items()
            if missed.retry_ns > recent_ns or any(key in waiting for waiting in tried_again)
        }
        self._missed_most = 2 * len(self._missed) + MISSED_MIN

    def claim_answered(self, now: Instant, tried: int, missed: int, took_ns: int) -> None:
        """A claim tried so many entries of the buffer, missed some of them, and took so long."""
        self._retries_most = self._retries_left = tried
        self._retries_from_ns = now.mono_ns + took_ns * missed // tried

    def _note_retries(self, taken: Iterable[Entry]) -> None:
        """These entries were taken. Those that were missed before are being tried again."""
        if self._missed:
            self._retrying.update(entry.key for entry in taken if entry.key in self._missed)

    @property
    def _next_retry_ns(self) -> int:
        """When the next entry that was missed may become ready (monotonic). If nothing else is ready, it
        does not pause for others: the claim that missed it may have hung for minutes."""
        retry_ns = self._retries.next_ns
        assert retry_ns is not None
        return retry_ns if self._has_retries_alone else max(retry_ns, self._retries_from_ns)

    @property
    def _may_retry(self) -> bool:
        """Whether an entry that was missed may become ready before the next claim is answered."""
        return self._has_retries_alone or self._retries_left > len(self._retrying)

    @property
    def _has_retries_alone(self) -> bool:
        """Whether nothing may be claimed, and no entry that was missed is being claimed. Due entries of
        groups without a place may be there."""
        return not self._retrying and not self.ready

    def _promote_missed(self, now: Instant) -> None:
        """Make entries ready that were missed, and may be tried again."""
        while (retry_ns := self._retries.next_ns) is not None and retry_ns <= now.mono_ns:
            if self._retries_left <= len(self._retrying):
                if not self._has_retries_alone:
                    break
                self._retries_left = self._retries_most
            key = self._retries.pop()
            self._promote(key, now)
            self._retries_left -= key in self._ready
        self._retries_from_ns = now.mono_ns + RETRY_MIN_NS

    def _promote(self, key: Key, now: Instant) -> None:
        self._add(self._later.pop(key), now, retries=True)  # It may wait for its next attempt.

    def _add(self, entry: Entry, now: Instant, *, retries: bool = False) -> None:
        """Add an entry. `retries`: one that was missed may be ready now."""
        missed = self._missed.get(entry.key)
        self._retrying.discard(entry.key)
        if entry.due_ns > now.server_ns:
            self._later[entry.key] = entry
            self._scheduled.set(entry.key, entry.due_ns)
        elif missed is not None and (missed.retry_ns > now.mono_ns or not retries):
            self._later[entry.key] = entry
            self._retries.set(entry.key, missed.retry_ns)
        else:
            self._ready[entry.key] = entry
            order = self._by_time if self.order is None else self.order
            if order.size > 2 * len(self._ready) + OUTDATED_MIN:
                self._order_ready()
            else:
                order.push(entry)

    def _order_ready(self) -> None:
        """Order the ready entries anew."""
        if self.order is not None:
            self._by_time.rebuild(())
            self.order.rebuild(self._ready.values())
        else:
            self._by_time.rebuild(self._ready.values())
