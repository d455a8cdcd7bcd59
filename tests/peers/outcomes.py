"""What became of each test of a suite, direct and through the proxy, and whether that is the same.

Pure: reports in, outcomes and text out. A test is known by its name; one that a run does not name at all is `absent`
there. A difference is either explained by an entry of differences.toml or makes the run fail.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

Outcome = Literal["passed", "failed", "skipped", "absent"]
Outcomes = Mapping[str, Outcome]
Reader = Callable[[str], dict[str, Outcome]]

GO_ACTIONS: dict[str, Outcome] = {"pass": "passed", "fail": "failed", "skip": "skipped"}


def read_junit(report: str) -> dict[str, Outcome]:
    """The outcomes in a report of JUnit's form. Of several tests of one name the second is called `name #2`."""
    outcomes: dict[str, Outcome] = {}
    seen: Counter[str] = Counter()
    for case in ET.fromstring(report).iter("testcase") if report else ():  # Empty: the run was broken off.
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        seen[name] += 1
        if seen[name] > 1:
            name = f"{name} #{seen[name]}"
        outcomes[name] = _junit_outcome({part.tag for part in case})
    return outcomes


def _junit_outcome(parts: set[str]) -> Outcome:
    if parts & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in parts else "passed"


def read_connector(report: str) -> dict[str, Outcome]:
    """The same for a suite that adds the class under test to a name, unless the test fails early."""
    return read_junit(re.sub(r' \(using \w+\)"', '"', report))


def read_go(report: str) -> dict[str, Outcome]:
    """The outcomes in what `go test -json` prints."""
    events = [json.loads(line) for line in report.splitlines() if line.startswith("{")]
    return {
        event["Test"]: GO_ACTIONS[event["Action"]]
        for event in events
        if "Test" in event and event["Action"] in GO_ACTIONS
    }


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why tests of a suite may end differently: `test` is a pattern for their whole names."""

    suite: str
    test: str
    why: str
    flavour: str | None = None

    def fits(self, suite: str, flavour: str, test: str) -> bool:
        """Whether it speaks of this test."""
        return self.suite == suite and self.flavour in {None, flavour} and re.fullmatch(self.test, test) is not None


def read_explanations(text: str) -> list[Explanation]:
    """The entries of differences.toml."""
    return [Explanation(**entry) for entry in tomllib.loads(text).get("difference", [])]


@dataclass(frozen=True, slots=True)
class Difference:
    """A test that ended otherwise through the proxy; `why` is None where nobody has explained it."""

    test: str
    direct: Outcome
    proxied: Outcome
    why: str | None

    def __str__(self) -> str:
        return f"{self.test}: {self.direct} direct, {self.proxied} through the proxy"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both runs of one suite on one server."""

    suite: str
    version: str
    server: str
    direct: Outcomes
    proxied: Outcomes
    differences: Sequence[Difference]

    @property
    def unexplained(self) -> list[Difference]:
        """The differences that make the whole run fail."""
        return [difference for difference in self.differences if difference.why is None]


def compare(direct: Outcomes, proxied: Outcomes, explain: Callable[[str], str | None]) -> list[Difference]:
    """The tests that did not end the same."""
    return [
        Difference(test, was, became, explain(test))
        for test in sorted(direct.keys() | proxied.keys())
        if (was := direct.get(test, "absent")) != (became := proxied.get(test, "absent"))
    ]


def explainer(explanations: Iterable[Explanation], suite: str, flavour: str) -> Callable[[str], str | None]:
    """The explanation of a test of this suite on this server, if there is one."""
    entries = list(explanations)

    def explain(test: str) -> str | None:
        return next((entry.why for entry in entries if entry.fits(suite, flavour, test)), None)

    return explain


def counts(outcomes: Outcomes) -> str:
    """Passed, failed and skipped, for a table."""
    number = Counter(outcomes.values())
    return f"{number['passed']} / {number['failed']} / {number['skipped']}"


def results_page(comparisons: Sequence[Comparison], *, date: str, notes: str) -> str:
    """The whole of RESULTS.md."""
    lines = [
        "# Test suites that others wrote, direct and through the proxy",
        "",
        f"Made by `make test-peers` on {date}; do not edit. The figures are passed / failed / skipped.",
        "",
        "| suite | version | server | direct | through the proxy | differences |",
        "|---|---|---|---|---|---|",
        *map(_row, comparisons),
        "",
        "## Differences",
        "",
        *(_differences(comparisons) or ["None."]),
        "",
        "## What fails in both",
        "",
        *(_failures(comparisons) or ["Nothing."]),
        "",
        "## Notes",
        "",
        notes.strip(),
        "",
    ]
    return "\n".join(lines)


def _row(comparison: Comparison) -> str:
    return (
        f"| {comparison.suite} | {comparison.version} | {comparison.server} "
        f"| {counts(comparison.direct)} | {counts(comparison.proxied)} | {len(comparison.differences) or 'none'} |"
    )


def _differences(comparisons: Sequence[Comparison]) -> list[str]:
    return [
        f"- {comparison.suite}, {comparison.server}, `{difference.test}`: "
        f"{difference.direct} direct, {difference.proxied} through the proxy. {difference.why or '**Not explained.**'}"
        for comparison in comparisons
        for difference in comparison.differences
    ]


def _failures(comparisons: Sequence[Comparison]) -> list[str]:
    failing = {
        (comparison.suite, comparison.server): [
            test
            for test, outcome in sorted(comparison.direct.items())
            if outcome == comparison.proxied.get(test) == "failed"
        ]
        for comparison in comparisons
    }
    return [
        f"- {suite}, {server}: {', '.join(f'`{test}`' for test in tests)}"
        for (suite, server), tests in failing.items()
        if tests
    ]
