"""CREATE, ALTER, DROP and SHOW SEMAPHORE: rows of one table of the database, with the client's own rights.

Who holds a semaphore and who waits for it is counted in the queues that the client may read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from engine.catalog.own_tables import SEMAPHORES_TABLE
from engine.queue_table import SEMAPHORES, QueueTable
from engine.quoting import text_literal
from engine.service import Engine
from engine.store.connection import DENIED
from proxy.session.internal_queries import (
    NO_DATABASE,
    Context,
    Refused,
    checked_query,
    end_own_transaction,
    rows,
)
from proxy.session.queries import sql
from proxy.statements.creation import Creation
from proxy.statements.depth import ClientCounting
from proxy.statements.results import COUNT, NAME, WORDS, ResultColumn, ResultSet
from proxy.statements.semaphore_counts import capacities, held_by, waiting_in
from proxy.statements.tables import comment_of
from proxy.wire.packets import ServerError, make_ok, parse_err
from sqlrewrite.names import TableName
from sqlrewrite.queue_statements import AlterSemaphore, CreateSemaphore, DropSemaphore, ShowSemaphores

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

SHOWN_MAX = 1_000
"""Rows that are shown."""

NO_SUCH_TABLE = 1146
DUPLICATE = 1062

SEMAPHORE_COLUMNS = (
    ResultColumn("Semaphore", NAME),
    ResultColumn("Queue", WORDS),
    ResultColumn("Capacity", COUNT),
    ResultColumn("Held", COUNT),
    ResultColumn("Waiting", COUNT),
)


class SemaphoreStatements:
    """Carries out the four statements. They raise Refused and ServerError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._creation = Creation(engine)

    async def change(
        self,
        session: ClientSession,
        statement: CreateSemaphore | AlterSemaphore | DropSemaphore,
        *,
        in_transaction: bool,
    ) -> bytes:
        """CREATE, ALTER and DROP SEMAPHORE; returns the OK packet."""
        if in_transaction:
            verb = type(statement).__name__.removesuffix("Semaphore").upper()
            text = (
                f"{verb} SEMAPHORE commits by itself, so it cannot run inside a transaction: COMMIT or ROLLBACK first"
            )
            raise ServerError(1179, "25000", text)
        name, place = statement.semaphore.name, _table_of(statement.semaphore.db)
        words = {"semaphores": place.quoted(), "name": text_literal(name)}
        match statement:
            case CreateSemaphore(capacity=capacity):
                await self._creation.own_table(session, place, SEMAPHORES_TABLE)
                await self._create(session, statement, sql("create_semaphore", capacity=capacity, **words))
            case AlterSemaphore(capacity=capacity):
                await self._refuse_absent(session, statement.semaphore)
                await checked_query(session, sql("alter_semaphore", capacity=capacity, **words))
            case DropSemaphore(if_exists=if_exists):
                exists = await self._exists(session, statement.semaphore)
                if not (exists or if_exists):
                    raise _absent(statement.semaphore)
                if exists:
                    await checked_query(session, sql("drop_semaphore", **words))
        await end_own_transaction(session, was_in_transaction=False)
        self._engine.semaphores_changed(place.db or "")
        return make_ok(status=session.status)

    async def _create(self, session: ClientSession, statement: CreateSemaphore, text: str) -> None:
        try:
            await checked_query(session, text)
        except Refused as refused:
            error = parse_err(refused.payload)
            if error.code != DUPLICATE:
                raise
            if not statement.if_not_exists:
                text = f"The semaphore {_shown(statement.semaphore)} exists: ALTER SEMAPHORE changes its capacity"
                raise ServerError(1105, "HY000", text) from None

    async def _refuse_absent(self, session: ClientSession, semaphore: TableName) -> None:
        if not await self._exists(session, semaphore):
            raise _absent(semaphore)

    async def _exists(self, session: ClientSession, semaphore: TableName) -> bool:
        place = _table_of(semaphore.db)
        if await comment_of(session, place) is None:
            return False
        found = await rows(session, sql("semaphore", semaphores=place.quoted(), name=text_literal(semaphore.name)))
        return bool(found)

    async def show(self, session: ClientSession, context: Context, statement: ShowSemaphores) -> ResultSet:
        """SHOW SEMAPHORES: one row for each semaphore and each queue whose messages need it."""
        db = statement.db or context.db
        if db is None:
            raise NO_DATABASE.again()
        existing, counting = await _existing(session, _table_of(db)), ClientCounting(session)
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for queue in self._queues(db):
            try:
                held, waiting = await held_by(counting, queue), await waiting_in(counting, queue)
            except Refused as refused:
                if parse_err(refused.payload).code not in DENIED:
                    raise
                continue
            for name in held.keys() | waiting.keys():
                found[name, queue.id.name] = held[name], waiting[name]
        used = {name for name, _ in found}
        places = sorted([*found, *((name, "") for name in existing if name not in used)])
        liked = await _liked(session, context, statement.like, {name for name, _ in places})
        shown = [
            [name, queue or None, existing.get(name), *found.get((name, queue), (0, 0))]
            for name, queue in places
            if name in liked
        ]
        return ResultSet(SEMAPHORE_COLUMNS, shown[:SHOWN_MAX])

    def _queues(self, db: str) -> Iterable[QueueTable]:
        """The queues of a database whose messages need semaphores."""
        return [
            queue for queue, _ in self._engine.runners() if queue.id.db == db and queue.policy.semaphores is not None
        ]


async def missing_semaphores(session: ClientSession, queue: QueueTable) -> list[str]:
    """The semaphores that due messages of a queue wait for and that do not exist, in words. Raises
    Refused."""
    if queue.policy.semaphores is None:
        return []
    waiting = await waiting_in(ClientCounting(session), queue)
    try:
        existing = await _existing(session, _table_of(queue.id.db)) if waiting else {}
    except Refused as refused:
        return [parse_err(refused.payload).message]
    return [
        f"{count} messages wait for the semaphore {name}, which does not exist: CREATE SEMAPHORE"
        for name, count in sorted(waiting.items())
        if name not in existing
    ]


async def _existing(session: ClientSession, place: TableName) -> Mapping[str, int]:
    """The semaphores of a table that may be missing, by name. Raises Refused."""
    try:
        return await capacities(ClientCounting(session), place)
    except Refused as refused:
        if parse_err(refused.payload).code != NO_SUCH_TABLE:
            raise
        return {}


async def _liked(session: ClientSession, context: Context, like: bytes | None, names: set[str]) -> set[str]:
    """Those of the names that the pattern matches, as the server compares them."""
    if like is None or not names:
        return names
    pattern = like.decode(context.codec)
    ordered = sorted(names)
    tests = ", ".join(f"CONVERT({text_literal(name)} USING utf8mb4) LIKE {pattern}" for name in ordered)
    ((flags,),) = await rows(session, sql("semaphores_liked", tests=tests))
    return {name for name, flag in zip(ordered, flags or "", strict=True) if flag == "1"}


def _table_of(db: str | None) -> TableName:
    return TableName(SEMAPHORES, db)


def _shown(semaphore: TableName) -> str:
    return f"{semaphore.db}.{semaphore.name}"


def _absent(semaphore: TableName) -> ServerError:
    return ServerError(1105, "HY000", f"There is no semaphore {_shown(semaphore)}: CREATE SEMAPHORE makes one")
