"""The play of test_dispatcher with a binary log: it reports some changes alone, late, coarsely, or before they are
visible.

The machine has more rules, and must fail with a dispatcher that ignores the binary log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Fetch, Scan
from engine.dispatch.instant import Instant
from engine.model import NS_PER_S, Entry, Key
from engine.store.memory import Row
from tests.property.test_dispatcher import KEYS, PICK, Play
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
    @rule(pick=PICK)
    def a_message_is_deleted_and_its_id_comes_again(self, pick: int) -> None:
        """As after TRUNCATE TABLE, or with REPLACE. What was read before and is on its way cannot be called back."""
        key = self._one_of(self._live(), pick).key
        on_its_way = any(
            key in asked.effect.keys for asked in self._asked(done=True) if isinstance(asked.effect, Fetch)
        )
        if key not in self.stage.store.locked and not on_its_way:
            del self.stage.rows[key]
            self.stage.holdings.pop(key, None)
            self.the_log_grows()
            self.stage.store.put(TABLE, Row(key, payload=str(key).encode()))
            self.the_log_grows()
            self.stage.pass_time(1)  # No clock stands still so long that the claims of both have one deadline.

    @rule(key=KEYS)
    def the_binlog_shows(self, key: int) -> None:
        """What it shows of a message now comes behind all that it has to show."""
        self.the_log_grows()
        while self.log:
            self.news_arrive(detailed=True)
        super().the_binlog_shows(key)

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
            self.the_log_grows()
            while self.log:
                self.news_arrive(detailed=True)
        super().teardown()

    def _live(self) -> list[Row]:
        return [row for _, row in sorted(self.stage.rows.items()) if row.time_acked_ns is None]

    def _never_claimed(self) -> list[Row]:
        """Who reschedules a message that is out gives it to two holders: that is asked for, and not played here."""
        return [row for row in self._live() if not row.epoch]


class TheLogIsNotHeard(Dispatcher):
    """Logged messages are not acted on."""

    def changes_logged(self, now: Instant, seen: Sequence[Entry] = (), over: Sequence[Key] = ()) -> Effects:
        return self.settled(now, over)


def test_the_machine_objects_to_a_dispatcher_that_is_broken_on_purpose() -> None:
    class PlayBroken(PlayWithLog):
        dispatcher_type = TheLogIsNotHeard

    hunt = settings(
        max_examples=2_000,
        stateful_step_count=60,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(PlayBroken, settings=hunt)


TestPlayWithLog = PlayWithLog.TestCase
TestPlayWithLog.settings = settings(max_examples=examples(200), stateful_step_count=60, deadline=None)
