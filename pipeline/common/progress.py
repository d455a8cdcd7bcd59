"""How far a job is, as it reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is: `done` of `total` messages in this phase."""

    phase: str
    done: int
    total: int


def unused(_value: Any) -> None:
    """Reports to nobody."""
