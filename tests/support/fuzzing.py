"""Mutated packets and handshakes against a proxy that stands in front of a real server.

The corpus is the scripts of tests/support/conversations and queue statements. Each connection sends a few packets of
it. Most are damaged in their bytes, their lengths or their sequence numbers, or cut anywhere. Every connection must
end when its client leaves, other clients must be served meanwhile, no exception may be logged, and at the end the
proxy has as much memory and as many connections as before.

`make fuzz` sends a million packets; the tests send fewer. A seed repeats a run as far as the network allows.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from mysql_mimic.types import Capabilities

from engine.packets import frame
from proxy.embedded.server import EmbeddedServer
from proxy.wire.handshake import parse_greeting
from tests.support.conversations import SCRIPTS
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import ALL, BASE, DEPRECATE_EOF, QUERY_ATTRIBUTES, UTF8MB4, RawClient
from tests.support.servers import SERVERS, connect, running_server
from tests.support.waiting import eventually

USER = "fuzz"
CONNECTIONS = 48
"""At once: enough to keep both sides busy while most wait for answers."""
PACKETS = 20
"""Of one connection, at most."""
QUIET_S = 0.03
"""Nothing came for so long: what was asked has been answered, or never will be."""
PATIENCE_S = 20.0
"""A connection that has not ended so long after its client left hangs."""
GROWTH_KB = 48 << 10
"""Of the proxy's memory after the first quarter: what the allocator keeps, and no more however long it goes on."""

OURS = (
    "STREAM * FROM m NOWAIT",
    "STREAM id, payload, epoch FROM m LIMIT 2 WAIT 0.01",
    "STREAM * FROM m PREFETCH 3",
    "/* comment */ STREAM payload FROM fuzz.m LIMIT 1 NOWAIT;",
    "ACK FROM m WHERE id IN (1, 2, 3)",
    "ACK m WHERE id = 5 AND epoch = 1",
    "INSERT INTO m (payload) VALUES ('a'), ('b')",
    "UPDATE m SET time_next = 0 WHERE id < 9",
    "SELECT * FROM m LIMIT 5",
    "KILL QUERY 1",
    "BEGIN; INSERT INTO m (payload) VALUES ('c'); COMMIT",
)
PREPARED = (
    "STREAM * FROM m LIMIT ? NOWAIT",
    "ACK FROM m WHERE id = ?",
    "INSERT INTO m (payload) VALUES (?)",
    "SELECT ?",
)
NASTY = (b"\0", b"\xff", b"\xfb", b"\xfc\xff\xff", b"\xfd\xff\xff\xff", b"\xfe" + b"\xff" * 8, b"\xff" * 4, b";", b"'")


@dataclass
class Report:
    """The counts of a run."""

    packets: int = 0
    connections: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    hangs: int = 0
    growth_kb: int = 0
    log: str = ""

    @property
    def faults(self) -> list[str]:
        """The faults found; empty after a good run."""
        found = [f"{self.hangs} connections hang"] if self.hangs else []
        if self.growth_kb > GROWTH_KB:
            found.append(f"memory grew by {self.growth_kb} kB")
        # Damaged packets leave messages unacknowledged, which is no fault of the program.
        if re.search(r"Traceback|Fatal error|CRITICAL|ERROR (?!message\.(repeated|expired|overdue):)", self.log):
            found.append(f"exceptions in the log: {self.log[-3000:]}")
        return found


