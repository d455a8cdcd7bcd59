"""The leases of one table: the deliveries in flight, with holder, deadline and state.

A lease begins when its claim is committed. It ends when the message is acknowledged, given back, or
found changed, or when the wait of its delivery is over. The database enforces leases (the row's
time_next is the end of the wait). This module is the proxy's own record of them, kept to compute
credit and to release the messages of a vanished client.

The states of a lease and the events that change them are in `TRANSITIONS`, and nowhere else.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.model import Claimed, Delivery, Entry, Group, Key, Return


class LeaseState(enum.Enum):
    """The state of a delivery. A lease is *suspect* while somebody else may have changed its
    message."""

    CLAIMED = "claimed"
    """The claim is committed; the row is not being read."""
    FETCHING = "being fetched"
    """The row is being read."""
    SENT = "sent"
    """The row was given to the client's connection."""
    SUSPECT = "suspect"
    """As claimed, but not fetched before a lookup shows the message unchanged."""
    SUSPECT_FETCHING = "suspect, being fetched"
    """As being fetched, but the row is not sent before a lookup shows the message unchanged."""
    SUSPECT_SENT = "suspect, sent"
    """As sent, but a lookup has to show the message unchanged."""
    ENDED = "ended"
    """The delivery is over."""

    __hash__ = object.__hash__
    """By identity: Enum's is a call of Python, four times a message."""


class LeaseEvent(enum.Enum):
    """An event in the life of a lease."""

    FETCH = "fetch"
    """A fetch of its row starts."""
    UNREAD = "unread"
    """The fetch came back, and its row is not sent now."""
    SEND = "send"
    """Its row was sent."""
    SUSPECT = "suspect"
    """Somebody may have changed its message."""
    VERIFY = "verify"
    """A lookup has shown the message unchanged."""
    END = "end"
    """The delivery is over, for whatever reason."""

    __hash__ = object.__hash__
    """As for the states."""


_S, _E = LeaseState, LeaseEvent

TRANSITIONS: Mapping[LeaseState, Mapping[LeaseEvent, LeaseState]] = MappingProxyType(
    {
        _S.CLAIMED: {_E.FETCH: _S.FETCHING, _E.SUSPECT: _S.SUSPECT, _E.END: _S.ENDED},
        _S.FETCHING: {
            _E.SEND: _S.SENT,
            _E.UNREAD: _S.CLAIMED,
            _E.SUSPECT: _S.SUSPECT_FETCHING,
            _E.END: _S.ENDED,
        },
        _S.SENT: {_E.SUSPECT: _S.SUSPECT_SENT, _E.END: _S.ENDED},
        _S.SUSPECT: {_E.SUSPECT: _S.SUSPECT, _E.VERIFY: _S.CLAIMED, _E.END: _S.ENDED},
        _S.SUSPECT_FETCHING: {
            _E.UNREAD: _S.SUSPECT,
            _E.SUSPECT: _S.SUSPECT_FETCHING,
            _E.VERIFY: _S.FETCHING,
            _E.END: _S.ENDED,
        },
        _S.SUSPECT_SENT: {_E.SUSPECT: _S.SUSPECT_SENT, _E.VERIFY: _S.SENT, _E.END: _S.ENDED},
        _S.ENDED: {},
    }
)
"""The state after an event, by the state before. An event that is not listed cannot occur."""

SENT_STATES = frozenset({LeaseState.SENT, LeaseState.SUSPECT_SENT})
SUSPECT_STATES = frozenset({LeaseState.SUSPECT, LeaseState.SUSPECT_FETCHING, LeaseState.SUSPECT_SENT})
FETCHING_STATES = frozenset({LeaseState.FETCHING, LeaseState.SUSPECT_FETCHING})
UNREAD_STATES = SUSPECT_STATES | {LeaseState.CLAIMED}


class InvalidTransition(Exception):
    """A state does not allow an event: a fault of the dispatcher. The text names both."""


