"""Runs are shared by concurrent callers."""

from __future__ import annotations

import asyncio

import pytest

from engine.runtime.shared_runs import SharedRuns


class Slow:
    """A function that returns the number of the run when the test releases it."""

    def __init__(self) -> None:
        self.runs = 0
        self.gates: list[asyncio.Event] = []
        self.began = asyncio.Event()

    async def run(self, key: str) -> tuple[str, int]:
        self.runs += 1
        number = self.runs
        self.gates.append(gate := asyncio.Event())
        self.began.set()
        await gate.wait()
        if key == "bad":
            raise ValueError(number)
        return key, number

    async def begun(self) -> None:
        await self.began.wait()
        self.began.clear()


def test_callers_during_a_run_share_the_next_one() -> None:
    async def play() -> None:
        slow = Slow()
        gathered = SharedRuns(slow.run)
        first = asyncio.create_task(gathered("a"))
        await slow.begun()
        others = [asyncio.create_task(gathered("a")) for _ in range(1_000)]
        other_key = asyncio.create_task(gathered("b"))
        await slow.begun()
        slow.gates[0].set()
        assert await first == ("a", 1)
        await slow.begun()
        for gate in slow.gates:
            gate.set()
        assert set(await asyncio.gather(*others)) == {("a", 3)}
        assert await other_key == ("b", 2)
        late = asyncio.create_task(gathered("a"))
        await slow.begun()
        slow.gates[-1].set()
        assert await late == ("a", 4)

    asyncio.run(play())


def test_an_exception_is_raised_to_all_callers_of_that_run_and_to_no_other() -> None:
    async def play() -> None:
        slow = Slow()
        gathered = SharedRuns(slow.run)
        first = asyncio.create_task(gathered("bad"))
        await slow.begun()
        second = asyncio.create_task(gathered("bad"))
        slow.gates[0].set()
        with pytest.raises(ValueError, match="1"):
            await first
        await slow.begun()
        slow.gates[1].set()
        with pytest.raises(ValueError, match="2"):
            await second

    asyncio.run(play())


def test_a_cancelled_caller_does_not_affect_the_others() -> None:
    async def play() -> None:
        slow = Slow()
        gathered = SharedRuns(slow.run)
        first = asyncio.create_task(gathered("a"))
        await slow.begun()
        gone, stays = (asyncio.create_task(gathered("a")) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        slow.gates[0].set()
        await slow.begun()
        slow.gates[1].set()
        assert (await first, await stays) == (("a", 1), ("a", 2))

    asyncio.run(play())


def test_closing_ends_running_and_waiting_calls() -> None:
    async def play() -> None:
        slow = Slow()
        gathered = SharedRuns(slow.run)
        tasks = [asyncio.create_task(gathered("a"))]
        await slow.begun()
        tasks.append(asyncio.create_task(gathered("a")))
        await asyncio.sleep(0)
        await gathered.close()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*tasks, return_exceptions=True)
        )
        assert slow.runs == 1

    asyncio.run(play())
