"""Whether a table can be a queue, and how its rows are reached, decided from information_schema.

All problems of a table are reported at once, each with its remedy, so that its owner needs one
ALTER TABLE and not six. Recommendations for a table that works are its advice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from engine.catalog.batches import batch_column, batch_problems, follow_up_column
from engine.catalog.delays import delay_warnings
from engine.catalog.directives import comment_warnings, parse_comment
from engine.catalog.limits import limits_of
from engine.model import TableId
from engine.queue_table import (
    PRIMARY_KEY,
    BrokenTable,
    GroupColumn,
    IdKind,
    IndexedColumn,
    Policy,
    QueueTable,
    ReasonColumn,
)
from engine.quoting import quoted

OWN_COLUMNS = ("priority", "epoch", "time_next", "time_acked")
"""The columns of the queue itself, which `*` leaves out."""

LEASE_COLUMN_TYPE = "BIGINT DEFAULT NULL INVISIBLE"
"""The definition of a lease column. It may be visible, too."""

REASON_COLUMN_TYPE = "TEXT CHARACTER SET utf8mb4 DEFAULT NULL INVISIBLE"
"""The definition of a column for reasons. It may be visible, and of another type of text."""

REASON_AT = "_at"
"""The name of the column with the time of a reason: that of the reason, and this."""

_REASON_CHARS = MappingProxyType(
    {"varchar": 0, "tinytext": 60, "text": 16_000, "mediumtext": 16_000, "longtext": 16_000}
)
"""How many characters of a reason a type keeps, whatever the character set; 0: as many as the column
declares."""

INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})

_KINDS: Mapping[str, IdKind] = MappingProxyType(
    {
        **dict.fromkeys([*INTEGERS, "year", "bit"], IdKind.INTEGER),
        "decimal": IdKind.DECIMAL,
        **dict.fromkeys(["float", "double"], IdKind.FLOAT),
        **dict.fromkeys(["char", "varchar"], IdKind.TEXT),
        **dict.fromkeys(["binary", "varbinary"], IdKind.BINARY),
        "timestamp": IdKind.TIMESTAMP,
    }
)

_NO_GROUP_TYPES = frozenset(
    {"float", "double", "enum", "set", "json", "geometry", "point", "linestring", "polygon", "multipoint"}
    | {"multilinestring", "multipolygon", "geomcollection", "geometrycollection", "vector"}
    | {f"{size}{kind}" for size in ("tiny", "", "medium", "long") for kind in ("blob", "text")}
)
"""Types whose values have no order in an index that equals the order of comparisons with literals, or
cannot be in an index as a whole."""

_SCAN_COLUMNS = ["time_acked", "priority", "time_next"]
_SCAN_INDEX = "(time_acked, priority, time_next)"


@dataclass(frozen=True, slots=True)
class Column:
    """A column as in information_schema."""

    name: str
    data_type: str
    nullable: bool
    length_chars: int
    extra: str
    full_type: str = ""
    """With length, precision, sign and members, as in CREATE TABLE."""
    collation: str = ""
    """Of a text column."""
    default: str = ""
    """Its default value or expression, as the server writes it."""

    @property
    def generated(self) -> bool:
        """Whether its values are computed. A default that is an expression does not count."""
        return "GENERATED" in self.extra.upper().replace("DEFAULT_GENERATED", "")


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """One column of an index; `whole` is False for a prefix or an expression."""

    name: str
    descending: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class Index:
    """An index that a statement can be forced to use."""

    name: str
    unique: bool
    columns: tuple[IndexColumn, ...]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The description of one table, from information_schema."""

    id: TableId
    comment: str
    engine: str
    columns: Sequence[Column]
    indexes: Sequence[Index]
    by_time: bool = False
    """Whether it is partitioned by ranges of time_acked."""
    lower_case_table_names: int = 0
    """The setting of the server."""
    has_checks: bool = False
    """Whether it has CHECK constraints that an UPDATE evaluates."""
    has_triggers: bool = False
    """Whether it has triggers that the engine's account may see."""


