"""CREATE, ALTER, PAUSE, RESUME, DROP and SHOW CREATE QUEUE: a queue's table and the directives in
its comment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engine.catalog.directives import (
    DEFAULTS,
    DIRECTIVES,
    NONE,
    OPTIONS,
    combination_problem,
    is_marked,
    make_comment,
    option_problem,
    queue_values,
    split_comment,
    text_problem,
)
from engine.catalog.limits import LIMIT_DIRECTIVES, counted_columns
from engine.service import Engine
from proxy.session.internal_queries import Context, refuse_temporary
from proxy.session.queries import sql
from proxy.statements.creation import Creation, counted_by, dead_letter_of, refuse_uncounted
from proxy.statements.declared import extras_of
from proxy.statements.results import NAME, TEXT, ResultColumn, ResultSet
from proxy.statements.tables import (
    change_comment,
    change_schema,
    comment_of,
    marked_comment,
    no_queue,
    show_create_table,
)
from proxy.wire.packets import ServerError
from sqlrewrite.definitions import Extras, declares
from sqlrewrite.names import TableName
from sqlrewrite.printing import print_queue, retention_read
from sqlrewrite.queue_statements import AlterQueue, CreateQueue, DropQueue, Options
from sqlrewrite.queues import parse_queue_statement

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

CREATE_QUEUE_COLUMNS = (ResultColumn("Queue", NAME), ResultColumn("Create Queue", TEXT))


EXTRA_COLUMNS = ("reason", "delay_by", "batch_by", "after_batch")
"""The directives that name a column which ALTER QUEUE adds."""


class DefinitionStatements:
    """Carries out the statements that define queues. Each change returns the OK packet."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._creation = Creation(engine)

    async def create(self, session: ClientSession, statement: CreateQueue) -> bytes:
        """CREATE QUEUE."""
        given, without = _checked(statement.options)
        _check(queue_values(given, without), statement.comment)
        return await self._creation.create(session, statement, given, without)

    async def alter(self, session: ClientSession, context: Context, statement: AlterQueue) -> bytes:
        """ALTER QUEUE."""
        changed, without = _checked(statement.options)
        reset = {OPTIONS[name] for name, value in statement.options if value is None}

        def change(values: dict[str, str], rest: str) -> tuple[dict[str, str], str]:
            new = {key: value for key, value in values.items() if key not in reset | without} | changed
            for key in reset & DEFAULTS.keys():
                new[key] = queue_values(new)[key]
            _check(new, statement.comment)
            return new, rest if statement.comment is None else statement.comment

        if "dead_letter" in changed:
            values, _ = split_comment(await marked_comment(session, statement.table))
            _check({**values, **changed}, None)
            definition = partial(self._definition, session, context, statement.table)
            await self._creation.dead_letter(session, statement.table, {**values, **changed}, definition)
        if {"group_by", "semaphores"} & (changed.keys() | without):
            new, _ = change(*split_comment(await marked_comment(session, statement.table)))
            if {"group_by", "semaphores"} & new.keys():
                definition_now = await self._definition(session, context, statement.table)
                await self._creation.group_index(session, definition_now, new)
        named = {key: changed[key] for key in EXTRA_COLUMNS if key in changed}
        if named:
            values, _ = split_comment(await marked_comment(session, statement.table))
            dead = {**values, **changed}.get("dead_letter")
            await self._creation.extra_columns(session, statement.table, extras_of(named), dead)
        await self._batch_keys(session, context, statement.table, changed)
        if "delay_by" in changed.keys() | reset | without:
            await self._creation.delay_by(session, statement.table, changed.get("delay_by"))

        async def add_what_is_missing() -> None:
            if not {"lease", "group_by", *(limit.key for limit in LIMIT_DIRECTIVES)} & (
                changed.keys() | reset | without
            ):
                return
            new, rest = change(*split_comment(await marked_comment(session, statement.table)))
            await self._creation.own_tables(session, statement.table, make_comment(new, rest))
            definitions = (await self._definition(session, context, statement.table)).definitions
            default = DEFAULTS["lease"]
            if counted_by(new) is not None and not (
                {"lease"} & (new.keys() | without) or declares(definitions, default)
            ):
                changed["lease"] = new["lease"] = default
            refuse_uncounted(new)
            if lease := new.get("lease"):
                counted = counted_by(new)
                await self._creation.lease_column(session, statement.table, definitions, lease, counted=counted)
            if "group_order" in new:
                await self._creation.order_index(session, statement.table, definitions, new)

        return await change_comment(self._engine, session, statement.table, change, add_what_is_missing)

    async def _batch_keys(
        self, session: ClientSession, context: Context, table: TableName, changed: Mapping[str, str]
    ) -> None:
        """Add the indexes of columns with batches to a queue, whose directives are `changed`, and the one
        of parts to its dead-letter table."""
        if not {"batch_by", "after_batch", "batch_on_dead"} & changed.keys():
            return
        values, _ = split_comment(await marked_comment(session, table))
        values |= changed
        definition = await self._definition(session, context, table)
        await self._creation.batch_keys(session, definition, extras_of(values), make_comment(values))
        letters = dead_letter_of(values, table)
        if letters is not None and "batch_by" in values and await comment_of(session, letters) is not None:
            of_parts = Extras(batch_by=values["batch_by"])
            await self._creation.batch_keys(session, await self._definition(session, context, letters), of_parts)

    async def pause(self, session: ClientSession, table: TableName, *, paused: bool) -> bytes:
        """PAUSE QUEUE and RESUME QUEUE."""

        def change(values: dict[str, str], rest: str) -> tuple[dict[str, str], str]:
            others = {key: value for key, value in values.items() if key != "paused"}
            return {**others, "paused": "1"} if paused else others, rest

        return await change_comment(self._engine, session, table, change)

    async def drop(self, session: ClientSession, statement: DropQueue) -> bytes:
        """DROP QUEUE."""
        comment = await comment_of(session, statement.table)
        if comment is not None and not is_marked(comment):
            raise no_queue(statement.table, "DROP TABLE drops it")
        if comment is not None:
            await refuse_temporary(session, statement.table)
        if_exists = "IF EXISTS " if statement.if_exists else ""
        text = sql("drop_table", if_exists=if_exists, table=statement.table.quoted())
        return (await change_schema(self._engine, session, text)).packets[0].payload

    async def show_create(self, session: ClientSession, context: Context, table: TableName) -> ResultSet:
        """SHOW CREATE QUEUE."""
        statement = await self._definition(session, context, table)
        if statement.comment is None or not is_marked(statement.comment):
            raise no_queue(table, "SHOW CREATE TABLE shows it")
        values, rest = split_comment(statement.comment)
        without = {key: NONE for key in DEFAULTS if key not in values}
        options = [(DIRECTIVES[key].option, value) for key, value in {**values, **without}.items()]
        text = print_queue(
            statement,
            table.name,
            options,
            rest,
            counted_columns(values),
            no_backslash_escapes=session.no_backslash_escapes,
        )
        return ResultSet(CREATE_QUEUE_COLUMNS, [[table.name, text]])

    async def _definition(self, session: ClientSession, context: Context, table: TableName) -> CreateQueue:
        """An existing table, as the CREATE QUEUE that its SHOW CREATE TABLE amounts to."""
        written = await show_create_table(session, context, table)
        if not written.startswith(b"CREATE TABLE"):
            raise no_queue(table, "SHOW CREATE TABLE shows it")
        statement = parse_queue_statement(written.replace(b"CREATE TABLE", b"CREATE QUEUE", 1), OPTIONS)
        assert isinstance(statement, CreateQueue)
        return retention_read(replace(statement, table=table))


def _checked(options: Options) -> tuple[dict[str, str], set[str]]:
    """The directives that options stand for, and those that are NONE. Raises ServerError for a
    value that is not allowed."""
    values: dict[str, str] = {}
    without: set[str] = set()
    for name, value in options:
        if value is None:
            continue
        if value.upper() == NONE and not DIRECTIVES[OPTIONS[name]].required:
            without.add(OPTIONS[name])
        elif problem := option_problem(name, value):
            raise ServerError(1105, "HY000", problem)
        else:
            values[OPTIONS[name]] = value
    return values, without


def _check(values: Mapping[str, str], comment: str | None) -> None:
    """Raise ServerError if these directives, or this comment besides them, are not allowed
    together."""
    problem = combination_problem(values) or text_problem(comment or "")
    if problem:
        raise ServerError(1105, "HY000", problem)
