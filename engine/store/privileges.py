"""Reads the privileges of the engine's account from the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.catalog.own_tables import GROUP_RATES_TABLE, RATES_TABLE, SEMAPHORES_TABLE, OwnTable
from engine.catalog.privileges import (
    OF_A_QUEUE,
    OF_DEAD_LETTERS,
    OF_GATHERED_ACKS,
    OF_GROUP_RATES,
    OF_RATES,
    Grants,
)
from engine.model import BrokenTable, QueueTable, TableId
from engine.packets import text_values
from engine.quoting import qualified, quoted
from engine.store.connection import DENIED, StoreConnection
from engine.store.information_schema import own_comments
from engine.store.port import StoreError
from engine.store.pymysql_adapter import ER
from engine.store.queries import and_lease, statement
from engine.store.route import READ_ONLY


def read_grants(connection: StoreConnection) -> Grants:
    """The account's present privileges, including those that its session does not have yet."""
    try:
        account, grants = connection.run([statement("rights_account"), statement("rights_grants")])
    except StoreError as error:
        if error.code == ER.OPTION_PREVENTS_STATEMENT:  # --skip-grant-tables
            return Grants("", (), checked=False)
        raise
    name, version = (_text(value) for value in text_values(account.rows[0]))
    user, _, host = name.rpartition("@")
    lines = sorted(_text(value) for row in grants.rows for value in text_values(row))
    return Grants(f"{quoted(user)}@{quoted(host)}", tuple(lines), mariadb="MariaDB" in version)


def with_rights(
    connection: StoreConnection, grants: Grants, found: QueueTable | BrokenTable
) -> QueueTable | BrokenTable:
    """`found` unchanged if the engine's account has all privileges on the queue.

    Otherwise a broken table with the GRANT as its problem. Privileges missing on its dead-letter
    table only add a warning. Without those to acknowledge for clients, ACKs are not alike.
    """
    if not grants.cover(found.id, OF_A_QUEUE):
        if lacking := _lacking(connection, found.id, OF_A_QUEUE, and_lease(found)):
            parts = isinstance(found, QueueTable) and found.batch is not None
            problem = grants.missing_problem(found.id, lacking)
            return BrokenTable(found.id, (problem,), denied=True, unread_parts=parts)
        if _is_denied(connection, found.id, "claim", and_lease(found)):
            return BrokenTable(found.id, (grants.divided_problem(found.id, OF_A_QUEUE),), denied=True)
    if isinstance(found, QueueTable) and found.policy.max_rate is not None:
        found = _with_rate(connection, grants, found)
    if isinstance(found, QueueTable) and found.policy.group_rate is not None:
        found = _with_group_rate(connection, grants, found)
    if isinstance(found, QueueTable) and found.policy.semaphores is not None:
        found = _with_semaphores(connection, grants, found)
    if isinstance(found, QueueTable) and found.acks_alike and not grants.cover(found.id, OF_GATHERED_ACKS):
        found = replace(found, acks_alike=False)
    if not isinstance(found, QueueTable) or (place := found.dead_letter) is None:
        return found
    if not grants.cover(place, OF_DEAD_LETTERS) and (lacking := _lacking(connection, place, OF_DEAD_LETTERS)):
        warning = f"dead messages stay here: {grants.missing_problem(place, lacking)}"
        return replace(found, warnings=(*found.warnings, warning))
    return found


def _with_rate(connection: StoreConnection, grants: Grants, found: QueueTable) -> QueueTable:
    """Whether the rate holds over all proxies; otherwise with the remedy as a warning."""
    remedy = f"ALTER QUEUE {found.id} MAX_RATE = {found.policy.max_rate:g} makes the table {found.rates}"
    checks = ("rights_rates_read", "rights_rates_write")
    if problem := _problem_of(connection, grants, RATES_TABLE, found.rates, checks, OF_RATES, remedy):
        return replace(found, warnings=(*found.warnings, f"max_rate holds at each proxy alone: {problem}"))
    return replace(found, policy=replace(found.policy, paced=True))


def _with_group_rate(connection: StoreConnection, grants: Grants, found: QueueTable) -> QueueTable:
    """Whether the rates of message groups can be kept; otherwise nothing is delivered, with the remedy as a
    warning."""
    rates = found.group_rates
    remedy = f"ALTER QUEUE {found.id} GROUP_RATE = {found.policy.group_rate:g} makes the table {rates}"
    checks = tuple(f"rights_group_rates_{use}" for use in ("read", "write", "delete"))
    problem = _problem_of(connection, grants, GROUP_RATES_TABLE, rates, checks, OF_GROUP_RATES, remedy)
    return _held_back(found, problem) if problem else found


def _with_semaphores(connection: StoreConnection, grants: Grants, found: QueueTable) -> QueueTable:
    """Whether the semaphores can be read; otherwise nothing is delivered, with the remedy as a warning. A
    table that is not there has none."""
    checks = ("rights_semaphores_read",)
    problem = _problem_of(connection, grants, SEMAPHORES_TABLE, found.semaphores, checks, ("SELECT",), absent="")
    return _held_back(found, problem) if problem else found


def _problem_of(
    connection: StoreConnection,
    grants: Grants,
    own: OwnTable,
    table: TableId,
    checks: Sequence[str],
    wanted: Sequence[str],
    absent: str,
) -> str:
    """Why the engine cannot use its own table, or "". `checks`: statements that need the privileges `wanted`,
    one that reads first. `absent`: the text for a table that does not exist.

    A server that is read-only refuses the checks that write. Its table counts as usable: an absent one is
    found by the check that reads, and a missing privilege by the first claim. Raises StoreError if it cannot
    be known now, for example because another session has locked the table.
    """
    try:
        connection.run([statement(check, own=qualified(table)) for check in checks])
    except StoreError as error:
        if error.code in DENIED:
            return grants.missing_problem(table, wanted)
        if error.lasting:
            return absent
        if error.code not in READ_ONLY:
            raise
    return own.problem(str(table), own_comments(connection, [table]).get(table, "")) or ""


def _held_back(found: QueueTable, problem: str) -> QueueTable:
    warnings = (*found.warnings, f"nothing is delivered: {problem}")
    return replace(found, policy=replace(found.policy, paused=True), warnings=warnings)


def _lacking(connection: StoreConnection, table: TableId, wanted: Sequence[str], and_lease: str = "") -> list[str]:
    return [privilege for privilege in wanted if _is_denied(connection, table, privilege, and_lease)]


def _is_denied(connection: StoreConnection, table: TableId, privilege: str, and_lease: str = "") -> bool:
    """`and_lease`: the assignment to the table's lease column that an UPDATE of the engine has."""
    try:
        connection.run([statement(f"rights_{privilege.lower()}", table=qualified(table), and_lease=and_lease)])
    except StoreError as error:
        if connection.broken:
            raise
        return error.code in DENIED  # Other errors (dropped, locked, another kind) are reported elsewhere.
    return False


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
