"""The definitions between the parentheses of a CREATE TABLE, as far as a queue must know them.

Only what decides which of a queue's own columns and indexes are missing is read: the names of columns, and the
columns of keys. All else (types, defaults, expressions, partitions) is the server's to judge, and passes as it was
written, in the client's bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlrewrite.tokens import Token, TokenStream

NOW_NS: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"
"""The server's clock in nanoseconds since 1970."""

OWN_COLUMNS: Final = {
    "id": "id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT",
    "priority": "priority INT NOT NULL DEFAULT 0",
    "epoch": "epoch BIGINT NOT NULL DEFAULT 0",
    "time_next": f"time_next BIGINT DEFAULT ({NOW_NS})",
    "time_acked": "time_acked BIGINT DEFAULT NULL",
}
"""The columns that every queue has, as they are added where they are not declared. A message is due from the moment
when it was inserted, so that messages of one priority go in that order, and their age can be told."""

TIME_KEY: Final = "UNIQUE KEY (id, time_acked)"
"""In the place of a primary key, for each unique key of a table that is partitioned by time_acked has to hold it."""

SCAN_COLUMNS: Final = ("time_acked", "priority", "time_next")
SCAN_KEY: Final = "KEY (time_acked, priority, time_next, id)"
"""Without a name, so that it clashes with none: the server gives it one."""


class Kind(enum.Enum):
    """What a definition defines."""

    COLUMN = enum.auto()
    PRIMARY = enum.auto()
    UNIQUE = enum.auto()
    KEY = enum.auto()
    FOREIGN = enum.auto()
    OTHER = enum.auto()


@dataclass(frozen=True, slots=True)
class Definition:
    """One definition. `columns` are those of a key, casefolded, empty strings for prefixes and expressions."""

    kind: Kind
    tokens: tuple[Token, ...]
    start: int
    """Where it begins in the statement, with the comments around it."""
    end: int
    name: str = ""
    """A column's, casefolded."""
    columns: tuple[str, ...] = ()
    primary: bool = False
    """Whether a column is the primary key by its own definition."""
    unique: bool = False
    """The same for being unique."""


_KEY_WORDS: Final = {"KEY": Kind.KEY, "INDEX": Kind.KEY, "PRIMARY": Kind.PRIMARY, "UNIQUE": Kind.UNIQUE,
                     "FOREIGN": Kind.FOREIGN, "FULLTEXT": Kind.OTHER, "SPATIAL": Kind.OTHER, "VECTOR": Kind.OTHER,
                     "CHECK": Kind.OTHER, "LIKE": Kind.OTHER}  # fmt: skip
_AFTER_CONSTRAINT: Final = frozenset({"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"})


def read_definitions(tokens: TokenStream, inner: Sequence[Token], start: int, end: int) -> tuple[Definition, ...]:
    """The definitions in a list: `inner` are the tokens between its parentheses, which stand from `start` to `end`."""
    definitions: list[Definition] = []
    for part, comma in tokens.split(inner):
        definitions.append(_definition(tokens, tuple(part), start, end if comma is None else comma.start))
        start = end if comma is None else comma.end
    return tuple(definitions)


def missing(definitions: Sequence[Definition], *, by_time: bool) -> tuple[list[str], list[str]]:
    """The columns and keys that have to be added to make a queue of it, `by_time`: one partitioned by time_acked."""
    columns = {each.name: each for each in definitions if each.kind is Kind.COLUMN}
    added = [text for name, text in OWN_COLUMNS.items() if name not in columns]
    keys: list[str] = []
    has_primary = any(each.kind is Kind.PRIMARY or each.primary for each in definitions)
    if by_time:
        if not has_primary and not any(each.columns[:1] == ("id",) for each in definitions):
            keys.append(TIME_KEY)
    elif not has_primary:
        keys.append("PRIMARY KEY (id)")
    elif not _id_is_unique(definitions):
        keys.append("UNIQUE KEY (id)")
    if not any(each.columns[:3] == SCAN_COLUMNS for each in definitions):
        keys.append(SCAN_KEY)
    return added, keys


