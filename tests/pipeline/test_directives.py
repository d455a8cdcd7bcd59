"""The pipeline reads a table's comment as the proxy does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.catalog.directives import split_comment
from pipeline.common.directives import Directives

PARTS = ["vitess_message", "vt_purge_after", "xvt_purge_after", "vt_purge_after=1", "=", " ", "7", ",", "a note"]


@given(st.lists(st.sampled_from(PARTS), max_size=8).map("".join))
def test_it_finds_the_same_value_as_the_proxy(comment: str) -> None:
    assert Directives(comment).get("vt_purge_after") == split_comment(comment)[0].get("vt_purge_after")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3600", 3600), ("1.5", 1.5), (".5", 0.5), ("soon", None), ("", None), ("-1", None), ("nan", None), ("1e3", None)],
)
def test_a_time_is_read_where_the_proxy_accepts_it(value: str, seconds: float | None) -> None:
    assert Directives(f"vitess_message,vt_purge_after={value}").seconds("vt_purge_after") == seconds


def test_a_directive_that_is_missing_has_no_time() -> None:
    assert Directives("vitess_message").seconds("vt_purge_after") is None
