"""What the workers of one proxy answer each other: with `--workers`, each has a part of what a SHOW
statement returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import Any


class Subject(Enum):
    """What a worker asks the others for."""

    STREAMS = auto()
    """A list of RunningStream (proxy.statements.show)."""
    DELIVERIES = auto()
    """A list of HeldDelivery (proxy.statements.deliveries)."""
    PROXIES = auto()
    """A list of one RunningProxy (proxy.statements.proxies)."""


Others = Callable[[Subject], Awaitable[Sequence[Any]]]
"""The answers of the other workers in one list. A worker that does not answer is left out."""


async def no_others(_: Subject) -> Sequence[Any]:
    """There are no other workers."""
    return ()
