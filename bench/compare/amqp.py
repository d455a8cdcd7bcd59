"""A client of RabbitMQ's quorum queues in AMQP 0-9-1, with the few methods that a worker needs."""

from __future__ import annotations

import struct

from bench.compare.batches import batches
from bench.compare.connection import AT_ONCE, Connection, Taken, ignored
from bench.compare.model import PAYLOAD_BYTES

METHOD, HEADER, BODY, FRAME_END = 1, 2, 3, b"\xce"
CHANNEL = 1
FRAME_MAX = 131_072
PREFETCH_MIN = 100
"""The documentation advises against less for fast consumers."""
PERSISTENT = 2

Method = tuple[int, int]
START, START_OK, TUNE, TUNE_OK = (10, 10), (10, 11), (10, 30), (10, 31)
OPEN, OPEN_OK, CHANNEL_OPEN, CHANNEL_OPEN_OK = (10, 40), (10, 41), (20, 10), (20, 11)
DECLARE, DECLARE_OK, QOS, QOS_OK = (50, 10), (50, 11), (60, 10), (60, 11)
CONSUME, CONSUME_OK, PUBLISH, DELIVER, ACK = (60, 20), (60, 21), (60, 40), (60, 60), (60, 80)
SELECT, SELECT_OK = (85, 10), (85, 11)


def short(text: bytes) -> bytes:
    """Encode a short string."""
    return bytes([len(text)]) + text


def long(text: bytes) -> bytes:
    """Encode a long string, or a table of encoded fields."""
    return struct.pack(">I", len(text)) + text


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, name: Method, arguments: bytes = b"") -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *name) + arguments)


QUEUE = short(b"queue")
QUORUM = long(short(b"x-queue-type") + b"S" + long(b"quorum"))
DECLARATION = struct.pack(">H", 0) + QUEUE + b"\x02" + QUORUM  # Durable.
MESSAGE = (
    method(CHANNEL, PUBLISH, struct.pack(">H", 0) + short(b"") + QUEUE + b"\0")
    + frame(HEADER, CHANNEL, struct.pack(">HHQHB", 60, 0, PAYLOAD_BYTES, 0x1000, PERSISTENT))
    + frame(BODY, CHANNEL, b"x" * PAYLOAD_BYTES)
)


class QuorumQueue:
    """Publishes with confirms; consumes with a prefetch limit and one acknowledgement for each batch."""

    def __init__(self, port: int, name: str) -> None:
        self._connection = Connection(port)
        self._consuming = False
        self._published = 0
        self._confirmed = 0
        self._connection.send(b"AMQP\0\0\x09\x01")
        self._expect(START)
        self._connection.send(
            method(0, START_OK, long(b"") + short(b"PLAIN") + long(b"\0guest\0guest") + short(b"en_US"))
        )
        self._expect(TUNE)
        self._connection.send(method(0, TUNE_OK, struct.pack(">HIH", 10, FRAME_MAX, 0)))
        self._call(OPEN, short(b"/") + b"\0\0", OPEN_OK, channel=0)
        self._call(CHANNEL_OPEN, short(b""), CHANNEL_OPEN_OK)

    def prepare(self) -> None:
        self._call(DECLARE, DECLARATION, DECLARE_OK)

    def enqueue(self, messages: int) -> None:
        if not self._published:
            self._call(SELECT, b"\0", SELECT_OK)
        for count in batches(messages, AT_ONCE):
            self._connection.send(MESSAGE * count)
            self._published += count
            while self._confirmed < self._published:
                arguments = self._expect(ACK)
                tag, multiple = struct.unpack(">Q?", arguments)
                self._confirmed = tag if multiple else self._confirmed + 1

    def consume(self, messages: int, batch: int, taken: Taken = ignored) -> None:
        if not self._consuming:
            self._consuming = True
            self._call(QOS, struct.pack(">IHB", 0, max(PREFETCH_MIN, 3 * batch), 0), QOS_OK)
            self._call(CONSUME, struct.pack(">H", 0) + QUEUE + short(b"worker") + b"\0" + long(b""), CONSUME_OK)
        for count in batches(messages, batch):
            tag = b""
            for _ in range(count):
                arguments = self._expect(DELIVER)
                tag = arguments[1 + arguments[0] :][:8]
                self._frame()
                self._frame()
            taken()
            self._connection.send(method(CHANNEL, ACK, tag + bytes([count > 1])))
        self._synchronise()

    def _synchronise(self) -> None:
        """Wait until the server has handled what this channel sent: an acknowledgement has no answer.

        Messages that arrive meanwhile are passed over. The server delivers them again to others.
        """
        passive = struct.pack(">H", 0) + QUEUE + b"\x01" + long(b"")
        self._connection.send(method(CHANNEL, DECLARE, passive))
        answer = struct.pack(">HH", *DECLARE_OK)
        while (found := self._frame())[0] != METHOD or not found[1].startswith(answer):
            pass

    def _call(self, name: Method, arguments: bytes, answer: Method, channel: int = CHANNEL) -> None:
        self._connection.send(method(channel, name, arguments))
        self._expect(answer)

    def _expect(self, name: Method) -> bytes:
        """Return the arguments of the next method, which is this one."""
        _, payload = self._frame()
        found = struct.unpack(">HH", payload[:4])
        if found != name:
            raise ConnectionError(f"RabbitMQ sent the method {found} instead of {name}: {payload!r}")
        return payload[4:]

    def _frame(self) -> tuple[int, bytes]:
        """Return kind and payload of the next frame."""
        kind, _, size = struct.unpack(">BHI", self._connection.exactly(7))
        return kind, self._connection.exactly(size + 1)[:-1]
