"""beanstalkd, Redis Streams and NATS JetStream, drained by the client in C (brokers.c)."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare.compiling import compiled
from bench.compare.connection import TIMEOUT_S
from bench.compare.model import Case, Drained, Latencies
from bench.compare.protocols import PROTOCOLS
from bench.compare.root import folder_in_root, in_root, output, outside, server_in_root
from bench.processes import HOST, ProgramFailedError, free_port

WARM_UP = 5
"""So many samples of the latency are not counted."""
PAUSE_S = 0.002
SOURCE = "compare/brokers.c"

ONE_BY_ONE = (Case("8 × one message", 8, 1),)
MANY = (Case("4 × 100 messages", 4, 100), *ONE_BY_ONE)


class BrokerQueue:
    """A queue of a running server."""

    def __init__(self, protocol: str, version: str, port: int, pid: int, client: Path) -> None:
        """`client`: the compiled brokers.c."""
        self._client = client
        self._protocol = protocol
        self._port = port
        self.version = version
        self.processes: Mapping[str, int] = {"server": pid}
        PROTOCOLS[protocol](port, "admin").prepare()

    def fill(self, messages: int) -> None:
        PROTOCOLS[self._protocol](self._port, "producer").enqueue(messages)

    def drain(self, case: Case, messages: int) -> Drained:
        words = (self._protocol, self._port, case.consumers, case.batch, messages)
        command = [str(self._client), *map(str, words)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            answer, _ = process.communicate("begin\n")
        if process.returncode:
            raise ProgramFailedError("the consumers failed: see above")
        seconds, cpu_s = map(float, answer.split())
        return Drained(messages, seconds, cpu_s)

    def latencies(self, samples: int) -> Mapping[str, Latencies]:
        total = samples + WARM_UP
        consumer, producer = (PROTOCOLS[self._protocol](self._port, name) for name in ("listener", "producer"))
        arrived_s: list[float] = []
        finished = threading.Semaphore(0)

        def listen() -> None:
            for _ in range(total):
                consumer.consume(1, 1, lambda: arrived_s.append(time.monotonic()))
                finished.release()

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        began_s, ended_s = [], []
        for _ in range(total):
            time.sleep(PAUSE_S)  # The consumer waits again.
            began_s.append(time.monotonic())
            producer.enqueue(1)
            ended_s.append(time.monotonic())
            if not finished.acquire(timeout=TIMEOUT_S):
                raise ProgramFailedError(f"{self._protocol}: a message was not delivered")
        if any(arrived < began for began, arrived in zip(began_s, arrived_s, strict=True)):
            raise ProgramFailedError(f"{self._protocol}: a drain has left messages in the queue")
        return {"": Latencies(took_ms(began_s, arrived_s), took_ms(began_s, ended_s))}


def took_ms(began_s: Sequence[float], ended_s: Sequence[float]) -> list[float]:
    """Return the differences in ms, without the first WARM_UP."""
    return [1e3 * (ended - began) for began, ended in zip(began_s, ended_s, strict=True)][WARM_UP:]


def shortened(version: str) -> str:
    """Return the program's name and number of a line like `Redis server v=8.0.6 sha=…`."""
    found = re.match(r"([a-zA-Z -]+?):? v?=?(\d[\d.]*)", version)
    return f"{found[1]} {found[2]}" if found else version


@dataclass(frozen=True, slots=True)
class Broker:
    """A server in the unpacked system. `command` gets its folder inside it and the port."""

    name: str
    protocol: str
    durability: str
    cases: Sequence[Case]
    program: str
    command: Callable[[Path, int], Sequence[str]]
    version_option: str = "--version"

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[BrokerQueue]:
        client = compiled(SOURCE, folder)
        version = shortened(output(*in_root(self.program, self.version_option)))
        port = free_port()
        with (
            folder_in_root() as place,
            server_in_root(place, port, [self.program, *self.command(place, port)]) as pid,
        ):
            yield BrokerQueue(self.protocol, version, port, pid, client)


def beanstalkd(folder: Path, port: int) -> Sequence[str]:
    return ["-l", HOST, "-p", str(port), "-b", str(folder), "-f", "0"]


def redis(fsync: str) -> Callable[[Path, int], Sequence[str]]:
    def command(folder: Path, port: int) -> Sequence[str]:
        files = ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", fsync, "--save", ""]
        return ["--bind", HOST, "--port", str(port), *files]

    return command


def nats(sync: str) -> Callable[[Path, int], Sequence[str]]:
    def command(folder: Path, port: int) -> Sequence[str]:
        settings = f'jetstream {{ store_dir: "{folder}/store", sync_interval: {sync} }}\n'
        outside(folder / "settings").write_text(settings)
        return ["--addr", HOST, "--port", str(port), "--config", str(folder / "settings")]

    return command


EACH, SECOND, MINUTES = "always", "everysec", "2m"

BROKERS = (
    Broker(
        *("beanstalkd, fsync", "beanstalkd", "fsync at each write: -b, -f 0", ONE_BY_ONE),
        *("/usr/bin/beanstalkd", beanstalkd, "-v"),
    ),
    Broker(
        *("Redis Streams, fsync", "redis", "fsync before each answer: appendonly, appendfsync always", MANY),
        *("/usr/bin/redis-server", redis(EACH)),
    ),
    Broker(
        *("Redis Streams, default", "redis", "fsync each second: appendonly, appendfsync everysec", MANY),
        *("/usr/bin/redis-server", redis(SECOND)),
    ),
    Broker(
        *("NATS JetStream, fsync", "nats", "fsync at each message: file storage, sync_interval always", MANY),
        *("/usr/sbin/nats-server", nats(EACH)),
    ),
    Broker(
        *("NATS JetStream, default", "nats", "fsync each 2 minutes: file storage, sync_interval 2m", MANY),
        *("/usr/sbin/nats-server", nats(MINUTES)),
    ),
)
