"""Which tables are queues, kept up to date with the server's catalog.

Three events show that a table changed. Each costs the same however many queues there are:

* A client of this proxy runs a statement that may have changed it (`schema_changed`). Earlier
  knowledge is not used again: the one table is described when it is next needed, and the whole
  catalog is refreshed soon.
* A STREAM reads SHOW CREATE TABLE on its client's own connection anyway. A text that was seen with
  the known description proves that description. With any other text the table is described again.
  So a STREAM on a known queue costs no query here, and misses no change, wherever it was made.
* The refresh of the whole catalog (`discover`): every `catalog_interval_s`, and soon after the
  binary log contains a change of a table. It returns a stamp for each queue. Queues with a new stamp
  are described again, all together.

A table that cannot be described, for example because a session has locked it or a table that it
needs, is late: it is described again beside the refreshes, so that they do not wait for it.

engine.service runs the queues and is notified by callbacks. This module starts and ends no queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from engine.catalog.privileges import OF_A_QUEUE
from engine.model import TableId
from engine.queue_table import PRIMARY_KEY, BrokenTable, QueueTable, SettleColumns
from engine.quoting import qualified
from engine.runtime.executor import StoreExecutor
from engine.runtime.indirect_writes import IndirectWrites
from engine.runtime.shared_runs import SharedRuns
from engine.runtime.store_effects import no_queue_text
from engine.store.port import Listing, StoreError

log = logging.getLogger(__name__)

DESCRIBED_AT_ONCE = 250
"""Tables described in one packet. Reading their rows takes about 20 ms, and other threads wait."""

TEXTS_MAX = 8
"""Texts of SHOW CREATE TABLE remembered for each queue. The text depends on the session's sql_mode
and character set. Few applications have more than one or two kinds of sessions."""

FAILURES_MAX = 20
"""Failures in a row after which the pause does not grow any more: a million times the first."""

CHANGED_NAMES_MAX = 1_000
"""Names of changed tables remembered until the catalog's refresh. With more, all tables count as
changed."""


class UnusableQueue(Exception):
    """The table cannot be used for STREAM or ACK. The text contains the reason and the remedy."""


@dataclass(slots=True)
class _Known:
    """The last description of a marked table."""

    found: QueueTable | BrokenTable
    read: int
    """The number of the last read that returned it. 0: it must not be used."""
    stamp: str | None = None
    """Its stamp in the listing of that read. None: the next refresh describes it again."""
    texts: dict[bytes, None] = field(default_factory=dict)
    """Digests of SHOW CREATE TABLE that were seen with it, the oldest first."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks for what the catalog contains. Each runs on the event loop and returns at once."""

    found: Callable[[QueueTable], None]
    """The table is a new queue, or a known queue whose description changed."""
    lost: Callable[[TableId, str], None]
    """The table is not a queue any more, or cannot be one. The text is for its streams' clients."""
    indirect_write: Callable[[], None]
    """An earlier write may have reached any table."""


