"""Indirect writes: those that reach message tables through a trigger, a view or a procedure.

The head of a statement contains the table it names, not the tables its rows end up in. The catalog
lists views and tables with triggers. A write to one of them, and a procedure call, may have changed
any table. Then every table is woken, which costs a scan for each table with a stream that waits. An
application that calls procedures all day must not cause a scan for each call. So a wake-up comes at
once if there was none just before; later requests share one, which keeps their scans below a rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

UNCLASSIFIED_MAX = 1_000
"""Tables written to after the schema changed and before the catalog's refresh. With more, all
tables are woken."""


class IndirectWrites:
    """Classifies writes.

    Those that come while the catalog is out of date are classified after its refresh.
    """

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._outdated = False
        self._unclassified: set[str] = set()

    def schema_changed(self) -> None:
        """The set of views and triggers may have changed."""
        self._outdated = True

    def refreshed(self, names: frozenset[str], *, outdated: bool) -> bool:
        """The catalog has been refreshed; `outdated`: and may be out of date again.

        Returns whether an earlier, unclassified write was indirect.
        """
        self._names, self._outdated = names, outdated
        indirect = not self._unclassified.isdisjoint(names)
        if not outdated:
            self._unclassified.clear()
        return indirect

    def may_have_trigger(self, name: str) -> bool:
        """Whether a table of this bare name may have a trigger.

        It may undo a statement's changes of the rows.
        """
        return self._outdated or name in self._names

    def written(self, name: str) -> bool:
        """A table of this bare name was written to.

        Returns whether the write may have reached other tables.
        """
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
    """Wake-ups of all tables: one for each request while requests are rare, one for many when they
    are not."""

    def __init__(self, wake: Callable[[], int], scans_per_s: float) -> None:
        """`wake` wakes all tables, and returns how many of them have streams."""
        self._wake, self._scans_per_s = wake, scans_per_s
        self._not_before_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def request(self) -> None:
        """Something was committed to an unknown table."""
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before_s:
            self._timer = loop.call_at(self._not_before_s, self._wake_now)
        else:
            self._wake_now()

    def cancel(self) -> None:
        """Drop the pending request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_now(self) -> None:
        self._timer = None
        self._not_before_s = asyncio.get_running_loop().time() + self._wake() / self._scans_per_s
