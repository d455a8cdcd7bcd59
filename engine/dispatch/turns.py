"""Whose turn it is: the order of the ready messages of a queue with groups.

The most urgent priority goes first. Within it, the next message belongs to the group that has the
fewest messages in flight, and of several such groups to the one whose last turn is longest ago;
within the group messages are in the order of time and id. `Turns` contains what decides between
groups, for the whole table. `TurnOrder` orders the ready entries of one read-ahead buffer by it.

A step costs the logarithm of the number of groups. An entry of a heap is not moved when its order
changes. It is checked when it comes to the top, and `requeue` pushes another one for a group that
moved forward.

A group that has as many messages in flight as allowed is *parked* when it comes to the top: its
entry leaves the heap, its messages stay, and `requeue` brings it back.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sized
from itertools import count
from typing import Any, Generic, TypeVar

from engine.dispatch.group_places import GroupPlaces
from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.model import Entry, Group, Key

TURNS_MAX = 200_000
"""Groups whose last turn is remembered: those that had one most recently. The others have waited
longer than these, so they go first all the same."""


class Turns:
    """What decides which group is next. Messages that were taken since the round began count as in
    flight."""

    def __init__(
        self, in_flight: GroupsInFlight, places: GroupPlaces | None = None, turn_values: int | None = None
    ) -> None:
        """`places`: None where groups have no limit. `turn_values`: `Policy.turn_values`."""
        self._in_flight = in_flight
        self._places = places
        self.turn_values = turn_values
        self._taken: dict[Group | None, int] = {}
        self._last: dict[Group | None, int] = {}
        """The number of the last turn of each group, in ascending order."""
        self._numbers = count(1)
        self._unknown_taken = False
        """Whether messages whose group is not known were taken. They do not count as in flight."""

    def rank(self, group: Group | None) -> tuple[int, int]:
        """The group with the least rank is next: how many messages it has in flight, and its last
        turn."""
        if self.turn_values is not None:
            group = self.turn_of(group)
        return self._in_flight.count(group) + self._taken.get(group, 0), self._last.get(group, 0)

    def turn_of(self, group: Group | None) -> Group | None:
        """What decides whose turn a message of this group is: its values without what it needs."""
        return group if group is None else group[: self.turn_values]

    @property
    def limited(self) -> bool:
        """Whether groups have a limit."""
        return self._places is not None and self._places.limited

    @property
    def strict(self) -> bool:
        """Whether the messages of a group are in the order of their ids."""
        return self._places is not None and self._places.strict

    def has_place(self, group: Group | None, key: Key) -> bool:
        """Whether this message of a group may be in flight."""
        if self._places is None:
            return True
        return self._places.has_place(group, self._in_flight.count(group), key, self._taken.get(group, 0))

    def may_follow(self, group: Group | None) -> bool:
        """Whether one more message of this group may be taken, behind the first one of a run."""
        return self._places is None or self._places.may_follow(group, self._taken.get(group, 0))

    def note_turn(self, group: Group | None) -> None:
        """A message of this group was taken."""
        if self._places is not None:
            self._places.note_taken(group)
        if self.turn_values is not None:
            group = self.turn_of(group)
        self._taken[group] = self._taken.get(group, 0) + 1
        self._last.pop(group, None)
        self._last[group] = next(self._numbers)
        if len(self._last) > TURNS_MAX:
            del self._last[next(iter(self._last))]

    def take_freed(self) -> set[Group | None]:
        """Returns the groups that may be next earlier than before. Those that are full all the same are
        left out: most often, the end of a claim is the beginning of a lease."""
        freed: set[Group | None] = {*self._in_flight.take_freed()}
        most = None if self._places is None else self._places.most
        if most is not None:
            freed = {group for group in freed if self._in_flight.count(group) < most}
        if self._unknown_taken:
            self._unknown_taken = False
            freed.add(None)
        return freed

    def end_round(self) -> None:
        """The messages that were taken are counted as in flight from now on, or were not handed
        out."""
        self._unknown_taken |= None in self._taken
        self._taken.clear()
        if self._places is not None:
            self._places.end_round()


Place = tuple[int, Key, int, int]
"""The time (in strict order 0), id, epoch and time of a message."""

Queue = TypeVar("Queue", bound=Sized)


class _Level(Generic[Queue]):
    """The ready messages of one priority."""

    def __init__(self) -> None:
        self.queues: dict[Group | None, Queue] = {}
        """The messages of each group."""
        self.heap: list[tuple[int, int, int]] = []
        """A rank of each group, and the number of the heap's entry."""
        self.groups: dict[int, Group | None] = {}
        """The group of each valid entry of the heap, by its number."""
        self.numbers: dict[Group | None, int] = {}
        """The number of each group that is not parked."""
        self.listed = True
        """Whether its priority is among those that have messages to hand out."""


