"""What all sessions together receive and carry out, counted for the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sqlrewrite.classify import Verb


@dataclass(slots=True)
class Traffic:
    """Counts since the start."""

    client_bytes: int = 0
    """Received from clients."""
    server_bytes: int = 0
    """Received on backing connections."""
    relayed: int = 0
    """Commands sent on to the server."""
    queue_statements: Counter[Verb] = field(default_factory=Counter)
    """Queue statements that were carried out here, by verb."""
