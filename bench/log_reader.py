"""What it costs the reader of the binary log to pass over transactions of tables that are no queues.

Ten thousand INSERTs, each a transaction, into a table that is none; then their log is read again and again in this
process, as engine.binlog.reader reads it: by turns behind the event filter, and with every event parsed by the library.
CPU time of this process, on each kind of server that is here. `make bench` runs it; trust the ratios.
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
    """The log has been read up to where the table is dropped."""


class Ear(Outbox):
    """Hears when that is."""

    def add(self, news: ChangeSet) -> None:
        if news.schema_changed:
            raise EndError


class Unsifted(LogReader):
    """Takes every event apart."""

    def _filter_events(self) -> None:
        pass


def fill(server: EmbeddedServer) -> tuple[str, int]:
    """Where the log of the transactions begins."""
    with connect(server) as connection, connection.cursor() as cursor:
        for statement in ("CREATE DATABASE bench", "USE bench", "CREATE TABLE t (id INT PRIMARY KEY, n INT)"):
            cursor.execute(statement)
        begin = reader(LogReader, server)._begin()  # noqa: SLF001  # where it would begin now
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
    """Of a transaction."""
    reading = reader(kind, server)
    reading._begin = lambda: begin  # type: ignore[method-assign]  # noqa: SLF001  # the same log again
    before_s = time.process_time()
    try:
        reading.run()
    except EndError:
        return 1e6 * (time.process_time() - before_s) / TRANSACTIONS
    raise SystemExit("the log has ended early")


def main() -> None:
    for flavour in FLAVOURS:
        try:
            with running_server(flavour, options=LOGGED) as server:
                begin = fill(server)
                pairs = [[cost_us(kind, server, begin) for kind in (LogReader, Unsifted)] for _ in range(ROUNDS)]
        except ServerMissingError as missing:
            print(missing)
            continue
        sifted, whole = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{flavour}: {sifted:.1f} µs a transaction behind the event_filter, {whole:.1f} without: {ratio:.2f}")


if __name__ == "__main__":
    main()
