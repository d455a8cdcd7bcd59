"""The moving of dead messages: from their table to its dead-letter table, whole, in one transaction.

The rows are copied by the server itself, so no value passes a driver, and in strict mode, so none is cut to fit.
What may be in the way is told before anything is moved (a table that is missing or no message table, columns that
it does not have) or by the server (a value that does not fit): then the message stays where it is and is left
alone for a while, because somebody has to mend the dead-letter table first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pymysql.constants import ER

from engine.catalog import TableFacts, judge
from engine.catalog_mysql import now_ns
from engine.link import Link, Result, SessionContext
from engine.model import BrokenTable, Buried, Key, QueueTable, TableId, Wanted
from engine.queries import TableStatements, qualified, quoted, statement
from engine.rawrows import text_values
from engine.scan_mysql import entries_of
from engine.store import StoreError, Timed

MOVING = SessionContext(strict=True)
"""The session's settings for it."""

_TRY_AGAIN = frozenset({ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT})
_FIRST_SERVER_ERROR, _FIRST_CLIENT_ERROR, _LAST_CLIENT_ERROR = 1000, 2000, 2999


@dataclass(frozen=True, slots=True)
class Grave:
    """The dead-letter table: which columns are copied, or why none can be."""

    id: TableId
    columns: tuple[str, ...]
    problem: str | None = None


def dig(source: TableFacts, target: TableFacts | None, name: TableId) -> Grave:
    """The dead-letter table as the dead of `source` need it."""
    judged = None if target is None else judge(target)
    if judged is None or target is None:
        missing = f"table '{name}' doesn't exist" if target is None else f"'{name}' is no message table"
        return Grave(name, (), f"{missing}: create it as a message table with the columns of {source.id}")
    if isinstance(judged, BrokenTable):
        return Grave(name, (), str(judged))
    if target.id == source.id:
        return Grave(name, (), "a table cannot be its own dead-letter table: name another one in dead_letter")
    there = {each.name.lower() for each in target.columns if not each.generated}
    columns = tuple(each.name for each in source.columns if not each.generated)
    if lacking := [each for each in columns if each.lower() not in there]:
        return Grave(name, (), f"it has no column {', '.join(lacking)}: add what {source.id} has")
    return Grave(name, columns)


def is_their_own_fault(error: StoreError) -> bool:
    """Whether the server refused these very rows, rather than being in the way or away."""
    if error.code in _TRY_AGAIN or _FIRST_CLIENT_ERROR <= error.code <= _LAST_CLIENT_ERROR:
        return False
    return error.code >= _FIRST_SERVER_ERROR


class Burial:
    """One transaction of it."""

    def __init__(self, table: QueueTable, dead: Mapping[Key, Wanted], grave: Grave) -> None:
        self._sql = TableStatements(table)
        self._dead = dead
        self._grave = grave

    def run(self, link: Link) -> Timed[Buried]:
        """Move those that are dead and due, or say why they stay. Raises StoreError when the server refuses one."""
        if self._grave.problem is not None:
            return self.refused(link, self._grave.problem)
        now, keys = self._lock(link)
        lying: set[Key] = set()
        if keys:
            lying = set(self._ids(link, "bury_find", keys))
        moving = [key for key in keys if key not in lying]
        if moving:
            self._move(link, moving, now)
        problem = (
            f"it already holds a message with id {_some(lying)}: each queue needs one of its own" if lying else None
        )
        link.run([*self._postponed(lying, now), statement("commit")])
        return Timed(Buried(tuple(moving), problem), now)

    def refused(self, link: Link, problem: str) -> Timed[Buried]:
        """They stay where they are and are left alone for a while."""
        now, keys = self._lock(link)
        link.run([*self._postponed(keys, now), statement("commit")])
        return Timed(Buried((), problem if keys else None), now)

    def _lock(self, link: Link) -> tuple[int, list[Key]]:
        """The time, and those that still are as they were found, locked."""
        lock = self._sql("claim_lock", ids=self._sql.ids(self._dead))
        now, _, locked = link.run([statement("now"), statement("begin"), lock], MOVING)
        entries = entries_of(self._sql, locked)
        return now_ns(now), [each.key for each in entries if self._dead[each.key].epoch == each.epoch]

    def _move(self, link: Link, keys: Sequence[Key], now: int) -> None:
        changed = {"time_next": str(now), "time_acked": "NULL"}
        names = ", ".join(map(quoted, self._grave.columns))
        values = ", ".join(changed.get(each.lower(), quoted(each)) for each in self._grave.columns)
        words = {"ids": self._sql.ids(keys), "grave": qualified(self._grave.id), "limit": len(keys)}
        _, copied, deleted = link.run(
            [
                self._sql("bury_clear", **words),
                self._sql("bury_insert", columns=names, values=values, **words),
                self._sql("bury_delete", **words),
            ],
            MOVING,
        )
        if not copied.affected == deleted.affected == len(keys):
            raise StoreError(f"{len(keys)} messages were to be moved, and {copied.affected} were copied")

    def _postponed(self, keys: Sequence[Key] | set[Key], now: int) -> list[str]:
        if not keys:
            return []
        wait_ns = max(self._dead[key].wait_ns for key in keys)
        return [self._sql("bury_postpone", ids=self._sql.ids(keys), time_next=now + wait_ns)]

    def _ids(self, link: Link, name: str, keys: Sequence[Key]) -> list[Key]:
        words = {"ids": self._sql.ids(keys), "grave": qualified(self._grave.id)}
        found: Result = link.run([self._sql(name, **words)], MOVING)[0]
        return [self._sql.key(raw) for (raw,) in map(text_values, found.rows) if raw is not None]


def _some(keys: set[Key]) -> str:
    few = sorted(keys)[:3]
    return ", ".join(map(str, few)) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
