"""What is wrong with a queue, in words: what is shown, and what is logged."""

from __future__ import annotations

import pytest

from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease, LeaseState
from engine.dispatch.measures import Measures
from engine.dispatch.problems import KEPT_NS, LOGGED_NS, Kind, Problems
from engine.dispatch.repeats import KNOWN_MAX, MANY
from engine.model import NS_PER_S


def problems() -> tuple[Problems, list[tuple[Kind, str]]]:
    """Problems, and what they report for the log."""
    found, logged = Problems(), list[tuple[Kind, str]]()
    found.on_report = lambda kind, text: logged.append((kind, text))
    return found, logged


def test_kinds_that_alternate_are_logged_once_each() -> None:
    found, logged = problems()
    for second in range(50):
        found.note(Kind.DEAD_LETTER, f"a column is missing, attempt {second}", second)
        found.note(Kind.SEMAPHORE, "no table", second)
    assert logged == [(Kind.DEAD_LETTER, "a column is missing, attempt 0"), (Kind.SEMAPHORE, "no table")]


def test_a_kind_is_logged_again_after_a_minute_with_what_is_true_then() -> None:
    found, logged = problems()
    for at_ns, text in ((0, "one row"), (1, "two rows"), (LOGGED_NS, "three rows")):
        found.note(Kind.CLAIM, text, at_ns)
    assert [text for _, text in logged] == ["one row", "three rows"]


def test_a_problem_that_stays_the_same_is_logged_once_as_long_as_it_lasts() -> None:
    found, logged = problems()
    for at_ns in range(0, 10 * LOGGED_NS, LOGGED_NS):
        found.note(Kind.OVERDUE, "message 5", at_ns)
    found.note(Kind.OVERDUE, None, 10 * LOGGED_NS)
    assert len(logged) == 1
    found.note(Kind.OVERDUE, "message 5", 11 * LOGGED_NS)
    found.note(Kind.OVERDUE, "message 5", 11 * LOGGED_NS + KEPT_NS)  # Nobody has noted it meanwhile.
    assert len(logged) == 3


def test_a_problem_is_shown_until_it_is_over_or_was_not_noted_for_long() -> None:
    found, _ = problems()
    found.note(Kind.CLAIM, "one row", 0)
    found.note(Kind.PURGE, "another row", 0)
    found.note(Kind.DEAD_LETTER, "names another table", 0)
    assert found.texts(1) == ["one row", "another row", "names another table"]
    assert found.texts(1, of_rows=True) == ["one row", "another row"]
    found.note(Kind.CLAIM, None, 2)
    assert found.texts(KEPT_NS - 1, of_rows=True) == ["another row"]
    assert found.texts(KEPT_NS) == []


def sent(measures: Measures, epoch: int, at_s: float, key: int = 5, *, locked: bool = False) -> Lease:
    lease = Lease(key, epoch, 0, 0, 0, locked=locked)
    lease.state = LeaseState.SENT
    measures.sent((lease,), Instant(round(at_s * NS_PER_S), 10**18))
    return lease


@pytest.mark.parametrize("locked", [False, True])
def test_a_message_that_comes_again_and_again_is_a_problem_until_it_is_over(*, locked: bool) -> None:
    measures = Measures()
    leases = [sent(measures, epoch + (not locked), 2.0 * epoch, locked=locked) for epoch in range(18)]
    (text,) = measures.problems.texts(34 * NS_PER_S, of_rows=True)
    assert text.startswith("message 5 has been delivered 18 times and comes again within a minute")
    measures.settled(leases[-1:], Instant(35 * NS_PER_S, 10**18))
    assert measures.problems.texts(35 * NS_PER_S) == []


def test_a_message_whose_wait_is_over_is_a_problem() -> None:
    measures = Measures()
    measures.waits_over((Lease(4, 1, 0, 0, 0), sent(measures, 2, 0.0)), Instant(0, 10**18))
    assert measures.expired == 1
    (text,) = measures.problems.texts(0, of_rows=True)
    assert text.startswith("message 5 was not acknowledged within its wait, in delivery 2")


def test_a_message_whose_attempts_lie_far_apart_is_none() -> None:
    measures = Measures()
    for epoch in range(1, 25):
        sent(measures, epoch, 2.0**epoch)
    for key in range(10 * KNOWN_MAX):
        sent(measures, MANY, 0.0, key)
    assert measures.problems.texts(2**24 * NS_PER_S) == []
    assert len(measures.repeats) == KNOWN_MAX
