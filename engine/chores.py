"""What is to be done for a table whoever streams: claims given back, dead messages buried, old ones purged.

Each chore is done for many messages at a time and by one statement at a time; what comes up meanwhile waits for the
next. None needs an answer to be right: what was lost on the way is found in the table again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, islice

from engine.effects import Bury, Effect, Purge, Release
from engine.model import Entry, Key, Policy, Return, Wanted
from engine.pacing import Limits, Pause


class Returns:
    """Claims to give back: those waiting, and those being given back now."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.claim_max
        self._waiting: list[Return] = []
        self._under_way: tuple[Return, ...] = ()
        self._pause = Pause(limits.failure_pause_min_ns, limits.failure_pause_max_ns)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    @property
    def under_way(self) -> tuple[Return, ...]:
        """What is being given back now."""
        return self._under_way

    @property
    def at_ns(self) -> int | None:
        """When to go on."""
        return self._pause.until_ns if self._waiting else None

    def add(self, claim: Return) -> None:
        """Give this claim back."""
        self._waiting.append(claim)

    def pass_time(self, now_ns: int) -> None:
        """Claims whose time is over need not be given back."""
        if self._waiting:
            self._waiting = [each for each in self._waiting if each.deadline_ns > now_ns]

    def begin(self, now_ns: int) -> list[Effect]:
        """Give back what waits."""
        if self._under_way or not self._waiting or now_ns < self._pause.until_ns:
            return []
        self._under_way = tuple(self._waiting[: self._most])
        del self._waiting[: self._most]
        return [Release(self._under_way)]

    def done(self) -> tuple[Return, ...]:
        """They are given back; returns them."""
        done, self._under_way = self._under_way, ()
        self._pause.reset()
        return done

    def failed(self, now_ns: int) -> tuple[Return, ...]:
        """Giving back failed, or its answer was lost; it is guarded, so it is tried again while it matters."""
        failed, self._under_way = self._under_way, ()
        self._waiting += failed
        self._pause.lengthen(now_ns)
        return failed


class Burials:
    """Dead messages: those found, and those being moved away."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: dict[Key, Entry] = {}
        self._under_way: dict[Key, Entry] = {}

    def __iter__(self) -> Iterator[Key]:
        return chain(self._waiting, self._under_way)

    @property
    def waiting(self) -> int:
        """How many were found and not begun with."""
        return len(self._waiting)

    @property
    def under_way(self) -> bool:
        """Whether messages are being moved now."""
        return bool(self._under_way)

    def add(self, entry: Entry) -> None:
        """This message is dead."""
        self._waiting[entry.key] = entry

    def begin(self) -> list[Effect]:
        """Bury those that wait."""
        if self._under_way or not self._waiting:
            return []
        dead = list(islice(self._waiting.values(), self._limits.claim_max))
        for entry in dead:
            del self._waiting[entry.key]
        self._under_way = {entry.key: entry for entry in dead}
        retry_ns = self._limits.bury_retry_ns
        return [Bury(tuple(Wanted(entry.key, entry.epoch, retry_ns) for entry in dead))]

    def done(self, moved: Collection[Key]) -> list[Entry]:
        """These were moved away; returns the others, which are locked by somebody, changed, or left alone for a
        while."""
        under_way, self._under_way = self._under_way, {}
        return [entry for entry in under_way.values() if entry.key not in moved]


class Purges:
    """Old acknowledged messages, deleted from time to time, some at a time."""

    def __init__(self, limits: Limits, now_ns: int) -> None:
        self._limits = limits
        self._at_ns = now_ns
        self.under_way = False

    @property
    def at_ns(self) -> int | None:
        """When to begin again."""
        return None if self.under_way else self._at_ns

    def begin(self, now_ns: int, policy: Policy) -> list[Effect]:
        """Purge when it is time."""
        if self.under_way or now_ns < self._at_ns:
            return []
        self.under_way = True
        return [Purge(policy.purge_after_ns, self._limits.purge_rows)]

    def done(self, now_ns: int, policy: Policy, count: int) -> None:
        """So many were deleted; a full batch means that there are more."""
        self.under_way = False
        self._at_ns = now_ns if count >= self._limits.purge_rows else now_ns + self._pause_ns(policy)

    def reconfigure(self, now_ns: int, policy: Policy) -> None:
        """The table's comment changed."""
        self._at_ns = min(self._at_ns, now_ns + self._pause_ns(policy))

    def _pause_ns(self, policy: Policy) -> int:
        tenth = policy.purge_after_ns // 10
        return min(max(tenth, self._limits.purge_pause_min_ns), self._limits.purge_pause_max_ns)
