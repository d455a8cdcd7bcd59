"""Which column of a message table gets what, and in which form it travels.

A frame is *mapped* when it has exactly the table's columns that are to be written, under the table's names, each in a
form that JDBC carries without changing it. Times are the reason for the last: a driver formats `java.sql.Timestamp` in
the zone of its JVM, or of the session, or of neither, depending on its make and version. So instants travel as text in
UTC, which is the session's zone too, and `time_next` as the number of nanoseconds that it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from pipeline.table import Column, Table

FILLED: Final = ("priority", "epoch", "time_next", "time_acked")
"""What a message need not say."""

REFUSED: Final = {
    "epoch": "counts deliveries and begins at 0",
    "time_acked": "is set when the message is acknowledged",
}

_UNSTABLE: Final = re.compile(r"\b(current_timestamp|current_date|localtimestamp|now|current_time)\(", re.IGNORECASE)


@dataclass(frozen=True)
class Mapped:
    """A frame that fits the table by its types, and the columns it has, in their order."""

    frame: DataFrame
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return tuple(column.name for column in self.columns)

    def has(self, name: str) -> bool:
        """Whether the data says what goes there."""
        return name.casefold() in {each.casefold() for each in self.names}


def mapped(
    frame: DataFrame, table: Table, mapping: Mapping[str, str | Expression] | None, *, spread: bool = False
) -> tuple[Mapped, list[str]]:
    """The mapped frame and everything that is wrong with it.

    Without a mapping, columns go by their names and each must have its place. With one, what it names is written and
    nothing else: a column of the table on the left, an expression of Spark SQL over the frame on the right.
    """
    wanted = dict(mapping) if mapping else {name: f.col(_quoted(name)) for name in frame.columns}
    problems = _unknown(wanted, table)
    if spread and any(name.casefold() == "time_next" for name in wanted):
        problems.append("time_next: is given by the spread already")
    given: dict[str, tuple[Column, Expression]] = {}
    for name, text in wanted.items():
        column = table.by_name.get(name.casefold())
        if column is None or column.generated or name.casefold() in REFUSED:
            continue
        if column.name in given:
            problems.append(f"{column.name}: is given twice")
            continue
        try:
            value = f.expr(text) if isinstance(text, str) else text
            found = frame.select(value.alias(column.name)).schema[0].dataType
        except (AnalysisException, ParseException) as error:
            problems.append(f"{column.name}: {text!r} cannot be computed: {_first_line(error)}")
            continue
        travelling = _travelling(column, found)
        if isinstance(travelling, str):
            problems.append(f"{column.name}: {travelling}")
        else:
            given[column.name] = (column, travelling(value))
    named = {name.casefold() for name in wanted}
    problems += [
        f"{column.name}: needs a value ({column.column_type}, NOT NULL, without a default) and gets none"
        for column in table.columns
        if column.required and column.name.casefold() not in (named | set(FILLED))
    ]
    chosen = [given[column.name] for column in table.columns if column.name in given]
    result = frame.select([value.alias(column.name) for column, value in chosen])
    if not problems and not is_stable(result):
        problems.append(
            "the data is not the same at each reading (rand, uuid, current_timestamp, …), so nothing could tell what"
            " was written: write it to files first. For `time_next`, leave it out (now) or use the spread"
        )
    return Mapped(result, tuple(column for column, _ in chosen)), problems


def is_stable(frame: DataFrame) -> bool:
    """Whether reading the frame twice gives the same rows, as far as its plan says."""
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 (there is no other way to ask)
    return bool(plan.deterministic()) and _UNSTABLE.search(plan.toString()) is None


def _unknown(wanted: Mapping[str, object], table: Table) -> list[str]:
    problems: list[str] = []
    for name in wanted:
        column = table.by_name.get(name.casefold())
        if column is None:
            problems.append(f"{name}: {table.database}.{table.name} has no such column")
        elif column.generated:
            problems.append(f"{name}: is generated by the table itself")
        elif name.casefold() in REFUSED:
            problems.append(f"{name}: is the queue's own, and {REFUSED[name.casefold()]}")
    return problems


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


# --- which Spark type goes into which of MySQL's, and how ---

Travelling = Callable[[Expression], Expression]

_LETTERS: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_TEXT: Final = _LETTERS | {"enum", "set", "json", "time", "uuid", "inet4", "inet6"}
_INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"})
_NESTED: Final = (t.ArrayType, t.MapType, t.StructType, t.VariantType)


def _as_is(value: Expression) -> Expression:
    return value


def _as_text(value: Expression) -> Expression:
    return value.cast("string")


def _as_long(value: Expression) -> Expression:
    return value.cast("bigint")


def _as_utc(value: Expression) -> Expression:
    zoneless = f.convert_timezone(f.current_timezone(), f.lit("UTC"), value.cast("timestamp_ntz"))
    return zoneless.cast("string")


def _as_nanoseconds(value: Expression) -> Expression:
    return f.unix_micros(value) * f.lit(1000)


def _travelling(column: Column, found: t.DataType) -> Travelling | str:
    """What makes it travel, or why it does not fit."""
    fitting = _fitting(column, found)
    if fitting is not None:
        return fitting
    hint = "cast it"
    if isinstance(found, _NESTED):
        hint = "to_json() makes a text of it"
    elif column.name.casefold() == "time_next" and isinstance(found, t.TimestampNTZType):
        hint = "without a zone it is no instant: cast it to TIMESTAMP, or give nanoseconds since 1970"
    elif isinstance(found, t.TimestampNTZType):
        hint = "without a zone it is no instant: cast it to TIMESTAMP"
    elif isinstance(found, t.StringType) and column.spark_type == t.BinaryType():
        hint = "encode(…, 'UTF-8'), unhex() or unbase64() make bytes of it"
    return f"{found.simpleString().upper()} does not go into {column.column_type.upper()}: {hint}"


def _fitting(column: Column, found: t.DataType) -> Travelling | None:
    kind = column.data_type
    if isinstance(found, t.NullType):
        return _as_text
    if kind in _INTEGERS:
        if column.name.casefold() == "time_next" and isinstance(found, t.TimestampType):
            return _as_nanoseconds
        return _integer(found)
    if kind == "decimal":
        return _decimal(column, found)
    if kind in {"float", "double"}:
        return _as_is if isinstance(found, t.NumericType) else None
    if kind in _TEXT:
        return _as_text if isinstance(found, t.StringType) else None
    if kind == "date":
        return _as_text if isinstance(found, t.DateType) else None
    if kind == "datetime" and isinstance(found, t.DateType | t.TimestampNTZType):
        return _as_text
    if kind in {"datetime", "timestamp"}:
        return _as_utc if isinstance(found, t.TimestampType) else None
    return _as_is if isinstance(found, t.BinaryType) else None


def _integer(found: t.DataType) -> Travelling | None:
    if isinstance(found, t.IntegralType | t.BooleanType):
        return _as_long
    return _as_is if isinstance(found, t.DecimalType) and found.scale == 0 else None


def _decimal(column: Column, found: t.DataType) -> Travelling | None:
    if isinstance(found, t.IntegralType) or (isinstance(found, t.DecimalType) and found.scale <= (column.scale or 0)):
        return _as_is
    return None


def required_fillers(table: Table, given: Sequence[str]) -> dict[str, int]:
    """What `priority` and `epoch` are where neither the data nor the table says so."""
    there = {name.casefold() for name in given}
    return {
        column.name: 0
        for column in table.columns
        if column.name.casefold() in {"priority", "epoch"} and column.name.casefold() not in there
        if not column.has_default
    }
