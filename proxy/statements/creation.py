"""CREATE QUEUE, and the dead-letter table of a queue: created with the client's own rights, and
never dropped.

A missing dead-letter table is created first. Without its queue it is an empty queue by itself, and
the next attempt finds it. Declarations that cannot be a queue are refused beforehand (`declared`).
Nothing is dropped here: between a CREATE TABLE and a DROP TABLE, another session may have replaced,
filled or begun to use the table of that name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from engine.catalog.delays import delay_problem
from engine.catalog.directives import (
    DEFAULTS,
    DIRECTIVES,
    dead_letter_name,
    is_marked,
    make_comment,
    parse_comment,
    queue_values,
    with_source,
)
from engine.catalog.limits import LIMIT_DIRECTIVES, counted_columns
from engine.catalog.own_tables import OWN_TABLES, OwnTable
from engine.model import NS_PER_S, TableId
from engine.queue_table import BrokenTable, Policy
from engine.quoting import text_literal
from engine.service import Engine
from engine.store.partition_plan import WIDTH_MIN_NS
from engine.store.queries import first_partition_clause
from proxy.session.answers import ServerAnswer
from proxy.session.internal_queries import Refused, from_hex, not_refused, rows, server_time_ns
from proxy.session.queries import sql
from proxy.statements.declared import extras_of, problems_of
from proxy.statements.tables import (
    change_comment,
    change_schema,
    comment_of,
    comment_with,
    marked_comment,
    no_queue,
    string_literal,
    table_id,
)
from proxy.wire.packets import ServerError
from sqlrewrite.definitions import (
    TIME_KEY,
    Definition,
    Extras,
    declares,
    group_key,
    has_group_key,
    has_lease_key,
    has_order_key,
    lease_definition,
    lease_key,
    not_by_time,
    order_key,
    time_next_default,
)
from sqlrewrite.errors import PARSE_ERROR, SqlError
from sqlrewrite.names import TableName
from sqlrewrite.queue_statements import CreateQueue
from sqlrewrite.server_errors import in_own_words

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

TABLE_EXISTS = 1050

UNREADABLE_DEFINITION: Final = (
    "the server cannot read this; columns and keys are written as in CREATE TABLE, and behind them the options of the"
    " table and of the queue"
)

COLUMNS_MAX = 4_096
"""The most columns that a table can have."""


class Creation:
    """Creates queues and dead-letter tables."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(
        self, session: ClientSession, statement: CreateQueue, given: Mapping[str, str], without: set[str]
    ) -> bytes:
        """CREATE QUEUE with the directives `given`, and without those in `without`; returns the OK
        packet."""
        if "lease" not in given and declares(statement.definitions, DEFAULTS["lease"]):
            without = without | {"lease"}  # The application has a column of that name.
        values = queue_values(given, without)
        refuse_uncounted(values)
        comment = comment_with(statement.table, values, statement.comment or "")
        partitions = await _partitions(session, statement, values) if statement.by_partition else ""
        definitions = statement.definitions_sql(
            values.get("lease"),
            group_columns(values),
            counted=counted_by(values),
            strict="group_order" in values,
            extras=extras_of(values),
        )
        create = partial(_create_table, session, statement, statement.table, definitions, comment, partitions)
        text, if_none = create(), create(if_not_exists=True)
        if await comment_of(session, statement.table) is not None:
            return await self._create(session, statement, if_none if statement.if_not_exists else text)
        await refuse_unfit(session, statement, comment, "This would be no queue")

        async def itself() -> CreateQueue:
            return statement

        await self.own_tables(session, statement.table, comment)
        await self.dead_letter(session, statement.table, values, itself)
        answer = await change_schema(self._engine, session, text, may_fail=True)
        if answer.error is None:
            await self._refuse_broken(statement.table)
            return answer.packets[0].payload
        if (
            answer.error.code == TABLE_EXISTS and statement.if_not_exists
        ):  # Another session was quicker. Its table is left alone.
            return await self._create(session, statement, if_none)
        raise _refusal(statement, text, answer)

    async def dead_letter(
        self,
        session: ClientSession,
        table: TableName,
        values: Mapping[str, str],
        definition: Callable[[], Awaitable[CreateQueue]],
    ) -> None:
        """Make the dead-letter table of `table` accept its dead messages, if its directives
        (`values`) name one: change its comment, or create it from the definition of `table`."""
        dead = dead_letter_of(values, table)
        if dead is None:
            return
        if dead == table:
            problem = f"DEAD_LETTER = {values['dead_letter']} is the queue itself: name another table"
            raise ServerError(1105, "HY000", problem)
        comment = await comment_of(session, dead)
        if comment is None:
            statement = await definition()
            own = {key: value for key, value in values.items() if DIRECTIVES[key].of_dead_letters}
            made_for = comment_with(dead, _consenting(own, dead, table))
            counted = counted_by(own)
            definitions = statement.dead_letter_sql(values.get("lease"), counted=counted, extras=extras_of(values))
            text = _create_table(session, statement, dead, definitions, made_for)
            answer = await change_schema(self._engine, session, text, may_fail=True)
            if answer.error is None:
                return
            if answer.error.code != TABLE_EXISTS:
                raise _refusal(statement, text, answer)
            # It was created meanwhile, or this client may not see it. Then the server refuses what
            # follows.
        elif not is_marked(comment):
            raise no_queue(dead, "so it cannot be a DEAD_LETTER")
        await self._let_in(session, dead, table)

    async def own_tables(self, session: ClientSession, table: TableName, comment: str) -> None:
        """Create those tables of ackstream's own in the database of a queue with this comment that its limits
        need, unless they are there. Raises Refused or ServerError if the engine cannot keep the limits then. A
        client that may not create a table, nor see it, gets the queue if the table is there."""
        policy = parse_comment(comment)
        if not isinstance(policy, Policy) or not policy.locked_claims:
            return
        made = [await self._own_table(session, table, own) for own in OWN_TABLES.values() if own.limit(policy)]
        if (problem := await self._engine.limits_problem(table_id(table), policy)) is not None:
            for answer in made:
                _not_refused(answer)
            raise ServerError(1105, "HY000", f"The limits of {table_id(table)} cannot be kept: {problem}")

    async def own_table(self, session: ClientSession, table: TableName, own: OwnTable) -> None:
        """Create one of these tables, unless it is there. Raises Refused."""
        _not_refused(await self._own_table(session, table, own))

    async def _own_table(self, session: ClientSession, table: TableName, own: OwnTable) -> ServerAnswer | None:
        """The answer to its CREATE TABLE; None if the client sees it."""
        place = TableName(own.name, table.db)
        if await comment_of(session, place) is not None:
            return None
        made = sql(own.create, table=place.quoted(), comment=string_literal(session, own.comment()))
        return await change_schema(self._engine, session, made, may_fail=True)

    async def lease_column(
        self,
        session: ClientSession,
        table: TableName,
        definitions: Sequence[Definition],
        name: str,
        *,
        counted: Sequence[str] | None,
    ) -> None:
        """Add the lease column to an existing queue of these definitions, unless it has a column of this
        name; and the index, if messages in flight are counted (by the columns `counted`). Both servers do
        that without a copy of the table."""
        parts = [] if declares(definitions, name) else [f"COLUMN {lease_definition(name)}"]
        if counted is not None and not has_lease_key(definitions, name, counted):
            parts.append(lease_key(name, counted))
        if parts:
            changes = ", ".join(f"ADD {part}" for part in parts)
            await self._change_schema(session, sql("add_to_table", table=table.quoted(), changes=changes))

    async def extra_columns(self, session: ClientSession, table: TableName, extras: Extras, dead: str | None) -> None:
        """Add the columns that the table of a queue lacks, and first to its dead-letter table, where
        messages are moved with all their columns. Both servers do that without a copy of the
        table."""
        await marked_comment(session, table)
        tables = [table]
        letters = dead_letter_of({"dead_letter": dead} if dead else {}, table)
        if letters is not None and await comment_of(session, letters) is not None:
            tables.insert(0, letters)
        for changed in tables:
            types = await _column_types(session, changed)
            lacking = [text for name, text in extras.definitions().items() if name.casefold() not in types]
            if lacking:
                changes = ", ".join(f"ADD COLUMN {text}" for text in lacking)
                await self._change_schema(session, sql("add_to_table", table=changed.quoted(), changes=changes))

    async def delay_by(self, session: ClientSession, table: TableName, column: str | None) -> None:
        """Let the default of time_next depend on a column, or on none."""
        await marked_comment(session, table)
        types = await _column_types(session, table)
        data_type = types.get((column or "").casefold(), "")
        if column is not None and (problem := delay_problem(column, data_type)):
            raise ServerError(1105, "HY000", f"DELAY_BY is not possible: {problem}")
        default = time_next_default(column, data_type.upper())
        await self._change_schema(session, sql("default_time_next", table=table.quoted(), default=default))

    async def group_index(self, session: ClientSession, statement: CreateQueue, values: Mapping[str, str]) -> None:
        """Add the index of the message groups to an existing queue (`statement`: its definition), unless
        it has one. Raises ServerError if its columns cannot be those of a group. `values`: its
        directives."""
        option = "GROUP_BY" if "group_by" in values else "SEMAPHORES"
        await refuse_unfit(session, statement, make_comment(values), f"{option} is not possible")
        group_by = group_columns(values)
        if not has_group_key(statement.definitions, group_by):
            text = sql("add_key", table=statement.table.quoted(), key=group_key(group_by))
            await self._change_schema(session, text)

    async def batch_keys(
        self, session: ClientSession, statement: CreateQueue, extras: Extras, comment: str | None = None
    ) -> None:
        """Add the indexes of columns with batches to an existing queue (`statement`: its definition),
        unless it has them. With its new `comment`, raises ServerError if its columns cannot have batches."""
        if comment is not None:
            await refuse_unfit(session, statement, comment, "BATCHES are not possible")
        for key in extras.missing_keys(statement.definitions):
            await self._change_schema(session, sql("add_key", table=statement.table.quoted(), key=key))

    async def order_index(
        self, session: ClientSession, table: TableName, definitions: Sequence[Definition], values: Mapping[str, str]
    ) -> None:
        """Add the index of strict order to an existing queue of these definitions, unless it has one."""
        group_by = group_columns(values)
        if not has_order_key(definitions, group_by):
            await self._change_schema(session, sql("add_key", table=table.quoted(), key=order_key(group_by)))

    async def _let_in(self, session: ClientSession, dead: TableName, source: TableName) -> None:
        """Add `source` to the comment of `dead`, which then accepts its dead messages, with the
        client's rights."""
        if _takes(await marked_comment(session, dead), dead, source):
            return

        def change(values: dict[str, str], rest: str) -> tuple[dict[str, str], str]:
            if _takes(make_comment(values, rest), dead, source):  # Another session has done it meanwhile.
                return values, rest
            return _consenting(values, dead, source), rest

        await change_comment(self._engine, session, dead, change)

    async def _refuse_broken(self, table: TableName) -> None:
        """Raise ServerError if the new table is no queue, because of declarations that only the
        server understands."""
        found = await self._engine.inspect(table_id(table), fresh=True)
        if isinstance(found, BrokenTable) and not found.denied:
            hint = f"the table was made: ALTER TABLE {table.quoted()} can mend it, or DROP TABLE removes it"
            raise ServerError(1105, "HY000", f"This is no queue: {'; '.join(found.problems)}; {hint}")

    async def _create(self, session: ClientSession, statement: CreateQueue, text: str) -> bytes:
        answer = await change_schema(self._engine, session, text, may_fail=True)
        if answer.error is not None:
            raise _refusal(statement, text, answer)
        return answer.packets[0].payload

    async def _change_schema(self, session: ClientSession, text: str) -> bytes:
        return (await change_schema(self._engine, session, text)).packets[0].payload


