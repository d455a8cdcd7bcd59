"""What is wrong with one queue at present, in words, for people: SHOW QUEUES, the page, the log."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.model import NS_PER_S

KEPT_NS = 180 * NS_PER_S
"""A problem that was not reported again for so long is over: whatever has failed is tried every minute at least."""

LOGGED_NS = 60 * NS_PER_S
"""Between two log lines about one kind of problem: its text may change with each attempt. One whose text stays is
logged once, as long as it lasts."""


class Kind(enum.Enum):
    """The kinds of problems, each with the name of its event in the log."""

    @property
    def of_rows(self) -> bool:
        """Whether the text is about rows of the queue alone. Others name tables that not everybody may see."""
        return self not in {Kind.DEAD_LETTER, Kind.BATCH, Kind.SEMAPHORE}

    CLAIM = "claim.refused"
    RELEASE = "release.refused"
    DEAD_LETTER = "dead_letter.failed"
    BATCH = "batch.failed"
    SEMAPHORE = "semaphore.failed"
    PURGE = "purge.refused"
    REPEATED = "message.repeated"
    EXPIRED = "message.expired"
    OVERDUE = "message.overdue"


@dataclass(slots=True)
class _Problem:
    text: str = ""
    """Empty: there is none now."""
    noted_ns: int = 0
    logged_ns: int | None = None
    logged: str = ""

    def is_present(self, now_ns: int) -> bool:
        """Whether it was noted recently."""
        return bool(self.text) and now_ns < self.noted_ns + KEPT_NS


class Problems:
    """The problems of one queue, one of each kind."""

    def __init__(self) -> None:
        self._found: dict[Kind, _Problem] = {}
        self.on_report: Callable[[Kind, str], None] = lambda _kind, _text: None
        """Called with what belongs in the log."""

    def note(self, kind: Kind, text: str | None, now_ns: int) -> None:
        """This is the problem of this kind at this monotonic time; None: there is none."""
        found = self._found.setdefault(kind, _Problem())
        goes_on = found.is_present(now_ns) and text == found.logged
        found.text, found.noted_ns = text or "", now_ns
        if text and not goes_on and (found.logged_ns is None or now_ns >= found.logged_ns + LOGGED_NS):
            found.logged_ns, found.logged = now_ns, text
            self.on_report(kind, text)

    def present(self, now_ns: int) -> Mapping[Kind, str]:
        """Those that were noted recently."""
        return {kind: one.text for kind, one in self._found.items() if one.is_present(now_ns)}

    def texts(self, now_ns: int, *, of_rows: bool = False) -> list[str]:
        """The texts of those that were noted recently; `of_rows`: of such kinds alone."""
        return [text for kind, text in self.present(now_ns).items() if kind.of_rows or not of_rows]
