"""`make chaos`, and `python -m tests.fault.chaos --help`: run, check, shrink, and read histories."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import secrets
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fault.chaos import harness
from tests.fault.chaos.checker import Report, check
from tests.fault.chaos.harness import Run
from tests.fault.chaos.history import read
from tests.fault.chaos.life import life
from tests.fault.chaos.plans import plans
from tests.fault.chaos.schedule import Fault, schedule, shrunk, without
from tests.support.servers import SERVERS, ServerName

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
    parser.add_argument("--server", nargs="*", default=list(SERVERS), choices=SERVERS)
    parser.add_argument("--proxies", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--queues", nargs="*", default=[], help="only these queues")
    parser.add_argument("--faults", nargs="*", default=[], help="only faults of these kinds; none: no faults")
    parser.add_argument("--no-faults", nargs="*", default=[], help="no faults of these kinds")
    parser.add_argument("--per-minute", type=float, default=60.0, help="faults drawn a minute")
    parser.add_argument("--drop", nargs="*", type=int, default=[], help="numbers of faults to leave out")
    parser.add_argument("--rate", type=float, default=60.0, help="messages a second of a share of 1")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--shrink", type=int, default=0, help="after a violation, so many runs with fewer faults")
    parser.add_argument("--folder", type=Path, default=None, help="where the history goes")
    parser.add_argument("--check", type=Path, default=None, help="only check this history")
    parser.add_argument("--message", default="", help="QUEUE:TOKEN, print its life from the history of --check")
    return parser.parse_args()


def drawn(given: argparse.Namespace, seconds: float) -> Sequence[Fault]:
    if given.faults == ["none"]:
        return ()
    faults = schedule(
        given.seed,
        seconds=seconds,
        proxies=given.proxies,
        per_minute=given.per_minute,
        kinds=given.faults,
        without=given.no_faults,
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
    failed = carried_out(given, folder)
    if not failed and given.folder is None:
        shutil.rmtree(folder)  # Gigabytes: the data of the servers and the history, which shows nothing now.
    return failed


def carried_out(given: argparse.Namespace, folder: Path) -> bool:
    """Returns whether a run violated anything. The servers' data and the histories are in `folder` afterwards."""
    seconds = 60 * given.minutes / len(given.server)
    failed = False
    for name in given.server:
        run = run_of(given, name, seconds, folder / name)
        say(f"{name}: seed {given.seed}, {seconds:.0f} s, {given.proxies} proxies, {len(run.faults)} faults")
        report = check(read(harness.carry_out(run)))
        if report.violations:
            failed = True
            explain(run, report, given.shrink)
        show(report, seconds)  # Last: who reads only the end of a log finds what was violated.
    return failed


def run_of(given: argparse.Namespace, name: ServerName, seconds: float, folder: Path) -> Run:
    return Run(
        name,
        folder,
        given.seed,
        seconds,
        plans(frozenset(given.queues)),
        drawn(given, seconds),
        proxies=given.proxies,
        processes=given.processes,
        batch=given.batch,
        rate=given.rate,
    )


def explain(run: Run, report: Report, runs: int) -> None:
    """Print where the history is, the life of the first message that shows a violation, and fewer faults that do."""
    say(f"  the history: {run.history}")
    say(f"  the life of a message: python -m tests.fault.chaos --check {run.history} --message QUEUE:TOKEN")
    shown = next((violation for violation in report.violations if violation.token >= 0), None)
    if shown is not None:
        say(f"  {shown.queue}:{shown.token}")
        for line in life(read(run.history), shown.queue, shown.token):
            say(f"    {line}")
    if runs:
        shrink(run, {violation.rule for violation in report.violations}, runs)


def shrink(run: Run, rules: set[str], runs: int) -> None:
    """Run again with fewer faults, at most so often, and print which were enough to violate one of these rules."""
    tries = itertools.count(1)

    def fails(faults: Sequence[Fault]) -> bool:
        fewer = dataclasses.replace(run, faults=faults, folder=run.folder.with_name(f"{run.server}-{next(tries)}"))
        again = check(read(harness.carry_out(fewer)))
        still = any(violation.rule in rules for violation in again.violations)
        say(f"  with {len(faults)} of its faults: {'the same' if still else 'nothing'}, see {fewer.history}")
        return still

    faults = shrunk(run.faults, fails, runs)
    say(f"  {len(faults)} of {len(run.faults)} faults are enough:")
    for fault in faults:
        say(f"    {fault}")


if __name__ == "__main__":
    sys.exit(main())
