"""When to compare the follow-ups of a queue with their batches (engine.store.batches).

A check of the batches of certain parts comes as soon as these are reported as acknowledged. A part may
be reported before its commit is visible; then it is checked again, after growing pauses. A pass
goes through all follow-ups, a step at a time, with pauses in between. There is one at the first
demand, at each poll, and whenever a report does not name the parts. While a complete pass has shown
that nothing waits, reports cost nothing.

All of it is about time alone: which follow-ups may be delivered is decided by their claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from engine.dispatch.backoff import ExponentialBackoff
from engine.dispatch.effects import CheckBatches, Effect
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.model import BatchCheck, BatchesChecked, FollowUpPlace, Key, TableId
from engine.queue_table import Policy


class FollowUps:
    """The checks the follow-ups of one queue."""

    def __init__(self, policy: Policy, limits: Limits) -> None:
        self._policy = policy
        self._limits = limits
        self._parts: dict[tuple[TableId, Key], None] = {}
        """Parts that were reported, and not checked since."""
        self._keys: dict[Key, None] = {}
        """Messages to check: follow-ups that a claim has set aside, and messages that may be some."""
        self._waits = True
        """Whether a follow-up may wait: no complete pass has shown since that none does."""
        self._pass_wanted = False
        self._passing = False
        self._place: FollowUpPlace | None = None
        """Where the pass under way goes on; None: at the front."""
        self._seen = False
        """Whether the pass under way has seen one that waits, or one was reported since it was begun."""
        self._passed_ns: int | None = None
        """When the last pass was begun (monotonic); None: none was."""
        self._step_ns = 0
        """When the next step of a pass may start (monotonic)."""
        self._check: BatchCheck | None = None
        """The check under way."""
        self._begun_ns = 0
        self._hidden_pause = ExponentialBackoff(limits.batch_pause_min_ns, limits.batch_pause_max_ns)

    @property
    def configured(self) -> bool:
        """Whether messages of the queue may wait for batches, and are delivered."""
        return self._policy.after_batch is not None and not self._policy.paused

    @property
    def under_way(self) -> bool:
        """Whether a check is under way."""
        return self._check is not None

    @property
    def may_wait(self) -> bool:
        """Whether a follow-up may wait, so that reports of parts matter."""
        return self.configured and self._waits

    @property
    def hold_back(self) -> bool:
        """Whether follow-ups wait for their batches, by the last complete pass and the reports since."""
        return self.may_wait and self._passed_ns is not None and (self._seen or not self._passing)

    def set_policy(self, policy: Policy) -> None:
        """The table's comment has changed."""
        before, self._policy = self.configured, policy
        if not before:
            self.table_changed()

    # Reports.

    def parts_over(self, table: TableId, keys: Iterable[Key] | None) -> None:
        """These parts (None: any) were acknowledged or deleted, or may have been."""
        if not self.may_wait:
            return
        if keys is not None:
            self._parts.update(dict.fromkeys((table, key) for key in keys))
        if keys is None or len(self._parts) > self._limits.batch_parts_max:
            self._parts.clear()
            self._pass_wanted = True

    def set_aside(self, keys: Sequence[Key], upcoming: Callable[[int], Iterable[Key]]) -> None:
        """A claim or a check has set these follow-ups aside. The last part may have been acknowledged
        before that was committed, so they are checked. Where some wait, others may: so many more
        messages that are `upcoming` are checked, too, before they are claimed."""
        if keys:
            self._waits = self._seen = True
            most = self._limits.batch_step_max
            self._keys.update(dict.fromkeys(keys))
            self._keys.update(dict.fromkeys(upcoming(min(most, self._limits.batch_ahead * len(keys)))))
            if len(self._keys) > 2 * most:
                self._keys.clear()
                self._pass_wanted = True

    def follow_up_logged(self) -> None:
        """The binary log shows a follow-up that waits."""
        self._waits = self._seen = True

    def table_changed(self) -> None:
        """The table may have been changed in any way."""
        if self.configured:
            self._waits = self._seen = self._pass_wanted = True

    # Looks.

    def wake_times(self, *, demand: bool) -> list[int | None]:
        """When the next check may start (monotonic). `demand`: whether the queue has streams."""
        if not self.configured or self.under_way:
            return []
        times: list[int | None] = []
        if self._parts or self._keys:
            times.append(self._hidden_pause.until_ns)
        if self._passing or self._pass_wanted:
            times.append(self._step_ns)
        if demand and self._passed_ns is not None:
            times.append(self._passed_ns + self._policy.poller_interval_ns)
        return times

    def start_check(self, now: Instant, *, demand: bool) -> list[Effect]:
        """Start a check if it is time for one."""
        if not self.configured or self.under_way:
            return []
        polled = self._passed_ns is None or now.mono_ns >= self._passed_ns + self._policy.poller_interval_ns
        self._pass_wanted |= demand and polled and not self._passing
        rotates = (self._passing or self._pass_wanted) and now.mono_ns >= self._step_ns
        named = bool(self._parts or self._keys) and now.mono_ns >= self._hidden_pause.until_ns
        if not rotates and not named:
            return []
        if rotates and not self._passing:
            self._passing, self._pass_wanted = True, False
            self._place, self._seen, self._passed_ns = None, False, now.mono_ns
        by_table: dict[TableId, list[Key]] = {}
        for table, key in self._parts:
            by_table.setdefault(table, []).append(key)
        self._parts.clear()
        parts = tuple((table, tuple(keys)) for table, keys in by_table.items())
        keys = tuple(islice(self._keys, self._limits.batch_step_max))
        for key in keys:
            del self._keys[key]
        self._check = BatchCheck(keys, parts, rotates, self._place, self._limits.batch_step_max)
        self._begun_ns = now.mono_ns
        return [CheckBatches(self._check)]

    def check_answered(self, now: Instant, seen: BatchesChecked) -> None:
        """The check under way came back."""
        check, self._check = self._check, None
        assert check is not None
        for table, keys in seen.unseen:
            self._parts.update(dict.fromkeys((table, key) for key in keys))
        if seen.unseen:
            self._hidden_pause.lengthen(now.mono_ns)
        else:
            self._hidden_pause.reset()
        self._pass_wanted |= seen.again
        if check.rotate:
            self._seen |= seen.waiting > 0
            self._place = seen.after
            took_ns = now.mono_ns - self._begun_ns
            self._step_ns = now.mono_ns + max(self._limits.batch_pause_min_ns, self._limits.batch_share * took_ns)
            if seen.after is None:
                self._passing = False
                self._waits = self._seen or self._pass_wanted

    def check_failed(self, now: Instant) -> None:
        """The check under way failed, or its answer was lost: a pass finds all of it again."""
        self._check = None
        self._passing, self._pass_wanted = False, True
        self._step_ns = now.mono_ns + self._limits.batch_pause_max_ns
