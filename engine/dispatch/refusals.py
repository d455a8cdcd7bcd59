"""Messages that the server refuses to claim, or to read: they are passed over, and the others go on.

A claim that was refused is tried again in smaller parts (engine.refused), until a message stands alone. That
one is passed over for a pause that doubles each time, and is then claimed alone: a claim with others would be
refused with them. Nothing is written for it, so it is nobody's delivery.

If many messages are refused in a row, the reason is probably none of them: a trigger that always signals, a
server that takes no writes. Claims then pause. A claim that succeeds shows that the server works.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from engine.dispatch.backoff import ExponentialBackoff
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.model import Key
from engine.refused import PartSize, Refusal, named


@dataclass(slots=True)
class _PassedOver:
    """A message that was refused alone."""

    text: str
    pause: ExponentialBackoff


class Refusals:
    """What the server has refused of one table."""

    def __init__(self, limits: Limits, report: Callable[[str | None, int], None]) -> None:
        """`report` is called with the problem in words, None if there is none, and the monotonic time, whenever
        it may have changed."""
        self._limits = limits
        self._report = report
        self.claim_size, self.fetch_size = PartSize(), PartSize()
        self._passed_over: dict[Key, _PassedOver] = {}
        self._in_a_row = 0
        """How many were refused alone since a claim has succeeded."""
        self.pause_until_ns = 0
        """Before this time no claim may start (monotonic)."""

    def __len__(self) -> int:
        """How many messages are passed over."""
        return len(self._passed_over)

    def __contains__(self, key: Key) -> bool:
        """Whether a message was refused alone, and has to be claimed alone."""
        return key in self._passed_over

    @property
    def one_at_a_time(self) -> bool:
        """Whether one claim at a time may be under way, because claims were refused a moment ago."""
        return self.claim_size.most is not None

    def retry_ns(self, key: Key, now: Instant) -> int | None:
        """Until when a message is passed over (monotonic); None: it may be claimed."""
        found = self._passed_over.get(key)
        return found.pause.until_ns if found and found.pause.until_ns > now.mono_ns else None

    def refused(self, size: PartSize, keys: Collection[Key], refusal: Refusal, now: Instant) -> bool:
        """The server has refused a statement on these messages, whose parts have this size. Returns whether it is
        known what to do: the messages are tried in smaller parts, or the only one is passed over. False: so many
        are passed over that no other one can be."""
        size.refused(len(keys), lasted=refusal.lasted)
        if len(keys) > 1:
            return True
        (key,) = keys
        self._in_a_row += 1
        if self._in_a_row > self._limits.refused_in_a_row_max:
            self.pause_until_ns = now.mono_ns + self._limits.failure_pause_min_ns
        found = self._passed_over.get(key)
        if found is None:
            if len(self._passed_over) >= self._limits.refused_max:
                self._tell(refusal.text, now)
                return False
            pause = ExponentialBackoff(self._limits.refused_pause_min_ns, self._limits.refused_pause_max_ns)
            found = self._passed_over[key] = _PassedOver("", pause)
        found.text = refusal.text
        found.pause.lengthen(now.mono_ns)
        self._tell(refusal.text, now)
        return True

    def claimed(self, tried: int, keys: Iterable[Key], now: Instant) -> None:
        """A claim of so many messages has succeeded, and has taken these."""
        self.claim_size.tried(tried)
        keys = tuple(keys)
        if keys:
            self._in_a_row = self.pause_until_ns = 0
        self.forget(keys, now)

    def forget(self, keys: Iterable[Key], now: Instant) -> None:
        """These messages were claimed, or are over."""
        if self._passed_over and [key for key in keys if self._passed_over.pop(key, None)]:
            self._tell("", now)

    def forget_old(self, now: Instant) -> None:
        """Forget the messages that could have been tried again long ago: they were deleted, or nobody wants them."""
        if self._passed_over:
            old_ns = now.mono_ns - self._limits.refused_kept_ns
            self.forget([key for key, found in self._passed_over.items() if found.pause.until_ns < old_ns], now)

    def _tell(self, last: str, now: Instant) -> None:
        """`last`: the last error, if there is one."""
        reasons = {key: found.text for key, found in self._passed_over.items()}
        if last and self._in_a_row > self._limits.refused_in_a_row_max:
            self._report(f"no message can be claimed: {last}", now.mono_ns)
        elif reasons:
            count = f"{len(reasons)} message{'s' if len(reasons) > 1 else ''}"
            text = f"the server refuses claims of {count}, and others are delivered past {_them(reasons)}"
            self._report(f"{text}: {named(reasons)}", now.mono_ns)
        else:
            self._report(None, now.mono_ns)


def _them(reasons: Collection[Key]) -> str:
    return "them" if len(reasons) > 1 else "it"