class Queues:
    """The known tables of one server.

    Reads of the catalog (refreshes and descriptions) are numbered in the order in which they begin.
    The result of a later read is never replaced by that of an earlier one.
    """

    def __init__(self, executor: StoreExecutor, indirect_writes: IndirectWrites, listener: Listener) -> None:
        self._executor = executor
        self._indirect_writes = indirect_writes
        self._listener = listener
        self._describe_shared = SharedRuns(self._describe_one)
        self._reads = 0
        self._known: dict[TableId, _Known] = {}
        self._reported: set[TableId] = set()
        """The queues that were reported to the listener."""
        self._unmarked: dict[TableId, int] = {}
        """Tables that are not marked, and the number of the read that showed it."""
        self._spellings: dict[TableId, TableId] = {}
        """Other spellings of queues' names that the server treats as equal, and the queues."""
        self._changed: dict[str, int] = {}
        """Bare names, casefolded, of tables that may have changed, and the first read that shows
        it."""
        self._all_changed = 0
        """The first read that shows what may have changed in all tables."""
        self._late: dict[TableId, int] = {}
        """The tables that could not be described, and how often; the last one to fail is the last."""
        self._any_late = asyncio.Event()
        self._account, self._problems = "", tuple[str, ...]()
        self._refresh_soon = asyncio.Event()
        self._last_warning = ""

    async def start(self) -> None:
        """Read the catalog, and keep refreshing it in the background.

        Raises StoreError when it cannot be read.
        """
        await self.refresh()
        self._executor.spawn(self._watch(), "catalog")
        self._executor.spawn(self._watch_late(), "late tables")

    async def close(self) -> None:
        """Cancel the descriptions under way."""
        await self._describe_shared.close()

    @property
    def remembered(self) -> int:
        """The number of entries about tables that are kept in memory."""
        texts = sum(len(known.texts) for known in self._known.values())
        late = len(self._late)
        return len(self._known) + len(self._unmarked) + len(self._spellings) + len(self._changed) + late + texts

    # Events.

    def schema_changed(self, name: str | None = None) -> None:
        """A table of this bare name, casefolded (None: any table), may have been created, altered
        or dropped.

        Earlier knowledge of it is not used again until it has been described.
        """
        if name is None or len(self._changed) >= CHANGED_NAMES_MAX:
            self._all_changed = self._reads + 1
        else:
            self._changed[name] = self._reads + 1
        self.refresh_soon()

    def refresh_soon(self) -> None:
        """Refresh the catalog soon, because something may have changed.

        Known descriptions serve until then.
        """
        self._indirect_writes.schema_changed()
        self._refresh_soon.set()

    def server_changed(self) -> None:
        """Another server is used: describe all tables again, whatever their stamps."""
        for known in self._known.values():
            known.read, known.stamp = 0, None
            known.texts.clear()
        self.schema_changed()

    def distrust(self, table: TableId) -> None:
        """A statement failed because the table differs from its description: describe it soon,
        whatever its stamp."""
        if known := self._known.get(table):
            known.read, known.stamp = 0, None
            known.texts.clear()
        self.refresh_soon()

    # Known tables.

    async def queue(self, table: TableId, *, text: bytes | None = None, fresh: bool = False) -> QueueTable:
        """The table as a queue; `text` and `fresh` as for `inspect`.

        Raises UnusableQueue, StoreError.
        """
        match await self.inspect(table, text=text, fresh=fresh):
            case QueueTable() as queue:
                return queue
            case BrokenTable() as broken:
                raise UnusableQueue(str(broken))
            case _ if text is not None:  # Callers pass a text only for marked tables.
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

    async def to_settle(self, table: TableId) -> SettleColumns:
        """The table in the server's spelling, if its messages can be settled, and the columns that
        settling writes besides the required ones.

        Settling requires no privilege of the engine's account. Raises UnusableQueue, StoreError.
        """
        found = await self.inspect(table)
        if isinstance(found, BrokenTable) and found.denied:
            return SettleColumns(found.id)
        return _columns_of(await self.queue(table))

    def known_to_settle(self, table: TableId) -> SettleColumns | None:
        """What `to_settle` returns, from the last description; None if the table has to be described."""
        found = self.current(table)
        return _columns_of(found) if isinstance(found, QueueTable) else None

    async def inspect(
        self, table: TableId, *, text: bytes | None = None, fresh: bool = False
    ) -> QueueTable | BrokenTable | None:
        """The table as a queue, or its problems if it cannot be one.

        None for a table that is not marked as a queue or that the engine's account may not see.
        `fresh`: its present state. `text`: its state when SHOW CREATE TABLE has a text of this
        digest. Without both: its last description, unless a client of this proxy may have changed
        it since. Raises StoreError.
        """
        known = self._known.get(self._spellings.get(table, table))
        if text is not None:
            if known is not None and text in known.texts:
                return known.found
        elif not fresh:
            if (current := self.current(table)) is not None:
                return current
            if known is None and self._is_current(table, self._unmarked.get(table, 0)):
                return None
        found = await self._describe_shared(table)
        if text is not None and found is not None:
            self._remember_text(found, text)
        return found

    def current(self, table: TableId) -> QueueTable | BrokenTable | None:
        """The last description of the table; None if there is none, or if a client of this proxy may have
        changed the table since."""
        known = self._known.get(self._spellings.get(table, table))
        return known.found if known is not None and self._is_current(table, known.read) else None

    def broken(self) -> Sequence[BrokenTable]:
        """The marked tables that cannot be queues, as they were last described."""
        return [known.found for known in self._known.values() if isinstance(known.found, BrokenTable)]

    def _remember_text(self, found: QueueTable | BrokenTable, text: bytes) -> None:
        """Remember that the text shows this description, unless a later read has replaced it."""
        known = self._known.get(found.id)
        if known is None or known.found is not found:
            return
        known.texts[text] = None
        if len(known.texts) > TEXTS_MAX:
            del known.texts[next(iter(known.texts))]

    def known_by(self, table: TableId, text: bytes) -> QueueTable | None:
        """The table as a queue if its definition with this digest is known; else None, and
        `inspect` has to describe it."""
        known = self._known.get(self._spellings.get(table, table))
        found = known.found if known is not None and text in known.texts else None
        return found if isinstance(found, QueueTable) else None

    def _is_current(self, table: TableId, read: int) -> bool:
        """Whether that read's result for the table may still be used."""
        return read >= max(1, self._all_changed, self._changed.get(table.name.casefold(), 0))

    # Descriptions.

    def _begin_read(self) -> int:
        self._reads += 1
        return self._reads

    async def _describe_one(self, table: TableId) -> QueueTable | BrokenTable | None:
        """Describe one table, under the spelling that the caller used."""
        read = self._begin_read()
        try:
            found = await self._executor.call(self._executor.store.describe, table)
            self._executor.counters.catalog_described += 1
            if found is None:
                self._record_absent(table, read)
            else:
                if found.id != table:
                    self._remember_spelling(table, found.id)
                found = self._record(found, read)
        except StoreError:
            raise
        except Exception as error:  # A fault in ackstream ends this one call, and nothing else.
            self._count_fault()
            log.exception("%s could not be described", table, extra={"event": "catalog.fault", "queue": str(table)})
            self._known.pop(table, None)
            raise StoreError(f"a fault of ackstream's own, see its log: {error!r}") from error
        return found

    def _remember_spelling(self, spelling: TableId, table: TableId) -> None:
        if len(self._spellings) >= self._executor.settings.catalog_tables_max:
            self._spellings.clear()
        self._spellings[spelling] = table

    def _record(self, found: QueueTable | BrokenTable, read: int, stamp: str | None = None) -> QueueTable | BrokenTable:
        """Record a description, unless a later read has recorded one. Returns the object that was
        recorded before if it is equal, so that callers recognize a known description by identity."""
        table = found.id
        before = self._known.get(table)
        if before is not None and before.read > read:
            return before.found if before.found == found else found
        self._unmarked.pop(table, None)
        if before is not None and before.found == found:
            before.read = read
            before.stamp = stamp or before.stamp
            return before.found
        self._known[table] = _Known(found, read, stamp)
        self._report(found, before.found if before else None)
        return found

    def _report(self, found: QueueTable | BrokenTable, before: QueueTable | BrokenTable | None) -> None:
        """Notify the listener of a changed description, and log it."""
        table = found.id
        if isinstance(found, QueueTable):
            if table not in self._reported:
                log.info(
                    "queue %s: %s",
                    table,
                    "; ".join(found.advice) or "ready",
                    extra={"event": "queue.ready", "queue": str(table)},
                )
            known_before = before.warnings if isinstance(before, QueueTable) else ()
            for warning in found.warnings:
                if warning not in known_before:
                    log.warning("queue %s: %s", table, warning, extra={"event": "queue.warning", "queue": str(table)})
            self._listener.found(found)
            self._reported.add(table)
            return
        log.warning("%s", found, extra={"event": "queue.unusable", "queue": str(table)})
        self._report_lost(table, str(found))

    def _record_absent(self, table: TableId, read: int) -> None:
        """A read has shown that the table does not exist or is not marked."""
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

    # Refreshes.

    async def refresh(self) -> None:
        """Read the whole catalog now, and describe the new and changed tables, except the late ones.

        Raises StoreError when the catalog cannot be read.
        """
        read, changed = self._begin_read(), set(self._changed)
        self._refresh_soon.clear()
        listing = await self._executor.call(self._executor.store.discover)
        self._record_account(listing)
        self._executor.counters.catalog_refreshes += 1
        if self._indirect_writes.refreshed(listing.views_and_triggers, outdated=self._refresh_soon.is_set()):
            self._listener.indirect_write()
        outdated = iter(
            [
                table
                for table in {**listing.marked, **self._known}
                if not self._is_unchanged(table, listing, read) and table not in self._late
            ]
        )
        while some := list(islice(outdated, DESCRIBED_AT_ONCE)):
            await self._describe_all(some, listing.marked)
        # Every known table has been described since. Those that could not be have read 0.
        for name in changed:
            if self._changed.get(name, read + 1) <= read:  # Another refresh may have deleted it meanwhile.
                del self._changed[name]
        self._unmarked = {table: seen for table, seen in self._unmarked.items() if seen > read}
        self._spellings = {table: other for table, other in self._spellings.items() if other in self._known}

    def _record_account(self, listing: Listing) -> None:
        """Remember the engine's account, and log each new problem of its privileges."""
        for problem in listing.problems:
            if problem not in self._problems:
                log.warning("%s", problem, extra={"event": "account.lacks_privilege"})
        self._account, self._problems = listing.account, listing.problems

    def _is_unchanged(self, table: TableId, listing: Listing, read: int) -> bool:
        """Whether the listing shows that a table still is as described."""
        known, stamp = self._known.get(table), listing.marked.get(table)
        if known is None or stamp is None or known.stamp != stamp:
            return False
        known.read = max(known.read, read)
        return True

    async def _describe_all(self, tables: Sequence[TableId], stamps: Mapping[TableId, str | None]) -> None:
        """Describe tables. One that cannot be described is late then, and affects no other. `stamps`: those
        of the listing. Raises StoreError if the server cannot be reached."""
        read = self._begin_read()
        try:
            found = await self._executor.call(self._executor.store.describe_all, tables)
            self._executor.counters.catalog_described += len(tables)
        except Exception as error:
            if isinstance(error, StoreError) and error.unreachable:
                raise
            if not isinstance(error, StoreError):
                self._count_fault()
                log.exception("%d tables could not be described", len(tables), extra={"event": "catalog.fault"})
            for table in tables:
                await self._describe_alone(table)
            return
        for table in tables:
            before, seen = self._known.get(table), found.get(table)
            if isinstance(seen, StoreError):
                self._postpone(table, seen)
            elif isinstance(seen, BrokenTable) and (before is None or before.found != seen):
                await self._describe_alone(table)
            else:
                self._record_seen(table, seen, read, stamps.get(table))

    def _record_seen(self, table: TableId, seen: QueueTable | BrokenTable | None, read: int, stamp: str | None) -> None:
        """Record one of many descriptions. A fault in ackstream affects no other."""
        try:
            if seen is None:
                self._record_absent(table, read)
            else:
                self._record(seen, read, stamp)
        except Exception:
            self._count_fault()
            log.exception(
                "the description of %s could not be used", table, extra={"event": "catalog.fault", "queue": str(table)}
            )
            self._known.pop(table, None)

    async def _describe_alone(self, table: TableId) -> None:
        """Describe one table by itself. If that is not possible, it is late."""
        try:
            await self._describe_shared(table)
        except StoreError as error:
            self._postpone(table, error)

    # Late tables.

    def _postpone(self, table: TableId, error: StoreError) -> None:
        """The table could not be described: describe it again, beside the refreshes."""
        if known := self._known.get(table):
            known.read, known.stamp = 0, None
        failures = self._late.pop(table, 0)
        if not failures and not error.unreachable:
            log.warning(
                "cannot describe %s: %s", table, error, extra={"event": "queue.not_described", "queue": str(table)}
            )
        self._late[table] = failures + 1
        self._any_late.set()

    async def _watch_late(self) -> None:
        """Describe late tables, at growing intervals while none of them can be described."""
        settings, failures = self._executor.settings, 0
        while True:
            await self._any_late.wait()
            pause_s = settings.catalog_pause_s * 2**failures
            await asyncio.sleep(min(pause_s, settings.catalog_interval_s))
            failures = 0 if await self._try_late() else min(failures + 1, FAILURES_MAX)

    async def _try_late(self) -> bool:
        """Describe some late tables. Returns whether one of them is not late any more."""
        before = dict(islice(self._late.items(), DESCRIBED_AT_ONCE))
        try:
            await self._describe_all(list(before), {})
        except StoreError:  # The server is away. engine.store.reach logs that, once.
            return False
        described = [table for table, failures in before.items() if self._late.get(table) == failures]
        for table in described:
            del self._late[table]
        if not self._late:
            self._any_late.clear()
        return bool(described)

    # The refresh in the background.

    async def _watch(self) -> None:
        """Refresh the catalog at intervals, and soon after a change.

        Refreshes take at most `catalog_share` of the time, unless one takes so long that the pause would
        exceed `catalog_interval_s`: a thousand changes in a row do not cause a thousand refreshes.
        """
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
                pause_s = max(pause_s, settings.catalog_pause_s * 2 ** min(failures, FAILURES_MAX))
            await asyncio.sleep(min(pause_s, settings.catalog_interval_s))

    async def _try_refresh(self) -> bool:
        """Refresh the catalog. Returns whether it could be read; if not, the next refresh follows soon."""
        try:
            await self.refresh()
        except StoreError as error:
            if not error.unreachable:  # engine.store.reach logs that, once.
                self._warn_once(f"cannot read the catalog: {error}")
            self._refresh_soon.set()
            return False
        except Exception:
            self._count_fault()
            log.exception("the catalog's refresh failed", extra={"event": "catalog.fault"})
            for known in self._known.values():  # Describe every table again.
                known.stamp = None
            self._refresh_soon.set()
            return False
        self._last_warning = ""
        return True

    def _warn_once(self, text: str) -> None:
        """Log a warning, unless it is the same as the last one."""
        if text != self._last_warning:
            self._last_warning = text
            log.warning("%s", text, extra={"event": "catalog.not_read"})

    def _count_fault(self) -> None:
        """Count an unexpected exception, which affects nothing else."""
        self._executor.counters.catalog_faults += 1


def _columns_of(queue: QueueTable) -> SettleColumns:
    by_primary_key = queue.id_index == PRIMARY_KEY
    return SettleColumns(queue.id, queue.lease_column, queue.reason, by_primary_key=by_primary_key)
