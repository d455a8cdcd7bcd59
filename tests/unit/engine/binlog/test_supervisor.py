"""The supervisor's lines about a reader that ends: a server that is away is reported by others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from unittest.mock import Mock

import pytest

from engine.binlog.pipe import ReaderEnded
from engine.binlog.supervisor import BinlogFollower, FollowerLimits
from engine.service import Engine
from engine.store.opening import BackendAddress
from tests.support.waiting import eventually


class Failing(BinlogFollower):
    """Its readers end at once. The checks whether the server answers have these results, one for each reader."""

    starting = False
    """Whether each reader has started before."""

    def __init__(self, reachable: Sequence[bool]) -> None:
        limits = FollowerLimits(again_min_s=0, again_max_s=0)
        super().__init__(Mock(Engine), BackendAddress("127.0.0.1", 1, "root"), limits)
        self._checks = iter(reachable)
        self.over = asyncio.Event()

    async def _follow(self) -> ReaderEnded:
        if self.starting:
            self._started("binlog.000001:4", "")
        return ReaderEnded("the connection was lost")

    async def _server_is_reachable(self) -> bool:
        for result in self._checks:
            return result
        self.over.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize(
    ("reachable", "lines"),
    [
        ([True], 1),
        ([True, True], 1),
        ([False, False], 0),
        ([False, True], 0),  # The reader may have ended before the server was there again.
        ([False, True, True], 1),
    ],
)
def test_a_reader_that_ends_while_the_server_answers_is_one_line(
    reachable: Sequence[bool], lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        supervisor = Failing(reachable)
        supervisor.start()
        await supervisor.over.wait()
        await supervisor.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    assert [getattr(record, "event", "") for record in caplog.records] == ["binlog.interrupted"] * lines


def test_a_reader_that_has_started_since_the_server_was_away_is_a_line_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        supervisor = Failing([False, True])
        supervisor.starting = True
        supervisor.start()
        await supervisor.over.wait()
        await supervisor.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    assert [getattr(record, "event", "") for record in caplog.records] == ["binlog.interrupted"]


class Refused(BinlogFollower):
    """Its readers find no binary log."""

    attempts = 0

    async def _follow(self) -> ReaderEnded:
        self.attempts += 1
        return ReaderEnded("log_bin is OFF", refused=True)


def _has_tried(follower: Refused, times: int) -> bool:
    return follower.attempts == times


def test_a_binary_log_that_is_off_is_tried_again_as_soon_as_the_engine_has_connected_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        limits = FollowerLimits(refused_s=3600.0, refused_least_s=0.0)
        follower = Refused(Mock(Engine), BackendAddress("127.0.0.1", 1, "root"), limits)
        follower.start()
        for attempt in range(1, 4):
            await asyncio.to_thread(eventually, lambda: follower.following.again_s is not None)
            assert follower.attempts == attempt
            assert 3500 < follower.following.next_attempt_s() <= 3600
            assert "tried again in 3" in str(follower.following.problem)
            assert str(follower.following.problem).endswith("log_bin is OFF")
            await asyncio.to_thread(follower.connected)
            await asyncio.to_thread(eventually, partial(_has_tried, follower, attempt + 1))
        await follower.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    (record,) = caplog.records
    assert "log_bin is OFF" in record.getMessage()
    assert "tried again every 3600 s, and when the server was restarted" in record.getMessage()
