"""`make bench`: queues by the proxy beside what a user would take instead, in one run.

    .venv/bin/python -m bench.compare [--only NAME …] [--rounds N] [--seconds S] [--results FOLDER]

It writes a page with tables, the conditions and, where matplotlib is installed, plots. Without
`--results` it also writes the tables of README.md and docs/performance.md (bench.compare.summary).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from bench.compare.competitors import COMPETITORS
from bench.compare.machine import machine
from bench.compare.model import PAYLOAD_BYTES, Competitor
from bench.compare.mysql import REDO_LOG, SERVER_OPTIONS
from bench.compare.plots import write_plots
from bench.compare.postgres import OPTIONS
from bench.compare.report import page
from bench.compare.runner import Plan, Runner
from bench.compare.summary import PAGE
from bench.compare.summary import main as write_documents

RESULTS = PAGE.parent


def chosen(only: Sequence[str]) -> list[Competitor]:
    """Return the competitors whose names contain one of these texts; all, if none is given.

    Raises SystemExit if a text fits no name.
    """
    for text in only:
        if not any(text.lower() in competitor.name.lower() for competitor in COMPETITORS):
            raise SystemExit(f"no such competitor: {text}; there are: {'; '.join(c.name for c in COMPETITORS)}")
    return [c for c in COMPETITORS if not only or any(text.lower() in c.name.lower() for text in only)]


def conditions(plan: Plan, load_before: float) -> list[str]:
    """Return the circumstances of the run, a line each."""
    return [
        *machine(load_before),
        f"messages of {PAYLOAD_BYTES} bytes; {plan.rounds} interleaved rounds; {plan.samples:,} latencies a round",
        f"each drain takes about {plan.seconds:g} s, or {plan.messages:,} messages where these take less",
        "one competitor runs at a time; it shares the cores with its clients",
        "ackstream with one process, and beside it one with streams = off for other clients",
        f"MySQL: {' '.join((*SERVER_OPTIONS, REDO_LOG['mysql']))}",
        f"MariaDB: {' '.join((*SERVER_OPTIONS, REDO_LOG['mariadb']))}",
        f"PostgreSQL: {' '.join(OPTIONS)}",
        "consumers in C, except graphile-worker and pg-boss (Node.js); latencies of brokers by clients in Python",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare queues")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="competitors whose names contain this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="the aim for each drain")
    parser.add_argument("--messages", type=int, default=200_000, help="the most messages of a drain")
    parser.add_argument("--samples", type=int, default=500, help="of the latency, in each round")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    arguments = parser.parse_args()
    plan = Plan(arguments.rounds, arguments.seconds, arguments.messages, arguments.samples)
    load_before = os.getloadavg()[0]
    runner = Runner(chosen(arguments.only), plan)
    runner.run()
    arguments.results.mkdir(parents=True, exist_ok=True)
    plots = write_plots(runner.figures, arguments.results)
    text = page(runner.figures, conditions(plan, load_before), plots)
    (arguments.results / PAGE.name).write_text(text)
    if arguments.results == RESULTS:
        write_documents()
    print(f"\n{text}")


if __name__ == "__main__":
    main()
