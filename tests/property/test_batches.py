"""Batches over several proxies: no follow-up is delivered before its batch is done, and each is afterwards.

Several dispatchers play on one in-memory store, which has parts and follow-ups in one table. Each statement of a claim
is a step of its own, and anything may happen between two of them: the last acknowledgement of a batch, further parts,
another proxy's claim, the death of the proxy. Which parts a follow-up has to wait for is recorded when they are
inserted: those that are committed with it or before it, and those that are added while its batch is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.dispatch.dispatcher import Dispatcher
from engine.dispatch.effects import Claim
from engine.dispatch.follow_ups import FollowUps
from engine.model import NS_PER_S, Key, TableId
from engine.store.claim_plan import FIRST_PACKET, SECOND_PACKET, Step
from tests.support.hunting import assert_objects
from tests.support.memory_store import MemoryClaim, MemoryStore, Row
from tests.support.play import POLICY, TABLE, Asked, Holding, Stage
from tests.support.sampling import examples

T = TypeVar("T")

PICK = st.integers(0, 1_000)
BATCHES = st.integers(1, 3)
WAIT_NS = 30 * NS_PER_S
POLL_NS = 20 * NS_PER_S
SOON_NS = 100 * NS_PER_S
"""Longer than a wait and a poll, for what proxies that died had in flight."""
WAITING = replace(
    POLICY, ack_wait_ns=WAIT_NS, min_backoff_ns=WAIT_NS, max_backoff_ns=WAIT_NS, cache_size=30, batch_size=5,
    poller_interval_ns=POLL_NS, batch_by="batch", after_batch="after_batch",
)  # fmt: skip


@dataclass(eq=False)
class Running:
    """A claim of which some statements were carried out."""

    asked: Asked
    claim: MemoryClaim
    left: list[Step]
    required: dict[Key, set[Key]] | None = None
    """What each follow-up had to wait for when the claim checked their batches. A part that came later, to a batch
    that was done by then, is none of theirs."""


@dataclass(eq=False)
class Proxy:
    """A proxy that lives: its dispatcher, and its claims in the middle."""

    stage: Stage
    claims: dict[int, Running] = field(default_factory=dict)


class Batched(RuleBasedStateMachine):
    """Up to three proxies on one store."""

    dispatcher_type: type[Dispatcher] = Dispatcher
    claim_type: type[MemoryClaim] = MemoryClaim
    steps: Sequence[Step] = (*FIRST_PACKET, *SECOND_PACKET)
    policy = WAITING
    soon_ns = SOON_NS
    proxies_max = 3
    followed = False
    """Whether the binary log shows the proxies what others do. Then nothing has to be found by a poll."""

    @initialize()
    def open(self) -> None:
        self.store = MemoryStore(now_ns=1_000_000 * NS_PER_S)
        self.mono_ns = 5_000 * NS_PER_S
        self.holdings: dict[Key, Holding] = {}
        self.acked: set[Key] = set()
        self.proxies: list[Proxy] = []
        self.streams = self.keys = 0
        self.required: dict[Key, set[Key]] = {}
        """The parts that each follow-up has to wait for."""
        for _ in range(min(2, self.proxies_max)):
            self.start_a_proxy()

    # Proxies.

    @precondition(lambda self: len(self.proxies) < self.proxies_max)
    @rule()
    def start_a_proxy(self) -> None:
        stage = Stage(
            policy=self.policy, dispatcher_type=self.dispatcher_type, store=self.store, mono_ns=self.mono_ns,
            holdings=self.holdings, acked_seen=self.acked,
        )  # fmt: skip
        self.proxies.append(Proxy(stage))
        for _ in range(2):
            self.streams += 1
            stage.subscribe(self.streams, holder=self.streams)

    @precondition(lambda self: len(self.proxies) > 1)
    @rule(pick=PICK)
    def a_proxy_dies(self, pick: int) -> None:
        proxy = self._one_of(self.proxies, pick)
        self.proxies.remove(proxy)
        for key, holding in list(self.holdings.items()):
            if holding.subscriber in proxy.stage.streams:
                del self.holdings[key]
        for running in proxy.claims.values():
            running.claim.die()
        for other in self.proxies:
            other.stage.handle(other.stage.dispatcher.proxy_lost)

    # Clients.

    @rule(batch=BATCHES, parts=st.integers(0, 2), follow_ups=st.integers(0, 2), chained=st.booleans(), pick=PICK)
    def enqueue(self, batch: int, parts: int, follow_ups: int, chained: bool, pick: int) -> None:
        """One transaction with parts, and the follow-ups of their batch, which may be parts of the next one."""
        rows = [self._row(batch=batch) for _ in range(parts)]
        rows += [self._row(after_batch=batch, batch=batch + 1 if chained else None) for _ in range(follow_ups)]
        self._insert(rows, pick)

    @rule(pick=PICK)
    def enqueue_an_ordinary_message(self, pick: int) -> None:
        self._insert([self._row()], pick)

    def _row(self, **columns: int | None) -> Row:
        self.keys += 1
        return Row(self.keys, time_next_ns=0, payload=str(self.keys).encode(), **columns)  # type: ignore[arg-type]

    def _insert(self, rows: Iterable[Row], pick: int) -> None:
        for row in rows:
            if row.batch is not None and self._unacknowledged(row.batch):
                for follow_up in self._follow_ups(row.batch):
                    self.required[follow_up].add(row.key)
        for row in rows:
            self.store.put(TABLE, row)
        for row in rows:
            if row.after_batch is not None:
                self.required[row.key] = set(self._unacknowledged(row.after_batch))
        by = self._one_of(self.proxies, pick)
        by.stage.handle(by.stage.dispatcher.woken)
        for proxy in self.proxies:
            if self.followed and proxy is not by:
                proxy.stage.handle(proxy.stage.dispatcher.changes_logged, [row.entry for row in rows])

    def _unacknowledged(self, batch: Key) -> list[Key]:
        rows = self.store.rows[TABLE].values()
        return [row.key for row in rows if row.batch == batch and row.time_acked_ns is None]

    def _follow_ups(self, batch: Key) -> list[Key]:
        return [key for key in self.required if self.store.rows[TABLE][key].after_batch == batch]

    @precondition(lambda self: self.holdings)
    @rule(pick=PICK)
    def acknowledge(self, pick: int) -> None:
        self._acknowledge(self._one_of(sorted(self.holdings, key=str), pick))

    def _acknowledge(self, key: Key) -> None:
        if key in self.store.locked:
            return  # Its wait is over, and a claim has locked it.
        stage = next(proxy.stage for proxy in self.proxies if self.holdings[key].subscriber in proxy.stage.streams)
        stage.acknowledge(key, seen=True)
        self._report(stage, key)

    @precondition(lambda self: self._unclaimed_parts())
    @rule(pick=PICK, through=PICK)
    def delete_a_part(self, pick: int, through: int) -> None:
        key = self._one_of(self._unclaimed_parts(), pick)
        del self.store.rows[TABLE][key]
        stage = self._one_of(self.proxies, through).stage
        stage.handle(stage.dispatcher.woken)
        stage.handle(stage.dispatcher.parts_over, TABLE, None)
        self._report(stage, key, through_it=False)

    def _unclaimed_parts(self) -> list[Key]:
        return [
            row.key
            for row in self.store.rows[TABLE].values()
            if row.batch is not None and row.after_batch is None and row.epoch == 0 and row.time_acked_ns is None
            if row.key not in self.store.locked
        ]

    def _report(self, by: Stage, key: Key, *, through_it: bool = True) -> None:
        """The proxy of an acknowledgement reports it to its own queues, and the binary log to the other proxies."""
        if through_it:
            by.handle(by.dispatcher.parts_over, TABLE, [key])
        for proxy in self.proxies:
            if self.followed and (proxy.stage is not by or not through_it):
                proxy.stage.handle(proxy.stage.dispatcher.changes_logged, [], [key])
                proxy.stage.handle(proxy.stage.dispatcher.parts_over, TABLE, [key])

    # Clock and database.

    @precondition(lambda self: self._asked())
    @rule(pick=PICK, answered=st.booleans())
    def the_server_does_one_statement(self, pick: int, answered: bool) -> None:
        proxy, asked = self._one_of(self._asked(), pick)
        self._step(proxy, asked)
        if answered and asked.answer is not None:
            proxy.stage.answer(asked)

    @precondition(lambda self: self._claiming())
    @rule(pick=PICK, steps=st.integers(1, 7), key=PICK)
    def a_message_is_acknowledged_in_the_middle_of_a_claim(self, pick: int, steps: int, key: int) -> None:
        proxy, asked = self._one_of(self._claiming(), pick)
        for _ in range(steps):
            self._step(proxy, asked)
        if self.holdings:
            self.acknowledge(key)

    def _claiming(self) -> list[tuple[Proxy, Asked]]:
        return [pair for pair in self._asked() if isinstance(pair[1].effect, Claim) and pair[1].answer is None]

    def _step(self, proxy: Proxy, asked: Asked) -> None:
        """The next statement of an effect; any effect but a claim is one statement."""
        if asked.answer is not None:
            return
        match asked.effect:
            case Claim(claim_id, wanted, slot=slot):
                running = proxy.claims.get(claim_id)
                if running is None:
                    claim = self.claim_type(self.store, proxy.stage.queue, wanted, slot)
                    running = proxy.claims[claim_id] = Running(asked, claim, list(self.steps))
                running.claim.do(step := running.left.pop(0))
                if step is Step.CHECK_BATCHES:
                    running.required = {key: set(parts) for key, parts in self.required.items()}
                if not running.left:
                    del proxy.claims[claim_id]
                if step is Step.COMMIT:
                    self._check(running)
                    proxy.stage.end_holdings(taken.key for taken in running.claim.result.claims)
                if not running.left:
                    self._answer_claim(proxy.stage, running)
            case _:
                proxy.stage.do(asked)

    def _check(self, running: Running) -> None:
        """No follow-up was claimed for the first time before its batch was done."""
        rows = self.store.rows[TABLE]
        required = self.required if running.required is None else running.required
        for taken in running.claim.result.claims:
            if taken.epoch == 1 and taken.key in required:
                unacknowledged = [row.key for key in required[taken.key] if (row := rows.get(key))
                                  if row.time_acked_ns is None]  # fmt: skip
                assert not unacknowledged, f"{taken.key!r} does not wait for {unacknowledged}"

    @staticmethod
    def _answer_claim(stage: Stage, running: Running) -> None:
        effect, result = running.asked.effect, running.claim.result
        assert isinstance(effect, Claim)
        done = stage.dispatcher.claim_done
        running.asked.answer = lambda: done(stage.now, effect.claim_id, result.claims, None, None, result.waiting)

    @precondition(lambda self: self._asked())
    @rule(pick=PICK)
    def one_fails(self, pick: int) -> None:
        """Its connection broke, and what was not committed is rolled back."""
        proxy, asked = self._one_of(self._asked(), pick)
        if isinstance(asked.effect, Claim) and (running := proxy.claims.pop(asked.effect.claim_id, None)):
            running.claim.die()
        proxy.stage.fail(asked)

    @rule(duration_s=st.sampled_from([0.001, 0.1, 1, 10]))
    def time_passes(self, duration_s: float) -> None:
        self._pass_time(int(duration_s * NS_PER_S))

    @rule()
    def all_goes_well_for_a_while(self) -> None:
        for _ in range(10):
            self._settle()
            self._pass_time(NS_PER_S // 10)

    def _settle(self) -> None:
        for _ in range(2_000):
            asked = self._asked()
            if not asked:
                return
            for proxy, one in asked:
                self._step(proxy, one)
                if one.answer is not None and one in proxy.stage.asked:
                    proxy.stage.answer(one)
        raise AssertionError(f"no end of effects: {self._asked()[:3]}")

    def _pass_time(self, duration_ns: int) -> None:
        self.mono_ns += duration_ns
        self.store.now_ns += duration_ns
        for proxy in self.proxies:
            proxy.stage.mono_ns = self.mono_ns
            proxy.stage.handle(proxy.stage.dispatcher.tick)

    # What must hold at the end.

    def teardown(self) -> None:
        """If all that is delivered is acknowledged, all is delivered soon."""
        if not hasattr(self, "proxies"):
            return
        until_ns = self.mono_ns + self.soon_ns
        while True:
            self._settle()
            for key in sorted(self.holdings, key=str):
                self._acknowledge(key)
                until_ns = self.mono_ns + self.soon_ns
            if not self._left() and not self._asked():
                return
            assert self.mono_ns < until_ns, f"{self._left()} are not delivered"
            wakes = [proxy.stage.dispatcher.wake_at_ns for proxy in self.proxies]
            wake_ns = min([at_ns for at_ns in wakes if at_ns is not None], default=until_ns)
            self._pass_time(min(max(wake_ns - self.mono_ns, NS_PER_S // 1_000), until_ns - self.mono_ns))

    def _left(self) -> list[Key]:
        return [row.key for row in self.store.rows[TABLE].values() if row.time_acked_ns is None]

    def _asked(self) -> list[tuple[Proxy, Asked]]:
        return [(proxy, asked) for proxy in self.proxies for asked in proxy.stage.asked]

    @staticmethod
    def _one_of(things: Sequence[T], pick: int) -> T:
        return things[pick % len(things)]


class Followed(Batched):
    followed = True
    policy = replace(WAITING, poller_interval_ns=10_000 * NS_PER_S)


class Alone(Followed):
    """With one proxy, so that no other one finds what it has missed."""

    proxies_max = 1


# Breaks.


class NotChecked(Batched):
    steps = (Step.BEGIN, Step.LOCK_ROWS, *SECOND_PACKET)


class WithoutSetAside(FollowUps):
    def set_aside(self, keys: Sequence[Key], upcoming: Callable[[int], Iterable[Key]]) -> None:
        """The last part may have been acknowledged before this was committed."""


class WithoutReportsDuringChecks(FollowUps):
    def parts_over(self, table: TableId, keys: Iterable[Key] | None) -> None:
        if not self.under_way:
            super().parts_over(table, keys)


def with_follow_ups(broken: type[FollowUps]) -> type[Dispatcher]:
    """A dispatcher with this part."""

    class Broken(Dispatcher):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            self.parts.follow_ups = broken(self.parts.policy, self.parts.limits)

    return Broken


def broken_play(part: type[FollowUps]) -> type[Batched]:
    return type(part.__name__, (Alone,), {"dispatcher_type": with_follow_ups(part)})


BREAKS: list[type[Batched]] = [
    NotChecked,
    broken_play(WithoutSetAside),
    broken_play(WithoutReportsDuringChecks),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("broken", BREAKS, ids=lambda play: play.__name__)
def test_the_play_objects_to_batches_that_are_broken_on_purpose(broken: type[Batched]) -> None:
    assert_objects(broken)


TestBatched = Batched.TestCase
TestBatched.settings = settings(max_examples=examples(25), stateful_step_count=60, deadline=None)
TestFollowed = Followed.TestCase
TestFollowed.settings = settings(max_examples=examples(25), stateful_step_count=60, deadline=None)
