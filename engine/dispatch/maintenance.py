"""Maintenance of a table, with or without streams: claims are released, dead messages are moved to
the dead-letter table, old acknowledged messages are purged.

Each kind runs one statement at a time for many messages; others wait for the next statement.
None of them depends on its answer: if one is lost, the messages are found in the table again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import islice

from engine.dispatch.backoff import ExponentialBackoff
from engine.dispatch.effects import Effect, MoveDeadLetters, Purge, Release
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.timed_keys import TimedKeys
from engine.model import Entry, Key, Return, Wanted
from engine.queue_table import Policy


class Releases:
    """The claims to release: those waiting, and those under way."""

    def __init__(self, limits: Limits) -> None:
        self._batch_max = limits.claim_max
        self._waiting: deque[Return] = deque()
        self._under_way: dict[Key, Return] = {}
        self._failed: set[Key] = set()
        self._pause = ExponentialBackoff(limits.failure_pause_min_ns, limits.failure_pause_max_ns)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    @property
    def unfinished(self) -> list[Return]:
        """All of them."""
        return [*self._under_way.values(), *self._waiting]

    def is_under_way(self, key: Key) -> bool:
        """Whether a release of this message is under way."""
        return key in self._under_way

    def counts_failure(self, key: Key) -> bool:
        """Whether a failed delivery of this locked message is still to be counted in its row."""
        return key in self._failed

    @property
    def failures(self) -> int:
        """How many failed deliveries are still to be counted. Their rows show due messages."""
        return len(self._failed)

    def failures_among(self, keys: Collection[Key]) -> set[Key]:
        """Those of these messages of which `counts_failure` is true."""
        return self._failed.intersection(keys) if self._failed else set()

    @property
    def release_ns(self) -> int | None:
        """When the next release may start (monotonic); None: no claim waits."""
        return self._pause.until_ns if self._waiting else None

    def add_release(self, claim: Return) -> None:
        """Release this claim with one of the next statements."""
        self._waiting.append(claim)
        if claim.failed_wait_ns is not None:
            self._failed.add(claim.key)

    def start_release(self, now: Instant) -> list[Effect]:
        """Release the waiting claims, except those whose deadlines are past: their messages are
        due by themselves. Failed deliveries are counted in any case."""
        if self._under_way or not self._waiting or now.mono_ns < self._pause.until_ns:
            return []
        batch = self._under_way
        again: list[Return] = []
        while self._waiting and len(batch) < self._batch_max:
            claim = self._waiting.popleft()
            stands = claim.failed_wait_ns is not None or claim.deadline_ns > now.server_ns
            if stands and batch.setdefault(claim.key, claim) is not claim:
                again.append(claim)
        self._waiting.extendleft(reversed(again))
        return [Release(tuple(batch.values()))] if batch else []

    def release_answered(self) -> list[Return]:
        """The release under way was carried out. Returns its claims."""
        self._pause.reset()
        answered = self._take_under_way()
        self._failed.difference_update(claim.key for claim in answered)
        return answered

    def release_failed(self, now: Instant) -> list[Return]:
        """The release under way failed, or its answer was lost. Returns its claims. They are
        released again: the statement changes only rows that still show the claim."""
        failed = self._take_under_way()
        self._waiting += failed
        self._pause.lengthen(now.mono_ns)
        return failed

    def _take_under_way(self) -> list[Return]:
        under_way, self._under_way = self._under_way, {}
        return list(under_way.values())


class DeadLetters:
    """The dead messages: those due, those due later, and those being moved."""

    def __init__(self, policy: Policy, limits: Limits) -> None:
        self._policy = policy
        self._limits = limits
        self._due: dict[Key, Entry] = {}
        self._later: dict[Key, Entry] = {}
        self._later_times = TimedKeys()
        self._under_way: dict[Key, Entry] = {}
        self._pause = ExponentialBackoff(limits.dead_letter_pause_min_ns, limits.dead_letter_pause_max_ns)

    def __contains__(self, key: Key) -> bool:
        """Whether a message is due to be moved, or being moved."""
        return key in self._due or key in self._under_way

    def among(self, keys: Collection[Key]) -> set[Key]:
        """Those of these messages that are due to be moved, or being moved."""
        if not (self._due or self._under_way):
            return set()
        return self._due.keys() & keys | self._under_way.keys() & keys

    @property
    def configured(self) -> bool:
        """Whether the table has a limit of deliveries and a dead-letter table."""
        return self._policy.max_attempts > 0 and self._policy.dead_letter is not None

    @property
    def in_use(self) -> bool:
        """Whether messages may be dead, or are to be moved."""
        return self.configured or bool(self._due or self._under_way)

    @property
    def scanned_for(self) -> bool:
        """Whether to scan for dead messages even without streams."""
        return self.configured and not self._policy.paused

    def is_dead(self, entry: Entry) -> bool:
        """Whether a message has been delivered `max_attempts` times."""
        return self.configured and self._policy.max_attempts <= entry.epoch

    def set_policy(self, policy: Policy) -> None:
        """The table's comment changed."""
        self._policy = policy

    @property
    def due_count(self) -> int:
        """How many dead messages are due and not being moved."""
        return len(self._due)

    @property
    def move_ns(self) -> int | None:
        """When the next move may start (monotonic); None: no dead message is due."""
        return self._pause.until_ns if self._due else None

    @property
    def under_way(self) -> bool:
        """Whether messages are being moved now."""
        return bool(self._under_way)

    @property
    def next_due_ns(self) -> int | None:
        """When the next dead message comes due, on the server's clock."""
        return self._later_times.next_ns

    def wake_times(self, now: Instant) -> list[int | None]:
        """When a dead message comes due, or the next move may start (monotonic)."""
        due_ns = self.next_due_ns
        return [None if due_ns is None else now.until(due_ns), self.move_ns]

    def add_dead(self, entry: Entry, now: Instant) -> None:
        """Move this dead message when it is due. Beyond `dead_later_max` it is left to a scan."""
        if entry.due_ns <= now.server_ns:
            self._forget_later((entry.key,))
            self._due[entry.key] = entry
        elif entry.key in self._later or len(self._later) < self._limits.dead_later_max:
            self._later[entry.key] = entry
            self._later_times.set(entry.key, entry.due_ns)

    def add_if_dead(self, entry: Entry, now: Instant) -> bool:
        """Move this message when it is due, if it is dead. Returns whether it is dead."""
        dead = self.is_dead(entry)
        if dead:
            self.add_dead(entry, now)
        return dead

    def forget(self, keys: Collection[Key]) -> None:
        """These messages are acknowledged, deleted, or not dead any more: do not move them."""
        if self._due:
            for key in keys:
                self._due.pop(key, None)
        if self._later:
            self._forget_later(keys)

    def start_move(self, now: Instant) -> list[Effect]:
        """Move the dead messages that are due."""
        while (due_ns := self.next_due_ns) is not None and due_ns <= now.server_ns:
            self.add_dead(self._later[self._later_times.pop()], now)
        if self._under_way or not self._due or now.mono_ns < self._pause.until_ns:
            return []
        dead = list(islice(self._due.values(), self._limits.claim_max))
        for entry in dead:
            del self._due[entry.key]
        self._under_way = {entry.key: entry for entry in dead}
        retry_ns = self._limits.dead_letter_retry_ns
        return [MoveDeadLetters(tuple(Wanted(entry.key, entry.epoch, retry_ns) for entry in dead))]

    def move_answered(self, now: Instant, moved: Collection[Key]) -> list[Entry]:
        """The move under way moved these messages. Returns the others: locked by somebody,
        changed, or impossible to move for a while."""
        under_way, self._under_way = self._under_way, {}
        others = [entry for entry in under_way.values() if entry.key not in moved]
        if others:
            self._pause.lengthen(now.mono_ns)
        else:
            self._pause.reset()
        return others

    def _forget_later(self, keys: Collection[Key]) -> None:
        for key in keys:
            self._later.pop(key, None)
        self._later_times.discard(keys)


