"""What the reader of the binary log spends on transactions: of tables that are no queues, of
producers and consumers, and of the engine itself.

Thousands of transactions of one kind are run. Then this process reads their binary log several
times, as engine.binlog.reader does: alternately as the engine's reader and, for comparison, with
every event parsed by the library (tables that are no queues) or with the engine's transactions
decoded as those of others (claims). It prints CPU time of this process, for each kind of server
that is installed. `make bench-parts` runs it. Trust the ratios rather than the absolute figures.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial

from engine.binlog.changes import ChangeSet
from engine.binlog.pipe import BinlogLimits, FollowRequest
from engine.binlog.reader import LogReader, Outbox
from engine.binlog.scope import Scope
from engine.model import TableId, Wanted
from engine.queue_table import QueueTable
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress
from engine.store.own_writes import OwnWrites
from proxy.embedded.server import EmbeddedServer
from tests.support.queues import create_queue
from tests.support.servers import FLAVOURS, ServerMissingError, connect, running_server

QUEUE = TableId("bench", "queue")
LOCK = "the lock of a reader"
TRANSACTIONS = 2_000
ROUNDS = 5
LOGGED = ["--log-bin=log", "--server-id=1", "--binlog-format=ROW"]


class EndError(Exception):
    """The reader has reached the event that drops the table."""


class Ear(Outbox):
    """Raises EndError at that event."""

    def add(self, changes: ChangeSet) -> None:
        if changes.schema_changed:
            raise EndError


class Unfiltered(LogReader):
    """Parses every event."""

    def _filter_events(self) -> None:
        pass


class Decoded(LogReader):
    """Decodes the engine's transactions as those of others."""

    def own_connections(self, numbers: frozenset[int]) -> None:
        pass


class Bench:
    """A server with a queue and a table that is none, and a store on it."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.address = BackendAddress(server.host, server.port, "root")
        self.own, self.numbers = OwnWrites(), frozenset[int]()
        self.store = MySQLStore(self.address, own_writes=self.own)
        self.connection = connect(server)
        self.cursor = self.connection.cursor()
        for statement in ("CREATE DATABASE bench", "USE bench", "CREATE TABLE t (id INT PRIMARY KEY, n INT)"):
            self.cursor.execute(statement)
        create_queue(self.connection, "queue", "payload VARCHAR(200)")
        self.cursor.execute(f"DO GET_LOCK('{LOCK}', 0)")
        self.own.report_by(LOCK, self._identified)
        self.store.ping()

    def _identified(self, numbers: frozenset[int]) -> None:
        self.numbers = numbers

    def reader(self, kind: type[LogReader]) -> LogReader:
        limits = BinlogLimits(lag_max_s=1e9)
        mark = "" if kind is Decoded else self.own.mark
        request = FollowRequest(self.address, limits, {QUEUE: Scope()}, mark)
        reading = kind(request, Ear(limits), lambda _: None)
        reading.own_connections(self.numbers)
        return reading

    def cost_us(self, name: str, kinds: Sequence[type[LogReader]], work: Callable[[], None]) -> None:
        """Run the transactions, and print the µs of CPU per transaction with each kind of reader."""
        begin = self.reader(LogReader)._begin()  # noqa: SLF001  # the present position
        work()
        self.cursor.execute("CREATE TABLE the_end (id INT)")
        self.cursor.execute("DROP TABLE the_end")
        costs: dict[type[LogReader], list[float]] = {kind: [] for kind in kinds}
        for _ in range(ROUNDS):
            for kind, found in costs.items():
                reading = self.reader(kind)
                reading._begin()  # noqa: SLF001  # as at each start
                reading._begin = lambda: begin  # type: ignore[method-assign]  # noqa: SLF001  # the same log again
                before_s = time.process_time()
                with suppress(EndError), redirect_stdout(io.StringIO()):  # The library prints advice.
                    reading.run()
                found.append(1e6 * (time.process_time() - before_s) / TRANSACTIONS)
        medians = ", ".join(f"{kind.__name__} {statistics.median(found):.1f}" for kind, found in costs.items())
        print(f"  {name:42} {medians}")

    def insert(self, table: str) -> None:
        for number in range(1, TRANSACTIONS + 1):
            self.cursor.execute(f"INSERT INTO {table} (id) VALUES ({number})")

    def claim(self) -> None:
        queue = self.store.describe(QUEUE).value
        assert isinstance(queue, QueueTable)
        for number in range(1, TRANSACTIONS + 1):
            self.store.claim(queue, [Wanted(number, 0, 10**12)])

    def acknowledge(self) -> None:
        for number in range(1, TRANSACTIONS + 1):
            self.cursor.execute(f"UPDATE queue SET time_acked = 1, time_next = NULL WHERE id = {number}")


def main() -> None:
    for flavour in FLAVOURS:
        try:
            with running_server(flavour, options=LOGGED) as server:
                print(f"{flavour}: µs of CPU per transaction")
                bench = Bench(server)
                bench.cost_us(
                    "INSERT into a table that is no queue", (LogReader, Unfiltered), partial(bench.insert, "t")
                )
                bench.cost_us("INSERT of a message", (LogReader,), partial(bench.insert, "queue"))
                bench.cost_us("the engine's claim of a message", (LogReader, Decoded), bench.claim)
                bench.cost_us("ACK of a message", (LogReader,), bench.acknowledge)
        except ServerMissingError as missing:
            print(missing)


if __name__ == "__main__":
    main()
