"""Connections to the proxy that are made again after an error, and SELECTs from tables that may not
exist."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pymysql
from pymysql.constants import ER

from ..endpoint import Endpoint, Patience, again
from .statements import do

ANSWER_S: Final = 120
"""A statement without an answer for so long has lost its connection: servers wait for a lock for 50
s."""

T = TypeVar("T")


class LazyConnection:
    """A connection that is opened when it is needed, and again after an error.

    `as_text`: values come as text, not as Python objects.
    """

    def __init__(self, endpoint: Endpoint, *, as_text: bool = True) -> None:
        self._endpoint = endpoint
        self._options: dict[str, Any] = {"conv": {}} if as_text else {}
        self._connection: Any = None
        self._lock = threading.Lock()

    def run(self, work: Callable[[Any], T], patience: Patience | None = None) -> T:
        """Run `work`, which must be safe to repeat, on a connection that had no error so far."""
        with self._lock:
            return again(lambda: self._attempt(work), patience)

    def close(self) -> None:
        """Close the connection, with a QUIT."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def _attempt(self, work: Callable[[Any], T]) -> T:
        if self._connection is None:
            self._connection = self._endpoint.connect(**self._options, read_timeout=ANSWER_S)
            # Statements by primary key need no gap locks, which would block those of other
            # consumers.
            do("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", self._connection)
        try:
            return work(self._connection)
        except BaseException:
            self.close()
            raise


@contextmanager
def ignored(code: int) -> Iterator[None]:
    """Leaves the block at a statement that ends with this error of the server, without an error."""
    try:
        yield
    except pymysql.MySQLError as error:
        if error.args[:1] != (code,):
            raise


def rows_if_any(connection: Any, statement: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
    """The rows of a SELECT; none if its table does not exist."""
    found: list[tuple[Any, ...]] = []
    with connection.cursor() as cursor, ignored(ER.NO_SUCH_TABLE):
        cursor.execute(statement, values)
        found += cursor.fetchall()
    return found
