"""The columns of batches: which columns and indexes of a table can serve, and what a table lacks.

A part's column needs an index that begins with it and time_acked: it shows whether a batch has
unacknowledged parts. A follow-up's column needs one on (time_acked, it, id): it contains the
follow-ups that are not acknowledged, by batch. Without its index a table is no queue, since each
claim of a follow-up would read a whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.queue_table import BatchColumn, IdKind, Policy
from engine.quoting import quoted

if TYPE_CHECKING:
    from engine.catalog.verdict import Column, TableFacts

_KINDS: Mapping[str, IdKind] = MappingProxyType(
    {
        **dict.fromkeys(["tinyint", "smallint", "mediumint", "int", "bigint"], IdKind.INTEGER),
        **dict.fromkeys(["char", "varchar"], IdKind.TEXT),
        **dict.fromkeys(["binary", "varbinary"], IdKind.BINARY),
    }
)
"""The types that a column of batches may have."""

_Order = Callable[[str], Sequence[str]]
"""The first columns of the index of a column."""

_OWN = frozenset({"id", "priority", "epoch", "time_next", "time_acked"})


def batch_column(name: str | None, facts: TableFacts) -> BatchColumn | None:
    """The column `name` as that of the batch of a part; None without a name, or if it cannot be."""
    return _column_with_index(name, facts, lambda column: (column, "time_acked"))


def follow_up_column(name: str | None, facts: TableFacts) -> BatchColumn | None:
    """The column `name` as that of the batch that a follow-up waits for; None as above."""
    return _column_with_index(name, facts, lambda column: ("time_acked", column, "id"))


def batch_problems(policy: Policy, facts: TableFacts) -> Iterable[str]:
    """What a table lacks for its batches."""
    columns = _by_name(facts)
    if policy.batch_by is not None:
        yield from _problems("batch_by", policy.batch_by, policy, columns) or (
            () if batch_column(policy.batch_by, facts) else _without_index(facts, policy.batch_by, "time_acked")
        )
    if policy.after_batch is not None:
        yield from _problems("after_batch", policy.after_batch, policy, columns) or (
            ()
            if follow_up_column(policy.after_batch, facts)
            else _without_index(facts, "time_acked", policy.after_batch, "id")
        )
    both = policy.batch_by is not None and policy.after_batch is not None
    if both and str(policy.batch_by).lower() == str(policy.after_batch).lower():
        yield "batch_by and after_batch name the same column: a message would wait for itself"


def _problems(directive: str, name: str, policy: Policy, columns: Mapping[str, Column]) -> tuple[str, ...]:
    column = columns.get(name.lower())
    if column is None:
        return (f"{directive} names the column {name!r}, which the table does not have",)
    if column.name.lower() in _OWN | {(policy.lease or "").lower()}:
        return (f"{directive} names the column {name!r}, which has another purpose",)
    if column.data_type not in _KINDS:
        kind = column.data_type.upper()
        needed = "a batch needs an integer, CHAR, VARCHAR, BINARY or VARBINARY"
        return (f"{directive} names the column {name!r}, which is {kind}: {needed}",)
    return ()


def _without_index(facts: TableFacts, *columns: str) -> tuple[str, ...]:
    written = ", ".join(name if name in _OWN else quoted(name) for name in columns)
    return (f"batches need an index: ALTER TABLE {facts.id} ADD INDEX ({written})",)


def _column_with_index(name: str | None, facts: TableFacts, order: _Order) -> BatchColumn | None:
    column = _by_name(facts).get((name or "").lower())
    if column is None or column.data_type not in _KINDS:
        return None
    index = _index_on(order(column.name.lower()), facts)
    return None if index is None else BatchColumn(column.name, _KINDS[column.data_type], index, column.collation)


def _index_on(wanted: Sequence[str], facts: TableFacts) -> str | None:
    fitting = (
        index.name
        for index in facts.indexes
        if [column.name.lower() for column in index.columns[: len(wanted)]] == list(wanted)
        and all(column.whole and not column.descending for column in index.columns[: len(wanted)])
    )
    return min(fitting, default=None)


def _by_name(facts: TableFacts) -> Mapping[str, Column]:
    return {column.name.lower(): column for column in facts.columns}
