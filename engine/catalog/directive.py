"""What a directive is, and the forms of their values: a function for each, from the text to what the policy has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from engine.dispatch.redelivery import WAIT_MAX_NS
from engine.model import NS_PER_S
from engine.queue_table import Policy

RATE_MOST = 1_000_000_000
"""The greatest rate: above what any server reaches, and far below an overflow."""

NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?|\.[0-9]{1,12}")
_WHOLE = re.compile(r"[0-9]{1,12}")
_BARE_NAME = r"[0-9A-Za-z_$\u0080-\uffff-]+"
_SOURCE = re.compile(rf"(?:({_BARE_NAME}|`(?:[^`]|``)+`)\.)?({_BARE_NAME}|`(?:[^`]|``)+`)\s*(\||\Z)\s*")
_COLUMN = re.compile(r"[A-Za-z_][0-9A-Za-z_]*")


class BadValue(Exception):
    """A value of the wrong form. The text describes the expected one."""


def spelled(name: str) -> str:
    """A name as `table` and `tables` read it."""
    return name if re.fullmatch(_BARE_NAME, name) else "`" + name.replace("`", "``") + "`"


def seconds(least_ns: int) -> Callable[[str], int]:
    """Seconds, from so many nanoseconds on; the value is nanoseconds."""
    least = format((Decimal(least_ns) / NS_PER_S).normalize(), "f")

    def read(text: str) -> int:
        if NUMBER.fullmatch(text):
            ns = int((Decimal(text) * NS_PER_S).to_integral_value())
            if least_ns <= ns <= WAIT_MAX_NS:
                return ns
        raise BadValue(f"a number of seconds from {least} to {WAIT_MAX_NS // NS_PER_S}")

    return read


def whole(least: int, most: int) -> Callable[[str], int]:
    """A whole number from `least` to `most`."""

    def read(text: str) -> int:
        if _WHOLE.fullmatch(text) and least <= int(text) <= most:
            return int(text)
        raise BadValue(f"a whole number from {least} to {most}")

    return read


def rate(text: str) -> float:
    """A number a second."""
    if NUMBER.fullmatch(text) and 0 < float(text) <= RATE_MOST:
        return float(text)
    raise BadValue(f"a number above 0 and up to {RATE_MOST}")


def columns(text: str) -> tuple[str, ...]:
    """The names of columns, divided by |."""
    names = tuple(name.strip() for name in text.split("|"))
    if not all(names):
        raise BadValue("a list of column names separated by |")
    if len({name.lower() for name in names}) < len(names):
        raise BadValue("a list without repetitions")
    return names


def column(text: str) -> str:
    """The name of a column."""
    if not _COLUMN.fullmatch(text):
        raise BadValue("the name of a column of ASCII letters, digits and _")
    return text


@dataclass(frozen=True, slots=True)
class OneOf:
    """A word, and the value of each. `exact`: in this case of letters."""

    words: Mapping[str, Any]
    exact: bool = False

    def __call__(self, text: str) -> Any:
        """The value."""
        for word, value in self.words.items():
            if text == word or (not self.exact and text.lower() == word.lower()):
                return value
        raise BadValue(" or ".join(self.words))


def table(text: str) -> tuple[str | None, str]:
    """The name of a table, behind that of its database (None: it has none)."""
    try:
        (name,) = tables(text)
    except (BadValue, ValueError):
        raise BadValue("the name of a table, in backquotes if it is odd") from None
    return name


def tables(text: str) -> tuple[tuple[str | None, str], ...]:
    """The names of tables, divided by |."""
    names: list[tuple[str | None, str]] = []
    at = 0
    more = True
    while more:
        found = _SOURCE.match(text, at)
        if found is None:
            raise BadValue("a list of table names separated by |, odd ones in backquotes")
        names.append((_unquoted(found[1]) if found[1] else None, _unquoted(found[2])))
        at, more = found.end(), bool(found[3])
    return tuple(names)


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


@dataclass(frozen=True, slots=True)
class Directive:
    """A directive of a table's comment, and an option of CREATE QUEUE and ALTER QUEUE."""

    key: str
    """Its name in the comment."""
    read: Callable[[str], Any]
    """Its value. Raises BadValue."""
    meaning: str
    example: str
    field: str = ""
    """The field of the policy; empty: that of its own name."""
    required: bool = False
    default: str | None = None
    """Its text, if CREATE QUEUE has no such option; None: it is left out."""
    needs: str | None = None
    """The directive without which it cannot be kept."""
    vain_without: str | None = None
    """The directive without which it has no effect. CREATE QUEUE and ALTER QUEUE refuse that; a comment may have
    it."""
    not_with: tuple[str, ...] = ()
    """Those that it cannot be combined with."""
    of_dead_letters: bool = True
    """Whether the dead-letter table of a queue gets it, too."""

    @property
    def option(self) -> str:
        """Its name as an option."""
        return self.key.removeprefix("vt_").upper()

    def named(self, *, as_option: bool) -> str:
        """Its name as an option, or in the comment."""
        return self.option if as_option else self.key

    def given(self, text: str, *, as_option: bool) -> str:
        """It with the text that it was given, for errors."""
        return f"{self.option} = {text!r}" if as_option else f"{self.key}={text!r}"

    def explained(self, *, as_option: bool) -> str:
        """What it means, with an example."""
        example = self.as_option(self.example) if as_option else f"{self.key}={self.example}"
        return f"{self.meaning}, for instance {example}"

    def as_option(self, text: str) -> str:
        """It with its text, as an option."""
        return f"{self.option} = {'(' + text.replace('|', ', ') + ')' if '|' in text else text}"

    def value(self, policy: Policy) -> Any:
        """Its value."""
        return getattr(policy, self.field or self.key)

    def written(self, value: Any) -> str | None:
        """The text of a value that is a number, a word or the name of a column; None: it is not set."""
        if isinstance(self.read, OneOf):
            return next((word for word, meant in self.read.words.items() if meant == value), None)
        if isinstance(value, float):
            return f"{value:g}"
        return None if value in {None, 0} else str(value)