@dataclass(frozen=True, slots=True)
class _ScanIndex:
    name: str
    descending: bool
    ties_by_id: bool


def evaluate(facts: TableFacts) -> QueueTable | BrokenTable | None:
    """The table as a queue, or with all of its problems; None if its comment marks no message
    table."""
    policy = parse_comment(facts.comment)
    if policy is None:
        return None
    columns = {column.name.lower(): column for column in facts.columns}
    id_index = _id_index(facts.indexes, by_time=facts.by_time)
    problems = [
        *(policy if isinstance(policy, tuple) else ()),
        *_engine_problems(facts.engine),
        *_column_problems(columns),
        *(_message_column_problems(policy, columns) if isinstance(policy, Policy) else ()),
        *(_lease_problems(policy, columns) if isinstance(policy, Policy) else ()),
        *(_reason_problems(policy, columns) if isinstance(policy, Policy) else ()),
        *(_group_problems(policy, columns) if isinstance(policy, Policy) else ()),
        *(_semaphore_problems(policy, columns) if isinstance(policy, Policy) else ()),
        *(batch_problems(policy, facts) if isinstance(policy, Policy) else ()),
    ]
    if id_index is None and "id" in columns:
        problems.append(
            "id has no index: add UNIQUE KEY (id, time_acked), as a table that is partitioned by time_acked can have"
            if facts.by_time
            else "id is not unique: make it the primary key, or add a UNIQUE index on all of it and nothing else"
        )
    if problems or id_index is None or not isinstance(policy, Policy):
        unread = not isinstance(policy, Policy) or (bool(policy.batch_by) and not batch_column(policy.batch_by, facts))
        return BrokenTable(facts.id, (*problems, *comment_warnings(facts.comment)), unread_parts=unread)
    scan = _scan_index(facts.indexes)
    group_columns = tuple(_group_column(columns[name.lower()]) for name in policy.grouping)
    lease_index = _lease_index(policy, facts.indexes, group_columns[-1:] if policy.semaphores else group_columns)
    group_index = _group_index(group_columns, facts.indexes)
    queue = QueueTable(
        id=facts.id,
        policy=replace(policy, groups_indexed=group_index is not None),
        id_kind=_KINDS.get(columns["id"].data_type, IdKind.OTHER),
        id_index=id_index,
        scan_index=scan.name if scan else None,
        scan_descending=scan.descending if scan else False,
        scan_ties_by_id=scan.ties_by_id if scan else False,
        columns=tuple(column.name for column in facts.columns),
        default_columns=_default_columns(policy, facts.columns),
        reason=_reason(policy, columns),
        lease_column=columns[policy.lease.lower()].name if policy.lease else None,
        lease_index=lease_index,
        group_columns=group_columns,
        group_index=group_index,
        order_index=_order_index(group_columns, facts.indexes),
        batch=batch_column(policy.batch_by, facts),
        after_batch=follow_up_column(policy.after_batch, facts),
        indexed=() if facts.by_time else tuple(_indexed(facts, policy, columns)),
        advice=tuple(_advice(facts, columns)),
        warnings=(
            *_scan_warnings(facts.id, scan),
            *comment_warnings(facts.comment),
            *_delay_warnings(facts.id, policy, columns),
            *_group_warnings(facts, policy, group_columns, group_index),
        ),
        id_pad_chars=columns["id"].length_chars if columns["id"].data_type == "char" else 0,
        id_grows="AUTO_INCREMENT" in columns["id"].extra.upper(),
        kept_by_partition=facts.by_time,
        lower_case_table_names=facts.lower_case_table_names,
        writes_alike=_writes_alike(facts),
    )
    problem = _unkept(queue)
    return queue if problem is None else held_back(queue, problem)


def held_back(queue: QueueTable, problem: str) -> QueueTable:
    """The queue, of which nothing is delivered, because a limit cannot be kept over all proxies. `problem`:
    the reason, with the statement that mends it."""
    warnings = (*queue.warnings, f"nothing is delivered: {problem}")
    return replace(queue, policy=replace(queue.policy, paused=True), warnings=warnings)


