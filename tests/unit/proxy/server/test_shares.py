"""What each worker gets of the totals, and when one is started again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from proxy.server.allowances import divide
from proxy.server.shares import LASTING_S, PAUSE_MAX_S, PAUSE_MIN_S, Restarts, has_streams, settings_of
from proxy.settings import STATEMENT_BYTES_MIN, Settings


@pytest.mark.parametrize(("total", "parts"), [(0, 1), (1, 3), (7, 3), (9, 3), (1_000, 7)])
def test_parts_add_up_and_differ_by_one_at_most(total: int, parts: int) -> None:
    shares = divide(total, parts)
    assert sum(shares) == total
    assert len(shares) == parts
    assert max(shares) - min(shares) <= 1


def test_workers_share_connections_and_memory() -> None:
    settings = Settings(workers=3, connections_max=1_000, engine_connections=8)
    parts = [settings_of(settings, number) for number in (1, 2, 3)]
    assert [part.connections_max for part in parts] == [334, 333, 333]
    assert [part.engine_connections for part in parts] == [3, 3, 2]
    assert sum(part.statement_bytes_max for part in parts) <= settings.statement_bytes_max


def test_the_worker_without_streams_has_few_connections_of_the_engine() -> None:
    settings = Settings(workers=2, listen_statements="127.0.0.1:0", connections_max=1_000, engine_connections=8)  # type: ignore[arg-type]
    parts = [settings_of(settings, number) for number in (1, 2, 3)]
    assert [has_streams(settings, number) for number in (1, 2, 3)] == [True, True, False]
    assert [part.connections_max for part in parts] == [334, 333, 333]
    assert [part.engine_connections for part in parts] == [3, 3, 2]


def test_a_worker_has_what_it_cannot_do_without() -> None:
    settings = Settings(workers=16, connections_max=2, engine_connections=2)
    for number in range(1, 17):
        part = settings_of(settings, number)
        assert (part.connections_max, part.engine_connections) == (1, 2)
        assert part.statement_bytes_max == STATEMENT_BYTES_MIN


def test_the_password_stays_with_the_settings() -> None:
    settings = Settings(workers=2, backend="mysql://app:secret@db:3306")  # type: ignore[arg-type]
    part = settings_of(settings, 2)
    assert part.password_of(part.backend[0]) == "secret"


def test_pauses_grow_while_workers_end_soon_and_are_short_again_after_a_lasting_one() -> None:
    restarts = Restarts()
    pauses = [restarts.pause_after_s(0.5) for _ in range(12)]
    assert pauses[0] == PAUSE_MIN_S
    assert all(later == min(2 * earlier, PAUSE_MAX_S) for earlier, later in pairwise(pauses))
    assert pauses[-1] == PAUSE_MAX_S
    assert restarts.pause_after_s(LASTING_S) == PAUSE_MIN_S
