"""The roster of a server's proxies: who else is there, and on which queues they have streams.

Each proxy holds a user-level lock, `ackstream/<slot>`, on a connection of its own. The server
releases the locks of a connection that ends, and ends one that is idle for `idle_s`. So the slots
that are locked are those of the living proxies. Nothing is stored. While other proxies are there, a
proxy also holds a lock for each queue on which it has streams.

The roster is up to a second old, and a hint. No right to a message depends on it. But the lock of a
slot shows that the proxy lives whose claims carry the slot (engine.dispatch.abandoned).

A proxy that lost its connection takes the same slot again, because its claims carry it. The server
may not have ended the former connection yet, and so the lock is still held: then the proxy ends that
connection, and waits for the lock instead of taking another one. Each connection also holds a lock
with a random name, its mark, by which the proxy knows its own: a server that was restarted gives the
numbers of former connections to others.

The same connection excludes the changes that two proxies make to one comment at a time. A lock that a
connection of another account holds does not: any account may take a lock of any name.
"""

from __future__ import annotations

import hashlib
import random
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from engine.model import SLOT_LOCK, TableId
from engine.packets import text_values
from engine.quoting import text_literal
from engine.store.connection import StoreConnection
from engine.store.opening import PROGRAM
from engine.store.pool import CLOSED
from engine.store.port import Roster, StoreError, Timed
from engine.store.queries import statement

RETAKE_S = 1
"""How long a check waits for the lock of this proxy's former connection."""

MARKS_MAX = 8
"""Connections that are known as this proxy's own. More than one, if the answer to GET_LOCK was lost."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a proxy publishes of itself: the program in the attributes of its roster connection."""

    name: str = ""
    version: str = ""
    since_ns: int | None = None
    """When it started, on the server's clock; None: it is not known."""

    @property
    def program(self) -> str:
        """The text that is published."""
        since = "" if self.since_ns is None else f" since {self.since_ns}"
        return f"{PROGRAM} {self.version or '-'} {self.name or '-'}{since}"

    @classmethod
    def read(cls, program: str) -> Introduction | None:
        """What a text that was published means; None: it is none."""
        found = _PROGRAM.fullmatch(program)
        if found is None:
            return None
        since = found["since"]
        return cls(found["name"], found["version"], None if since is None else int(since))


_PROGRAM = re.compile(rf"{PROGRAM} (?P<version>[^ ]++) (?P<name>.*?)(?: since (?P<since>[0-9]{{1,19}}))?")


