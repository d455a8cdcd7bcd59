"""By what data is known again: checksums of sets of rows that no difference between two sets leaves equal.

A row's *digest* is the SHA-256 of its values, written one after another so that no two rows are written alike: NULL has
a mark of its own, texts and bytes have their length before them, `-0.0` is not `0.0`. Of a set of rows, what is kept is
their number and, for each of four words of 64 bits made of each digest, the exact sum. Sums do not ask in which order
rows come, and unlike an exclusive or they count a row as often as it is there.

The ledger says with which *version* a batch was begun, and a batch is held against its own version for ever. The first
one had a hash that passes over NULLs, put together by exclusive or.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import xor
from typing import Any, Final, Protocol

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql import types as t

from pipeline.endpoint import quoted

FINGERPRINT_CHARACTERS: Final = 32
"""The width of the ledger's column."""

WORDS: Final = 4
"""Of 64 bits, which make a digest's 256."""

WORDS_STAGED: Final = 2
"""By which staged rows are told from those that were checked: 128 bits are beyond accident, and rows stay short."""

_PREFIX: Final = "v2:"
_LOW: Final = 2**32 - 1
_U64: Final = 2**64 - 1

Checksum = tuple[int, ...]


class Version(Protocol):
    """One way to know data again."""

    def order(self, names: Sequence[str]) -> Expression:
        """A hash of 64 bits, by which rows are cut and sorted."""

    def words(self, frame: DataFrame, names: Sequence[str], place: str | None) -> DataFrame:
        """The frame with what its checksum is made of; `place`: a column that says where a row stands, if that counts.

        The frame has the order already, if the place does not count.
        """

    def aggregates(self) -> list[Expression]:
        """What is asked of a set of rows with words."""

    def checksum(self, row: Row) -> Checksum:
        """Read from the answer."""

    def together(self, checksums: Iterable[Checksum]) -> Checksum:
        """Of several sets of rows, that of all of them; of none, that of no rows."""

    @property
    def staged(self) -> tuple[str, ...]:
        """The words that are staged beside a row, BIGINT each."""

    def asked(self) -> str:
        """What the server is asked of staged rows, in SQL."""

    def agrees(self, checksum: Checksum, answer: Sequence[Any]) -> bool:
        """Whether its answer is that of the rows that were checked."""

    def fingerprint(self, names: Sequence[str], pieces: Sequence[tuple[int, Checksum]]) -> str:
        """Of data as a whole, cut in the same way: rows and checksum of each piece."""


ORDER: Final = "ackstream_hash"


class Sums:
    """The version with which batches are begun."""

    _names: Final = tuple(f"ackstream_word{number}" for number in range(WORDS))

    def order(self, names: Sequence[str]) -> Expression:
        """Spark's hash passes over NULLs, so which they are is hashed, too."""
        columns = _columns(names)
        return f.xxhash64(*[part for column in columns for part in (column, column.isNull())])

    def words(self, frame: DataFrame, names: Sequence[str], place: str | None) -> DataFrame:
        """Of the digest, for Spark has no cheap way to cut it: four hashes of 64 bits that begin differently."""
        all_names = [*names, *([place] if place else [])]
        digest = f.sha2(_written(frame, all_names), 256)
        digested = frame.withColumn("ackstream_digest", digest)
        words = {name: f.xxhash64(f.lit(number), "ackstream_digest") for number, name in enumerate(self._names)}
        return digested.withColumns(words).drop("ackstream_digest")

    def aggregates(self) -> list[Expression]:
        """By halves, whose sums fit a BIGINT for two billion rows of one piece."""
        return [
            f.sum(half).alias(f"{name}_{at}")
            for name in self._names
            for at, half in (("low", f.col(name).bitwiseAND(f.lit(_LOW))), ("high", f.shiftright(name, 32)))
        ]

    def checksum(self, row: Row) -> Checksum:
        """Exact sums of signed words, as the server adds them up."""
        return tuple((row[f"{name}_high"] << 32) + row[f"{name}_low"] for name in self._names)

    def together(self, checksums: Iterable[Checksum]) -> Checksum:
        """Word by word."""
        return tuple(map(sum, zip((0,) * WORDS, *checksums, strict=True)))

    @property
    def staged(self) -> tuple[str, ...]:
        """The first ones."""
        return self._names[:WORDS_STAGED]

    def asked(self) -> str:
        """Exact: the sum of BIGINTs is a DECIMAL."""
        return ", ".join(f"SUM({name})" for name in self.staged)

    def agrees(self, checksum: Checksum, answer: Sequence[Any]) -> bool:
        """Of no rows the server's sum is NULL."""
        return checksum[:WORDS_STAGED] == tuple(int(total or 0) for total in answer)

    def fingerprint(self, names: Sequence[str], pieces: Sequence[tuple[int, Checksum]]) -> str:
        """The version, and as much of a SHA-256 as has room."""
        return (_PREFIX + _sha256((tuple(names), list(pieces))))[:FINGERPRINT_CHARACTERS]


class Xor:
    """The first version, kept for batches that were begun with it."""

    staged = (ORDER,)

    def order(self, names: Sequence[str]) -> Expression:
        """One hash was for both."""
        return f.xxhash64(*_columns(names))

    def words(self, frame: DataFrame, names: Sequence[str], place: str | None) -> DataFrame:
        """By files the place was in the hash."""
        return frame if place is None else frame.withColumn(ORDER, f.xxhash64(*_columns(names), place))

    def aggregates(self) -> list[Expression]:
        """One."""
        return [f.bit_xor(ORDER).alias("checksum")]

    def checksum(self, row: Row) -> Checksum:
        """Unsigned, as the server computes it."""
        return (row["checksum"] & _U64,)

    def together(self, checksums: Iterable[Checksum]) -> Checksum:
        """The same again."""
        return (reduce(xor, (word for (word,) in checksums), 0),)

    def asked(self) -> str:
        """The same on the server."""
        return f"BIT_XOR({ORDER})"

    def agrees(self, checksum: Checksum, answer: Sequence[Any]) -> bool:
        """Of no rows it is 0."""
        return checksum == tuple(answer)

    def fingerprint(self, names: Sequence[str], pieces: Sequence[tuple[int, Checksum]]) -> str:
        """Without a prefix."""
        return _sha256((tuple(names), [(rows, checksum) for rows, (checksum,) in pieces]))[:FINGERPRINT_CHARACTERS]


def version_of(fingerprint: str | None) -> Version:
    """The version of a batch in the ledger; without one, that of new batches."""
    return Sums() if fingerprint is None or fingerprint.startswith(_PREFIX) else Xor()


def _columns(names: Sequence[str]) -> list[Expression]:
    return [f.col(quoted(name)) for name in names]


def _written(frame: DataFrame, names: Sequence[str]) -> Expression:
    """A row as bytes, and no other row as the same."""
    kinds = {field.name: field.dataType for field in frame.schema}
    return f.concat(*[_value(f.col(quoted(name)), kinds[name]) for name in names])


def _value(value: Expression, kind: t.DataType) -> Expression:
    if isinstance(kind, t.StringType | t.BinaryType):
        written = f.concat(_bytes(f.octet_length(value).cast("string")), _bytes(f.lit(":")), _bytes(value))
    elif isinstance(kind, t.FloatType | t.DoubleType):
        # As text it would depend on the version of Java. The hash of eight bytes is another one for each eight bytes,
        # but that it takes zeros for equal.
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
