"""What does not move: a large backlog, an old read view, idle streams, and producers without consumers.

    .venv/bin/python -m bench.large [--server mysql|mariadb] [--only backlog|rest|inserts] [--rounds N]
                                    [--messages N]

*Backlog*: eight endless streams finish 10,000 messages, of a backlog of just as many and of three
million, in turns. Then the same while another client's transaction keeps the read view that it had
before. Printed: the rate with the large backlog beside that with the small one, medians of the rounds.

*Rest*: a thousand endless streams of a hundred queues, and nothing else. Printed: the statements of the
server a second, and the CPU time of the proxy and its processes in percent of a core.

*Inserts*: sixteen connections insert into a queue, a row a commit, direct, through the proxy, and through
HAProxy, which does not look at what it passes on, in turns. Printed: commits a second, beside direct.

Client, proxy and server share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pymysql

from bench.compare.compiling import LIBMARIADB, compiled
from bench.compare.model import Drained
from bench.compare.mysql import SOURCE, WATCHED, MySQLQueue, connected, running_queue_server
from bench.compare.runner import await_quiet
from bench.processes import HOST, cpu_s, family
from bench.relays import haproxy
from bench.wire import Load
from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support.insides import forget_result, vanish
from tests.support.proxies import RunningProxy, running_proxy

SMALL, LARGE = 10_000, 3_000_000
STREAMS, QUEUES = 1_000, 100
SETTLE_S, REST_S = 20.0, 30.0
PRODUCERS, INSERT_S = 16, 5.0

QUEUE = """(id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, priority INT NOT NULL DEFAULT 0,
  epoch BIGINT NOT NULL DEFAULT 0, time_next BIGINT DEFAULT 0, time_acked BIGINT DEFAULT NULL, n INT,
  KEY due (time_acked, priority, time_next, id))
COMMENT 'vitess_message,vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=10,vt_cache_size=10000,vt_poller_interval=30'
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A server with the queue of bench.compare, and a proxy in front of it."""

    server: EmbeddedServer
    proxy: RunningProxy
    queue: MySQLQueue
    folder: Path

    def run(self, *statements: str) -> None:
        """Run statements on the server itself."""
        with connected(self.server.port) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def questions(self) -> int:
        """The statements that the server has run, this one included."""
        with connected(self.server.port) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
            return int(cursor.fetchone()[1])

    def proxy_cpu_s(self) -> float:
        """The CPU time of the proxy's processes so far."""
        return sum(map(cpu_s, family(self.proxy.pid)))


