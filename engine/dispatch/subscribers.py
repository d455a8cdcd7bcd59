"""Subscribers and their credit: how many more messages each stream may be given, and which stream
is next.

Credit is the least of three bounds: the rows on their way to the client (two batches), the
deliveries that it has not acknowledged (PREFETCH), and the rest of its LIMIT. Of those with credit,
a claimed message goes to the subscriber with the least load (`Subscriber.load`), and among equals to
the one that has waited longest. The size of the credit does not decide. If it did, a poll with LIMIT
1 would get nothing beside an endless stream that takes each message as soon as a limit of the queue
allows it.

`Subscribers` contains the streams of one filter group. Each change of one subscriber updates the
values that the dispatcher reads at every event: the sum of the credit, the next subscriber, the
subscribers to fetch for, the finished ones. An event therefore costs the same with 10 and with
5,000 subscribers. Subscribers are changed only by the methods of this class.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.dispatch.leases import Lease, LeaseEvent
from engine.model import ANYTHING, Key, RowFormat, Selection

BATCHES_UNSENT_MAX = 2
"""Batches on their way to one subscriber: one being sent, one being fetched behind it."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The parameters of a STREAM statement.

    `first_wait_ns` None: the stream is endless. Otherwise it is bounded: it ends when no message is
    due, but waits up to this long for its first message.
    """

    id: int
    holder: int
    row_format: RowFormat
    limit: int | None = None
    prefetch: int | None = None
    first_wait_ns: int | None = None
    selection: Selection = ANYTHING
    locks: bool = False
    """FOR UPDATE: the client's session locks the messages in its transaction. Nothing is claimed."""


@dataclass(slots=True, eq=False)
class Subscriber:
    """A running stream: its parameters and its state."""

    spec: Subscription
    since_scan: int
    """The number of the first scan of its filter group that started after the subscriber came,
    and so shows whether a message is due for it."""
    first_wait_until_ns: int | None
    """Until when a bounded stream waits for its first message (monotonic); None: endless stream."""
    remaining: int | None
    """How many more messages its LIMIT allows; None: no LIMIT."""
    ends_ns: int = 0
    """When a bounded stream ends at the latest if it gets nothing (monotonic)."""
    checked_ns: int = 0
    """When that is checked first: earlier for a stream that locks what it gets."""
    held: int = 0
    """Leases that were given to this stream and have not ended. They count against PREFETCH."""
    given: int = 0
    """Messages delivered."""
    last_turn: int = 0
    """The turn in which it came or was last given a message. The least one among equals is next."""
    paused: bool = False
    """The client reads more slowly than rows are sent."""
    fetching: bool = False
    """A fetch of its rows is under way."""
    first_wait_over: bool = False
    """The time that a bounded stream waits for its first message is over."""
    unsent: dict[Key, Lease] = field(default_factory=dict)
    """Its leases whose rows have not been sent."""
    counted: int = 0
    """Its part of the group's sum of credit."""
    counted_starved: bool = False
    """Whether it is in the group's count of starved subscribers."""
    queued: tuple[int, int] | None = None
    """Its load and turn as they are in the group's order of subscribers."""

    def credit(self, batch_size: int) -> int:
        """How many more messages it may be given now."""
        if self.paused or (self.spec.locks and self.fetching):
            return 0  # A lock is answered when its client has read the rows. None are reserved behind it.
        credit = BATCHES_UNSENT_MAX * batch_size - len(self.unsent)
        if self.spec.prefetch is not None:
            credit = min(credit, self.spec.prefetch - self.held)
        if self.remaining is not None:
            credit = min(credit, self.remaining)
        return max(0, credit)

    @property
    def load(self) -> int:
        """How many messages keep its client busy. The client of a bounded stream acknowledges when the
        stream is over, so what it was sent does not count."""
        return self.held if self.spec.first_wait_ns is None else len(self.unsent)

    @property
    def starved(self) -> bool:
        """Whether only acknowledgements can give it credit again."""
        return self.spec.prefetch is not None and self.held >= self.spec.prefetch

    @property
    def limit_reached(self) -> bool:
        """Whether its LIMIT is used up, and all of it was sent."""
        return self.remaining == 0 and not self.unsent

    @property
    def may_end(self) -> bool:
        """Whether it is a bounded stream that ends as soon as no message is left for it."""
        waited = self.given > 0 or self.first_wait_over
        return self.first_wait_until_ns is not None and waited and not self.unsent


