"""The messages of a streaming query in the driver: claimed, extended while their batch runs,
acknowledged.

STREAMs claim on connections of their own, several at a time. These connections then stay open and
idle. When this process dies, in any way, the proxy sees them close and releases the messages at
once. No other statement runs on them, because a statement that fails may cost its connection, and
with it the messages. If a STREAM fails, what it had delivered is released with its connection.

A batch may take longer than its messages' wait. A thread extends them on the control connection:
first when half of what is left has passed, then every third of `hold_s`, until the batch is
acknowledged. Like the ACK, EXTEND leaves messages alone that have been delivered again since.
Messages of an earlier process were given back when it died. They are not in flight any more, and
wait as those of a NACK with a delay.

Threads are daemons, one for each call, so that they keep no process alive after its Spark has
ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import pymysql

from ..common.connection import LazyConnection
from ..common.directives import Directives
from ..common.statements import IDS_MAX, NOW, Id, Row, Statements, do, fetch, fetching
from ..endpoint import Endpoint, Patience
from .claims import NOTHING, Claims, is_of_claim

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Holder:
    """The messages that one query has in flight."""

    def __init__(self, endpoint: Endpoint, statements: Statements, connections: int, hold_s: int) -> None:
        self._endpoint = endpoint
        self._statements = statements
        self._hold_s = hold_s
        self._claiming = [LazyConnection(endpoint) for _ in range(connections)]
        self._control = LazyConnection(endpoint)
        self._changed = threading.Condition()
        self._kept = NOTHING
        self._taken_again = False
        self._extend_at_s = 0.0
        self._keeper: threading.Thread | None = None
        self._closed = False

    def claim(self, count: int, wait_s: float) -> Claims:
        """Claim up to `count` messages. If none is due, wait up to `wait_s` for the first ones."""
        share, more = divmod(count, len(self._claiming))
        counts = [share + (number < more) for number in range(len(self._claiming))]
        parts = _at_once(
            [
                partial(self._stream, connection, wanted)
                for connection, wanted in zip(self._claiming, counts, strict=True)
                if wanted
            ]
        )
        rows = [row for part in parts for row in part]
        if not rows and wait_s:
            rows = self._stream(self._claiming[0], count, wait_s)
        claims, self._taken_again = Claims.of(rows), False
        if rows:
            ((now_ns,),) = self._control.run(partial(fetch, f"SELECT {NOW}"))
            left_s = (min(until_ns for _, _, until_ns in rows) - int(now_ns)) / 1e9
            self._keep(claims, left_s / 2)
        return claims

    def recognised(self, claims: Claims) -> Claims:
        """Those of an earlier process's claims whose rows show that they are from them: not
        delivered again since, not acknowledged, and of no other table or time that has the same ids
        and epochs. None in a queue without a lease column."""
        leases: dict[Id, int] = {}
        for chunk in claims.chunks(IDS_MAX):
            found = self._control.run(fetching(self._statements.leases(*chunk)))
            leases |= {self._statements.id_of(key): int(lease) for key, lease in found if lease is not None}
        return claims.where(lambda key, until_ns: is_of_claim(leases.get(key), until_ns))

    def take_again(self, claims: Claims) -> Claims:
        """Hold messages that an earlier process of the query had claimed, and that are recognised.

        Returns them.
        """
        own, self._taken_again = self.recognised(claims), True
        self._extend(own)
        self._keep(own, self._hold_s / 3)
        return own

    def acknowledge(self, claims: Claims) -> int:
        """Acknowledge a finished batch. Returns how many messages this call acknowledged. Safe to
        repeat."""
        self._keep(NOTHING, 0)
        return sum(
            self._control.run(partial(do, self._statements.acknowledge(*chunk))) for chunk in claims.chunks(IDS_MAX)
        )

    def count_ready(self) -> int:
        """How many messages are due."""
        # Counting a billion takes minutes, so this has a connection without a read timeout.
        ((count,),) = self._endpoint.run(partial(fetch, self._statements.count_ready()))
        return int(count)

    def sample_ready(self, most: int) -> tuple[int, bool]:
        """How many of the first `most` unacknowledged messages are due and wanted, and whether there
        are more."""
        ((count, ready),) = self._control.run(partial(fetch, self._statements.sample_ready(most)))
        return int(ready), int(count) == most

    def is_paused(self) -> bool:
        """Whether the queue delivers nothing."""
        found = self._control.run(partial(fetch, self._statements.comment()))
        return any(Directives(_text(comment)).get("paused") == "1" for (comment,) in found)

    def close(self) -> None:
        """Release everything."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        for connection in (*self._claiming, self._control):
            connection.close()

    def _stream(self, connection: LazyConnection, count: int, wait_s: float = 0) -> list[tuple[Id, int, int]]:
        rows: Sequence[Row] = connection.run(partial(fetch, self._statements.stream(count, wait_s)))
        return [(self._statements.id_of(key), int(epoch), int(until_ns)) for key, epoch, until_ns in rows]

    def _extend(self, claims: Claims, patience: Patience | None = None) -> None:
        ways = [self._statements.extend, *([self._statements.postpone] if self._taken_again else [])]
        for chunk in claims.chunks(IDS_MAX):
            for way in ways:
                self._control.run(partial(do, way(*chunk, self._hold_s)), patience)

    def _keep(self, claims: Claims, extend_in_s: float) -> None:
        with self._changed:
            self._kept, self._extend_at_s = claims, time.monotonic() + extend_in_s
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep_on, daemon=True, name="ackstream-keeper")
                self._keeper.start()
            self._changed.notify()

    def _keep_on(self) -> None:
        while (claims := self._next_to_extend()) is not None:
            every_s = self._hold_s / 3
            try:
                self._extend(claims, Patience(attempts=3))
            except pymysql.MySQLError as error:
                _log.warning("messages of a running batch could not be kept, and may be delivered again: %s", error)
            with self._changed:
                if self._kept is claims:
                    self._extend_at_s = time.monotonic() + every_s

    def _next_to_extend(self) -> Claims | None:
        """Wait until a batch's messages have to be extended; None after `close`."""
        with self._changed:
            while not self._closed:
                left_s = self._extend_at_s - time.monotonic()
                if self._kept and left_s <= 0:
                    return self._kept
                self._changed.wait(left_s if self._kept else None)
            return None


def _text(value: str | bytes) -> str:
    """MySQL's information_schema has some of its texts as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Call all at the same time. Returns their results, or raises the first error when all have
    ended."""
    if len(calls) == 1:
        return [calls[0]()]
    results: list[T] = []
    errors: list[Exception] = []

    def call(work: Callable[[], T]) -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001  # raised below
            errors.append(error)

    threads = [threading.Thread(target=call, args=(work,), daemon=True) for work in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
