"""Reads the data once before anything is written: whether every value fits, and the checksums of
the data.

Aggregates do this on the executors. For each *piece* of the data (`cut`) the driver gets the number
of rows, their checksum, and how many break each of the rules (`rules`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pyspark.sql import Column as Expression
from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ..common.table import Column, Table
from ..endpoint import Endpoint, quoted
from .cut import PIECE, Cut, Piece
from .fingerprint import Sums
from .mapping import Mapped
from .rules import Rule, rules, shown

_CHECKED: Final = "ackstream_checked"

EXAMPLES: Final = 5
"""Duplicate keys in an error's text."""

CANDIDATES: Final = 1000
"""Keys that may be duplicates and are compared by the server, at most."""
COMPARED_AT_ONCE: Final = 100
"""Keys in one statement."""

SAMPLED_OF: Final = 100
"""Of a sample, one of so many rows of each task is checked."""

Check = Literal["all", "sample", "off"]
"""Which rows are compared with the rules. Keys are compared with `all` alone."""

Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """The data as a whole."""

    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def octets(self) -> int:
        """Their approximate size on the wire."""
        return sum(piece.octets for piece in self.pieces)

    def fingerprint(self, names: Sequence[str], sums: Sums) -> str:
        """A text that is equal for equal rows with equal column names, cut in the same way."""
        return sums.fingerprint(names, [(piece.rows, piece.checksum) for piece in self.pieces])


def read(cut: Cut, mapped: Mapped, table: Table, check: Check) -> tuple[Facts, list[str]]:
    """Read the data once. Returns the facts, and texts for what does not fit, with examples."""
    stated = [] if check == "off" else rules(mapped, table)
    aggregates = [f.count(f.lit(1)).alias("rows"), _octets(mapped).alias("octets"), *cut.sums.aggregates()]
    frame, checked = cut.frame, f.lit(True)
    if check == "sample":
        frame, checked = frame.withColumn(_CHECKED, f.monotonically_increasing_id() % SAMPLED_OF == 0), f.col(_CHECKED)
    # Their buffers have a fixed length, so Spark aggregates by hash and does not sort.
    counts = [f.count_if(checked).alias(_CHECKED), *_counts(stated, checked)]
    found = frame.groupBy(PIECE).agg(*aggregates, *counts).collect()
    return Facts(_pieces(found, cut)), _broken(stated, found, sum(row[_CHECKED] for row in found), mapped)


def examine(mapped: Mapped, table: Table) -> list[str]:
    """Texts for what does not fit, for data that will not be written."""
    stated = rules(mapped, table)
    found = mapped.frame.agg(f.count(f.lit(1)).alias("rows"), *_counts(stated, f.lit(True))).collect()
    return _broken(stated, found, found[0]["rows"], mapped)


def _counts(stated: Sequence[Rule], checked: Expression) -> list[Expression]:
    return [f.count_if(checked & rule.broken).alias(f"broken{number}") for number, rule in enumerate(stated)]


def _broken(stated: Sequence[Rule], found: Sequence[Row], total: int, mapped: Mapped) -> list[str]:
    counts = [sum(row[f"broken{number}"] for row in found) for number in range(len(stated))]
    broken = [(rule, count) for rule, count in zip(stated, counts, strict=True) if count]
    examples = _examples([rule for rule, _ in broken], mapped)
    return [
        f"{rule.name}: {count:,} of {total:,} rows {rule.says}{f', such as {some}' if some else ''}"
        for (rule, count), some in zip(broken, examples, strict=True)
    ]


def _examples(broken: Sequence[Rule], mapped: Mapped) -> list[str]:
    """The least and the greatest value that break each rule, with their ids. Reads the data
    again."""
    aggregates = []
    for number, rule in enumerate(broken):
        names = [rule.name] * rule.shown + ["id"] * (mapped.has("id") and not (rule.shown and rule.name == "id"))
        if names:
            example = f.when(rule.broken, f.struct(*[_col(name).alias(f"at{at}") for at, name in enumerate(names)]))
            aggregates += [of(example).alias(f"{of.__name__}{number}") for of in (f.min, f.max)]
    row = mapped.frame.agg(*aggregates).collect()[0].asDict() if aggregates else {}
    return [
        ", ".join(dict.fromkeys(_example(rule, row[name]) for of in ("min", "max") if (name := f"{of}{number}") in row))
        for number, rule in enumerate(broken)
    ]