class Subscribers:
    """The subscribers of one filter group. The time of a method grows with the logarithm of their
    number at most, unless its docstring states more."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._by_id: dict[int, Subscriber] = {}
        self._formats: Counter[RowFormat] = Counter()
        self._turn = 0
        self.credit = 0
        """How many messages all subscribers together may be given now, a batch each at most."""
        self._with_credit = 0
        """How many of them may be given one."""
        self._reading = 0
        self._starved = 0
        self._next: list[tuple[int, int, int]] = []
        """A heap of (load, turn, id) of those with credit. Outdated entries are skipped."""
        self._to_fetch: dict[int, Subscriber] = {}
        self._finished: dict[int, Subscriber] = {}
        """Streams that end whatever messages are left: their LIMIT is used up, or they are
        bounded and starved."""
        self._ending: list[tuple[int, int]] = []
        """A heap of (since_scan, id): bounded streams that end when no message is left."""
        self._ending_ids: set[int] = set()
        self._first_waits: list[tuple[int, int]] = []
        """A heap of (until, id): bounded streams that wait for their first message."""
        self._last_ends: list[tuple[int, int, int]] = []
        """A heap of (time, id, messages given until then): when bounded streams end at the latest."""
        self._awaited_scans: Counter[int] = Counter()
        """How many bounded streams wait for a scan of at least this number."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(self._by_id.values())

    @property
    def any_starved(self) -> bool:
        """Whether a subscriber that is not paused holds as many messages as its PREFETCH allows."""
        return self._starved > 0

    @property
    def any_reading(self) -> bool:
        """Whether any subscriber is not paused."""
        return self._reading > 0

    @property
    def any_bounded(self) -> bool:
        """Whether any stream ends when no message is due."""
        return bool(self._awaited_scans)

    @property
    def row_format(self) -> RowFormat | None:
        """The format of all subscribers' rows; None: there are several, or no subscribers."""
        return next(iter(self._formats)) if len(self._formats) == 1 else None

    # Membership.

    def add_stream(self, subscriber: Subscriber) -> None:
        """Begin a stream. Its turn is after those of the streams that are there."""
        self._turn += 1
        subscriber.last_turn = self._turn
        self._by_id[subscriber.spec.id] = subscriber
        self._formats[subscriber.spec.row_format] += 1
        self._reading += not subscriber.paused
        if subscriber.first_wait_until_ns is not None:
            self._awaited_scans[subscriber.since_scan] += 1
            heapq.heappush(self._first_waits, (subscriber.first_wait_until_ns, subscriber.spec.id))
            heapq.heappush(self._last_ends, (subscriber.checked_ns, subscriber.spec.id, 0))
        self._changed(subscriber)

    def remove_stream(self, subscriber: Subscriber) -> None:
        """End a stream. The caller gives its unsent leases back."""
        number = subscriber.spec.id
        del self._by_id[number]
        self._formats[subscriber.spec.row_format] -= 1
        if not self._formats[subscriber.spec.row_format]:
            del self._formats[subscriber.spec.row_format]
        self._reading -= not subscriber.paused
        self.credit -= subscriber.counted
        self._with_credit -= bool(subscriber.counted)
        self._starved -= subscriber.counted_starved
        self._to_fetch.pop(number, None)
        self._finished.pop(number, None)
        if subscriber.first_wait_until_ns is not None:
            self._awaited_scans[subscriber.since_scan] -= 1
            if not self._awaited_scans[subscriber.since_scan]:
                del self._awaited_scans[subscriber.since_scan]
        self._compact()

    def set_paused(self, subscriber: Subscriber, *, paused: bool) -> None:
        """Note that the client stopped reading, or reads again."""
        if subscriber.paused is not paused:
            subscriber.paused = paused
            self._reading += -1 if paused else 1
            self._changed(subscriber)

    def credit_of(self, subscriber: Subscriber) -> int:
        """How many more messages one of them may be given now, in several steps."""
        return subscriber.credit(self._batch_size)

    def resize(self, batch_size: int) -> None:
        """Set the table's batch size. Takes time for each subscriber."""
        self._batch_size = batch_size
        for subscriber in self._by_id.values():
            self._changed(subscriber)

    # Leases.

    def distribute(self, leases: Sequence[Lease]) -> tuple[list[tuple[Lease, Subscriber]], Sequence[Lease]]:
        """Give `leases` to subscribers in this order, at most a batch to each.

        Returns the leases given out, each with its subscriber, and the leases for which there
        was no credit.
        """
        given_out: list[tuple[Lease, Subscriber]] = []
        taking: list[tuple[int, int, int]] = []  # Those given some in this call, ordered as `_next`.
        rooms: dict[int, int] = {}  # How many more they may be given.
        best = self._best()
        for lease in leases:
            if taking and (best is None or taking[0] <= best):
                _, _, number = heapq.heappop(taking)
            elif best is not None:
                _, _, number = heapq.heappop(self._next)
            else:
                break
            self._turn += 1
            subscriber = self._by_id[number]
            subscriber.last_turn = self._turn  # Its other entries in `_next` are outdated by that.
            if number not in rooms:
                rooms[number] = subscriber.counted
                best = self._best()
            subscriber.held += 1
            subscriber.unsent[lease.key] = lease
            if subscriber.remaining is not None:
                subscriber.remaining -= 1
            given_out.append((lease, subscriber))
            rooms[number] -= 1
            if rooms[number]:
                heapq.heappush(taking, (subscriber.load, self._turn, number))
        for number in rooms:
            self._changed(self._by_id[number])
        return given_out, leases[len(given_out) :]

    def distribute_runs(
        self, runs: Sequence[Sequence[Lease]]
    ) -> tuple[list[tuple[Lease, Subscriber]], Sequence[Lease]]:
        """`distribute` for leases of which those of a run go to one subscriber."""
        given_out: list[tuple[Lease, Subscriber]] = []
        left: list[Lease] = []
        for run in runs:
            best = self._best()
            subscriber = None if best is None else self._by_id[best[2]]
            room = 0 if subscriber is None else subscriber.counted
            left += run[room:]
            if subscriber is not None:
                given_out += self._give(subscriber, run[:room])
        return given_out, left

    def distribute_shares(
        self, leases: Sequence[Lease], ready: int
    ) -> tuple[list[tuple[Lease, Subscriber]], Sequence[Lease]]:
        """`distribute` for leases of which each subscriber is given some that follow one another. `ready`: how
        many messages there are, these among them; nobody is given more than an equal part of them before
        all have one."""
        given_out: list[tuple[Lease, Subscriber]] = []
        while len(given_out) < len(leases) and self._with_credit:
            part, end = -(-ready // self._with_credit), len(given_out)
            shares: dict[int, Sequence[Lease]] = {}
            while end < len(leases) and self._best() is not None:
                _, _, number = heapq.heappop(self._next)
                if number not in shares:
                    shares[number] = leases[end : end + min(part, self._by_id[number].counted)]
                    end += len(shares[number])
            for number, share in shares.items():
                given_out += self._give(self._by_id[number], share)
        return given_out, leases[len(given_out) :]

    def _give(self, subscriber: Subscriber, leases: Sequence[Lease]) -> list[tuple[Lease, Subscriber]]:
        self._turn += 1
        subscriber.last_turn = self._turn
        subscriber.held += len(leases)
        subscriber.unsent |= {lease.key: lease for lease in leases}
        if subscriber.remaining is not None:
            subscriber.remaining -= len(leases)
        self._changed(subscriber)
        return [(lease, subscriber) for lease in leases]

    def rooms(self, messages: int) -> list[tuple[int, int]]:
        """The load of each of the next subscribers, and how many messages it may be given, in their order, up to
        so many messages in all. Takes time for each of them."""
        found: dict[int, tuple[int, int, int]] = {}
        total = 0
        while total < messages and (best := self._best()) is not None:
            heapq.heappop(self._next)
            if best[2] not in found:
                found[best[2]] = best
                total += self._by_id[best[2]].counted
        for entry in found.values():
            heapq.heappush(self._next, entry)
        return [(load, self._by_id[number].counted) for load, _, number in found.values()]

    def leases_ended(self, subscriber: Subscriber, leases: Sequence[Lease]) -> None:
        """Leases of this subscriber have ended: their credit is free. For those that were not sent, LIMIT
        allows other messages in their place."""
        subscriber.held -= len(leases)
        if unsent := subscriber.unsent:
            before = len(unsent)
            for lease in leases:
                unsent.pop(lease.key, None)
            if subscriber.remaining is not None:
                subscriber.remaining += before - len(unsent)
        self._changed(subscriber)

    def rows_sent(self, subscriber: Subscriber, leases: Iterable[Lease]) -> None:
        """The rows of these leases were passed to the client's connection."""
        for lease in leases:
            lease.apply(LeaseEvent.SEND)
            del subscriber.unsent[lease.key]
            subscriber.given += 1
        self._changed(subscriber)

    # Fetching.

    def to_fetch(self) -> list[Subscriber]:
        """The subscribers that are not paused, have unsent leases, and no fetch under way."""
        return list(self._to_fetch.values())

    def set_fetching(self, subscriber: Subscriber, *, fetching: bool) -> None:
        """Note that a fetch of its rows starts, or came back."""
        subscriber.fetching = fetching
        self._changed(subscriber)

    # Bounded streams.

    def awaits_scan(self, completed: int, started: int) -> bool:
        """Whether a bounded stream waits for a scan that starts after it did. `completed` and
        `started` are the numbers of the last scan that came back and of the last that started."""
        return any(number in self._awaited_scans for number in range(completed + 1, started + 2))

    def next_first_wait_end_ns(self) -> int | None:
        """When the wait of a bounded stream for its first message ends next (monotonic)."""
        while self._first_waits and self._waiting_first(self._first_waits[0][1]) is None:
            heapq.heappop(self._first_waits)
        return self._first_waits[0][0] if self._first_waits else None

    def end_first_waits(self, now_ns: int) -> None:
        """Mark the bounded streams whose wait for a first message is over at this monotonic
        time."""
        while (until_ns := self.next_first_wait_end_ns()) is not None and until_ns <= now_ns:
            subscriber = self._by_id[heapq.heappop(self._first_waits)[1]]
            subscriber.first_wait_over = True
            self._changed(subscriber)

    def next_last_end_ns(self) -> int | None:
        """When a bounded stream ends at the latest (monotonic); None: there is none."""
        while self._last_ends and self._last_ends[0][1] not in self._by_id:
            heapq.heappop(self._last_ends)
        return self._last_ends[0][0] if self._last_ends else None

    def overdue_streams(self, now_ns: int, stall_ns: int, locked_stall_ns: int) -> list[Subscriber]:
        """The bounded streams that have got nothing for so long that they end, whatever is under way for them.
        Those that get messages may take `stall_ns` for the next one; those that lock them, `locked_stall_ns`,
        since other transactions may wait for the locks. Those whose clients do not read, or lock messages just
        now, take longer. The caller removes them."""
        overdue: list[Subscriber] = []
        while (at_ns := self.next_last_end_ns()) is not None and at_ns <= now_ns:
            _, number, given = heapq.heappop(self._last_ends)
            subscriber = self._by_id[number]
            locks = subscriber.spec.locks
            if subscriber.given > given or subscriber.paused or (locks and subscriber.fetching):
                ends_ns = now_ns + (locked_stall_ns if locks and subscriber.given else stall_ns)
                heapq.heappush(self._last_ends, (ends_ns, number, subscriber.given))
            elif not subscriber.given and now_ns < subscriber.ends_ns:
                heapq.heappush(self._last_ends, (min(now_ns + locked_stall_ns, subscriber.ends_ns), number, 0))
            else:
                overdue.append(subscriber)
        return overdue

    def finished_streams(self, *, nothing_to_give: bool, completed: int) -> list[Subscriber]:
        """The streams that have reached their LIMIT, and the bounded streams that end for want of
        messages. The caller removes them. `completed` is the number of the last scan that came
        back."""
        ended = list(self._finished.values())
        while nothing_to_give and self._ending and self._ending[0][0] <= completed:
            number = heapq.heappop(self._ending)[1]
            self._ending_ids.discard(number)
            subscriber = self._by_id.get(number)
            if subscriber is not None and subscriber.may_end and number not in self._finished:
                ended.append(subscriber)
        return ended

    # The indexes.

    def _changed(self, subscriber: Subscriber) -> None:
        """Update all indexes for one subscriber. To be called after each change of it."""
        number = subscriber.spec.id
        credit = min(subscriber.credit(self._batch_size), self._batch_size)
        self.credit += credit - subscriber.counted
        self._with_credit += bool(credit) - bool(subscriber.counted)
        subscriber.counted = credit
        if not credit:
            subscriber.queued = None
        elif subscriber.queued != (place := (subscriber.load, subscriber.last_turn)):
            subscriber.queued = place
            heapq.heappush(self._next, (*place, number))
        starved = subscriber.starved and not subscriber.paused
        self._starved += starved - subscriber.counted_starved
        subscriber.counted_starved = starved
        if subscriber.unsent and not (subscriber.fetching or subscriber.paused):
            self._to_fetch[number] = subscriber
        else:
            self._to_fetch.pop(number, None)
        may_end = subscriber.may_end
        if subscriber.limit_reached or (may_end and subscriber.starved):
            self._finished[number] = subscriber
        else:
            self._finished.pop(number, None)
        if may_end and number not in self._ending_ids:
            self._ending_ids.add(number)
            heapq.heappush(self._ending, (subscriber.since_scan, number))
        self._compact()

    def _best(self) -> tuple[int, int, int] | None:
        """The entry of the next subscriber; None if none has credit."""
        while self._next:
            load, turn, number = self._next[0]
            subscriber = self._by_id.get(number)
            if (
                subscriber is not None
                and (load, turn) == (subscriber.load, subscriber.last_turn)
                and subscriber.counted
            ):
                return self._next[0]
            heapq.heappop(self._next)
        return None

    def _waiting_first(self, number: int) -> Subscriber | None:
        subscriber = self._by_id.get(number)
        return subscriber if subscriber is not None and not (subscriber.given or subscriber.first_wait_over) else None

    def _compact(self) -> None:
        """Rebuild a heap when more than half of its entries are outdated."""
        most = 2 * len(self._by_id) + 64
        if len(self._next) > most:
            self._next = [
                (subscriber.load, subscriber.last_turn, subscriber.spec.id) for subscriber in self if subscriber.counted
            ]
            heapq.heapify(self._next)
        if len(self._first_waits) > most:
            self._first_waits = [entry for entry in self._first_waits if self._waiting_first(entry[1])]
            heapq.heapify(self._first_waits)
        if len(self._last_ends) > most:
            self._last_ends = [entry for entry in self._last_ends if entry[1] in self._by_id]
            heapq.heapify(self._last_ends)
        if len(self._ending) > most:
            self._ending = [entry for entry in self._ending if entry[1] in self._by_id]
            heapq.heapify(self._ending)
            self._ending_ids = {number for _, number in self._ending}
