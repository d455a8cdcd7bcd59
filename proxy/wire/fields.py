"""The alphabet of the protocol: length-encoded integers and strings, read with bounds checks.

Every packet is a string of such fields. A length that reaches past its packet is the oldest attack
on protocol code, so lengths are read in one place, with a check: reading past the end raises
`WireError`, never an exception of Python's, and never returns a shortened value.

Writing needs no checks; mysql-mimic's makers do it.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.packets import WireError, lenenc_at
from proxy.wire.mimic_adapter import ErrorCode


class BadHandshake(WireError):
    """The client uses another protocol (before 4.1), or none."""

    code = int(ErrorCode.HANDSHAKE_ERROR)
    sqlstate = "08S01"


class PacketTooLarge(WireError):
    """A packet exceeds the limit up to which it is gathered."""

    code = 1153
    sqlstate = "08S01"


class Reader:
    """A cursor over one packet. Each method takes the next field or raises `WireError`."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > self.left:
            raise WireError(f"{count} bytes were announced, {self.left} are left in the packet")
        start = self.at
        self.at = start + count
        return self.data[start : self.at]

    def uint(self, width: int) -> int:
        """The next `width` bytes as an unsigned little-endian integer."""
        return int.from_bytes(self.take(width), "little")

    def lenenc(self) -> int:
        """A length-encoded integer."""
        value, self.at = lenenc_at(self.data, self.at, len(self.data))
        return value

    def lenenc_bytes(self) -> bytes:
        """A string with its length before it."""
        return self.take(self.lenenc())

    def null_bytes(self) -> bytes:
        """A string up to a NUL, which is skipped."""
        stop = self.data.find(0, self.at)
        if stop < 0:
            raise WireError("a NUL-terminated string has no end")
        text = self.data[self.at : stop]
        self.at = stop + 1
        return text

    def null_bytes_or_rest(self) -> bytes:
        """A string up to a NUL or the end: some clients leave out the NUL of their last field."""
        return self.null_bytes() if 0 in self.data[self.at :] else self.take(self.left)

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(self.left)


def lenenc_pairs(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The name and value pairs of a connection-attribute block."""
    reader = Reader(data)
    while reader.left:
        yield reader.lenenc_bytes(), reader.lenenc_bytes()
