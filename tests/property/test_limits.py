"""Limits over several proxies: never more messages in flight than allowed, and no place left unused.

Several dispatchers play on one in-memory store. Each statement of a claim is a step of its own, and anything may happen
between two of them: another proxy's claim, an acknowledgement, the death of the proxy, or that it freezes until the
server ends its connection. After each step, the messages in flight are counted from the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Claim, Release
from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease
from engine.model import NS_PER_S, Claimed, FetchResult, Group, Key, LimitsLeft, Share, TableId
from engine.queue_table import Policy
from engine.store.claim_plan import FIRST_PACKET, SECOND_PACKET, Step
from engine.store.limits.group_limit import GroupCounts
from engine.store.limits.group_order import GroupOrder
from engine.store.limits.group_rate import GroupPaces
from engine.store.limits.in_flight import InFlightCount
from engine.store.limits.pace import Pace
from tests.support.hunting import assert_objects
from tests.support.memory_store import MemoryClaim, MemoryStore, Row
from tests.support.play import POLICY, TABLE, Asked, Holding, Stage
from tests.support.sampling import examples

T = TypeVar("T")

PICK = st.integers(0, 1_000)
KEYS = st.integers(1, 14)
LIMIT = 3
RATE = 4
WAIT_NS = 30 * NS_PER_S
IDLE_NS = 3 * NS_PER_S
"""After this time the server ends the session of a proxy that is frozen in the middle of a claim. One that waits for a
lock for so long has failed before."""
SOON_NS = 10 * NS_PER_S
"""Longer than the pauses while a limit is reached, shorter than any wait."""
COUNTED = replace(
    POLICY, ack_wait_ns=WAIT_NS, min_backoff_ns=WAIT_NS, max_backoff_ns=WAIT_NS, cache_size=30, batch_size=5,
    lease="lease", max_in_flight=LIMIT,
)  # fmt: skip
GROUPS = 3
GROUP_LIMIT = 2
GROUPED = replace(COUNTED, max_in_flight=None, group_by=("tenant",), group_limit=GROUP_LIMIT)
GROUP_RATE = 1
GROUP_PACED = replace(GROUPED, group_limit=None, group_rate=GROUP_RATE)
STRICT = replace(GROUPED, group_limit=None, group_strict=True)


@dataclass(eq=False)
class Proxy:
    """A proxy that lives: its dispatcher, its slot, and its claims in the middle."""

    stage: Stage
    slot: int
    claims: dict[int, Running] = field(default_factory=dict)


@dataclass(eq=False)
class Running:
    """A claim of which some statements were carried out."""

    asked: Asked
    claim: MemoryClaim
    left: list[Step]
    since_ns: int


class Limited(RuleBasedStateMachine):
    """Up to three proxies on one store."""

    dispatcher_type: type[Dispatcher] = Dispatcher
    claim_type: type[MemoryClaim] = MemoryClaim
    steps: ClassVar[Sequence[Step]] = [
        *(step for step in FIRST_PACKET if step is not Step.COUNT_GROUPS),
        *SECOND_PACKET,
    ]
    policy: ClassVar[Policy] = COUNTED
    limit = LIMIT
    followed = False
    """Whether the binary log shows the proxies what others do."""

    @initialize()
    def open(self) -> None:
        self.store = MemoryStore(now_ns=1_000_000 * NS_PER_S)
        self.mono_ns = 5_000 * NS_PER_S
        self.holdings: dict[Key, Holding] = {}
        self.acked: set[Key] = set()
        self.proxies: list[Proxy] = []
        self.dead: list[Proxy] = []
        self.streams = 0
        for _ in range(2):
            self.start_a_proxy()

    # Proxies.

    @precondition(lambda self: len(self.proxies) < 3)
    @rule()
    def start_a_proxy(self) -> None:
        slot = next(slot for slot in range(1, 1_000) if slot not in self.store.slots_held)
        stage = Stage(
            policy=self.policy, dispatcher_type=self.dispatcher_type, store=self.store, mono_ns=self.mono_ns,
            holdings=self.holdings, acked_seen=self.acked, table=self._table_for(slot),
        )  # fmt: skip
        stage.queue = replace(stage.queue, lease_index="by_lease")
        self.store.slots_held.add(slot)
        self.proxies.append(Proxy(stage, slot))
        stage.handle(stage.dispatcher.slot_given, slot)
        for _ in range(2):
            self.streams += 1
            stage.subscribe(self.streams, holder=self.streams)
        self._started(self.proxies[-1])

    def _started(self, proxy: Proxy) -> None:
        """A proxy has begun."""

    def _table_for(self, slot: int) -> TableId:
        """The queue at which the proxy with this slot works."""
        return TABLE

    @precondition(lambda self: not self.policy.grouping)
    @rule(shared=st.booleans())
    def the_proxies_divide_the_messages(self, shared: bool) -> None:
        """With shares, proxies claim different messages at the same time, as they always do with groups."""
        for number, proxy in enumerate(self.proxies):
            share = Share(number, len(self.proxies)) if shared and len(self.proxies) > 1 else None
            proxy.stage.handle(proxy.stage.dispatcher.share_changed, share)

    @precondition(lambda self: len(self.proxies) > 1)
    @rule(pick=PICK, frozen=st.booleans())
    def a_proxy_dies(self, pick: int, *, frozen: bool) -> None:
        """`frozen`: the server notices it later, and has the first packet of its claims meanwhile."""
        proxy = self._one_of(self.proxies, pick)
        self.proxies.remove(proxy)
        self.dead.append(proxy)
        for key, holding in list(self.holdings.items()):
            if holding.subscriber in proxy.stage.streams:
                del self.holdings[key]
        if not frozen:
            self._end(proxy)

    def _end(self, proxy: Proxy) -> None:
        """The server ends its connections."""
        self.dead.remove(proxy)
        self.store.slots_held.discard(proxy.slot)
        for running in proxy.claims.values():
            running.claim.die()
        for other in self.proxies:
            other.stage.handle(other.stage.dispatcher.proxy_lost)
            other.stage.handle(other.stage.dispatcher.woken)  # What it alone was told of, a poll would find.

    # Clients.

    @rule(key=KEYS, pick=PICK)
    def enqueue(self, key: int, pick: int) -> None:
        if key not in self.store.rows[TABLE]:
            self.store.put(TABLE, Row(key, time_next_ns=0, payload=str(key).encode(), group=(key % GROUPS,)))
            stage = self._one_of(self.proxies, pick).stage
            stage.handle(stage.dispatcher.woken)

    @precondition(lambda self: self.holdings)
    @rule(pick=PICK)
    def acknowledge(self, pick: int) -> None:
        self._acknowledge(self._one_of(sorted(self.holdings, key=str), pick))

    def _acknowledge(self, key: Key) -> None:
        if key in self.store.locked:
            return  # Its wait is over, and a claim has locked it.
        before = self.store.rows[TABLE][key]
        stage = next(proxy.stage for proxy in self.proxies if self.holdings[key].subscriber in proxy.stage.streams)
        stage.acknowledge(key, seen=True)
        self._log(stage, key, before)

    @precondition(lambda self: self.holdings)
    @rule(pick=PICK, delay_s=st.sampled_from([0, 1, 60]))
    def give_back(self, pick: int, delay_s: int) -> None:
        key = self._one_of(sorted(self.holdings, key=str), pick)
        if key not in self.store.locked:
            before = self.store.rows[TABLE][key]
            stage = next(proxy.stage for proxy in self.proxies if self.holdings[key].subscriber in proxy.stage.streams)
            stage.give_back(key, delay_s * NS_PER_S)
            self._log(stage, key, before)

    def _log(self, by: Stage, key: Key, before: Row) -> None:
        """The binary log shows the other proxies what one, or a client of it, has changed."""
        row = self.store.rows[TABLE][key]
        for proxy in self.proxies:
            if not self.followed or proxy.stage is by:
                continue
            dispatcher = proxy.stage.dispatcher
            if row.time_acked_ns is None:
                state = {key: (before.epoch, before.time_next_ns or 0)}
                proxy.stage.handle(dispatcher.changes_logged, [row.entry], [], state)
            else:
                proxy.stage.handle(dispatcher.changes_logged, [], [key])

    # Clock and database.

    @precondition(lambda self: self._asked())
    @rule(pick=PICK, answered=st.booleans())
    def the_server_does_one_statement(self, pick: int, answered: bool) -> None:
        proxy, asked = self._one_of(self._asked(), pick)
        self._step(proxy, asked)
        if answered and asked.answer is not None:
            proxy.stage.answer(asked)

    @precondition(lambda self: len(self._claiming()) > 1)
    @rule(pick=PICK, steps=st.integers(1, 8))
    def a_claim_pauses_while_that_of_another_proxy_is_carried_out(self, pick: int, steps: int) -> None:
        claims = self._claiming()
        proxy, asked = self._one_of(claims, pick)
        for _ in range(steps):
            self._step(proxy, asked)
        other, another = next(pair for pair in claims if pair[0] is not proxy)
        self._carry_out(other, another)

    @rule(first=KEYS, pick=PICK, steps=st.integers(1, 8))
    def messages_come_and_proxies_claim_at_once(self, first: int, pick: int, steps: int) -> None:
        """More messages than the limit allows, so that each proxy has some to claim."""
        for key in range(first, first + 2 * LIMIT):
            if key not in self.store.rows[TABLE]:
                self.store.put(TABLE, Row(key, time_next_ns=0, payload=str(key).encode(), group=(key % GROUPS,)))
        for proxy in self.proxies:
            proxy.stage.handle(proxy.stage.dispatcher.woken)
        for proxy, asked in self._asked():
            if not isinstance(asked.effect, Claim):
                self._step(proxy, asked)
                proxy.stage.answer(asked)
        if len(self._claiming()) > 1:
            self.a_claim_pauses_while_that_of_another_proxy_is_carried_out(pick, steps)

    def _claiming(self) -> list[tuple[Proxy, Asked]]:
        """The claims that are not carried out as a whole; of each proxy there is one at most."""
        claims = [pair for pair in self._asked() if isinstance(pair[1].effect, Claim) and pair[1].answer is None]
        assert len({proxy for proxy, _ in claims}) == len(claims), "a proxy has two claims under way"
        return claims

    def _carry_out(self, proxy: Proxy, asked: Asked) -> None:
        """The statements of an effect, up to one that waits for a lock."""
        while asked.answer is None and not self._waits(proxy, asked):
            self._step(proxy, asked)

    def _waits(self, proxy: Proxy, asked: Asked) -> bool:
        """Whether its next statement waits for a lock that another claim holds."""
        running = proxy.claims.get(asked.effect.claim_id) if isinstance(asked.effect, Claim) else None
        return running is not None and running.left[0] is Step.LOCK_LIMITS and running.claim.waits

    def _step(self, proxy: Proxy, asked: Asked) -> None:
        """The next statement of an effect, unless it waits; any effect but a claim is one statement."""
        if asked.answer is not None or self._waits(proxy, asked):
            return
        match asked.effect:
            case Claim(claim_id, wanted, slot=slot):
                running = proxy.claims.get(claim_id)
                if running is None:
                    claim = self.claim_type(self.store, proxy.stage.queue, wanted, slot)
                    running = proxy.claims[claim_id] = Running(asked, claim, list(self.steps), self.mono_ns)
                running.claim.do(running.left.pop(0))
                if not running.left:
                    del proxy.claims[claim_id]
                    self._answer_claim(proxy.stage, running)
                self.check()
            case Release(returns):
                rows = self.store.rows[proxy.stage.table]
                before = {claim.key: rows[claim.key] for claim in returns}
                proxy.stage.do(asked)
                for key, row in before.items():
                    if rows[key] is not row:
                        self._log(proxy.stage, key, row)
            case _:
                proxy.stage.do(asked)

    @staticmethod
    def _answer_claim(stage: Stage, running: Running) -> None:
        effect, result = running.asked.effect, running.claim.result
        assert isinstance(effect, Claim)
        stage.end_holdings(claimed.key for claimed in result.claims)
        dispatcher = stage.dispatcher
        running.asked.answer = lambda: dispatcher.claim_done(
            stage.now, effect.claim_id, result.claims, None, result.limits
        )

    def check(self) -> None:
        """The limit, counted from the rows."""
        rows = self.store.rows[TABLE].values()
        in_flight = [row.key for row in rows if row.is_in_flight(self.store.now_ns)]
        assert len(in_flight) <= self.limit, f"{in_flight} are in flight"

    @precondition(lambda self: self._asked())
    @rule(pick=PICK)
    def one_fails(self, pick: int) -> None:
        """Its connection broke, or it has waited for a lock in vain. What was not committed is rolled back."""
        proxy, asked = self._one_of(self._asked(), pick)
        if isinstance(asked.effect, Claim) and (running := proxy.claims.pop(asked.effect.claim_id, None)):
            running.claim.die()
        proxy.stage.fail(asked)

    @rule(duration_s=st.sampled_from([0.001, 0.1, 1, 20]))
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
            if all(self._waits(proxy, one) for proxy, one in asked):
                return
            for proxy, one in asked:
                self._step(proxy, one)
                if one.answer is not None and one in proxy.stage.asked:
                    proxy.stage.answer(one)
        raise AssertionError(f"no end of effects: {self._asked()[:3]}")

    def _pass_time(self, duration_ns: int) -> None:
        self.mono_ns += duration_ns
        self.store.now_ns += duration_ns
        for proxy in list(self.dead):
            self._end(proxy)
        for proxy in self.proxies:
            for claim_id, running in list(proxy.claims.items()):
                if self.mono_ns - running.since_ns > IDLE_NS:
                    del proxy.claims[claim_id]
                    running.claim.die()
                    proxy.stage.fail(running.asked)
            proxy.stage.mono_ns = self.mono_ns
            proxy.stage.handle(proxy.stage.dispatcher.tick)
        self.check()

    # What must hold at the end.

    def teardown(self) -> None:
        """A message that is due, and has a place, is delivered soon."""
        if not hasattr(self, "proxies"):
            return
        self._pass_time(0)  # The server notices proxies that have died.
        waiting: dict[Key, int] = {}
        while True:
            self._settle()
            if not (due := self._due()):
                return
            free = [key for key in due if self._has_place(key)]
            if not free and self.holdings:
                self._acknowledge(min(self.holdings, key=str))
                self._settle()
            waiting = {key: waiting.get(key, self.mono_ns) for key in free}
            until_ns = min(waiting.values(), default=self.mono_ns) + SOON_NS
            assert self.mono_ns < until_ns, f"a place is free, and {waiting} wait for it"
            wakes = [proxy.stage.dispatcher.wake_at_ns for proxy in self.proxies]
            wake_ns = min([at_ns for at_ns in wakes if at_ns is not None], default=until_ns)
            self._pass_time(min(max(wake_ns - self.mono_ns, NS_PER_S // 1_000), until_ns - self.mono_ns))

    def _due(self) -> list[Key]:
        now_ns = self.store.now_ns
        rows = self.store.rows[TABLE].values()
        return [row.key for row in rows if row.time_acked_ns is None and row.entry.due_ns <= now_ns]

    def _has_place(self, key: Key) -> bool:
        """Whether no limit keeps this message from being delivered."""
        rows = self.store.rows[TABLE].values()
        return sum(row.is_in_flight(self.store.now_ns) for row in rows) < self.limit

    def _asked(self) -> list[tuple[Proxy, Asked]]:
        return [(proxy, asked) for proxy in self.proxies for asked in proxy.stage.asked]

    @staticmethod
    def _one_of(things: Sequence[T], pick: int) -> T:
        return things[pick % len(things)]


class Followed(Limited):
    followed = True


class Grouped(Limited):
    """With a limit for each message group, instead of one for all."""

    steps = (*FIRST_PACKET, *SECOND_PACKET)
    policy = GROUPED
    followed = True

    def _started(self, proxy: Proxy) -> None:
        proxy.stage.set_share(Share(proxy.slot % 2, 2))  # Otherwise all proxies try the same messages.

    def check(self) -> None:
        for group, keys in self._in_flight().items():
            assert len(keys) <= GROUP_LIMIT, f"{keys} of {group} are in flight"

    def _in_flight(self) -> dict[Group, list[Key]]:
        found: dict[Group, list[Key]] = {}
        for row in self.store.rows[TABLE].values():
            if row.is_in_flight(self.store.now_ns):
                found.setdefault(row.group, []).append(row.key)
        return found

    def _has_place(self, key: Key) -> bool:
        return len(self._in_flight().get(self.store.rows[TABLE][key].group, ())) < GROUP_LIMIT


class GroupedUnfollowed(Grouped):
    """Without the binary log: what others do is found within a poll."""

    followed = False
    policy = replace(GROUPED, poller_interval_ns=NS_PER_S)


class Strict(Grouped):
    """With each group in strict order: one run at a time, none before a smaller id."""

    policy = STRICT
    run = 1
    """How many messages are a run at most."""

    @rule(key=KEYS, delay_s=st.sampled_from([1, 20]), pick=PICK)
    def enqueue_for_later(self, key: int, delay_s: int, pick: int) -> None:
        if key not in self.store.rows[TABLE]:
            due_ns = self.store.now_ns + delay_s * NS_PER_S
            self.store.put(TABLE, Row(key, time_next_ns=due_ns, payload=str(key).encode(), group=(key % GROUPS,)))
            stage = self._one_of(self.proxies, pick).stage
            stage.handle(stage.dispatcher.woken)

    def _step(self, proxy: Proxy, asked: Asked) -> None:
        if not any(other.claims for other in self.proxies):
            self.known = set(self.store.rows[TABLE])  # Messages of later inserts may be committed too late for a claim.
        before = self._in_flight()
        super()._step(proxy, asked)
        rows = self.store.rows[TABLE]
        for group, keys in self._in_flight().items():
            begun = set(keys) - set(before.get(group, ()))
            assert not begun or group not in before, f"{begun} of {group} are in flight beside {before[group]}"
            for key in begun:
                waiting = [row.key for row in rows.values() if row.group == group and row.time_acked_ns is None]
                earlier = [one for one in waiting if one in self.known and int(str(one)) < int(str(key))]
                assert set(earlier) <= begun, f"{key!r} goes before {earlier}"
            if begun:
                self._run_began(sorted(begun, key=str))

    def _run_began(self, keys: Sequence[Key]) -> None:
        """A claim has taken these messages of a group."""

    def check(self) -> None:
        for group, keys in self._in_flight().items():
            assert len(keys) <= self.run, f"{keys} of {group} are in flight"

    def _due(self) -> list[Key]:
        """Those that are due and may be next."""
        rows = [row for row in self.store.rows[TABLE].values() if row.time_acked_ns is None]
        first = {
            group: min(int(str(row.key)) for row in rows if row.group == group) for group in {r.group for r in rows}
        }
        return [key for key in super()._due() if key in first.values()]

    def _has_place(self, key: Key) -> bool:
        return not self._in_flight().get(self.store.rows[TABLE][key].group)


class StrictRuns(Strict):
    """With up to three consecutive messages of a group at a time, which go to one stream and come back
    together."""

    run = 3
    policy = replace(STRICT, group_limit=run)

    @initialize()
    def open_runs(self) -> None:
        self.run_of: dict[Key, Sequence[Key]] = {}
        """The last run of each message."""
        self.seen: Counter[int] = Counter()
        """How many messages each stream had received when they were looked at."""
        self.sent: dict[tuple[Key, ...], int] = {}
        """The last message of a run that was sent."""

    def _run_began(self, keys: Sequence[Key]) -> None:
        run = tuple(sorted(keys, key=lambda key: int(str(key))))
        self.run_of.update(dict.fromkeys(run, run))
        self.sent.pop(run, None)

    def _step(self, proxy: Proxy, asked: Asked) -> None:
        before = dict(self.store.rows[TABLE])
        super()._step(proxy, asked)
        for claim in asked.effect.returns if isinstance(asked.effect, Release) else ():
            if self.store.rows[TABLE][claim.key] is not before[claim.key] and claim.key in self.holdings:
                self._taken_along(claim.key)

    def _taken_along(self, key: Key) -> None:
        """A message that a client has was given back by its proxy, because an earlier one of its run was."""
        run = self.run_of[key]
        earlier = [self.store.rows[TABLE][one] for one in run[: run.index(key)]]
        waiting = [row for row in earlier if row.time_acked_ns is None and not row.is_in_flight(self.store.now_ns)]
        assert waiting, f"{key!r} of {run} was given back without a reason"
        del self.holdings[key]

    @invariant()
    def a_run_goes_to_one_stream_in_order(self) -> None:
        if not hasattr(self, "proxies"):
            return
        for keys in self._in_flight().values():
            held = [holding for key in keys if (holding := self.holdings.get(key)) and not holding.is_over]
            assert len({holding.subscriber for holding in held}) <= 1, f"{keys} are at several streams"
        for proxy in self.proxies:
            for stream, keys in proxy.stage.delivered.items():
                for key in keys[self.seen[stream] :]:
                    run, number = tuple(self.run_of[key]), int(str(key))
                    assert number > self.sent.get(run, 0), f"{key!r} is behind {self.sent[run]} of {run}"
                    self.sent[run] = number
                self.seen[stream] = len(keys)

    @precondition(lambda self: self._in_flight())
    @rule(pick=PICK)
    def a_message_may_have_been_changed(self, pick: int) -> None:
        """By a transaction that was rolled back."""
        runs = sorted(self._in_flight().values(), key=lambda keys: (-len(keys), str(keys)))
        unsent = [key for key in runs[0] if key not in self.holdings]
        key = self._one_of(unsent or [key for keys in runs for key in keys], pick)
        for proxy in self.proxies:
            proxy.stage.handle(proxy.stage.dispatcher.suspected, [key])

    @precondition(lambda self: self._claiming())
    @rule(pick=PICK)
    def a_claimed_message_may_have_been_changed_before_it_is_read(self, pick: int) -> None:
        proxy, asked = self._one_of(self._claiming(), pick)
        self._carry_out(proxy, asked)
        if asked.answer is None:
            return  # It waits for the lock of another claim.
        proxy.stage.answer(asked)
        if self._in_flight():
            self.a_message_may_have_been_changed(pick)

    @precondition(lambda self: self.holdings)
    @rule(pick=PICK, delay_s=st.sampled_from([0, 60]))
    def one_of_a_run_is_given_back_and_all_goes_well(self, pick: int, delay_s: int) -> None:
        held = [key for keys in self._in_flight().values() for key in keys if len(keys) > 1 and key in self.holdings]
        if not held or (key := self._one_of(sorted(held, key=str), pick)) in self.store.locked:
            return
        run = self.run_of[key]
        stage = next(proxy.stage for proxy in self.proxies if self.holdings[key].subscriber in proxy.stage.streams)
        before = self.store.rows[TABLE][key]
        epochs = {one: self.store.rows[TABLE][one].epoch for one in run}
        stage.give_back(key, delay_s * NS_PER_S)
        self._log(stage, key, before)
        for _ in range(10):
            self._settle()
            self._pass_time(NS_PER_S)
        for later in run[run.index(key) + 1 :]:
            row = self.store.rows[TABLE][later]
            kept = row.is_in_flight(self.store.now_ns) and row.epoch == epochs[later]
            assert not kept, f"{later!r} of {run} is in flight though {key!r} was given back"


class Paced(Limited):
    """With a rate as well."""

    policy = replace(COUNTED, max_in_flight=30, max_rate=RATE)
    limit = 30

    @initialize()
    def open_paced(self) -> None:
        self.claimed_ns: list[int] = []
        self.noted: set[tuple[Key, int]] = set()

    def check(self) -> None:
        super().check()
        if not hasattr(self, "claimed_ns"):
            return
        for row in self.store.rows[TABLE].values():
            if row.is_in_flight(self.store.now_ns) and (row.key, row.epoch) not in self.noted:
                self.noted.add((row.key, row.epoch))
                self.claimed_ns.append(self.store.now_ns)
        lately = [at_ns for at_ns in self.claimed_ns if at_ns > self.store.now_ns - NS_PER_S]
        assert len(lately) <= RATE + 1, "the rate is exceeded"


class GroupPaced(Grouped):
    """With a rate for each message group."""

    policy = GROUP_PACED

    @initialize()
    def open_paced(self) -> None:
        self.claims: Counter[Group] = Counter()
        self.begun_ns: dict[Group, int] = {}
        self.noted: set[tuple[Key, int]] = set()

    def check(self) -> None:
        """Each claim of a group moves its kept time by a whole interval. If a claim did not see what another
        one has written, the kept time has moved by less than all of them should have moved it."""
        if not hasattr(self, "claims"):
            return
        for row in self.store.rows[TABLE].values():
            if row.is_in_flight(self.store.now_ns) and (row.key, row.epoch) not in self.noted:
                self.noted.add((row.key, row.epoch))
                self.claims[row.group] += 1
        for group, count in self.claims.items():
            moved_ns = self.store.group_rates[TABLE, group] - count * NS_PER_S // GROUP_RATE
            assert moved_ns >= self.begun_ns.setdefault(group, moved_ns), f"the rate of {group} is exceeded"

    def _has_place(self, key: Key) -> bool:
        kept_ns = self.store.group_rates.get((TABLE, self.store.rows[TABLE][key].group))
        return Pace(GROUP_RATE).allowed(kept_ns, self.store.now_ns) > 0


class GroupPacedUnfollowed(GroupPaced):
    followed = False


class GroupPacedAndLimited(GroupPaced):
    """Both hold."""

    policy = replace(GROUPED, group_rate=GROUP_RATE)

    def check(self) -> None:
        super().check()
        Grouped.check(self)

    def _has_place(self, key: Key) -> bool:
        return super()._has_place(key) and Grouped._has_place(self, key)


class CountedBeforeTheLock(Limited):
    steps = (Step.BEGIN, Step.COUNT, Step.LOCK_LIMITS, Step.LOCK_ROWS, *SECOND_PACKET)


class ClaimThatUnlocksEarly(MemoryClaim):
    """Releases the locks of its limits before the commit."""

    def do(self, step: Step) -> None:
        super().do(step)
        if step is Step.WRITE:
            self._unlock_limits()


class ReleasedBeforeTheCommit(Limited):
    claim_type = ClaimThatUnlocksEarly


class ClaimWithoutLock(MemoryClaim):
    """Waits for nobody."""

    waits = False


class TheLockIsNotNeeded(Limited):
    claim_type = ClaimWithoutLock


class ClaimOfOwnMessages(MemoryClaim):
    """Counts what carries its own slot."""

    def _count(self, rows: Collection[Row], most: int) -> InFlightCount:
        own = [row for row in rows if row.lease_ns is not None and row.lease_ns % 1_000 == self._slot]
        return super()._count(own, most)


class CountedPerProxy(Limited):
    claim_type = ClaimOfOwnMessages


class ClaimOfAnOwnRate(MemoryClaim):
    """Keeps a time for each slot."""

    def do(self, step: Step) -> None:
        rates, own = self._store.rates, TableId("slot", str(self._slot))
        if step is Step.LOCK_LIMITS:
            rates[self._table.id] = rates.get(own, 0)
        super().do(step)
        if step is Step.COMMIT:
            rates[own] = rates[self._table.id]


class RatePerProxy(Paced):
    claim_type = ClaimOfAnOwnRate


class RateWithoutLock(Paced):
    claim_type = ClaimWithoutLock


class DispatcherThatMisses(Dispatcher):
    """Takes what was left out for taken by somebody else, and forgets it."""

    def claim_done(
        self,
        now: Instant,
        claim_id: int,
        claims: Sequence[Claimed],
        rows: FetchResult | None = None,
        left: LimitsLeft | None = None,
        waiting: Sequence[Key] = (),
    ) -> Effects:
        effects = super().claim_done(now, claim_id, claims, rows, left, waiting)
        if left is not None:
            for group in self.parts.groups:
                group.scans.buffer.forget(left.left_out)
        return effects


class LeftOutIsForgotten(Limited):
    dispatcher_type = DispatcherThatMisses


class DispatcherThatWaitsForItsOwn(Dispatcher):
    """Nothing but the end of an own delivery opens it again."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.parts.capacity.reopen = lambda: None  # type: ignore[method-assign]
        self.parts.capacity.reopen_when_due = lambda now: None  # type: ignore[method-assign]


