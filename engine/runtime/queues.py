"""Which tables are queues, kept up to date with the server's catalog.

Three things tell that a table changed, and each costs the same however many queues there are:

* A statement of a client of this proxy that may have changed it (`schema_changed`). What was known before is not used
  again without a read: at this one table when somebody asks for it first, at the whole catalog soon in any case.
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
from engine.runtime.table_runner import no_queue_text
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
    read: int
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
    indirect_write: Callable[[], None]
    """It turns out that something written before may have come into any table."""


class Queues:
    """What is known of the tables of one server. Looks are numbered in the order in which they begin: what a later read
    has shown is not replaced by what an earlier one shows."""

    def __init__(self, executor: StoreExecutor, indirect_writes: IndirectWrites, listener: Listener) -> None:
        self._executor = executor
        self._indirect_writes = indirect_writes
        self._listener = listener
        self._describe_shared = SharedRuns(self._describe_one)
        self._reads = 0
        self._known: dict[TableId, _Known] = {}
        self._reported: set[TableId] = set()
        """The queues that the listener was told of."""
        self._unmarked: dict[TableId, int] = {}
        """Tables that are not marked, and the look that showed it."""
        self._spellings: dict[TableId, TableId] = {}
        """Other spellings of queues, as the server takes them for the same."""
        self._changed: dict[str, int] = {}
        """Bare names, casefolded, of tables that may have been changed, and the first look that shows it."""
        self._all_changed = 0
        """The same for all tables."""
        self._account, self._problems = "", tuple[str, ...]()
        self._refresh_soon = asyncio.Event()
        self._last_warning = ""

    async def start(self) -> None:
        """Read the catalog, and keep on doing so; raises StoreError when the server cannot be asked."""
        await self.refresh()
        self._executor.spawn(self._watch(), "catalog")

    async def close(self) -> None:
        """Stop looking."""
        await self._describe_shared.close()

    @property
    def remembered(self) -> int:
        """How many things are kept in memory of tables."""
        texts = sum(len(known.texts) for known in self._known.values())
        return len(self._known) + len(self._unmarked) + len(self._spellings) + len(self._changed) + texts

    # What happens.

    def schema_changed(self, name: str | None = None) -> None:
        """A table of this bare name, casefolded (None: any table), may have been created, altered or dropped by now:
        what is known of it is not used again without a look."""
        if name is None or len(self._changed) >= CHANGED_NAMES_MAX:
            self._all_changed = self._reads + 1
        else:
            self._changed[name] = self._reads + 1
        self.refresh_soon()

    def refresh_soon(self) -> None:
        """Something in the catalog may have changed: read it soon. What is known serves until then."""
        self._indirect_writes.schema_changed()
        self._refresh_soon.set()

    def distrust(self, table: TableId) -> None:
        """The server says that the table is not what we take it for: have it looked at soon, whatever its stamp."""
        if known := self._known.get(table):
            known.read, known.stamp = 0, None
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
        known = self._known.get(self._spellings.get(table, table))
        if text is not None:
            if known is not None and text in known.texts:
                return known.found
        elif not fresh:
            if known is not None and self._is_current(table, known.read):
                return known.found
            if known is None and self._is_current(table, self._unmarked.get(table, 0)):
                return None
        found = await self._describe_shared(table)
        if text is not None and found is not None and (known := self._known.get(found.id)):
            known.texts[text] = None
            if len(known.texts) > TEXTS_MAX:
                del known.texts[next(iter(known.texts))]
        return found

    def _is_current(self, table: TableId, read: int) -> bool:
        """Whether what that look showed of a table is still to be believed."""
        return read >= max(1, self._all_changed, self._changed.get(table.name.casefold(), 0))

    # Looks.

    def _begin_read(self) -> int:
        self._reads += 1
        return self._reads

    async def _describe_one(self, table: TableId) -> QueueTable | BrokenTable | None:
        """Look at one table, as it was asked for."""
        read = self._begin_read()
        try:
            found = await self._executor.call(self._executor.store.describe, table)
            self._executor.counters.catalog_described += 1
            if found is None:
                self._record_absent(table, read)
            else:
                if found.id != table:
                    self._remember_spelling(table, found.id)
                self._record(found, read)
        except StoreError:
            raise
        except Exception as error:  # A fault of ours: who asked is told, and nobody else is harmed.
            self._count_fault()
            log.exception("the look at %s failed", table)
            self._known.pop(table, None)
            raise StoreError(f"a fault of ackstream's own, see its log: {error!r}") from error
        return found

    def _remember_spelling(self, asked: TableId, table: TableId) -> None:
        if len(self._spellings) >= self._executor.settings.catalog_tables_max:
            self._spellings.clear()
        self._spellings[asked] = table

    def _record(self, found: QueueTable | BrokenTable, read: int, stamp: str | None = None) -> None:
        table = found.id
        before = self._known.get(table)
        if before is not None and before.read > read:
            return
        self._unmarked.pop(table, None)
        if before is not None and before.found == found:
            before.read = read
            before.stamp = stamp or before.stamp
        else:
            self._known[table] = _Known(found, read, stamp)
            self._report(found, before.found if before else None)

    def _report(self, found: QueueTable | BrokenTable, before: QueueTable | BrokenTable | None) -> None:
        """Tell the listener what is new, and the log."""
        table = found.id
        if isinstance(found, QueueTable):
            if table not in self._reported:
                log.info("queue %s: %s", table, "; ".join(found.advice) or "ready")
            known_before = before.warnings if isinstance(before, QueueTable) else ()
            for warning in found.warnings:
                if warning not in known_before:
                    log.warning("queue %s: %s", table, warning)
            self._listener.found(found)
            self._reported.add(table)
            return
        log.warning("%s", found)
        self._report_lost(table, str(found))

    def _record_absent(self, table: TableId, read: int) -> None:
        """A look has shown that there is no such table, or that it is not marked."""
        before = self._known.get(table)
        if before is not None and before.read > read:
            return
        if len(self._unmarked) >= self._executor.settings.catalog_tables_max:
            self._unmarked.clear()
        self._unmarked[table] = read
        self._known.pop(table, None)
        self._report_lost(table, no_queue_text(table))

    def _report_lost(self, table: TableId, text: str) -> None:
        if table in self._reported:
            self._reported.remove(table)
            self._listener.lost(table, text)

    # Looks at everything.

    async def refresh(self) -> None:
        """Read the whole catalog now; raises StoreError when it cannot be read."""
        read, changed = self._begin_read(), set(self._changed)
        self._refresh_soon.clear()
        listing = await self._executor.call(self._executor.store.discover)
        self._record_account(listing)
        self._executor.counters.catalog_refreshes += 1
        if self._indirect_writes.refreshed(listing.views_and_triggers, outdated=self._refresh_soon.is_set()):
            self._listener.indirect_write()
        doubtful = iter(
            [table for table in {**listing.marked, **self._known} if not self._is_unchanged(table, listing, read)]
        )
        while some := list(islice(doubtful, DESCRIBED_AT_ONCE)):
            await self._describe_all(some, listing)
        # All that is known has been looked at since; what could not be has look 0, which counts for nothing.
        for name in changed:
            if self._changed[name] <= read:
                del self._changed[name]
        self._unmarked = {table: seen for table, seen in self._unmarked.items() if seen > read}
        self._spellings = {table: other for table, other in self._spellings.items() if other in self._known}

    def _record_account(self, listing: Listing) -> None:
        """Remember who the engine is on the server, and log what it newly may not do."""
        for problem in listing.problems:
            if problem not in self._problems:
                log.warning("%s", problem)
        self._account, self._problems = listing.account, listing.problems

    def _is_unchanged(self, table: TableId, listing: Listing, read: int) -> bool:
        """Whether a listing shows that a table is as it is known."""
        known, stamp = self._known.get(table), listing.marked.get(table)
        if known is None or stamp is None or known.stamp != stamp:
            return False
        known.read = max(known.read, read)
        return True

    async def _describe_all(self, tables: Sequence[TableId], listing: Listing) -> None:
        """Describe what is new or has changed. One table that makes trouble is no trouble for the others."""
        read = self._begin_read()
        try:
            found = await self._executor.call(self._executor.store.describe_all, tables)
            self._executor.counters.catalog_described += len(tables)
        except Exception as error:
            if not isinstance(error, StoreError):
                self._count_fault()
                log.exception("the look at %d tables failed", len(tables))
            for table in tables:
                await self._describe_alone(table)
            return
        for table in tables:
            before = self._known.get(table)
            if isinstance(seen := found.get(table), BrokenTable) and (before is None or before.found != seen):
                await self._describe_alone(table)
                continue
            try:
                if seen is None:
                    self._record_absent(table, read)
                else:
                    self._record(seen, read, listing.marked.get(table))
            except Exception:
                self._count_fault()
                log.exception("what the look at %s showed was not taken", table)
                self._known.pop(table, None)

    async def _describe_alone(self, table: TableId) -> None:
        """Look at one table by itself."""
        try:
            await self._describe_shared(table)
        except StoreError as error:
            self._mark_outdated(table)
            if not error.unreachable:
                log.warning("cannot look at %s: %s", table, error)

    def _mark_outdated(self, table: TableId) -> None:
        if known := self._known.get(table):
            known.read, known.stamp = 0, None

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
            failures = 0 if await self._try_refresh() else failures + 1
            pause_s = max(settings.catalog_pause_s, (clock() - began_s) * (1 / settings.catalog_share - 1))
            if failures:
                pause_s = min(max(pause_s, settings.catalog_pause_s * 2**failures), settings.catalog_interval_s)
            await asyncio.sleep(pause_s)

    async def _try_refresh(self) -> bool:
        """Read the catalog; whether it could be read."""
        try:
            await self.refresh()
        except StoreError as error:
            if not error.unreachable:  # engine.store.reach tells of that, once.
                self._warn_once(f"cannot look for message tables: {error}")
            self._refresh_soon.set()
            return False
        except Exception:
            self._count_fault()
            log.exception("the look at the catalog failed")
            for known in self._known.values():  # Whatever went wrong: begin again from what the server says.
                known.stamp = None
            self._refresh_soon.set()
            return False
        self._last_warning = ""
        return True

    def _warn_once(self, text: str) -> None:
        """Log what lasts, once."""
        if text != self._last_warning:
            self._last_warning = text
            log.warning("%s", text)

    def _count_fault(self) -> None:
        """An exception that nobody expected: it harms nothing else, and is counted."""
        self._executor.counters.catalog_faults += 1
