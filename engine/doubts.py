"""What somebody else may have done to messages that are out, until a lookup has shown it.

A lease is the proxy's own account of a claim; the row in the database is the truth, and others write to it too. They
are heard of in many ways, and none is proof: an ACK or NACK whose transaction may have been rolled back, a statement
whose ids are not known, the server's log, a stream that has run out of credit though its messages should be long
acknowledged. All of them make a *doubt* here. A *lookup* asks the database about all doubted messages at once, and
settles each: the lease stands (perhaps with more time than we knew), or it is over.

Two words may be older than what they are about, and then say nothing:

- the log, read with delay, tells of times before our claim. It is believed only after it has shown the claim itself
  (`Lease.logged`); an acknowledgement that it shows before is a doubt like any other.
- a lookup may have been asked before the doubt came up, or about an earlier lease of the same message; so a message
  that is doubted again meanwhile stays doubted, and each lookup knows what lease it is about.

Messages that nobody here has can be doubted too: another proxy's, given back through this one, are ours to find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from engine.effects import Effect, Lookup
from engine.leases import Lease, Leases
from engine.model import Entry, Key
from engine.pacing import Limits, Pause


class Doubts:
    """The doubted messages of one table, and the lookup under way."""

    def __init__(self, leases: Leases, limits: Limits) -> None:
        self._leases = leases
        self._limits = limits
        self._waiting: dict[Key, None] = {}
        self._asked: dict[Key, Lease | None] = {}
        """What the lookup under way is about, with the leases of the time when it was asked."""
        self._pause = Pause(limits.lookup_pause_min_ns, limits.lookup_pause_max_ns)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def under_way(self) -> bool:
        """Whether a lookup has not come back yet."""
        return bool(self._asked)

    @property
    def until_ns(self) -> int:
        """Until when nothing is looked up, since so far it was in vain."""
        return self._pause.until_ns

    # What is heard.

    def hasten(self) -> None:
        """There is reason to look: at once, however often it was in vain."""
        self._pause.reset()

    def about(self, lease: Lease) -> None:
        """Somebody may have changed this message; its row is not sent before it is known."""
        lease.doubted = True
        self._waiting[lease.key] = None
        self._pause.reset()

    def about_any(self, *, extended: bool) -> None:
        """Somebody may have changed any message, but too many are out to hold them all back.
        `extended`: or given its holder more time."""
        for lease in self._leases:
            self._waiting[lease.key] = None
            lease.extended |= extended
        self._pause.reset()

    def about_these(self, keys: Iterable[Key], *, extended: bool, strangers: bool) -> bool:
        """Somebody may have changed these messages, ours or, as far as there is room and `strangers` are of interest,
        others'; returns whether all are going to be looked up."""
        all_of_them = True
        for key in keys:
            if lease := self._leases.get(key):
                self._waiting[key] = None
                lease.extended |= extended
                lease.doubted = True
            elif strangers and len(self._waiting) < self._limits.doubted_max:
                self._waiting[key] = None
            else:
                all_of_them = False
        self._pause.reset()
        return all_of_them

    def logged(self, lease: Lease, entry: Entry) -> None:
        """The log shows a message that is out: as we claimed it, as it was before, or changed by somebody else."""
        if (entry.epoch, entry.due_ns) == (lease.epoch, lease.deadline_ns):
            lease.logged = True
        elif lease.logged or entry.epoch >= lease.epoch:
            self.about(lease)

    def logged_over(self, key: Key) -> bool:
        """The log shows that a message is over; returns whether that is certain."""
        lease = self._leases.get(key)
        if lease is None or lease.logged:
            return True
        self.about(lease)
        return False

    def settled(self, keys: Iterable[Key]) -> None:
        """What became of these is known for certain."""
        if self._waiting:
            for key in keys:
                self._waiting.pop(key, None)

    # Looking up.

    def begin(self, now_ns: int, starved: Callable[[], bool]) -> list[Effect]:
        """Look up what is doubted; or, if nothing is and somebody is `starved` of acknowledgements, what was sent."""
        if self._asked or now_ns < self._pause.until_ns:
            return []
        if not self._waiting and starved():
            sent = (each.key for each in self._leases if each.sent)
            self._waiting.update((key, None) for key in islice(sent, self._limits.lookup_max))
        keys = tuple(islice(self._waiting, self._limits.lookup_max))
        for key in keys:
            del self._waiting[key]
        self._asked = {key: self._leases.get(key) for key in keys}
        return [Lookup(keys)] if keys else []

    def answered(
        self, now_ns: int, found: Mapping[Key, Entry], decided_ns: int
    ) -> list[tuple[Lease | None, Entry | None]]:
        """A lookup came back: the leases that are over, with the rows that the messages have become, and the rows of
        messages that nobody here has. Those leases that stand have their time from it. `decided_ns` is the
        time of the last decisions."""
        asked, self._asked = self._asked, {}
        changed: list[tuple[Lease | None, Entry | None]] = []
        over = 0
        for key, asked_about in asked.items():
            lease, entry = self._leases.get(key), found.get(key)
            if lease is None:
                if entry is not None:
                    changed.append((None, entry))
            elif lease is not asked_about:
                pass  # The row was deleted, and came again: this may be older than our claim.
            elif entry is not None and self._stands(lease, entry, decided_ns):
                self._leases.postpone(lease, entry.due_ns)
            else:
                over += 1
                changed.append((lease, entry))
        if over:
            self._pause.reset()
        else:
            self._pause.lengthen(now_ns)
        return changed

    def failed(self, now_ns: int) -> None:
        """The lookup could not be made; what was doubted still is."""
        self._waiting = dict.fromkeys([*self._asked, *self._waiting])
        self._asked = {}
        self._pause.lengthen(now_ns)

    def _stands(self, lease: Lease, entry: Entry, decided_ns: int) -> bool:
        """Whether a row shows the delivery that we know of, perhaps with more time than we know of."""
        if entry.epoch != lease.epoch:
            return False
        again = lease.key in self._waiting  # Then this answer may be older than the reason to ask.
        extended = lease.extended
        lease.extended &= again
        if entry.due_ns != lease.deadline_ns and not (extended and entry.due_ns > decided_ns):
            return False
        lease.doubted &= again
        return True