class Order(ABC, Generic[Queue]):
    """The ready entries of one buffer in the order of turns. Entries that are not in the buffer's
    `ready` any more, or in another state, are left out when they come first."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._levels: dict[int, _Level[Queue]] = {}
        self._priorities: list[int] = []
        self._numbers = count()
        self._size = 0
        self._parked = 0

    @abstractmethod
    def depth(self, priority: int, group: Group | None) -> int:
        """About how many ready messages a group has at this priority."""

    @abstractmethod
    def rebuild(self, entries: Iterable[Entry]) -> None:
        """Replace everything by these entries."""

    @abstractmethod
    def push(self, entry: Entry) -> None:
        """Add an entry."""

    @abstractmethod
    def groups(self, priority: int) -> int:
        """How many groups have ready messages at this priority, about."""

    @abstractmethod
    def trim(self, priority: int, keep: int) -> list[tuple[Group, list[Key]]]:
        """Leave `keep` messages of each group at this priority, the first ones. Returns the groups that
        had more, each with the ids of the others."""

    @abstractmethod
    def requeue(self, groups: Iterable[Group | None]) -> None:
        """These groups may be next earlier than before."""

    @abstractmethod
    def pop(self) -> None:
        """Remove the entry that `head` has just returned: its group has had its turn."""

    @abstractmethod
    def pop_behind(self, before: Entry, ready: Mapping[Key, Entry]) -> Entry | None:
        """Remove and return the message of the same group and priority that is next behind this one, which
        has just been removed; None: there is none, or it may not be taken together with it."""

    @abstractmethod
    def _first_of(self, queue: Queue, ready: Mapping[Key, Entry], group: Group | None) -> Entry | None:
        """The first message of a queue that may be in flight; None: there is none."""

    @abstractmethod
    def _note_parked(self, queue: Queue, *, parked: bool) -> None:
        """A group whose queue is not empty is parked, or is so no more."""

    @property
    def limited(self) -> bool:
        """Whether groups have a limit."""
        return self._turns.limited

    @property
    def parked(self) -> int:
        """About how many ready messages are of groups that are parked."""
        return self._parked

    @property
    def size(self) -> int:
        """How many entries are ordered, those that are not valid any more included."""
        return self._size

    def rank(self, group: Group | None) -> tuple[int, int]:
        """The rank of a group in `Turns`."""
        return self._turns.rank(group)

    def head(self, ready: Mapping[Key, Entry]) -> Entry | None:
        """The next entry; None: there is none."""
        while self._priorities:
            level = self._levels[self._priorities[0]]
            if (entry := self._first(level, ready)) is not None:
                return entry
            priority = heapq.heappop(self._priorities)
            level.listed = False
            if not level.queues:
                del self._levels[priority]
        return None

    def _first(self, level: _Level[Queue], ready: Mapping[Key, Entry]) -> Entry | None:
        heap = level.heap
        while heap:
            load, turn, number = heap[0]
            if number not in level.groups:
                heapq.heappop(heap)
                continue
            group = level.groups[number]
            if (entry := self._first_of(level.queues[group], ready, group)) is None:
                if level.queues[group]:
                    self._park(level, group, number)
                    continue
                heapq.heappop(heap)
                del level.queues[group], level.groups[number], level.numbers[group]
            elif (rank := self._turns.rank(group)) != (load, turn):
                heapq.heapreplace(heap, (*rank, number))
            elif not self._turns.has_place(entry.group, entry.key):
                self._park(level, group, number)
            else:
                return entry
        return None

    def _level(self, priority: int) -> _Level[Queue]:
        """The messages of this priority, perhaps none yet."""
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level()
            heapq.heappush(self._priorities, priority)
        return level

    def _first_in(self, messages: list[Place], ready: Mapping[Key, Entry], group: Group | None) -> Entry | None:
        """The first message of a heap that is ready. Removes those before it."""
        while messages:
            _, key, epoch, due_ns = messages[0]
            entry = ready.get(key)
            if entry is not None and (entry.epoch, entry.due_ns, entry.group) == (epoch, due_ns, group):
                return entry
            heapq.heappop(messages)
            self._size -= 1
        return None

    def _place(self, entry: Entry) -> Place:
        return 0 if self._turns.strict else entry.due_ns, entry.key, entry.epoch, entry.due_ns

    def _park(self, level: _Level[Queue], group: Group | None, number: int) -> None:
        """The group at the top of the heap has as many messages in flight as allowed."""
        heapq.heappop(level.heap)
        del level.groups[number], level.numbers[group]
        self._note_parked(level.queues[group], parked=True)

    def _enter(self, priority: int, group: Group | None) -> None:
        """Push a valid entry of the heap for a group, in place of the one before."""
        level = self._levels[priority]
        before = level.numbers.get(group)
        if before is not None:
            del level.groups[before]
        else:
            self._note_parked(level.queues[group], parked=False)
        if not level.listed:
            level.listed = True
            heapq.heappush(self._priorities, priority)
        number = level.numbers[group] = next(self._numbers)
        level.groups[number] = group
        if len(level.heap) > 2 * len(level.numbers) + 64:
            level.heap = [(*self._turns.rank(group), number) for group, number in level.numbers.items()]
            heapq.heapify(level.heap)
        else:
            heapq.heappush(level.heap, (*self._turns.rank(group), number))


AnyOrder = Order[Any]
"""The order of any queue with groups."""


class TurnOrder(Order[list[Place]]):
    """The order of a queue whose groups wait for a place as a whole. The queue of a group is a heap."""

    def depth(self, priority: int, group: Group | None) -> int:
        """About how many ready messages a group has at this priority."""
        level = self._levels.get(priority)
        return len(level.queues.get(group, ())) if level else 0

    def rebuild(self, entries: Iterable[Entry]) -> None:
        """Replace everything by these entries."""
        self._levels, self._priorities, self._size, self._parked = {}, [], 0, 0
        for entry in entries:
            level = self._levels.get(entry.priority)
            if level is None:
                level = self._levels[entry.priority] = _Level()
            queue = level.queues.get(entry.group)
            if queue is None:
                queue = level.queues[entry.group] = []
            queue.append(self._place(entry))
            self._size += 1
        self._priorities = sorted(self._levels)
        for level in self._levels.values():
            for group, queue in level.queues.items():
                heapq.heapify(queue)
                number = level.numbers[group] = next(self._numbers)
                level.groups[number] = group
                level.heap.append((*self._turns.rank(group), number))
            heapq.heapify(level.heap)

    def push(self, entry: Entry) -> None:
        """Add an entry."""
        level = self._level(entry.priority)
        queue = level.queues.get(entry.group)
        if queue is None:
            queue = level.queues[entry.group] = []
            self._enter(entry.priority, entry.group)
        elif entry.group not in level.numbers:
            if self._turns.strict:
                self._enter(entry.priority, entry.group)  # This message may be the one that is next.
            else:
                self._parked += 1
        heapq.heappush(queue, self._place(entry))
        self._size += 1

    def groups(self, priority: int) -> int:
        """How many groups have ready messages at this priority, about."""
        level = self._levels.get(priority)
        return len(level.queues) if level else 0

    def trim(self, priority: int, keep: int) -> list[tuple[Group, list[Key]]]:
        """Leave `keep` messages of each group at this priority, the first ones. Returns the groups that
        had more, each with the ids of the others."""
        level, trimmed = self._levels.get(priority), list[tuple[Group, list[Key]]]()
        if level is None:
            return trimmed
        for group, queue in level.queues.items():
            if group is not None and len(queue) > keep:
                queue.sort()
                trimmed.append((group, [key for _, key, _, _ in queue[keep:]]))
                self._size -= len(queue) - keep
                self._parked -= 0 if group in level.numbers else len(queue) - keep
                del queue[keep:]
        return trimmed

    def requeue(self, groups: Iterable[Group | None]) -> None:
        """These groups may be next earlier than before."""
        for priority, level in self._levels.items():
            for group in groups:
                if group in level.queues:
                    self._enter(priority, group)

    def pop(self) -> None:
        """Remove the entry that `head` has just returned: its group has had its turn."""
        level = self._levels[self._priorities[0]]
        number = level.heap[0][2]
        group = level.groups[number]
        queue = level.queues[group]
        heapq.heappop(queue)
        self._size -= 1
        self._turns.note_turn(group)
        if queue:
            heapq.heapreplace(level.heap, (*self._turns.rank(group), number))
        else:
            heapq.heappop(level.heap)
            del level.queues[group], level.groups[number], level.numbers[group]

    def pop_behind(self, before: Entry, ready: Mapping[Key, Entry]) -> Entry | None:
        """Remove and return the message of the same group and priority that is next behind this one, which
        has just been removed; None: there is none, or it may not be taken together with it. A message that
        was delivered before is alone, so that no other one shares the fate of one that fails."""
        queue = self._levels[before.priority].queues.get(before.group)
        entry = self._first_of(queue, ready, before.group) if queue else None
        if queue is None or entry is None or before.epoch or entry.epoch or not self._turns.may_follow(entry.group):
            return None
        heapq.heappop(queue)
        self._size -= 1
        self._turns.note_turn(entry.group)
        return entry

    def _first_of(self, queue: list[Place], ready: Mapping[Key, Entry], group: Group | None) -> Entry | None:
        return self._first_in(queue, ready, group)

    def _note_parked(self, queue: list[Place], *, parked: bool) -> None:
        """A group is parked, or is so no more."""
        self._parked += len(queue) if parked else -len(queue)
