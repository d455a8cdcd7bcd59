"""More load than a proxy can take: what its memory and the other clients' latency are meanwhile.

    .venv/bin/python -m bench.overload [--seconds N] [--server mysql|mariadb] [--only SCENE …]

Each scene has a proxy and a server of its own:

* drain: eight consumers finish a backlog. Other SELECTs go through a second proxy, which only relays
  (streams = off).
* flood: producers insert twice as many messages as eight consumers acknowledge.
* crowd: 2,000 endless streams on 100 queues, and 500 connections that run one SELECT after another.
* connects: 10,000 logins a minute, each with one SELECT. Beside it the same load on the server itself.
* slow: 400 peers that send a byte of their login each second, 100 clients that send a byte of a
  SELECT each tenth of a second, and 20 clients that read no byte of a large result.

Printed before and during each load: the median and the 99th percentile of a single SELECT through
the proxy and of one directly, in ms, and the memory of the proxy. Clients, proxy and server share
the machine, so the direct SELECT shows what the load does to the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import selectors
import socket
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from statistics import median
from typing import Any

from bench.compare.figures import percentile
from bench.processes import family, resident_bytes
from bench.proxies import connect, consumers
from engine.packets import frame
from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support.proxies import RunningProxy, environment, running_proxy
from tests.support.queues import create_queue
from tests.support.raw import Place, RawClient
from tests.support.servers import new_server
from tests.support.waiting import eventually

CONSUMERS = 8
PRODUCERS = 2
TICK_S = 0.05
FOLLOW_S = 2.0
"""After so long, the producers get a new rate."""
STREAMS, QUEUES, BUSY = 2_000, 100, 500
LOGINS_S = 10_000 / 60
LOGIN_THREADS = 8
HALF_LOGINS, SLOW_CLIENTS, DEAF_CLIENTS = 400, 100, 20
CONNECTIONS_MAX = 4_000
BACKLOG_PER_S = 50_000
"""More than consumers finish."""
APART = "through a proxy with streams = off"
RELAYING = ("--log-level", "warning", "--streams", "off")
PAUSE_S = 0.005
"""Between two samples of the observer."""
PAYLOAD = "x" * 120
SELECT = frame(b"\x03SELECT 1", 0)


@dataclass
class Observed:
    """Samples of one phase: latencies in ms, memory in MB."""

    ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By way to the server."""
    memory_mb: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        first, last = self.memory_mb[0], self.memory_mb[-1]
        return "; ".join(
            (
                *(f"{way}: p50 {median(ms):.2f}, p99 {percentile(ms, 99):.2f} ms" for way, ms in self.ms.items()),
                f"memory {first:.0f} to {last:.0f} MB, at most {max(self.memory_mb):.0f}",
            )
        )


class Setting:
    """A server, a proxy, and a client of each that observes."""

    def __init__(self, server: EmbeddedServer, proxy: RunningProxy) -> None:
        self.server, self.proxy = server, proxy
        self._clients = {"through the proxy": connect(proxy.port, None), "direct": connect(server.port, None)}

    def observe(self, seconds: float, **more: Any) -> Observed:
        """Sample for so long. `more`: further clients by way."""
        observed, until_s, memory_s = Observed(), time.monotonic() + seconds, 0.0
        while (now_s := time.monotonic()) < until_s:
            if now_s >= memory_s:
                observed.memory_mb.append(sum(map(resident_bytes, family(self.proxy.pid))) / 1e6)
                memory_s = now_s + 1
            for way, client in {**self._clients, **more}.items():
                observed.ms[way].append(_select_ms(client))
            time.sleep(PAUSE_S)
        return observed


def _select_ms(connection: Any) -> float:
    began = time.perf_counter()
    connection.query("SELECT 1")
    return 1e3 * (time.perf_counter() - began)


