"""Releases, dead letters and purges: limited batches, one statement at a time, repeated after a failure."""

from __future__ import annotations

from dataclasses import replace

from engine.dispatch.effects import MoveDeadLetters, Purge, Release
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.maintenance import DeadLetters, Purges, Releases
from engine.model import NS_PER_S, Entry, Return
from tests.support.play import POLICY

NOW_NS = 1_000 * NS_PER_S
NOW = Instant(NOW_NS, NOW_NS)
LIMITS = Limits(claim_max=2, purge_rows=10)


def claim(key: int, deadline_ns: int = NOW_NS + NS_PER_S) -> Return:
    return Return(key, 1, deadline_ns, 0, sent=True)


def test_claims_are_released_in_limited_batches() -> None:
    releases = Releases(LIMITS)
    for key in (1, 2, 3):
        releases.add_release(claim(key))
    assert releases.start_release(NOW) == [Release((claim(1), claim(2)))]
    assert releases.start_release(NOW) == []
    assert releases.release_answered() == [claim(1), claim(2)]
    assert releases.start_release(NOW) == [Release((claim(3),))]
    assert len(releases) == 1


def test_a_failed_release_is_repeated_with_growing_pauses_until_its_deadline() -> None:
    releases = Releases(LIMITS)
    releases.add_release(claim(1))
    mono_ns, pauses = NOW_NS, []
    for _ in range(3):
        assert releases.start_release(Instant(mono_ns, NOW_NS)) == [Release((claim(1),))]
        assert releases.release_failed(Instant(mono_ns, NOW_NS)) == [claim(1)]
        assert releases.release_ns is not None
        assert releases.start_release(Instant(releases.release_ns - 1, NOW_NS)) == []
        pauses.append(releases.release_ns - mono_ns)
        mono_ns = releases.release_ns
    least_ns = LIMITS.failure_pause_min_ns
    assert pauses == [least_ns, 2 * least_ns, 4 * least_ns]
    assert releases.start_release(Instant(mono_ns, NOW_NS + NS_PER_S)) == []
    assert (len(releases), releases.release_ns) == (0, None)


def test_dead_messages_are_moved_in_limited_batches_and_the_unmoved_are_returned() -> None:
    dead_letters = DeadLetters(POLICY, LIMITS)
    entries = [Entry(key, 5, 0, 0) for key in (1, 2, 3)]
    for entry in [*entries, entries[0]]:
        dead_letters.add_dead(entry, NOW)
    (effect,) = dead_letters.start_move(NOW)
    assert isinstance(effect, MoveDeadLetters)
    assert [(wanted.key, wanted.epoch) for wanted in effect.dead] == [(1, 5), (2, 5)]
    assert dead_letters.start_move(NOW) == []
    assert [key in dead_letters for key in (1, 2, 3)] == [True, True, True]
    assert dead_letters.move_answered(NOW, {1}) == [entries[1]]
    assert [key in dead_letters for key in (1, 2, 3)] == [False, False, True]


def test_a_purge_with_more_to_delete_is_followed_by_another_at_once_and_others_by_a_pause() -> None:
    """One that could delete nothing, because the server has refused all of it, too."""
    policy = replace(POLICY, purge_after_ns=100 * NS_PER_S)
    purges = Purges(policy, LIMITS, NOW)
    for deleted, more, pause_ns in ((499, True, 0), (499, False, 10 * NS_PER_S), (0, True, 10 * NS_PER_S)):
        assert purges.start_purge(NOW) == [Purge(policy.purge_after_ns, LIMITS.purge_rows)]
        assert (purges.start_purge(NOW), purges.purge_ns) == ([], None)
        purges.purge_answered(NOW, deleted, more=more)
        assert purges.purge_ns == NOW_NS + pause_ns
        purges = Purges(policy, LIMITS, NOW)


def test_a_shorter_retention_brings_the_next_purge_forward() -> None:
    purges = Purges(POLICY, LIMITS, NOW)
    purges.start_purge(NOW)
    purges.purge_answered(NOW, 0, more=False)
    purges.set_policy(replace(POLICY, purge_after_ns=20 * NS_PER_S), NOW)
    assert purges.purge_ns == NOW_NS + 2 * NS_PER_S


def test_a_dead_message_is_moved_when_it_comes_due_on_the_servers_clock() -> None:
    dead_letters = DeadLetters(POLICY, LIMITS)
    dead_letters.add_dead(Entry(1, 5, 0, NOW_NS + NS_PER_S), NOW)
    assert dead_letters.next_due_ns == NOW_NS + NS_PER_S
    assert dead_letters.start_move(NOW) == []
    (effect,) = dead_letters.start_move(Instant(NOW_NS, NOW_NS + NS_PER_S))
    assert isinstance(effect, MoveDeadLetters)
    assert dead_letters.next_due_ns is None


def test_a_dead_message_that_is_acknowledged_before_it_is_due_is_not_moved() -> None:
    dead_letters = DeadLetters(POLICY, LIMITS)
    dead_letters.add_dead(Entry(1, 5, 0, NOW_NS + NS_PER_S), NOW)
    dead_letters.forget([1])
    assert dead_letters.start_move(Instant(NOW_NS, NOW_NS + NS_PER_S)) == []
