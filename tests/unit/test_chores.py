"""What is done for a table whoever streams: some at a time, one statement at a time, and again when it failed."""

from __future__ import annotations

from dataclasses import replace

from engine.chores import Burials, Purges, Returns
from engine.effects import Bury, Purge, Release
from engine.model import NS_PER_S, Entry, Return
from engine.pacing import Limits
from tests.support.play import POLICY

NOW_NS = 1_000 * NS_PER_S
LIMITS = Limits(claim_max=2, purge_rows=10)


def claim(key: int, deadline_ns: int = NOW_NS + NS_PER_S) -> Return:
    return Return(key, 1, deadline_ns, 0, sent=True)


def test_claims_are_given_back_some_at_a_time() -> None:
    returns = Returns(LIMITS)
    for key in (1, 2, 3):
        returns.add(claim(key))
    assert returns.begin(NOW_NS) == [Release((claim(1), claim(2)))]
    assert returns.begin(NOW_NS) == []
    assert returns.done() == (claim(1), claim(2))
    assert returns.begin(NOW_NS) == [Release((claim(3),))]
    assert len(returns) == 1


def test_giving_back_is_tried_again_with_longer_and_longer_pauses_while_it_matters() -> None:
    returns = Returns(LIMITS)
    returns.add(claim(1))
    now_ns, pauses = NOW_NS, []
    for _ in range(3):
        assert returns.begin(now_ns) == [Release((claim(1),))]
        assert returns.failed(now_ns) == (claim(1),)
        assert returns.at_ns is not None
        assert returns.begin(returns.at_ns - 1) == []
        pauses.append(returns.at_ns - now_ns)
        now_ns = returns.at_ns
    least_ns = LIMITS.failure_pause_min_ns
    assert pauses == [least_ns, 2 * least_ns, 4 * least_ns]
    returns.pass_time(NOW_NS + NS_PER_S)
    assert (len(returns), returns.at_ns) == (0, None)


def test_dead_messages_are_buried_some_at_a_time_and_the_others_told() -> None:
    burials = Burials(LIMITS)
    entries = [Entry(key, 5, 0, 0) for key in (1, 2, 3)]
    for entry in [*entries, entries[0]]:
        burials.add(entry)
    (effect,) = burials.begin()
    assert isinstance(effect, Bury)
    assert [(each.key, each.epoch) for each in effect.dead] == [(1, 5), (2, 5)]
    assert burials.begin() == []
    assert set(burials) == {1, 2, 3}
    assert burials.done({1}) == [entries[1]]
    assert set(burials) == {3}


def test_a_full_purge_is_followed_by_another_at_once_and_others_by_a_pause() -> None:
    policy = replace(POLICY, purge_after_ns=100 * NS_PER_S)
    purges = Purges(LIMITS, NOW_NS)
    for deleted, pause_ns in ((LIMITS.purge_rows, 0), (LIMITS.purge_rows - 1, 10 * NS_PER_S)):
        assert purges.begin(NOW_NS, policy) == [Purge(policy.purge_after_ns, LIMITS.purge_rows)]
        assert (purges.begin(NOW_NS, policy), purges.at_ns) == ([], None)
        purges.done(NOW_NS, policy, deleted)
        assert purges.at_ns == NOW_NS + pause_ns


def test_messages_that_are_kept_for_less_long_are_purged_sooner() -> None:
    purges = Purges(LIMITS, NOW_NS)
    purges.begin(NOW_NS, POLICY)
    purges.done(NOW_NS, POLICY, 0)
    purges.reconfigure(NOW_NS, replace(POLICY, purge_after_ns=20 * NS_PER_S))
    assert purges.at_ns == NOW_NS + 2 * NS_PER_S
