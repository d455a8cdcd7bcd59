"""`make chaos`, and `python -m tests.fault.chaos --help`: run, check, shrink, and read histories."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from proxy.embedded.server import Flavour
from tests.fault.chaos import harness
from tests.fault.chaos.checker import Report, check
from tests.fault.chaos.harness import Run
from tests.fault.chaos.history import read
from tests.fault.chaos.life import life
from tests.fault.chaos.plans import plans
from tests.fault.chaos.schedule import Fault, schedule, without
from tests.support.servers import FLAVOURS

SHOWN = 20


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show(report: Report, seconds: float) -> None:
    """Print the figures and the first violations."""
    for name, figure in sorted(report.figures.items()):
        say(f"  {name:40s} {figure}")
    done = report.figures["messages acked"]
    say(f"  {'acknowledged a second of the run':40s} {done / seconds:.0f}")
    for violation in report.violations[:SHOWN]:
        say(f"  *** {violation}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="of workload, over all servers together")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--server", nargs="*", default=list(FLAVOURS), choices=FLAVOURS)
    parser.add_argument("--proxies", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--queues", nargs="*", default=[], help="only these queues")
    parser.add_argument("--faults", nargs="*", default=[], help="only faults of these kinds; none: no faults")
    parser.add_argument("--no-faults", nargs="*", default=[], help="no faults of these kinds")
    parser.add_argument("--per-minute", type=float, default=40.0, help="faults drawn a minute")
    parser.add_argument("--drop", nargs="*", type=int, default=[], help="numbers of faults to leave out")
    parser.add_argument("--rate", type=float, default=60.0, help="messages a second of a share of 1")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=None, help="where the history goes")
    parser.add_argument("--check", type=Path, default=None, help="only check this history")
    parser.add_argument("--message", default="", help="QUEUE:TOKEN, print its life from the history of --check")
    return parser.parse_args()


def drawn(given: argparse.Namespace, flavour: Flavour, seconds: float) -> Sequence[Fault]:
    if given.faults == ["none"]:
        return ()
    faults = schedule(
        given.seed,
        seconds=seconds,
        proxies=given.proxies,
        per_minute=given.per_minute,
        kinds=given.faults,
        without=harness.IMPOSSIBLE[flavour] | set(given.no_faults),
    )
    return without(faults, given.drop)


def main() -> int:
    """Returns 1 after a violation."""
    given = arguments()
    if given.check is not None:
        if given.message:
            queue, _, token = given.message.partition(":")
            for line in life(read(given.check), queue, int(token)):
                say(line)
            return 0
        report = check(read(given.check))
        show(report, 60 * given.minutes)
        return bool(report.violations)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="ackstream-chaos-"))
    seconds = 60 * given.minutes / len(given.server)
    failed = False
    for flavour in given.server:
        run = Run(
            flavour,
            folder / flavour,
            given.seed,
            seconds,
            plans(frozenset(given.queues)),
            drawn(given, flavour, seconds),
            proxies=given.proxies,
            processes=given.processes,
            batch=given.batch,
            rate=given.rate,
        )
        say(f"{flavour}: seed {given.seed}, {seconds:.0f} s, {given.proxies} proxies, {len(run.faults)} faults")
        report = check(read(harness.carry_out(run)))
        show(report, seconds)
        if report.violations:
            failed = True
            say(f"  the history: {run.history}; its faults:")
            for fault in run.faults:
                say(f"    {fault}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