class Purges:
    """The purges of old acknowledged messages, a limited number of rows each."""

    def __init__(self, policy: Policy, limits: Limits, now: Instant) -> None:
        self._policy = policy
        self._limits = limits
        self._purge_ns = now.mono_ns
        self.under_way = False

    @property
    def purge_ns(self) -> int | None:
        """When the next purge may start (monotonic); None: one is under way."""
        return None if self.under_way else self._purge_ns

    def start_purge(self, now: Instant) -> list[Effect]:
        """Start a purge if it is time for one."""
        if self.under_way or now.mono_ns < self._purge_ns:
            return []
        self.under_way = True
        return [Purge(self._policy.purge_after_ns, self._limits.purge_rows)]

    def purge_answered(self, now: Instant, count: int, *, more: bool) -> None:
        """The purge under way deleted so many rows. If there are more, and it has deleted any, the next one
        starts at once."""
        self.under_way = False
        self._purge_ns = now.mono_ns if more and count else now.mono_ns + self._pause_ns()

    def set_policy(self, policy: Policy, now: Instant) -> None:
        """The table's comment has changed."""
        self._policy = policy
        self._purge_ns = min(self._purge_ns, now.mono_ns + self._pause_ns())

    def _pause_ns(self) -> int:
        tenth = self._policy.purge_after_ns // 10
        return min(max(tenth, self._limits.purge_pause_min_ns), self._limits.purge_pause_max_ns)
