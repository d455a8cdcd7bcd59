"""Plays that have to object: a state machine with a bug in it fails within a bounded number of plays."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def assert_objects(play: type[RuleBasedStateMachine], *, plays: int = 5_000, steps: int = 60) -> None:
    """Run a play that contains a bug, at most so many times with so many steps each. Raises an error
    unless one of them fails by an AssertionError. Allow several times as many as the hunt usually needs: the
    plays depend on the modules that are loaded, because Hypothesis also draws constants of these."""
    hunt = settings(
        max_examples=plays,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(play, settings=hunt)
