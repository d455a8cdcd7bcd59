"""One reading of the data before anything is written: whether every value fits, and what the data is as a whole.

The values are looked at by aggregates, so nothing of the data comes to the driver but, for each of a fixed number of
*buckets*, how many rows it has, a checksum of them, and the extremes of each column. A row's bucket comes from the hash
of its values and of nothing else: the same data has the same buckets however it is partitioned, on any cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql import types as t

from pipeline.mapping import Mapped
from pipeline.table import Column, Table

BUCKETS: Final = 4096
"""As many as a batch has slices at most. All of their aggregates are a few hundred kilobytes on the driver."""

EXAMPLES: Final = 5
"""Of duplicate keys are shown."""

HASH: Final = "ackstream_hash"
FIRST_OF: Final = {"first_id": "id", "first_time": "time_next"}
U64: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows whose hash ends in the same bits."""

    rows: int
    checksum: int
    """The exclusive or of their hashes, as the server computes it, too."""
    octets: int
    first_id: Any = None
    """Of the row with the least hash, if the data has ids."""
    first_time: int | None = None
    """The same row's time_next, if the data has it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The data as a whole."""

    buckets: tuple[Bucket, ...]

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(each.rows for each in self.buckets)

    @property
    def octets(self) -> int:
        """About how large they are on the wire."""
        return sum(each.octets for each in self.buckets)

    def fingerprint(self, names: Sequence[str]) -> str:
        """The same for the same rows, in whatever order and partitioning; of the columns by their names."""
        said = repr((tuple(names), [(each.rows, each.checksum) for each in self.buckets]))
        return hashlib.sha256(said.encode()).hexdigest()[:32]


def hashed(mapped: Mapped) -> DataFrame:
    """The mapped frame with each row's hash."""
    return mapped.frame.withColumn(HASH, f.xxhash64(*map(_col, mapped.names)))


def bucket_of(value: Expression) -> Expression:
    """The bucket of a hash: its highest bits, so that the order of hashes is that of buckets, too."""
    return f.shiftright(value, 64 - BUCKETS.bit_length() + 1).cast("int") + f.lit(BUCKETS // 2)


def checked(mapped: Mapped, table: Table) -> tuple[Facts, list[str]]:
    """Read it all: the facts, and every value that does not fit."""
    frame = hashed(mapped)
    aggregates = [f.count(f.lit(1)).alias("rows"), f.bit_xor(HASH).alias("checksum"), _octets(mapped).alias("octets")]
    # All of them have buffers of fixed length (but for ids that are text), so that Spark hashes and does not sort.
    aggregates += [f.min_by(_col(name), HASH).alias(first) for first, name in FIRST_OF.items() if mapped.has(name)]
    for number, column in enumerate(mapped.columns):
        value = _col(column.name)
        aggregates.append(f.count(f.when(value.isNull(), 1)).alias(f"nulls{number}"))
        aggregates += [
            extreme(measure).alias(f"{name}{number}")
            for measure in _measures(mapped.frame, column)
            for name, extreme in (("least", f.min), ("most", f.max))
        ]
    found = frame.groupBy(bucket_of(f.col(HASH)).alias("bucket")).agg(*aggregates).collect()
    facts = Facts(_buckets(found))
    problems = [
        problem for number, column in enumerate(mapped.columns) for problem in _misfits(found, number, column, facts)
    ]
    return facts, problems + _duplicates(mapped, table)


def _col(name: str) -> Expression:
    return f.col(f"`{name.replace('`', '``')}`")


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


def _buckets(found: Sequence[Row]) -> tuple[Bucket, ...]:
    by_number = {row["bucket"]: row for row in found}
    return tuple(
        Bucket(row["rows"], row["checksum"] & U64, row["octets"], *map(row.asDict().get, FIRST_OF))
        if (row := by_number.get(number)) is not None
        else Bucket(0, 0, 0)
        for number in range(BUCKETS)
    )


# --- what does not fit ---


def _measures(frame: DataFrame, column: Column) -> list[Expression]:
    """What of a value must lie between bounds, if anything."""
    value = _col(column.name)
    kind = frame.schema[column.name].dataType
    if isinstance(kind, t.NumericType) and _bounds(column) is not None:
        return [value]
    if isinstance(kind, t.StringType) and column.characters is not None:
        return [f.char_length(value) if column.data_type in {"char", "varchar"} else f.octet_length(value)]
    if isinstance(kind, t.BinaryType) and column.octets is not None:
        return [f.octet_length(value)]
    return []


def _bounds(column: Column) -> tuple[Any, Any] | None:
    if column.integer_range is not None:
        return column.integer_range
    if column.data_type == "decimal":
        most = 10 ** ((column.precision or 10) - (column.scale or 0))
        return (0 if column.unsigned else 1 - most, most - 1)
    return None


def _misfits(found: Sequence[Row], number: int, column: Column, facts: Facts) -> Iterable[str]:
    nulls = sum(row[f"nulls{number}"] for row in found)
    if nulls and (not column.nullable or column.name.casefold() == "time_next"):
        why = "and without a time no message is delivered" if column.nullable else "and the column is NOT NULL"
        yield f"{column.name}: {nulls:,} of {facts.rows:,} rows have NULL, {why}"
    if not found or f"least{number}" not in found[0]:
        return
    least = min((row[f"least{number}"] for row in found if row[f"least{number}"] is not None), default=None)
    most = max((row[f"most{number}"] for row in found if row[f"most{number}"] is not None), default=None)
    if least is None or most is None:
        return
    bounds = _bounds(column)
    if bounds is not None:
        if int(least) < bounds[0] or int(most) > bounds[1]:
            kind = column.column_type.upper()
            yield f"{column.name}: {kind} takes {bounds[0]:,} to {bounds[1]:,}, the data has {least:,} to {most:,}"
        return
    by_characters = column.data_type in {"char", "varchar"}
    room = column.characters if by_characters else column.octets
    if room is not None and most > room:
        unit = "characters" if by_characters else "bytes"
        yield f"{column.name}: {column.column_type.upper()} takes {room:,} {unit}, the longest value has {most:,}"


def _duplicates(mapped: Mapped, table: Table) -> list[str]:
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


def slices_of(facts: Facts, count: int) -> tuple[Bucket, ...]:
    """Neighbouring buckets put together: `count` of them, a power of two."""
    size = BUCKETS // count
    return tuple(_together(facts.buckets[start : start + size]) for start in range(0, BUCKETS, size))


def _together(buckets: Sequence[Bucket]) -> Bucket:
    checksum = 0
    for each in buckets:
        checksum ^= each.checksum
    first = next((each for each in buckets if each.rows), Bucket(0, 0, 0))
    return Bucket(
        sum(each.rows for each in buckets),
        checksum,
        sum(each.octets for each in buckets),
        first.first_id,
        first.first_time,
    )


def slice_of(value: Expression, count: int) -> Expression:
    """The slice of a hash, where there are `count` of them."""
    return (bucket_of(value) / f.lit(BUCKETS // count)).cast("int")


def starts(counts: Sequence[int], partitions: int) -> list[int]:
    """How many rows stand before each slice in its partition, where slice s is in partition s modulo `partitions`."""
    found: list[int] = []
    totals = [0] * partitions
    for number, count in enumerate(counts):
        found.append(totals[number % partitions])
        totals[number % partitions] += count
    return found
