"""Damaged packets and handshakes, by the thousand; `make fuzz` sends a million of them."""

from __future__ import annotations

import pytest

from tests.support.fuzzing import fuzz
from tests.support.sampling import SEED

pytestmark = pytest.mark.either_server

PACKETS = 10_000


@pytest.mark.timeout(180)
def test_mutated_packets_end_in_errors_and_closed_connections_and_in_nothing_else(private_server, tmp_path) -> None:
    report = fuzz(private_server, tmp_path / "log", PACKETS, seed=SEED)
    assert report.packets >= PACKETS
    assert not report.faults