def corpus(proxy: RunningProxy) -> list[bytes]:
    """The payloads of all scripts, queue statements included."""
    said: list[bytes] = []
    for capabilities in (BASE | DEPRECATE_EOF, ALL):
        for script in SCRIPTS:
            with RawClient(proxy, capabilities, USER, user=USER) as client:
                script(client)
                said += client.sent
            for table in ("t", "m2"):
                with proxy.connect(user=USER, database=USER) as plain:
                    run(plain, f"DROP TABLE IF EXISTS {table}")
                    run(plain, "DROP PROCEDURE IF EXISTS p")
                    run(plain, "DROP PROCEDURE IF EXISTS fails")
    queries = [b"\x03" + text.encode() for text in OURS]
    attributed = [b"\x03\0\1" + text.encode() for text in OURS]
    prepares = [b"\x16" + text.encode() for text in PREPARED]
    last = b"\xff\xff\xff\xff"
    executes = [
        b"\x17" + number + b"\0\1\0\0\0" + bindings
        for number in (b"\1\0\0\0", b"\2\0\0\0", last)
        for bindings in (b"", b"\0\1\x08\0\3\0\0\0\0\0\0\0", b"\1\0\1\x08\0\0\3\0\0\0\0\0\0\0", b"\0\1\xfd\0\1x")
    ]
    change = b"\x11fuzz\0\0fuzz\0-\0"
    dump = b"\x12\4\0\0\0\0\0\1\0\0\0binlog.000001"
    own = (queries + attributed + prepares + executes) * 4 + [change, dump]
    # Tables are made and dropped rarely: that is slow, and the server's own affair.
    return own + [text for text in said if len(text) < 10_000 and not re.search(rb"CREATE|DROP", text)] + said[:20]


