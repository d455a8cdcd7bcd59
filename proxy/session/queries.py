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


@cache
def templates() -> Mapping[str, Text]:
    """Every statement of queries.sql by its name."""
    text = resources.files(__package__).joinpath("queries.sql").read_text("utf-8")
    return MappingProxyType(dict(parse(text)))


def sql(name: str, /, **values: object) -> str:
    """The named statement with `values` in the places of its words, unchanged: give literals and
    quoted identifiers.

    Raises KeyError for a name that does not exist, and for a word without a value.
    """
    return templates()[name].substitute(values)
