"""A scan of one table: priority by priority through the index, or, without one, by sorting it all.

One packet is enough as long as the table's priorities are the ones that the last scan saw; what the rows that come
back amount to is engine.store.scan_result's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.model import Entry, Key, QueueTable, Range, ScanResult, Selection
from engine.packets import text_values
from engine.store.connection import OWN_CONTEXT, Result, SessionContext, StoreConnection
from engine.store.information_schema import now_ns
from engine.store.port import Timed
from engine.store.queries import TableStatements, statement
from engine.store.scan_result import ScanAssembly


def context_of(selection: Selection) -> SessionContext:
    """The session's settings under which a condition means what its client meant."""
    return OWN_CONTEXT if selection.condition is None else SessionContext(time_zone=selection.time_zone)


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What a scan is to find: up to `limit` due rows of a selection."""

    table: QueueTable
    limit: int
    selection: Selection
    context: SessionContext


class IndexScan:
    """One scan through the index, priority by priority.

    The first packet asks for the first priority and at once for the rows of those that the last scan saw. As long as
    that guess holds, there is no second packet.
    """

    unranked = "scan_without_priority"
    """The statement that reads the rows whose priority is NULL."""

    def __init__(self, connection: StoreConnection, request: ScanRequest, known: Sequence[int], ahead: int) -> None:
        self.priorities_read: list[int] = []
        """The priorities that were looked at, in their order."""
        self.sql = TableStatements(request.table, request.selection)
        self.row_limit = request.limit + 1
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
        """Run statements in the session that this look needs."""
        return self._connection.run(statements, self._request.context)

    # What kinds of scans do in their own ways.

    def bounds(self) -> dict[str, object]:
        """The words of `unranked` that are this scan's own."""
        return {}

    def opening(self) -> list[str]:
        """What is to be known before the first row is read."""
        return []

    def assembly(self, now: int, opening: Sequence[Result]) -> ScanAssembly:
        """Where the rows go, given the answers to `opening`."""
        assert not opening
        return ScanAssembly(self._request.limit, now)

    def reading(self, priority: int) -> list[str]:
        """The statements that read one priority."""
        return [self.sql("scan_priority", priority=priority, limit=self.row_limit)]

    def add_rows(self, assembly: ScanAssembly, priority: int, rows: Sequence[Result]) -> None:
        """Take their answers."""
        entries = entries_of(self.sql, *rows)
        if self._request.table.scan_descending and self._request.table.scan_ties_by_id:
            entries = self._by_id(priority, entries, assembly.now_ns)
        assembly.add(entries)

    # The walk.

    def _at(self, priority: int) -> list[Result]:
        """What was read of a priority, and the one after it; read now unless it was read ahead."""
        if priority not in self._read:
            after = [each for each in self._known if each > priority]
            wanted = [priority, *after[: self._ahead - 1]]
            self._take(wanted, self.query(self._statements(wanted)))
        return self._read[priority]

    def _by_id(self, priority: int, entries: Sequence[Entry], now: int) -> list[Entry]:
        """The entries with those of one time by ascending id, also when the limit cut through due ones of one time."""
        if len(entries) >= self.row_limit and (last_ns := entries[-1].due_ns) <= now:
            ties = self.query([self.sql("scan_ties", priority=priority, time_next=last_ns, limit=self.row_limit)])
            entries = list({each.key: each for each in (*entries, *entries_of(self.sql, *ties))}.values())
        return sorted(entries, key=lambda each: (each.due_ns, each.key))[: self.row_limit]

    def _statements(self, priorities: Sequence[int]) -> list[str]:
        return [
            each
            for priority in priorities
            for each in (*self.reading(priority), self.sql("scan_next_priority", priority=priority))
        ]

    def _take(self, priorities: Sequence[int], answers: Sequence[Result]) -> None:
        each = len(answers) // max(1, len(priorities))
        for at, priority in enumerate(priorities):
            self._read[priority] = list(answers[each * at : each * (at + 1)])


class RangeScan(IndexScan):
    """A scan for a condition, which begins where the last one ended (engine.dispatch.scan_position)."""

    unranked = "scan_part_without_priority"

    def __init__(
        self, connection: StoreConnection, request: ScanRequest, known: Sequence[int], ahead: int, part: Range
    ) -> None:
        super().__init__(connection, request, known, ahead)
        self._part = part
        self._ids_ascend = request.table.id_grows and request.table.scan_ties_by_id

    def bounds(self) -> dict[str, object]:
        """See IndexScan."""
        return {"until_ns": self._part.until_ns}

    def opening(self) -> list[str]:
        """See IndexScan."""
        return [self.sql("scan_greatest_id")] if self._ids_ascend else []

    def assembly(self, now: int, opening: Sequence[Result]) -> ScanAssembly:
        """See IndexScan."""
        greatest_id = _integer(opening[0]) if opening else None
        return ScanAssembly(self._request.limit, now, self._part.until_ns, greatest_id)

    def reading(self, priority: int) -> list[str]:
        """See IndexScan."""
        place = self._part.after.get(priority)
        behind = "TRUE" if place is None or place.zero_id is None else f"id > {place.zero_id}"
        after_ns = 0 if place is None else max(0, place.time_ns)
        words = {"priority": priority, "limit": self.row_limit}
        return [
            self.sql("scan_part_odd", **words),
            self.sql("scan_part_zero", behind=behind, **words),
            self.sql("scan_part_timed", after_ns=after_ns, until_ns=self._part.until_ns, **words),
        ]

    def add_rows(self, assembly: ScanAssembly, priority: int, rows: Sequence[Result]) -> None:
        """See IndexScan."""
        odd, zero, timed = (entries_of(self.sql, each) for each in rows)
        assembly.add_part(priority, odd, zero, sorted(timed, key=lambda each: (each.due_ns, each.key)))


def scan_slowly(connection: StoreConnection, request: ScanRequest) -> Timed[ScanResult]:
    """A scan of a table without the index."""
    sql, asked = TableStatements(request.table, request.selection), request.limit + 1
    now, later, due = connection.run(
        [
            statement("now"),
            sql("scan_later_slowly", limit=asked),
            sql("scan_due_slowly", limit=asked),
        ],
        request.context,
    )
    assembly = ScanAssembly(request.limit, now_ns(now))
    assembly.add(due_entries := entries_of(sql, due))
    # What came due between the two queries is in both answers.
    known = {each.key for each in due_entries}
    assembly.add([each for each in entries_of(sql, later) if each.key not in known])
    return Timed(assembly.result(), assembly.now_ns)


def entries_of(sql: TableStatements, *results: Result) -> list[Entry]:
    """Rows of id, epoch, priority and time_next."""
    key = sql.key
    return [
        Entry(key(raw), int(epoch), int(priority), int(due_ns))
        for result in results
        for raw, epoch, priority, due_ns in map(text_values, result.rows)
        if raw is not None and epoch is not None and priority is not None and due_ns is not None
    ]


def keys_of(sql: TableStatements, *results: Result) -> list[Key]:
    """Rows of an id alone."""
    return [sql.key(raw) for result in results for (raw,) in map(text_values, result.rows) if raw is not None]


def _integer(result: Result) -> int | None:
    (value,) = text_values(result.rows[0])
    return None if value is None else int(value)
