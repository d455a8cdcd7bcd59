"""Runs competitors in interleaved rounds, each alone on the machine."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.compare.figures import CaseFigures, CompetitorFigures, messages_for
from bench.compare.model import Case, Competitor, Drained, MissingError, System
from bench.processes import cpu_s, family

TRIAL_MESSAGES = 1_000
QUIET_CPU = 0.05
"""A competitor is quiet when it takes less of one core than this."""
QUIET_INTERVAL_S = 0.2
QUIET_TIMEOUT_S = 15.0
REPEATS = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. `seconds` is the aim for each drain, `messages` its limit."""

    rounds: int
    seconds: float
    messages: int
    samples: int


def cpu_by_name(processes: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU seconds so far. A descendant counts with its nearest ancestor in `processes`."""
    trees = {name: set(family(pid)) for name, pid in processes.items()}
    for name, tree in trees.items():
        for other, pid in processes.items():
            if other != name and pid in tree:
                tree -= set(family(pid))
    return {name: sum(map(cpu_s, tree)) for name, tree in trees.items()}


def await_quiet(processes: Mapping[str, int]) -> None:
    """Wait until the competitor has finished what earlier messages left to do, at most QUIET_TIMEOUT_S."""
    deadline = time.monotonic() + QUIET_TIMEOUT_S
    before = sum(cpu_by_name(processes).values())
    while time.monotonic() < deadline:
        time.sleep(QUIET_INTERVAL_S)
        now = sum(cpu_by_name(processes).values())
        if now - before < QUIET_CPU * QUIET_INTERVAL_S:
            return
        before = now


def drain(system: System, case: Case, messages: int) -> tuple[Drained, dict[str, float]]:
    """Enqueue and drain; return the CPU seconds of each process and of the clients as well."""
    system.fill(messages)
    await_quiet(system.processes)
    before = cpu_by_name(system.processes)
    drained = system.drain(case, messages)
    took = {name: seconds - before.get(name, 0.0) for name, seconds in cpu_by_name(system.processes).items()}
    return drained, {**took, "client": drained.client_cpu_s}


@dataclass(slots=True)
class Runner:
    """All competitors, and what was measured so far."""

    competitors: Sequence[Competitor]
    plan: Plan
    figures: dict[str, CompetitorFigures] = field(init=False)
    _rates: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.figures = {competitor.name: CompetitorFigures(competitor.durability) for competitor in self.competitors}

    def run(self) -> None:
        """Measure all rounds. The first competitor of a round is another one each time."""
        for number in range(self.plan.rounds):
            shift = number % len(self.competitors)
            for competitor in (*self.competitors[shift:], *self.competitors[:shift]):
                if not self.figures[competitor.name].missing:
                    print(f"round {number + 1} of {self.plan.rounds}: {competitor.name}", flush=True)
                    self._measure(competitor)

    def _measure(self, competitor: Competitor) -> None:
        seen = self.figures[competitor.name]
        with tempfile.TemporaryDirectory(prefix="ackstream-compare-", ignore_cleanup_errors=True) as folder:
            try:
                with competitor.running(Path(folder)) as system:
                    seen.version = system.version
                    for case in competitor.cases:
                        self._measure_case(system, competitor.name, case, seen.cases[case.name])
                    await_quiet(system.processes)
                    for consumer, latencies in system.latencies(self.plan.samples).items():
                        seen.latency[consumer].add(latencies)
            except MissingError as missing:
                seen.missing = str(missing)
                print(f"  left out: {missing}", flush=True)
            except Exception as failure:  # noqa: BLE001 - what was measured of the others is worth keeping
                seen.missing = f"failed: {failure}".partition("\n")[0]
                print(f"  {seen.missing}", flush=True)
                traceback.print_exc()

    def _measure_case(self, system: System, name: str, case: Case, figures: CaseFigures) -> None:
        """Measure a case once. Drains that are too short are repeated with more messages and not counted."""
        if (name, case.name) not in self._rates:
            self._drain(system, name, case, messages_for(0, 0, case.batch * case.consumers, TRIAL_MESSAGES))
        drained, cpu = self._drain(system, name, case, self._messages(name, case))
        for _ in range(REPEATS):
            if 2 * drained.seconds >= self.plan.seconds or 2 * drained.messages > self.plan.messages:
                break
            drained, cpu = self._drain(system, name, case, self._messages(name, case))
        figures.add(drained, cpu)
        print(f"  {case.name}: {drained.messages / drained.seconds:,.0f}/s of {drained.messages:,}", flush=True)

    def _messages(self, name: str, case: Case) -> int:
        """Return how many messages take the aimed time at the latest rate."""
        rate = self._rates[name, case.name]
        return messages_for(rate, self.plan.seconds, case.batch * case.consumers, self.plan.messages)

    def _drain(self, system: System, name: str, case: Case, messages: int) -> tuple[Drained, dict[str, float]]:
        drained, cpu = drain(system, case, messages)
        self._rates[name, case.name] = drained.messages / drained.seconds
        return drained, cpu