@dataclass(slots=True, eq=False)
class Lease:
    """One committed claim. `holder` is the client connection, `subscriber` the stream that it was
    given to.

    `known_since` is the number of the moment at which the claim's answer was taken. A statement
    with a greater number shows the claim, or a later state of the row.
    """

    key: Key
    epoch: int
    deadline_ns: int
    """The end of the delivery's wait, on the server's clock."""
    priority: int
    due_ns: int
    known_since: int = 0
    group: Group | None = None
    """The message group, as in `Entry`."""
    locked: bool = False
    """Whether the client's transaction locks the message, and nothing was claimed: the row shows
    `epoch` and `deadline_ns`, which is its time_next and past. The lease has no end by the clock."""
    unscanned: bool = False
    """Whether its key follows from an INSERT, and what its row shows is not known: until it is locked."""
    holder: int | None = None
    subscriber: int | None = None
    state: LeaseState = LeaseState.CLAIMED
    sent_ns: int = 0
    """When the row was sent (monotonic). Only measured."""
    run: Sequence[Lease] | None = None
    """The leases that it is in order with (engine.dispatch.runs), itself among them; None: it is alone."""

    @classmethod
    def of(cls, claim: Claimed, known_since: int = 0) -> Lease:
        """The lease that a claim begins."""
        return cls(claim.key, claim.epoch, claim.deadline_ns, claim.priority, claim.due_ns, known_since, claim.group)

    @classmethod
    def locking(cls, entry: Entry, known_since: int, *, unscanned: bool = False) -> Lease:
        """The lease of a message that a stream FOR UPDATE is to lock."""
        due_ns = entry.due_ns
        lease = cls(entry.key, entry.epoch, due_ns, entry.priority, due_ns, known_since, entry.group, locked=True)
        lease.unscanned = unscanned
        return lease

    def row_read(self, entry: Entry) -> None:
        """The client's transaction has locked the message, and its row shows this."""
        assert self.locked, self
        self.epoch, self.priority = entry.epoch, entry.priority
        self.deadline_ns = self.due_ns = entry.due_ns
        self.unscanned = False

    def apply(self, event: LeaseEvent) -> None:
        """Change the state as in `TRANSITIONS`. Raises InvalidTransition for an event not listed
        there."""
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise InvalidTransition(f"message {self.key!r}: no {event.value!r} in state {self.state.value!r}")
        self.state = after

    @property
    def is_sent(self) -> bool:
        """Whether the row was passed to the client's connection."""
        return self.state in SENT_STATES

    @property
    def is_suspect(self) -> bool:
        """Whether somebody else may have changed the message."""
        return self.state in SUSPECT_STATES

    @property
    def awaits_lock(self) -> bool:
        """Whether a session is locking the message now: its answer decides."""
        return self.locked and self.state in FETCHING_STATES

    def is_behind(self, states: Collection[LeaseState]) -> bool:
        """Whether an earlier lease of its run has one of these states."""
        for lease in self.run or ():
            if lease is self:
                return False
            if lease.state in states:
                return True
        return False

    @property
    def delivery(self) -> Delivery:
        """The epoch and time_next of its row while the lease stands."""
        return Delivery(self.epoch, self.deadline_ns)

    @property
    def expired_entry(self) -> Entry:
        """The row as it is once the wait of this delivery is over."""
        return Entry(self.key, self.epoch, self.priority, self.deadline_ns, self.group)

    def failed(self, wait_ns: int) -> Return:
        """A locked message whose delivery has failed, to be counted and due after this wait."""
        return Return(self.key, self.epoch, self.deadline_ns, self.due_ns, False, self.priority, wait_ns)

    def returned(self) -> Return:
        """The values that guard its release. Call it before the lease ends."""
        return Return(self.key, self.epoch, self.deadline_ns, self.due_ns, self.is_sent, self.priority)


class Deadlines:
    """Leases by their deadlines. Those that one claim begins mostly have the same, so there are few
    different times."""

    def __init__(self) -> None:
        self._at: dict[int, dict[Key, Lease]] = {}
        self._times: list[int] = []
        """The keys of `_at` as a heap, with times that are not among them any more."""

    def __len__(self) -> int:
        """How many times are remembered."""
        return len(self._times)

    def add(self, lease: Lease) -> None:
        """Take a lease, until it is removed or taken."""
        leases = self._at.get(lease.deadline_ns)
        if leases is None:
            leases = self._at[lease.deadline_ns] = {}
            heapq.heappush(self._times, lease.deadline_ns)
        leases[lease.key] = lease

    def remove(self, lease: Lease) -> None:
        """Remove a lease, unless it was taken. Its deadline must not have changed since it was added."""
        leases = self._at.get(lease.deadline_ns)
        if leases is None:
            return
        leases.pop(lease.key, None)
        if not leases:
            del self._at[lease.deadline_ns]
            if len(self._times) > 2 * len(self._at) + 64:
                self._times = list(self._at)
                heapq.heapify(self._times)

    def take(self, server_ns: int, most: int) -> list[Lease]:
        """Remove and return leases whose deadlines have passed, in their order, so many at most."""
        over: list[Lease] = []
        while len(over) < most and self._times and self._times[0] <= server_ns:
            leases = self._at.get(self._times[0], {})
            over += [leases.pop(key) for key in tuple(islice(leases, most - len(over)))]
            if not leases:
                self._at.pop(heapq.heappop(self._times), None)
        return over

    @property
    def next_ns(self) -> int | None:
        """The next deadline; None: there is no lease."""
        while self._times and self._times[0] not in self._at:
            heapq.heappop(self._times)
        return self._times[0] if self._times else None


