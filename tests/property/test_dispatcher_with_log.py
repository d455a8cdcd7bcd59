"""The play of test_dispatcher with a binary log: it reports some changes alone, late, coarsely, or before they are
visible.

It is played three times: the binary log shows the dispatcher's own claims and releases too; it does not, as the reader
skips them; and it does not show what another proxy claims, either. The machine has more rules, and must fail with
dispatchers that ignore the binary log or believe too much of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from engine.binlog.changes import ChangeSet, RowChange
from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Claim, Scan
from engine.dispatch.fetches import FetchesUnderWay
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.verification import NOTHING_BEFORE
from engine.model import NS_PER_S, Delivery, Entry, Key, RowFormat
from engine.queue_table import Policy
from tests.property.test_dispatcher import KEYS, PICK, Play
from tests.support.hunting import assert_objects
from tests.support.memory_store import Row
from tests.support.play import TABLE
from tests.support.sampling import examples


class PlayWithLog(Play):
    """The server writes a binary log, which is read with delay."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[Key, Row] = {}
        self.log: list[dict[Key, Row | None]] = []
        """The entries of the binary log that have not been reported yet."""

    @rule(key=KEYS, delay_s=st.sampled_from([0, 5]))
    def enqueue_and_only_the_log_tells(self, key: int, delay_s: int) -> None:
        if (new := self._new(key)) is not None:
            self.stage.enqueue(new, 0, self.stage.now_ns + delay_s * NS_PER_S if delay_s else 0, wake=False)
            self.the_log_grows()

    @precondition(lambda self: self._never_claimed())
    @rule(pick=PICK, delay_s=st.sampled_from([0, 5, 100]))
    def reschedule_and_only_the_log_tells(self, pick: int, delay_s: int) -> None:
        row = self._one_of(self._never_claimed(), pick)
        if row.key not in self.stage.store.locked:
            self.stage.store.put(TABLE, replace(row, time_next_ns=self.stage.now_ns + delay_s * NS_PER_S))
            self.the_log_grows()

    @precondition(lambda self: self._live())
    @rule(pick=PICK, later_s=st.sampled_from([1, 5, 100]))
    def put_off_and_only_the_log_tells(self, pick: int, later_s: int) -> None:
        """A claimed message is due later than its claim has set, so nobody else gets it sooner."""
        row = self._one_of(self._live(), pick)
        if row.key not in self.stage.store.locked:
            due_ns = max(row.entry.due_ns, self.stage.now_ns) + later_s * NS_PER_S
            self.stage.store.put(TABLE, replace(row, time_next_ns=due_ns))
            self.the_log_grows()
            self.extended.add(row.key)

    @precondition(lambda self: self._asked_for(Claim))
    @rule(pick=PICK, later_s=st.sampled_from([1, 100]))
    def a_claimed_message_is_put_off_and_logged_before_the_answer(self, pick: int, later_s: int) -> None:
        claim = self._one_of(self._asked_for(Claim), pick)
        if claim.answer is None:
            self.stage.do(claim)
        live = {row.key for row in self._live()}
        for at in [at for at, row in enumerate(self._live()) if row.key in claim.carries & live]:
            self.put_off_and_only_the_log_tells(at, later_s)
        self._all_news_arrive()
        if claim in self.stage.asked:
            self.stage.answer(claim)

    @precondition(lambda self: self._live())
    @rule(pick=PICK)
    def a_message_is_deleted_and_its_id_comes_again(self, pick: int) -> None:
        """As after TRUNCATE TABLE, or with REPLACE. What was read before and is on its way cannot be called back."""
        key = self._one_of(self._live(), pick).key
        on_its_way = any(key in asked.carries for asked in self._asked(done=True))
        if key not in self.stage.store.locked and not on_its_way:
            del self.stage.rows[key]
            self.stage.holdings.pop(key, None)
            self.stage.to_count.pop(key, None)
            self.the_log_grows()
            self.stage.store.put(TABLE, Row(key, payload=str(key).encode()))
            self.the_log_grows()
            self.stage.pass_time(1)  # No clock stands still so long that the claims of both have one deadline.

    @rule(key=KEYS)
    def the_binlog_shows(self, key: int) -> None:
        """What it shows of a message now comes behind all that it has to show."""
        self._all_news_arrive()
        super().the_binlog_shows(key)

    def _all_news_arrive(self) -> None:
        self.the_log_grows()
        while self.log:
            self.news_arrive(detailed=True)

    @rule()
    def the_log_grows(self) -> None:
        rows = self.stage.rows
        changed = {key: rows.get(key) for key in {*rows, *self.logged} if rows.get(key) != self.logged.get(key)}
        self.logged = dict(rows)
        if changed:
            self.log.append(changed)

    @precondition(lambda self: self.log)
    @rule(detailed=st.booleans())
    def news_arrive(self, detailed: bool) -> None:
        changed = self.log.pop(0)
        live = {key: row for key, row in changed.items() if row is not None and row.time_acked_ns is None}
        over = [key for key in changed if key not in live]
        noticed = self.stage.dispatcher.changes_logged
        if detailed:
            self.stage.acked_seen.update(key for key in over if key not in {row.key for row in self._live()})
            self.stage.handle(noticed, [row.entry for row in live.values()], over)
        else:
            self.stage.handle(noticed)

    @rule(key=KEYS, detailed=st.booleans())
    def the_log_tells_before_it_can_be_seen(self, key: int, detailed: bool) -> None:
        new = self._new(key)
        if new is None:
            return
        row = Row(new, payload=str(new).encode())
        self.stage.handle(self.stage.dispatcher.changes_logged, [row.entry] if detailed else [])
        for scan in self._asked_for(Scan):
            self.one_thing_goes_well(self.stage.asked.index(scan))
        self.stage.store.put(TABLE, row)
        self.logged[new] = row

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            self._all_news_arrive()
        super().teardown()

    def _never_claimed(self) -> list[Row]:
        """Who reschedules a message that is out gives it to two holders: that is asked for, and not played here."""
        return [row for row in self._live() if not row.epoch]


