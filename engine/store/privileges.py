"""Reads the privileges of the engine's account from the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.catalog.own_tables import GROUP_RATES_TABLE, RATES_TABLE, SEMAPHORES_TABLE
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
    alone = "max_rate holds at each proxy alone"
    rates = qualified(found.rates)
    try:
        connection.run([statement("rights_rates_read", rates=rates), statement("rights_rates_write", rates=rates)])
        comments = own_comments(connection, [found.rates])
    except StoreError as error:
        if connection.broken:
            raise
        if error.code in DENIED:
            problem = grants.missing_problem(found.rates, OF_RATES)
            return replace(found, warnings=(*found.warnings, f"{alone}: {problem}"))
        remedy = f"ALTER QUEUE {found.id} MAX_RATE = {found.policy.max_rate:g} makes the table {found.rates}"
        return replace(found, warnings=(*found.warnings, f"{alone}: {remedy}"))
    if unfit := RATES_TABLE.problem(str(found.rates), comments.get(found.rates, "")):
        return replace(found, warnings=(*found.warnings, f"{alone}: {unfit}"))
    return replace(found, policy=replace(found.policy, paced=True))


def _with_group_rate(connection: StoreConnection, grants: Grants, found: QueueTable) -> QueueTable:
    """Whether the rates of message groups can be kept; otherwise nothing is delivered, with the remedy as a
    warning."""
    rates = qualified(found.group_rates)
    try:
        connection.run([statement(f"rights_group_rates_{use}", rates=rates) for use in ("read", "write", "delete")])
        comments = own_comments(connection, [found.group_rates])
    except StoreError as error:
        if connection.broken:
            raise
        if error.code in DENIED:
            return _held_back(found, grants.missing_problem(found.group_rates, OF_GROUP_RATES))
        rate = f"{found.policy.group_rate:g}"
        return _held_back(found, f"ALTER QUEUE {found.id} GROUP_RATE = {rate} makes the table {found.group_rates}")
    unfit = GROUP_RATES_TABLE.problem(str(found.group_rates), comments.get(found.group_rates, ""))
    return _held_back(found, unfit) if unfit else found


def _with_semaphores(connection: StoreConnection, grants: Grants, found: QueueTable) -> QueueTable:
    """Whether the semaphores can be read; otherwise nothing is delivered, with the remedy as a warning. A
    table that is not there has none."""
    try:
        connection.run([statement("rights_semaphores_read", semaphores=qualified(found.semaphores))])
        comments = own_comments(connection, [found.semaphores])
    except StoreError as error:
        if connection.broken:
            raise
        if error.code in DENIED:
            return _held_back(found, grants.missing_problem(found.semaphores, ("SELECT",)))
        return found
    unfit = SEMAPHORES_TABLE.problem(str(found.semaphores), comments.get(found.semaphores, ""))
    return _held_back(found, unfit) if unfit else found


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
