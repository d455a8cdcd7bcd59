"""The store in memory can fail on demand. tests/contract tests all else."""

from __future__ import annotations

import pytest

from engine.model import Wanted
from engine.store.port import StoreError
from tests.support.memory_store import Failure, Row
from tests.support.stores import MemorySubject


@pytest.fixture
def subject() -> MemorySubject:
    made = MemorySubject()
    made.put(Row(1))
    return made


def epoch(subject: MemorySubject) -> int:
    row = subject.row(1)
    assert row is not None
    return row.epoch


@pytest.mark.parametrize(("failure", "done"), [(Failure.NOT_DONE, 0), (Failure.ANSWER_LOST, 1)])
def test_a_call_fails_before_or_after_its_effect(subject: MemorySubject, failure: Failure, done: int) -> None:
    subject.store.failures.append(failure)
    with pytest.raises(StoreError) as caught:
        subject.store.claim(subject.table, [Wanted(1, 0, 10)])
    assert caught.value.code == 2013
    assert epoch(subject) == done


def test_failures_come_in_turn_and_later_calls_succeed(subject: MemorySubject) -> None:
    subject.store.failures.extend([None, Failure.NOT_DONE])
    assert subject.store.lookup(subject.table, [1]).value
    with pytest.raises(StoreError):
        subject.store.lookup(subject.table, [1])
    assert len(subject.store.claim(subject.table, [Wanted(1, 0, 10)]).value) == 1