def not_by_time(definitions: Sequence[Definition]) -> Definition | None:
    """The first definition of a key that a table partitioned by time_acked cannot have."""
    for each in definitions:
        primary = each.kind is Kind.PRIMARY or each.primary  # Its columns cannot be NULL, and time_acked has to be.
        if primary or each.unique or (each.kind is Kind.UNIQUE and "time_acked" not in each.columns):
            return each
    return None


def nullable_id(tokens: TokenStream, definitions: Sequence[Definition]) -> Definition | None:
    """The column id if it is declared without a word on NULL, so that only a primary key makes it NOT NULL."""
    for each in definitions:
        words = [tokens.word_of(token) for token in each.tokens if token.depth == each.tokens[0].depth]
        if each.name == "id" and "NULL" not in words:
            return each
    return None


def of_dead_letters(tokens: TokenStream, definitions: Sequence[Definition]) -> list[bytes]:
    """The same definitions for the table where dead messages go.

    Constraints lose their names, of which a database can have each but once; foreign keys, and keys that are unique by
    anything but the id, are left out, for a dead message must find its place whatever else is there.
    """
    return [
        _without_constraint_names(tokens, each)
        for each in definitions
        if each.kind is not Kind.FOREIGN and (each.kind is not Kind.UNIQUE or each.columns == ("id",))
    ]


def _without_constraint_names(tokens: TokenStream, definition: Definition) -> bytes:
    """The definition's text without names of constraints, and without UNIQUE in a column of the application's."""
    text = bytearray(tokens.sql[definition.start : definition.end])
    application_column = definition.kind is Kind.COLUMN and definition.name != "id"
    words = [*map(tokens.word_of, definition.tokens), ""]
    for at, each in enumerate(definition.tokens):
        count = 0
        if words[at] == "CONSTRAINT":
            count = 1 if words[at + 1] in _AFTER_CONSTRAINT else 2
        elif words[at] == "UNIQUE" and application_column:
            count = 2 if words[at + 1] == "KEY" else 1
        for gone in definition.tokens[at : at + count] if each.depth == definition.tokens[0].depth else ():
            length = gone.end - gone.start
            text[gone.start - definition.start : gone.end - definition.start] = b" " * length
    return bytes(text)


def _id_is_unique(definitions: Sequence[Definition]) -> bool:
    return any(
        (each.kind in (Kind.PRIMARY, Kind.UNIQUE) and each.columns == ("id",))
        or (each.name == "id" and (each.primary or each.unique))
        for each in definitions
    )


def _definition(tokens: TokenStream, part: tuple[Token, ...], start: int, end: int) -> Definition:
    rest = part
    if tokens.word_of(rest[0]) == "CONSTRAINT" and len(rest) > 1:
        rest = rest[1:] if tokens.word_of(rest[1]) in _AFTER_CONSTRAINT else rest[2:]
    first, second = [*map(tokens.word_of, rest[:2]), "", ""][:2]
    if first == "PERIOD" and second == "FOR":
        return Definition(Kind.OTHER, part, start, end)
    if first in _KEY_WORDS and not (first == "VECTOR" and second not in {"KEY", "INDEX"}):
        return Definition(_KEY_WORDS[first], part, start, end, columns=_key_columns(tokens, rest))
    words = [tokens.word_of(each) for each in part[1:] if each.depth == part[0].depth]
    alone = any(
        word == "KEY" and before not in {"UNIQUE", "PRIMARY"} for before, word in zip(["", *words], words, strict=False)
    )
    return Definition(
        Kind.COLUMN,
        part,
        start,
        end,
        name=tokens.name_of(part[0]).casefold(),
        primary="PRIMARY" in words or alone,
        unique="UNIQUE" in words or words[:1] == ["SERIAL"],
    )


def _key_columns(tokens: TokenStream, part: Sequence[Token]) -> tuple[str, ...]:
    opened = next((at for at, each in enumerate(part) if tokens.text_of(each) == "("), None)
    if opened is None:
        return ()
    return tuple(_key_column(tokens, each) for each, _ in tokens.split(tokens.inside(part, opened)))


def _key_column(tokens: TokenStream, part: Sequence[Token]) -> str:
    whole = len(part) == 1 or (len(part) == 2 and tokens.word_of(part[1]) in {"ASC", "DESC"})
    return tokens.name_of(part[0]).casefold() if whole else ""
