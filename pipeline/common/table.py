"""The structure of a message table, read from information_schema, and its schema for Spark.

The schema has the types that values get when they are read as text and converted. It is exact (an
unsigned BIGINT is a DECIMAL(20), because Spark has no such integer), and TIMESTAMP is in UTC.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pyspark.sql import types as t

from ..endpoint import Endpoint, quoted
from ..errors import PipelineError

_LEASE: Final = re.compile(r"(?:\A|,)\s*lease\s*=\s*(\w+)\s*(?:,|\Z)")
"""The directive that names a lease column."""

OWN_COLUMNS: Final = ("priority", "epoch", "time_next", "time_acked")
"""The queue's own columns, which every message table has besides `id`."""

DECIMAL_DIGITS_MAX: Final = 38
"""Spark's limit. A wider DECIMAL is transferred as text."""

_INTEGERS: Final = {
    "tinyint": (8, t.ByteType(), t.ShortType()),
    "smallint": (16, t.ShortType(), t.IntegerType()),
    "mediumint": (24, t.IntegerType(), t.IntegerType()),
    "int": (32, t.IntegerType(), t.LongType()),
    "bigint": (64, t.LongType(), t.DecimalType(20, 0)),
}
"""Bits, and the types for signed and unsigned values."""

TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
"""Types of texts without further rules."""

_OTHERS: Final[dict[str, t.DataType]] = {
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "date": t.DateType(),
    "datetime": t.TimestampNTZType(),
    "timestamp": t.TimestampType(),
    "year": t.IntegerType(),
    "bit": t.LongType(),
    **dict.fromkeys((*TEXTS, "enum", "set", "json", "uuid", "inet4", "inet6"), t.StringType()),
    "time": t.StringType(),  # up to 838 hours, and negative: no time of day
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), t.BinaryType()),
}
"""All other types (spatial, vectors) are bytes."""

_NAME: Final = r"(`(?>(?:[^`]|``)+)`|[^`.\s]+)"
_QUALIFIED: Final = re.compile(rf"\s*(?:{_NAME}\.)?{_NAME}\s*")
_MARK: Final = re.compile(r"(?<![0-9A-Za-z_$])vitess_message(?![0-9A-Za-z_$])")


@dataclass(frozen=True)
class Column:
    """One column, as information_schema has it."""

    name: str
    data_type: str
    column_type: str
    nullable: bool
    has_default: bool
    generated: bool
    auto_increment: bool
    characters: int | None
    octets: int | None
    precision: int | None
    scale: int | None
    charset: str | None = None
    collation: str | None = None
    time_digits: int | None = None
    """Digits of a fraction of a second."""
    members: tuple[str, ...] = ()
    """The members of an ENUM or SET."""
    is_json: bool = False
    """A text that a CHECK (json_valid) makes JSON, as in MariaDB."""

    @property
    def unsigned(self) -> bool:
        """Whether a number may not be negative."""
        return "unsigned" in self.column_type

    @property
    def required(self) -> bool:
        """Whether an INSERT must give it a value."""
        return not (self.nullable or self.has_default or self.generated or self.auto_increment)

    @property
    def integer_range(self) -> tuple[int, int] | None:
        """The least and the greatest value of an integer column."""
        if self.data_type not in _INTEGERS:
            return None
        bits = _INTEGERS[self.data_type][0]
        return (0, 2**bits - 1) if self.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    @property
    def spark_type(self) -> t.DataType:
        """The Spark type that holds all of its values."""
        if self.data_type in _INTEGERS:
            _, signed, unsigned = _INTEGERS[self.data_type]
            return unsigned if self.unsigned else signed
        if self.data_type == "decimal":
            precision, scale = self.precision or 10, self.scale or 0
            return t.DecimalType(precision, scale) if precision <= DECIMAL_DIGITS_MAX else t.StringType()
        return _OTHERS.get(self.data_type, t.BinaryType())


@dataclass(frozen=True)
class Key:
    """A primary or unique key over whole columns, in their order; one over prefixes or expressions
    is left out."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """A CHECK that is enforced, in the server's words."""

    name: str
    clause: str


@dataclass(frozen=True)
class Table:
    """A table that exists."""

    database: str
    name: str
    comment: str
    columns: tuple[Column, ...]
    unique_keys: tuple[Key, ...]
    checks: tuple[Check, ...] = ()
    made_s: int = 0
    """When it was made or altered the last time, in seconds since 1970. 0: unknown."""

    @property
    def quoted(self) -> str:
        """Its name in SQL."""
        return quoted(self.database, self.name)

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """Columns by their casefolded names, as the server compares them."""
        return {column.name.casefold(): column for column in self.columns}

    @property
    def key_on_id(self) -> Key | None:
        """The key along which rows are read: the primary key, or another unique key, that begins
        with id."""
        keys = [key for key in self.unique_keys if key.columns[0].casefold() == "id"]
        return min(keys, key=lambda key: key.name != "PRIMARY", default=None)

    @property
    def is_queue(self) -> bool:
        """Whether its comment marks it as a message table and it has a queue's columns."""
        return _MARK.search(self.comment) is not None and self.by_name.keys() >= {"id", *OWN_COLUMNS}

    @property
    def lease_column(self) -> str | None:
        """The name of the lease column; None if the queue has none."""
        lease = _LEASE.search(self.comment)
        column = self.by_name.get(lease[1].casefold()) if lease else None
        return None if column is None else column.name

    @property
    def message_columns(self) -> tuple[str, ...]:
        """All columns but the queue's own: the meaning of `*` unless the comment sets another."""
        own = {*OWN_COLUMNS, (self.lease_column or "").casefold()}
        return tuple(column.name for column in self.columns if column.name.casefold() not in own)


