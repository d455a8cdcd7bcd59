"""One reading of the data before anything is written: whether every value fits, and what the data is as a whole.

The values are looked at by aggregates, so nothing of the data comes to the driver but, for each *piece* of it (`cut`),
how many rows it has, a checksum of them, and the extremes of each column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql import types as t

from pipeline.cut import PIECE, Cut, Piece
from pipeline.endpoint import quoted
from pipeline.fingerprint import Version
from pipeline.mapping import Mapped
from pipeline.table import Column, Table

EXAMPLES: Final = 5
"""Of duplicate keys are shown."""

FIRST_OF: Final = {"first_id": "id", "first_time": "time_next"}

_BY_CHARACTERS: Final = frozenset({"char", "varchar"})


@dataclass(frozen=True, slots=True)
class Facts:
    """The data as a whole."""

    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(each.rows for each in self.pieces)

    @property
    def octets(self) -> int:
        """About how large they are on the wire."""
        return sum(each.octets for each in self.pieces)

    def fingerprint(self, names: Sequence[str], version: Version) -> str:
        """The same for the same rows, cut in the same way; of the columns by their names."""
        return version.fingerprint(names, [(each.rows, each.checksum) for each in self.pieces])


def read(cut: Cut, mapped: Mapped) -> tuple[Facts, list[str]]:
    """Read it all: the facts, and what does not fit."""
    aggregates = [f.count(f.lit(1)).alias("rows"), _octets(mapped).alias("octets"), *cut.version.aggregates()]
    # All of them have buffers of fixed length (but for ids that are text), so that Spark hashes and does not sort.
    aggregates += [cut.first(_col(name)).alias(first) for first, name in FIRST_OF.items() if mapped.has(name)]
    for number, column in enumerate(mapped.columns):
        if _needed(column):
            aggregates.append(f.count(f.when(_col(column.name).isNull(), 1)).alias(f"nulls{number}"))
        aggregates += _extremes(mapped.frame, number, column)
    found = cut.frame.groupBy(PIECE).agg(*aggregates).collect()
    facts = Facts(_pieces(found, cut))
    problems = [
        problem for number, column in enumerate(mapped.columns) for problem in _misfits(found, number, column, facts)
    ]
    return facts, problems


def _col(name: str) -> Expression:
    return f.col(quoted(name))


def _octets(mapped: Mapped) -> Expression:
    sizes = [
        f.coalesce(f.octet_length(_col(field.name)), f.lit(4))
        if isinstance(field.dataType, t.StringType | t.BinaryType)
        else f.lit(8)
        for field in mapped.frame.schema
    ]
    total = sizes[0]
    for size in sizes[1:]:
        total += size
    return f.sum(total.cast("bigint"))


def _pieces(found: Sequence[Row], cut: Cut) -> tuple[Piece, ...]:
    by_number = {row[PIECE]: row for row in found}
    empty = Piece(0, cut.version.together([]), 0)
    return tuple(
        Piece(row["rows"], cut.version.checksum(row), row["octets"], *map(row.asDict().get, FIRST_OF))
        if (row := by_number.get(number)) is not None
        else empty
        for number in range(cut.pieces)
    )


# --- what does not fit ---


def _needed(column: Column) -> bool:
    """Whether NULL does not fit."""
    return not column.nullable or column.name.casefold() == "time_next"


def _extremes(frame: DataFrame, number: int, column: Column) -> list[Expression]:
    """What of the values must lie between bounds, if anything."""
    value = _col(column.name)
    kind = frame.schema[column.name].dataType
    if isinstance(kind, t.NumericType) and _bounds(column) is not None:
        return [f.min(value).alias(f"least{number}"), f.max(value).alias(f"most{number}")]
    room = _room(column)
    if room is None or not isinstance(kind, t.StringType | t.BinaryType):
        return []
    length = f.octet_length(value)
    if column.data_type in _BY_CHARACTERS:
        # Counted only where there are more bytes than characters may be, since each value is looked through for it.
        length = f.when(length > room, f.char_length(value))
    return [f.max(length).alias(f"most{number}")]


def _room(column: Column) -> int | None:
    """How long texts and bytes can be."""
    return column.characters if column.data_type in _BY_CHARACTERS else column.octets


def _bounds(column: Column) -> tuple[Any, Any] | None:
    if column.integer_range is not None:
        return column.integer_range
    if column.data_type == "decimal":
        most = 10 ** ((column.precision or 10) - (column.scale or 0))
        return (0 if column.unsigned else 1 - most, most - 1)
    return None


def _misfits(found: Sequence[Row], number: int, column: Column, facts: Facts) -> Iterable[str]:
    nulls = sum(row[f"nulls{number}"] for row in found) if _needed(column) else 0
    if nulls:
        why = "and without a time no message is delivered" if column.nullable else "and the column is NOT NULL"
        yield f"{column.name}: {nulls:,} of {facts.rows:,} rows have NULL, {why}"
    most = _extreme(found, f"most{number}", max)
    if most is None:
        return
    kind = column.column_type.upper()
    if (bounds := _bounds(column)) is not None:
        least = _extreme(found, f"least{number}", min)
        if int(least) < bounds[0] or int(most) > bounds[1]:
            yield f"{column.name}: {kind} takes {bounds[0]:,} to {bounds[1]:,}, the data has {least:,} to {most:,}"
    elif (room := _room(column)) is not None and most > room:
        unit = "characters" if column.data_type in _BY_CHARACTERS else "bytes"
        yield f"{column.name}: {kind} takes {room:,} {unit}, the longest value has {most:,}"


def _extreme(found: Sequence[Row], name: str, of: Callable[[Iterable[Any]], Any]) -> Any:
    values = [row[name] for row in found if name in row and row[name] is not None]
    return of(values) if values else None


def duplicates(mapped: Mapped, table: Table) -> list[str]:
    """Rows of the data that have the same primary or unique key."""
    problems: list[str] = []
    for key in table.unique_keys:
        if not all(mapped.has(name) for name in key.columns):
            continue
        columns = [_col(name) for name in key.columns]
        whole = mapped.frame.select(*columns).dropna()  # NULL is never a duplicate
        counted = whole.groupBy(*columns).agg(f.count(f.lit(1)).alias("ackstream_count"))
        twice = counted.where("ackstream_count > 1").limit(EXAMPLES + 1).collect()
        if twice:
            shown = ", ".join(_shown(row[: len(columns)]) for row in twice[:EXAMPLES])
            more = ", …" if len(twice) > EXAMPLES else ""
            problems.append(f"{', '.join(key.columns)}: must be unique, and the data has more than once: {shown}{more}")
    return problems


def _shown(values: Sequence[Any]) -> str:
    texts = [bytes(each).hex() if isinstance(each, bytes | bytearray) else str(each) for each in values]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
