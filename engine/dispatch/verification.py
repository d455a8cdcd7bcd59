"""Lease verification: what others may have done to messages in flight, until a lookup shows it.

A lease is the proxy's own record of a claim. The row in the database is the truth, and others write
to it too. Several reports show that a message may have changed, and none is proof: an ACK or NACK
whose transaction may have been rolled back, a statement whose ids are not known, the binary log, a
stream without credit whose messages should have been acknowledged long ago. Each report makes
leases *suspect*. A *lookup* reads the suspect messages and decides: the lease stands (perhaps with
a later deadline), or it is over.

Two kinds of report may be older than the lease, and are ignored then:

- The binary log is read with delay and also shows the time before our claim, and not the claim
itself. A change is younger than the claim if its row showed the claim before it was changed. An
acknowledgement of which that is not known makes the lease suspect.
- A lookup may have started before the report came, or for an earlier lease of the same
message. A message that is reported again meanwhile therefore stays suspect, and each lookup records
its lease.

Messages without a lease here are looked up too: one that another proxy claimed and that was
given back through this proxy is ready for this proxy's streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final

from engine.dispatch.backoff import ExponentialBackoff
from engine.dispatch.effects import Effect, Lookup
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease, LeaseEvent, Leases
from engine.dispatch.limits import Limits
from engine.model import Entry, Key

NOTHING_BEFORE: Final[Mapping[Key, tuple[int, int]]] = MappingProxyType({})
"""No row's state before its change is known."""


@dataclass(frozen=True, slots=True)
class _InLookup:
    """The lease that a lookup under way is for, as of its start, and whether its holder may have
    been given more time."""

    lease: Lease | None
    extended: bool


