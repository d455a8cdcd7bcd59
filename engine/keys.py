"""Message ids as they are written in SQL, turned into the keys by which the engine knows them.

Used for hints only: a literal that cannot be understood, or one that equals the id merely under the column's
collation, gives no key or one that nobody holds, and the acknowledgement is then found by a lookup.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from engine.model import IdKind, Key


def key_of(kind: IdKind, value: object) -> Key | None:
    """The key that a literal or parameter stands for, or None."""
    match kind, value:
        case IdKind.INTEGER, int():
            return value
        case IdKind.BINARY, bytes():
            return value
        case _, bytes():
            return _from_text(kind, value)
        case IdKind.DECIMAL, int() | Decimal():
            return Decimal(value)
        case _:
            return None


def _from_text(kind: IdKind, text: bytes) -> Key | None:
    try:
        if kind is IdKind.INTEGER:
            return int(text)
        if kind is IdKind.DECIMAL:
            return Decimal(text.decode("ascii"))
        return text.decode("utf-8")
    except (ValueError, InvalidOperation):
        return None