def _not_refused(answer: ServerAnswer | None) -> None:
    if answer is not None:
        not_refused(answer)


def _refusal(statement: CreateQueue, sent: str, answer: ServerAnswer) -> SqlError | Refused:
    """The server's error about the CREATE TABLE, or a syntax error about the CREATE QUEUE in its
    place."""
    if answer.error is None or answer.error.code != PARSE_ERROR:
        return Refused(answer.packets[-1].payload)
    own = statement.tokens.decode(0, len(statement.tokens.sql))
    return in_own_words(answer.error.message, sent, own, "CREATE QUEUE", UNREADABLE_DEFINITION)


def dead_letter_of(values: Mapping[str, str], table: TableName) -> TableName | None:
    """The dead-letter table of a table, if it has one. A name without a database is in that of the
    table."""
    if (named := dead_letter_name(values)) is None:
        return None
    db, name = named
    return TableName(name, db or table.db)


async def _column_types(session: ClientSession, table: TableName) -> dict[str, str]:
    """The types of the columns of a table, by casefolded names."""
    assert table.db is not None
    text = sql("table_columns", db=text_literal(table.db), name=text_literal(table.name), limit=COLUMNS_MAX)
    return {from_hex(name).casefold(): from_hex(data_type) for name, _, data_type in await rows(session, text)}


