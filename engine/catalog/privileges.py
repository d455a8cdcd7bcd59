"""The privileges of the engine's account, from SHOW GRANTS, and the error texts for missing ones.

Of SHOW GRANTS only the certain parts are used: privileges on all tables of the server, of a
database, or on one table. For everything else (patterns, columns, partial revokes)
engine.store.privileges runs statements that touch no row, and the server decides.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.catalog.obstacles import Obstacle
from engine.model import TableId
from engine.quoting import qualified, quoted

OF_A_QUEUE = ("SELECT", "UPDATE", "DELETE")
"""For scans and fetches, for claims and releases, for purges."""

OF_DEAD_LETTERS = ("SELECT", "INSERT", "DELETE")
"""To insert dead messages, and to delete acknowledged ones of the same id before."""

OF_GATHERED_ACKS = ("SELECT", "UPDATE", "TRIGGER")
"""To acknowledge for clients, and to see whether the table has triggers."""

_GRANT = re.compile(r"GRANT (?P<what>.+?) ON (?P<where>\*\.\*|`(?:[^`]|``)+`\.(?:\*|`(?:[^`]|``)+`)) TO ")
_ON_COLUMNS = re.compile(r"[A-Z ]+\([^()]*\)")
_KILLS = frozenset({"CONNECTION_ADMIN", "CONNECTION ADMIN", "SUPER"})


@dataclass(frozen=True, slots=True)
class Grants:
    """The result of SHOW GRANTS."""

    account: str
    """In the form that GRANT accepts."""
    lines: tuple[str, ...]
    mariadb: bool = False
    checked: bool = True
    """False: the server checks no privileges (skip_grant_tables)."""
    obstacle: Obstacle | None = None
    """What keeps the server from claims, whatever the account may."""

    @property
    def stamp(self) -> str:
        """A digest that changes when the account's privileges change, or the obstacle."""
        parts = (self.account, *self.lines, self.obstacle.text if self.obstacle else "")
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def cover(self, table: TableId, wanted: Collection[str]) -> bool:
        """Whether the account certainly has these privileges on all of a table.

        Those on the server and on a database add up. Those on the table do not in each
        statement: MySQL leaves them out where another privilege that the statement takes is on
        the database.
        """
        if not self.checked:
            return True
        if any(line.startswith("REVOKE ") for line in self.lines):
            return False
        found = [(match["what"], match["where"]) for line in self.lines if (match := _GRANT.match(line))]
        of_db = [what for what, where in found if where.endswith("`.*") and _db_of(where) == table.db]
        broad = _words(
            *(what for what, where in found if where == "*.*"),
            *(of_db if len(of_db) == 1 else ()),  # Of several that fit, the server goes by one.
        )
        own = _words(*(what for what, where in found if where == qualified(table)))
        return _has(broad, wanted) or (_has(own, wanted) and not of_db and broad.isdisjoint(wanted))

    def problems(self) -> tuple[str, ...]:
        """The missing privileges on the whole server, each with its GRANT."""
        matches = [match for line in self.lines if (match := _GRANT.match(line)) and match["where"] == "*.*"]
        has = _words(*(match["what"] for match in matches))
        if not self.checked or has & {"ALL PRIVILEGES", *_KILLS}:
            return ()
        privilege = "CONNECTION ADMIN" if self.mariadb else "CONNECTION_ADMIN"
        text = f"the engine's account {self.account} may not end what vanished clients leave running"
        return (f"{text}: GRANT {privilege} ON *.* TO {self.account}",)

    def missing_problem(self, table: TableId, privileges: Sequence[str]) -> str:
        """The problem of missing privileges on a table, with the GRANT."""
        wanted = ", ".join(privileges)
        return (
            f"the engine's account {self.account} lacks the privileges {wanted} on {table}:"
            f" GRANT {wanted} ON {qualified(table)} TO {self.account}"
        )

    def divided_problem(self, table: TableId, privileges: Sequence[str]) -> str:
        """The problem of privileges that are partly on the table and partly on its database,
        with the GRANT."""
        wanted = ", ".join(privileges)
        return (
            f"MySQL does not add up the privileges that the engine's account {self.account} has on {table} and on its"
            f" database: GRANT {wanted} ON {quoted(table.db)}.* TO {self.account}"
        )


def _has(words: Collection[str], wanted: Collection[str]) -> bool:
    return "ALL PRIVILEGES" in words or all(privilege in words for privilege in wanted)


def _words(*grants: str) -> set[str]:
    """The privileges in these grants, without those on single columns."""
    return {word.strip() for what in grants for word in _ON_COLUMNS.sub("", what).split(",")}


def _db_of(where: str) -> str:
    """The database of a pattern without wildcards."""
    name = where.removesuffix(".*")[1:-1].replace("``", "`")
    return name.replace("\\_", "_").replace("\\%", "%")
