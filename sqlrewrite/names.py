"""Names and placeholders in queue statements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_BARE: Final = re.compile(r"[0-9A-Za-z_$\u0080-\uffff-]+")


@dataclass(frozen=True, slots=True)
class Param:
    """The index-th `?` of a statement, counted from 0 in the order of the text."""

    index: int


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as a statement names it, without quotes. `db` is None for the session's default
    database."""

    name: str
    db: str | None = None

    def quoted(self) -> str:
        """The name as SQL, valid in every sql_mode."""
        return quote(self.name) if self.db is None else f"{quote(self.db)}.{quote(self.name)}"


def quote(name: str) -> str:
    """A name in backquotes. The proxy and the engine use engine.quoting; this package imports
    neither."""
    return f"`{name.replace('`', '``')}`"


def spelled(name: str) -> str:
    """The name of a table as a directive in a comment spells it: in backquotes only if need be."""
    return name if _BARE.fullmatch(name) else quote(name)


def unquote(written: str) -> str:
    """The name, given as written: bare, in backquotes or in double quotes."""
    mark = written[:1]
    return written[1:-1].replace(mark * 2, mark) if mark in ("`", '"') else written
