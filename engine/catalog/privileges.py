"""What the engine's account may do, as SHOW GRANTS has it, and what is said where a privilege is
missing.

SHOW GRANTS is read only for what it says beyond doubt: that the account has a privilege on all
tables of the server, of a database, or on one table. Of all else (patterns, columns, partial
revokes) the server itself is asked, by statements on no row (engine.store.privileges).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.model import TableId
from engine.quoting import qualified, quoted

OF_A_QUEUE = ("SELECT", "UPDATE", "DELETE")
"""To look for messages and read them, to claim and release them, to purge acknowledged ones."""

OF_DEAD_LETTERS = ("SELECT", "INSERT", "DELETE")
"""To put messages there, in place of acknowledged ones of the same id."""

_GRANT = re.compile(r"GRANT (?P<what>.+?) ON (?P<where>\*\.\*|`(?:[^`]|``)+`\.(?:\*|`(?:[^`]|``)+`)) TO ")
_ON_COLUMNS = re.compile(r"[A-Z ]+\([^()]*\)")
_KILLS = frozenset({"CONNECTION_ADMIN", "CONNECTION ADMIN", "SUPER"})


@dataclass(frozen=True, slots=True)
class Grants:
    """What SHOW GRANTS says."""

    account: str
    """As GRANT takes it."""
    lines: tuple[str, ...]
    mariadb: bool = False
    checked: bool = True
    """False: the server checks no privileges at all."""

    @property
    def stamp(self) -> str:
        """The same as long as the account's privileges are."""
        return hashlib.blake2b("\n".join((self.account, *self.lines)).encode(), digest_size=16).hexdigest()

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
        """What the account may not do on the server as a whole, each with the GRANT that it
        takes."""
        matches = [match for line in self.lines if (match := _GRANT.match(line)) and match["where"] == "*.*"]
        has = _words(*(match["what"] for match in matches))
        if not self.checked or has & {"ALL PRIVILEGES", *_KILLS}:
            return ()
        privilege = "CONNECTION ADMIN" if self.mariadb else "CONNECTION_ADMIN"
        text = f"the engine's account {self.account} may not end what vanished clients leave running"
        return (f"{text}: GRANT {privilege} ON *.* TO {self.account}",)

    def missing(self, table: TableId, privileges: Sequence[str]) -> str:
        """What is said where these are missing on a table."""
        wanted = ", ".join(privileges)
        return (
            f"the engine's account {self.account} lacks the privileges {wanted} on {table}:"
            f" GRANT {wanted} ON {qualified(table)} TO {self.account}"
        )

    def apart(self, table: TableId, privileges: Sequence[str]) -> str:
        """What is said where it has all of these, but some on the table and others on its
        database."""
        wanted = ", ".join(privileges)
        return (
            f"MySQL does not add up the privileges that the engine's account {self.account} has on {table} and on its"
            f" database: GRANT {wanted} ON {quoted(table.db)}.* TO {self.account}"
        )


def _has(words: Collection[str], wanted: Collection[str]) -> bool:
    return "ALL PRIVILEGES" in words or all(privilege in words for privilege in wanted)


def _words(*grants: str) -> set[str]:
    """The privileges that they name, without those on single columns."""
    return {word.strip() for what in grants for word in _ON_COLUMNS.sub("", what).split(",")}


def _db_of(where: str) -> str:
    """The database that a pattern names, where it has no wildcards."""
    name = where.removesuffix(".*")[1:-1].replace("``", "`")
    return name.replace("\\_", "_").replace("\\%", "%")
