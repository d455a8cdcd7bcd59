"""The harness finds bugs: each break of the real proxy is found by a short run.

How soon a bug shows itself depends on the machine. So `make test-long` runs them, and `make test` does
not."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fault.chaos.breaks import BREAKS, Break
from tests.fault.chaos.checker import check
from tests.fault.chaos.harness import Run, carry_out
from tests.fault.chaos.history import read
from tests.fault.chaos.plans import plans
from tests.fault.chaos.schedule import FAIL_OVER, Fault, schedule
from tests.support.sampling import SEED

TRIES = 3
"""A run may end before the bug has shown itself. Each has another seed."""


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name.replace(" ", "_"))
def test_the_texts_that_it_changes_are_there(broken: Break) -> None:
    for module, old, _ in broken.edits:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        assert Path(spec.origin).read_text().count(old) == 1


@pytest.mark.timeout(300)
@pytest.mark.sampled(0)
@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name.replace(" ", "_"))
def test_it_is_found(broken: Break, server_name, tmp_path: Path) -> None:
    found: list[set[str]] = []
    for seed in range(SEED, SEED + TRIES):
        found.append(set(found_in(broken, server_name, tmp_path / str(seed), seed)))
        if found[-1] & broken.rules:
            return
    pytest.fail(f"not found: {found} instead of {set(broken.rules)}")


@pytest.mark.timeout(300)
@pytest.mark.sampled(0)
def test_without_the_bug_a_failover_shows_nothing(server_name, tmp_path: Path) -> None:
    (broken,) = (broken for broken in BREAKS if broken.replica)
    assert found_in(dataclasses.replace(broken, edits=()), server_name, tmp_path, SEED) == []


def faults_of(broken: Break, seed: int) -> Sequence[Fault]:
    if broken.replica:
        return (FAIL_OVER,)
    if not broken.faults:
        return ()
    return schedule(
        seed, seconds=broken.seconds, proxies=broken.proxies, per_minute=broken.per_minute, kinds=broken.faults
    )


def found_in(broken: Break, server_name, folder: Path, seed: int) -> list[str]:
    """The rules that a run with the break violates."""
    run = Run(
        server_name,
        folder,
        seed,
        broken.seconds,
        plans(broken.queues),
        faults_of(broken, seed),
        proxies=broken.proxies,
        misbehave=broken.misbehave,
        replica=broken.replica,
        variables=broken.variables,
    )
    return [violation.rule for violation in check(read(carry_out(run))).violations]