def _takes(comment: str, dead: TableName, source: TableName) -> bool:
    """Whether a comment lets dead messages of `source` into the table `dead`. Raises ServerError if
    it is not that of a queue."""
    match parse_comment(comment):
        case Policy() as policy:
            named = (TableId(db or table_id(dead).db, name) for db, name in policy.dead_letter_of)
            return table_id(source) in named
        case problems:
            raise no_queue(dead, f"so it cannot be a DEAD_LETTER: {'; '.join(problems or ())}")


def _consenting(values: Mapping[str, str], dead: TableName, source: TableName) -> dict[str, str]:
    """The directives of `dead`, with consent to take the dead messages of `source`."""
    consenting = with_source(values, table_id(dead), table_id(source))
    if consenting is None:
        names = f"The COMMENT of {table_id(dead)} has to name {table_id(source)}"
        raise ServerError(1105, "HY000", f"{names}, and cannot for the comma in that name")
    return consenting


def group_columns(values: Mapping[str, str]) -> Sequence[str]:
    """The group columns that directives name, and behind them the column of semaphores."""
    named = [values[key] for key in ("group_by", "semaphores") if key in values]
    return [name.strip() for names in named for name in names.split("|")]


def refuse_uncounted(values: Mapping[str, str]) -> None:
    """Raise ServerError if messages in flight are counted, and there is no lease column."""
    counting = (limit for limit in LIMIT_DIRECTIVES if limit.counted_by is not None and limit.key in values)
    if "lease" not in values and (limit := next(counting, None)) is not None:
        needed = "needs a lease column, which shows what is in flight: for instance LEASE = held_until"
        raise ServerError(1105, "HY000", f"{limit.option} {needed}")


