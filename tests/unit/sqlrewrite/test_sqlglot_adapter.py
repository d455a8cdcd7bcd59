"""What ackstream needs of sqlglot: a release that cuts text in another way than the server fails here."""

from __future__ import annotations

import pytest

from sqlrewrite import sqlglot_adapter
from sqlrewrite.sqlglot_adapter import SAMPLES, IncompatibleVersionError, UncuttableError, cut


@pytest.mark.parametrize(("sql", "ansi_quotes", "no_backslash_escapes", "tokens"), SAMPLES)
def test_text_is_cut_as_the_server_cuts_it(
    sql: str, *, ansi_quotes: bool, no_backslash_escapes: bool, tokens: tuple[str, ...]
) -> None:
    spans = cut(sql, ansi_quotes=ansi_quotes, no_backslash_escapes=no_backslash_escapes)
    assert tuple(sql[start:end] for start, end in spans) == tokens


@pytest.mark.parametrize("sql", ["'a", "`a", '"a'])
def test_what_is_not_closed_cannot_be_cut(sql: str) -> None:
    with pytest.raises(UncuttableError):
        cut(sql, ansi_quotes=False, no_backslash_escapes=False)


def test_the_installed_release_fits() -> None:
    sqlglot_adapter.check()


def test_a_release_that_cuts_in_another_way_is_named_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlglot_adapter, "SAMPLES", [("a b", False, False, ("a b",))])
    with pytest.raises(
        IncompatibleVersionError, match=r"^sqlglot [\d.]+ does not fit .* it cuts 'a b' into \('a', 'b'\)"
    ):
        sqlglot_adapter.check()


def test_a_release_that_fails_is_named_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlglot_adapter, "SAMPLES", [("'a", False, False, ())])
    with pytest.raises(IncompatibleVersionError, match='it fails at "\'a" with UncuttableError'):
        sqlglot_adapter.check()
