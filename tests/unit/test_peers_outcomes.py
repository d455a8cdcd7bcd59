"""Comparing two runs of a suite that others wrote: what counts as the same, and what is said of what is not."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.peers.outcomes import (
    Comparison,
    Difference,
    Explanation,
    compare,
    counts,
    explainer,
    read_connector,
    read_explanations,
    read_go,
    read_junit,
    results_page,
)
from tests.peers.suites import SUITES, lock_of

REPOSITORY = Path(__file__).parents[2]

JUNIT = """
<testsuites><testsuite>
  <testcase classname="a.B" name="good" />
  <testcase classname="a.B" name="bad"><failure>no</failure></testcase>
  <testcase classname="a.B" name="broken"><error>no</error><system-out>text</system-out></testcase>
  <testcase classname="a.B" name="left_out"><skipped/></testcase>
  <testcase classname="a.B" name="good"><failure>no</failure></testcase>
  <testcase name="alone" />
</testsuite></testsuites>
"""


def unexplained(_test: str) -> None:
    return None


def test_a_junit_report_names_each_test_once() -> None:
    assert read_junit(JUNIT) == {
        "a.B.good": "passed",
        "a.B.bad": "failed",
        "a.B.broken": "failed",
        "a.B.left_out": "skipped",
        "a.B.good #2": "failed",
        "alone": "passed",
    }


def test_a_name_that_depends_on_how_far_a_test_came_is_made_one() -> None:
    report = '<testsuite><testcase classname="t" name="a (using MySQLConnection)" time="1"/></testsuite>'
    assert read_connector(report) == {"t.a": "passed"}


def test_a_run_that_was_broken_off_before_its_report_has_no_outcomes() -> None:
    assert read_junit("") == {}


def test_a_report_of_go_is_what_its_tests_ended_with() -> None:
    events = [
        {"Action": "run", "Test": "TestA"},
        {"Action": "output", "Test": "TestA", "Output": "--- FAIL"},
        {"Action": "pass", "Test": "TestA/part"},
        {"Action": "fail", "Test": "TestA"},
        {"Action": "skip", "Test": "TestB"},
        {"Action": "fail", "Package": "p"},
    ]
    text = "go: something first\n" + "\n".join(map(json.dumps, events))
    assert read_go(text) == {"TestA": "failed", "TestA/part": "passed", "TestB": "skipped"}


def test_the_same_outcomes_are_no_difference_whatever_they_are() -> None:
    outcomes = read_junit(JUNIT)
    assert compare(outcomes, dict(outcomes), unexplained) == []


def test_a_test_that_one_run_does_not_name_is_a_difference() -> None:
    assert compare({"a": "passed"}, {"b": "failed"}, unexplained) == [
        Difference("a", "passed", "absent", None),
        Difference("b", "absent", "failed", None),
    ]


def test_an_explanation_holds_for_its_suite_server_and_whole_test_names() -> None:
    entries = [Explanation("s", r"a\.b", "for b"), Explanation("s", "c.*", "for c", flavour="mysql")]
    on_mysql, on_mariadb = explainer(entries, "s", "mysql"), explainer(entries, "s", "mariadb")
    assert [on_mysql(test) for test in ("a.b", "a.bc", "cde")] == ["for b", None, "for c"]
    assert [on_mariadb(test) for test in ("a.b", "cde")] == ["for b", None]
    assert explainer(entries, "another", "mysql")("a.b") is None


def test_the_page_shows_figures_differences_and_what_fails_in_both() -> None:
    direct = read_junit(JUNIT)
    proxied = {**direct, "alone": "failed", "a.B.bad": "passed"}
    differences = compare(direct, proxied, {"alone": "It wants a socket."}.get)
    comparison = Comparison("Suite", "1.2", "mysql 9.7.4", direct, proxied, differences)
    page = results_page([comparison], date="2026-11-21", notes="A note.")
    assert "| Suite | 1.2 | mysql 9.7.4 | 2 / 3 / 1 | 2 / 3 / 1 | 2 |" in page
    assert "`alone`: passed direct, failed through the proxy. It wants a socket." in page
    assert "`a.B.bad`: failed direct, passed through the proxy. **Not explained.**" in page
    assert "- Suite, mysql 9.7.4: `a.B.broken`, `a.B.good #2`" in page
    assert [difference.test for difference in comparison.unexplained] == ["a.B.bad"]
    assert counts({}) == "0 / 0 / 0"


def test_each_entry_of_the_list_of_differences_names_a_suite_and_says_why() -> None:
    text = (REPOSITORY / "tests/peers/differences.toml").read_text()
    assert {explanation.suite for explanation in read_explanations(text)} <= {suite.name for suite in SUITES}
    assert all(explanation.why.endswith(".") for explanation in read_explanations(text))
    with pytest.raises(tomllib.TOMLDecodeError):
        read_explanations("[[difference]]\nsuite")


def test_each_suite_has_a_lock_and_each_lock_its_suite() -> None:
    wanted = {lock_of(suite) for suite in SUITES if suite.python} | {"peers-build.txt"}
    assert {path.name for path in (REPOSITORY / "locks").glob("peers-*")} == wanted
