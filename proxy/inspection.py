"""SHOW QUEUES and SHOW STREAMS."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from engine.service import Engine
from proxy.results import COUNT, NAME, RATE, SECONDS, TEXT, WORDS, Column, Result

if TYPE_CHECKING:
    from proxy.session import Session

QUEUE_COLUMNS = (
    Column("Database", NAME),
    Column("Name", NAME),
    Column("State", NAME),
    Column("Ready", COUNT),
    Column("Scheduled", COUNT),
    Column("In_flight", COUNT),
    Column("Dead", COUNT),
    Column("Acknowledged", COUNT),
    Column("Oldest_ready_s", SECONDS),
    Column("Enqueued_per_s", RATE),
    Column("Acked_per_s", RATE),
    Column("Subscribers", COUNT),
    Column("Estimated", WORDS),
    Column("Problem", TEXT),
)

STREAM_COLUMNS = (
    Column("Id", COUNT),
    Column("User", NAME),
    Column("Host", WORDS),
    Column("Program", WORDS),
    Column("Queue", WORDS),
    Column("Condition", TEXT),
    Column("Delivered", COUNT),
    Column("In_flight", COUNT),
    Column("Credit", COUNT),
    Column("Since", SECONDS, "NOW() - INTERVAL {} SECOND"),
    Column("Idle_s", SECONDS),
)


class Inspection:
    """Answers both."""

    def __init__(self, engine: Engine, streams: Callable[[], Iterable[Session]]) -> None:
        self._engine = engine
        self._streams = streams

    async def queues(self, session: Session, db: str | None, like: bytes | None) -> Result:
        """The message tables that the client may see, and how they stand."""
        return Result(QUEUE_COLUMNS)

    async def streams(self, session: Session) -> Result:
        """The running streams that the client may see."""
        return Result(STREAM_COLUMNS)
