"""A connection to the proxy that is made again after an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pymysql
from pymysql.constants import ER

from pipeline.common.statements import do
from pipeline.endpoint import Endpoint, Patience, again

ANSWER_S: Final = 120
"""A statement that is not answered in this time never will be: longer than servers wait for a lock (50 s)."""

T = TypeVar("T")


class Link:
    """A connection that is made when it is needed, and again after an error; values come as text if wanted so."""

    def __init__(self, endpoint: Endpoint, *, as_text: bool = True) -> None:
        self._endpoint = endpoint
        self._options: dict[str, Any] = {"conv": {}} if as_text else {}
        self._connection: Any = None
        self._lock = threading.Lock()

    def run(self, work: Callable[[Any], T], patience: Patience | None = None) -> T:
        """Do `work`, which must be safe to repeat, on a connection that had no error so far."""
        with self._lock:
            return again(lambda: self._attempt(work), patience)

    def close(self) -> None:
        """End the connection, politely."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def _attempt(self, work: Callable[[Any], T]) -> T:
        if self._connection is None:
            self._connection = self._endpoint.connect(**self._options, read_timeout=ANSWER_S)
            # Statements by primary key need no gap locks, which would be in the way of other consumers'.
            do("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", self._connection)
        try:
            return work(self._connection)
        except BaseException:
            self.close()
            raise


class MissingTableIgnored:
    """Leaves a block at a statement whose table does not exist, without an error."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return isinstance(error, pymysql.ProgrammingError) and error.args[0] == ER.NO_SUCH_TABLE


def rows_if_any(connection: Any, statement: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
    """The rows of a SELECT; none if its table does not exist."""
    with connection.cursor() as cursor, MissingTableIgnored():
        cursor.execute(statement, values)
        return list(cursor.fetchall())
    return []
