"""The definitions between the parentheses of a CREATE TABLE, as far as a queue depends on them.

The names of columns and the columns of keys are read: they decide which of a queue's own columns
and indexes are missing. Everything else (types, defaults, expressions, partitions) passes to the
server in the client's bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlrewrite.names import quote
from sqlrewrite.tokens import Token, TokenStream

_NOW_US: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
NOW_NS: Final = f"{_NOW_US} * 1000"
"""The server's clock in nanoseconds since 1970."""

OWN_COLUMNS: Final = {
    "id": "id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT",
    "priority": "priority INT NOT NULL DEFAULT 0",
    "epoch": "epoch BIGINT NOT NULL DEFAULT 0",
    "time_next": f"time_next BIGINT DEFAULT ({NOW_NS})",
    "time_acked": "time_acked BIGINT DEFAULT NULL",
}
"""The columns of every queue, as they are added where they are not declared. A message is due when
it is inserted: so messages of one priority are delivered in that order, and time_next shows their
age."""

TIME_KEY: Final = "UNIQUE KEY (id, time_acked)"
"""Replaces the primary key where a table is partitioned by time_acked, which each unique key must
contain then."""

SCAN_COLUMNS: Final = ("time_acked", "priority", "time_next")
SCAN_KEY: Final = "KEY (time_acked, priority, time_next, id)"
"""It has no name, so it clashes with none: the server chooses one."""


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
    """One definition. `columns` are those of a key, casefolded; empty strings are prefixes and
    expressions."""

    kind: Kind
    tokens: tuple[Token, ...]
    start: int
    """Where it begins in the statement, with the comments around it."""
    end: int
    name: str = ""
    """That of a column, casefolded."""
    columns: tuple[str, ...] = ()
    primary: bool = False
    """Whether a column's own definition makes it the primary key."""
    unique: bool = False
    """Whether a column's own definition makes it unique."""


_KEY_WORDS: Final = {"KEY": Kind.KEY, "INDEX": Kind.KEY, "PRIMARY": Kind.PRIMARY, "UNIQUE": Kind.UNIQUE,
                     "FOREIGN": Kind.FOREIGN, "FULLTEXT": Kind.OTHER, "SPATIAL": Kind.OTHER, "VECTOR": Kind.OTHER,
                     "CHECK": Kind.OTHER, "LIKE": Kind.OTHER}  # fmt: skip
_AFTER_CONSTRAINT: Final = frozenset({"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"})


def read_definitions(tokens: TokenStream, inner: Sequence[Token], start: int, end: int) -> tuple[Definition, ...]:
    """The definitions in a list, of which `inner` are the tokens, and whose text is from `start` to
    `end`."""
    definitions: list[Definition] = []
    for part, comma in tokens.split(inner):
        definitions.append(_definition(tokens, tuple(part), start, end if comma is None else comma.start))
        start = end if comma is None else comma.end
    return tuple(definitions)


def lease_definition(name: str) -> str:
    """The definition of a lease column."""
    return f"{quote(name)} BIGINT DEFAULT NULL INVISIBLE"


@dataclass(frozen=True, slots=True)
class Extras:
    """Further columns that options of a queue name; None: it has no such column."""

    reason: str | None = None
    delay_by: str | None = None
    batch_by: str | None = None
    after_batch: str | None = None

    def definitions(self) -> dict[str, str]:
        """The definitions of the columns, by name."""
        found: dict[str, str] = {}
        if self.reason is not None:
            at = f"{self.reason}_at"
            found[self.reason] = f"{quote(self.reason)} TEXT CHARACTER SET utf8mb4 DEFAULT NULL INVISIBLE"
            found[at] = f"{quote(at)} DATETIME(6) DEFAULT NULL INVISIBLE"
        if self.delay_by is not None:
            found[self.delay_by] = f"{quote(self.delay_by)} DECIMAL(20,6) DEFAULT NULL INVISIBLE"
        for name in (self.batch_by, self.after_batch):
            if name is not None:
                found[name] = f"{quote(name)} BIGINT UNSIGNED DEFAULT NULL"
        return found

    def indexes(self) -> dict[tuple[str, ...], str]:
        """The keys of these columns: their columns, and the definition. A key has no name: the server
        chooses one."""
        wanted: list[tuple[str, ...]] = [(self.batch_by, "time_acked")] if self.batch_by is not None else []
        wanted += [("time_acked", self.after_batch, "id")] if self.after_batch is not None else []
        return {tuple(name.casefold() for name in columns): _key(columns) for columns in wanted}

    def missing_keys(self, definitions: Sequence[Definition]) -> list[str]:
        """Those keys that are not defined, and that no longer one contains."""
        defined = [definition.columns for definition in definitions]
        return [
            text
            for columns, text in self.indexes().items()
            if not any(has[: len(columns)] == columns for has in defined)
        ]