def _unkept(queue: QueueTable) -> str | None:
    """What the table lacks so that its limits can be kept; None: nothing."""
    for limit in limits_of(queue.policy):
        if lacking := limit.lacking(queue):
            return f"ALTER QUEUE {queue.id} {limit.again(queue.policy)} adds what is missing ({lacking})"
    return None


def _writes_alike(facts: TableFacts) -> bool:
    """Whether an ACK by id changes the same values in any session: nothing is computed from the
    session's settings, and an id has one row."""
    computed = any(column.generated or "ON UPDATE" in column.extra.upper() for column in facts.columns)
    return not (computed or facts.has_checks or facts.by_time)


def _engine_problems(engine: str) -> Iterable[str]:
    if engine.lower() != "innodb":
        yield (
            f"its storage engine is {engine or 'unknown'}: only InnoDB has the row locks and transactions of a queue "
            "(ALTER TABLE … ENGINE=InnoDB)"
        )


def _column_problems(columns: Mapping[str, Column]) -> Iterable[str]:
    for name, wanted in (
        ("id", "of any type, unique"),
        ("priority", "an integer, for instance INT NOT NULL DEFAULT 0"),
        ("epoch", "BIGINT NOT NULL DEFAULT 0"),
        ("time_next", "BIGINT DEFAULT 0"),
        ("time_acked", "BIGINT DEFAULT NULL"),
    ):
        column = columns.get(name)
        if column is None:
            yield f"column {name} is missing: {wanted}"
        elif name != "id":
            yield from _own_column_problems(column, wanted)
        elif column.nullable:
            yield "column id may be NULL, and a message without id cannot be acknowledged: declare it NOT NULL"


def _own_column_problems(column: Column, wanted: str) -> Iterable[str]:
    name = column.name.lower()
    fitting = INTEGERS if name == "priority" else {"bigint"}
    if column.data_type not in fitting:
        yield f"column {name} is {column.data_type.upper()} and has to be {wanted}"
    if name.startswith("time_") and not column.nullable:
        yield f"column {name} is NOT NULL and has to be able to be NULL: {wanted}"
    if name != "priority" and column.generated:
        yield f"column {name} is generated, and the queue has to write it: {wanted}"


def _message_column_problems(policy: Policy, columns: Mapping[str, Column]) -> Iterable[str]:
    for name in policy.message_columns or ():
        if name.lower() not in columns:
            yield f"vt_message_cols names the column {name!r}, which the table does not have"


def _lease_problems(policy: Policy, columns: Mapping[str, Column]) -> Iterable[str]:
    if policy.lease is None:
        return
    column = columns.get(policy.lease.lower())
    if column is None:
        yield f"lease={policy.lease} names a column that the table does not have: {LEASE_COLUMN_TYPE}"
    elif column.name.lower() in {"id", *OWN_COLUMNS}:
        yield f"lease={policy.lease} names a column with another purpose: add one, {LEASE_COLUMN_TYPE}"
    elif column.data_type != "bigint" or not column.nullable or column.generated:
        yield f"lease={policy.lease} names a column of another type: it has to be {LEASE_COLUMN_TYPE}"


def _reason_problems(policy: Policy, columns: Mapping[str, Column]) -> Iterable[str]:
    if policy.reason is None:
        return
    column = columns.get(policy.reason.lower())
    if column is None:
        yield f"reason={policy.reason} names a column that the table does not have: {REASON_COLUMN_TYPE}"
    elif column.data_type not in _REASON_CHARS or column.generated:
        yield f"reason={policy.reason} names a column of another type: it has to be VARCHAR or TEXT"


def _reason(policy: Policy, columns: Mapping[str, Column]) -> ReasonColumn | None:
    if policy.reason is None:
        return None
    column = columns[policy.reason.lower()]
    at = columns.get(column.name.lower() + REASON_AT)
    fits = at is not None and at.data_type == "datetime" and not at.generated
    chars_max = _REASON_CHARS[column.data_type] or column.length_chars
    return ReasonColumn(column.name, at.name if at is not None and fits else None, chars_max)


