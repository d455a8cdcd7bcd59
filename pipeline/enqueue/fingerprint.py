"""Fingerprints of data: checksums of sets of rows that differ if the sets differ.

A row's *digest* is the SHA-256 of its values, encoded so that different rows have different bytes:
NULL has its own mark, texts and bytes have their length before them, `-0.0` differs from `0.0`.
Each digest makes four words of 64 bits. The checksum of a set of rows is their number and the exact
sum of each word. Sums do not depend on the order of the rows and, unlike an exclusive or, count a
row as often as it occurs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ..common.ledger import FINGERPRINT_CHARACTERS
from ..endpoint import quoted

WORDS: Final = 4
"""Words of 64 bits of a digest of 256."""

WORDS_STAGED: Final = 2
"""Words that are staged with each row, to compare staged rows with those that were checked. 128
bits exclude accidents, and rows stay short."""

_PREFIX: Final = "v3:"

CHUNK_ROWS: Final = 250_000
"""Rows of a partition of files that make a slice: few enough for a transaction, and with 4,096 slices
a billion."""

_LOW: Final = 2**32 - 1

Checksum = tuple[int, ...]


ORDER: Final = "ackstream_hash"


class Sums:
    """The checksums of a batch's rows. `chunk_rows` is part of the data's fingerprint."""

    def __init__(self, chunk_rows: int = CHUNK_ROWS) -> None:
        self.chunk_rows = chunk_rows

    _names: Final = tuple(f"ackstream_word{number}" for number in range(WORDS))

    def order(self, names: Sequence[str]) -> Expression:
        """A hash of 64 bits, by which rows are cut and sorted. Spark's hash ignores NULLs, so it
        also gets which columns are NULL."""
        columns = _columns(names)
        return f.xxhash64(*[part for column in columns for part in (column, column.isNull())])

    def words(self, frame: DataFrame, names: Sequence[str], place: str | None) -> DataFrame:
        """The frame with the words of its checksum. `place`: a column with the place of a row, if
        that counts; if not, the frame has ORDER already.

        The words are four hashes of the digest with different first values, because Spark has no
        cheap way to cut a digest.
        """
        all_names = [*names, *([place] if place else [])]
        digest = f.sha2(_written(frame, all_names), 256)
        digested = frame.withColumn("ackstream_digest", digest)
        words = {name: f.xxhash64(f.lit(number), "ackstream_digest") for number, name in enumerate(self._names)}
        return digested.withColumns(words).drop("ackstream_digest")

    def aggregates(self) -> list[Expression]:
        """The aggregates over a set of rows with words: sums of half words, which fit a BIGINT for
        two billion rows of one piece."""
        return [
            f.sum(half).alias(f"{name}_{at}")
            for name in self._names
            for at, half in (("low", f.col(name).bitwiseAND(f.lit(_LOW))), ("high", f.shiftright(name, 32)))
        ]

    def checksum(self, row: Row) -> Checksum:
        """The checksum, from a row of these aggregates: exact sums of signed words, as the server
        computes them."""
        return tuple((row[f"{name}_high"] << 32) + row[f"{name}_low"] for name in self._names)

    def together(self, checksums: Iterable[Checksum]) -> Checksum:
        """The checksum of several sets of rows together; of none, that of no rows."""
        return tuple(map(sum, zip((0,) * WORDS, *checksums, strict=True)))

    @property
    def staged(self) -> tuple[str, ...]:
        """The words that are staged with a row, each a BIGINT."""
        return self._names[:WORDS_STAGED]

    def aggregates_sql(self) -> str:
        """The aggregates over staged rows, in SQL. The server's sum of BIGINTs is an exact
        DECIMAL."""
        return ", ".join(f"SUM({name})" for name in self.staged)

    def agrees(self, checksum: Checksum, answer: Sequence[Any]) -> bool:
        """Whether the server's aggregates are those of the rows that were checked. Its sum of no
        rows is NULL."""
        return checksum[:WORDS_STAGED] == tuple(int(total or 0) for total in answer)

    def fingerprint(self, names: Sequence[str], pieces: Sequence[tuple[int, Checksum]]) -> str:
        """The fingerprint of the whole data, from the rows and the checksum of each piece."""
        return (_PREFIX + _sha256((tuple(names), list(pieces))))[:FINGERPRINT_CHARACTERS]


def _columns(names: Sequence[str]) -> list[Expression]:
    return [f.col(quoted(name)) for name in names]


def _written(frame: DataFrame, names: Sequence[str]) -> Expression:
    """A row as bytes that no other row has."""
    kinds = {field.name: field.dataType for field in frame.schema}
    return f.concat(*[_value(f.col(quoted(name)), kinds[name]) for name in names])


def _value(value: Expression, kind: t.DataType) -> Expression:
    if isinstance(kind, t.StringType | t.BinaryType):
        written = f.concat(_bytes(f.octet_length(value).cast("string")), _bytes(f.lit(":")), _bytes(value))
    elif isinstance(kind, t.FloatType | t.DoubleType):
        # As text it would depend on the version of Java. The hash of eight bytes is different for
        # all values, except that both zeros are equal.
        written = _bytes(f.when(value == 0, value.cast("string")).otherwise(f.hex(f.xxhash64(value))))
    elif isinstance(kind, t.IntegralType):
        written = _bytes(f.hex(value.cast("bigint")))
    else:
        written = _bytes(value.cast("string"))
    return f.when(value.isNull(), _bytes(f.lit("N;"))).otherwise(f.concat(written, _bytes(f.lit(";"))))


def _bytes(value: Expression) -> Expression:
    return value.cast("binary")


def _sha256(said: object) -> str:
    return hashlib.sha256(repr(said).encode()).hexdigest()
