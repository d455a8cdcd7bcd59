"""The tables that ackstream itself makes in the databases of queues, and their versions.

The comment of such a table begins with `ackstream:` and ends with its version. A version is raised
only where an older program would use the table wrongly: a column that older ones do not mention needs
none. `ackstream migrate` makes and upgrades all of them; CREATE QUEUE and ALTER QUEUE make a missing
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from engine.queue_table import GROUP_RATES, RATES, SEMAPHORES, Policy

PREFIX = "ackstream:"
"""The beginning of their comments."""

_VERSION = re.compile(r"\(version ([0-9]{1,9})\)$")


@dataclass(frozen=True, slots=True)
class OwnTable:
    """One of these tables, in each database with a queue that needs it."""

    name: str
    purpose: str
    """For whoever finds it: the comment."""
    needed: Callable[[Policy], bool]
    """Whether a queue with this policy needs it."""
    create: str
    """The name of the query that makes the present version: `$table`, `$comment`."""
    upgrades: tuple[str, ...] = ()
    """The names of the queries that lead from version 1 to 2, from 2 to 3, and so on. Each is one
    ALTER TABLE that also sets the comment, so that an upgrade is there as a whole or not at all."""

    @property
    def version(self) -> int:
        """The version that this program uses."""
        return 1 + len(self.upgrades)

    def comment(self, version: int | None = None) -> str:
        """The comment of the table in a version; None: the present one."""
        return f"{PREFIX} {self.purpose} (version {self.version if version is None else version})"

    def problem(self, place: str, comment: str) -> str | None:
        """Why the table at `place`, with this comment, cannot be used; None if it can."""
        found = version_of(comment)
        if found > self.version:
            return f"{place} has version {found}, this program uses version {self.version}: use a newer ackstream"
        if found < self.version:
            return f"{place} has version {found}, this program uses version {self.version}: run ackstream migrate"
        return None


def version_of(comment: str) -> int:
    """The version that a comment names. A table of a release without versions has none: 1."""
    found = _VERSION.search(comment)
    return 1 if found is None else int(found[1])


RATES_TABLE = OwnTable(
    RATES, "MAX_RATE of the queues over all proxies", lambda policy: policy.max_rate is not None, "create_rates"
)

GROUP_RATES_TABLE = OwnTable(
    GROUP_RATES,
    "GROUP_RATE of the message groups over all proxies",
    lambda policy: policy.group_rate is not None,
    "create_group_rates",
)

SEMAPHORES_TABLE = OwnTable(
    SEMAPHORES,
    "the semaphores of the queues of this database",
    lambda policy: policy.semaphores is not None,
    "create_semaphores",
)

OWN_TABLES = {table.name: table for table in (RATES_TABLE, GROUP_RATES_TABLE, SEMAPHORES_TABLE)}
"""All of them, by name."""
