"""A scan of one table: priority by priority through the index, or, without one, by sorting it all.

One packet is enough as long as the table's priorities are the ones that the last scan saw; what the rows that come
back amount to is engine.scanning's to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.catalog_mysql import now_ns
from engine.link import Link, Result
from engine.model import Entry, Key, QueueTable, ScanResult
from engine.queries import TableStatements, statement
from engine.rawrows import text_values
from engine.scanning import Gathering
from engine.store import Timed


class IndexScan:
    """One scan through the index, priority by priority.

    The first packet asks for the first priority and at once for the rows of those that the last scan saw. As long as
    that guess holds, there is no second packet.
    """

    def __init__(self, link: Link, table: QueueTable, limit: int, known: Sequence[int], ahead: int) -> None:
        self.walked: list[int] = []
        """The priorities that were looked at, in their order."""
        self._link, self._sql, self._limit = link, TableStatements(table), limit
        self._backwards = table.scan_descending and table.scan_ties_by_id
        self._known, self._ahead = known, ahead
        self._read: dict[int, tuple[list[Entry], int | None]] = {}

    def run(self) -> Timed[ScanResult]:
        """Read until there are enough due rows, or no more priorities."""
        sql, asked = self._sql, self._limit + 1
        guess = self._known[: self._ahead]
        now, first, unranked, *answers = self._link.run(
            [
                statement("now"),
                sql("scan_first_priority"),
                sql("scan_without_priority", limit=asked),
                *self._statements(guess),
            ]
        )
        self._take(guess, answers)
        gathering = Gathering(self._limit, now_ns(now))
        gathering.add(entries_of(sql, unranked))
        priority = _integer(first)
        while priority is not None and not gathering.full:
            entries, following = self._at(priority)
            if self._backwards:
                entries = self._by_id(priority, entries, gathering.now_ns)
            gathering.add(entries)
            self.walked.append(priority)
            priority = following
        return Timed(gathering.result(), gathering.now_ns)

    def _at(self, priority: int) -> tuple[list[Entry], int | None]:
        """The rows of a priority and the priority after it, read now unless they were read ahead."""
        if priority not in self._read:
            after = [each for each in self._known if each > priority]
            wanted = [priority, *after[: self._ahead - 1]]
            self._take(wanted, self._link.run(self._statements(wanted)))
        return self._read[priority]

    def _by_id(self, priority: int, entries: Sequence[Entry], now: int) -> list[Entry]:
        """The entries with those of one time by ascending id, also when the limit cut through due ones of one time."""
        if len(entries) > self._limit and (last_ns := entries[-1].due_ns) <= now:
            statement = self._sql("scan_ties", priority=priority, time_next=last_ns, limit=self._limit + 1)
            ties = entries_of(self._sql, *self._link.run([statement]))
            entries = list({each.key: each for each in (*entries, *ties)}.values())
        return sorted(entries, key=lambda each: (each.due_ns, each.key))[: self._limit + 1]

    def _statements(self, priorities: Sequence[int]) -> list[str]:
        return [
            each
            for priority in priorities
            for each in (
                self._sql("scan_priority", priority=priority, limit=self._limit + 1),
                self._sql("scan_next_priority", priority=priority),
            )
        ]

    def _take(self, priorities: Sequence[int], answers: Sequence[Result]) -> None:
        for at, priority in enumerate(priorities):
            rows, following = answers[2 * at : 2 * at + 2]
            self._read[priority] = list(entries_of(self._sql, rows)), _integer(following)


def scan_slowly(link: Link, table: QueueTable, limit: int) -> Timed[ScanResult]:
    """A scan of a table without the index."""
    sql, asked = TableStatements(table), limit + 1
    now, later, due = link.run(
        [
            statement("now"),
            sql("scan_later_slowly", limit=asked),
            sql("scan_due_slowly", limit=asked),
        ]
    )
    gathering = Gathering(limit, now_ns(now))
    gathering.add(due_entries := entries_of(sql, due))
    # What came due between the two queries is in both answers.
    known = {each.key for each in due_entries}
    gathering.add([each for each in entries_of(sql, later) if each.key not in known])
    return Timed(gathering.result(), gathering.now_ns)


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
