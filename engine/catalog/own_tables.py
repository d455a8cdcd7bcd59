"""The tables that ackstream itself makes in the databases of queues, and their versions.

The comment of such a table begins with `ackstream:` and ends with its version. A version is raised
only where an older program would use the table wrongly: a column that older ones do not mention needs
none. `ackstream migrate` makes and upgrades all of them; CREATE QUEUE and ALTER QUEUE make a missing
one.

Whoever owns the database can put anything in the place of such a table. So it is used only if it is
a table of InnoDB with the columns and the primary key of its version, and without triggers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from engine.catalog.limits import LimitDirective, limits_of
from engine.catalog.verdict import Column, TableFacts
from engine.model import TableId
from engine.queue_table import GROUP_RATES, LIMITS, PRIMARY_KEY, SEMAPHORES, Policy

PREFIX = "ackstream:"
"""The beginning of their comments."""

_VERSION = re.compile(r"\(version ([0-9]{1,9})\)$")


@dataclass(frozen=True, slots=True)
class OwnColumn:
    """A column of such a table. It is NOT NULL."""

    name: str
    data_type: str
    length_chars: int = 0
    collation: str = ""

    def is_like(self, column: Column | None) -> bool:
        """Whether a column of the database is this one."""
        if column is None or column.nullable or column.generated:
            return False
        kind = (column.data_type, column.length_chars, column.collation)
        return kind == (self.data_type, self.length_chars, self.collation)


NAME_TYPE = ("varchar", 64, "utf8mb4_bin")
"""Of a column with the name of a queue or of a semaphore."""


@dataclass(frozen=True, slots=True)
class OwnTable:
    """One of these tables, in each database with a queue that needs it."""

    name: str
    purpose: str
    """For whoever finds it: the comment."""
    create: str
    """The name of the query that makes the present version: `$table`, `$comment`."""
    columns: tuple[OwnColumn, ...]
    """Those of the present version. Of a later one there may be more."""
    key: tuple[str, ...]
    """The columns of the primary key."""
    privileges: tuple[str, ...]
    """Those that the engine's account needs on it."""
    checks: tuple[str, ...]
    """The names of the queries that need these privileges and change nothing, one that reads first: `$own`."""
    optional: bool = False
    """Whether a database without it counts as one with an empty one."""
    upgrades: tuple[str, ...] = ()
    """The names of the queries that lead from version 1 to 2, from 2 to 3, and so on. Each is one
    ALTER TABLE that also sets the comment, so that an upgrade is there as a whole or not at all."""

    @property
    def version(self) -> int:
        """The version that this program uses."""
        return 1 + len(self.upgrades)

    def limit(self, policy: Policy) -> LimitDirective | None:
        """A limit of a queue with this policy that needs the table; None: it has none."""
        return next((limit for limit in limits_of(policy) if self.name in limit.tables), None)

    def comment(self, version: int | None = None) -> str:
        """The comment of the table in a version; None: the present one."""
        return f"{PREFIX} {self.purpose} (version {self.version if version is None else version})"

    def problem(self, place: TableId, facts: TableFacts | None) -> str | None:
        """Why what has this name cannot be used; None if it can. `facts`: None if it is no table."""
        if facts is None:
            return _refused(place, ["it is a view"])
        if not facts.comment.startswith(PREFIX):
            return _refused(place, [f"its comment does not begin with {PREFIX}"])
        found = version_of(facts.comment)
        if found > self.version:
            return f"{place} has version {found}, this program uses version {self.version}: use a newer ackstream"
        if found < self.version:
            return f"{place} has version {found}, this program uses version {self.version}: run ackstream migrate"
        differences = list(self._differences(facts))
        return _refused(place, differences) if differences else None

    def _differences(self, facts: TableFacts) -> Iterable[str]:
        """What differs from the table that ackstream makes."""
        if facts.engine.lower() != "innodb":
            yield f"its storage engine is {facts.engine or 'unknown'}"
        columns = {column.name.lower(): column for column in facts.columns}
        for own in self.columns:
            if not own.is_like(columns.get(own.name)):
                yield f"its column {own.name} is missing or differs"
        keys = [
            [column.name.lower() for column in index.columns] for index in facts.indexes if index.name == PRIMARY_KEY
        ]
        if keys != [list(self.key)]:
            yield f"its primary key is not ({', '.join(self.key)})"
        if facts.has_triggers:
            yield "it has a trigger"


def version_of(comment: str) -> int:
    """The version that a comment names. A table of a release without versions has none: 1."""
    found = _VERSION.search(comment)
    return 1 if found is None else int(found[1])


def _refused(place: TableId, differences: Iterable[str]) -> str:
    return f"{place} is not as ackstream makes it ({'; '.join(differences)}): drop it, and run ackstream migrate"


LIMITS_TABLE = OwnTable(
    LIMITS,
    "the locks of queues with limits, and MAX_RATE over all proxies",
    "create_limits",
    (OwnColumn("queue", *NAME_TYPE), OwnColumn("full_ns", "bigint")),
    ("queue",),
    ("SELECT", "INSERT", "UPDATE"),
    ("rights_limits_read", "rights_limits_write"),
)

GROUP_RATES_TABLE = OwnTable(
    GROUP_RATES,
    "GROUP_RATE of the message groups over all proxies",
    "create_group_rates",
    (OwnColumn("queue", *NAME_TYPE), OwnColumn("group_hash", "binary", 32), OwnColumn("full_ns", "bigint")),
    ("queue", "group_hash"),
    ("SELECT", "INSERT", "UPDATE", "DELETE"),
    ("rights_group_rates_read", "rights_group_rates_write", "rights_group_rates_delete"),
)

SEMAPHORES_TABLE = OwnTable(
    SEMAPHORES,
    "the semaphores of the queues of this database",
    "create_semaphores",
    (OwnColumn("name", *NAME_TYPE), OwnColumn("capacity", "int")),
    ("name",),
    ("SELECT", "UPDATE"),
    ("rights_semaphores_read",),
    optional=True,
)

OWN_TABLES = {table.name: table for table in (LIMITS_TABLE, GROUP_RATES_TABLE, SEMAPHORES_TABLE)}
"""All of them, by name."""