class LeaseVerification:
    """The suspect messages of one table, and the lookup under way."""

    def __init__(self, leases: Leases, limits: Limits) -> None:
        self._leases = leases
        self._limits = limits
        self._suspects: dict[Key, bool] = {}
        """Messages to look up, and whether their holders may have been given more time."""
        self._all = False
        """All leases are suspect."""
        self._all_extended = False
        self._sweep: dict[Key, Lease] = {}
        """What is left to look up of all leases, the next one last: there may be a hundred thousand."""
        self._sweep_extended = False
        self._in_lookup: dict[Key, _InLookup] = {}
        self._shown: set[Lease] = set()
        """Leases whose claims the binary log has shown: its later reports of them are younger
        than the claim."""
        self._pause = ExponentialBackoff(limits.lookup_pause_min_ns, limits.lookup_pause_max_ns)

    @property
    def has_suspects(self) -> bool:
        """Whether a message waits for a lookup."""
        return bool(self._suspects or self._sweep) or self._all

    @property
    def under_way(self) -> bool:
        """Whether a lookup has not come back yet."""
        return bool(self._in_lookup)

    def looks_now(self, now: Instant) -> bool:
        """Whether a lookup is under way, or begins at once."""
        return self.under_way or (self.has_suspects and now.mono_ns >= self._pause.until_ns)

    @property
    def pause_until_ns(self) -> int:
        """Until when no lookup starts, because the last ones found no change (monotonic)."""
        return self._pause.until_ns

    # Reports.

    def end_pause(self) -> None:
        """Allow a lookup at once: there is a new reason for it."""
        self._pause.reset()

    def suspect(self, lease: Lease, *, extended: bool = False) -> None:
        """This message may have been changed. Its row is not sent before a lookup. `extended`: its
        holder may also have been given more time."""
        lease.apply(LeaseEvent.SUSPECT)
        self._note(lease.key, extended=extended)
        self._pause.reset()

    def suspect_any(self, *, extended: bool) -> None:
        """Any message may have been changed. All leases are looked up, but their rows are still
        sent: too many are in flight to hold them all back. `extended`: as for `suspect`."""
        self._all = True
        self._all_extended |= extended
        self._pause.reset()

    def suspect_keys(self, keys: Iterable[Key], *, extended: bool, unleased: bool) -> bool:
        """These messages may have been changed. Those with a lease are looked up; with
        `unleased` also the others, as far as there is room. Returns whether all of them will be
        looked up."""
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
        """Look up these messages, which have no lease, when the pause is over. Those for which
        there is no room are left out."""
        for key in keys:
            if len(self._suspects) < self._limits.suspects_max:
                self._note(key, extended=False)

    def lease_logged(self, lease: Lease, entry: Entry, before: tuple[int, int] | None = None) -> None:
        """The binary log shows a message in flight: as we claimed it, as it was before, or as
        somebody else changed it. `before`: its epoch and time_next before the change (None: it was
        inserted, or that is not known)."""
        if (entry.epoch, entry.due_ns) == (lease.epoch, lease.deadline_ns):
            self._shown.add(lease)
        elif lease in self._shown or max(entry.epoch, before[0] if before else 0) >= lease.epoch:
            self.suspect(lease)

    def ends_logged(self, keys: Sequence[Key], before: Mapping[Key, tuple[int, int]]) -> Sequence[Key]:
        """The binary log shows that messages were acknowledged or deleted, and for some their epoch
        and time_next before. Returns those for which that is certain. The leases of the others
        are suspect."""
        uncertain = [lease for lease in self._leases.among(keys) if not self._is_over(lease, before.get(lease.key))]
        for lease in uncertain:
            self.suspect(lease)
        left = {lease.key for lease in uncertain}
        return [key for key in keys if key not in left] if left else keys

    def _is_over(self, lease: Lease, before: tuple[int, int] | None) -> bool:
        """Whether the end of a delivery that showed `before` is the end of this lease. A lock does not
        change the row."""
        return lease in self._shown or (before == (lease.epoch, lease.deadline_ns) and not lease.locked)

    def outcome_known(self, keys: Iterable[Key]) -> None:
        """The outcome of these messages is certain: they need no lookup."""
        if self._suspects:
            for key in keys:
                self._suspects.pop(key, None)

    def leases_ended(self, leases: Iterable[Lease]) -> None:
        """These leases have ended."""
        if self._shown:
            self._shown.difference_update(leases)

    # Looking up.

    def start_lookup(self, now: Instant, starved: Callable[[], bool]) -> list[Effect]:
        """Look up the suspect messages. If there are none and `starved()` (a stream waits for
        acknowledgements), look up the messages that were sent."""
        if self._in_lookup or now.mono_ns < self._pause.until_ns:
            return []
        if self._all and not self._sweep:
            self._sweep, self._sweep_extended = self._leases.by_key(), self._all_extended
            self._all = self._all_extended = False
        elif not self._suspects and not self._sweep and starved():
            sent = (lease.key for lease in self._leases if lease.is_sent and not lease.locked)
            self._suspects.update((key, False) for key in islice(sent, self._limits.lookup_max))
        suspects, sweep = self._suspects, self._sweep
        while sweep and len(suspects) < self._limits.lookup_max:
            key, _ = sweep.popitem()
            suspects[key] = self._sweep_extended or suspects.get(key, False)
        keys = tuple(islice(suspects, self._limits.lookup_max))
        if sweep and self._sweep_extended:
            suspects.update((key, True) for key in keys if key in sweep)
        self._in_lookup = {key: _InLookup(self._leases.get(key), suspects.pop(key)) for key in keys}
        return [Lookup(keys)] if keys else []

    def lookup_answered(
        self, now: Instant, found: Mapping[Key, Entry], decided_ns: int
    ) -> list[tuple[Lease | None, Entry | None]]:
        """A lookup came back with these rows. `decided_ns`: the server's time of the last
        decisions.

        Returns each lease that is over with its row (None: none was found), and (None, row) for
        each message without a lease. Leases that stand get their deadlines from the rows.
        """
        answers, self._in_lookup = self._in_lookup, {}
        changed: list[tuple[Lease | None, Entry | None]] = []
        over = 0
        for key, looked_up in answers.items():
            lease, entry = self._leases.get(key), found.get(key)
            if lease is None:
                if entry is not None:
                    changed.append((None, entry))
            elif lease is not looked_up.lease:
                pass  # The row was deleted and inserted again: the answer may be older than our claim.
            elif entry is not None and self._stands(lease, looked_up, entry, decided_ns):
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
        """The lookup failed: its messages stay suspect and are the first of the next one."""
        later, self._suspects = self._suspects, {key: looked_up.extended for key, looked_up in self._in_lookup.items()}
        self._in_lookup = {}
        for key, extended in later.items():
            self._note(key, extended=extended)
        self._pause.lengthen(now.mono_ns)

    def _note(self, key: Key, *, extended: bool) -> None:
        self._suspects[key] = extended or self._suspects.get(key, False)

    def _stands(self, lease: Lease, looked_up: _InLookup, entry: Entry, decided_ns: int) -> bool:
        """Whether a row shows the delivery of a lease, perhaps with a later deadline."""
        if entry.epoch != lease.epoch:
            return False
        again = self._all or lease.key in self._suspects  # This answer may be older than the new report.
        extended = looked_up.extended or self._all_extended or self._suspects.get(lease.key, False)
        if again and looked_up.extended:
            if self._all:
                self._all_extended = True
            else:
                self._note(lease.key, extended=True)
        if entry.due_ns != lease.deadline_ns and not (extended and entry.due_ns > decided_ns):
            return False
        if lease.is_suspect and not again:
            lease.apply(LeaseEvent.VERIFY)
        return True
