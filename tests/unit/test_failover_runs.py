"""The command line of the failovers that are counted: `make test-failover` gives it no kind."""

from __future__ import annotations

import pytest

from tests.support.failover_runs import KINDS, arguments


def test_without_a_kind_all_kinds_run() -> None:
    assert arguments([]).kinds == list(KINDS)


def test_the_kinds_that_are_given_run() -> None:
    assert arguments(["galera", "mysql-async", "--times", "5"]).kinds == ["galera", "mysql-async"]


def test_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["mysql-synchronous"])
    assert "invalid choice: 'mysql-synchronous'" in capsys.readouterr().err
