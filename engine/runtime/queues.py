"""Which tables are queues, kept up to date with the server's catalog.

Three things tell that a table changed, and each costs the same however many queues there are:

* A statement of a client of this proxy that may have changed it (`schema_changed`). What was known before is not used
  again without a look: at this one table when somebody asks for it first, at the whole catalog soon in any case.
* The text of SHOW CREATE TABLE, which a STREAM reads on its client's own connection anyway. A text that was seen with
  what is known proves it; any other has the table looked at. So a STREAM on a known queue asks nothing here, and no
  change escapes it, wherever that was made.
* A look at the whole catalog (`discover`): every `catalog_interval_s`, and soon after the server's log tells of a
  changed table. It shows a stamp for each queue, and those with another stamp are described again, all together.

Whoever runs the queues (engine.service) is told by callbacks: this module starts and ends nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from engine.catalog.privileges import OF_A_QUEUE
from engine.model import BrokenTable, QueueTable, TableId
from engine.quoting import qualified
from engine.runtime.executor import StoreExecutor
from engine.runtime.indirect_writes import IndirectWrites
from engine.runtime.shared_runs import SharedRuns
from engine.runtime.table_runner import gone
from engine.store.port import Listing, StoreError

log = logging.getLogger(__name__)

DESCRIBED_AT_ONCE = 250
"""Tables described in one packet: their rows are read within some 20 ms, during which other threads wait."""

TEXTS_MAX = 8
"""Texts of SHOW CREATE TABLE remembered for each queue. Sessions see different ones, by their sql_mode and character
set: few applications have more than one or two kinds."""

CHANGED_NAMES_MAX = 1_000
"""Names of changed tables remembered until the catalog has been read; beyond it, all tables count as changed."""


class UnusableQueue(Exception):
    """The table cannot be streamed from or acknowledged in; the text says why and what to do."""


@dataclass(slots=True)
class _Known:
    """What the last look at a marked table said."""

    found: QueueTable | BrokenTable
    look: int
    """The number of the last look that showed it so."""
    stamp: str | None = None
    """Its stamp in the listing that this look belongs to; None: the next listing has it looked at again."""
    texts: dict[bytes, None] = field(default_factory=dict)
    """Digests of SHOW CREATE TABLE that were seen with it, the oldest first."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told what the catalog says. Each is called on the event loop and returns at once."""

    found: Callable[[QueueTable], None]
    """The table is a queue: a new one, or as it is now."""
    lost: Callable[[TableId, str], None]
    """The table is no queue any more, or cannot be one; the text is for the clients of its streams."""
    carried: Callable[[], None]
    """It turns out that something written before may have come into any table."""


