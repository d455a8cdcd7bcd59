"""The order and the amount of what the comparison measures."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.compare import runner
from bench.compare.model import Case, Drained, Latencies, MissingError
from bench.compare.runner import Plan, Runner

CASE = Case("batches", 2, 100)


@dataclass
class Scripted:
    """A competitor and its system, which drain at one rate."""

    name: str
    rate: float = 10_000
    failure: Exception | None = None
    starts: list[str] = field(default_factory=list)
    drained: list[int] = field(default_factory=list)
    durability: str = "none"
    cases: Sequence[Case] = (CASE,)
    version: str = "1"
    processes: Mapping[str, int] = field(default_factory=dict)

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator["Scripted"]:
        assert not list(folder.iterdir())
        self.starts.append(self.name)
        if self.failure is not None:
            raise self.failure
        yield self

    def fill(self, messages: int) -> None:
        """Nothing is kept."""

    def drain(self, case: Case, messages: int) -> Drained:
        self.drained.append(messages)
        return Drained(messages, messages / self.rate, 0.5)

    def latencies(self, samples: int) -> dict[str, Latencies]:
        return {"": Latencies([1.0] * samples, [0.5] * samples)}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "QUIET_INTERVAL_S", 0.0)
    monkeypatch.setattr(runner, "QUIET_TIMEOUT_S", 0.0)


def test_each_round_begins_with_another_competitor() -> None:
    starts: list[str] = []
    Runner([Scripted(name, starts=starts) for name in "abc"], Plan(3, 1, 100_000, 2)).run()
    assert "".join(starts) == "abcbcacab"


def test_a_trial_that_is_not_counted_decides_how_many_messages_are_drained() -> None:
    competitor = Scripted("a")
    measured = Runner([competitor], Plan(rounds=2, seconds=3, messages=100_000, samples=2))
    measured.run()
    assert competitor.drained == [1_000, 30_000, 30_000]
    assert measured.figures["a"].cases["batches"].rates == [10_000, 10_000]
    assert measured.figures["a"].latency[""].p50 == [1.0, 1.0]


def test_a_drain_that_is_too_short_is_repeated_with_more_messages() -> None:
    class Warming(Scripted):
        def drain(self, case: Case, messages: int) -> Drained:
            self.rate = 1_000 if not self.drained else 10_000
            return super().drain(case, messages)

    competitor = Warming("a")
    measured = Runner([competitor], Plan(rounds=1, seconds=3, messages=100_000, samples=2))
    measured.run()
    assert competitor.drained == [1_000, 3_000, 30_000]
    assert measured.figures["a"].cases["batches"].rates == [10_000]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(MissingError("no compiler"), "no compiler"), (ConnectionError("lost\nfor ever"), "failed: lost")],
)
def test_a_competitor_that_fails_leaves_the_figures_of_the_others(failure: Exception, reason: str) -> None:
    starts: list[str] = []
    broken, sound = Scripted("broken", failure=failure, starts=starts), Scripted("sound", starts=starts)
    measured = Runner([broken, sound], Plan(2, 1, 100_000, 2))
    measured.run()
    assert starts == ["broken", "sound", "sound"]
    assert measured.figures["broken"].missing == reason
    assert len(measured.figures["sound"].cases["batches"].rates) == 2