def _delay_warnings(table: TableId, policy: Policy, columns: Mapping[str, Column]) -> Iterable[str]:
    column = columns.get((policy.delay_by or "").lower())
    data_type = column.data_type if column is not None else ""
    return delay_warnings(table, policy.delay_by, data_type, columns["time_next"].default)


def _order_index(group: Sequence[GroupColumn], indexes: Sequence[Index]) -> str | None:
    """The index that contains the messages of each group by id; None: there is none."""
    if not group:
        return None
    wanted = ["time_acked", *(column.name.lower() for column in group)]
    fitting = (
        index.name
        for index in indexes
        if _names(index)[: len(wanted)] == wanted
        and all(column.whole and not column.descending for column in index.columns[: len(wanted)])
        and _by_id_behind(index, indexes, len(wanted))
    )
    return min(fitting, default=None)


def _group_problems(policy: Policy, columns: Mapping[str, Column]) -> Iterable[str]:
    for name in policy.group_by:
        column = columns.get(name.lower())
        if column is None:
            yield f"group_by names the column {name!r}, which the table does not have"
        elif column.name.lower() in {"id", *OWN_COLUMNS, (policy.lease or "").lower()}:
            yield f"group_by names the column {name!r}, which has another purpose"
        elif column.data_type in _NO_GROUP_TYPES:
            yield (
                f"group_by names the column {name!r}, which is {column.data_type.upper()}: a group needs an integer, "
                "DECIMAL, CHAR, VARCHAR, BINARY, VARBINARY or a type of time"
            )


def _semaphore_problems(policy: Policy, columns: Mapping[str, Column]) -> Iterable[str]:
    if policy.semaphores is None:
        return
    column = columns.get(policy.semaphores.lower())
    if column is None:
        yield f"semaphores={policy.semaphores} names a column that the table does not have: VARCHAR(255)"
    elif column.name.lower() in {"id", *OWN_COLUMNS, (policy.lease or "").lower()}:
        yield f"semaphores={policy.semaphores} names a column with another purpose: add one, VARCHAR(255)"
    elif column.data_type not in {"char", "varchar"}:
        yield f"semaphores={policy.semaphores} names a column of another type: it has to be CHAR or VARCHAR"


def _group_warnings(
    facts: TableFacts, policy: Policy, group: Sequence[GroupColumn], index: str | None
) -> Iterable[str]:
    if group and index is None:
        columns = ", ".join(["time_acked", "priority", *(quoted(column.name) for column in group), "time_next", "id"])
        effect = (
            "group_by is fair only among the messages that a scan reads ahead"
            if policy.semaphores is None
            else "messages behind many that wait for a semaphore are not found"
        )
        yield (f"{effect}, for want of an index by group: ALTER TABLE {facts.id} ADD INDEX ({columns})")


def _group_column(column: Column) -> GroupColumn:
    return GroupColumn(column.name, _KINDS.get(column.data_type, IdKind.OTHER))


def _group_index(group: Sequence[GroupColumn], indexes: Sequence[Index]) -> str | None:
    """The index that contains the messages of each priority by group, in the order of delivery; None:
    there is none."""
    if not group:
        return None
    wanted = ["time_acked", "priority", *(column.name.lower() for column in group), "time_next"]
    fitting = (
        index.name
        for index in indexes
        if _names(index)[: len(wanted)] == wanted
        and all(column.whole and not column.descending for column in index.columns[: len(wanted)])
        and _by_id_behind(index, indexes, len(wanted))
    )
    return min(fitting, default=None)


def _default_columns(policy: Policy, columns: Sequence[Column]) -> tuple[str, ...]:
    if policy.message_columns is not None:
        spelling = {column.name.lower(): column.name for column in columns}
        return tuple(spelling[name.lower()] for name in policy.message_columns)
    own = {*OWN_COLUMNS, (policy.lease or "").lower()}
    return tuple(
        column.name for column in columns if column.name.lower() not in own and "INVISIBLE" not in column.extra.upper()
    )


