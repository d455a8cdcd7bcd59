"""Scans one table: priority by priority through the scan index, or without it by sorting the whole
table.

One packet is enough while the table's priorities are those of the last scan.
engine.store.scan_result turns the rows into the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from engine.model import Entry, Group, Key, Range, ScanResult, Selection, Share
from engine.packets import NULL_MARK, Result, text_values
from engine.queue_table import QueueTable
from engine.store.connection import OWN_CONTEXT, SessionContext, StoreConnection
from engine.store.information_schema import now_ns
from engine.store.port import Timed
from engine.store.queries import TableStatements, statement
from engine.store.scan_result import ScanAssembly

MINUS = ord("-")
"""The least byte of a number in text."""


def context_of(selection: Selection) -> SessionContext:
    """The session settings under which a condition has the meaning it has in its client's
    session."""
    return OWN_CONTEXT if selection.condition is None else SessionContext(time_zone=selection.time_zone)


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """The task of a scan: up to `limit` due rows of a selection; only those of a share, or of all `others`."""

    table: QueueTable
    limit: int
    selection: Selection
    context: SessionContext
    share: Share | None = None
    others: bool = False


class IndexScan:
    """One scan through the index, priority by priority.

    The first packet reads the first priority, and the rows of the priorities that the last scan
    found. While that guess is right, there is no second packet.
    """

    unranked = "scan_without_priority"
    """The statement that reads the rows whose priority is NULL."""

    def __init__(self, connection: StoreConnection, request: ScanRequest, known: Sequence[int], ahead: int) -> None:
        self.priorities_read: list[int] = []
        """The priorities that were read, in their order."""
        self.sql = TableStatements(request.table, request.selection)
        self.row_limit = request.limit + 1
        self._portion = self.sql.of_share(request.share, others=request.others)
        self._connection, self._request = connection, request
        self._known, self._ahead = known, ahead
        self._read: dict[int, list[Result]] = {}

    def run(self) -> Timed[ScanResult]:
        """Read until there are enough due rows, or no more priorities."""
        guess = self._known[: self._ahead]
        opening = self.opening()
        now, first, unranked, *answers = self.query(
            [
                statement("now"),
                self.sql("scan_first_priority"),
                self.sql(self.unranked, limit=self.row_limit, **self.bounds()),
                *opening,
                *self._statements(guess),
            ]
        )
        assembly = self.assembly(now_ns(now), answers[: len(opening)])
        self._take(guess, answers[len(opening) :])
        assembly.add(entries_of(self.sql, unranked))
        priority = _integer(first)
        while priority is not None and not assembly.full:
            *rows, following = self._at(priority)
            self.add_rows(assembly, priority, rows)
            self.priorities_read.append(priority)
            priority = _integer(following)
        return Timed(assembly.result(), assembly.now_ns)

    def query(self, statements: Sequence[str]) -> list[Result]:
        """Run statements in the scan's context."""
        return self._connection.run(statements, self._request.context)

    # Methods that differ between the kinds of scans.

    def bounds(self) -> dict[str, object]:
        """Further words of the statement `unranked`."""
        return {"portion": self._portion}

    def opening(self) -> list[str]:
        """Statements to run before the first row is read."""
        return []

    def assembly(self, now: int, opening: Sequence[Result]) -> ScanAssembly:
        """The collector of the rows, given the results of `opening`."""
        assert not opening
        return ScanAssembly(self._request.limit, now)

    def reading(self, priority: int) -> list[str]:
        """The statements that read one priority."""
        words = {"priority": priority, "limit": self.row_limit, "portion": self._portion}
        return [self.sql("scan_priority", **words)]

    def add_rows(self, assembly: ScanAssembly, priority: int, rows: Sequence[Result]) -> None:
        """Add one priority's results to the collector."""
        entries = entries_of(self.sql, *rows)
        if self._request.table.scan_descending and self._request.table.scan_ties_by_id:
            entries = self._by_id(priority, entries, assembly.now_ns)
        assembly.add(entries)

    # Reading the priorities.

    def _at(self, priority: int) -> list[Result]:
        """The results of one priority, and that of the next priority.

        Read now unless they were read ahead.
        """
        if priority not in self._read:
            after = [known for known in self._known if known > priority]
            wanted = [priority, *after[: self._ahead - 1]]
            self._take(wanted, self.query(self._statements(wanted)))
        return self._read[priority]

    def _by_id(self, priority: int, entries: Sequence[Entry], now: int) -> list[Entry]:
        """The entries, those of the same time by ascending id.

        If the limit cut off due entries of the last time, those with the smallest ids are read.
        """
        if len(entries) >= self.row_limit and (last_ns := entries[-1].due_ns) <= now:
            words = {"priority": priority, "limit": self.row_limit, "portion": self._portion}
            ties = self.query([self.sql("scan_ties", time_next=last_ns, **words)])
            entries = list({entry.key: entry for entry in (*entries, *entries_of(self.sql, *ties))}.values())
        return sorted(entries, key=lambda entry: (entry.due_ns, entry.key))[: self.row_limit]

    def _statements(self, priorities: Sequence[int]) -> list[str]:
        return [
            text
            for priority in priorities
            for text in (*self.reading(priority), self.sql("scan_next_priority", priority=priority))
        ]

    def _take(self, priorities: Sequence[int], answers: Sequence[Result]) -> None:
        count = len(answers) // max(1, len(priorities))
        for at, priority in enumerate(priorities):
            self._read[priority] = list(answers[count * at : count * (at + 1)])


