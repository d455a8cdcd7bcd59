"""Packets: splitting and making them, and finding a client's commands.

A packet is three bytes of length, one of sequence number and the payload; a payload of 0xFFFFFF
bytes or more goes on in the next packet, up to one that is shorter. Three things follow this rule:

* `Packets` gathers whole payloads. It is for slow paths: the login, and the answers to internal
  queries.
* `CommandFramer` is for the hot path from client to server. It finds where commands begin and returns
  their first bytes. All else it returns unread, to be forwarded unchanged. A session calls
  `is_command` first: usually a chunk is exactly one command, and nothing else is needed.
* `engine.packets.frame` and `frame_rows` write.

Sequence numbers tell commands from other client packets: each command restarts at 0, answers within
a login dialogue do not. Only the numbers of LOAD DATA LOCAL's data wrap around. The session reports
it (`enter_infile`), because the server has requested the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from engine.packets import HEADER, PAYLOAD_MAX, large_frame
from proxy.wire.commands import COM_CLONE, COM_SLEEP
from proxy.wire.fields import PacketTooLarge

HEAD_MAX: Final = 4096
"""The head by which a command is classified. A verb behind longer comments is not seen."""

QUEUE_STATEMENT_MAX: Final = 16 * 1024 * 1024
"""The longest command that is gathered whole for the session."""

_WORD: Final = struct.Struct("<I")
_pack_word = _WORD.pack
_word_at = _WORD.unpack_from


class Packet(NamedTuple):
    """A payload, and the sequence number of the (last) packet that carried it."""

    seq: int
    payload: bytes


class Packets:
    """Splits a stream into payloads. One payload may have at most `max_size` bytes."""

    __slots__ = ("_buffer", "_parts", "_parts_size", "max_size")

    def __init__(self, max_size: int = QUEUE_STATEMENT_MAX) -> None:
        self.max_size = max_size
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        self._parts_size = 0

    def feed(self, chunk: bytes) -> list[Packet]:
        """The payloads that `chunk` completes. Raises `PacketTooLarge`."""
        buffer = self._buffer
        buffer += chunk
        done: list[Packet] = []
        at = 0
        while len(buffer) - at >= HEADER:
            length = _word_at(buffer, at)[0] & PAYLOAD_MAX
            _check_size(self._parts_size + length, self.max_size)
            end = at + HEADER + length
            if end > len(buffer):
                break
            self._add(buffer[at + 3], bytes(buffer[at + HEADER : end]), done)
            at = end
        del buffer[:at]
        return done

    @property
    def rest(self) -> bytes:
        """The bytes that are not part of a completed payload yet."""
        joined = b"".join(self._parts)
        return joined + bytes(self._buffer)

    def _add(self, seq: int, part: bytes, done: list[Packet]) -> None:
        if len(part) == PAYLOAD_MAX:
            self._parts.append(part)
            self._parts_size += len(part)
            return
        if self._parts:
            part = b"".join((*self._parts, part))
            self._parts.clear()
            self._parts_size = 0
        done.append(Packet(seq, part))


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise PacketTooLarge(f"a packet of {size} bytes exceeds the limit of {limit} bytes")


def frame_rows(rows: Iterable[bytes], seq: int) -> tuple[bytes, int]:
    """Many payloads as packets in one buffer, and the sequence number that comes next."""
    parts: list[bytes | memoryview] = []
    for row in rows:
        length = len(row)
        if length >= PAYLOAD_MAX:
            parts += large_frame(row, seq)
            seq += length // PAYLOAD_MAX + 1
            continue
        parts += (_pack_word(length | (seq & 0xFF) << 24), row)
        seq += 1
    return b"".join(parts), seq & 0xFF


def join_payload(data: bytes) -> bytes:
    """The payload of one command's packets, without the headers."""
    length = _word_at(data, 0)[0] & PAYLOAD_MAX
    if length < PAYLOAD_MAX:
        return data[HEADER : HEADER + length]
    parts: list[bytes] = []
    at = 0
    while len(data) - at >= HEADER:
        end = at + HEADER + (_word_at(data, at)[0] & PAYLOAD_MAX)
        parts.append(data[at + HEADER : end])
        at = end
    return b"".join(parts)


class Command(NamedTuple):
    """The beginning of a client's command.

    `data` are its bytes on the wire, to be forwarded unchanged or withheld. With `whole` they are all
    of it. Without, the rest follows as plain bytes in the framer's next results and goes the same way:
    only for commands longer than `HEAD_MAX` that `wants_whole` declined.
    """

    byte: int
    data: bytes
    whole: bool

    @property
    def payload(self) -> bytes:
        """The payload from the command byte on; not `whole`, its first `HEAD_MAX` bytes."""
        return join_payload(self.data) if self.whole else self.data[HEADER : HEADER + HEAD_MAX]


class Dropped(NamedTuple):
    """A command that is gathered no more: its bytes are discarded, also those still to come."""

    byte: int


Event = Command | Dropped | bytes
"""A command to classify, a command to answer by an error, or bytes to forward unread."""


