"""Clients of beanstalkd, Redis, NATS and RabbitMQ, each as the server's documentation has a worker do it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any, Protocol

from bench.compare.amqp import QuorumQueue
from bench.compare.batches import batches
from bench.compare.connection import AT_ONCE, Connection, Taken, ignored
from bench.compare.model import PAYLOAD_BYTES

PAYLOAD = b"x" * PAYLOAD_BYTES
PAUSE_S = 0.001


class Client(Protocol):
    """A connection that enqueues or consumes. `name` is unique among the consumers of a queue."""

    def __init__(self, port: int, name: str) -> None: ...

    def prepare(self) -> None:
        """Make the queue."""

    def enqueue(self, messages: int) -> None:
        """Enqueue messages; they are accepted by the server when it returns."""

    def consume(self, messages: int, batch: int, taken: Taken = ignored) -> None:
        """Take and finish messages, `batch` at a time; wait for those that are not there yet.

        `taken` is called for each batch when its messages are here and not finished yet.
        """


class Beanstalkd:
    """`reserve`, then `delete`: the protocol takes one message at a time."""

    def __init__(self, port: int, name: str) -> None:
        self._connection = Connection(port)

    def prepare(self) -> None:
        """Nothing: the tube `default` is there."""

    def enqueue(self, messages: int) -> None:
        put = b"put 0 0 60 %d\r\n%s\r\n" % (PAYLOAD_BYTES, PAYLOAD)
        for count in batches(messages, AT_ONCE):
            self._connection.send(put * count)
            for _ in range(count):
                self._answered(b"INSERTED")

    def consume(self, messages: int, batch: int, taken: Taken = ignored) -> None:
        for _ in range(messages):
            self._connection.send(b"reserve\r\n")
            _, number, size = self._answered(b"RESERVED").split()
            self._connection.read(int(size))
            taken()
            self._connection.send(b"delete %s\r\n" % number)
            self._answered(b"DELETED")

    def _answered(self, word: bytes) -> bytes:
        line = self._connection.line()
        if not line.startswith(word):
            raise ConnectionError(f"beanstalkd answered {line!r} instead of {word!r}")
        return line


class RedisStream:
    """A consumer group: `XREADGROUP … COUNT n`, then one `XACK` for the batch."""

    def __init__(self, port: int, name: str) -> None:
        self._connection = Connection(port)
        self._name = name.encode()

    def prepare(self) -> None:
        self._command(b"XGROUP", b"CREATE", b"queue", b"workers", b"$", b"MKSTREAM")

    def enqueue(self, messages: int) -> None:
        add = self._encoded(b"XADD", b"queue", b"*", b"payload", PAYLOAD)
        for count in batches(messages, AT_ONCE):
            self._connection.send(add * count)
            for _ in range(count):
                self._reply()

    def consume(self, messages: int, batch: int, taken: Taken = ignored) -> None:
        while messages > 0:
            count = b"%d" % min(batch, messages)
            read = (b"XREADGROUP", b"GROUP", b"workers", self._name, b"COUNT", count, b"BLOCK", b"1000")
            reply = self._command(*read, b"STREAMS", b"queue", b">")
            if reply is not None:
                ids = [entry[0] for entry in reply[0][1]]
                taken()
                self._command(b"XACK", b"queue", b"workers", *ids)
                messages -= len(ids)

    def _command(self, *words: bytes) -> Any:
        self._connection.send(self._encoded(*words))
        return self._reply()

    @staticmethod
    def _encoded(*words: bytes) -> bytes:
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)

    def _reply(self) -> Any:
        line = self._connection.line()
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise ConnectionError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self._connection.read(int(rest))
        if kind == b"*":
            return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]
        return rest


class JetStream:
    """A work queue stream with a durable pull consumer: a request for n messages, an ack for each."""

    STREAM: Mapping[str, Any] = {
        "name": "queue",
        "subjects": ["jobs"],
        "retention": "workqueue",
        "storage": "file",
    }
    CONSUMER: Mapping[str, Any] = {
        "stream_name": "queue",
        "config": {"durable_name": "workers", "ack_policy": "explicit", "max_ack_pending": 10_000},
    }

    def __init__(self, port: int, name: str) -> None:
        self._connection = Connection(port)
        self._connection.line()
        self._inbox = f"inbox.{name}".encode()
        options = (
            b'{"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"lang":"python","version":"1"}'
        )
        self._connection.send(b"CONNECT %s\r\nSUB %s 1\r\n" % (options, self._inbox))

    def prepare(self) -> None:
        self._request("$JS.API.STREAM.CREATE.queue", self.STREAM)
        self._request("$JS.API.CONSUMER.DURABLE.CREATE.queue.workers", self.CONSUMER)

    def enqueue(self, messages: int) -> None:
        publish = b"PUB jobs %s %d\r\n%s\r\n" % (self._inbox, PAYLOAD_BYTES, PAYLOAD)
        for count in batches(messages, AT_ONCE):
            self._connection.send(publish * count)
            for _ in range(count):
                _, body = self._message()
                if b'"error"' in body:
                    raise ConnectionError(body.decode())

    def consume(self, messages: int, batch: int, taken: Taken = ignored) -> None:
        while messages > 0:
            count = min(batch, messages)
            self._publish("$JS.API.CONSUMER.MSG.NEXT.queue.workers", b'{"batch":%d,"expires":1000000000}' % count)
            acks: list[bytes] = []
            while len(acks) < count:
                reply, _ = self._message()
                if not reply.startswith(b"$JS.ACK."):
                    break  # The request has expired.
                acks.append(b"PUB %s 4\r\n+ACK\r\n" % reply)
            if acks:
                taken()
            self._connection.send(b"".join(acks))
            messages -= len(acks)
        self._await_acknowledged()

    def _await_acknowledged(self) -> None:
        """Wait until the server has none of this queue's messages in flight: acks have no answers."""
        while self._request("$JS.API.CONSUMER.INFO.queue.workers", {})["num_ack_pending"]:
            time.sleep(PAUSE_S)

    def _request(self, subject: str, body: Mapping[str, Any]) -> Any:
        self._publish(subject, json.dumps(body).encode())
        answer = json.loads(self._message()[1])
        if "error" in answer:
            raise ConnectionError(answer["error"]["description"])
        return answer

    def _publish(self, subject: str, body: bytes) -> None:
        self._connection.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), self._inbox, len(body), body))

    def _message(self) -> tuple[bytes, bytes]:
        """Return the reply subject and the body of the next message."""
        while not (head := re.match(rb"H?MSG \S+ \S+ (?:(\S*) )??(?:\d+ )?(\d+)$", line := self._connection.line())):
            if line.startswith(b"-ERR"):
                raise ConnectionError(line.decode())
            if line == b"PING":
                self._connection.send(b"PONG\r\n")
        return head[1] or b"", self._connection.read(int(head[2]))


PROTOCOLS: Mapping[str, type[Client]] = {
    "beanstalkd": Beanstalkd,
    "redis": RedisStream,
    "nats": JetStream,
    "amqp": QuorumQueue,
}