def _id_index(indexes: Sequence[Index], *, by_time: bool) -> str | None:
    if by_time:  # Each unique index must contain time_acked then, so any index that begins with id is accepted.
        leading = [index for index in indexes if _names(index)[:1] == ["id"] and index.columns[0].whole]
        return min(((not index.unique, len(index.columns), index.name) for index in leading), default=(None,))[-1]
    fitting = [index.name for index in indexes if index.unique and _names(index) == ["id"] and index.columns[0].whole]
    return PRIMARY_KEY if PRIMARY_KEY in fitting else min(fitting, default=None)


def _scan_index(indexes: Sequence[Index]) -> _ScanIndex | None:
    """The best index for scans: preferably with ties in the order of id, and ascending; None:
    there is none."""
    fitting = [
        _ScanIndex(index.name, index.columns[2].descending, _ties_by_id(index, indexes))
        for index in indexes
        if _names(index)[:3] == _SCAN_COLUMNS and all(column.whole for column in index.columns[:3])
    ]
    return min(fitting, key=lambda index: (not index.ties_by_id, index.descending, index.name), default=None)


def _lease_index(policy: Policy, indexes: Sequence[Index], group: Sequence[GroupColumn]) -> str | None:
    """The index that shows what is in flight, preferably one that shows these columns, too; None: there
    is none."""
    if policy.lease is None:
        return None
    wanted = ["time_acked", policy.lease.lower(), "time_next"]
    columns = [column.name.lower() for column in group]
    fitting = (
        (not set(columns) <= set(_names(index)), index.name)
        for index in indexes
        if _names(index)[: len(wanted)] == wanted
        and all(column.whole and not column.descending for column in index.columns[: len(wanted)])
    )
    return min(fitting, default=(True, None))[1]


def _ties_by_id(index: Index, indexes: Sequence[Index]) -> bool:
    """Whether equal entries are in the order of `id`. InnoDB appends the primary key to each
    index, so its columns follow those of the index."""
    return _by_id_behind(index, indexes, 3)


def _by_id_behind(index: Index, indexes: Sequence[Index], count: int) -> bool:
    """Whether entries that are equal in the first `count` columns are in the order of `id`."""
    primary = next((index.columns for index in indexes if index.name == PRIMARY_KEY), ())
    rest = [*index.columns[count:], *primary]
    return bool(rest) and rest[0].name.lower() == "id" and rest[0].whole and not rest[0].descending


def _scan_warnings(table: TableId, scan: _ScanIndex | None) -> Iterable[str]:
    if scan is None:
        yield f"every scan of it sorts the whole table: ALTER TABLE {table} ADD INDEX {_SCAN_INDEX}"


def _advice(facts: TableFacts, columns: Mapping[str, Column]) -> Iterable[str]:
    if facts.by_time:
        yield "partitioned by time_acked, so the server cannot keep ids unique: whoever inserts has to"
    if columns["priority"].nullable:
        yield "priority may be NULL, which goes before all others: declare it NOT NULL"


def _indexed(facts: TableFacts, policy: Policy, columns: Mapping[str, Column]) -> Iterable[IndexedColumn]:
    """Of each column of the application, the first index that finds its messages in the order of ids."""
    seen = {"id", *OWN_COLUMNS, (policy.lease or "").lower()}
    for index in facts.indexes:
        if not index.columns:
            continue  # A definition that the server cannot read.
        first = index.columns[0]
        column = columns.get(first.name.lower())
        if column is None or not first.whole or column.name.lower() in seen:
            continue
        if column.data_type not in {*_NO_GROUP_TYPES, "timestamp"} and _by_id_behind(index, facts.indexes, 1):
            seen.add(column.name.lower())
            yield IndexedColumn(column.name, _group_column(column).kind, index.name, column.collation)


def _names(index: Index) -> list[str]:
    return [column.name.lower() for column in index.columns]