class Queues:
    """What is known of the tables of one server. Looks are numbered in the order in which they begin: what a later look
    has shown is not replaced by what an earlier one shows."""

    def __init__(self, executor: StoreExecutor, carriers: IndirectWrites, listener: Listener) -> None:
        self._executor = executor
        self._indirect_writes = carriers
        self._listener = listener
        self._look = SharedRuns(self._look_at)
        self._looks = 0
        self._known: dict[TableId, _Known] = {}
        self._running: set[TableId] = set()
        """The queues that the listener was told of."""
        self._others: dict[TableId, int] = {}
        """Tables that are not marked, and the look that showed it."""
        self._spelled: dict[TableId, TableId] = {}
        """Other spellings of queues, as the server takes them for the same."""
        self._changed: dict[str, int] = {}
        """Bare names, casefolded, of tables that may have been changed, and the first look that shows it."""
        self._all_changed = 0
        """The same for all tables."""
        self._account, self._problems = "", tuple[str, ...]()
        self._refresh_soon = asyncio.Event()
        self._said = ""

    async def start(self) -> None:
        """Read the catalog, and keep on doing so; raises StoreError when the server cannot be asked."""
        await self.refresh()
        self._executor.spawn(self._watch(), "catalog")

    async def close(self) -> None:
        """Stop looking."""
        await self._look.close()

    @property
    def remembered(self) -> int:
        """How many things are kept in memory of tables."""
        texts = sum(len(known.texts) for known in self._known.values())
        return len(self._known) + len(self._others) + len(self._spelled) + len(self._changed) + texts

    # What happens.

    def schema_changed(self, name: str | None = None) -> None:
        """A table of this bare name, casefolded (None: any table), may have been created, altered or dropped by now:
        what is known of it is not used again without a look."""
        if name is None or len(self._changed) >= CHANGED_NAMES_MAX:
            self._all_changed = self._looks + 1
        else:
            self._changed[name] = self._looks + 1
        self.refresh_soon()

    def refresh_soon(self) -> None:
        """Something in the catalog may have changed: read it soon. What is known serves until then."""
        self._indirect_writes.schema_changed()
        self._refresh_soon.set()

    def doubt(self, table: TableId) -> None:
        """The server says that the table is not what we take it for: have it looked at soon, whatever its stamp."""
        if known := self._known.get(table):
            known.look, known.stamp = 0, None
            known.texts.clear()
        self.refresh_soon()

    # What is known.

    async def queue(self, table: TableId, *, text: bytes | None = None, fresh: bool = False) -> QueueTable:
        """The table as a queue. See `inspect`; raises UnusableQueue, StoreError."""
        match await self.inspect(table, text=text, fresh=fresh):
            case QueueTable() as queue:
                return queue
            case BrokenTable() as broken:
                raise UnusableQueue(str(broken))
            case _ if text is not None:  # Only of marked tables there is one.
                grants = ", ".join(OF_A_QUEUE)
                raise UnusableQueue(
                    f"Table '{table}' is a message table that the engine's account {self._account} may not see:"
                    f" GRANT {grants} ON {qualified(table)} TO {self._account}"
                )
            case _:
                raise UnusableQueue(
                    f"Table '{table}' is not a message table: its COMMENT does not hold the word vitess_message"
                    " (or the account that was given to --backend may not see it)"
                )

    async def to_settle(self, table: TableId) -> TableId:
        """The table in the server's spelling, if messages can be acknowledged in it, which takes no privilege of the
        engine's; raises UnusableQueue, StoreError."""
        found = await self.inspect(table)
        if isinstance(found, BrokenTable) and found.denied:
            return found.id
        return (await self.queue(table)).id

    async def inspect(
        self, table: TableId, *, text: bytes | None = None, fresh: bool = False
    ) -> QueueTable | BrokenTable | None:
        """The table as a queue, or what is wrong with one that cannot be; None for a table that is not marked as a
        queue, or that the engine's account may not see. Raises StoreError.

        `fresh`: as it is now. `text`: as it is where SHOW CREATE TABLE has a text of this digest. Without both: as
        it was when last looked at, if nobody has changed it through this proxy since.
        """
        known = self._known.get(self._spelled.get(table, table))
        if text is not None:
            if known is not None and text in known.texts:
                return known.found
        elif not fresh:
            if known is not None and self._counts(table, known.look):
                return known.found
            if known is None and self._counts(table, self._others.get(table, 0)):
                return None
        found = await self._look(table)
        if text is not None and found is not None and (known := self._known.get(found.id)):
            known.texts[text] = None
            if len(known.texts) > TEXTS_MAX:
                del known.texts[next(iter(known.texts))]
        return found

    def _counts(self, table: TableId, look: int) -> bool:
        """Whether what that look showed of a table is still to be believed."""
        return look >= max(1, self._all_changed, self._changed.get(table.name.casefold(), 0))

    # Looks.

    def _begin(self) -> int:
        self._looks += 1
        return self._looks

    async def _look_at(self, table: TableId) -> QueueTable | BrokenTable | None:
        """Look at one table, as it was asked for."""
        look = self._begin()
        try:
            found = await self._executor.call(self._executor.store.describe, table)
            self._executor.counters.catalog_described += 1
            if found is None:
                self._absent(table, look)
            else:
                if found.id != table:
                    self._remember_spelling(table, found.id)
                self._adopt(found, look)
        except StoreError:
            raise
        except Exception as error:  # A fault of ours: who asked is told, and nobody else is harmed.
            self._fault()
            log.exception("the look at %s failed", table)
            self._known.pop(table, None)
            raise StoreError(f"a fault of ackstream's own, see its log: {error!r}") from error
        return found

    def _remember_spelling(self, asked: TableId, table: TableId) -> None:
        if len(self._spelled) >= self._executor.settings.catalog_tables_max:
            self._spelled.clear()
        self._spelled[asked] = table

    def _adopt(self, found: QueueTable | BrokenTable, look: int, stamp: str | None = None) -> None:
        table = found.id
        before = self._known.get(table)
        if before is not None and before.look > look:
            return
        self._others.pop(table, None)
        if before is not None and before.found == found:
            before.look = look
            before.stamp = stamp or before.stamp
        else:
            self._known[table] = _Known(found, look, stamp)
            self._tell(found, before.found if before else None)

    def _tell(self, found: QueueTable | BrokenTable, before: QueueTable | BrokenTable | None) -> None:
        """Tell the listener what is new, and the log."""
        table = found.id
        if isinstance(found, QueueTable):
            if table not in self._running:
                log.info("queue %s: %s", table, "; ".join(found.advice) or "ready")
            known_before = before.warnings if isinstance(before, QueueTable) else ()
            for warning in found.warnings:
                if warning not in known_before:
                    log.warning("queue %s: %s", table, warning)
            self._listener.found(found)
            self._running.add(table)
            return
        log.warning("%s", found)
        self._lost(table, str(found))

    def _absent(self, table: TableId, look: int) -> None:
        """A look has shown that there is no such table, or that it is not marked."""
        before = self._known.get(table)
        if before is not None and before.look > look:
            return
        if len(self._others) >= self._executor.settings.catalog_tables_max:
            self._others.clear()
        self._others[table] = look
        self._known.pop(table, None)
        self._lost(table, gone(table))

    def _lost(self, table: TableId, text: str) -> None:
        if table in self._running:
            self._running.remove(table)
            self._listener.lost(table, text)

    # Looks at everything.

    async def refresh(self) -> None:
        """Read the whole catalog now; raises StoreError when it cannot be read."""
        look, changed = self._begin(), set(self._changed)
        self._refresh_soon.clear()
        listing = await self._executor.call(self._executor.store.discover)
        self._take_account(listing)
        self._executor.counters.catalog_refreshes += 1
        if self._indirect_writes.told(listing.carriers, outdated=self._refresh_soon.is_set()):
            self._listener.carried()
        doubtful = iter(
            [table for table in {**listing.marked, **self._known} if not self._stands(table, listing, look)]
        )
        while some := list(islice(doubtful, DESCRIBED_AT_ONCE)):
            await self._describe(some, listing)
        # All that is known has been looked at since; what could not be has look 0, which counts for nothing.
        for name in changed:
            if self._changed[name] <= look:
                del self._changed[name]
        self._others = {table: seen for table, seen in self._others.items() if seen > look}
        self._spelled = {table: other for table, other in self._spelled.items() if other in self._known}

    def _take_account(self, listing: Listing) -> None:
        """Remember who the engine is on the server, and log what it newly may not do."""
        for problem in listing.problems:
            if problem not in self._problems:
                log.warning("%s", problem)
        self._account, self._problems = listing.account, listing.problems

    def _stands(self, table: TableId, listing: Listing, look: int) -> bool:
        """Whether a listing shows that a table is as it is known."""
        known, stamp = self._known.get(table), listing.marked.get(table)
        if known is None or stamp is None or known.stamp != stamp:
            return False
        known.look = max(known.look, look)
        return True

    async def _describe(self, tables: Sequence[TableId], listing: Listing) -> None:
        """Describe what is new or has changed. One table that makes trouble is no trouble for the others."""
        look = self._begin()
        try:
            found = await self._executor.call(self._executor.store.describe_all, tables)
            self._executor.counters.catalog_described += len(tables)
        except Exception as error:
            if not isinstance(error, StoreError):
                self._fault()
                log.exception("the look at %d tables failed", len(tables))
            for table in tables:
                await self._look_carefully(table)
            return
        for table in tables:
            before = self._known.get(table)
            if isinstance(seen := found.get(table), BrokenTable) and (before is None or before.found != seen):
                await self._look_carefully(table)
                continue
            try:
                if seen is None:
                    self._absent(table, look)
                else:
                    self._adopt(seen, look, listing.marked.get(table))
            except Exception:
                self._fault()
                log.exception("what the look at %s showed was not taken", table)
                self._known.pop(table, None)

    async def _look_carefully(self, table: TableId) -> None:
        """Look at one table by itself."""
        try:
            await self._look(table)
        except StoreError as error:
            self._distrust(table)
            if not error.unreachable:
                log.warning("cannot look at %s: %s", table, error)

    def _distrust(self, table: TableId) -> None:
        if known := self._known.get(table):
            known.look, known.stamp = 0, None

    # Again and again.

    async def _watch(self) -> None:
        """Read the catalog at intervals, and soon when something may have changed, but for no more than a share of the
        time: a thousand changes in a row do not cause a thousand looks."""
        settings, clock = self._executor.settings, asyncio.get_running_loop().time
        failures = 0
        while True:
            try:
                async with asyncio.timeout(settings.catalog_interval_s):
                    await self._refresh_soon.wait()
            except TimeoutError:
                pass
            began_s = clock()
            failures = 0 if await self._refreshed() else failures + 1
            pause_s = max(settings.catalog_pause_s, (clock() - began_s) * (1 / settings.catalog_share - 1))
            if failures:
                pause_s = min(max(pause_s, settings.catalog_pause_s * 2**failures), settings.catalog_interval_s)
            await asyncio.sleep(pause_s)

    async def _refreshed(self) -> bool:
        """Read the catalog; whether it could be read."""
        try:
            await self.refresh()
        except StoreError as error:
            if not error.unreachable:  # engine.store.reach tells of that, once.
                self._say(f"cannot look for message tables: {error}")
            self._refresh_soon.set()
            return False
        except Exception:
            self._fault()
            log.exception("the look at the catalog failed")
            for known in self._known.values():  # Whatever went wrong: begin again from what the server says.
                known.stamp = None
            self._refresh_soon.set()
            return False
        self._said = ""
        return True

    def _say(self, text: str) -> None:
        """Log what lasts, once."""
        if text != self._said:
            self._said = text
            log.warning("%s", text)

    def _fault(self) -> None:
        """An exception that nobody expected: it harms nothing else, and is counted."""
        self._executor.counters.catalog_faults += 1
