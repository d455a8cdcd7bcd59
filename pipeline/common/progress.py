"""The progress that a job reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` in this phase; a total of 0 is unknown."""

    phase: str
    done: int
    total: int


def unused(_value: Any) -> None:
    """Ignore a report."""
