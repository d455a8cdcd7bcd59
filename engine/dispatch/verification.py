"""Lease verification: what others may have done to messages that are in flight, until a lookup has
shown it.

A lease is the proxy's own account of a claim. The row in the database is the truth, and others
write to it too. The proxy hears of that in many ways, and none is proof: an ACK or NACK whose
transaction may have been rolled back, a statement whose ids are not known, the server's log, a
stream that has run out of credit though its messages should be acknowledged long since. All of them
make leases *suspect* here. A *lookup* reads all suspect messages at once, and decides: the lease
stands (perhaps with more time than was known), or it is over.

Two reports may be older than what they are about, and then say nothing:

- The log is read with delay and shows times before our claim. It is believed only after it has
  shown the claim itself. An acknowledgement that it shows before makes the lease suspect like any
  other report.
- A lookup may have been begun before the report came, or about an earlier lease of the same
  message. So a message that is reported again meanwhile stays suspect, and each lookup knows which
  lease it is about.

Messages that nobody here holds are looked up too: another proxy's, given back through this one, are
ours to find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from engine.dispatch.backoff import ExponentialBackoff
from engine.dispatch.effects import Effect, Lookup
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease, LeaseEvent, Leases
from engine.dispatch.limits import Limits
from engine.model import Entry, Key


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a lookup under way is about: the lease at the time when it was begun, and whether its
    holder may have been given more time."""

    lease: Lease | None
    extended: bool


