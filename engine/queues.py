"""Which tables are queues, kept up to date with the server's catalog.

Any statement that may have changed a table makes what is known stale at once (`schema_changed`), and what is stale is
read again before it is used. A periodic look finds what was changed behind the proxy's back. Whoever runs the queues
(engine.service) is told by callbacks: this module starts and ends nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from engine.carriers import Carriers
from engine.model import BrokenTable, QueueTable, TableId
from engine.runner import gone
from engine.shell import Shell
from engine.store import StoreError

log = logging.getLogger(__name__)


class UnusableQueue(Exception):
    """The table cannot be streamed from or acknowledged in; the text says why and what to do."""


@dataclass(slots=True)
class _Known:
    """What a look at one table said, and in which generation of the schema."""

    found: QueueTable | BrokenTable | None
    generation: int


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
    """What is known of the tables of one server."""

    def __init__(self, shell: Shell, carriers: Carriers, listener: Listener) -> None:
        self._shell = shell
        self._carriers = carriers
        self._listener = listener
        self._known: dict[TableId, _Known] = {}
        self._running: set[TableId] = set()
        """The queues that the listener was told of."""
        self._generation = 0
        self._look_again = asyncio.Event()

    async def start(self) -> None:
        """Read the catalog, and keep on doing so; raises StoreError when the server cannot be asked."""
        await self._look_at_all()
        self._shell.spawn(self._watch(), "catalog")

    def schema_changed(self) -> None:
        """Some table may have been created, altered or dropped: nothing that is known now is used without a look."""
        self._generation += 1
        self._carriers.schema_changed()
        self._look_again.set()

    async def queue(self, table: TableId, *, fresh: bool = False) -> QueueTable:
        """The table as a queue, as it is now (`fresh`) or was when nobody had changed it; raises
        UnusableQueue, StoreError."""
        match await self.inspect(table, fresh=fresh):
            case QueueTable() as queue:
                return queue
            case BrokenTable() as broken:
                raise UnusableQueue(str(broken))
            case _:
                raise UnusableQueue(
                    f"Table '{table}' is not a message table: its COMMENT does not hold the word vitess_message"
                    " (or the account that was given to --backend may not see it)"
                )

    async def inspect(self, table: TableId, *, fresh: bool = False) -> QueueTable | BrokenTable | None:
        """The same, with what is wrong with a table that cannot be one; None for a table that is not marked as a
        queue, or that the engine's account may not see."""
        known = self._known.get(table)
        if known is None or known.generation != self._generation or fresh:
            known = await self._look_at(table)
        return known.found

    async def _look_at(self, table: TableId) -> _Known:
        generation = self._generation
        known = _Known(await self._shell.call(self._shell.store.describe, table), generation)
        if known.found is not None:
            table = known.found.id  # In the server's spelling.
        before = self._known.get(table)
        if before is None or before.generation <= generation:
            self._adopt(table, known)
        return known

    def _adopt(self, table: TableId, known: _Known) -> None:
        if len(self._known) >= self._shell.settings.catalog_tables_max:
            self._known = {queue: self._known[queue] for queue in self._running if queue in self._known}
        before = self._known.get(table)
        self._known[table] = known
        found = known.found
        if isinstance(found, QueueTable):
            if table not in self._running:
                log.info("queue %s: %s", table, "; ".join(found.advice) or "ready")
                self._running.add(table)
            known_before = before.found.warnings if before and isinstance(before.found, QueueTable) else ()
            for warning in found.warnings:
                if warning not in known_before:
                    log.warning("queue %s: %s", table, warning)
            self._listener.found(found)
            return
        if isinstance(found, BrokenTable) and (before is None or before.found != found):
            log.warning("%s", found)
        if table in self._running:
            self._running.remove(table)
            self._listener.lost(table, str(found) if found else gone(table))

    async def _look_at_all(self) -> None:
        generation = self._generation
        tables, carriers = await self._shell.call(self._shell.store.discover)
        if self._carriers.told(carriers, outdated=generation != self._generation):
            self._listener.carried()
        for table in {*tables, *self._running}:
            try:
                await self._look_at(table)
            except StoreError as error:  # The others are still worth a look.
                log.warning("cannot look at %s: %s", table, error)

    async def _watch(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._shell.settings.catalog_interval_s):
                    await self._look_again.wait()
            except TimeoutError:
                pass
            self._look_again.clear()
            try:
                await self._look_at_all()
            except StoreError as error:
                log.warning("cannot look for message tables: %s", error)
