"""Writes the tables of README.md and docs/performance.md from the page of results.

    .venv/bin/python -m bench.compare.summary

`make bench` does the same at its end. A table stands between two comments (`written`), which stay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare.competitors import COMPETITORS
from bench.compare.model import Case
from bench.compare.mysql import FLOOR, FLOOR_OF
from bench.compare.report import DRAIN, LATENCY, table

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "bench/results/compare.md"
BEGIN, END = "<!-- made by make bench -->", "<!-- end of what make bench made -->"

ROW = re.compile(r"^\| (?P<cells>.+) \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Drains:
    """The medians of one queue, by case, and the least of its median latencies."""

    rates: Mapping[Case, float]
    latency_ms: float | None = None

    def best(self, chosen: Callable[[Case], bool]) -> float | None:
        """Return the greatest rate of the chosen cases; None if none was measured."""
        return max((rate for case, rate in self.rates.items() if chosen(case)), default=None)


def read(page: str) -> dict[str, Drains]:
    """Return what the page of results has of each queue, in its order."""
    cases = {(competitor.name, case.name): case for competitor in COMPETITORS for case in competitor.cases}
    rates: dict[str, dict[Case, float]] = {}
    for name, case, rate, *_ in _rows(page, DRAIN):
        rates.setdefault(name, {})[cases[name, case]] = _median(rate)
    latencies: dict[str, float] = {}
    for name, _, p50, *_ in _rows(page, LATENCY):
        latencies[name] = min(_median(p50), latencies.get(name, math.inf))
    return {name: Drains(found, latencies.get(name)) for name, found in rates.items()}


def _rows(page: str, heading: str) -> Iterable[Sequence[str]]:
    """Yield the cells of a section's table, without its head."""
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [match["cells"].split(" | ") for match in ROW.finditer(section)][2:]


def _median(cell: str) -> float:
    return float(cell.partition(" (")[0].replace(",", ""))


def _system(name: str) -> str:
    """Return the name of the column: without server and kind of durability."""
    return name.partition(",")[0]


def overview(queues: Mapping[str, Drains]) -> str:
    """Return a small table: a column for each system, as durable as each can be made."""
    durable = {
        name: drains for name, drains in queues.items() if not name.endswith(", default") and _system(name) != FLOOR
    }
    systems = list(dict.fromkeys(map(_system, durable)))
    members = {system: [drains for name, drains in durable.items() if _system(name) == system] for system in systems}

    def line(title: str, figure: Callable[[Drains], float | None], form: str) -> Sequence[str]:
        cells = []
        for system in systems:
            found = [figure(drains) for drains in members[system]]
            shown = ["–" if value is None else f"{value:{form}}" for value in found]
            cells.append(" / ".join(shown) if any(value is not None for value in found) else "–")
        return title, *cells

    return table(
        ("", *systems),
        (
            line("finished in batches, messages/s", lambda drains: drains.best(lambda case: case.batch > 1), ",.0f"),
            line("finished one by one, messages/s", lambda drains: drains.best(lambda case: case.batch == 1), ",.0f"),
            line("enqueueing to consumer, p50, ms", lambda drains: drains.latency_ms, ".1f"),
        ),
    )


def beside_by_hand(queues: Mapping[str, Drains]) -> str:
    """Return a line for each way to consume by the proxy, with the ratios to the best by hand and to the same writes
    without a queue."""
    servers = [name.removeprefix("ackstream, ") for name in queues if name.startswith("ackstream, ")]
    cases = list(dict.fromkeys(case for server in servers for case in queues[f"ackstream, {server}"].rates))
    lines = []
    for case in cases:
        cells = []
        for server in servers:
            rate = queues[f"ackstream, {server}"].rates[case]
            hand = queues.get(f"by hand, {server}", Drains({}))
            best = hand.best(lambda other, size=case.batch: other.batch == size)  # type: ignore[misc]
            floor = queues.get(f"{FLOOR}, {server}", Drains({})).rates.get(FLOOR_OF[case]) if case in FLOOR_OF else None
            cells += [f"{rate:,.0f}", *(f"{rate / other:.2f}" if other else "–" for other in (best, floor))]
        lines.append((case.name, *cells))
    heads = [head for server in servers for head in (f"{server}, messages/s", "of by hand", "of known ids")]
    return table(("consumers", *heads), lines)


def written(document: str, content: str) -> str:
    """Return the document with the content between the two comments. Raises ValueError without them."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"there is no place for a table between {BEGIN} and {END}")
    return f"{before}{begin}\n{content}{end}{after}"


def documents(page: str) -> dict[Path, str]:
    """Return the documents as they are to be."""
    queues = read(page)
    contents = {
        REPOSITORY / "README.md": overview(queues),
        REPOSITORY / "docs/performance.md": beside_by_hand(queues),
    }
    return {path: written(path.read_text(), content) for path, content in contents.items()}


def main() -> None:
    for path, text in documents(PAGE.read_text()).items():
        path.write_text(text)


if __name__ == "__main__":
    main()
