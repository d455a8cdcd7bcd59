"""One large batch in atomic mode, once, with the time and the CPU of each phase.

A message takes the same CPU on a busy machine, so that figure can be compared where rates cannot. `ROWS` is the
argument: two million, some three minutes; ten million need 10 GB of disk and a quarter of an hour. Writes
bench/results/spark-atomic.md.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.processes import cpu_s, family
from bench.spark._stage import publish, rows_asked_for, stage
from bench.spark.enqueue import CREATE, data
from pipeline.common.progress import Progress
from pipeline.enqueue import enqueue

ROWS = 2_000_000
KINDS = {"mariadbd": "server", "mysqld": "server", "java": "Spark"}
OTHERS = "proxy, driver and Python of tasks"


@dataclass
class Phases:
    """The time and the CPU when each phase began."""

    began: dict[str, tuple[float, Mapping[str, float]]] = field(default_factory=dict)
    _seen: dict[int, tuple[str, float]] = field(default_factory=dict)

    def note(self, progress: Progress) -> None:
        """Take notice of the processes, and of a phase that begins."""
        cpu = self._cpu_by_kind()
        self.began.setdefault(progress.phase, (time.monotonic(), cpu))

    def _cpu_by_kind(self) -> Mapping[str, float]:
        """Seconds of CPU so far of the server, of Spark and of all else, of processes that have ended too."""
        for pid in family(os.getpid()):
            with contextlib.suppress(OSError):  # ended just now
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                self._seen[pid] = (KINDS.get(name, OTHERS), cpu_s(pid))
        found: defaultdict[str, float] = defaultdict(float)
        for kind, spent in self._seen.values():
            found[kind] += spent
        return found

    def lines(self, rows: int) -> list[str]:
        """A row of the table for each phase."""
        self.note(Progress("end", 0, 0))
        kinds = ("server", "Spark", OTHERS)
        table = [
            "| phase | seconds | messages a second | " + ", ".join(kinds) + ": CPU of a message, µs |",
            "|---|---|---|---|",
        ]
        for (name, (start, before)), (_, (end, after)) in pairwise(self.began.items()):
            spent = ", ".join(f"{(after[kind] - before[kind]) / rows * 1e6:.1f}" for kind in kinds)
            table.append(f"| {name} | {end - start:,.0f} | {rows / (end - start):,.0f} | {spent} |")
        return table


def main() -> None:
    rows = rows_asked_for(ROWS)
    load = os.getloadavg()[0]
    phases = Phases()
    with stage() as on, tempfile.TemporaryDirectory(prefix="ackstream-bench-") as directory:
        frame = data(on.spark, f"{directory}/data", rows)
        with on.proxy.connect() as connection, connection.cursor() as cursor:
            cursor.execute(CREATE.format("m"))
        outcome = enqueue(frame, on.proxy, "m", batch="b", mode="atomic", report=phases.note)
        table = phases.lines(rows)
        assert outcome.messages == rows
        with on.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM m")
            assert cursor.fetchone()[0] == rows
    publish("atomic", f"{rows:,} messages of 100 bytes in atomic mode", table, load)


if __name__ == "__main__":
    main()