class OnlyOwnEndsOpenIt(Followed):
    dispatcher_type = DispatcherThatWaitsForItsOwn


class GroupsReleasedBeforeTheCommit(Grouped):
    claim_type = ClaimThatUnlocksEarly


class ClaimOfOwnGroups(MemoryClaim):
    """Counts for each group what carries its own slot."""

    def _count_groups(self, rows: Collection[Row], most: int) -> GroupCounts:
        own = [row for row in rows if row.lease_ns is not None and row.lease_ns % 1_000 == self._slot]
        return super()._count_groups(own, most)


class GroupsCountedPerProxy(Grouped):
    claim_type = ClaimOfOwnGroups


class DispatcherWithFullGroups(Dispatcher):
    """No report opens a group that another proxy has filled."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        for hint in self.parts.places.hints:
            hint.delivery_over = lambda *_: None  # type: ignore[method-assign]


class FullGroupsStayFull(Grouped):
    dispatcher_type = DispatcherWithFullGroups


class DispatcherThatParksForGood(Dispatcher):
    """A group whose own delivery has ended is not brought back."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.parts.in_flight.take_freed = set  # type: ignore[method-assign]


class ParkedGroupsStayParked(Grouped):
    dispatcher_type = DispatcherThatParksForGood


class ClaimInAnyOrder(MemoryClaim):
    """Takes any message of a group as its first one."""

    def _order(self, rows: Mapping[Key, Row]) -> GroupOrder:
        order = super()._order(rows)
        order.wrong = {}
        order.note_locked({key: row.entry for key, row in self._locked.items()})
        return order


