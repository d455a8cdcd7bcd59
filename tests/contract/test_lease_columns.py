"""Lease columns: which messages are in flight, and at which proxy, follows from the rows alone.

A proxy has a slot, and holds the lock of this slot while it lives.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator

import pytest

from engine.model import NS_PER_S, SLOT_LOCK, SLOTS, Claimed, Key, Return, Wanted
from tests.support.memory_store import Row
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import GROWING, AnySubject, MemorySubject, ServerSubject, kept_subjects
from tests.support.waiting import eventually

S = NS_PER_S


@pytest.fixture(scope="module")
def on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    """Makes one table for each kind of server, and empties it for each test."""
    yield from kept_subjects(server_pool, lambda server, _: ServerSubject(server, columns=GROWING, lease=True))


@pytest.fixture(params=["memory", *SERVERS])
def subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    return MemorySubject(lease=True) if kind == "memory" else on_server(kind)


class Proxies:
    """The locks of two proxies, on slots that no other test uses."""

    def __init__(self, subject: AnySubject) -> None:
        self._subject = subject
        self._locked: dict[int, contextlib.ExitStack] = {}
        self.one, self.other = self._live(), self._live()

    def _live(self) -> int:
        """Take the lock of a free slot."""
        for slot in random.sample(range(1, SLOTS), SLOTS - 1):
            if slot not in self._locked and self._lock(slot):
                return slot
        raise AssertionError("no slot is free")

    def _lock(self, slot: int) -> bool:
        held = contextlib.ExitStack()
        if isinstance(self._subject, ServerSubject):
            cursor = held.enter_context(held.enter_context(self._subject.connect()).cursor())
            cursor.execute("SELECT GET_LOCK(%s, 0)", [f"{SLOT_LOCK}{slot}"])
            if cursor.fetchone() != (1,):
                held.close()
                return False
        else:
            slots_held = self._subject.store.slots_held
            slots_held.add(slot)
            held.callback(slots_held.discard, slot)
        self._locked[slot] = held
        return True

    def die(self, slot: int) -> None:
        """The connection of this proxy ends."""
        self._locked.pop(slot).close()
        if isinstance(self._subject, ServerSubject):
            name = f"{SLOT_LOCK}{slot}"
            server = self._subject
            eventually(lambda: server.execute("SELECT IS_USED_LOCK(%s)", name) == [(None,)])

    def close(self) -> None:
        for held in self._locked.values():
            held.close()


@pytest.fixture
def proxies(subject: AnySubject) -> Iterator[Proxies]:
    made = Proxies(subject)
    yield made
    made.close()


def claim(subject: AnySubject, slot: int, *keys: Key, wait_ns: int = 30 * S) -> list[Claimed]:
    """Insert these messages, due, and claim them for the proxy with this slot."""
    subject.put(*(Row(key, time_next_ns=subject.now_ns() - S) for key in keys))
    return list(subject.store.claim(subject.table, [Wanted(key, 0, wait_ns) for key in keys], slot).value)


def found(subject: AnySubject, slot: int | None = None) -> list[Key]:
    """The messages in flight at proxies that are gone, or with this slot."""
    return sorted((claim.key for claim in subject.store.find_abandoned(subject.table, slot, 100).value), key=str)


def lease_of(subject: AnySubject, key: Key) -> Row:
    """The row of a message that exists."""
    row = subject.row(key)
    assert row is not None
    return row


def test_a_claim_writes_the_end_of_its_lease_twice_with_the_mark_of_its_proxy(subject: AnySubject) -> None:
    (made,) = claim(subject, 37, 1)
    row = lease_of(subject, 1)
    assert row.lease_ns == row.time_next_ns == made.deadline_ns
    assert made.deadline_ns % SLOTS == 37


def test_messages_in_flight_at_a_proxy_that_lives_are_not_abandoned(subject: AnySubject, proxies: Proxies) -> None:
    claim(subject, proxies.one, 1)
    assert found(subject) == []


def test_messages_of_a_proxy_that_is_gone_are_found_and_those_of_others_are_not(
    subject: AnySubject, proxies: Proxies
) -> None:
    claim(subject, proxies.one, 1, 2)
    claim(subject, proxies.other, 3)
    proxies.die(proxies.one)
    assert found(subject) == [1, 2]


def test_a_claim_without_a_mark_belongs_to_nobody_and_is_not_abandoned(subject: AnySubject) -> None:
    claim(subject, 0, 1)
    assert found(subject) == []


def test_messages_in_flight_are_found_by_mark(subject: AnySubject, proxies: Proxies) -> None:
    claim(subject, proxies.one, 1)
    claim(subject, proxies.other, 2)
    assert found(subject, proxies.one) == [1]
    assert found(subject, proxies.other) == [2]


def test_an_acknowledged_message_is_not_in_flight(subject: AnySubject) -> None:
    claim(subject, 37, 1)
    subject.acknowledge(1)
    assert found(subject, 37) == []


def test_a_message_whose_wait_is_over_is_not_in_flight(subject: AnySubject) -> None:
    (made,) = claim(subject, 37, 1, wait_ns=S // 100)
    subject.wait_until(made.deadline_ns)
    assert found(subject, 37) == []


@pytest.mark.parametrize("sent", [True, False])
def test_a_released_message_is_not_in_flight(subject: AnySubject, sent: bool) -> None:
    (made,) = claim(subject, 37, 1)
    subject.store.release(subject.table, [Return(1, made.epoch, made.deadline_ns, made.due_ns, sent)])
    assert found(subject, 37) == []


def test_a_message_that_was_scheduled_by_an_update_is_not_in_flight(subject: AnySubject) -> None:
    (made,) = claim(subject, 37, 1)
    if isinstance(subject, ServerSubject):
        subject.execute("UPDATE messages SET time_next = time_next + 1000000")
    else:
        subject.put(Row(1, epoch=1, time_next_ns=made.deadline_ns + 1_000_000, lease_ns=made.deadline_ns))
    assert found(subject, 37) == []


def test_a_message_that_was_never_delivered_is_not_in_flight_whatever_its_time_is(subject: AnySubject) -> None:
    subject.put(Row(1, time_next_ns=(subject.now_ns() + 60 * S) // SLOTS * SLOTS + 37))
    assert found(subject, 37) == []


def test_a_message_without_a_time_is_due_and_not_in_flight(subject: AnySubject) -> None:
    subject.put(Row(1, time_next_ns=None))
    assert found(subject) == found(subject, 37) == []


def test_abandoned_messages_are_released_as_sent_ones_and_due_at_once(subject: AnySubject) -> None:
    claim(subject, 37, 1)
    claims = subject.store.find_abandoned(subject.table, 37, 100).value
    assert subject.store.release(subject.table, claims).value.rows == 1
    row = lease_of(subject, 1)
    assert row.epoch == 1
    assert row.entry.due_ns <= subject.now_ns()


def test_a_message_that_was_claimed_again_meanwhile_stays_with_its_new_holder(subject: AnySubject) -> None:
    (made,) = claim(subject, 37, 1, wait_ns=S // 10)
    claims = subject.store.find_abandoned(subject.table, 37, 100).value
    assert [claim.key for claim in claims] == [1]
    subject.wait_until(made.deadline_ns)
    (again,) = subject.store.claim(subject.table, [Wanted(1, 1, 30 * S)], 38).value
    assert subject.store.release(subject.table, claims).value.rows == 0
    assert lease_of(subject, 1).time_next_ns == again.deadline_ns


def test_no_more_are_returned_than_were_requested(subject: AnySubject) -> None:
    claim(subject, 37, *range(1, 8))
    assert len(subject.store.find_abandoned(subject.table, 37, 5).value) == 5


def test_in_a_table_without_the_column_none_are_found() -> None:
    subject = MemorySubject()
    claim(subject, 37, 1)
    assert found(subject) == found(subject, 37) == []
