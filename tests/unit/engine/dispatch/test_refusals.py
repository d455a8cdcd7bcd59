"""Messages that the server refuses to claim or to read. tests/property/test_dispatcher.py plays all orders."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from engine.dispatch.effects import Claim, Fetch
from engine.dispatch.limits import Limits
from engine.model import NS_PER_S, Key
from engine.refused import Refusal
from tests.support.play import POLICY, Stage, received, run_for

MINUTE_NS = 60 * NS_PER_S
DAY_NS = 24 * 60 * MINUTE_NS
WIDE = replace(
    POLICY, batch_size=100, cache_size=2_000, ack_wait_ns=DAY_NS, min_backoff_ns=DAY_NS, max_backoff_ns=DAY_NS
)


FEW = Limits(refused_max=20, refused_in_a_row_max=5)


def stage_of(messages: int, *unclaimable: Key, limits: Limits | None = None) -> Stage:
    """A queue with so many messages, some of which cannot be claimed, and one stream."""
    stage = Stage(policy=WIDE, limits=limits or Limits())
    stage.store.unclaimable |= set(unclaimable)
    for key in range(1, messages + 1):
        stage.enqueue(key, wake=False)
    stage.subscribe(1, holder=1)
    return stage


def problem(stage: Stage) -> str:
    """What is said to be wrong."""
    return "; ".join(stage.dispatcher.parts.measures.problems.texts(stage.mono_ns))


@pytest.mark.parametrize("bad", [1, 40, 100])
def test_a_refused_claim_is_made_smaller_until_the_message_stands_alone(bad: int) -> None:
    stage = stage_of(100, bad)
    claims = run_for(stage, NS_PER_S // 2)
    assert sorted(received(stage)) == [key for key in range(1, 101) if key != bad]
    assert [bad] in claims
    assert len(claims) <= 25
    assert problem(stage).endswith(f"a trigger refuses a row (id {bad})")


def test_a_refused_message_is_tried_alone_and_ever_less_often() -> None:
    stage = stage_of(1, 1)
    run_for(stage, NS_PER_S // 2)
    stage.enqueue(2, wake=True)
    claims = run_for(stage, 10 * MINUTE_NS)
    assert received(stage) == [2]
    assert [keys for keys in claims if 1 in keys and keys != [1]] == []
    assert 5 < len(claims) < 20


def test_a_refused_message_is_delivered_when_it_is_repaired() -> None:
    stage = stage_of(10, 4)
    run_for(stage, MINUTE_NS)
    stage.store.unclaimable.clear()
    run_for(stage, 2 * MINUTE_NS)
    assert sorted(received(stage)) == [*range(1, 11)]
    assert problem(stage) == ""


def test_where_all_claims_are_refused_the_statements_are_bounded() -> None:
    stage = stage_of(60, *range(1, 61), limits=FEW)
    at_once = run_for(stage, NS_PER_S // 10)
    later = run_for(stage, MINUTE_NS)
    assert len(at_once) <= 3 * FEW.refused_in_a_row_max
    assert len(later) <= 2 * MINUTE_NS // FEW.failure_pause_min_ns
    assert len(stage.dispatcher.parts.refusals) == FEW.refused_max
    assert problem(stage) == "no message can be claimed: a trigger refuses a row"
    stage.store.unclaimable.clear()
    run_for(stage, 2 * MINUTE_NS)
    assert sorted(received(stage)) == [*range(1, 61)]
    assert problem(stage) == ""


def test_messages_behind_as_many_as_are_passed_over_come_soon() -> None:
    stage = stage_of(40, *range(1, FEW.refused_max + 1), limits=FEW)
    run_for(stage, MINUTE_NS // 6)
    assert sorted(received(stage)) == [*range(FEW.refused_max + 1, 41)]


def test_a_claim_that_took_too_long_is_made_smaller() -> None:
    stage = stage_of(10)
    slow = partial(stage.dispatcher.claim_failed, refusal=Refusal("took too long (3024)", lasted=True))
    sizes: list[int] = []
    for _ in range(60):
        stage.pass_time(NS_PER_S)
        for asked in list(stage.asked):
            if isinstance(asked.effect, Claim) and len(asked.effect.wanted) > 3:
                sizes.append(len(asked.effect.wanted))
                stage.asked.remove(asked)
                stage.handle(slow, asked.effect.claim_id)
            elif asked in stage.asked:
                stage.do(asked)
                stage.answer(asked)
    assert sizes == [10, 5]
    assert sorted(received(stage)) == [*range(1, 11)]


def test_a_row_that_cannot_be_read_is_given_back_and_the_others_are_sent() -> None:
    stage = stage_of(20)
    stage.unread_every = 1
    for _ in range(40):
        stage.pass_time(NS_PER_S // 20)
        for asked in list(stage.asked):
            if asked not in stage.asked:
                continue
            if isinstance(asked.effect, Fetch) and 7 in asked.effect.keys:
                stage.asked.remove(asked)
                failed = partial(stage.dispatcher.fetch_failed, refusal=Refusal("division by zero (1365)"))
                stage.handle(failed, asked.effect.fetch_id, "")
            else:
                stage.do(asked)
                stage.answer(asked)
    assert sorted(received(stage)) == [key for key in range(1, 21) if key != 7]
    assert stage.rows[7].epoch == 0
    assert "division by zero (1365) (id 7)" in problem(stage)
