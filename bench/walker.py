"""What following a connection costs: the framer and the walker, without I/O.

Run it as `python -m bench.walker`. It prints microseconds per command for small exchanges and
nanoseconds per row for large results. Compare them with the 20 µs or so that relaying one query
costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mysql_mimic.types import ColumnType

from engine.packets import frame
from proxy.wire.columns import ColumnDef, make_column
from proxy.wire.framing import Command, CommandFramer, frame_rows
from proxy.wire.packets import AUTOCOMMIT, DEPRECATE_EOF, make_end, make_ok
from proxy.wire.params import make_query
from proxy.wire.walker import ResponseWalker

CHUNK = 65536
QUERY = 0x03


def result(rows: list[bytes], columns: int) -> bytes:
    definition = make_column(ColumnDef(b"amount", int(ColumnType.LONG), db=b"shop", table=b"orders"))
    packets = [bytes([columns]), *[definition] * columns, *rows, make_end(DEPRECATE_EOF)]
    return frame_rows(packets, 1)[0]


def chunks(data: bytes) -> list[bytes]:
    return [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]


def best_s(run: Callable[[], object], repeat: int = 5) -> float:
    """Return the shortest time of `repeat` runs, in seconds."""

    def once() -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    return min(once() for _ in range(repeat))


def exchange(answer: bytes, count: int = 20_000) -> Callable[[], None]:
    """Return a function that follows `count` queries and their answers, each in one chunk."""
    framer = CommandFramer(lambda _head: False)
    walker = ResponseWalker[None](DEPRECATE_EOF, AUTOCOMMIT)
    query = frame(make_query(b"SELECT amount FROM orders WHERE id = 17", attributes=False), 0)

    def run() -> None:
        for _ in range(count):
            for event in framer.feed(query):
                if isinstance(event, Command):
                    walker.expect(event.byte, None)
            walker.feed(answer)

    return run


def follow(pieces: list[bytes]) -> Callable[[], None]:
    """Return a function that follows one large answer, in chunks as a socket delivers them."""
    walker = ResponseWalker[None](DEPRECATE_EOF, AUTOCOMMIT)

    def run() -> None:
        walker.expect(QUERY, None)
        for piece in pieces:
            walker.feed(piece)
        assert walker.idle

    return run


def main() -> None:
    small = {
        "an OK": frame(make_ok(affected_rows=1, insert_id=4711), 1),
        "a row of 1 column": result([b"\x0217"], 1),
        "a row of 10 columns": result([b"\x0217" * 10], 10),
        "a row of 100 columns": result([b"\x0217" * 100], 100),
    }
    for name, answer in small.items():
        cost_us = best_s(exchange(answer)) / 20_000 * 1e6
        print(f"command answered by {name:<22} {cost_us:8.2f} µs")
    for size in (20, 100, 1000, 100_000):
        count = min(200_000, 40_000_000 // size)
        pieces = chunks(result([b"\x01" * size] * count, 3))
        cost_ns = best_s(follow(pieces)) / count * 1e9
        print(f"row of {size:>6} bytes {cost_ns:26.0f} ns   {cost_ns / size:8.3f} ns/byte")
    rows = [b"\x01" * 100] * 10_000
    print(f"row framed by the proxy {best_s(lambda: frame_rows(rows, 0)) / len(rows) * 1e9:20.0f} ns")


if __name__ == "__main__":
    main()
