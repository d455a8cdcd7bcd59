"""A proxy of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import rows


@pytest.fixture
def lone_proxy(server, tmp_path: Path) -> Iterator[RunningProxy]:
    """A proxy in a process of its own, whose memory is that of the test's clients."""
    with running_proxy(server, tmp_path / "log") as proxy:
        with proxy.connect() as client:
            rows(client, "SELECT 1")
        yield proxy
