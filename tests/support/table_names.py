"""How the statements of queries.sql name tables, and what each of their words may stand for."""

from __future__ import annotations

import re

NAMES = frozenset({"table", "own", "limits", "rates", "semaphores", "dead_letter", "parts", "index"})
"""The words that stand for a table. `index` contains the hint."""

_NAMED = re.compile(
    r"\b(?P<how>FROM|JOIN|INTO|UPDATE|USING|TABLE|EXISTS)\s+(?:/\*[^*]*\*/\s+)?\$(?P<word>\w+)"
    r"(?P<hint>(?:\s+\$partitions)?(?:\s+AS\s+\w+)?\s+(?:(?:FORCE|USE|IGNORE) INDEX|\$scan_hint))?"
)


def names_without_hint(text: str) -> list[str]:
    """How a statement names its tables where no index hint follows: FROM, INTO, TABLE. A multi-table DELETE
    has it behind USING."""
    return [
        named["how"]
        for named in _NAMED.finditer(text)
        if named["word"] in NAMES - {"index"} and not named["hint"] and not text[named.end() :].startswith(" USING")
    ]


def words_of(text: str) -> set[str]:
    """The words of a statement."""
    return set(re.findall(r"\$(\w+)", text))