class RangeScan(IndexScan):
    """A scan with a condition.

    It begins where the last one ended (engine.dispatch.scan_position).
    """

    unranked = "scan_part_without_priority"

    def __init__(
        self, connection: StoreConnection, request: ScanRequest, known: Sequence[int], ahead: int, part: Range
    ) -> None:
        super().__init__(connection, request, known, ahead)
        self._part = part
        self._ids_ascend = request.table.id_grows and request.table.scan_ties_by_id

    def bounds(self) -> dict[str, object]:
        """The end of the range in time."""
        return {"until_ns": self._part.until_ns, **super().bounds()}

    def opening(self) -> list[str]:
        """The greatest id, where ids ascend with time."""
        return [self.sql("scan_greatest_id")] if self._ids_ascend else []

    def assembly(self, now: int, opening: Sequence[Result]) -> ScanAssembly:
        """The collector of the range."""
        greatest_id = _integer(opening[0]) if opening else None
        return ScanAssembly(self._request.limit, now, self._part.until_ns, greatest_id)

    def reading(self, priority: int) -> list[str]:
        """The statements that read the rows of one priority: without a usable time, of time 0, and
        of later times."""
        place = self._part.after.get(priority)
        behind = "TRUE" if place is None or place.zero_id is None else f"id > {place.zero_id}"
        after_ns = 0 if place is None else max(0, place.time_ns)
        words = {"priority": priority, "limit": self.row_limit, **super().bounds()}
        return [
            self.sql("scan_part_odd", **words),
            self.sql("scan_part_zero", behind=behind, **words),
            self.sql("scan_part_timed", after_ns=after_ns, until_ns=self._part.until_ns, **words),
        ]

    def add_rows(self, assembly: ScanAssembly, priority: int, rows: Sequence[Result]) -> None:
        """Add one priority's three results to the collector."""
        odd, zero, timed = (entries_of(self.sql, result) for result in rows)
        assembly.add_part(priority, odd, zero, sorted(timed, key=lambda entry: (entry.due_ns, entry.key)))


def scan_slowly(connection: StoreConnection, request: ScanRequest) -> Timed[ScanResult]:
    """Scan a table without the scan index."""
    sql, row_limit = TableStatements(request.table, request.selection), request.limit + 1
    portion = sql.of_share(request.share, others=request.others)
    now, later, due = connection.run(
        [
            statement("now"),
            sql("scan_later_slowly", limit=row_limit, portion=portion),
            sql("scan_due_slowly", limit=row_limit, portion=portion),
        ],
        request.context,
    )
    assembly = ScanAssembly(request.limit, now_ns(now))
    assembly.add(due_entries := entries_of(sql, due))
    # Rows that came due between the two queries are in both results.
    known = {entry.key for entry in due_entries}
    assembly.add([entry for entry in entries_of(sql, later) if entry.key not in known])
    return Timed(assembly.result(), assembly.now_ns)


_BLANKS = bytes(32 if byte < MINUS else byte for byte in range(256))
"""For bytes.translate: lengths become blanks."""


def entries_of(sql: TableStatements, *results: Result) -> list[Entry]:
    """The entries in rows of id, epoch, priority and time_next, and of the group columns if the
    statement reads them."""
    if sql.ids_are_integers and (quickly := _integer_entries(sql, results)) is not None:
        return quickly
    groups: dict[tuple[bytes | None, ...], Group | None] = {(): None}  # A statement that reads no group has this one.
    found: list[Entry] = []
    for result in results:
        for row in result.rows:
            raw, epoch, priority, due_ns, *values = text_values(row)
            if raw is None or epoch is None or priority is None or due_ns is None:
                continue
            raw_group = tuple(values)
            if raw_group not in groups:
                groups[raw_group] = sql.group(raw_group)
            found.append(Entry(sql.key(raw), int(epoch), int(priority), int(due_ns), groups[raw_group]))
    return found


def _integer_entries(sql: TableStatements, results: Sequence[Result]) -> list[Entry] | None:
    """The entries where the first four values are integers, in a third of the time: those of all rows at
    once. None if one of them is NULL.

    A row in the text protocol is the values, each behind a byte with its length, which is at most 20 for
    integers, so it is less than any digit or sign.
    """
    rows = [row for result in results for row in result.rows]
    heads, groups = (rows, None) if sql.groups_are_integers else _divided(sql, rows)
    joined = b"".join(heads)
    if NULL_MARK in joined:
        return None
    numbers = joined.translate(_BLANKS).split()
    values = map(int, numbers)
    if groups is None:
        in_group = len(numbers) // max(1, len(rows)) - 4  # 0: the statement reads no group.
        groups = zip(*[values] * in_group, strict=False) if in_group else repeat(None)
    return list(map(Entry._make, zip(values, values, values, values, groups, strict=False)))


def _divided(sql: TableStatements, rows: Sequence[bytes]) -> tuple[list[bytes], Iterator[Group | None]]:
    """The first four values of each row, and the groups behind them. Each group is decoded once. The
    groups are right if none of the four values is NULL."""
    heads, raw_groups = list[bytes](), list[bytes]()
    for row in rows:
        end = 0
        for _ in range(4):
            end += row[end] + 1 if end < len(row) else 0
        heads.append(row[:end])
        raw_groups.append(row[end:])
    groups: dict[bytes, Group | None] = {b"": None}  # A statement that reads no group.

    def group(raw: bytes) -> Group | None:
        if raw not in groups:
            groups[raw] = sql.group(text_values(raw))
        return groups[raw]

    return heads, map(group, raw_groups)


def keys_of(sql: TableStatements, *results: Result) -> list[Key]:
    """The keys in rows of an id alone."""
    return [sql.key(raw) for result in results for (raw,) in map(text_values, result.rows) if raw is not None]


def _integer(result: Result) -> int | None:
    (value,) = text_values(result.rows[0])
    return None if value is None else int(value)
