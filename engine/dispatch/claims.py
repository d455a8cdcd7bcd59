"""The claims under way. Their answers are taken in the order in which the claims were started.

A slow commit must not change the order of delivery. The answer to a later claim therefore waits for
the answers to those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from engine.dispatch.effects import Claim
from engine.dispatch.filter_groups import FilterGroup
from engine.dispatch.groups_in_flight import GroupsInFlight
from engine.dispatch.instant import Instant
from engine.dispatch.redelivery import wait_ns
from engine.model import Claimed, Entry, FetchResult, Key, RowFormat, Wanted
from engine.queue_table import Policy


@dataclass(slots=True)
class ClaimAttempt:
    """A claim under way: the entries that it was started for, each with its filter group."""

    picked: Mapping[Key, tuple[FilterGroup, Entry]]
    started_ns: int
    """When it was started (monotonic)."""
    row_format: RowFormat | None = None
    """The format of the rows that are read behind it; None: it reads none."""
    unscanned: bool = False
    """Whether no scan has shown the messages: their keys follow from an INSERT, and may be wrong."""
    answer: Sequence[Claimed] | None = None
    """The rows that it took; None until that is known."""
    left_out: frozenset[Key] = frozenset()
    """Messages that it could have taken, and for which a limit of the queue left no place."""
    waiting: frozenset[Key] = frozenset()
    """Follow-ups that it has set aside, since their batches are not done."""
    rows: FetchResult | None = None
    """The rows that were read behind it."""
    reported: set[Key] = field(default_factory=set)
    """Messages that others may have changed since it was started: the rows read behind it may be
    older."""
    all_reported: bool = False
    """Others may have changed any message since."""
    logged: dict[Key, tuple[Entry, tuple[int, int] | None]] = field(default_factory=dict)
    """Its messages as the binary log has shown them last since, each with its epoch and time_next
    before that change (None: unknown)."""

    def count_for(self, group: FilterGroup) -> int:
        """How many entries were picked for a group."""
        return sum(picked_for is group for picked_for, _ in self.picked.values())

    def missed_by_group(self, taken: Collection[Key]) -> dict[FilterGroup, list[Entry]]:
        """The entries that are not `taken`, for each group that the claim was for."""
        missed: dict[FilterGroup, list[Entry]] = {}
        for group, entry in self.picked.values():
            entries = missed.setdefault(group, [])
            if entry.key not in taken:
                entries.append(entry)
        return missed


class ClaimsUnderWay:
    """The claims that were started and whose answers have not been taken yet."""

    def __init__(
        self, policy: Policy, jitter: Callable[[], float], numbers: Iterator[int], in_flight: GroupsInFlight
    ) -> None:
        self._in_flight = in_flight
        self._policy = policy
        self._jitter = jitter
        self._numbers = numbers
        self._by_id: dict[int, ClaimAttempt] = {}
        self._last: dict[Key, ClaimAttempt] = {}
        """The last attempt at each message that is being claimed."""
        self.failing_since_ns: int | None = None
        """When the first of the last claims began that have all failed, and not because of a message (monotonic).
        For people alone."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, key: Key) -> bool:
        """Whether a message is being claimed."""
        return key in self._last

    def among(self, keys: Collection[Key]) -> set[Key]:
        """Those of these messages that are being claimed."""
        return self._last.keys() & keys

    @property
    def messages(self) -> int:
        """How many messages are being claimed."""
        return sum(len(attempt.picked) for attempt in self._by_id.values())

    def start_claim(
        self, picked: Mapping[Key, tuple[FilterGroup, Entry]], now: Instant, *, slot: int = 0, unscanned: bool = False
    ) -> Claim:
        """Claim these entries for their groups. Credit of the groups is reserved for them. Their
        rows are read behind the claim if all subscribers of these groups have one format. `slot`: that
        of this proxy."""
        claim_id = next(self._numbers)
        formats = {group.subscribers.row_format for group, _ in picked.values()}
        row_format = formats.pop() if len(formats) == 1 else None
        self._by_id[claim_id] = attempt = ClaimAttempt(picked, now.mono_ns, row_format, unscanned)
        self._last.update(dict.fromkeys(picked, attempt))
        wanted: list[Wanted] = []
        named = self._policy.semaphores is not None or self._policy.group_run > 1
        first_wait_ns = wait_ns(self._policy, 0, 0.0)
        for group, entry in picked.values():
            group.reserved += 1
            if entry.group is not None:
                self._in_flight.begin(entry.group)
            duration_ns = wait_ns(self._policy, entry.epoch, self._jitter()) if entry.epoch > 0 else first_wait_ns
            wanted.append(Wanted(entry.key, entry.epoch, duration_ns, group.selection, entry.group if named else None))
        return Claim(claim_id, tuple(wanted), row_format, slot)

    def report_changes(self, keys: Collection[Key] | None) -> None:
        """Others may have changed these messages (None: any). Rows that are read behind claims under
        way are not sent."""
        for attempt in self._by_id.values():
            if keys is None:
                attempt.all_reported = True
            else:
                attempt.reported.update(attempt.picked.keys() & keys)

    def entry_logged(self, entry: Entry, before: tuple[int, int] | None) -> None:
        """The binary log shows a message that is being claimed: as it was before, as the claim has
        changed it, or as others have changed it since. `before`: its epoch and time_next before that
        change."""
        if attempt := self._last.get(entry.key):
            attempt.logged[entry.key] = entry, before

    def get(self, claim_id: int) -> ClaimAttempt:
        """The claim under way with this id."""
        return self._by_id[claim_id]

    def record_answer(
        self,
        claim_id: int,
        claims: Sequence[Claimed],
        rows: FetchResult | None,
        left_out: Collection[Key] = (),
        waiting: Collection[Key] = (),
    ) -> ClaimAttempt:
        """Note the messages that a claim took (none if it failed), those that a limit has left out, the
        follow-ups that it has set aside, and the rows that were read behind it; returns the claim."""
        attempt = self._by_id[claim_id]
        attempt.answer, attempt.rows = claims, rows
        attempt.left_out, attempt.waiting = frozenset(left_out), frozenset(waiting)
        return attempt

    def take_answers(self) -> Iterator[tuple[ClaimAttempt, Sequence[Claimed]]]:
        """Remove and yield the answered claims before the first unanswered one. The credit reserved
        for them is free again."""
        while (first := next(iter(self._by_id.items()), None)) is not None:
            claim_id, attempt = first
            if attempt.answer is None:
                return
            del self._by_id[claim_id]
            for group, entry in attempt.picked.values():
                group.reserved -= 1
                if entry.group is not None:
                    self._in_flight.end(entry.group)
                if self._last[entry.key] is attempt:
                    del self._last[entry.key]
            yield attempt, attempt.answer

    def set_policy(self, policy: Policy) -> None:
        """The table's comment has changed: claims that start from now on have its waits."""
        self._policy = policy
