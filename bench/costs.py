"""What an engine event and a catalog refresh cost with many subscribers and many queues.

    .venv/bin/python bench/costs.py [--before REVISION]

No server is involved: the engine runs over the store in memory, so only the dispatcher and the code
around it are measured. With `--before`, the same program also runs on an earlier revision (unpacked
into a temporary folder), and both columns are printed side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from engine.model import RowFormat, TableId
from engine.queue_table import IdKind, Policy, QueueTable
from engine.runtime.executor import EngineSettings
from engine.service import Engine

try:
    from tests.support.memory_store import MemoryStore
except ImportError:  # A revision in which it was part of the engine.
    from engine.store.memory import MemoryStore  # type: ignore[import-not-found, no-redef]

HERE = Path(__file__).resolve()
SUBSCRIBERS = (10, 100, 1_000, 5_000)
QUEUES = (1, 301, 1_000)
ROUNDS = 7
REFRESHES = 5
EVENTS = 40


class Silent:
    """A client that accepts everything and does nothing."""

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        """Ignore the rows."""

    def end(self, cause: object, text: str) -> None:
        """Ignore the end."""


class Counted(MemoryStore):
    """Counts the calls that read the catalog, from one refresh to the next."""

    def __init__(self, now_ns: int, enough: Callable[[], object]) -> None:
        """`enough` is called after REFRESHES refreshes, on a thread of the engine."""
        super().__init__(now_ns=now_ns)
        self._enough = enough
        self.refreshes: list[int] = []
        self._calls = 0

    def discover(self) -> Any:
        if self._calls:
            self.refreshes.append(self._calls)
        if len(self.refreshes) == REFRESHES:
            self._enough()
        self._calls = 1
        return super().discover()

    def describe(self, table: TableId) -> Any:
        self._calls += 1
        return super().describe(table)

    def describe_all(self, tables: Sequence[TableId]) -> Any:
        self._calls += 1
        return super().describe_all(tables)


def per_event_us(event: Callable[[], object]) -> float:
    """Return the median cost of one event, in µs of this process's CPU."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(EVENTS):
            event()
        rounds.append((time.process_time_ns() - began) / EVENTS / 1e3)
    return median(rounds)


def measure() -> Iterator[tuple[str, float]]:
    """Yield the lines of the table: what was measured, and its cost."""
    second = 10**9
    policy = Policy(30 * second, 3_600 * second, 100, 100_000, 3_600 * second, 30 * second)
    name = TableId("bench", "queue_0")
    table = QueueTable(name, policy, IdKind.INTEGER, "PRIMARY", "next", False, True, ("id",), ("id",))
    row_format = RowFormat(("id",), binary=False)

    async def with_subscribers(count: int, event: str) -> float:
        store = MemoryStore(now_ns=10**18)
        store.add_table(table)
        engine = Engine(store, EngineSettings())
        await engine.start()
        queue = await engine.queue(name)
        for holder in range(count):
            engine.subscribe(queue, Silent(), holder=holder, row_format=row_format)
        await asyncio.sleep(0.2)
        events: dict[str, Callable[[], object]] = {
            "a commit wakes the queue": lambda: engine.written("queue_0"),
            "an ACK": lambda: engine.acknowledged(name, [1], certain=True),
        }
        cost = per_event_us(events[event])
        await engine.close()
        return cost

    async def with_queues(count: int, event: str) -> float:
        store = MemoryStore(now_ns=10**18)
        for number in range(count):
            store.add_table(replace(table, id=TableId("bench", f"queue_{number}")))
        engine = Engine(store, EngineSettings())
        await engine.start()
        await asyncio.sleep(0.2)
        events: dict[str, Callable[[], object]] = {
            "a client that never streamed disconnects": lambda: engine.disconnected(7),
            "the binary log reports a change of one queue": lambda: engine.changes_logged(name, (), [1]),
        }
        cost = per_event_us(events[event])
        await engine.close()
        return cost

    async def catalog_refreshes(count: int) -> float:
        """Return the calls of the store from one refresh of the catalog to the next."""
        loop, enough = asyncio.get_running_loop(), asyncio.Event()
        store = Counted(10**18, lambda: loop.call_soon_threadsafe(enough.set))
        for number in range(count):
            store.add_table(replace(table, id=TableId("bench", f"queue_{number}")))
        engine = Engine(store, EngineSettings(catalog_interval_s=0.01))
        await engine.start()
        await enough.wait()
        await engine.close()
        return median(store.refreshes[1:])  # The first one describes all queues.

    for count in QUEUES:
        yield f"a refresh of the catalog, {count:,} queues: calls of the store", asyncio.run(catalog_refreshes(count))
    for event in ("a commit wakes the queue", "an ACK"):
        for count in SUBSCRIBERS:
            yield f"{event}, {count:,} subscribers", asyncio.run(with_subscribers(count, event))
    for event in ("a client that never streamed disconnects", "the binary log reports a change of one queue"):
        for count in QUEUES:
            yield f"{event}, {count:,} queues", asyncio.run(with_queues(count, event))


def measured_in(folder: Path) -> dict[str, float]:
    """Measure the code in a folder, in a separate process; return its table."""
    command = [sys.executable, str(HERE), "--here"]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=folder, env={"PYTHONPATH": str(folder)}
    )
    table: dict[str, float] = json.loads(done.stdout)
    return table


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="What an event of the engine costs")
    parser.add_argument("--before", metavar="REVISION", help="an earlier revision to measure beside this one")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here:
        print(json.dumps(dict(measure())))
        return
    now = measured_in(HERE.parent.parent)
    before: dict[str, float] = {}
    if chosen.before:
        with tempfile.TemporaryDirectory() as folder:
            archive = ["git", "-C", str(HERE.parent.parent), "archive", chosen.before, "engine"]
            files = subprocess.run(archive, check=True, capture_output=True)
            with tarfile.open(fileobj=io.BytesIO(files.stdout)) as archived:
                archived.extractall(folder, filter="data")
            before = measured_in(Path(folder))
    print(f"{'µs of CPU per event, or as the line states':60} {'before':>10} {'now':>10}")
    for line, cost in now.items():
        old = f"{before[line]:10.1f}" if line in before else " " * 10
        print(f"{line:60} {old} {cost:10.1f}")


if __name__ == "__main__":
    main()