def split_name(text: str, default_database: str | None = None) -> tuple[str, str]:
    """Database and table out of `db.t`, `t`, or the same in backquotes. Raises PipelineError."""
    match = _QUALIFIED.fullmatch(text)
    if match is None:
        raise PipelineError(f"{text!r} names no table: write database.table, with backquotes where a name needs them")
    names = [part[1:-1].replace("``", "`") if part[0] == "`" else part for part in match.groups() if part]
    database = names[0] if len(names) == 2 else default_database
    if not database:
        raise PipelineError(f"{text!r} has no database: write database.table, or name the database in the URL")
    return database, names[-1]


def hashed_name(prefix: str, *parts: str) -> str:
    """A table's name made of any number of texts of any length: the prefix and a hash of them."""
    return prefix + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def located(endpoint: Endpoint, table: str) -> tuple[Endpoint, Table]:
    """The endpoint in the table's database, and the table, by its name as the user wrote it. Raises
    PipelineError."""
    database, name = split_name(table, endpoint.database)
    endpoint = endpoint.in_database(database)
    return endpoint, endpoint.first(lambda connection: describe(connection, database, name))


def describe(connection: Any, database: str, name: str) -> Table:
    """Read a table's columns and keys. Raises PipelineError if the account may see no such
    table."""
    with connection.cursor() as cursor:
        cursor.execute(_TABLE, [database, name])
        found = cursor.fetchone()
        if found is None:
            raise PipelineError(
                f"there is no table {quoted(database, name)}, or this account has no privilege on it"
                " (CREATE QUEUE makes a message table)"
            )
        cursor.execute("SELECT VERSION()")
        mariadb = "mariadb" in _text(cursor.fetchone()[0]).lower()
        cursor.execute(_MARIADBS_CHECKS if mariadb else _MYSQLS_CHECKS, [database, name])
        checks = tuple(Check(*map(_text, row)) for row in cursor.fetchall())
        json = {match[1].replace("``", "`") for check in checks if (match := _JSON.fullmatch(check.clause))}
        cursor.execute(_COLUMNS, [database, name])
        columns = tuple(_column(*map(_text, row), json=json) for row in cursor.fetchall())
        cursor.execute(_KEYS, [database, name])
        keys: dict[str, list[str | None]] = {}
        for key, column, whole in cursor.fetchall():
            keys.setdefault(key, []).append(column if whole else None)
    unique = tuple(
        Key(key, tuple(part for part in parts if part is not None)) for key, parts in keys.items() if None not in parts
    )
    return Table(database, name, _text(found[0]) or "", columns, unique, checks, found[1])


_TABLE: Final = """
SELECT table_comment, COALESCE(TIMESTAMPDIFF(SECOND, '1970-01-01', create_time), 0) FROM information_schema.tables
WHERE table_schema = %s AND table_name = %s AND table_type = 'BASE TABLE'
"""

_COLUMNS: Final = """
SELECT column_name, data_type, column_type, is_nullable, column_default, extra, generation_expression,
  character_maximum_length, character_octet_length, numeric_precision, numeric_scale,
  character_set_name, collation_name, datetime_precision
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""

_MYSQLS_CHECKS: Final = """
SELECT c.constraint_name, c.check_clause
FROM information_schema.table_constraints t
JOIN information_schema.check_constraints c USING (constraint_schema, constraint_name)
WHERE t.table_schema = %s AND t.table_name = %s AND t.constraint_type = 'CHECK' AND t.enforced = 'YES'
ORDER BY c.constraint_name
"""

_MARIADBS_CHECKS: Final = """
SELECT constraint_name, check_clause FROM information_schema.check_constraints
WHERE constraint_schema = %s AND table_name = %s ORDER BY constraint_name
"""

_JSON: Final = re.compile(r"json_valid\(`((?:[^`]|``)+)`\)", re.IGNORECASE)
_MEMBER: Final = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED: Final = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "0": "\0", "Z": "\x1a"}

_KEYS: Final = """
SELECT index_name, column_name, sub_part IS NULL AND column_name IS NOT NULL
FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index
"""


def _text(value: Any) -> Any:
    """MySQL's information_schema has some of its texts as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _column(
    name: str,
    data_type: str,
    column_type: str,
    nullable: str,
    default: str | None,
    extra: str,
    expression: str | None,
    characters: int | None,
    octets: int | None,
    precision: int | None,
    scale: int | None,
    charset: str | None,
    collation: str | None,
    time_digits: int | None,
    *,
    json: Collection[str],
) -> Column:
    # A default of NULL is NULL in MySQL and the text 'NULL' in MariaDB. A nullable column needs no
    # value in either.
    return Column(
        name=name,
        data_type=data_type.lower(),
        column_type=column_type.lower(),
        nullable=nullable == "YES",
        has_default=default is not None,
        generated=bool(expression),
        auto_increment="auto_increment" in extra.lower(),
        characters=characters,
        octets=octets,
        precision=precision,
        scale=scale,
        charset=charset,
        collation=collation,
        time_digits=time_digits,
        members=_members(column_type) if data_type.lower() in {"enum", "set"} else (),
        is_json=name in json,
    )


def _members(column_type: str) -> tuple[str, ...]:
    """The members of a type such as ENUM('a','b')."""

    def plain(match: re.Match[str]) -> str:
        return "'" if match[1] is None else _ESCAPES.get(match[1], match[1])

    return tuple(_ESCAPED.sub(plain, match[1]) for match in _MEMBER.finditer(column_type))
