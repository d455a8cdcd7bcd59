"""Claims and their form in a checkpoint."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pipeline.common.statements import Id
from pipeline.source.claims import NOTHING, Claim, Claims

DELIVERIES = st.tuples(st.integers(1, 3), st.sampled_from([1_764_280_000_123_456_001, 1_764_280_000_223_456_001]))
WHOLE = st.dictionaries(st.integers(-(2**63), 2**64 - 1) | st.integers(-5, 60), DELIVERIES, max_size=200)
TEXT = st.dictionaries(st.text(max_size=20), DELIVERIES, max_size=100)
BYTES = st.dictionaries(st.binary(max_size=16), DELIVERIES, max_size=100)

Messages = dict[Id, Claim]


def claims_of(messages: Messages) -> Claims:
    return Claims.of((key, *claim) for key, claim in messages.items())


@given(WHOLE | TEXT | BYTES)
def test_an_offset_gives_back_its_claims_after_it_has_been_json(messages: Messages) -> None:
    claims = claims_of(messages)
    offset = json.loads(json.dumps(claims.offset()))
    assert offset["messages"] == len(messages)
    assert {key: claim for key, *claim in Claims.from_offset(offset)} == {key: [*messages[key]] for key in messages}
    assert Claims.from_offset(offset) == claims


@given(WHOLE | TEXT, st.integers(1, 9))
def test_parts_hold_every_claim_once_and_are_of_one_size(messages: Messages, pieces: int) -> None:
    parts = claims_of(messages).split(pieces)
    assert [claim for part in parts for claim in part] == list(claims_of(messages))
    assert len(parts) == min(pieces, len(messages))
    assert all(parts)
    assert max(map(len, parts), default=0) - min(map(len, parts), default=0) <= 1


def test_runs_of_ids_are_short_and_can_be_read() -> None:
    claims = Claims.of([*((number, 1, 5) for number in range(1_000, 101_000)), (101_002, 1, 5), (7, 2, 6)])
    assert claims.offset() == {"messages": 100_002, "claims": "1@5:1000+99999,3;2@6:7"}
    assert NOTHING.offset() == {"messages": 0, "claims": ""}
    assert Claims.from_offset(NOTHING.offset()) == NOTHING


def test_the_offset_of_an_earlier_version_has_no_claims_that_could_be_recognised() -> None:
    assert Claims.from_offset({"messages": 500, "claims": "1:1000+499"}) == NOTHING


def test_the_largest_batch_of_scattered_ids_makes_a_small_offset() -> None:
    scattered = (number * number % 1_000_003 * 7_919 for number in range(100_000))
    claims = Claims.of((key, 1, 1_764_280_000_123_456_001 + at // 1_000 * 40_000) for at, key in enumerate(scattered))
    assert len(json.dumps(claims.offset())) < 400_000


def test_chunks_name_ids_of_one_epoch_of_any_claim() -> None:
    claims = Claims.of([(1, 1, 5), (2, 1, 6), (3, 1, 5), (9, 2, 5)])
    assert list(claims.chunks(2)) == [(1, (1, 2)), (1, (3,)), (2, (9,))]
