"""What the comparison measures: competitors, their cases, and the figures of one run.

A competitor is a queue as its users would run it. The runner starts it in a private directory,
alone on the machine, has each case drain messages, measures the latency and stops it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

PAYLOAD_BYTES = 120


class MissingError(Exception):
    """The competitor cannot be had on this machine. The text is the reason."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way to take messages.

    `batch` is the number of messages that are finished together; `consumers` counts connections.
    """

    name: str
    consumers: int
    batch: int


@dataclass(frozen=True, slots=True)
class Drained:
    """Messages that were taken and finished, and the seconds from the first request to the last answer.

    `client_cpu_s` is the CPU time of the consumers meanwhile. `bystanders_ms`: what single statements
    of other clients took meanwhile, by the way that they connected.
    """

    messages: int
    seconds: float
    client_cpu_s: float
    bystanders_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Milliseconds of each sample: from before the message is enqueued to the consumer, and of the enqueueing alone."""

    delivery_ms: Sequence[float]
    enqueue_ms: Sequence[float]


class System(Protocol):
    """A running competitor."""

    @property
    def version(self) -> str:
        """Name and version of its server."""

    @property
    def processes(self) -> Mapping[str, int]:
        """The process ids of its servers by name. Descendants count with their nearest named ancestor."""

    def fill(self, messages: int) -> None:
        """Enqueue messages of PAYLOAD_BYTES. They are durable when it returns."""

    def drain(self, case: Case, messages: int) -> Drained:
        """Take and finish `messages` messages that were enqueued before."""

    def latencies(self, samples: int) -> Mapping[str, Latencies]:
        """Enqueue messages one by one for a waiting consumer, of each kind that there is (empty: there is
        one kind). Nothing where consumers poll at intervals."""


class Competitor(Protocol):
    """A queue that can be started."""

    @property
    def name(self) -> str:
        """The heading in the table. The command line chooses by it."""

    @property
    def durability(self) -> str:
        """When messages and acknowledgements are on the disk, with the settings that decide it."""

    @property
    def cases(self) -> Sequence[Case]:
        """The ways to take messages, in the order of the table."""

    def running(self, folder: Path) -> AbstractContextManager[System]:
        """Start it with its data in `folder`, which exists and is empty. Raises MissingError."""
