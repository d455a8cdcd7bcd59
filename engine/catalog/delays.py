"""The column by which producers delay messages, and the default of time_next that reads it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from engine.model import TableId

_NO_DELAYS: Final = frozenset({"date", "time", "year"})
"""Types of time whose values, as numbers, are no seconds: a DATE is 20261231."""

_NS_PER_S: Final = "1000000000"
_BOUNDED: Final = "least("
"""Each default that `sqlrewrite.definitions.time_next_default` makes for a column has both of them. Those of former
releases have the first alone: a time that the server could not convert was due at once."""


def delay_problem(name: str, data_type: str) -> str | None:
    """Why a column of this type cannot delay messages; None if it can."""
    if data_type.lower() not in _NO_DELAYS:
        return None
    return (
        f"delay_by={name} names a column of the type {data_type.upper()}: it has to be a number of seconds, or the time"
        " itself as DATETIME or TIMESTAMP"
    )


def delay_warnings(table: TableId, name: str | None, data_type: str, time_next_default: str) -> Iterable[str]:
    """What keeps the delays of an existing queue from being right."""
    if name is None:
        return
    if problem := delay_problem(name, data_type):
        yield f"{problem}; ALTER QUEUE {table} DELAY_BY = NONE ends the use of it"
    default = time_next_default.lower()
    if _NS_PER_S in default and _BOUNDED not in default:
        yield (
            "a time that the server cannot convert (on MariaDB from 2038 on) is due at once, by the default of"
            f" time_next that a former release made: ALTER QUEUE {table} DELAY_BY = {name} renews it"
        )