class RosterConnection:
    """This proxy's entry in the roster, and its view of the others. Used by one thread at a time,
    except for `close`."""

    def __init__(self, open_connection: Callable[[], StoreConnection], proxies_max: int, idle_s: int) -> None:
        self._open_connection = open_connection
        self._slots = range(1, proxies_max + 1)
        self._idle_s = idle_s
        self._checking = threading.Lock()
        self._closed = False
        self._connection: StoreConnection | None = None
        self._slot: int | None = None
        self._slot_before: int | None = None
        """The slot that this proxy had last: it takes the same one again if it can."""
        self._marks: deque[str] = deque(maxlen=MARKS_MAX)
        """The marks of the connections that this proxy may hold a slot with."""
        self._others: Sequence[int] = ()
        """The slots of the other proxies, as they were at the last check."""
        self._announced: set[TableId] = set()
        """The queues for which this proxy holds a lock."""
        self._changing: set[str] = set()
        """The changes that are under way here: a connection gets a lock that it has once more."""

    def check(self, queues: Collection[TableId]) -> Timed[Roster]:
        """Keep this proxy's place, announce that it has streams on `queues`, and read what the others
        announce. One round trip and one query if nothing has changed. Raises StoreError."""
        with self._checking:
            if self._connection is not None and self._connection.stale():
                self._disconnect()
            if self._connection is not None:
                try:
                    return self._check(self._connection, queues)
                except StoreError:  # Somebody has ended the connection, perhaps. The lock is taken again at once.
                    self._disconnect()
            try:
                return self._check(self._connect(), queues)
            except StoreError:
                self._disconnect()
                raise

    def begin_change(self, lock: str) -> bool:
        """Begin a change that excludes those with the same lock, here and at the other proxies. False: one is
        under way. Raises StoreError."""
        with self._checking:
            if lock in self._changing:
                return False
            connection = self._connection
            if connection is None or connection.stale():
                self._disconnect()
                connection = self._connect()
            if not self._lock(connection, lock, 0) and not self._is_strange(connection, lock):
                return False
            self._changing.add(lock)
            return True

    def end_change(self, lock: str) -> None:
        """End a change that has begun. Raises StoreError; it has ended all the same."""
        with self._checking:
            self._changing.discard(lock)
            if self._connection is not None:
                self._connection.run([statement("roster_release", lock=text_literal(lock))])

    def _is_strange(self, connection: StoreConnection, lock: str) -> bool:
        """Whether a connection that is no proxy's holds a lock."""
        (row,) = connection.run([statement("roster_stranger", lock=text_literal(lock))])
        holder, of_account = text_values(row.rows[0])
        return holder is not None and of_account == b"0"

    def close(self) -> None:
        """Leave the roster. Later calls of `check` raise StoreError."""
        self._closed = True
        self.abandon()

    def abandon(self) -> None:
        """Leave the roster of a server that is not used any more. The next check uses the present
        one."""
        if self._checking.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._checking.release()
        elif (connection := self._connection) is not None:
            connection.abort()

    def _connect(self) -> StoreConnection:
        if self._closed:
            raise StoreError(CLOSED)
        self._connection = connection = self._open_connection()
        if self._closed:  # While it was opened.
            raise StoreError(CLOSED)
        connection.run([statement("roster_session", idle_s=self._idle_s)])
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._slot, self._others = None, ()
        self._announced.clear()
        if connection is not None:
            connection.close()

    def _check(self, connection: StoreConnection, queues: Collection[TableId]) -> Timed[Roster]:
        expected = self._others
        now, slots, partners = self._read(connection, queues, expected)
        if self._slot is None:
            self._slot = self._take_slot(connection, slots)
        self._others = [slot for slot in slots if slot != self._slot]
        self._announce(connection, queues if self._others else ())
        if self._others != expected and queues:
            now, _, partners = self._read(connection, queues, self._others)
        return Timed(Roster(self._slot, frozenset(self._others), partners), now)

    def _read(
        self, connection: StoreConnection, queues: Collection[TableId], others: Sequence[int]
    ) -> tuple[int, list[int], dict[TableId, tuple[int, ...]]]:
        """The server's clock, the slots that are held, and which of `others` have streams on which of
        `queues`."""
        pairs = [(queue, slot) for queue in queues for slot in others]
        slots = [_slot_lock(slot) for slot in self._slots]
        streams = [_queue_lock(slot, queue) for queue, slot in pairs]
        (row,) = connection.run([statement("roster_read", slots=_are_used(slots), streams=_are_used(streams))])
        now, slot_bits, stream_bits = text_values(row.rows[0])
        held = [slot for slot, bit in zip(self._slots, slot_bits or b"", strict=True) if bit == _USED]
        partners: dict[TableId, tuple[int, ...]] = {}
        for (queue, slot), bit in zip(pairs, stream_bits or b"", strict=True):
            if bit == _USED:
                partners[queue] = (*partners.get(queue, ()), slot)
        return int(now or 0), held, partners

    def _take_slot(self, connection: StoreConnection, held: Collection[int]) -> int | None:
        """Take a slot: the one that this proxy had, if it can. None: there is none.

        Raises StoreError if this proxy's former connection still has its lock.
        """
        before, mark = self._slot_before, f"{SLOT_LOCK}mark/{secrets.token_hex(16)}"
        holder, is_own = self._holder(connection, before or 0)
        self._marks.append(mark)
        if not self._lock(connection, mark, 0):
            raise StoreError(f"the server has not given the lock {mark}, which nobody has")
        if before is not None and holder is not None and is_own:
            slot: int | None = self._retake(connection, before, holder)
        else:  # The former connection may have ended since `held` was read.
            slot = self._take_free(connection, [other for other in held if holder is not None or other != before])
        if slot is not None:
            self._slot_before = slot
            self._marks = deque([mark], MARKS_MAX)
        return slot

    def _take_free(self, connection: StoreConnection, held: Collection[int]) -> int | None:
        """Another proxy may be faster, so each free slot is tried.

        The slot that this proxy had is the first. The others come in any order: a proxy that begins
        while another one replaces its connection rarely takes the slot of that one.
        """
        free = [slot for slot in self._slots if slot not in held]
        random.shuffle(free)
        free.sort(key=lambda slot: slot != self._slot_before)
        return next((slot for slot in free if self._lock(connection, _slot_lock(slot), 0)), None)

    def _retake(self, connection: StoreConnection, slot: int, former: int) -> int:
        """End the former connection, and take its slot."""
        with suppress(StoreError):  # It may have ended meanwhile (1094).
            connection.run([statement("kill", connection_id=former)])
        if not self._lock(connection, _slot_lock(slot), RETAKE_S):
            raise StoreError(f"this proxy's former connection still has the lock {_slot_lock(slot)}")
        return slot

    def _holder(self, connection: StoreConnection, slot: int) -> tuple[int | None, bool]:
        """The server's id of the connection that holds a slot (None: none does), and whether it is this proxy's."""
        marks = ", ".join(["NULL", *(f"IS_USED_LOCK({text_literal(mark)})" for mark in self._marks)])
        (row,) = connection.run([statement("roster_holder", lock=text_literal(_slot_lock(slot)), marks=marks)])
        holder, is_own = text_values(row.rows[0])
        return None if holder is None else int(holder), is_own == b"1"

    def _lock(self, connection: StoreConnection, lock: str, wait_s: int) -> bool:
        """Whether this connection has got a lock."""
        (row,) = connection.run([statement("roster_lock", lock=text_literal(lock), wait_s=wait_s)])
        return text_values(row.rows[0])[0] == b"1"

    def _announce(self, connection: StoreConnection, queues: Collection[TableId]) -> None:
        """Hold the locks of these queues and of no others. One that somebody else holds is tried again at
        the next check."""
        if self._slot is None:
            return
        wanted = set(queues)
        new, old = list(wanted - self._announced), self._announced - wanted
        calls = [f"COALESCE(GET_LOCK({_literal(self._slot, queue)}, 0), 0)" for queue in new]
        calls += [f"COALESCE(RELEASE_LOCK({_literal(self._slot, queue)}), 0)" for queue in old]
        if not calls:
            return
        (row,) = connection.run([statement("roster_announce", calls=", ".join(calls))])
        (done,) = text_values(row.rows[0])
        taken = {queue for queue, digit in zip(new, done or b"", strict=False) if digit == _USED}
        self._announced = self._announced - old | taken


_USED = ord("1")


def _slot_lock(slot: int) -> str:
    return f"{SLOT_LOCK}{slot}"


def _queue_lock(slot: int, queue: TableId) -> str:
    """The name of a lock has 64 characters at most, and its case does not count."""
    digest = hashlib.sha256(f"{queue.db}\0{queue.name}".encode()).hexdigest()
    return f"{SLOT_LOCK}{slot}/{digest[:40]}"


def _literal(slot: int, queue: TableId) -> str:
    return text_literal(_queue_lock(slot, queue))


def _are_used(locks: Sequence[str]) -> str:
    """Arguments of CONCAT: a digit for each lock, and an empty text so that there is one argument."""
    return ", ".join(["''", *(f"IS_USED_LOCK({text_literal(lock)}) IS NOT NULL" for lock in locks)])
