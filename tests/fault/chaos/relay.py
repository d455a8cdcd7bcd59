"""TCP relays with faults: one process, any number of legs, each a port that leads to another port.

Orders come as lines of JSON on standard input, answers go to standard output. `{"leg": name, "to":
port}` makes a leg or changes where it leads; the answer is its port. `{"leg": name, "fault": what,
…}` sets what happens to its data from now on:

- `pass`: nothing; data that was held back is passed on.
- `stall`: nothing passes, in the directions `up` (to the target) and `down`; connections stay open.
- `delay`: each piece comes `seconds` later. `throttle`: so many `bytes` a second.
- `split`: data comes in pieces of a few bytes.
- `cut`: connections are reset, a `part` of them, drawn with `seed`. It lasts for this moment only.
- `refuse`: new connections are reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
from collections import deque
from typing import Any, cast

import uvloop

HELD_BYTES_MAX = 1 << 20
SPLIT_BYTES = 1500
"""Of each piece that arrives, so many bytes are split; a megabyte in pieces of three bytes would only take time."""


class Leg:
    """A port, its target, and its present fault."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.fault: dict[str, Any] = {"fault": "pass"}
        self.pairs: set[Pair] = set()
        self.port = 0

    async def listen(self) -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Side(Pair(self)), "127.0.0.1", 0, backlog=1000)
        self.port = server.sockets[0].getsockname()[1]

    def change(self, order: dict[str, Any]) -> None:
        if order["fault"] == "cut":
            draw = random.Random(order.get("seed", 0))
            for pair in list(self.pairs):
                if draw.random() < order.get("part", 1.0):
                    pair.reset()
            return
        self.fault = order
        for pair in list(self.pairs):
            pair.wake()


class Pair:
    """A client's connection and the one to the target."""

    def __init__(self, leg: Leg) -> None:
        self.leg = leg
        self.sides: list[Side] = []
        self._lost = False
        self.up, self.down = Direction(self, "up"), Direction(self, "down")
        leg.pairs.add(self)

    def wake(self) -> None:
        """The leg's fault is another one now."""
        if self._lost:
            self.lose()
        for direction in (self.up, self.down):
            direction.wake()

    def lose(self) -> None:
        """One connection has ended. Behind a stalled leg nobody notices it before the stall is over."""
        self._lost = True
        if self.leg.fault["fault"] != "stall" and self in self.leg.pairs:
            self.reset()

    def reset(self) -> None:
        """End both connections with a RST."""
        self.leg.pairs.discard(self)
        for side in self.sides:
            side.reset()
        for direction in (self.up, self.down):
            direction.end()

    def close(self) -> None:
        """Both ends have said all."""
        self.leg.pairs.discard(self)
        for side in self.sides:
            side.close()


class Direction:
    """Data on its way. A task works only while something is held back."""

    def __init__(self, pair: Pair, name: str) -> None:
        self._pair, self._name = pair, name
        self.source: Side | None = None
        self.target: Side | None = None
        self.finished = False
        self._held: deque[bytes] = deque()
        self._bytes = 0
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    def feed(self, data: bytes) -> None:
        """Pass data on as the leg's fault allows; `b""` is the end of the data."""
        if not self._held and self._pump is None and self.target is not None and self._passes():
            self._write(data)
            return
        self._held.append(data)
        self._bytes += len(data)
        if self._bytes > HELD_BYTES_MAX and self.source is not None:
            self.source.pause(True)
        if self._pump is None:
            self._pump = asyncio.ensure_future(self._work())
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()

    def source_pause(self, paused: bool) -> None:
        """Whether the target takes more."""
        if self.source is not None:
            self.source.pause(paused)

    def end(self) -> None:
        self._ended.set()
        self._changed.set()

    def _over(self) -> bool:
        return self._ended.is_set()

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until the connections are gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    def _passes(self) -> bool:
        return str(self._pair.leg.fault["fault"]) in {"pass", "refuse"}

    def _write(self, data: bytes) -> None:
        if self.target is None:
            return
        if data:
            self.target.write(data)
        else:
            self.finished = True
            self.target.finish()
            if self._pair.up.finished and self._pair.down.finished:
                self._pair.close()

    async def _work(self) -> None:
        while self._held and not self._over():
            fault = self._pair.leg.fault
            what = fault["fault"]
            if self.target is None or (what == "stall" and fault.get(self._name, True)):
                self._changed.clear()
                await self._changed.wait()
                continue
            data = self._held[0]
            if what == "delay":
                await self._pause(fault["seconds"])
            elif what == "throttle":
                await self._pause(len(data) / fault["bytes"])
            if self._over():
                return
            if what == "split":
                await self._split(data)
            else:
                self._write(data)
            self._held.popleft()
            self._bytes -= len(data)
            if self._bytes < HELD_BYTES_MAX // 2 and self.source is not None:
                self.source.pause(False)
        self._pump = None

    async def _split(self, data: bytes) -> None:
        at = 0
        while at < min(len(data), SPLIT_BYTES):
            size = 1 + at % 7
            self._write(data[at : at + size])
            at += size
            await asyncio.sleep(0)
        if at < len(data) or not data:
            self._write(data[at:])


class Side(asyncio.Protocol):
    """One connection of a pair. The first is the client's; it opens the other."""

    def __init__(self, pair: Pair, *, first: bool = True) -> None:
        self._pair, self._first = pair, first
        self._transport: asyncio.Transport | None = None
        self._mine = pair.up if first else pair.down
        self._mine.source = self
        self._reset = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass.
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pair.sides.append(self)
        (self._pair.down if self._first else self._pair.up).target = self
        if self._reset or self._pair not in self._pair.leg.pairs:
            self.reset()
        elif not self._first:
            self._pair.wake()
        elif self._pair.leg.fault["fault"] == "refuse":
            self._pair.reset()
        else:
            self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: Side(self._pair, first=False), "127.0.0.1", self._pair.leg.target)
        except OSError:
            self._pair.reset()

    def data_received(self, data: bytes) -> None:
        self._mine.feed(data)

    def eof_received(self) -> bool:
        self._mine.feed(b"")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._pair.lose()

    def pause_writing(self) -> None:
        (self._pair.down if self._first else self._pair.up).source_pause(True)

    def resume_writing(self) -> None:
        (self._pair.down if self._first else self._pair.up).source_pause(False)

    def pause(self, paused: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if paused and self._transport.is_reading():
                self._transport.pause_reading()
            elif not paused and not self._transport.is_reading():
                self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def finish(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        self._reset = True
        if self._transport is not None and not self._transport.is_closing():
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()


async def serve() -> None:
    """Follow the orders until the input ends."""
    legs: dict[str, Leg] = {}
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        order = json.loads(line)
        name = order["leg"]
        if "to" in order:
            if name not in legs:
                legs[name] = Leg(order["to"])
                await legs[name].listen()
            legs[name].target = order["to"]
        else:
            legs[name].change(order)
        sys.stdout.write(f"{legs[name].port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(serve())
