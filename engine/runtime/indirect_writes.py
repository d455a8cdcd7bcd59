"""Writes that reach message tables by way of something else: a trigger, a view, a procedure.

Which table a statement names is seen in its head; where its rows end up is not. The catalog knows the *carriers*,
views and tables with triggers: what is written to one may have gone anywhere, as may what a procedure did. Then every
table is woken, which costs a scan for each that somebody waits for. An application that calls procedures all day must
not cause a scan for each call: a wake comes at once when there was none just before, and else once for all who asked
meanwhile, so that their scans stay below a rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

UNCLASSIFIED_MAX = 1_000
"""Tables written to since the schema changed and before the catalog was read again; beyond it, all are woken."""


class IndirectWrites:
    """What is known of them. A write that comes while the catalog is out of date is judged when it has been read."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._outdated = False
        self._unclassified: set[str] = set()

    def schema_changed(self) -> None:
        """There may be others now."""
        self._outdated = True

    def refreshed(self, names: frozenset[str], *, outdated: bool) -> bool:
        """The catalog was read, and may be out of date again; whether something was written to one of them."""
        self._names, self._outdated = names, outdated
        carried = not self._unclassified.isdisjoint(names)
        if not outdated:
            self._unclassified.clear()
        return carried

    def may_have_trigger(self, name: str) -> bool:
        """Whether a table of this bare name may have a trigger, which may undo what a statement did to its rows."""
        return self._outdated or name in self._names

    def written(self, name: str) -> bool:
        """Whether what was written to a table of this bare name may have come elsewhere too."""
        if name in self._names:
            return True
        if not self._outdated:
            return False
        self._unclassified.add(name)
        if len(self._unclassified) <= UNCLASSIFIED_MAX:
            return False
        self._unclassified.clear()
        return True


class WakeAll:
    """Wakes of all tables, as many as asked for when they are rare, one for many when they are not."""

    def __init__(self, wake: Callable[[], int], scans_per_s: float) -> None:
        """`wake` wakes them, and returns how many of them somebody waits for."""
        self._wake, self._scans_per_s = wake, scans_per_s
        self._not_before_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def request(self) -> None:
        """Something was committed, and it is not known where."""
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before_s:
            self._timer = loop.call_at(self._not_before_s, self._wake_now)
        else:
            self._wake_now()

    def cancel(self) -> None:
        """Forget who asked."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_now(self) -> None:
        self._timer = None
        self._not_before_s = asyncio.get_running_loop().time() + self._wake() / self._scans_per_s
