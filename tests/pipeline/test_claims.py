"""Claims and their form in a checkpoint."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pipeline.common.statements import Id
from pipeline.source.claims import NOTHING, Claims

EPOCHS = st.integers(1, 3)
WHOLE = st.dictionaries(st.integers(-(2**63), 2**64 - 1) | st.integers(-5, 60), EPOCHS, max_size=200)
TEXT = st.dictionaries(st.text(max_size=20), EPOCHS, max_size=100)
BYTES = st.dictionaries(st.binary(max_size=16), EPOCHS, max_size=100)


@given(WHOLE | TEXT | BYTES)
def test_an_offset_gives_back_its_claims_after_it_has_been_json(messages: dict[Id, int]) -> None:
    claims = Claims.of(messages.items())
    offset = json.loads(json.dumps(claims.offset()))
    assert offset["messages"] == len(messages)
    assert dict(Claims.from_offset(offset)) == messages
    assert Claims.from_offset(offset) == claims


@given(WHOLE | TEXT, st.integers(1, 9))
def test_parts_hold_every_claim_once_and_are_of_one_size(messages: dict[Id, int], pieces: int) -> None:
    parts = Claims.of(messages.items()).split(pieces)
    assert [claim for part in parts for claim in part] == list(Claims.of(messages.items()))
    assert len(parts) == min(pieces, len(messages))
    assert all(parts)
    assert max(map(len, parts), default=0) - min(map(len, parts), default=0) <= 1


def test_runs_of_ids_are_short_and_can_be_read() -> None:
    claims = Claims.of([*((number, 1) for number in range(1_000, 101_000)), (101_002, 1), (7, 2)])
    assert claims.offset() == {"messages": 100_002, "claims": "1:1000+99999,3;2:7"}
    assert NOTHING.offset() == {"messages": 0, "claims": ""}
    assert Claims.from_offset(NOTHING.offset()) == NOTHING


def test_the_largest_batch_of_scattered_ids_makes_a_small_offset() -> None:
    scattered = Claims.of((number * number % 1_000_003 * 7_919, 1) for number in range(100_000))
    assert len(json.dumps(scattered.offset())) < 300_000


def test_chunks_name_ids_of_one_epoch() -> None:
    claims = Claims.of([(1, 1), (2, 1), (3, 1), (9, 2)])
    assert list(claims.chunks(2)) == [(1, (1, 2)), (1, (3,)), (2, (9,))]