def _key(columns: Sequence[str]) -> str:
    return f"KEY ({', '.join(name if name in OWN_COLUMNS else quote(name) for name in columns)})"


NO_EXTRAS: Final = Extras()


END_S: Final = 9_223_372_036
"""The last whole second that a BIGINT of nanoseconds can be, in April 2262: later times are never reached, and
mean that one."""


def time_next_default(delay_by: str | None, type_word: str = "") -> str:
    """The default of time_next, an expression in parentheses: now, or when the column `delay_by` says.

    A DATETIME or TIMESTAMP is the time itself, in the time zone of the session that inserts. The server converts
    times up to 2038 (MariaDB before 11.5) or 3000. Later ones have the difference from UTC that the session has now.
    Any other type is a number of seconds from now. NULL is now.
    """
    if delay_by is None:
        return f"({NOW_NS})"
    column = quote(delay_by)
    if type_word in {"DATETIME", "TIMESTAMP"}:
        converted = f"CAST(LEAST(UNIX_TIMESTAMP({column}), {END_S}) * 1000000000 AS SIGNED)"
        computed = f"LEAST({_NOW_US} + TIMESTAMPDIFF(MICROSECOND, NOW(6), {column}), {END_S}000000) * 1000"
        return f"(COALESCE(IF(UNIX_TIMESTAMP({column}) > 0, {converted}, {computed}), {NOW_NS}))"
    return f"(CAST(LEAST({NOW_NS} + COALESCE({column}, 0) * 1000000000.0, {END_S}000000000) AS SIGNED))"


def lease_key(lease: str, counted: Sequence[str] = ()) -> str:
    """The key that shows what is in flight, so that messages in flight can be counted: all together, or
    by the columns `counted`."""
    return f"KEY ({', '.join(['time_acked', quote(lease), 'time_next', *map(quote, counted)])})"


def has_lease_key(definitions: Sequence[Definition], lease: str, counted: Sequence[str] = ()) -> bool:
    """Whether a key like `lease_key` is defined."""
    wanted = ("time_acked", lease.casefold(), "time_next", *(name.casefold() for name in counted))
    return any(definition.columns[: len(wanted)] == wanted for definition in definitions)


def declares(definitions: Sequence[Definition], name: str) -> bool:
    """Whether a column of this name is defined."""
    return any(definition.kind is Kind.COLUMN and definition.name == name.casefold() for definition in definitions)


def group_key_columns(group_by: Sequence[str]) -> tuple[str, ...]:
    """The columns of the key that contains messages by group."""
    return ("time_acked", "priority", *group_by, "time_next", "id")


def group_key(group_by: Sequence[str]) -> str:
    """The definition of that key. It has no name: the server chooses one."""
    return _key(group_key_columns(group_by))


def has_group_key(definitions: Sequence[Definition], group_by: Sequence[str]) -> bool:
    """Whether such a key is defined."""
    wanted = tuple(name.casefold() for name in group_key_columns(group_by))
    return any(definition.columns in (wanted, wanted[:-1]) for definition in definitions)


def order_key(group_by: Sequence[str]) -> str:
    """The definition of the key that contains the messages of each group by id."""
    return f"KEY ({', '.join(['time_acked', *map(quote, group_by), 'id'])})"


def has_order_key(definitions: Sequence[Definition], group_by: Sequence[str]) -> bool:
    """Whether such a key is defined."""
    wanted = ("time_acked", *(name.casefold() for name in group_by), "id")
    return any(definition.columns == wanted for definition in definitions)


