"""Constants as SQL that means the same under every sql_mode, character set and escaping rule.

Nothing is escaped: numbers are digits, strings and bytes are hexadecimal, and dates and times are
made of checked digits. So no value can end the literal that contains it. The one exception is
`string`, for places where the servers take no expression.
"""

from __future__ import annotations

import math
import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Final

DIGITS_MAX: Final = 65
"""The maximum precision of the servers' decimals."""

TIME_MAX: Final = timedelta(hours=838, minutes=59, seconds=59)
"""The maximum TIME."""

LIKE_ESCAPE: Final = "\\"
"""The escape character in the result of `pattern`."""

_WILDCARDS: Final = "%_"
NUMBER: Final = re.compile(r"(?P<digits>[0-9]+\.?[0-9]*|\.[0-9]+)(?P<exponent>[eE][+-]?[0-9]{1,3})?")
_BITS = re.compile(r"0b(?P<digits>[01]+)|[bB]'(?P<quoted>[01]*)'")
_HEX = re.compile(r"0x(?P<digits>[0-9A-Fa-f]+)|[xX]'(?P<quoted>(?:[0-9A-Fa-f]{2})*)'")
_DATE = r"(?P<year>[0-9]{4})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"
_CLOCK = r"(?P<hours>[0-9]{1,3}):(?P<minutes>[0-5]?[0-9])(?::(?P<seconds>[0-5]?[0-9])(?:\.(?P<fraction>[0-9]{1,6}))?)?"
_TEMPORAL: Final = {
    "DATE": re.compile(_DATE),
    "TIME": re.compile(rf"(?P<sign>-?){_CLOCK}"),
    "TIMESTAMP": re.compile(rf"{_DATE}[ T]{_CLOCK}"),
}
_ESCAPES: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def text(value: str) -> str:
    """A string."""
    return f"_utf8mb4 x'{value.encode().hex()}'"


def string(value: str, *, no_backslash_escapes: bool) -> str:
    """A string in quotes, for one sql_mode: COMMENT and table options take no hexadecimal."""
    doubled = value.replace("'", "''")
    return f"'{doubled}'" if no_backslash_escapes else "'" + doubled.replace("\\", "\\\\") + "'"


def binary(value: bytes) -> str:
    """A string of bytes. The introducer prevents that a server takes it for a number."""
    return f"_binary x'{value.hex()}'"


def pattern(value: str | bytes, escape: str) -> str:
    """A LIKE pattern and its ESCAPE clause. In `value`, `escape` is the escape character (empty:
    none).

    The default escape character depends on sql_mode, and so does whether there can be none.
    """
    given = value if isinstance(value, str) else value.decode("latin-1")
    written: list[str] = []
    characters = iter(given)
    for first in characters:
        following = next(characters, None) if escape and first == escape else None
        if following is None and first in _WILDCARDS:
            written.append(first)
            continue
        character = first if following is None else following
        written.append(LIKE_ESCAPE + character if character in _WILDCARDS + LIKE_ESCAPE else character)
    whole = "".join(written)
    literal = text(whole) if isinstance(value, str) else binary(whole.encode("latin-1"))
    return f"{literal}{ESCAPE_CLAUSE}"


ESCAPE_CLAUSE: Final = f" ESCAPE {text(LIKE_ESCAPE)}"


def number(numeral: str) -> str | None:
    """A number without a sign, as SQL: exact, or a double if it has an exponent. None if it is too
    great or too precise."""
    found = NUMBER.fullmatch(numeral)
    if found is None or len(found["digits"]) > DIGITS_MAX + 1:
        return None
    return _float(float(numeral)) if found["exponent"] else _decimal(Decimal(numeral))


def bits_or_hex(written: str) -> str | None:
    """b'…', 0b…, x'…' or 0x…: a number or a string, depending on context and server. None for other
    text."""
    if bits := _BITS.fullmatch(written):
        return f"b'{bits['digits'] or bits['quoted']}'"
    found = _HEX.fullmatch(written)
    if found is None:
        return None
    # MariaDB takes 0x… for a number in a numeric context, and x'…' never.
    return f"0x{found['digits'].lower()}" if found["digits"] else f"x'{found['quoted'].lower()}'"


def hexadecimal(written: str) -> bytes | None:
    """The bytes of x'…'; None for other text."""
    found = _HEX.fullmatch(written)
    return None if found is None or found["quoted"] is None else bytes.fromhex(found["quoted"])


def temporal(kind: str, written: str) -> str | None:
    """DATE '…', TIME '…' or TIMESTAMP '…', given the text in the quotes. None if there is no such
    time."""
    found = _TEMPORAL[kind].fullmatch(written)
    if found is None:
        return None
    parts = {name: int(digits) for name, digits in found.groupdict("0").items() if name not in {"sign", "fraction"}}
    micros = int((found.groupdict().get("fraction") or "0").ljust(6, "0"))
    clock = timedelta(
        hours=parts.get("hours", 0),
        minutes=parts.get("minutes", 0),
        seconds=parts.get("seconds", 0),
        microseconds=micros,
    )
    if kind == "TIME":
        return constant(-clock if found["sign"] else clock)
    try:
        day = datetime(parts["year"], parts["month"], parts["day"])  # noqa: DTZ001 - the server's types have no zone
    except ValueError:
        return None
    if kind == "DATE":
        return constant(day.date())
    return constant(day + clock) if clock < timedelta(days=1) else None


def constant(value: object) -> str | None:
    """A parameter's value as SQL; None for what cannot stand in a condition."""
    match value:
        case None:
            return "NULL"
        case int():
            return _decimal(Decimal(int(value)))
        case float():
            return _float(value)
        case Decimal():
            return _decimal(value)
        case str():
            return _encodable(value)
        case bytes():
            return binary(value)
        case datetime() if value.tzinfo is None:
            return f"TIMESTAMP'{value.isoformat(' ')}'"
        case datetime():
            return None
        case date():
            return f"DATE'{value.isoformat()}'"
        case timedelta() if abs(value) <= TIME_MAX:
            return _time(value)
        case _:
            return None


def unescape(quoted: str, *, no_backslash_escapes: bool) -> str:
    """The value of a string, given as written with its quotes."""
    mark, inner = quoted[0], quoted[1:-1]
    if no_backslash_escapes or "\\" not in inner:
        return inner.replace(mark * 2, mark)
    # The server leaves \\% and \\_ as they are, for LIKE.
    return re.sub(
        rf"\\(?P<escaped>[\s\S])|{mark}{mark}",
        lambda found: mark if found["escaped"] is None else _ESCAPES.get(found["escaped"], found["escaped"]),
        inner,
    )


def _encodable(value: str) -> str | None:
    try:
        return text(value)
    except UnicodeEncodeError:  # Half of a surrogate pair.
        return None


def _decimal(value: Decimal) -> str | None:
    if not value.is_finite():
        return None
    digits, exponent = value.as_tuple()[1:]
    if not isinstance(exponent, int) or max(len(digits), -exponent, len(digits) + exponent) > DIGITS_MAX:
        return None
    return format(value, "f")


def _float(value: float) -> str | None:
    if not math.isfinite(value):
        return None
    written = repr(value)
    return written if "e" in written else f"{written}e0"  # Without an exponent it would be a decimal.


def _time(value: timedelta) -> str:
    sign = "-" if value < timedelta() else ""
    seconds, micros = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
    fraction = f".{micros:06}" if micros else ""
    return f"TIME'{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}'"
