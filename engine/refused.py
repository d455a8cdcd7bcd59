"""Rows that a statement cannot be carried out on: how they are found among others, and how they are
named.

A server refuses a whole statement because of one row: a trigger signals, a CHECK fails, a value is out
of range, another table refers to the row. The rows are then tried in smaller parts, half as many each
time, until the row stands alone. It is passed over, and the others go on. A statement that takes too
long is made smaller in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from engine.model import Key

R = TypeVar("R")

NAMED_MAX: Final = 3
"""Rows named for each error: a text has to fit a log line. The others are counted."""

TRIES_MAX: Final = 64
"""Statements that the rows of one call are tried with: a row among 500 is found by 18. If nearly all
are refused, the rest is not tried."""

NOT_TRIED: Final = "not tried, because so many others were refused"

LASTED_SHARE: Final = 16
"""A part that took too long was too large, whichever rows it had. So many of the smaller parts have to
succeed before a larger one is tried."""


class Refusal(NamedTuple):
    """Why a statement on some rows was not carried out, if one of these rows may be the reason."""

    text: str
    """The server's error."""
    lasted: bool = False
    """The statement took too long. It may have been carried out since."""


class PartSize:
    """How many rows are tried together, while some were refused."""

    def __init__(self) -> None:
        self.most: int | None = None
        """None: as many as the caller likes."""
        self._full = 0
        self._left = 0
        """How many more rows have to be tried before a part may be larger again."""

    def refused(self, rows: int, *, lasted: bool = False) -> None:
        """The server has refused a statement on so many rows."""
        if rows > 1:
            self._full = max(self._full, rows)
            self.most = max(1, rows // 2 if self.most is None else min(self.most, rows // 2))
            self._left = rows * (LASTED_SHARE if lasted else 1)
        else:
            self.tried(rows)

    def tried(self, rows: int) -> None:
        """So many rows need not be tried again for now: the statement on them has succeeded, or the one
        row that was refused is passed over."""
        if self.most is None:
            return
        self._left -= rows
        if self._left <= 0:
            self.most *= 2
            self._left = self.most
            if self.most >= self._full:
                self.most, self._full = None, 0


class InParts(Generic[R]):
    """Rows that a statement is tried on in parts, until each row is done or refused. Take `next`, then
    report `done` or `refused`, until `next` is empty."""

    def __init__(self, rows: Sequence[R], tries_max: int = TRIES_MAX) -> None:
        self.reasons: dict[R, str] = {}
        """The rows that were refused alone, each with the error."""
        self._left = list(rows)
        self._part: list[R] = []
        self._size = PartSize()
        self._tries_left = tries_max

    def next(self) -> Sequence[R]:
        """The rows to try now. Empty: none are left. If so many were refused that the rest is not tried, that is
        the reason of these."""
        if not self._tries_left:
            self.reasons |= dict.fromkeys(self._left, NOT_TRIED)
            return ()
        self._tries_left -= 1
        self._part = self._left[: self._size.most]
        return self._part

    def done(self) -> None:
        """The statement was carried out on them."""
        self._size.tried(len(self._part))
        self._left = self._left[len(self._part) :]

    def refused(self, text: str, *, each: bool = False) -> None:
        """The server has refused it, and nothing was done. `each`: it refuses each of these rows."""
        if each or len(self._part) == 1:
            self.reasons |= dict.fromkeys(self._part, text)
            self.done()
        else:
            self._size.refused(len(self._part))


def named(reasons: Mapping[Key, str]) -> str:
    """These rows by their ids, and why each was refused: one text for each reason."""
    by_reason: dict[str, list[Key]] = {}
    for key, reason in reasons.items():
        by_reason.setdefault(reason, []).append(key)
    texts = []
    for reason, keys in by_reason.items():
        more = f" and {len(keys) - NAMED_MAX} more" if len(keys) > NAMED_MAX else ""
        texts.append(f"{reason} (id {', '.join(map(str, keys[:NAMED_MAX]))}{more})")
    return "; ".join(texts)