@contextlib.contextmanager
def place(flavour: Flavour, *options: str) -> Iterator[Place]:
    """Start both, with empty tables. `options` are the proxy's."""
    with tempfile.TemporaryDirectory(prefix="ackstream-large-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        client = compiled(SOURCE, folder, LIBMARIADB)
        with (
            running_queue_server(flavour, folder, [f"--max-connections={STREAMS + 200}"]) as server,
            running_proxy(server, folder / "proxy.log", ["--log-level", "warning", *options]) as proxy,
        ):
            processes = {"server": server.pid, "proxy": proxy.pid}
            yield Place(server, proxy, MySQLQueue(server, client, proxy.port, processes), folder)


def drained(queue: MySQLQueue) -> Drained:
    """Finish SMALL messages."""
    await_quiet(queue.processes)
    return queue.drain(WATCHED, SMALL)


@contextlib.contextmanager
def old_read_view(server: EmbeddedServer) -> Iterator[None]:
    """A transaction that reads what there is now, for as long as the block takes."""
    with connected(server.port) as connection, connection.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        yield
        cursor.execute("COMMIT")


def backlog(flavour: Flavour, chosen: argparse.Namespace) -> None:
    """Compare the rates with a small and with a large backlog."""
    with place(flavour) as small, place(flavour) as large:
        for queue in (small.queue, large.queue):
            queue.fill(SMALL)
            queue.drain(WATCHED, SMALL)  # Both are warm.
        large.queue.fill(chosen.messages)
        for named, viewed in (("", ()), (", with an old read view", (small.server, large.server))):
            rates: list[tuple[float, float]] = []
            with contextlib.ExitStack() as views:
                for server in viewed:
                    views.enter_context(old_read_view(server))
                for _ in range(chosen.rounds):
                    small.queue.fill(SMALL)
                    one, other = drained(small.queue), drained(large.queue)
                    rates.append((one.messages / one.seconds, other.messages / other.seconds))
            least, most = median(rate for rate, _ in rates), median(rate for _, rate in rates)
            ratio = median(other / one for one, other in rates)
            show(
                flavour, f"{least:,.0f} messages/s of {SMALL:,}, {most:,.0f} of {chosen.messages:,}{named}: {ratio:.2f}"
            )


def rest(flavour: Flavour, _: argparse.Namespace) -> None:
    """Measure streams that wait."""
    with place(flavour) as there, contextlib.ExitStack() as streams:
        there.run(*(f"CREATE TABLE m{number} {QUEUE}" for number in range(QUEUES)))
        for number in range(STREAMS):
            streams.enter_context(endless(there.proxy.port, f"m{number % QUEUES}"))
        time.sleep(SETTLE_S)
        questions, used_s, began_s = there.questions(), there.proxy_cpu_s(), time.monotonic()
        time.sleep(REST_S)
        took_s = time.monotonic() - began_s
        used_s, asked = there.proxy_cpu_s() - used_s, there.questions() - questions - 1
        cost = f"{asked / took_s:.2f} statements/s, {100 * used_s / took_s:.2f} % of a core"
        show(flavour, f"{STREAMS:,} streams of {QUEUES} queues: {cost}")


@contextlib.contextmanager
def endless(port: int, table: str) -> Iterator[None]:
    """A stream that is open for as long as the block takes."""
    connection: Any = pymysql.connect(
        host=HOST, port=port, user="root", database="bench", ssl_disabled=True, cursorclass=pymysql.cursors.SSCursor
    )
    cursor = connection.cursor()
    cursor.execute(f"STREAM * FROM {table}")
    try:
        yield
    finally:
        forget_result(connection)  # It has no end.
        vanish(connection)


def inserts(flavour: Flavour, chosen: argparse.Namespace) -> None:
    """Compare producers that connect to the server, to the proxy, and to HAProxy."""
    with place(flavour) as there, haproxy(there.server, there.folder / "haproxy") as relay:
        there.run(f"CREATE TABLE sink {QUEUE}")
        program = compiled("load.c", there.folder, LIBMARIADB)
        ports = {"direct": there.server.port, "through the proxy": there.proxy.port, relay.name: relay.port}
        rates: dict[str, list[float]] = {name: [] for name in ports}
        with contextlib.ExitStack() as stack:
            loads = {name: stack.enter_context(Load(program, port, PRODUCERS)) for name, port in ports.items()}
            for load in loads.values():
                load.order(f"inserts {PRODUCERS} 1")
            for _ in range(chosen.rounds):
                for name, load in loads.items():
                    await_quiet(there.queue.processes)  # The reader of the binary log reads on for a while.
                    rows, took_s, *_ = load.order(f"inserts {PRODUCERS} {INSERT_S}")
                    rates[name].append(rows / took_s)
        for name, found in rates.items():
            ratio = median(rate / direct for rate, direct in zip(found, rates["direct"], strict=True))
            show(flavour, f"{PRODUCERS} producers, {name}: {median(found):,.0f} commits/s, {ratio:.2f} of direct")


def show(flavour: Flavour, text: str) -> None:
    print(f"{flavour}: {text}", flush=True)


PARTS = {"backlog": backlog, "rest": rest, "inserts": inserts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=("mysql", "mariadb"), nargs="*", default=["mysql", "mariadb"])
    parser.add_argument("--only", choices=tuple(PARTS), nargs="*", default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=LARGE, help="of the large backlog")
    chosen = parser.parse_args()
    for part in chosen.only:
        for flavour in chosen.server:
            PARTS[part](flavour, chosen)


if __name__ == "__main__":
    main()