def counted_by(values: Mapping[str, str]) -> Sequence[str] | None:
    """The columns by which the messages in flight of a queue with these directives are counted; None: they
    are not."""
    return max(counted_columns(values), key=len, default=None)


async def refuse_unfit(session: ClientSession, statement: CreateQueue, comment: str, refusal: str) -> None:
    """Raise ServerError, which begins with `refusal`, if the declared table could not be a queue."""
    engine = statement.engine
    if engine is None:
        ((engine,),) = await rows(session, sql("storage_engine"))
    if problems := problems_of(statement, comment, engine or ""):
        raise ServerError(1105, "HY000", f"{refusal}: {'; '.join(problems)}")


def _create_table(
    session: ClientSession,
    statement: CreateQueue,
    table: TableName,
    definitions: bytes,
    comment: str,
    partitions: str = "",
    *,
    if_not_exists: bool = False,
) -> str:
    codec = statement.tokens.codec
    return sql(
        "create_table",
        if_not_exists="IF NOT EXISTS " if if_not_exists else "",
        table=table.quoted(),
        definitions=definitions.decode(codec),
        comment=string_literal(session, comment),
        options=statement.table_options.decode(codec),
        partitions=partitions,
    )


async def _partitions(session: ClientSession, statement: CreateQueue, values: Mapping[str, str]) -> str:
    """The clause for RETENTION BY PARTITION."""
    if key := not_by_time(statement.definitions):
        text = statement.tokens.decode(key.start, key.end).strip()
        raise ServerError(
            1503,
            "HY000",
            f"RETENTION BY PARTITION cannot have {text!r}: where a table is partitioned, each unique key holds"
            f" time_acked, which is NULL while a message lives. Leave it out; {TIME_KEY} is added",
        )
    policy = parse_comment(make_comment(values))
    assert isinstance(policy, Policy)
    age_ns = policy.purge_after_ns
    if age_ns < WIDTH_MIN_NS:
        least = WIDTH_MIN_NS // NS_PER_S
        problem = f"a partition is {least} s wide at least: take that or more, or leave out RETENTION"
        raise ServerError(
            1105, "HY000", f"RETENTION BY PARTITION with PURGE_AFTER = {values['vt_purge_after']}: {problem}"
        )
    return first_partition_clause(await server_time_ns(session), age_ns)
