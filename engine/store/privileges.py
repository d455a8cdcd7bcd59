"""Reads the privileges of the engine's account from the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.catalog.obstacles import Obstacle, obstacle_of
from engine.catalog.own_tables import OWN_TABLES, OwnTable
from engine.catalog.privileges import OF_A_QUEUE, OF_DEAD_LETTERS, OF_GATHERED_ACKS, Grants
from engine.catalog.verdict import held_back
from engine.model import TableId
from engine.packets import text_values
from engine.queue_table import BrokenTable, Policy, QueueTable
from engine.quoting import qualified, quoted
from engine.store.connection import DENIED, StoreConnection
from engine.store.information_schema import table_facts
from engine.store.port import StoreError
from engine.store.pymysql_adapter import ER
from engine.store.queries import and_lease, statement
from engine.store.route import READ_ONLY

ABSENT = frozenset({ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR})
"""Errors of a table that does not exist."""


def read_grants(connection: StoreConnection) -> Grants:
    """The account's present privileges, including those that its session does not have yet."""
    variables, row = connection.run([statement("rights_server"), statement("rights_account")])
    account, version = (_text(value) for value in text_values(row.rows[0]))
    mariadb = "MariaDB" in version
    shown = (map(_text, text_values(variable)) for variable in variables.rows)
    obstacle = obstacle_of({name: value for name, value, *_ in shown}, mariadb=mariadb)
    try:
        (grants,) = connection.run([statement("rights_grants")])
    except StoreError as error:
        if error.code == ER.OPTION_PREVENTS_STATEMENT:  # --skip-grant-tables
            return Grants("", (), checked=False, obstacle=obstacle)
        raise
    user, _, host = account.rpartition("@")
    lines = sorted(_text(value) for row in grants.rows for value in text_values(row))
    return Grants(f"{quoted(user)}@{quoted(host)}", tuple(lines), mariadb=mariadb, obstacle=obstacle)


class Rights:
    """The privileges of the engine's account on queues, by one connection and for one description.

    A check of one of the engine's own tables runs once, however many of the described queues use that
    table: where another session has locked it, all of them wait for it once.
    """

    def __init__(self, connection: StoreConnection, grants: Grants) -> None:
        self._connection = connection
        self._grants = grants
        self._checked: dict[TableId, str | _Absent | StoreError] = {}
        """The problem of each of the engine's own tables that was checked, or why it is not known."""

    def on(self, found: QueueTable | BrokenTable) -> QueueTable | BrokenTable:
        """`found` unchanged if the engine's account has all privileges on the queue.

        Otherwise a broken table with the GRANT as its problem, or with the setting of the server that refuses every
        claim. Privileges missing on its dead-letter
        table only add a warning. Without those to acknowledge for clients, ACKs are not alike. Raises
        StoreError if it cannot be known now.
        """
        grants = self._grants
        if grants.obstacle and isinstance(found, QueueTable) and self._is_refused(found, grants.obstacle):
            return BrokenTable(found.id, (grants.obstacle.text,), denied=True, unread_parts=found.batch is not None)
        if not grants.cover(found.id, OF_A_QUEUE):
            if lacking := self._lacking(found.id, OF_A_QUEUE, and_lease(found)):
                parts = isinstance(found, QueueTable) and found.batch is not None
                problem = grants.missing_problem(found.id, lacking)
                return BrokenTable(found.id, (problem,), denied=True, unread_parts=parts)
            if self._is_denied(found.id, "claim", and_lease(found)):
                return BrokenTable(found.id, (grants.divided_problem(found.id, OF_A_QUEUE),), denied=True)
        if not isinstance(found, QueueTable):
            return found
        if unkept := self.limits_problem(found.id, found.policy):
            found = held_back(found, unkept)
        if found.writes_alike and not grants.cover(found.id, OF_GATHERED_ACKS):
            found = replace(found, writes_alike=False)
        if (place := found.dead_letter) is None:
            return found
        if not grants.cover(place, OF_DEAD_LETTERS) and (lacking := self._lacking(place, OF_DEAD_LETTERS)):
            warning = f"dead messages stay here: {grants.missing_problem(place, lacking)}"
            return replace(found, warnings=(*found.warnings, warning))
        return found

    def _is_refused(self, found: QueueTable, obstacle: Obstacle) -> bool:
        """Whether the server refuses claims of this table."""
        if not obstacle.shown:
            return True
        try:
            self._try([statement("rights_claim", table=qualified(found.id), and_lease=and_lease(found))])
        except StoreError as error:
            if self._connection.broken:
                raise
            return not error.lasting  # Else the table or a privilege is the reason, which is reported as such.
        return False

    def limits_problem(self, queue: TableId, policy: Policy) -> str | None:
        """Why the engine cannot keep the limits of a queue in its own tables; None if it can. Raises StoreError
        if it cannot be known now."""
        for own in OWN_TABLES.values():
            table = TableId(queue.db, own.name)
            if (limit := own.limit(policy)) is None:
                continue
            if table not in self._checked:
                self._checked[table] = self._check(own, table)
            match self._checked[table]:
                case StoreError() as error:
                    raise StoreError(f"{table}: {error}", code=error.code) from error
                case _Absent():
                    if not own.optional:
                        return f"ALTER QUEUE {queue} {limit.again(policy)} makes the table {table}"
                case "":
                    pass
                case problem:
                    return problem
        return None

    def _check(self, own: OwnTable, table: TableId) -> str | _Absent | StoreError:
        """The problem of one of the engine's own tables, "" without one. An error, if it cannot be known
        now, for example because another session has locked the table.

        A server that is read-only refuses the checks that write. Its table counts as usable: an absent
        one is found by the check that reads, and a missing privilege by the first claim. Raises
        StoreError if the connection is lost.
        """
        connection = self._connection
        try:
            self._try([statement(check, own=qualified(table)) for check in own.checks])
        except StoreError as error:
            if connection.broken:
                raise
            if error.code in DENIED:
                return self._grants.missing_problem(table, own.privileges)
            if error.code in ABSENT:
                return _Absent()
            if not error.lasting and error.code not in READ_ONLY:
                return error
        return own.problem(table, table_facts(connection, table).value) or ""

    def _lacking(self, table: TableId, wanted: Sequence[str], and_lease: str = "") -> list[str]:
        if self._is_denied(table, "SELECT"):  # Nothing else can be tried: SHOW GRANTS has to do.
            return [privilege for privilege in wanted if not self._grants.cover(table, (privilege,))]
        return [privilege for privilege in wanted if self._is_denied(table, privilege, and_lease)]

    def _is_denied(self, table: TableId, privilege: str, and_lease: str = "") -> bool:
        """`and_lease`: the assignment to the table's lease column that an UPDATE of the engine has."""
        names = dict.fromkeys(("rights_select", f"rights_{privilege.lower()}"))
        try:
            self._try([statement(name, table=qualified(table), and_lease=and_lease) for name in names])
        except StoreError as error:
            if self._connection.broken:
                raise
            return error.code in DENIED  # Other errors (dropped, locked, another kind) are reported elsewhere.
        return False

    def _try(self, statements: Sequence[str]) -> None:
        """Run statements that change nothing, in one transaction: the first one shows that the name is a
        table's, and so it stays. Raises StoreError."""
        try:
            self._connection.run([statement("begin"), *statements, statement("rollback")])
        except StoreError:
            if not self._connection.broken:
                self._connection.run([statement("rollback")])
            raise


class _Absent:
    """The table does not exist."""


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
