"""The order of turns of a queue with groups and semaphores (GROUP_BY and SEMAPHORES).

A group here is the values of the group columns, and behind them what the message needs. The former
decide whose turn it is; messages that also have the same needs wait for places together. So the queue
of a turn is divided by needs. A part that lacks a place is parked, and the others go on in the order of
time and id.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from engine.dispatch.turns import AnyOrder, Order, Place, TurnOrder, Turns
from engine.model import Entry, Group, Key


class NeedsQueue:
    """The ready messages of one turn at one priority, in parts by group."""

    __slots__ = ("heap", "parked", "parts")

    def __init__(self) -> None:
        self.parts: dict[Group | None, list[Place]] = {}
        """The messages of each group, as heaps."""
        self.heap: list[tuple[Place, int, Group | None]] = []
        """The first message of each part that is not parked, with a number that decides between equal
        ones, and its group. Entries that are not valid any more are checked when they come first."""
        self.parked: set[Group | None] = set()
        """The groups that lack a place."""

    def __len__(self) -> int:
        """How many parts there are."""
        return len(self.parts)


class NeedsOrder(Order[NeedsQueue]):
    """The order of a queue whose turns are divided by what messages need."""

    def depth(self, priority: int, group: Group | None) -> int:
        """About how many ready messages a group has at this priority."""
        queue = self._queue_of(priority, group)
        return len(queue.parts.get(group, ())) if queue else 0

    def rebuild(self, entries: Iterable[Entry]) -> None:
        """Replace everything by these entries."""
        self._levels, self._priorities, self._size, self._parked = {}, [], 0, 0
        for entry in entries:
            self.push(entry)

    def push(self, entry: Entry) -> None:
        """Add an entry."""
        turn, place = self._turns.turn_of(entry.group), self._place(entry)
        level = self._level(entry.priority)
        queue = level.queues.get(turn)
        if queue is None:
            queue = level.queues[turn] = NeedsQueue()
            self._enter(entry.priority, turn)
        elif turn not in level.numbers and entry.group not in queue.parked:
            self._enter(entry.priority, turn)
        part = queue.parts.setdefault(entry.group, [])
        heapq.heappush(part, place)
        self._size += 1
        if entry.group in queue.parked:
            self._parked += 1
        elif part[0] == place:
            self._list(queue, entry.group)

    def groups(self, priority: int) -> int:
        """How many groups have ready messages at this priority, about. Takes time for each turn."""
        level = self._levels.get(priority)
        return sum(map(len, level.queues.values())) if level else 0

    def trim(self, priority: int, keep: int) -> list[tuple[Group, list[Key]]]:
        """Leave `keep` messages of each group at this priority, the first ones. Returns the groups that
        had more, each with the ids of the others."""
        level, trimmed = self._levels.get(priority), list[tuple[Group, list[Key]]]()
        for queue in level.queues.values() if level else ():
            for group, part in queue.parts.items():
                if group is not None and len(part) > keep:
                    part.sort()
                    trimmed.append((group, [key for _, key, _, _ in part[keep:]]))
                    self._size -= len(part) - keep
                    self._parked -= len(part) - keep if group in queue.parked else 0
                    del part[keep:]
        return trimmed

    def requeue(self, groups: Iterable[Group | None]) -> None:
        """These groups may be next earlier than before."""
        for priority, level in self._levels.items():
            for group in groups:
                turn = self._turns.turn_of(group)
                if (queue := level.queues.get(turn)) is None:
                    continue
                if group in queue.parked:
                    queue.parked.discard(group)
                    self._parked -= len(queue.parts[group])
                    self._list(queue, group)
                self._enter(priority, turn)

    def pop(self) -> None:
        """Remove the entry that `head` has just returned: its group has had its turn."""
        level = self._levels[self._priorities[0]]
        number = level.heap[0][2]
        turn = level.groups[number]
        queue = level.queues[turn]
        group = queue.heap[0][2]
        heapq.heappop(queue.parts[group])
        self._size -= 1
        self._turns.note_turn(group)
        heapq.heapreplace(level.heap, (*self._turns.rank(turn), number))

    def pop_behind(self, before: Entry, ready: Mapping[Key, Entry]) -> Entry | None:
        """None: groups with semaphores are in no strict order."""
        return None

    def _first_of(self, queue: NeedsQueue, ready: Mapping[Key, Entry], group: Group | None) -> Entry | None:
        while queue.heap:
            place, number, of_part = queue.heap[0]
            part = queue.parts.get(of_part)
            if part is None or of_part in queue.parked:
                heapq.heappop(queue.heap)
            elif (entry := self._first_in(part, ready, of_part)) is None:
                heapq.heappop(queue.heap)
                del queue.parts[of_part]
            elif part[0] != place:
                heapq.heapreplace(queue.heap, (part[0], number, of_part))
            elif self._turns.has_place(of_part, entry.key):
                return entry
            else:
                heapq.heappop(queue.heap)
                queue.parked.add(of_part)
                self._parked += len(part)
        return None

    def _note_parked(self, queue: NeedsQueue, *, parked: bool) -> None:
        """The parts of a queue are counted when they are parked."""

    def _queue_of(self, priority: int, group: Group | None) -> NeedsQueue | None:
        level = self._levels.get(priority)
        return level.queues.get(self._turns.turn_of(group)) if level else None

    def _list(self, queue: NeedsQueue, group: Group | None) -> None:
        """The first message of a part is another one, or the part is parked no more."""
        heapq.heappush(queue.heap, (queue.parts[group][0], next(self._numbers), group))
        if len(queue.heap) > 2 * len(queue.parts) + 64:
            free = ((part[0], of_part) for of_part, part in queue.parts.items() if part and of_part not in queue.parked)
            queue.heap = [(place, next(self._numbers), of_part) for place, of_part in free]
            heapq.heapify(queue.heap)


def order_of(turns: Turns | None) -> AnyOrder | None:
    """The order of turns of a buffer; None: the queue has no groups."""
    if turns is None:
        return None
    return TurnOrder(turns) if turns.turn_values is None else NeedsOrder(turns)
