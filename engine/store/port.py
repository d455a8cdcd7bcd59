"""The narrow port between the engine and a database.

Each method is one transaction (or one read), blocking, and safe to call from any thread. Every method
returns together with its answer the server's clock as of the statement, so that the engine never asks
its own. `MySQLStore` is the real one, `MemoryStore` its twin for tests; tests/contract holds both to one suite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from engine.model import (
    ANYTHING,
    BrokenTable,
    Claimed,
    Delivery,
    Entry,
    FetchResult,
    Key,
    MoveResult,
    QueueTable,
    Range,
    Return,
    RowFormat,
    ScanResult,
    Selection,
    TableId,
    Wanted,
)

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Timed(Generic[T_co]):
    """An answer and the server's clock when it was made."""

    value: T_co
    now_ns: int


UNREACHABLE = frozenset({1040, 1053, 2002, 2003, 2006, 2013})
"""Errors of a server that is full, stopping or not there, or whose connection broke. It may be well again without
anybody changing a table or an account."""


class StoreError(Exception):
    """The database did not do it, or its answer was lost: then whether it did is unknown.

    `code` is MySQL's error number (0 when there was none), `lasting` is True when trying again cannot help
    before somebody changes the table (it is gone, a column is missing, a privilege is denied). `unreachable` is True
    for the errors in UNREACHABLE: they are not about the statement.
    """

    def __init__(self, message: str, *, code: int = 0, lasting: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.lasting = lasting
        self.unreachable = code in UNREACHABLE


@dataclass(frozen=True, slots=True)
class Listing:
    """What one look at the whole catalog shows."""

    marked: Mapping[TableId, str | None]
    """Every table whose comment holds the word vitess_message, with a stamp: as long as it is the same, so is what
    `describe` would say. None: the table was changed a moment ago, and no stamp tells that state from the next."""
    views_and_triggers: frozenset[str]
    """The bare names, casefolded, of all views and of all tables with triggers, through which a write may reach another
    table."""
    account: str = ""
    """The engine's own account, as GRANT takes it."""
    problems: tuple[str, ...] = ()
    """What that account may not do on the server as a whole, each with the GRANT that it takes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Which server a connection leads to. Behind one name, and behind one address, there can be several."""

    address: tuple[str, int]
    """The address that it went to."""
    name: str | None = None
    """What the server there answered to `server_name`; None where it was not asked."""


def may_be_same(one: Origin, other: Origin) -> bool:
    """Whether nothing is known that tells the two servers apart."""
    return one.address == other.address and (one.name is None or other.name is None or one.name == other.name)


class Store(Protocol):
    """All that the engine asks of a database."""

    def discover(self) -> Timed[Listing]:
        """Every table that is marked as a queue, in a number of statements that does not depend on how many."""

    def describe(self, table: TableId) -> Timed[QueueTable | BrokenTable | None]:
        """The table as a queue; None when it is none (absent, or not marked). Where the engine's account may not do
        what a queue takes, it is a broken table that names what to GRANT."""

    def describe_all(self, tables: Sequence[TableId]) -> Timed[Mapping[TableId, QueueTable | BrokenTable]]:
        """Those of the tables that are marked, in the server's spelling, in a number of statements that does not depend
        on how many. What seems broken may be a table that was being altered: `describe` looks again."""

    def scan(
        self, table: QueueTable, limit: int, selection: Selection = ANYTHING, part: Range | None = None
    ) -> Timed[ScanResult]:
        """Up to `limit` due entries, lowest priority value first, then by time, then by id, and with them the
        entries that come due next (at most `limit` more). A NULL time_next counts as due since 1970. A `part` is
        given with a condition, and with nothing else; rows before the places where it begins may be left out."""

    def claim(self, table: QueueTable, wanted: Sequence[Wanted]) -> Timed[tuple[Claimed, ...]]:
        """Claim those of `wanted` that are unacknowledged, due by the server's clock, still of that epoch and of
        that selection, and not locked by anyone. Committed on return. Missing ones were not claimed by this call."""

    def fetch(
        self, table: QueueTable, row_format: RowFormat, keys: Mapping[Key, Delivery], budget_bytes: int
    ) -> Timed[FetchResult]:
        """Row payloads of `keys` that are unacknowledged and show the delivery that their claims made. Stops keeping
        rows once they hold `budget_bytes` (always at least one)."""

    def lookup(self, table: QueueTable, keys: Sequence[Key]) -> Timed[Mapping[Key, Entry]]:
        """The entries of those keys that still are unacknowledged rows."""

    def release(self, table: QueueTable, returns: Sequence[Return]) -> Timed[int]:
        """Give claims back; the count of rows that were still ours to give."""

    def move_dead_letters(self, table: QueueTable, wanted: Sequence[Wanted], dead_letter: TableId) -> Timed[MoveResult]:
        """Move those of `wanted` that `claim` would claim into the message table `dead_letter`, in one transaction, if
        that one's comment names the table in `dead_letter_of` when they move: due there now, unacknowledged, and else
        as they are, with their epoch. One that cannot be moved stays, and is due again after its `wait_ns`; a row of
        its id that is acknowledged there gives way to it."""

    def purge(self, table: QueueTable, age_ns: int, limit: int) -> Timed[int]:
        """Delete up to `limit` rows acknowledged more than `age_ns` ago; the count of them. Where the table is
        partitioned by time, whole partitions of them are dropped, which counts as nothing, and new ones made."""

    def ping(self) -> Timed[None]:
        """Do nothing, but on the server."""

    def kill(self, connection_id: int, origin: Origin) -> Timed[bool]:
        """End a connection and what it is doing. False, with nothing done, unless this store is connected to the server
        that gave the connection its number, as far as can be told: another one has given it to somebody else."""

    def close(self) -> None:
        """Close all connections; later calls raise StoreError."""