class LeaseVerification:
    """The suspect messages of one table, and the lookup under way."""

    def __init__(self, leases: Leases, limits: Limits) -> None:
        self._leases = leases
        self._limits = limits
        self._suspects: dict[Key, bool] = {}
        """Messages to look up; whether their holders may have been given more time."""
        self._all = False
        """All leases are to be looked up."""
        self._all_extended = False
        self._asked: dict[Key, _Asked] = {}
        self._shown: set[Lease] = set()
        """Leases whose claims the log has shown: what it shows of them from then on is younger."""
        self._pause = ExponentialBackoff(limits.lookup_pause_min_ns, limits.lookup_pause_max_ns)

    @property
    def has_suspects(self) -> bool:
        """Whether there is anything to look up."""
        return bool(self._suspects) or self._all

    @property
    def under_way(self) -> bool:
        """Whether a lookup has not come back yet."""
        return bool(self._asked)

    @property
    def pause_until_ns(self) -> int:
        """Until when nothing is looked up, since so far it was in vain (monotonic)."""
        return self._pause.until_ns

    # Reports.

    def end_pause(self) -> None:
        """There is reason to look: at once, however often it was in vain."""
        self._pause.reset()

    def suspect(self, lease: Lease, *, extended: bool = False) -> None:
        """Somebody may have changed this message; its row is not sent before that is known.
        `extended`: or given its holder more time."""
        lease.apply(LeaseEvent.SUSPECT)
        self._note(lease.key, extended=extended)
        self._pause.reset()

    def suspect_any(self, *, extended: bool) -> None:
        """Somebody may have changed any message, but too many are in flight to hold them all back.
        `extended`: or given its holder more time."""
        self._all = True
        self._all_extended |= extended
        self._pause.reset()

    def suspect_keys(self, keys: Iterable[Key], *, extended: bool, unleased: bool) -> bool:
        """Somebody may have changed these messages, ours or, as far as there is room and
        `unleased` messages are of interest, others'; returns whether all are going to be looked
        up."""
        all_of_them = True
        for key in keys:
            if lease := self._leases.get(key):
                lease.apply(LeaseEvent.SUSPECT)
                self._note(key, extended=extended)
            elif unleased and len(self._suspects) < self._limits.suspects_max:
                self._note(key, extended=False)
            else:
                all_of_them = False
        self._pause.reset()
        return all_of_them

    def request_lookup(self, keys: Iterable[Key]) -> None:
        """Look these messages up, which nobody here holds, when the pause is over."""
        for key in keys:
            if len(self._suspects) < self._limits.suspects_max:
                self._note(key, extended=False)

    def lease_logged(self, lease: Lease, entry: Entry) -> None:
        """The log shows a message that is in flight: as claimed, as it was before, or changed by
        somebody else."""
        if (entry.epoch, entry.due_ns) == (lease.epoch, lease.deadline_ns):
            self._shown.add(lease)
        elif lease in self._shown or entry.epoch >= lease.epoch:
            self.suspect(lease)

    def end_logged(self, key: Key) -> bool:
        """The log shows that a message is over; returns whether that is certain."""
        lease = self._leases.get(key)
        if lease is None or lease in self._shown:
            return True
        self.suspect(lease)
        return False

    def outcome_known(self, keys: Iterable[Key]) -> None:
        """What became of these is known for certain."""
        if self._suspects:
            for key in keys:
                self._suspects.pop(key, None)

    def lease_ended(self, lease: Lease) -> None:
        """A lease is over, for whatever reason."""
        self._shown.discard(lease)

    # Looking up.

    def start_lookup(self, now: Instant, starved: Callable[[], bool]) -> list[Effect]:
        """Look up what is suspect; or, if nothing is and somebody is `starved` of acknowledgements,
        what was sent."""
        if self._asked or now.mono_ns < self._pause.until_ns:
            return []
        if self._all:
            for lease in self._leases:
                self._note(lease.key, extended=self._all_extended)
            self._all = self._all_extended = False
        elif not self._suspects and starved():
            sent = (lease.key for lease in self._leases if lease.is_sent)
            self._suspects.update((key, False) for key in islice(sent, self._limits.lookup_max))
        keys = tuple(islice(self._suspects, self._limits.lookup_max))
        self._asked = {key: _Asked(self._leases.get(key), self._suspects.pop(key)) for key in keys}
        return [Lookup(keys)] if keys else []

    def lookup_answered(
        self, now: Instant, found: Mapping[Key, Entry], decided_ns: int
    ) -> list[tuple[Lease | None, Entry | None]]:
        """A lookup came back: the leases that are over, with the rows that the messages have
        become, and the rows of messages that nobody here holds. Those leases that stand have their
        time from it. `decided_ns` is the server's time of the last decisions."""
        answers, self._asked = self._asked, {}
        changed: list[tuple[Lease | None, Entry | None]] = []
        over = 0
        for key, asked in answers.items():
            lease, entry = self._leases.get(key), found.get(key)
            if lease is None:
                if entry is not None:
                    changed.append((None, entry))
            elif lease is not asked.lease:
                pass  # The row was deleted, and came again: this may be older than our claim.
            elif entry is not None and self._stands(lease, asked, entry, decided_ns):
                self._leases.confirm(lease, entry.due_ns)
            else:
                over += 1
                changed.append((lease, entry))
        if over:
            self._pause.reset()
        else:
            self._pause.lengthen(now.mono_ns)
        return changed

    def lookup_failed(self, now: Instant) -> None:
        """The lookup could not be made; what was suspect still is."""
        later, self._suspects = self._suspects, {key: asked.extended for key, asked in self._asked.items()}
        self._asked = {}
        for key, extended in later.items():
            self._note(key, extended=extended)
        self._pause.lengthen(now.mono_ns)

    def _note(self, key: Key, *, extended: bool) -> None:
        self._suspects[key] = extended or self._suspects.get(key, False)

    def _stands(self, lease: Lease, asked: _Asked, entry: Entry, decided_ns: int) -> bool:
        """Whether a row shows the delivery that is known, perhaps with more time than is known."""
        if entry.epoch != lease.epoch:
            return False
        again = self._all or lease.key in self._suspects  # Then this answer may be older than the reason to look.
        extended = asked.extended or self._all_extended or self._suspects.get(lease.key, False)
        if again and asked.extended:
            self._note(lease.key, extended=True)
        if entry.due_ns != lease.deadline_ns and not (extended and entry.due_ns > decided_ns):
            return False
        if lease.is_suspect and not again:
            lease.apply(LeaseEvent.VERIFY)
        return True