class CommandFramer:
    """Finds the commands in what a client sends.

    `feed` gives events whose bytes, joined, are exactly what was fed, short of at most `HEAD_MAX`
    bytes of a command that has not shown enough of itself yet (`QUEUE_STATEMENT_MAX` when it is gathered).

    `wants_whole(payload_head)` is called once for each command that is not whole in its first
    `HEAD_MAX` bytes. True gathers it up to `QUEUE_STATEMENT_MAX`, beyond which `feed` raises `PacketTooLarge`.
    `may_gather(size)` is called whenever such a command has grown and is not whole; False drops it.
    """

    __slots__ = (
        "_continued", "_dropping", "_gathering", "_held", "_infile", "_opaque", "_skip", "may_gather", "wants_whole",
    )  # fmt: skip

    def __init__(
        self, wants_whole: Callable[[bytes], bool], may_gather: Callable[[int], bool] = lambda _size: True
    ) -> None:
        self.wants_whole = wants_whole
        self.may_gather = may_gather
        self._held = bytearray()
        """Bytes from a packet's beginning on, which are not returned yet."""
        self._gathering = False
        self._skip = 0
        """Bytes of the current packet that are still to come and pass unread."""
        self._dropping = False
        """Whether the bytes that pass unread belong to a dropped command."""
        self._continued = False
        """Whether the next packet continues a payload that passes unread."""
        self._infile = False
        self._opaque = False

    @property
    def at_boundary(self) -> bool:
        """Whether all bytes so far were whole commands (or data) and have been returned."""
        return not (self._held or self._skip or self._continued or self._infile)

    def enter_infile(self) -> None:
        """The server has requested a file: the next packets, up to an empty one, are its content."""
        self._infile = True
        self._gathering = False

    @property
    def gathered(self) -> int:
        """How many bytes of a command are gathered now."""
        return len(self._held) if self._gathering else 0

    def drop(self) -> Dropped:
        """Discard the command that is being gathered, also its bytes still to come."""
        held, at, self._continued = self._held, 0, True
        while self._continued and len(held) - at >= HEADER:
            length = _word_at(held, at)[0] & PAYLOAD_MAX
            at += HEADER + length
            self._continued = length == PAYLOAD_MAX
        byte = held[HEADER]
        self._skip = max(0, at - len(held))
        del held[:at]  # What is left is the beginning of a header.
        self._gathering = False
        self._dropping = True
        return Dropped(byte)

    @property
    def infile(self) -> bool:
        """Whether the next packets are a file's."""
        return self._infile

    def is_command(self, chunk: bytes) -> bool:
        """Whether `chunk` is exactly one whole command, as nearly always. Changes nothing."""
        size = len(chunk)
        return (
            size > HEADER
            and _word_at(chunk)[0] == size - HEADER < PAYLOAD_MAX  # The length, and sequence number 0.
            and not (self._held or self._skip or self._continued or self._infile or self._opaque)
        )

    def feed(self, chunk: bytes) -> Sequence[Event]:
        """The events of `chunk`, in order. Raises only `PacketTooLarge`."""
        events: list[Event] = []
        if self._held:
            self._held += chunk
            if self._gathering and self._whole_end(self._held) is None:
                return events if self.may_gather(len(self._held)) else [self.drop()]
            chunk = bytes(self._held)
            self._held.clear()
        start = at = 0
        size = len(chunk)
        while at < size:
            if self._opaque:
                at = size
            elif self._skip:
                step = min(self._skip, size - at)
                self._skip -= step
                at += step
                start = self._unread_from(start, at)
            elif size - at < HEADER:
                break
            elif self._passes(chunk, at):
                self._begin_unread(_word_at(chunk, at)[0] & PAYLOAD_MAX)
                at += HEADER
                start = self._unread_from(start, at)
            else:
                if at > start:
                    events.append(chunk[start:at])
                end = self._command(chunk, at, events)
                if end is None:
                    start = at
                    break
                start = at = end
        if at > start:
            events.append(chunk[start:at])
        self._held += chunk[at:]
        if self._gathering and not self.may_gather(len(self._held)):
            events.append(self.drop())
        return events

    def _unread_from(self, start: int, at: int) -> int:
        """Where the bytes begin that are returned unread, after those up to `at` have been passed."""
        if not self._dropping:
            return start
        self._dropping = self._skip > 0 or self._continued
        return at

    def _passes(self, chunk: bytes, at: int) -> bool:
        """Whether the packet at `at` is no command: file data, a continuation, part of a login."""
        return self._infile or self._continued or chunk[at + 3] != 0

    def _begin_unread(self, length: int) -> None:
        if self._infile and not length and not self._continued:
            self._infile = False
        self._skip = length
        self._continued = length == PAYLOAD_MAX

    def _command(self, chunk: bytes, at: int, events: list[Event]) -> int | None:
        """Take the command at `at`. Returns where its bytes here end, or None to wait for more."""
        end = self._whole_end(chunk, at)
        if end is not None:
            self._gathering = False
            byte = chunk[at + HEADER] if end > at + HEADER else COM_SLEEP
            self._opaque = byte == COM_CLONE
            events.append(Command(byte, chunk[at:end], True))
            return end
        head = chunk[at + HEADER : at + HEADER + HEAD_MAX]
        if len(head) < HEAD_MAX:
            return None
        self._gathering = self.wants_whole(head)
        if not self._gathering:
            return self._let_through(chunk, at, events)
        return self._whole_end(chunk, at)

    def _let_through(self, chunk: bytes, at: int, events: list[Event]) -> int:
        """Pass on a long command that is not gathered: the bytes here of its first packet."""
        length: int = _word_at(chunk, at)[0] & PAYLOAD_MAX
        end = min(at + HEADER + length, len(chunk))
        self._continued = length == PAYLOAD_MAX
        self._skip = length - (end - at - HEADER)
        events.append(Command(chunk[at + HEADER], chunk[at:end], False))
        return end

    def _whole_end(self, data: bytes | bytearray, at: int = 0) -> int | None:
        """Where the command at `at` ends, or None if it is not whole yet."""
        begin = at
        while len(data) - at >= HEADER:
            length = _word_at(data, at)[0] & PAYLOAD_MAX
            at += HEADER + length
            if self._gathering:
                _check_size(at - begin, QUEUE_STATEMENT_MAX)
            if length < PAYLOAD_MAX:
                return at if at <= len(data) else None
        return None