class PlayWithForeignLog(PlayWithLog):
    """The reader skips what the dispatcher itself has written, and shows each row before its change."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[dict[Key, RowChange]] = []
        """The changes that have not been reported yet."""

    @initialize(
        keep=st.booleans(),
        in_flight=st.sampled_from([None, 5]),
        rate=st.sampled_from([None, None, 2.0]),
        attempts=st.sampled_from([0, 0, 2]),
        id_grows=st.booleans(),
    )
    def open(self, keep: bool, in_flight: int | None, rate: float | None, attempts: int, id_grows: bool) -> None:
        super().open(keep, in_flight, rate, attempts, id_grows)
        self.written = False
        self.stage.on_own_write = self._own_write

    def _own_write(self) -> None:
        """Before an own write, all that others have done is logged; what it does itself is not."""
        if self.written:
            self.logged = dict(self.stage.rows)
        else:
            self.the_log_grows()
        self.written = not self.written

    @rule()
    def the_log_grows(self) -> None:
        earlier, rows = self.logged, self.stage.rows
        super().the_log_grows()
        if self.log:
            changed = self.log.pop()
            self.changes.append({key: self._change(earlier.get(key), rows.get(key)) for key in changed})

    def _change(self, earlier: Row | None, row: Row | None) -> RowChange:
        before = None
        if earlier is not None and earlier.time_acked_ns is None:
            before = Delivery(earlier.entry.epoch, earlier.entry.due_ns)
        return RowChange(None if row is None or row.time_acked_ns is not None else row.entry, before)

    @precondition(lambda self: self.changes)
    @rule(detailed=st.booleans(), transactions=st.integers(1, 3))
    def news_arrive(self, detailed: bool, transactions: int = 1) -> None:
        merged = ChangeSet(1_000)
        for changed in self.changes[:transactions]:
            merged.add_rows(TABLE, changed.items())
        del self.changes[:transactions]
        (found,) = merged.by_table()
        noticed = self.stage.dispatcher.changes_logged
        if detailed:
            self.stage.acked_seen.update(key for key in found.over if key not in {row.key for row in self._live()})
            self.stage.handle(noticed, found.seen, found.over, found.before)
        else:
            self.stage.handle(noticed)

    @precondition(lambda self: self._live())
    @rule(pick=PICK)
    def an_id_comes_again_and_is_delivered_before_the_log_shows_that(self, pick: int) -> None:
        self.a_message_is_deleted_and_its_id_comes_again(pick)
        self.stage.handle(self.stage.dispatcher.woken)
        self.stage.settle()
        while self.changes:
            self.news_arrive(detailed=True)

    @rule(key=KEYS)
    def the_binlog_shows(self, key: int) -> None:
        """What others did to a message comes behind all that the log has to show."""
        self._all_news_arrive()

    def _all_news_arrive(self) -> None:
        self.the_log_grows()
        while self.changes:
            self.news_arrive(detailed=True)

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            self._all_news_arrive()
        super().teardown()


class PlayWithOwnLeasesAlone(PlayWithForeignLog):
    """The reader leaves out what another proxy claims, and the acknowledgements of what it holds, as it does for a
    queue without limits."""

    def __init__(self) -> None:
        super().__init__()
        self.held_by_others: dict[Key, Delivery] = {}

    @precondition(lambda self: self._due())
    @rule(pick=PICK, wait_s=st.sampled_from([1, 40]))
    def another_proxy_claims(self, pick: int, wait_s: int) -> None:
        row = self._one_of(self._due(), pick)
        self.the_log_grows()
        super().another_proxy_claims(pick, wait_s)
        claimed = self.stage.rows[row.key]
        if claimed.epoch > row.epoch:
            self.held_by_others[row.key] = Delivery(claimed.epoch, claimed.entry.due_ns)
            self._leave_out()

    @precondition(lambda self: self.stage.rows)
    @rule(pick=PICK, seen=st.booleans())
    def acknowledge_any(self, pick: int, seen: bool) -> None:
        row = self.stage.rows[self._one_of(sorted(self.stage.rows), pick)]
        self.the_log_grows()
        super().acknowledge_any(pick, seen)
        if self.held_by_others.get(row.key) == Delivery(row.epoch, row.entry.due_ns):
            self._leave_out()

    def _leave_out(self) -> None:
        """The last change is not reported."""
        if self.stage.policy.max_in_flight is None:
            self.logged = dict(self.stage.rows)


class TheLogIsNotHeard(Dispatcher):
    """Logged messages are not acted on."""

    def changes_logged(
        self,
        now: Instant,
        seen: Sequence[Entry] = (),
        over: Sequence[Key] = (),
        before: Mapping[Key, tuple[int, int]] = NOTHING_BEFORE,
    ) -> Effects:
        return self.settled(now, over)


class EveryLoggedEndIsBelieved(Dispatcher):
    """An acknowledgement or deletion from before our claim ends the lease."""

    def changes_logged(
        self,
        now: Instant,
        seen: Sequence[Entry] = (),
        over: Sequence[Key] = (),
        before: Mapping[Key, tuple[int, int]] = NOTHING_BEFORE,
    ) -> Effects:
        leases = {key: lease for key in over if (lease := self.parts.leases.get(key))}
        shown = {key: (lease.epoch, lease.deadline_ns) for key, lease in leases.items()}
        return super().changes_logged(now, seen, over, {**before, **shown})


class FetchesOfNothing(FetchesUnderWay):
    """A stream whose claimed messages are all suspect waits for a fetch without leases, which nothing ends."""

    def start_behind_claim(self, row_format: RowFormat, claimed: Collection[Key]) -> int:
        number = super().start_behind_claim(row_format, claimed)
        for group in self._groups:
            for subscriber in () if group.locks else group.subscribers.to_fetch():
                if next(iter(subscriber.unsent)) in claimed and subscriber.spec.row_format == row_format:
                    group.subscribers.set_fetching(subscriber, fetching=True)
        return number


class SuspectClaimsStopTheirStream(Dispatcher):
    """A change that is logged before the claim's answer is taken stops the stream that gets the message."""

    def __init__(self, policy: Policy, limits: Limits, jitter: Callable[[], float], now: Instant) -> None:
        super().__init__(policy, limits, jitter, now)
        size = self.parts.refusals.fetch_size
        self.parts.fetches = FetchesOfNothing(self.parts.groups, limits.fetch_max, self.parts.numbers, size)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("play", "broken"),
    [
        (PlayWithLog, SuspectClaimsStopTheirStream),
        (PlayWithLog, TheLogIsNotHeard),
        (PlayWithForeignLog, TheLogIsNotHeard),
        (PlayWithForeignLog, EveryLoggedEndIsBelieved),
    ],
)
def test_the_machine_objects_to_a_dispatcher_that_is_broken_on_purpose(
    play: type[PlayWithLog], broken: type[Dispatcher]
) -> None:
    broken_play = type("PlayBroken", (play,), {"dispatcher_type": broken, "shares": False, "plain": True})
    assert_objects(broken_play)


TestPlayWithLog = PlayWithLog.TestCase
TestPlayWithLog.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)

TestPlayWithForeignLog = PlayWithForeignLog.TestCase
TestPlayWithForeignLog.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)

TestPlayWithOwnLeasesAlone = PlayWithOwnLeasesAlone.TestCase
TestPlayWithOwnLeasesAlone.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
