"""`ackstream migrate`: makes and upgrades the tables that ackstream itself keeps beside queues.

Each change is one statement that also sets the version: a run that was cut short is continued by the next
one. Of two runs at a time, the server refuses the second change of a kind, and that run reports the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from engine.catalog.own_tables import OWN_TABLES, PREFIX, OwnTable, version_of
from engine.model import TableId
from engine.queue_table import QueueTable
from engine.quoting import qualified
from engine.store.connection import DENIED, StoreConnection
from engine.store.information_schema import table_facts
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress, ConnectionLimits
from engine.store.port import StoreError
from engine.store.pymysql_adapter import ER
from engine.store.queries import statement
from proxy.commands.connection import EXIT_FAILED
from proxy.commands.doctor import AT_ONCE
from proxy.commands.servers import addresses, backend_options, settings_of
from proxy.session.queries import sql
from sqlrewrite.literals import string

LIMITS = ConnectionLimits(statement_s=3600, read_s=3630, lock_wait_s=60)
"""An ALTER TABLE waits for transactions that use the table, and may copy it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One table: what was done to it, or would be. `result`: `current`, `made`, `upgraded`, `missing`,
    `outdated`, `skipped` or `error`."""

    result: str
    table: str
    text: str
    statement: str = ""


def needed(store: MySQLStore, tables: Mapping[str, OwnTable] = OWN_TABLES) -> list[TableId]:
    """The tables that the queues of a server need. Raises StoreError."""
    queues = list(store.discover().value.marked)
    found: set[TableId] = set()
    for at in range(0, len(queues), AT_ONCE):
        for queue in store.describe_all(queues[at : at + AT_ONCE]).value.values():
            if isinstance(queue, QueueTable):
                found |= {TableId(queue.id.db, own.name) for own in tables.values() if own.limit(queue.policy)}
    return sorted(found, key=str)


def steps(
    connection: StoreConnection, places: Sequence[TableId], tables: Mapping[str, OwnTable] = OWN_TABLES, *, check: bool
) -> Iterator[Step]:
    """Bring these tables to their present versions, or with `check` only report what would be done.
    Raises StoreError."""
    for place in places:
        own = tables[place.name]
        facts = table_facts(connection, place).value
        version = 0 if facts is None else version_of(facts.comment)
        if facts is not None and (version >= own.version or not facts.comment.startswith(PREFIX)):
            problem = own.problem(place, facts)
            yield Step("error", str(place), problem) if problem else Step("current", str(place), f"version {version}")
            continue
        for at in range(version, own.version) if version else (0,):
            yield _carried_out(connection, own, place, at, check=check)


def _carried_out(connection: StoreConnection, own: OwnTable, place: TableId, version: int, *, check: bool) -> Step:
    """Take a table from a version to the next one; from 0, which is none, to the present one."""
    after = version + 1 if version else own.version
    name = own.upgrades[version - 1] if version else own.create
    literal = string(own.comment(after), no_backslash_escapes=True)
    text = sql(name, table=qualified(place), comment=literal)
    if check:
        return Step("outdated" if version else "missing", str(place), f"version {after}", text)
    connection.run([text])
    if after == own.version and (problem := own.problem(place, table_facts(connection, place).value)):
        return Step("error", str(place), problem)
    return Step("upgraded" if version else "made", str(place), f"version {after}", text)


def migrated(address: BackendAddress, *, check: bool) -> Iterator[Step]:
    """All steps on one server; none on a read-only one. Raises StoreError."""
    store = MySQLStore(address)
    try:
        places = needed(store)
    finally:
        store.close()
    connection = StoreConnection(address, LIMITS)
    try:
        if not _is_writable(connection):
            yield Step("skipped", f"{address.host}:{address.port}", "the server is read-only")
            return
        yield from steps(connection, places, check=check) if places else ()
    finally:
        connection.close()


def _is_writable(connection: StoreConnection) -> bool:
    try:
        connection.run([statement("writable")])
    except StoreError as error:
        if error.code != ER.SUBQUERY_NO_1_ROW:
            raise
        return False
    return True


@click.command()
@backend_options
@click.option("--check", is_flag=True, help="Change nothing. The exit status is 1 if there is something to do.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def migrate(
    backend: str | None, backend_password_file: str | None, config: Path | None, *, check: bool, as_json: bool
) -> None:
    """Make and upgrade the tables that ackstream itself keeps beside queues.

    These are `ackstream_limits`, `ackstream_group_rates` and `ackstream_semaphores`, in each database
    with a queue that has a limit, GROUP_RATE or SEMAPHORES. CREATE QUEUE and ALTER QUEUE make them,
    too; an upgrade is made here alone. The account needs CREATE and ALTER on these tables, which the
    engine's account does not need otherwise.

    \b
    Examples:
      ackstream migrate --backend mysql://admin@db:3306 --backend-password-file secret --check
      ackstream migrate --backend mysql://admin@db:3306 --backend-password-file secret
    """
    settings = settings_of(backend, backend_password_file, config)
    results: set[str] = set()
    for address in addresses(settings):
        try:
            for step in migrated(address, check=check):
                results.add(step.result)
                click.echo(json.dumps(asdict(step)) if as_json else _line(step, check=check))
        except StoreError as error:
            results.add("error")
            hint = ": GRANT CREATE and ALTER on it to this account" if error.code in DENIED else ""
            click.echo(f"ackstream: {address.host}:{address.port}: {error}{hint}", err=True)
    if results == {"skipped"}:
        click.echo("ackstream: no server can be written to", err=True)
    if not results:
        click.echo("no queue needs a table of ackstream's own", err=True)
    failed = results == {"skipped"} or not results.isdisjoint({"error", "missing", "outdated"})
    sys.exit(EXIT_FAILED if failed else 0)


def _line(step: Step, *, check: bool) -> str:
    statement = f"\n{step.statement};" if check and step.statement else ""
    return f"{step.result:9} {step.table}: {step.text}{statement}"