class Leases:
    """All leases of one table, by key, by holder, and by deadline."""

    def __init__(self, in_flight: GroupsInFlight) -> None:
        self._in_flight = in_flight
        self._by_key: dict[Key, Lease] = {}
        self._by_holder: dict[int, dict[Key, Lease]] = {}
        self._deadlines = Deadlines()
        self.locked = 0
        """How many messages are locked, or being locked, instead of claimed."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._by_key.values())

    def by_key(self) -> dict[Key, Lease]:
        """A copy of all leases, by their messages, the oldest first."""
        return self._by_key.copy()

    def get(self, key: Key) -> Lease | None:
        """The lease of this message; None if it has none here."""
        return self._by_key.get(key)

    def among(self, keys: Iterable[Key]) -> list[Lease]:
        """The leases of these messages, in their order. Most keys that the binary log reports have
        none."""
        by_key = self._by_key
        return [by_key[key] for key in keys if key in by_key]

    def outdated_among(self, entries: Iterable[Entry], scan_id: int) -> set[Key]:
        """The keys of those of these rows that a scan shows as they were before our claim of them, and not as
        they were changed since; and of those that a client here has locked, which look due all the time."""
        leased = self._by_key.get
        return {
            entry.key
            for entry in entries
            if (lease := leased(entry.key)) is not None
            and (lease.locked or (entry.epoch < lease.epoch and scan_id < lease.known_since))
        }

    def add_lease(self, lease: Lease) -> None:
        """Begin a lease; there must be none of that key."""
        assert lease.key not in self._by_key, lease
        self._by_key[lease.key] = lease
        self.locked += lease.locked
        if lease.group is not None:
            self._in_flight.begin(lease.group)
        if not lease.locked:
            self._deadlines.add(lease)

    def assign(self, lease: Lease, holder: int, subscriber: int) -> None:
        """Give a lease to a stream of a connection."""
        lease.holder, lease.subscriber = holder, subscriber
        self._by_holder.setdefault(holder, {})[lease.key] = lease

    def end(self, lease: Lease) -> None:
        """End a lease. Raises InvalidTransition if it has ended already."""
        lease.apply(LeaseEvent.END)
        del self._by_key[lease.key]
        if lease.locked:
            self.locked -= 1
        else:
            self._deadlines.remove(lease)
        if lease.group is not None:
            self._in_flight.end(lease.group)
        if lease.holder is not None:
            held = self._by_holder[lease.holder]
            del held[lease.key]
            if not held:
                del self._by_holder[lease.holder]

    def held_by(self, holder: int) -> list[Lease]:
        """The leases of a client connection, oldest first."""
        return list(self._by_holder.get(holder, {}).values())

    def locked_by(self, holder: int) -> list[Lease]:
        """The leases whose messages a client connection has locked."""
        return [lease for lease in self.held_by(holder) if lease.locked and lease.is_sent]

    def confirm(self, lease: Lease, deadline_ns: int) -> None:
        """A lookup has shown that this lease stands, until this deadline. The lease moves to the
        end of the order of iteration, so that the others are looked up before it."""
        self._by_key[lease.key] = self._by_key.pop(lease.key)
        if lease.deadline_ns != deadline_ns and not lease.locked:
            self._deadlines.remove(lease)
            lease.deadline_ns = deadline_ns
            self._deadlines.add(lease)

    def expired(self, server_ns: int, most: int) -> list[Lease]:
        """Leases whose deadlines have passed by the server's clock, so many at most. The caller ends
        them. Each is returned once."""
        return self._deadlines.take(server_ns, most)

    @property
    def next_deadline_ns(self) -> int | None:
        """When the next lease expires (server's clock); None: there is none."""
        return self._deadlines.next_ns
