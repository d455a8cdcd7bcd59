"""Semaphores over several proxies and queues: no capacity is exceeded, nothing is held in part, and no place is left
unused.

The play is that of limits (test_limits.py): each statement of a claim is a step of its own, and anything may happen
between two of them. Each proxy works at one of two queues, which share the semaphores of their database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Claim
from engine.dispatch.instant import Instant
from engine.dispatch.semaphore_places import needs_of
from engine.model import NS_PER_S, Entry, Key, LimitsLeft, TableId
from engine.store.claim_plan import FIRST_PACKET, SECOND_PACKET, Step
from engine.store.limits.semaphores import SemaphoreCounts
from tests.property.test_limits import (
    COUNTED,
    KEYS,
    PICK,
    ClaimThatUnlocksEarly,
    ClaimWithoutLock,
    Limited,
    Proxy,
)
from tests.support.hunting import assert_objects
from tests.support.memory_store import MemoryClaim, Row
from tests.support.play import TABLE, Asked, Stage
from tests.support.sampling import examples

OTHERS = TableId(TABLE.db, "others")
"""The other queue. Its messages have ids above 100."""
CAPACITIES = {"a": 2, "b": 1, "c": 1}
NEEDS = ["a", "b", "a,b", "b,a", None, "c", "a,c"]
POLICY = replace(COUNTED, max_in_flight=None, semaphores="needs")


class Shared(Limited):
    """Semaphores, and the binary log shows what others do."""

    steps: ClassVar[Sequence[Step]] = (*FIRST_PACKET, *SECOND_PACKET)
    policy = POLICY
    followed = True

    @initialize()
    def open(self) -> None:
        super().open()
        self.store.semaphores = {(TABLE.db, name): capacity for name, capacity in CAPACITIES.items()}

    def _table_for(self, slot: int) -> TableId:
        return (TABLE, OTHERS)[slot % 2]

    # Clients.

    @rule(key=KEYS, there=st.booleans(), needs=st.sampled_from(NEEDS), priority=st.integers(0, 1), pick=PICK)
    def enqueue(self, key: int, there: bool, needs: str | None, priority: int, pick: int) -> None:
        table, key = (OTHERS, 100 + key) if there else (TABLE, key)
        stages = [proxy.stage for proxy in self.proxies if proxy.stage.table == table]
        if stages and key not in self._rows():
            self.store.put(table, Row(key, priority, time_next_ns=0, payload=str(key).encode(), group=(needs,)))
            stage = self._one_of(stages, pick)
            stage.handle(stage.dispatcher.woken)

    @rule(pick=PICK, needs=st.sampled_from(NEEDS))
    def a_waiting_message_needs_something_else(self, pick: int, needs: str | None) -> None:
        waiting = [row.key for row in self._rows().values() if row.time_acked_ns is None and row.lease_ns is None]
        if waiting and (key := self._one_of(waiting, pick)) not in self.store.locked:
            self.store.put(_table(key), replace(self._rows()[key], group=(needs,)))
            for proxy in self._proxies_of(key):
                proxy.stage.handle(lambda now, stage=proxy.stage: stage.dispatcher.woken(now, anywhere=True))

    @rule(exists=st.booleans())
    def one_is_created_or_dropped(self, exists: bool) -> None:
        if exists:
            self.store.semaphores[TABLE.db, "c"] = CAPACITIES["c"]
        elif (TABLE.db, "c") not in self.store.limit_locks:  # Otherwise the statement waits.
            self.store.semaphores.pop((TABLE.db, "c"), None)
        for proxy in self.proxies if self.followed else ():
            proxy.stage.handle(proxy.stage.dispatcher.semaphores_freed, None, None)

    def _acknowledge(self, key: Key) -> None:
        if key not in self.store.locked:
            before, stage = self._rows()[key], self._stage_of(key)
            stage.acknowledge(key, seen=True)
            self._log(stage, key, before)

    @precondition(lambda self: self.holdings)
    @rule(pick=PICK, delay_s=st.sampled_from([0, 1, 60]))
    def give_back(self, pick: int, delay_s: int) -> None:
        key = self._one_of(sorted(self.holdings, key=str), pick)
        if key not in self.store.locked:
            before, stage = self._rows()[key], self._stage_of(key)
            stage.give_back(key, delay_s * NS_PER_S)
            self._log(stage, key, before)

    def _stage_of(self, key: Key) -> Stage:
        """That of the proxy whose client has this message."""
        return next(proxy.stage for proxy in self.proxies if self.holdings[key].subscriber in proxy.stage.streams)

    def _log(self, by: Stage, key: Key, before: Row) -> None:
        row = self._rows()[key]
        for proxy in self.proxies if self.followed else ():
            dispatcher, stage = proxy.stage.dispatcher, proxy.stage
            if stage.table != _table(key):
                stage.handle(dispatcher.semaphores_freed, _table(key), [key])
            elif stage is not by and row.time_acked_ns is None:
                stage.handle(
                    dispatcher.changes_logged, [row.entry], [], {key: (before.epoch, before.time_next_ns or 0)}
                )
            elif stage is not by:
                stage.handle(dispatcher.changes_logged, [], [key])

    # The database.

    @rule(pick=PICK, steps=st.integers(1, 8), needs=st.sampled_from(NEEDS[:4]), first=st.integers(1, 7))
    def messages_come_and_proxies_claim_at_once(self, pick: int, steps: int, needs: str, first: int) -> None:
        """More messages than places, in both queues."""
        for key in (*range(first, first + 3), *range(100 + first, 103 + first)):
            if key not in self._rows():
                self.store.put(_table(key), Row(key, time_next_ns=0, payload=str(key).encode(), group=(needs,)))
        for proxy in self.proxies:
            proxy.stage.handle(proxy.stage.dispatcher.woken)
        for proxy, asked in self._asked():
            if not isinstance(asked.effect, Claim):
                self._step(proxy, asked)
                proxy.stage.answer(asked)
        if len(self._claiming()) > 1:
            self.a_claim_pauses_while_that_of_another_proxy_is_carried_out(pick, steps)

    @precondition(lambda self: self.holdings and self._claiming())
    @rule(pick=PICK, steps=st.integers(3, 8))
    def a_delivery_ends_while_a_claim_is_carried_out(self, pick: int, steps: int) -> None:
        """The claim has counted it, and its answer comes behind the report."""
        proxy, asked = self._one_of(self._claiming(), pick)
        for _ in range(steps):
            self._step(proxy, asked)
        self._acknowledge(self._one_of(sorted(self.holdings, key=str), pick))
        self._carry_out(proxy, asked)
        if asked.answer is not None:
            proxy.stage.answer(asked)

    def check(self) -> None:
        for name, keys in self._held().items():
            assert len(keys) <= CAPACITIES[name], f"{keys} hold {name}"

    def _held(self) -> dict[str, list[Key]]:
        found: dict[str, list[Key]] = {name: [] for name in CAPACITIES}
        for row in self._rows().values():
            if row.is_in_flight(self.store.now_ns):
                for name in needs_of(row.group):
                    found[name].append(row.key)
        return found

    def _rows(self) -> dict[Key, Row]:
        return {**self.store.rows.get(TABLE, {}), **self.store.rows.get(OTHERS, {})}

    def _proxies_of(self, key: Key) -> list[Proxy]:
        return [proxy for proxy in self.proxies if proxy.stage.table == _table(key)]

    # What must hold at the end.

    def _due(self) -> list[Key]:
        """Those that are due, have a proxy, and need semaphores that exist."""
        existing = {name for _, name in self.store.semaphores}
        return [
            row.key
            for row in self._rows().values()
            if row.time_acked_ns is None
            and row.entry.due_ns <= self.store.now_ns
            and needs_of(row.group) <= existing
            and self._proxies_of(row.key)
        ]

    def _has_place(self, key: Key) -> bool:
        full = {name for name, keys in self._held().items() if len(keys) >= CAPACITIES[name]}
        return not needs_of(self._rows()[key].group) & full


def _table(key: Key) -> TableId:
    return OTHERS if int(str(key)) > 100 else TABLE


class SharedByTenants(Shared):
    """In queues with groups, too: each message belongs to one of two tenants."""

    policy = replace(POLICY, group_by=("tenant",))

    def _step(self, proxy: Proxy, asked: Asked) -> None:
        for rows in self.store.rows.values():
            for key, row in rows.items():
                if len(row.group) == 1:
                    rows[key] = replace(row, group=(int(str(key)) % 2, *row.group))
        super()._step(proxy, asked)


class SharedUnfollowed(Shared):
    """Without the binary log: what others do is found within a poll."""

    followed = False
    policy = replace(POLICY, poller_interval_ns=NS_PER_S)


class ReleasedBeforeTheCommit(Shared):
    claim_type = ClaimThatUnlocksEarly


class TheLocksAreNotNeeded(Shared):
    claim_type = ClaimWithoutLock


class ClaimOfOneQueue(MemoryClaim):
    """Counts the holders of its own queue alone."""

    def _holders(self) -> Iterator[tuple[TableId, Row]]:
        return (pair for pair in super()._holders() if pair[0] == self._table.id)


class CountedPerQueue(Shared):
    claim_type = ClaimOfOneQueue


class ClaimOfOneProxy(MemoryClaim):
    """Counts the holders of its own proxy alone."""

    def _holders(self) -> Iterator[tuple[TableId, Row]]:
        return ((table, row) for table, row in super()._holders() if (row.lease_ns or 0) % 1_000 == self._slot)


class CountedPerProxy(Shared):
    claim_type = ClaimOfOneProxy


class OneIsEnough(SemaphoreCounts):
    """Takes a message that has a place of one of its semaphores."""

    def has_place(self, key: Key) -> bool:
        needs = self.needs.get(key, frozenset())
        return not needs or any(self._has_place(name) for name in needs)


class ClaimInPart(MemoryClaim):
    def _count_semaphores(self) -> SemaphoreCounts:
        counts = super()._count_semaphores()
        return OneIsEnough(counts.read, counts.capacities, counts.holders)


class TakenInPart(Shared):
    claim_type = ClaimInPart


class ClaimOfWhatWasScanned(MemoryClaim):
    """Goes by what a message needed when it was scanned."""

    def _unchanged(self, found: Mapping[Key, Entry]) -> dict[Key, Entry]:
        return {key: entry._replace(group=self._wanted[key].group) for key, entry in found.items()}


class NeedsAsScanned(Shared):
    claim_type = ClaimOfWhatWasScanned


class DispatcherOfOneQueue(Dispatcher):
    """Does not hear of other queues."""

    def semaphores_freed(self, now: Instant, table: TableId | None, keys: Collection[Key] | None) -> Effects:
        return []


class ClaimByTheTenant(MemoryClaim):
    """Goes by the tenant, and not by what a message needs."""

    def _unchanged(self, found: Mapping[Key, Entry]) -> dict[Key, Entry]:
        return {key: entry._replace(group=(entry.group or ())[:1]) for key, entry in found.items()}


class TenantsForNeeds(SharedByTenants):
    claim_type = ClaimByTheTenant


class OtherQueuesAreNotHeard(Shared):
    dispatcher_type = DispatcherOfOneQueue


class DispatcherThatParksForGood(Dispatcher):
    """A message that lacked a place is not brought back."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        for hint in self.parts.places.hints:
            hint._note_unused = lambda group: None


