"""The schedule of faults is a pure function of its seed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.fault.chaos import faults as carried_out
from tests.fault.chaos.faults import FAULTS
from tests.fault.chaos.harness import Harness, Run
from tests.fault.chaos.schedule import FAIL_OVER, WEIGHTS, Fault, schedule, shrunk, without

USUAL: dict[str, Any] = {"seconds": 600, "proxies": 3, "per_minute": 40}


def test_a_seed_gives_the_same_faults_again_and_another_seed_others() -> None:
    assert schedule(7, **USUAL) == schedule(7, **USUAL)
    assert schedule(7, **USUAL) != schedule(8, **USUAL)


def test_each_kind_of_fault_can_be_carried_out_and_is_drawn() -> None:
    """Except a failover, which needs a run with a replica."""
    assert set(FAULTS) == {*WEIGHTS, FAIL_OVER.what}
    assert {fault.what for seed in range(5) for fault in schedule(seed, **USUAL)} == set(WEIGHTS)


def test_faults_come_in_order_and_end_before_the_run_does() -> None:
    faults = schedule(7, **USUAL)
    assert all(one.at_s <= other.at_s for one, other in pairwise(faults))
    assert max(fault.at_s + fault.lasts_s for fault in faults) <= USUAL["seconds"]


def test_the_server_and_each_proxy_have_one_fault_at_a_time() -> None:
    for proxy in range(3):
        busy = [fault for fault in schedule(7, **USUAL) if fault.proxy == proxy and "_proxy" in fault.what]
        assert all(one.at_s + one.lasts_s <= other.at_s for one, other in pairwise(busy))


def test_faults_that_are_left_out_leave_the_others_as_they_are() -> None:
    faults = schedule(7, **USUAL)
    fewer = without(faults, {0, 3})
    assert fewer == tuple(fault for fault in faults if fault.number not in {0, 3})


def test_a_fault_survives_being_written_down() -> None:
    for fault in schedule(7, **USUAL):
        assert Fault.of(fault.as_values()) == fault


def test_a_failing_schedule_shrinks_to_the_faults_that_matter() -> None:
    def fails(faults: Sequence[Fault]) -> bool:
        return {fault.number for fault in faults} >= {3, 17}

    assert [fault.number for fault in shrunk(schedule(7, **USUAL)[:40], fails, 200)] == [3, 17]


def test_a_schedule_shrinks_in_no_more_runs_than_allowed() -> None:
    runs: list[int] = []

    def never(faults: Sequence[Fault]) -> bool:
        runs.append(len(faults))
        return False

    faults = schedule(7, **USUAL)
    assert shrunk(faults, never, 5) == faults
    assert len(runs) == 5


def test_a_fault_that_lasts_longer_than_its_schedule_delays_the_next_one_of_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = (Fault(0, 0, "kill_server", 0), Fault(1, 0, "restart_server", 0))
    begun = [threading.Event(), threading.Event()]
    alone: list[bool] = []

    def begin(site: object, fault: Fault) -> carried_out.Undo:
        begun[fault.number].set()
        return lambda: alone.append(not begun[1 - fault.number].wait(0.2) or len(alone) == 1)

    monkeypatch.setattr(carried_out, "begin", begin)
    with contextlib.ExitStack() as stack:
        harness = Harness(Run("mysql", tmp_path, 1, 1, (), faults), stack)
        threads = [threading.Thread(target=harness._carry_out, args=(fault, time.monotonic())) for fault in faults]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert alone == [True, True]
