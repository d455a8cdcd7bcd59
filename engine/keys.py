"""Message ids as they are written in SQL, turned into the keys by which the engine knows them.

A literal that cannot be understood, or one that equals the id merely under the column's
collation, gives no key or one that nobody holds, and the acknowledgement is then found by a
lookup. Which literals stand for one id and no other, so that the number of rows that a statement
changed tells which ones they were, is for `certain` to say: a number compared with ids of text
stands for many, and a string compared with numbers goes by way of floating point.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from engine.model import IdKind, Key

EXACT_DIGITS: Final = 15
"""Every integer of so many digits is one and the same as a DOUBLE, which the servers compare
strings and numbers as."""

_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]{0,39})")
_DECIMAL: Final = re.compile(rb"-?[0-9]{1,65}(?:\.[0-9]{1,38})?")
_PLAIN: Final = re.compile(rb"[ -?A-Z_a-z]*")
"""Text whose bytes mean the same in the character sets that clients write in."""


def key_of(kind: IdKind, value: object) -> Key | None:
    """The key that a literal or parameter stands for, or None. Numbers are int or Decimal,
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


def certain(kind: IdKind, value: object) -> bool:
    """Whether a literal or parameter that has a key equals no id but that one, whatever the
    session is set to."""
    match kind, value:
        case IdKind.INTEGER | IdKind.DECIMAL, int():
            return True
        case IdKind.INTEGER, bytes():
            return len(value) <= EXACT_DIGITS
        case IdKind.TEXT | IdKind.BINARY | IdKind.OTHER, bytes():
            return _PLAIN.fullmatch(value) is not None
        case _:
            return False


def _from_text(kind: IdKind, text: bytes) -> Key | None:
    if kind is IdKind.INTEGER:
        return int(text) if _INTEGER.fullmatch(text) else None
    if kind is IdKind.DECIMAL:
        return Decimal(text.decode("ascii")) if _DECIMAL.fullmatch(text) else None
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return None
