"""Messages that nothing reports: a stream gets each within the poller's interval, whatever else happens.

Such a message was inserted past the proxy and past the binary log. Only a poll, or a scan that is due for the time
alone, can find it. Here others are inserted and reported, messages are acknowledged, polls and scans fail or are
answered late, and the message may come at any moment of them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.dispatch.dispatcher import Dispatcher, Effects
from engine.dispatch.effects import Poll, Scan
from engine.dispatch.instant import Instant
from engine.dispatch.scans import ScanScheduler
from engine.model import NS_PER_S, Share
from tests.support.hunting import assert_objects
from tests.support.memory_store import Row
from tests.support.play import EVEN, POLICY, TABLE, Asked, Stage, run_for
from tests.support.sampling import examples

INTERVAL_NS = 30 * NS_PER_S
POLLED = replace(POLICY, poller_interval_ns=INTERVAL_NS, cache_size=1_000, batch_size=1_000)
SHARES = st.sampled_from([None, Share(0, 2), Share(1, 2)])
LATE_NS = 5 * NS_PER_S
"""The pauses after failures, and what is answered late."""


class Unreported(RuleBasedStateMachine):
    """A stream for all messages, and perhaps one with a condition. Another proxy may have a share, and stand still."""

    dispatcher_type: type[Dispatcher] = Dispatcher

    @initialize(condition=st.booleans(), share=SHARES, proxies_change=st.booleans())
    def open(self, *, condition: bool, share: Share | None, proxies_change: bool) -> None:
        self.proxies_change = proxies_change
        self.stage = Stage(policy=POLLED, dispatcher_type=self.dispatcher_type)
        self.stage.set_share(share)
        self.stage.subscribe(1, 1)
        if condition:
            self.stage.subscribe(2, 2, selection=EVEN)
        self.keys = 0
        run_for(self.stage, NS_PER_S)

    def _row(self) -> Row:
        self.keys += 1
        return Row(self.keys, payload=str(self.keys).encode())

    @rule()
    def a_message_comes_that_nothing_reports(self) -> None:
        self.stage.store.put(TABLE, self._row())

    @rule()
    def a_message_comes_that_is_reported(self) -> None:
        self.keys += 1
        self.stage.enqueue(self.keys)

    @rule()
    def all_that_was_delivered_is_acknowledged(self) -> None:
        for key in list(self.stage.holdings):
            self.stage.acknowledge(key, seen=True)

    @precondition(lambda self: self.proxies_change)
    @rule(share=SHARES)
    def proxies_come_or_go(self, share: Share | None) -> None:
        self.stage.set_share(share)

    @rule(seconds=st.sampled_from([1, 14, 16, 31]))
    def time_passes(self, seconds: int) -> None:
        run_for(self.stage, seconds * NS_PER_S)

    @rule(seconds=st.sampled_from([14, 16, 31]))
    def time_passes_to_the_next_poll_or_scan_at_most(self, seconds: int) -> None:
        self._pass_to_reading(seconds)

    @rule(seconds=st.sampled_from([0, 16, 31]))
    def the_next_poll_or_scan_fails_or_its_answer_is_lost(self, seconds: int) -> None:
        self._pass_to_reading(seconds)
        for asked in self._reading():
            self.stage.fail(asked)

    def _pass_to_reading(self, seconds: int) -> None:
        until_ns = self.stage.mono_ns + seconds * NS_PER_S
        while not self._reading():
            self._do_others()
            wake_ns = self.stage.dispatcher.wake_at_ns
            if wake_ns is None or wake_ns > until_ns:
                return
            self.stage.pass_time(max(0, wake_ns - self.stage.mono_ns))

    def _reading(self) -> list[Asked]:
        return [asked for asked in self.stage.asked if isinstance(asked.effect, Poll | Scan)]

    def _do_others(self) -> None:
        for asked in [asked for asked in self.stage.asked if not isinstance(asked.effect, Poll | Scan)]:
            if asked.answer is None:
                self.stage.do(asked)
            self.stage.answer(asked)

    @precondition(lambda self: self._reading())
    @rule()
    def the_database_reads(self) -> None:
        """The answer is on its way."""
        if (asked := self._reading()[0]).answer is None:
            self.stage.do(asked)

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            due = [key for key, row in self.stage.rows.items() if row.time_acked_ns is None]
            run_for(self.stage, INTERVAL_NS + LATE_NS)
            delivered = {key for keys in self.stage.delivered.values() for key in keys}
            assert set(due) <= delivered, (due, delivered)


class PollsAreNotBelieved(Dispatcher):
    """A table that was empty stays empty."""

    def polled(self, now: Instant, *, empty: bool) -> Effects:
        assert empty in (True, False)
        return super().polled(now, empty=True)


class PollsThatFailedAreForgotten(Dispatcher):
    """No scan takes their place, and no other poll."""

    def poll_failed(self, now: Instant) -> Effects:
        return self.tick(now)


class ForgetfulScheduler(ScanScheduler):
    """What a poll has found is left to the next scan that is due for another reason."""

    def poll_answered(self, *, empty: bool) -> None:
        super().poll_answered(empty=True)
        self._is_empty = empty


class WhatAPollFindsIsNotScannedFor(Dispatcher):
    """It counts as a full scan."""

    def __init__(self, *of_table: object) -> None:
        super().__init__(*of_table)  # type: ignore[arg-type]
        parts = self.parts
        parts.scans = ForgetfulScheduler(parts.groups, parts.policy, parts.limits, parts.numbers)


@pytest.mark.parametrize(
    "broken",
    [PollsAreNotBelieved, PollsThatFailedAreForgotten, WhatAPollFindsIsNotScannedFor],
    ids=lambda dispatcher: dispatcher.__name__,
)
def test_the_play_objects_to_a_dispatcher_that_is_broken_on_purpose(broken: type[Dispatcher]) -> None:
    class Broken(Unreported):
        dispatcher_type = broken

    assert_objects(Broken, steps=20)


TestUnreported = Unreported.TestCase
TestUnreported.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
