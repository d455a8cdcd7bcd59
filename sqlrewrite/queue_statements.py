"""Statements about queues and semaphores, as `sqlrewrite.queues` parses them.

The values of options are texts, which engine.catalog.directives checks. `CreateQueue` also makes the
text of its CREATE TABLE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlrewrite.condition import Condition
from sqlrewrite.definitions import NO_EXTRAS, Definition, Extras, Kind, missing, nullable_id, of_dead_letters
from sqlrewrite.errors import wrong_argument
from sqlrewrite.names import TableName
from sqlrewrite.tokens import TokenStream

GROUPS_MAX: Final = 1_000
"""The greatest LIMIT of SHOW GROUPS: some milliseconds for each ten."""

BATCHES_MAX: Final = 1_000
"""The greatest LIMIT of SHOW BATCHES: each costs some short reads."""

SEMAPHORE_NAME_MAX: Final = 64
CAPACITY_MAX: Final = 1_000_000
"""The greatest capacity of a semaphore: all its holders may be in memory."""

DELIVERIES_MAX: Final = 10_000
"""The greatest LIMIT of SHOW DELIVERIES: two megabytes."""

Options = tuple[tuple[str, str | None], ...]
"""Names of options in capitals, with their values as text; None for DEFAULT."""


@dataclass(frozen=True, slots=True)
class CreateQueue:
    """CREATE QUEUE [IF NOT EXISTS] t (…) …: the parts of a CREATE TABLE, and the queue's
    options."""

    table: TableName
    if_not_exists: bool
    options: Options
    comment: str | None
    by_partition: bool
    """Whether it has RETENTION BY PARTITION."""
    by_time: bool
    """Whether it has a PARTITION BY of its own that keeps acknowledged rows in partitions by
    time."""
    engine: str | None
    """The storage engine, if it names one."""
    definitions: tuple[Definition, ...]
    body: bytes
    """The text between the parentheses."""
    table_options: bytes
    """The text behind them, without the queue's options."""
    tokens: TokenStream

    def definitions_sql(
        self,
        lease: str | None,
        group_by: Sequence[str] = (),
        *,
        counted: Sequence[str] | None = None,
        strict: bool = False,
        extras: Extras = NO_EXTRAS,
    ) -> bytes:
        """The definitions, with the queue's own columns and keys. `lease`: the name of its lease
        column, if it has one. `group_by`: its group columns. `counted`: by which columns messages in
        flight are counted; None: they are not. `strict`: groups are in strict order."""
        body = self.body if self.definitions else b""
        if self.by_partition and (column := nullable_id(self.tokens, self.definitions)):
            at = column.tokens[-1].end - self.definitions[0].start
            body = body[:at] + b" NOT NULL" + body[at:]
        by_time = self.by_partition or self.by_time
        return self._with_own(body, lease, group_by, by_time=by_time, counted=counted, strict=strict, extras=extras)

    def dead_letter_sql(
        self, lease: str | None, *, counted: Sequence[str] | None = None, extras: Extras = NO_EXTRAS
    ) -> bytes:
        """The definitions of its dead-letter table."""
        body = b",".join(of_dead_letters(self.tokens, self.definitions))
        return self._with_own(body, lease, by_time=self.by_time, counted=counted, extras=extras)

    def _with_own(
        self,
        body: bytes,
        lease: str | None,
        group_by: Sequence[str] = (),
        *,
        by_time: bool,
        counted: Sequence[str] | None,
        strict: bool = False,
        extras: Extras,
    ) -> bytes:
        columns, keys = missing(
            self.definitions,
            by_time=by_time,
            lease=lease,
            group_by=group_by,
            counted=counted,
            strict=strict,
            extras=extras,
            delay_type=self._type_word(extras.delay_by or ""),
        )
        before = "".join(f"{column},\n" for column in columns).encode(self.tokens.codec)
        after = ",\n".join(keys).encode(self.tokens.codec)
        if not body.strip():
            return before + after if after else before.rstrip(b",\n")
        return before + body + (b"\n,\n" + after if after else b"\n")

    def _type_word(self, column: str) -> str:
        """The first word of a column's type, in capitals; empty if it is not declared."""
        for definition in self.definitions:
            if definition.kind is Kind.COLUMN and definition.name == column.casefold():
                return self.tokens.word_of(definition.tokens[1]) if len(definition.tokens) > 1 else ""
        return ""