class AnyIsFirst(Strict):
    claim_type = ClaimInAnyOrder


class ClaimWithoutPlaces(MemoryClaim):
    """Compares ids alone: a late smaller id goes out beside a greater one."""

    def _in_flight(self, group: Group, rows: Collection[Row]) -> dict[Key, int]:
        return {}


class FirstBesideOthers(Strict):
    claim_type = ClaimWithoutPlaces


class ClaimOfAnyRun(MemoryClaim):
    """Takes what the dispatcher knows of a group as a run, whatever is between."""

    def _order(self, rows: Mapping[Key, Row]) -> GroupOrder:
        order = super()._order(rows)
        firsts = {run[0] for run in order.runs}
        order.wrong = {key: entry for key, entry in order.wrong.items() if key in firsts}
        order.note_locked({key: row.entry for key, row in self._locked.items()})
        return order


class RunsWithGaps(StrictRuns):
    claim_type = ClaimOfAnyRun


class RunsBesideOthers(StrictRuns):
    claim_type = ClaimWithoutPlaces


class DispatcherThatDividesRuns(Dispatcher):
    """Gives each message to the stream that has the most room."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        for group in self.parts.groups:
            members = group.subscribers
            members.distribute_runs = lambda runs, members=members: members.distribute(  # type: ignore[method-assign,misc]
                [lease for run in runs for lease in run]
            )


class RunsOfSeveralStreams(StrictRuns):
    dispatcher_type = DispatcherThatDividesRuns


class DispatcherThatSendsWhatItHas(Dispatcher):
    """Sends the rows that are read, though an earlier one of their run has to be looked up."""

    def claim_done(self, now: Instant, claim_id: int, *arguments: Any) -> Effects:
        effects = super().claim_done(now, claim_id, *arguments)
        for lease in self.parts.leases:
            if lease.run is not None and not isinstance(lease.run, UnorderedRun):
                lease.run = UnorderedRun(lease.run)
        return effects


class UnorderedRun(list[Lease]):
    """In which no lease is behind another one."""

    def __iter__(self) -> Iterator[Lease]:
        return iter(())


class RunsAreSentInAnyOrder(StrictRuns):
    dispatcher_type = DispatcherThatSendsWhatItHas


class DispatcherThatWaitsForTheFirst(Dispatcher):
    """Once a message has to be first, no report or time ends that."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        for hint in self.parts.places.hints:
            hint.delivery_over = lambda *_: None  # type: ignore[method-assign]


