"""Conditions made at random are read in every mode, and their canonical form says the same in all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sqlrewrite.condition import Condition
from sqlrewrite.lexicon import SqlMode
from sqlrewrite.stream import parse_stream
from tests.support.conditions import conditions, modes

written = modes.flatmap(lambda mode: st.tuples(st.just(mode), conditions(mode)))


def read(where: str, mode: SqlMode) -> Condition:
    condition = parse_stream(f"STREAM * FROM t WHERE {where} NOWAIT".encode(), mode=mode).condition
    assert condition is not None
    return condition


@given(written, modes)
def test_a_conditions_canonical_form_means_the_same_in_every_mode(made: tuple[SqlMode, str], another: SqlMode) -> None:
    mode, where = made
    condition = read(where, mode)
    assert read(condition.sql(), another) == condition
    assert condition.sql().isascii()
    assert not set(condition.sql()) & set('"\\')


@given(modes.flatmap(lambda mode: st.tuples(st.just(mode), conditions(mode), conditions(mode))))
def test_redundant_parentheses_and_blanks_change_nothing(made: tuple[SqlMode, str, str]) -> None:
    mode, left, right = made
    assert read(f"( {left} )\nand(({right}))", mode) == read(f"({left}) && ({right})", mode)
