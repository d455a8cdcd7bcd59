"""What the reader of the binary log spends on transactions of tables that are no queues.

Ten thousand INSERTs, each a transaction, go into a table that is no queue. Then this process reads
their binary log several times, as engine.binlog.reader does: alternately with the event filter and
with every event parsed by the library. It prints CPU time of this process, for each kind of server
that is installed. `make bench-parts` runs it. Trust the ratios rather than the absolute figures.
"""

from __future__ import annotations

import statistics
import time

from engine.binlog.changes import ChangeSet
from engine.binlog.pipe import BinlogLimits, FollowRequest
from engine.binlog.reader import LogReader, Outbox
from engine.model import TableId
from engine.store.connection import BackendAddress
from proxy.embedded.server import EmbeddedServer
from tests.support.servers import FLAVOURS, ServerMissingError, connect, running_server

TRANSACTIONS = 10_000
ROUNDS = 5
LOGGED = ["--log-bin=log", "--server-id=1", "--binlog-format=ROW"]


class EndError(Exception):
    """The reader has reached the event that drops the table."""


class Ear(Outbox):
    """Raises EndError at that event."""

    def add(self, news: ChangeSet) -> None:
        if news.schema_changed:
            raise EndError


class Unsifted(LogReader):
    """Parses every event."""

    def _filter_events(self) -> None:
        pass


def fill(server: EmbeddedServer) -> tuple[str, int]:
    """Run the transactions; return the position in the binary log where they begin."""
    with connect(server) as connection, connection.cursor() as cursor:
        for statement in ("CREATE DATABASE bench", "USE bench", "CREATE TABLE t (id INT PRIMARY KEY, n INT)"):
            cursor.execute(statement)
        begin = reader(LogReader, server)._begin()  # noqa: SLF001  # the present position
        for number in range(TRANSACTIONS):
            cursor.execute(f"INSERT INTO t VALUES ({number}, 0)")
        cursor.execute("DROP TABLE t")
    return begin


def reader(kind: type[LogReader], server: EmbeddedServer) -> LogReader:
    order = FollowRequest(
        BackendAddress(server.host, server.port, "root"), BinlogLimits(), frozenset({TableId("bench", "queue")})
    )
    return kind(order, Ear(order.limits), lambda _: None)


def cost_us(kind: type[LogReader], server: EmbeddedServer, begin: tuple[str, int]) -> float:
    """Read the binary log from `begin`; return the µs of CPU per transaction."""
    reading = reader(kind, server)
    reading._begin = lambda: begin  # type: ignore[method-assign]  # noqa: SLF001  # the same log again
    before_s = time.process_time()
    try:
        reading.run()
    except EndError:
        return 1e6 * (time.process_time() - before_s) / TRANSACTIONS
    raise SystemExit("the binary log ended early")


def main() -> None:
    for flavour in FLAVOURS:
        try:
            with running_server(flavour, options=LOGGED) as server:
                begin = fill(server)
                pairs = [[cost_us(kind, server, begin) for kind in (LogReader, Unsifted)] for _ in range(ROUNDS)]
        except ServerMissingError as missing:
            print(missing)
            continue
        sifted, whole = (statistics.median(costs) for costs in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{flavour}: {sifted:.1f} µs per transaction with the event filter, {whole:.1f} without: {ratio:.2f}")


if __name__ == "__main__":
    main()