class TheFirstStaysFirst(Strict):
    dispatcher_type = DispatcherThatWaitsForTheFirst


class ClaimOfOwnGroupRates(MemoryClaim):
    """Keeps the rates of groups for each slot."""

    def _read_rates(self, pace: Pace) -> GroupPaces:
        everybody, own = self._store.group_rates, self._table.id
        kept = {group: full_ns for (table, group), full_ns in everybody.items() if table == self._own}
        self._store.group_rates = {(own, group): full_ns for group, full_ns in kept.items()}
        paces = super()._read_rates(pace)
        self._store.group_rates = everybody
        return paces

    def _write_rates(self) -> None:
        super()._write_rates()
        for group, full_ns in (self._paces.written() if self._paces is not None else {}).items():
            self._store.group_rates[self._own, group] = full_ns

    @property
    def _own(self) -> TableId:
        return TableId("slot", str(self._slot))


class GroupRatesPerProxy(GroupPaced):
    claim_type = ClaimOfOwnGroupRates


class GroupRatesReleasedBeforeTheCommit(GroupPaced):
    claim_type = ClaimThatUnlocksEarly


class DispatcherThatParksPacedGroups(Dispatcher):
    """A group that has used up its rate is not brought back."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        for hint in self.parts.places.hints:
            hint.forget_ended = lambda now: None  # type: ignore[method-assign]


class PacedGroupsStayParked(GroupPaced):
    dispatcher_type = DispatcherThatParksPacedGroups


BREAKS: list[type[Limited]] = [
    GroupRatesPerProxy,
    GroupRatesReleasedBeforeTheCommit,
    PacedGroupsStayParked,
    GroupsReleasedBeforeTheCommit,
    GroupsCountedPerProxy,
    FullGroupsStayFull,
    ParkedGroupsStayParked,
    AnyIsFirst,
    FirstBesideOthers,
    RunsWithGaps,
    RunsBesideOthers,
    RunsOfSeveralStreams,
    RunsAreSentInAnyOrder,
    TheFirstStaysFirst,
    CountedBeforeTheLock,
    ReleasedBeforeTheCommit,
    TheLockIsNotNeeded,
    CountedPerProxy,
    RatePerProxy,
    RateWithoutLock,
    LeftOutIsForgotten,
    OnlyOwnEndsOpenIt,
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("broken", BREAKS, ids=lambda play: play.__name__)
def test_the_play_objects_to_limits_that_are_broken_on_purpose(broken: type[Limited]) -> None:
    assert_objects(broken)


TestLimited = Limited.TestCase
TestLimited.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
TestFollowed = Followed.TestCase
TestFollowed.settings = settings(max_examples=examples(25), stateful_step_count=60, deadline=None)
TestGrouped = Grouped.TestCase
TestGrouped.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
TestStrict = Strict.TestCase
TestStrict.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
TestStrictRuns = StrictRuns.TestCase
TestStrictRuns.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
TestGroupedUnfollowed = GroupedUnfollowed.TestCase
TestGroupedUnfollowed.settings = settings(max_examples=examples(25), stateful_step_count=60, deadline=None)
TestPaced = Paced.TestCase
TestPaced.settings = settings(max_examples=examples(25), stateful_step_count=60, deadline=None)
TestGroupPaced = GroupPaced.TestCase
TestGroupPaced.settings = settings(max_examples=examples(25), stateful_step_count=60, deadline=None)
TestGroupPacedUnfollowed = GroupPacedUnfollowed.TestCase
TestGroupPacedUnfollowed.settings = settings(max_examples=examples(15), stateful_step_count=60, deadline=None)
TestGroupPacedAndLimited = GroupPacedAndLimited.TestCase
TestGroupPacedAndLimited.settings = settings(max_examples=examples(25), stateful_step_count=60, deadline=None)
