"""Filters of Spark as conditions of SQL, for a batch read.

A condition is true for every row for which the filter is. Where it may be true for more, Spark
evaluates the filter again: the server compares texts by a collation (`tea` and `TEA`), and Spark
has NULL for dates that are no day. Filters without such a condition are left to Spark: those of
other types, and those of texts that order or negate.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from pymysql.converters import escape_string
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from ..common.table import TEXTS, Column, Table
from ..endpoint import quoted

_EQUAL: Final = {EqualTo: "=", EqualNullSafe: "<=>"}
_ORDERED: Final = {GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<="}
_DATES: Final = frozenset({"date", "datetime", "timestamp"})


@dataclass(frozen=True)
class Pushed:
    """The condition for a filter, and whether it is true for the same rows."""

    condition: str
    exact: bool


def pushed(given: Filter, table: Table) -> Pushed | None:
    """The condition for a filter; None if it is left to Spark."""
    negated = isinstance(given, Not)
    inner: Any = given.child if isinstance(given, Not) else given
    path: Sequence[str] = getattr(inner, "attribute", ())
    column = table.by_name.get(path[0].casefold()) if len(path) == 1 else None
    found = None if column is None else _condition(inner, column, negated=negated)
    if column is None or found is None:
        return None
    is_number = _is_number(column)
    is_null_test = isinstance(inner, IsNull | IsNotNull) and column.data_type not in _DATES
    return Pushed(f"(NOT {found})" if negated else f"({found})", is_number or is_null_test)


def _condition(given: Any, column: Column, *, negated: bool) -> str | None:
    name = quoted(column.name)
    if isinstance(given, IsNull | IsNotNull):
        finds_null = isinstance(given, IsNull) is not negated
        word = "IS NULL" if isinstance(given, IsNull) else "IS NOT NULL"
        return None if finds_null and column.data_type in _DATES else f"{name} {word}"
    is_text = column.data_type in TEXTS and not column.is_json
    if is_text and negated:
        return None
    if isinstance(given, In):
        values = [_literal(value, column) for value in given.value]
        known = [value for value in values if value is not None]
        return f"{name} IN ({', '.join(known)})" if known and len(known) == len(values) else None
    sign = {**_EQUAL, **({} if is_text else _ORDERED)}.get(type(given))
    value = None if sign is None else _literal(given.value, column)
    return None if value is None else f"{name} {sign} {value}"


def _literal(value: Any, column: Column) -> str | None:
    """A value that the server compares with the column as Spark does; None if there is none."""
    kind = column.data_type
    if _is_number(column) and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    if kind in TEXTS and not column.is_json and isinstance(value, str):
        # The server refuses to compare with a character that the column's character set lacks.
        is_comparable = column.charset == "utf8mb4" or value.isascii()
        return f"'{escape_string(value)}'" if is_comparable else None
    if isinstance(value, dt.datetime):
        if kind == "timestamp" and value.tzinfo is not None:
            return f"TIMESTAMP'{value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(' ', 'microseconds')}'"
        is_local = kind == "datetime" and value.tzinfo is None
        return f"TIMESTAMP'{value.isoformat(' ', 'microseconds')}'" if is_local else None
    if kind == "date" and isinstance(value, dt.date):
        return f"DATE'{value.isoformat()}'"
    return None


def _is_number(column: Column) -> bool:
    """Whether it is an integer or a DECIMAL, in Spark too."""
    is_exact = column.integer_range is not None or column.data_type == "decimal"
    return is_exact and isinstance(column.spark_type, t.NumericType)