def missing(
    definitions: Sequence[Definition],
    *,
    by_time: bool,
    lease: str | None = None,
    group_by: Sequence[str] = (),
    counted: Sequence[str] | None = None,
    strict: bool = False,
    extras: Extras = NO_EXTRAS,
    delay_type: str = "",
) -> tuple[list[str], list[str]]:
    """The columns and keys to be added for a queue. `by_time`: the table is partitioned by
    time_acked. `lease`: the name of its lease column, if it has one. `group_by`: its group columns.
    `counted`: by which columns messages in flight are counted; None: they are not. `strict`:
    groups are in strict order. `delay_type`: the type of the column that delays messages, if it is
    declared."""
    own = OWN_COLUMNS | {"time_next": f"time_next BIGINT DEFAULT {time_next_default(extras.delay_by, delay_type)}"}
    added = [text for name, text in own.items() if not declares(definitions, name)]
    if lease is not None and not declares(definitions, lease):
        added.append(lease_definition(lease))
    added += [text for name, text in extras.definitions().items() if not declares(definitions, name)]
    keys: list[str] = []
    has_primary = any(definition.kind is Kind.PRIMARY or definition.primary for definition in definitions)
    if by_time:
        if not has_primary and not any(definition.columns[:1] == ("id",) for definition in definitions):
            keys.append(TIME_KEY)
    elif not has_primary:
        keys.append("PRIMARY KEY (id)")
    elif not _id_is_unique(definitions):
        keys.append("UNIQUE KEY (id)")
    if not any(definition.columns[:3] == SCAN_COLUMNS for definition in definitions):
        keys.append(SCAN_KEY)
    if group_by and not has_group_key(definitions, group_by):
        keys.append(group_key(group_by))
    if lease is not None and counted is not None and not has_lease_key(definitions, lease, counted):
        keys.append(lease_key(lease, counted))
    if strict and not has_order_key(definitions, group_by):
        keys.append(order_key(group_by))
    return added, [*keys, *extras.missing_keys(definitions)]


def not_by_time(definitions: Sequence[Definition]) -> Definition | None:
    """The first definition of a key that a table partitioned by time_acked cannot have."""
    for definition in definitions:
        primary = definition.kind is Kind.PRIMARY or definition.primary  # Its columns cannot be NULL; time_acked can.
        if primary or definition.unique or (definition.kind is Kind.UNIQUE and "time_acked" not in definition.columns):
            return definition
    return None


def nullable_id(tokens: TokenStream, definitions: Sequence[Definition]) -> Definition | None:
    """The column id, if its definition does not mention NULL: then only a primary key makes it NOT
    NULL."""
    for definition in definitions:
        words = [tokens.word_of(token) for token in definition.tokens if token.depth == definition.tokens[0].depth]
        if definition.name == "id" and "NULL" not in words:
            return definition
    return None


def of_dead_letters(tokens: TokenStream, definitions: Sequence[Definition]) -> list[bytes]:
    """The definitions as the dead-letter table has them.

    Constraints lose their names, which are unique in a database. Foreign keys, and unique keys
    other than the id's, are left out: they could refuse a dead message.
    """
    return [
        _without_constraint_names(tokens, definition)
        for definition in definitions
        if definition.kind is not Kind.FOREIGN and (definition.kind is not Kind.UNIQUE or definition.columns == ("id",))
    ]


def _without_constraint_names(tokens: TokenStream, definition: Definition) -> bytes:
    """The definition's text without names of constraints; a column other than id loses UNIQUE
    too."""
    text = bytearray(tokens.sql[definition.start : definition.end])
    application_column = definition.kind is Kind.COLUMN and definition.name != "id"
    words = [*map(tokens.word_of, definition.tokens), ""]
    for at, token in enumerate(definition.tokens):
        count = 0
        if words[at] == "CONSTRAINT":
            count = 1 if words[at + 1] in _AFTER_CONSTRAINT else 2
        elif words[at] == "UNIQUE" and application_column:
            count = 2 if words[at + 1] == "KEY" else 1
        for gone in definition.tokens[at : at + count] if token.depth == definition.tokens[0].depth else ():
            length = gone.end - gone.start
            text[gone.start - definition.start : gone.end - definition.start] = b" " * length
    return bytes(text)


def _id_is_unique(definitions: Sequence[Definition]) -> bool:
    return any(
        (definition.kind in (Kind.PRIMARY, Kind.UNIQUE) and definition.columns == ("id",))
        or (definition.name == "id" and (definition.primary or definition.unique))
        for definition in definitions
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
    words = [tokens.word_of(token) for token in part[1:] if token.depth == part[0].depth]
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
    opened = next((at for at, token in enumerate(part) if tokens.text_of(token) == "("), None)
    if opened is None:
        return ()
    return tuple(_key_column(tokens, listed) for listed, _ in tokens.split(tokens.inside(part, opened)))


def _key_column(tokens: TokenStream, part: Sequence[Token]) -> str:
    whole = len(part) == 1 or (len(part) == 2 and tokens.word_of(part[1]) in {"ASC", "DESC"})
    return tokens.name_of(part[0]).casefold() if whole else ""
