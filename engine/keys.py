"""Message ids in SQL statements, turned into the engine's keys.

A literal that is not understood has no key. A literal that equals an id only under the column's
collation has a key that no message has. In both cases a lookup finds the acknowledged message.
`certain` tells which literals equal exactly one id; only for these does the number of changed rows
prove which messages were changed. A number compared with ids of text equals many, and a string
compared with numbers is converted to floating point.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, TypeGuard

from engine.model import Key
from engine.queue_table import IdKind

EXACT_DIGITS: Final = 15
"""Integers up to so many digits are exact as a DOUBLE, the type in which the servers compare
strings with numbers."""

_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]{0,39})")
_DECIMAL: Final = re.compile(rb"-?[0-9]{1,65}(?:\.[0-9]{1,38})?")
_PLAIN: Final = re.compile(rb"[ -?A-Z_a-z]*")
"""Text with the same bytes in all character sets that clients use."""


def key_of(kind: IdKind, value: object) -> Key | None:
    """The key of a literal or parameter; None if it is not understood. Numbers are int or Decimal,
    strings bytes."""
    match kind, value:
        case IdKind.INTEGER, int():
            return value
        case IdKind.DECIMAL, int() | Decimal():
            return Decimal(value)
        case IdKind.BINARY, bytes():
            return value
        case IdKind.BINARY, int():
            return b"%d" % value
        case _, bytes():
            return _from_text(kind, value)
        case _, int():
            return str(value)
        case _:
            return None


def keys_of(kind: IdKind, values: Sequence[object]) -> list[Key] | None:
    """The keys of these literals or parameters; None if one is not understood."""
    if kind is IdKind.INTEGER and _are_integers(values):
        return list(values)
    keys = [key_of(kind, value) for value in values]
    return None if None in keys else [key for key in keys if key is not None]


def all_certain(kind: IdKind, values: Sequence[object]) -> bool:
    """Whether `certain` is true of each of them."""
    return (kind is IdKind.INTEGER and _are_integers(values)) or all(certain(kind, value) for value in values)


def certain(kind: IdKind, value: object) -> bool:
    """Whether a literal or parameter that has a key equals only that id, for any session
    settings."""
    match kind, value:
        case IdKind.INTEGER | IdKind.DECIMAL, int():
            return True
        case IdKind.INTEGER, bytes():
            return len(value) <= EXACT_DIGITS
        case IdKind.TEXT | IdKind.BINARY | IdKind.OTHER, bytes():
            return _PLAIN.fullmatch(value) is not None
        case _:
            return False


def _are_integers(values: Sequence[object]) -> TypeGuard[Sequence[int]]:
    """Whether all are int and none is another type that counts as int, as bool does. One call for all, because
    an ACK may name a hundred thousand."""
    return set(map(type, values)) <= {int}


def _from_text(kind: IdKind, text: bytes) -> Key | None:
    if kind is IdKind.INTEGER:
        return int(text) if _INTEGER.fullmatch(text) else None
    if kind is IdKind.DECIMAL:
        return Decimal(text.decode("ascii")) if _DECIMAL.fullmatch(text) else None
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return None
