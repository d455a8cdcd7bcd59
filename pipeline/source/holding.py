"""The driver's hold on the messages of a streaming query: claimed, kept while their batch runs, acknowledged.

Claims are made by STREAMs on connections of their own, several at a time, and these connections then stay open and
silent: when this process dies, however it dies, the proxy sees them close and gives the messages back at once. That is
why nothing else is said on them: a failed statement may cost its connection, and these must not be lost for an ACK.
Whatever a STREAM had delivered when it failed is given up with its connection.

A batch may take longer than its messages' wait. A thread, on the connection for all else, asks for more time whenever
half of what is left has passed, and so again and again, until the batch is acknowledged. As with the ACK, only what is
still of the same delivery is touched.

Threads are daemons, one a call: nothing of this may keep a process alive whose Spark is gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import pymysql

from pipeline.common.connection import Link
from pipeline.common.statements import IDS_MAX, NOW, Id, Row, Statements, ask, do
from pipeline.endpoint import Endpoint, Patience
from pipeline.source.claims import NOTHING, Claims

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Holder:
    """What one query holds of a queue."""

    def __init__(self, endpoint: Endpoint, statements: Statements, connections: int, hold_s: int) -> None:
        self._endpoint = endpoint
        self._statements = statements
        self._hold_s = hold_s
        self._claiming = [Link(endpoint) for _ in range(connections)]
        self._control = Link(endpoint)
        self._changed = threading.Condition()
        self._kept = NOTHING
        self._extend_at_s = 0.0
        self._keeper: threading.Thread | None = None
        self._closed = False

    def claim(self, count: int, wait_s: float) -> Claims:
        """Up to so many messages, and, if none is due, the first ones that are within `wait_s`."""
        share, more = divmod(count, len(self._claiming))
        counts = [share + (number < more) for number in range(len(self._claiming))]
        parts = _at_once(
            [partial(self._stream, link, wanted) for link, wanted in zip(self._claiming, counts, strict=True) if wanted]
        )
        rows = [row for part in parts for row in part]
        if not rows and wait_s:
            rows = self._stream(self._claiming[0], count, wait_s)
        claims = Claims.of((key, epoch) for key, epoch, _ in rows)
        if rows:
            ((now_ns,),) = self._control.run(partial(ask, f"SELECT {NOW}"))
            left_s = (min(until_ns for _, _, until_ns in rows) - int(now_ns)) / 1e9
            self._keep(claims, left_s / 2)
        return claims

    def take_again(self, claims: Claims) -> int:
        """Hold what an earlier process of the query had claimed, but for what has gone elsewhere; how many it got."""
        held = self._extend(claims)
        self._keep(claims, self._hold_s / 3)
        return held

    def acknowledge(self, claims: Claims) -> int:
        """Acknowledge a finished batch; how many this did. Safe to repeat."""
        self._keep(NOTHING, 0)
        return sum(
            self._control.run(partial(do, self._statements.acknowledge(*chunk))) for chunk in claims.chunks(IDS_MAX)
        )

    def count_ready(self) -> int:
        """How many messages are due."""
        # Of a billion it takes minutes, which is no reason to believe that the connection is dead.
        ((count,),) = self._endpoint.run(partial(ask, self._statements.count_ready()))
        return int(count)

    def close(self) -> None:
        """Let everything go."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        for link in (*self._claiming, self._control):
            link.close()

    def _stream(self, link: Link, count: int, wait_s: float = 0) -> list[tuple[Id, int, int]]:
        rows: Sequence[Row] = link.run(partial(ask, self._statements.stream(count, wait_s)))
        return [(self._statements.id_of(key), int(epoch), int(until_ns)) for key, epoch, until_ns in rows]

    def _extend(self, claims: Claims, patience: Patience | None = None) -> int:
        statements = (self._statements.extend(*chunk, self._hold_s) for chunk in claims.chunks(IDS_MAX))
        return sum(self._control.run(partial(do, statement), patience) for statement in statements)

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
        """Waits until a batch's messages need more time; None at the end."""
        with self._changed:
            while not self._closed:
                left_s = self._extend_at_s - time.monotonic()
                if self._kept and left_s <= 0:
                    return self._kept
                self._changed.wait(left_s if self._kept else None)
            return None


def _at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Call them all at the same time; their results, or the first error once all have ended."""
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