class Fuzzer:
    """Runs connections, a number of them at once."""

    def __init__(self, proxy: RunningProxy, said: Sequence[bytes], seed: int) -> None:
        self.proxy = proxy
        self.said = said
        self.report = Report()
        self._random = random.Random(seed)

    async def run(self, packets: int) -> None:
        """Go on until so many packets are sent."""
        await asyncio.gather(*(self._keep_going(packets) for _ in range(CONNECTIONS)), self._canary(packets))

    async def _keep_going(self, packets: int) -> None:
        while self.report.packets < packets:
            self.report.connections += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    end = await self._connection()
            except TimeoutError:
                self.report.hangs += 1
                end = "hang"
            self.report.ends[end] += 1

    async def _connection(self) -> str:
        reader, writer = await asyncio.open_connection(self.proxy.host, self.proxy.port, limit=1 << 22)
        try:
            return await self._converse(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            return "closed by the proxy"
        finally:
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        chance = self._random
        greeting = await _packet(reader)
        capabilities = chance.choice((BASE, BASE | DEPRECATE_EOF, ALL, BASE | QUERY_ATTRIBUTES))
        login = _login(greeting, capabilities)
        if chance.random() < 0.1:
            await self._send(writer, self._damaged(login, seq=1))
            return await self._leave(reader, writer)
        writer.write(frame(login, 1))
        while (await _packet(reader))[0] not in {0, 0xFF}:
            pass
        for _ in range(chance.randint(1, PACKETS)):
            said = chance.choice(self.said)
            await self._send(writer, frame(said, 0) if chance.random() < 0.3 else self._damaged(said))
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(QUIET_S):
                    if not await reader.read(1 << 16):
                        return "closed by the proxy"
        return await self._leave(reader, writer)

    async def _leave(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Close the connection; after a polite end the proxy must close too."""
        if self._random.random() < 0.3:
            return "aborted by the client"
        if writer.transport.is_closing():
            return "closed by the proxy"
        writer.write_eof()
        while await reader.read(1 << 16):
            pass
        return "closed by the client"

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        self.report.packets += 1
        if self._random.random() < 0.05:  # In two segments, cut anywhere.
            at = self._random.randint(0, len(data))
            writer.write(data[:at])
            await writer.drain()
            await asyncio.sleep(0)
            data = data[at:]
        writer.write(data)
        await writer.drain()

    def _damaged(self, payload: bytes, seq: int = 0) -> bytes:
        """The packet, damaged in one way or in several."""
        chance = self._random
        data = bytearray(payload)
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            at = chance.randrange(len(data) + 1) if chance.random() < 0.5 else min(chance.randrange(12), len(data))
            match chance.randrange(8):
                case 0 if data:
                    data[at % len(data)] ^= 1 << chance.randrange(8)
                case 1 if data:
                    data[at % len(data)] = chance.randrange(256)
                case 2:
                    data[at:at] = chance.choice(NASTY)
                case 3:
                    del data[at:]
                case 4:
                    del data[at : at + chance.randint(1, 8)]
                case 5:
                    data[at:] = chance.choice(self.said)[at:]
                case 6:
                    data[:1] = bytes([chance.randrange(256)])
                case _:
                    data += chance.randbytes(chance.randint(1, 40))
        packet = bytearray(frame(bytes(data), seq))
        match chance.randrange(40):
            case 0:
                packet[chance.randrange(4)] = chance.randrange(256)
            case 1:
                packet[3] = chance.randrange(256)
            case 2:
                packet[:3] = chance.choice((b"\xff\xff\xff", b"\0\0\0", b"\1\0\0", b"\0\0\1"))
            case _:
                pass
        return bytes(packet)

    async def _canary(self, packets: int) -> None:
        """A client that behaves is served all the time."""
        while self.report.packets < packets:
            try:
                await asyncio.wait_for(asyncio.to_thread(self._well_behaved), PATIENCE_S)
            except TimeoutError:
                self.report.hangs += 1

    def _well_behaved(self) -> None:
        with self.proxy.connect(user=USER, database=USER) as client:
            run(client, "INSERT INTO canary (payload) VALUES ('sings')")
            ((number, payload),) = rows(client, "STREAM id, payload FROM canary LIMIT 1 WAIT 15")
            assert payload == "sings"
            assert run(client, f"ACK FROM canary WHERE id = {number}") == 1


async def _packet(reader: asyncio.StreamReader) -> bytes:
    header = await reader.readexactly(4)
    return await reader.readexactly(int.from_bytes(header[:3], "little")) or b"\0"


def _login(greeting: bytes, wanted: int) -> bytes:
    server = parse_greeting(greeting)
    flags = wanted & server.capabilities | int(Capabilities.CLIENT_CONNECT_WITH_DB)
    head = (flags & 0xFFFFFFFF).to_bytes(4, "little") + (1 << 24).to_bytes(4, "little") + bytes([UTF8MB4])
    head += bytes(19) + (flags >> 32).to_bytes(4, "little")
    return head + USER.encode() + b"\0\0" + USER.encode() + b"\0" + server.plugin.encode() + b"\0"


def prepare(server: EmbeddedServer) -> None:
    """Make a user with rights on one database only, and queues in it."""
    with connect(server) as root:
        run(root, f"CREATE USER {USER}@localhost")
        run(root, f"CREATE DATABASE {USER}")
        run(root, f"GRANT ALL ON {USER}.* TO {USER}@localhost")
        root.select_db(USER)
        for name in ("m", "canary"):
            create_queue(root, name)
        enqueue(root, "m", map(str, range(1_000)))


def fuzz(server: EmbeddedServer, log: Path, packets: int, seed: int) -> Report:
    """Send so many packets to a proxy of its own."""
    prepare(server)
    options = ["--log-level", "warning"]
    with running_proxy(server, log, options, check=False) as proxy:
        fuzzer = Fuzzer(proxy, corpus(proxy), seed)
        uvloop.run(fuzzer.run(packets // 4))
        before = proxy.memory_kb
        uvloop.run(fuzzer.run(packets))
        report = fuzzer.report
        with connect(server) as root:
            mine = f"SELECT id, command, info FROM information_schema.processlist WHERE user = '{USER}'"
            eventually(lambda: not rows(root, mine), timeout_s=PATIENCE_S, what=str(rows(root, mine)))
        files = Path(f"/proc/{proxy.pid}/fd")
        eventually(lambda: len(list(files.iterdir())) < CONNECTIONS, timeout_s=PATIENCE_S, what="sockets are closed")
        report.growth_kb = proxy.memory_kb - before
        report.log = proxy.output
    return report


def main() -> None:
    """`python -m tests.support.fuzzing PACKETS [SEED]`: as many on each server."""
    packets, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 1_000_000
    faults: list[str] = []
    for name in SERVERS:
        began = time.monotonic()
        with running_server(name) as server, tempfile.TemporaryDirectory() as directory:
            report = fuzz(server, Path(directory) / "log", packets // len(SERVERS), seed)
        took = time.monotonic() - began
        ends = ", ".join(f"{count} {end}" for end, count in report.ends.most_common())
        print(  # noqa: T201 - a program
            f"{name}: {report.packets} packets on {report.connections} connections in {took:.0f} s (seed {seed}): "
            f"{ends}; memory {report.growth_kb:+} kB; {len(report.log.splitlines()) - 1} lines of log"
        )
        for line in report.log.splitlines()[1:][:20]:
            print(f"    {line}")  # noqa: T201
        faults += report.faults
    sys.exit("\n".join(faults) or 0)


if __name__ == "__main__":
    main()
