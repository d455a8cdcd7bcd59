"""The claims under way, whose answers are taken in the order in which they were begun.

A slow commit must not turn the order of delivery around, so the answer of a later claim waits for
those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.dispatch.filter_groups import FilterGroup
from engine.model import Claimed, Entry, Key


@dataclass(slots=True)
class ClaimAttempt:
    """A claim under way: what it was to take, for which filter groups."""

    picked: Mapping[Key, tuple[FilterGroup, Entry]]
    started_ns: int
    """When it was begun (monotonic)."""
    answer: Sequence[Claimed] | None = None
    """What it took, once that is known."""


class ClaimsUnderWay:
    """The claims that were begun and whose answers were not taken yet."""

    def __init__(self) -> None:
        self._by_id: dict[int, ClaimAttempt] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, key: Key) -> bool:
        """Whether a message is being claimed."""
        return any(key in attempt.picked for attempt in self._by_id.values())

    @property
    def messages(self) -> int:
        """How many messages are being claimed."""
        return sum(len(attempt.picked) for attempt in self._by_id.values())

    def add_attempt(self, claim_id: int, attempt: ClaimAttempt) -> None:
        """A claim is begun; its group's credit is reserved."""
        self._by_id[claim_id] = attempt
        for group, _ in attempt.picked.values():
            group.reserved += 1

    def record_answer(self, claim_id: int, claims: Sequence[Claimed]) -> ClaimAttempt:
        """A claim has this answer."""
        attempt = self._by_id[claim_id]
        attempt.answer = claims
        return attempt

    def get(self, claim_id: int) -> ClaimAttempt:
        """A claim under way."""
        return self._by_id[claim_id]

    def take_answers(self) -> Iterator[tuple[ClaimAttempt, Sequence[Claimed]]]:
        """Take the answers whose turn it is. The credit that was reserved for them is free
        again."""
        while (first := next(iter(self._by_id.items()), None)) is not None:
            claim_id, attempt = first
            if attempt.answer is None:
                return
            del self._by_id[claim_id]
            for group, _ in attempt.picked.values():
                group.reserved -= 1
            yield attempt, attempt.answer