class ParkedStaysParked(Shared):
    dispatcher_type = DispatcherThatParksForGood


class ParkedTenantsStayParked(SharedByTenants):
    dispatcher_type = DispatcherThatParksForGood


class DispatcherThatForgetsReports(Dispatcher):
    """A delivery that ends during a claim stays counted as the claim has counted it."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        places = self.parts.places
        answered = places.claim_answered

        def without_reports(now: Instant, left: LimitsLeft | None, duration_ns: int) -> None:
            places._over = set()
            answered(now, left, duration_ns)

        places.claim_answered = without_reports  # type: ignore[method-assign]


class ReportsDuringAClaimAreLost(Shared):
    dispatcher_type = DispatcherThatForgetsReports


BREAKS: list[type[Shared]] = [
    ReleasedBeforeTheCommit,
    TheLocksAreNotNeeded,
    CountedPerQueue,
    CountedPerProxy,
    TakenInPart,
    NeedsAsScanned,
    OtherQueuesAreNotHeard,
    ParkedStaysParked,
    ReportsDuringAClaimAreLost,
    TenantsForNeeds,
    ParkedTenantsStayParked,
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("broken", BREAKS, ids=lambda play: play.__name__)
def test_the_play_objects_to_semaphores_that_are_broken_on_purpose(broken: type[Shared]) -> None:
    assert_objects(broken)


TestShared = Shared.TestCase
TestShared.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
TestSharedByTenants = SharedByTenants.TestCase
TestSharedByTenants.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
TestSharedUnfollowed = SharedUnfollowed.TestCase
TestSharedUnfollowed.settings = settings(max_examples=examples(25), stateful_step_count=60, deadline=None)