def _example(rule: Rule, values: Row) -> str:
    texts = [shown(value) for value in values]
    if not rule.shown:
        return f"id {texts[0]}"
    return texts[0] if len(texts) == 1 else f"{texts[0]} (id {texts[1]})"


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
    nothing = cut.sums.together([])
    return tuple(
        Piece(row["rows"], cut.sums.checksum(row), row["octets"], number)
        if (row := by_number.get(number)) is not None
        else Piece(0, nothing, 0, number)
        for number in cut.numbers(by_number)
    )


# --- duplicates ---


def duplicates(mapped: Mapped, table: Table, endpoint: Endpoint) -> list[str]:
    """Texts for rows of the data that have the same primary or unique key on the server.

    Spark groups texts by a coarser collation than the server's, and the server compares those of a
    group.
    """
    problems: list[str] = []
    for key in table.unique_keys:
        if all(mapped.has(name) for name in key.columns):
            columns = [table.by_name[name.casefold()] for name in key.columns]
            problems += _twice(mapped, columns, endpoint)
    return problems


def _twice(mapped: Mapped, columns: Sequence[Column], endpoint: Endpoint) -> Iterator[str]:
    names = [_col(column.name) for column in columns]
    texts = [at for at, column in enumerate(columns) if _is_text(column)]
    whole = mapped.frame.select(*names).dropna()  # NULLs are never duplicates
    keys = [_coarser(column).alias(f"key{at}") for at, column in enumerate(columns)]
    # Two texts of each key. Without texts, buffers have a fixed length, so Spark aggregates by hash
    # and does not sort.
    two = [of(names[at]).alias(f"{of.__name__}{at}") for at in texts for of in (f.min, f.max)]
    grouped = whole.groupBy(*keys).agg(f.count(f.lit(1)).alias("n"), *two).where("n > 1").limit(CANDIDATES)
    pairs = [tuple(_values(row, of, columns) for of in ("min", "max")) for row in grouped.collect()]
    same = [one for one, other in pairs if one == other]
    others = [(one, other) for one, other in pairs if one != other]
    equal = endpoint.run(lambda connection: _equal(connection, columns, texts, others)) if others else []
    problems = [_shown(one) for one in same] + [f"{_shown(one)} and {_shown(other)}" for one, other in equal]
    if problems:
        examples = ", ".join(problems[:EXAMPLES]) + (", …" if len(problems) > EXAMPLES else "")
        seen = f" as {', '.join(sorted(_collations(columns)))} sees it" if equal else ""
        yield (
            f"{', '.join(column.name for column in columns)}: must be unique{seen}, and the data has more than once:"
            f" {examples}"
        )


def _values(row: Row, of: str, columns: Sequence[Column]) -> Values:
    """The values of one row of a key."""
    return tuple(row[f"{of}{at}" if _is_text(column) else f"key{at}"] for at, column in enumerate(columns))


def _is_text(column: Column) -> bool:
    return column.collation is not None and column.collation != "binary"


def _collations(columns: Sequence[Column]) -> set[str]:
    return {column.collation for column in columns if column.collation is not None}


def _coarser(column: Column) -> Expression:
    """An expression that is equal for all values that the server takes for equal, and perhaps for
    others."""
    value, collation = _col(column.name), column.collation
    if collation is None or not _is_text(column):
        return value
    if collation.endswith(("_bin", "_cs")):
        return f.rtrim(value)
    return f.collate(value, "UNICODE_CI_RTRIM" if "_as_" in collation else "UNICODE_CI_AI_RTRIM")


def _equal(
    connection: Any, columns: Sequence[Column], texts: Sequence[int], pairs: Sequence[tuple[Values, Values]]
) -> list[tuple[Values, Values]]:
    """The pairs whose texts are equal on the server."""
    value = "CONVERT(%s USING {0.charset}) COLLATE {0.collation}"
    compared = " AND ".join(f"{value} = {value}".format(columns[at]) for at in texts)
    found: list[tuple[Values, Values]] = []
    with connection.cursor() as cursor:
        for start in range(0, len(pairs), COMPARED_AT_ONCE):
            some = pairs[start : start + COMPARED_AT_ONCE]
            statement = " UNION ALL ".join(f"SELECT {at} FROM DUAL WHERE {compared}" for at in range(len(some)))
            cursor.execute(statement, [side[at] for pair in some for at in texts for side in pair])
            found += [some[at] for (at,) in cursor.fetchall()]
    return found


def _shown(values: Sequence[Any]) -> str:
    texts = [shown(value) for value in values]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
