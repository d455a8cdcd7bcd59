"""The statements of queries.sql, made complete: identifiers quoted, values as literals.

Nothing is escaped by hand. An identifier is quoted by `engine.quoting`; a value goes in as digits
or as hexadecimal, so that no value can end the literal it stands in.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

from engine.store.queries import Text, parse

COMMON = ("select", "insert")
"""The words that stand for statements of the same names."""


@cache
def templates() -> Mapping[str, Text]:
    """Every statement of queries.sql by its name, with the words that are the same in each in place."""
    text = resources.files(__package__).joinpath("queries.sql").read_text("utf-8")
    found = dict(parse(text))
    common = {word: found.pop(word).substitute({}) for word in COMMON}
    return MappingProxyType({name: statement.bound(common) for name, statement in found.items()})


def sql(name: str, /, **values: object) -> str:
    """The named statement with `values` in the places of its words, unchanged: give literals and
    quoted identifiers.

    Raises KeyError for a name that does not exist, and for a word without a value.
    """
    return templates()[name].substitute(values)
