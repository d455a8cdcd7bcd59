"""Filter groups: the streams of one table that select the same messages, and that all claim or all
lock them.

The streams without a condition are one group, the streams of each condition another. Each group has
its own read-ahead buffer. A message may be in the buffers of several groups; it is claimed for one
of them. The claim checks the condition in the database again, so a message goes to one stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.dispatch.contention import Contention
from engine.dispatch.group_scans import GroupScans
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.needs_order import order_of
from engine.dispatch.other_shares import OtherShares
from engine.dispatch.read_ahead import ReadAhead
from engine.dispatch.scan_position import ScanPosition
from engine.dispatch.scan_state import ScanState
from engine.dispatch.subscribers import Subscriber, Subscribers, Subscription
from engine.dispatch.turns import Turns
from engine.model import ANYTHING, Selection


@dataclass(slots=True, eq=False)
class FilterGroup:
    """The streams of one selection and mode. Only the scan scheduler changes `scans`; only the claims under
    way change `reserved`."""

    selection: Selection
    subscribers: Subscribers
    scans: ScanState
    limits: Limits
    locks: bool = False
    """Whether its streams lock messages (FOR UPDATE) instead of claiming them."""
    reserved: int = 0
    """Credit that claims under way will use."""

    @property
    def credit(self) -> int:
        """How many more messages may be claimed for this group."""
        return max(0, self.subscribers.credit - self.reserved)

    @property
    def awaits_scan(self) -> bool:
        """Whether a bounded stream waits for a scan that starts after it did, and leaves nothing to other proxies."""
        return self.subscribers.awaits_scan(self.scans.whole_completed, self.scans.started)

    def finished_streams(self, now: Instant, *, closed: bool, unsure: bool) -> list[Subscriber]:
        """The streams that have reached their LIMIT, the bounded ones for which nothing is left
        now, and those that wait for too long. `closed`: the table hands out no messages at present, whatever is
        in the buffer. `unsure`: that may change in a moment. The streams stay in the group until they are removed."""
        self.subscribers.end_first_waits(now.mono_ns)
        limits = self.limits
        overdue = self.subscribers.overdue_streams(now.mono_ns, limits.bounded_stall_ns, limits.bounded_grace_ns)
        if self.reserved or unsure:
            nothing_to_give, completed = False, 0
        elif closed:
            nothing_to_give, completed = True, self.scans.started + 1
        else:
            finds_groups = self.scans.by_group.running and self.scans.buffer.more
            nothing_to_give = self.scans.is_exhausted and not finds_groups
            completed = self.scans.whole_completed
        finished = self.subscribers.finished_streams(nothing_to_give=nothing_to_give, completed=completed)
        return list(dict.fromkeys([*finished, *overdue])) if overdue else finished


class TooManyFilterGroups(Exception):
    """The streams of a table have as many different conditions as allowed. The text names the
    limit."""


class FilterGroups:
    """All streams of a table and their groups: the group without a condition, and a limited number of
    others. Groups without streams are kept until their place is needed."""

    def __init__(self, limits: Limits, batch_size: int, now: Instant, turns: Turns | None = None) -> None:
        self.turns = turns
        """What decides between message groups; None: the queue has none."""
        self._most = limits.filter_groups_max
        self._limits = limits
        self._batch_size = batch_size
        self._by_selection: dict[tuple[Selection, bool], FilterGroup] = {}
        """By what a group selects, and whether it locks."""
        self._subscribers: dict[int, Subscriber] = {}
        self._streams_of: dict[int, set[int]] = {}
        """The ids of the subscribers of each holder."""
        self.stream_ended_ns = now.mono_ns
        """When the last stream ended (monotonic); before one has, when the queue was found."""
        self.main = self._group(ANYTHING)
        """The group of the streams without a condition."""

    def __iter__(self) -> Iterator[FilterGroup]:
        return iter(self._by_selection.values())

    def __len__(self) -> int:
        return len(self._by_selection)

    @property
    def subscribers(self) -> Mapping[int, Subscriber]:
        """The streams of all groups, by id; for reading."""
        return self._subscribers

    def add_subscription(self, spec: Subscription, now: Instant) -> None:
        """Begin a stream, in a new group if it is the first with its selection. Raises
        TooManyFilterGroups."""
        group = self._group(spec.selection, locks=spec.locks)
        subscriber = Subscriber(
            spec,
            since_scan=group.scans.started + 1,
            first_wait_until_ns=None if spec.first_wait_ns is None else now.mono_ns + spec.first_wait_ns,
            remaining=spec.limit,
        )
        if spec.first_wait_ns is not None:
            waited_ns = spec.first_wait_ns + self._limits.bounded_grace_ns
            subscriber.ends_ns = now.mono_ns + max(waited_ns, self._limits.bounded_stall_ns)
            subscriber.checked_ns = now.mono_ns + waited_ns if spec.locks else subscriber.ends_ns
        self._subscribers[spec.id] = subscriber
        self._streams_of.setdefault(spec.holder, set()).add(spec.id)
        group.subscribers.add_stream(subscriber)

    def remove_subscription(self, subscriber: Subscriber, now: Instant) -> None:
        """End a stream. The caller gives its unsent leases back."""
        self.stream_ended_ns = now.mono_ns
        del self._subscribers[subscriber.spec.id]
        streams = self._streams_of[subscriber.spec.holder]
        streams.discard(subscriber.spec.id)
        if not streams:
            del self._streams_of[subscriber.spec.holder]
        self.members_with(subscriber).remove_stream(subscriber)

    def set_paused(self, subscriber_id: int, *, paused: bool) -> None:
        """The client of a stream stopped reading, or reads again. Without effect if the stream has
        ended."""
        if subscriber := self._subscribers.get(subscriber_id):
            self.members_with(subscriber).set_paused(subscriber, paused=paused)

    def streams_of(self, holder: int) -> list[Subscriber]:
        """The streams of a client connection, in the order of their ids."""
        return [self._subscribers[number] for number in sorted(self._streams_of.get(holder, ()))]

    def members_with(self, subscriber: Subscriber) -> Subscribers:
        """The subscribers of the group that a stream is in, itself among them."""
        return self._by_selection[subscriber.spec.selection, subscriber.spec.locks].subscribers

    @property
    def in_use(self) -> int:
        """How many groups have streams, or keys read ahead; at least 1."""
        return sum(bool(len(group.subscribers) or len(group.scans.buffer)) for group in self) or 1

    def with_credit(self) -> list[FilterGroup]:
        """The groups in which a stream may be given a message."""
        return [group for group in self if group.subscribers.credit > 0]

    def need_acknowledgements(self, *, full: bool) -> bool:
        """Whether a stream can be given nothing more before messages are acknowledged. `full`: the
        table has as many messages in flight as allowed."""
        return any(group.subscribers.any_starved or (full and group.subscribers.any_reading) for group in self)

    def resize(self, batch_size: int) -> None:
        """The table's batch size is this from now on."""
        self._batch_size = batch_size
        for group in self:
            group.subscribers.resize(self._batch_of(locks=group.locks))

    def set_turns(self, turns: Turns | None) -> None:
        """The queue has message groups from now on, or none any more."""
        self.turns = turns
        for group in self:
            group.scans.buffer.set_order(order_of(turns))
            group.scans.by_group.all_shown()

    def _group(self, selection: Selection, *, locks: bool = False) -> FilterGroup:
        group = self._by_selection.pop((selection, locks), None)
        if group is None:
            if len(self._by_selection) > self._most:
                self._forget_one()
            scans = self._scans_with(ReadAhead(order_of(self.turns)), by_position=selection.condition is not None)
            group = FilterGroup(selection, Subscribers(self._batch_of(locks=locks)), scans, self._limits, locks)
        self._by_selection[selection, locks] = group
        return group

    def _scans_with(self, buffer: ReadAhead, *, by_position: bool) -> ScanState:
        limits = self._limits
        position = ScanPosition() if by_position else None
        others, contention, by_group = OtherShares(limits), Contention(limits), GroupScans(limits)
        return ScanState(limits.scan_min, position, others, contention, by_group, buffer)

    def _batch_of(self, *, locks: bool) -> int:
        return max(self._batch_size, self._limits.lock_max) if locks else self._batch_size

    def _forget_one(self) -> None:
        """Make room for another group. Raises TooManyFilterGroups."""
        for kind, group in self._by_selection.items():
            if group is not self.main and not (len(group.subscribers) or group.reserved or group.scans.running):
                del self._by_selection[kind]
                return
        raise TooManyFilterGroups(f"the streams of this table have {self._most} different conditions already")