@dataclass(frozen=True, slots=True)
class AlterQueue:
    """ALTER QUEUE t option = value."""

    table: TableName
    options: Options
    comment: str | None


@dataclass(frozen=True, slots=True)
class DropQueue:
    """DROP QUEUE [IF EXISTS] t."""

    table: TableName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class PauseQueue:
    """PAUSE QUEUE t, RESUME QUEUE t."""

    table: TableName
    paused: bool


@dataclass(frozen=True, slots=True)
class PurgeQueue:
    """PURGE QUEUE t."""

    table: TableName


@dataclass(frozen=True, slots=True)
class RedriveQueue:
    """REDRIVE QUEUE dead [TO t] [WHERE cond]."""

    dead: TableName
    target: TableName | None
    condition: Condition | None
    """Which dead messages; None for all. Its parameters are those of the statement."""

    @property
    def param_count(self) -> int:
        """The count of its parameters."""
        return self.condition.param_count if self.condition else 0

    def bind(self, values: Sequence[object]) -> RedriveQueue:
        """The statement with its parameters replaced by values. Raises SqlError (1210)."""
        if len(values) != self.param_count:
            raise wrong_argument(f"this REDRIVE QUEUE has {self.param_count} parameters, and {len(values)} were given")
        return replace(self, condition=self.condition and self.condition.bind(values))


@dataclass(frozen=True, slots=True)
class ShowQueues:
    """SHOW [FULL] QUEUES [FROM db] [LIKE 'x'] [WITH PROBLEMS]."""

    db: str | None
    like: bytes | None
    """The literal of the pattern, as written."""
    full: bool = False
    """Whether all columns are shown."""
    with_problems: bool = False
    """Whether only queues with a problem are shown."""


@dataclass(frozen=True, slots=True)
class ShowStreams:
    """SHOW STREAMS."""


@dataclass(frozen=True, slots=True)
class ShowBatches:
    """SHOW BATCHES FROM t [LIMIT n]."""

    table: TableName
    limit: int | None


@dataclass(frozen=True, slots=True)
class ShowDeliveries:
    """SHOW DELIVERIES [FROM t] [LIMIT n]."""

    table: TableName | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class ShowGroups:
    """SHOW GROUPS FROM t [LIKE 'x'] [LIMIT n]."""

    table: TableName
    like: bytes | None
    """The literal of the pattern, as written."""
    limit: int | None


@dataclass(frozen=True, slots=True)
class ShowProxies:
    """SHOW PROXIES."""


@dataclass(frozen=True, slots=True)
class ShowCreateQueue:
    """SHOW CREATE QUEUE t."""

    table: TableName


@dataclass(frozen=True, slots=True)
class CreateSemaphore:
    """CREATE SEMAPHORE [IF NOT EXISTS] s CAPACITY n."""

    semaphore: TableName
    """Its name and database."""
    capacity: int
    if_not_exists: bool


@dataclass(frozen=True, slots=True)
class AlterSemaphore:
    """ALTER SEMAPHORE s CAPACITY n."""

    semaphore: TableName
    capacity: int


@dataclass(frozen=True, slots=True)
class DropSemaphore:
    """DROP SEMAPHORE [IF EXISTS] s."""

    semaphore: TableName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class ShowSemaphores:
    """SHOW SEMAPHORES [FROM db] [LIKE 'x']."""

    db: str | None
    like: bytes | None
    """The literal of the pattern, as written."""


QueueStatement = (
    CreateQueue
    | AlterQueue
    | DropQueue
    | PauseQueue
    | PurgeQueue
    | RedriveQueue
    | ShowQueues
    | ShowStreams
    | ShowBatches
    | ShowDeliveries
    | ShowGroups
    | ShowProxies
    | ShowCreateQueue
    | CreateSemaphore
    | AlterSemaphore
    | DropSemaphore
    | ShowSemaphores
)