@contextlib.contextmanager
def processes(works: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Run each in a process of its own, killed afterwards."""
    with consumers(range(len(works)), len(works), lambda number, *_: works[number]()):
        yield


# Drain.


def fill(port: int, messages: int) -> None:
    """Have at least so many messages in `m`."""
    with connect(port).cursor() as cursor:
        cursor.executemany("INSERT INTO m (payload) VALUES (%s)", [(PAYLOAD,)] * 1_000)
        for _ in range(math.ceil(math.log2(messages / 1_000))):
            cursor.execute("INSERT INTO m (payload) SELECT payload FROM m")


def drain(setting: Setting, seconds: float) -> None:
    """Consumers that finish a backlog through one proxy, and clients apart from them."""
    create_queue(connect(setting.server.port), "m", "payload VARCHAR(200)", vt_ack_wait="600", vt_batch_size="200")
    fill(setting.server.port, int(seconds * BACKLOG_PER_S))
    with (
        tempfile.TemporaryDirectory() as folder,
        running_proxy(setting.server, Path(folder) / "log", RELAYING, forked=False) as second,
    ):
        others = {APART: connect(second.port, None)}
        before = setting.observe(seconds / 4, **others)
        print(f"  before: {before}", flush=True)
        with consumers([setting.proxy.port], CONSUMERS):
            eventually(lambda: setting.proxy.metric("claimed_total") > 0)
            began = setting.proxy.metric("claimed_total")
            observed = setting.observe(seconds, **others)
            done = setting.proxy.metric("claimed_total") - began
        print(f"  drain, {done / seconds:,.0f} messages/s: {observed}", flush=True)


# Flood.


def produce(port: int, rate: Any) -> None:
    """Insert `rate.value` messages a second, which another process changes."""
    connection = connect(port)
    due, at_s = 0.0, time.monotonic()
    with connection.cursor() as cursor:
        while True:
            time.sleep(TICK_S)
            now_s = time.monotonic()
            due, at_s = due + rate.value * (now_s - at_s), now_s
            if (count := int(due)) > 0:
                cursor.executemany("INSERT INTO m (payload) VALUES (%s)", [(PAYLOAD,)] * count)
                due -= count


def flood(setting: Setting, seconds: float) -> None:
    """Producers at twice the rate of the consumers."""
    root = connect(setting.server.port)
    create_queue(root, "m", "payload VARCHAR(200)", vt_ack_wait="600", vt_batch_size="200")
    rate = RawValue("d", 2_000.0)  # Of one producer. The consumers are faster, so both grow until these are not.
    stop = threading.Event()

    def follow() -> None:
        claimed = setting.proxy.metric("claimed_total")
        while not stop.wait(FOLLOW_S):
            before, claimed = claimed, setting.proxy.metric("claimed_total")
            rate.value = max(rate.value / 2, (claimed - before) / FOLLOW_S * 2 / PRODUCERS)

    with (
        processes([partial(produce, setting.server.port, rate)] * PRODUCERS),
        consumers([setting.proxy.port], CONSUMERS),
    ):
        thread = threading.Thread(target=follow)
        thread.start()
        print(f"  begin: {setting.observe(min(30.0, seconds / 4))}", flush=True)
        began = setting.proxy.metric("claimed_total")
        print(f"  flood: {setting.observe(seconds)}", flush=True)
        done = setting.proxy.metric("claimed_total") - began
        stop.set()
        thread.join()
    with root.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), MIN(id) FROM m WHERE time_acked IS NULL")
        backlog, oldest = cursor.fetchone()
        cursor.execute("SELECT COUNT(*) FROM m WHERE time_acked IS NOT NULL AND id > %s", (oldest,))
        overtook = cursor.fetchone()[0]
    print(
        f"  {done / seconds:,.0f} messages/s delivered; backlog at the end {backlog:,};"
        f" {overtook:,} were acknowledged before the oldest of it",
        flush=True,
    )


# Crowd.


def logged_in(place: Place, count: int) -> list[RawClient]:
    return [RawClient(place, database="bench") for _ in range(count)]


def hold_streams(proxy: RunningProxy) -> None:
    """Have 2,000 endless streams, and read what comes."""
    selector = selectors.DefaultSelector()
    for number, client in enumerate(logged_in(proxy, STREAMS)):
        client.send(f"\x03STREAM id, payload FROM m{number % QUEUES}".encode())
        selector.register(client.sock, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.recv(1 << 16)


def select_on_and_on(place: Place, done: Any) -> None:
    """Have 500 connections that run one SELECT after another; count them."""
    selector = selectors.DefaultSelector()
    for client in logged_in(place, BUSY):
        selector.register(client.sock, selectors.EVENT_READ)
        client.sock.sendall(SELECT)
    while True:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            if len(key.fileobj.recv(1 << 16)) > 0:  # An answer comes in one piece.
                done.value += 1
                key.fileobj.sendall(SELECT)


def crowd(setting: Setting, seconds: float) -> None:
    """Thousands of streams and hundreds of busy connections."""
    root = connect(setting.server.port)
    for number in range(QUEUES):
        create_queue(root, f"m{number}", "payload VARCHAR(200)")
    print(f"  before: {setting.observe(10)}", flush=True)
    with processes([partial(hold_streams, setting.proxy)]):
        eventually(lambda: setting.proxy.metric("streams") >= STREAMS, timeout_s=300)
        print(f"  {STREAMS:,} streams: {setting.observe(10)}", flush=True)
        for place, name in ((setting.proxy, "through the proxy"), (setting.server, "direct")):
            done = RawValue("q", 0)
            with processes([partial(select_on_and_on, place, done)]):
                eventually(partial(_exceeds, done, BUSY), timeout_s=120)
                before = done.value
                observed = setting.observe(seconds / 4)
                rate = (done.value - before) / (seconds / 4)
            print(f"  and {BUSY} busy connections {name}, {rate:,.0f} SELECTs/s: {observed}", flush=True)


def _exceeds(done: Any, count: int) -> bool:
    return bool(done.value > count)


# Connections.


def log_in_and_out(place: Place, done: Any) -> None:
    """Log in at the rate of `LOGINS_S`, each time with one SELECT."""

    def work(number: int) -> None:
        began_s, at = time.monotonic(), number
        while True:
            time.sleep(max(0.0, began_s + at / LOGINS_S - time.monotonic()))
            with RawClient(place, database="bench") as client:
                client.query("SELECT 1")
            done[number] += 1
            at += LOGIN_THREADS

    threads = [threading.Thread(target=work, args=[number]) for number in range(LOGIN_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def connects(setting: Setting, seconds: float) -> None:
    """Ten thousand logins a minute."""
    print(f"  before: {setting.observe(10)}", flush=True)
    for place, name in ((setting.server, "direct"), (setting.proxy, "through the proxy")):
        done = RawArray("q", LOGIN_THREADS)
        with processes([partial(log_in_and_out, place, done)]):
            observed = setting.observe(seconds)
            logins = sum(done)
        print(f"  {60 * logins / seconds:,.0f} logins a minute {name}: {observed}", flush=True)
    eventually(lambda: setting.proxy.metric("connections") == 1)


# Slow peers.


def be_slow(proxy: RunningProxy) -> None:
    """Send logins and statements byte by byte, and do not read."""
    halves = [socket.create_connection((proxy.host, proxy.port)) for _ in range(HALF_LOGINS)]
    slow, deaf = logged_in(proxy, SLOW_CLIENTS), logged_in(proxy, DEAF_CLIENTS)
    login = frame(b"\x85\xa6" + b"\0" * 200, 1)
    large = "SELECT REPEAT('x', 1000000) FROM information_schema.columns LIMIT 300"
    for client in deaf:
        client.send(b"\x03" + large.encode())
    at = 0
    while True:
        for half in halves if at % 10 == 0 else ():
            with contextlib.suppress(OSError):  # The proxy has ended it.
                half.sendall(login[at // 10 : at // 10 + 1])
        for client in slow:
            client.sock.sendall(SELECT[at % len(SELECT) : at % len(SELECT) + 1])
        at += 1
        time.sleep(0.1)


def slow(setting: Setting, seconds: float) -> None:
    """Peers that send slowly or do not read."""
    print(f"  before: {setting.observe(10)}", flush=True)
    with processes([partial(be_slow, setting.proxy)]):
        eventually(lambda: setting.proxy.metric("connections") >= SLOW_CLIENTS + DEAF_CLIENTS, timeout_s=60)
        print(f"  slow peers: {setting.observe(seconds)}", flush=True)
        print(f"  connections that the proxy holds: {setting.proxy.metric('connections'):,.0f}", flush=True)


SCENES: dict[str, Callable[[Setting, float], None]] = {
    "drain": drain,
    "flood": flood,
    "crowd": crowd,
    "connects": connects,
    "slow": slow,
}


def main() -> None:
    """Run the scenes and print what was observed."""
    parser = argparse.ArgumentParser(description="More load than a proxy can take")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load (flood: ten times as long)")
    parser.add_argument("--server", choices=["mysql", "mariadb"], action="append")
    parser.add_argument("--only", choices=SCENES, nargs="+", default=list(SCENES))
    chosen = parser.parse_args()
    flavours: list[Flavour] = chosen.server or ["mysql", "mariadb"]
    for flavour in flavours:
        for name in chosen.only:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
                folder = Path(directory)
                server = new_server(
                    flavour,
                    folder / "server",
                    durable=True,
                    options=("--max-connections=6000", "--open-files-limit=20000"),
                )
                server.start()
                try:
                    with connect(server.port, None) as root, root.cursor() as cursor:
                        cursor.execute("CREATE DATABASE bench")
                    with (
                        environment(ACKSTREAM_CONNECTIONS_MAX=str(CONNECTIONS_MAX)),
                        running_proxy(server, folder / "log", ("--log-level", "warning"), forked=False) as proxy,
                    ):
                        print(f"{flavour}, {name}:", flush=True)
                        SCENES[name](Setting(server, proxy), chosen.seconds * (10 if name == "flood" else 1))
                finally:
                    server.stop(timeout_s=30)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
