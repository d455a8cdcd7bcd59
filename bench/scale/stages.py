"""What is measured of some proxies in front of one server with many queues."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.compare.connection import TIMEOUT_S
from bench.compare.figures import percentile
from bench.compare.model import Drained
from bench.compare.mysql import WATCHED, MySQLQueue, connected
from bench.processes import ProgramFailedError, cpu_s, family, resident_bytes
from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy, environment

CONNECTIONS_MAX = 10_000
SETTLE_S = 15.0
"""Before the proxies count as idle: tables made just before cause a few scans and refreshes of the catalog."""
IDLE_S = 20.0
SAMPLES = 1_000
RELEASED_S = 2.0
"""After the streams have ended: their connections are closed and what they held is released."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    queues: int
    streams: int
    seconds: float
    """The aim for the drain of the large queue."""


@dataclass(slots=True)
class Figures:
    """What was measured, by the name of the line in the table."""

    values: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        """Add a line."""
        self.values[name] = value
        print(f"  {name}: {value:,.2f}", flush=True)


class Streams:
    """Thousands of streams over the small queues, in a process of their own."""

    def __init__(self, program: Path, plan: Plan, ports: Sequence[int]) -> None:
        """Start them. They are open when `opened` returns."""
        command = [str(program), *map(str, (plan.queues, plan.streams, *ports))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def opened(self) -> float:
        """Wait until all are open; return the seconds that this took."""
        return self._answer()[0]

    def order(self, text: str) -> list[float]:
        """Send an order; return the figures of its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        return self._answer()

    def _answer(self) -> list[float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ProgramFailedError("the streams ended: see above")
        return [float(word) for word in line.split()]

    def close(self) -> None:
        """End them."""
        self.process.communicate()
        time.sleep(RELEASED_S)


@contextlib.contextmanager
def proxies(server: EmbeddedServer, folder: Path, number: int) -> Iterator[list[RunningProxy]]:
    """Some proxies in front of one server."""
    options = ["--log-level", "warning"]
    with contextlib.ExitStack() as stack, environment(ACKSTREAM_CONNECTIONS_MAX=str(CONNECTIONS_MAX)):
        running = []
        for index in range(number):
            (folder / str(index)).mkdir(parents=True)
            proxy = RunningProxy(server, folder / str(index) / "log", options, forked=False)
            stack.callback(proxy.stop)
            proxy.start()
            running.append(proxy)
        yield running


class Setting:
    """One server, some proxies, and the figures of all stages."""

    def __init__(self, server: EmbeddedServer, folder: Path, plan: Plan, running: Sequence[RunningProxy]) -> None:
        self.figures = Figures()
        self._server = server
        self._folder = folder
        self._plan = plan
        self._proxies = running

    def run(self, due: int, rate: float) -> float:
        """Run all stages. `due`: messages that are due in the small queues; `rate`: the expected
        messages a second of the large queue. Returns its rate."""
        self._memory("memory of the proxies at start, MB")
        streams = Streams(self._folder / "streams", self._plan, [proxy.port for proxy in self._proxies])
        try:
            self._many_queues(streams, due)
            self._idle()
            self._latency(streams)
        finally:
            streams.close()
        return self._large_queue(rate)

    def _many_queues(self, streams: Streams, due: int) -> None:
        before_s = self._cpu_s()
        self.figures.add("all streams open after, s", streams.opened())
        finished, seconds = streams.order(f"drained {due} {TIMEOUT_S + due / 1_000}")
        after_s = self._cpu_s()
        self.figures.add("messages not finished in time", due - finished)
        self.figures.add("small queues: messages/s, with opening the streams", finished / seconds)
        for name, spent_s in after_s.items():
            self.figures.add(f"small queues: CPU of {name} a message, µs", 1e6 * (spent_s - before_s[name]) / finished)
        self._memory("memory of the proxies with all streams, MB")

    def _idle(self) -> None:
        time.sleep(SETTLE_S)
        before, before_s = self._statements(), self._cpu_s()
        time.sleep(IDLE_S)
        # SHOW itself is counted.
        self.figures.add("idle: statements/s", (self._statements() - before - 1) / IDLE_S)
        for name, spent_s in self._cpu_s().items():
            self.figures.add(f"idle: CPU of {name}, % of a core", 100 * (spent_s - before_s[name]) / IDLE_S)

    def _latency(self, streams: Streams) -> None:
        p50_us, p99_us, insert_us = streams.order(f"latency {SAMPLES}")
        self.figures.add("INSERT to the row: p50, ms", p50_us / 1e3)
        self.figures.add("INSERT to the row: p99, ms", p99_us / 1e3)
        self.figures.add("the INSERT alone: p50, ms", insert_us / 1e3)

    def _large_queue(self, rate: float) -> float:
        """Drain the large queue by eight streams through each proxy; other clients run SELECTs."""
        step = WATCHED.batch * WATCHED.consumers
        share = max(1, round(rate * self._plan.seconds / step / len(self._proxies))) * step
        client = self._folder / "consumers"
        queues = [MySQLQueue(self._server, client, proxy.port, {}) for proxy in self._proxies]
        with ThreadPoolExecutor(len(queues)) as pool:
            drains: list[Drained] = list(pool.map(lambda queue: queue.drain(WATCHED, share), queues))
        found = sum(drain.messages / drain.seconds for drain in drains)
        self.figures.add("large queue: messages/s, 8 streams a proxy", found)
        for way in drains[0].bystanders_ms:
            samples_ms = [sample for drain in drains for sample in drain.bystanders_ms[way]]
            self.figures.add(f"a SELECT meanwhile, {way}: p50, ms", statistics.median(samples_ms))
            self.figures.add(f"a SELECT meanwhile, {way}: p99, ms", percentile(samples_ms, 99))
        return found

    def _cpu_s(self) -> dict[str, float]:
        return {
            "the server": sum(map(cpu_s, family(self._server.pid))),
            "the proxies": sum(cpu_s(pid) for proxy in self._proxies for pid in family(proxy.pid)),
        }

    def _memory(self, name: str) -> None:
        """Add the resident memory of all processes of the proxies."""
        pids = [pid for proxy in self._proxies for pid in family(proxy.pid)]
        self.figures.add(name, sum(map(resident_bytes, pids)) / 1e6)

    def _statements(self) -> int:
        with connected(self._server.port) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Queries'")
            return int(cursor.fetchone()[1])
