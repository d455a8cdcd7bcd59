"""Rows of a table as Arrow batches: read as text over the wire, converted column by column.

The server sends every value as text. PyMySQL would make a Python object of each, which Arrow would
have to convert again. Here they stay text (`columns`), and Arrow's parsers convert a whole column
at once: several times as fast, and exact. Where text would lose something, the SELECT has another
expression: FLOAT is read as DOUBLE, because the server shows six digits of a FLOAT; BIT and VECTOR
are read as their contents.

DATEs and DATETIMEs that are no day (`0000-00-00`, `2026-02-31`) do not exist in Spark. They become
NULL, and `lost` finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, LongType, StructField, StructType

from ..endpoint import quoted
from ..errors import PipelineError
from .columns import Columns, Values
from .table import OWN_COLUMNS, Column, Table

READ_BYTES = 8 << 20
"""Of the rows of one SELECT, which make one Arrow batch. A task has several times as much in
memory."""

FIRST_READ = 100
"""Rows of the first SELECT, which shows their size."""

_DATES: Final = frozenset({"date", "datetime", "timestamp"})
_FORMS: Final = {"float": "{} + 0e0", "bit": "CAST({} AS SIGNED)", "vector": "CAST({} AS BINARY)"}
"""Expressions by type, where the text of the column itself would lose something."""


def schema_of(table: Table, columns: Sequence[str] | None, *, unsigned_as_long: bool = False) -> StructType:
    """The Spark schema of the named columns, or of the application's own with `epoch`. Raises
    PipelineError.

    `unsigned_as_long`: BIGINT UNSIGNED is a LONG, and `record_batch` refuses a value that is none.
    """
    names = columns or [*table.message_columns, next(name for name in OWN_COLUMNS if name == "epoch")]
    _check(table, names)
    columns_read = [table.by_name[name.casefold()] for name in names]
    return StructType([_field(column, unsigned_as_long=unsigned_as_long) for column in columns_read])


def selection(table: Table, schema: StructType) -> str:
    """The columns of a SELECT. Raises PipelineError."""
    _check(table, schema.fieldNames())
    columns = [table.by_name[name.casefold()] for name in schema.fieldNames()]
    return ", ".join(_FORMS.get(column.data_type, "{}").format(quoted(column.name)) for column in columns)


def record_batch(columns: Columns, schema: StructType) -> pa.RecordBatch:
    """Columns of text (bytes where a column is binary) in the form that Spark takes. Raises
    PipelineError for an unsigned integer that is no LONG."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [_array(field.name, values, field.type) for values, field in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def lost(columns: Columns, batch: pa.RecordBatch) -> tuple[int, int] | None:
    """The first value that became NULL: the numbers of its column and its row; None if there is
    none."""
    for column, array in enumerate(batch.columns):
        if pa.types.is_temporal(array.type) and array.null_count:
            for row, value in enumerate(columns[column]):
                if value is not None and not array[row].is_valid:
                    return column, row
    return None


def size_of(columns: Columns) -> int:
    """About how many bytes of memory these columns take."""
    return sum(48 * len(column) + sum(map(len, filter(None, column))) for column in columns)


def _array(name: str, values: Values, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return pa.array(values, kind)
    if kind == pa.int64():
        return _longs(name, values)
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return _texts(values).cast(kind)
    naive = pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind
    try:
        parsed = _texts(values).cast(naive)
    except pa.ArrowInvalid:
        parsed = _texts([value if value and _is_day(value) else None for value in values]).cast(naive)
    return parsed if naive == kind else pc.assume_timezone(parsed, "UTC")


def _texts(values: Values) -> pa.Array:
    return pa.array(values, pa.binary()).cast(pa.string())


def _longs(name: str, values: Values) -> pa.Array:
    try:
        return _texts(values).cast(pa.int64())
    except pa.ArrowInvalid:
        most = max(int(value) for value in values if value is not None)
        raise PipelineError(f"{name} is {most}, which is no BIGINT: leave out unsignedAsLong") from None


def _is_day(text: bytes) -> bool:
    try:
        pa.scalar(text[:10].decode()).cast(pa.date32())
    except pa.ArrowInvalid:
        return False
    return True


def _field(column: Column, *, unsigned_as_long: bool) -> StructField:
    """A column of dates can be NULL in Spark even if it is NOT NULL in the table."""
    is_long = unsigned_as_long and column.data_type == "bigint"
    kind: DataType = LongType() if is_long else column.spark_type
    return StructField(column.name, kind, column.nullable or column.data_type in _DATES)


def _check(table: Table, names: Iterable[str]) -> None:
    if unknown := [name for name in names if name.casefold() not in table.by_name]:
        known = ", ".join(column.name for column in table.columns)
        raise PipelineError(f"{table.quoted} has no column {', '.join(unknown)}; it has {known}")


def next_size(size: int, columns: Columns, most: int) -> int:
    """How many rows to read next: as many as fit into READ_BYTES if they are like these, at most
    four times `size`, and at most `most`."""
    fitting = READ_BYTES * len(columns[0]) // max(1, size_of(columns))
    return max(1, min(fitting, 4 * size, most))
