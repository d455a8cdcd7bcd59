"""MariaDB's COM_STMT_BULK_EXECUTE: one prepared statement with many rows of parameters.

| bytes | |
|---|---|
| 1, 4 | the command, the statement's number |
| 2 | flags |
| 2 for each parameter, with SEND_TYPES | its type |
| for each parameter of each row | an indicator, and with VALUE the value in the binary protocol |
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final

from engine.packets import WireError
from proxy.wire.fields import Reader
from proxy.wire.params import UNSIGNED, ParamType, Value, read_binary

FLAGS_AT: Final = 5
SEND_TYPES: Final = 0x80
VALUE: Final = 0
"""The other indicators (NULL, DEFAULT, IGNORE) have no value behind them."""

ROWS_OF_A_STEP: Final = 500
"""Rows that are read between two steps. One takes a few µs for each of its parameters."""


def rearranged_in_bulk(
    payload: bytes, order: Sequence[int], *, types: Sequence[ParamType], check: Callable[[Sequence[Value]], object]
) -> Generator[None, None, tuple[bytes, tuple[ParamType, ...]]]:
    """The payload with the parameters of each row in this order, and their types in the former one.

    `types` are those of the statement's last execution. `check` gets the parameters of each row, and may raise.
    Raises WireError.
    """
    reader = Reader(payload, FLAGS_AT)
    flags = reader.uint(2)
    if flags & SEND_TYPES:
        types = [ParamType(reader.uint(1), bool(reader.uint(1) & UNSIGNED)) for _ in order]
    if len(types) < len(order):
        raise WireError("parameters came without types, and none were bound before")
    sent = b"".join(bytes((types[i].type, UNSIGNED * types[i].unsigned)) for i in order)
    parts = [payload[:FLAGS_AT], (flags | SEND_TYPES).to_bytes(2, "little"), sent]
    count = 0
    while reader.left:
        values: list[Value] = []
        spans: list[bytes] = []
        for i in range(len(order)):
            begin = reader.at
            values.append(read_binary(reader, types[i]) if reader.uint(1) == VALUE else None)
            spans.append(payload[begin : reader.at])
        check(values)
        parts += [spans[i] for i in order]
        count += 1
        if count % ROWS_OF_A_STEP == 0:
            yield
    return b"".join(parts), tuple(types)
