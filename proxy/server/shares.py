"""What each of several workers gets of the totals in the settings, and when one is started again.

The last worker is the one of `listen_statements`, if there is one. It has no streams.
"""

from __future__ import annotations

from proxy.server.allowances import divide
from proxy.settings import STATEMENT_BYTES_MIN, Settings

CONNECTIONS_OF_AN_ENGINE_MIN = 2
"""Scans and claims run beside each other."""

PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 10.0
"""The pauses before a worker is started again. A start costs a tenth of a second of processor time,
and a few queries for each queue."""
LASTING_S = 10.0
"""After a worker that ran this long, the pause is the shortest again."""


def has_streams(settings: Settings, number: int) -> bool:
    """Whether the worker with this number serves the clients that receive messages."""
    return number <= settings.workers


def settings_of(settings: Settings, number: int) -> Settings:
    """The settings of the worker with this number, from 1 on: its part of each total."""

    def part(total: int, least: int) -> int:
        return max(least, divide(total, settings.processes)[number - 1])

    return settings.model_copy(
        update={
            "connections_max": part(settings.connections_max, 1),
            "engine_connections": _engine_connections(settings, number),
            "statement_bytes_max": part(settings.statement_bytes_max, STATEMENT_BYTES_MIN),
        }
    )


def _engine_connections(settings: Settings, number: int) -> int:
    """The engine of a worker without streams has little to do."""
    if not has_streams(settings, number):
        return CONNECTIONS_OF_AN_ENGINE_MIN
    others = CONNECTIONS_OF_AN_ENGINE_MIN * (settings.processes - settings.workers)
    part = divide(settings.engine_connections - others, settings.workers)[number - 1]
    return max(CONNECTIONS_OF_AN_ENGINE_MIN, part)


class Restarts:
    """The pauses before one worker is started again: exponential backoff."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_MIN_S

    def pause_after_s(self, ran_s: float) -> float:
        """The pause after a worker that ran so long."""
        if ran_s >= LASTING_S:
            self._pause_s = PAUSE_MIN_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_MAX_S)
        return pause_s
