"""Keeps a reader of the binary log running (engine.binlog.reader), and reports its changes to the
engine.

When a reader fails, the engine polls as if there were no binary log, and another reader is started,
at growing intervals. Each reader begins at the end of the binary log, and all tables are scanned
then. No position is kept, so a binary log that was purged, cut off by a crash or replaced by
another server's is no special case. A lasting obstacle (no binary log, no privilege) is logged
once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from engine.binlog.pipe import (
    HEAD_BYTES,
    BinlogLimits,
    ChangeBatch,
    FollowRequest,
    OwnConnections,
    ReaderEnded,
    ReaderStarted,
    message,
    size_of,
    value_of,
)
from engine.binlog.scope import FollowedTables, Scope, change_filter
from engine.model import Entry, TableId
from engine.service import Engine
from engine.store.opening import BackendAddress
from engine.store.own_writes import OwnWrites
from engine.store.port import NoPrimaryError, StoreError
from engine.store.route import Route

log = logging.getLogger(__name__)

MESSAGES_IN_ONE_TURN: Final = 100
"""Changed messages that are handled in one turn of the event loop: half a millisecond. A transaction that
inserts a thousand would hold up all clients for several."""


@dataclass(frozen=True, slots=True)
class FollowerLimits:
    """The pauses before another reader is started, each with its reason."""

    again_min_s: float = 0.2
    again_max_s: float = 10.0
    """Starting a reader costs a third of a second of processor time. The engine polls meanwhile."""
    lasting_s: float = 10.0
    """After a reader that ran this long, the pause is the shortest again."""
    refused_s: float = 300.0
    """The server or the account must be changed first, so there is no hurry. A change of the server's configuration
    needs a restart, after which the engine opens a connection, and a reader is tried then."""
    refused_least_s: float = 10.0
    """Then, too, a reader is tried so long after the last one: the engine opens connections for other reasons."""
    schema_again_s: tuple[float, ...] = (0.1, 1.0)
    """The binary log contains a changed table shortly before the catalog shows the change, so the
    catalog is refreshed again after these times."""


@dataclass(slots=True)
class Following:
    """The follower's state, for metrics."""

    now: bool = False
    rows: int = 0
    batches: int = 0
    starts: int = 0
    faults: int = 0
    """Readers whose messages could not be processed. Another reader was started."""
    lag_s: float = 0.0
    obstacle: str = ""
    """Why it is not followed, if that was logged and still holds."""
    again_s: float | None = None
    """When it is tried again, on the event loop's clock; None: it is followed, or tried now."""

    def next_attempt_s(self) -> float:
        """The time until it is tried again; 0: it is followed, or tried now."""
        return 0.0 if self.again_s is None else max(0.0, self.again_s - asyncio.get_running_loop().time())

    @property
    def problem(self) -> str | None:
        """Why it is not followed, and when it is tried again, for people."""
        if not self.obstacle:
            return None
        return f"the binary log is not followed, and is tried again in {self.next_attempt_s():.0f} s: {self.obstacle}"


class BinlogFollower:
    """Keeps a reader running, and reports the changes in the server's binary log to an engine."""

    def __init__(
        self,
        engine: Engine,
        address: BackendAddress | Route,
        limits: FollowerLimits | None = None,
        reader_limits: BinlogLimits | None = None,
        own_writes: OwnWrites | None = None,
    ) -> None:
        """`own_writes`: those of the engine's store. They are not reported."""
        self._engine, self._own_writes = engine, own_writes or OwnWrites()
        self.following = Following()
        self._route = address if isinstance(address, Route) else Route(address)
        self._server_changed = asyncio.Event()
        self._connected = asyncio.Event()
        """The engine has opened a connection since the last attempt."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limits = limits or FollowerLimits()
        self._reader_limits = reader_limits or BinlogLimits()
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._requested: FollowedTables = {}
        self._sending: asyncio.Handle | None = None
        self._last_logged = ""
        self._was_reachable = True
        """Whether the server answered when the last reader started or ended."""

    @property
    def tables(self) -> FollowedTables:
        """The tables to follow."""
        engine = self._engine
        return {
            queue.id: Scope(
                change_filter(queue, engine.slots, engine.slot),
                tuple(column.name for column in queue.group_columns),
            )
            for queue in engine.followed_queues()
        }

    def start(self) -> None:
        """Start following in the background. Returns at once."""
        self._engine.on_queues = self._send_tables_soon
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._keep_following(), name="binlog")

    def server_changed(self) -> None:
        """Another server is used: follow its binary log."""
        self._server_changed.set()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def connected(self) -> None:
        """The engine has opened a connection: the server may have been restarted, with other settings. May be called
        on any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._connected.set)

    async def close(self) -> None:
        """Stop, and end the reader."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_following(self) -> None:
        pause_s = self._limits.again_min_s
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            self._connected.clear()
            try:
                ended = await self._follow()
            except Exception as error:  # A fault in ackstream must not end the follower.
                self.following.faults += 1
                log.exception("the changes in the binlog could not be processed", extra={"event": "binlog.fault"})
                ended = ReaderEnded(f"its changes could not be processed: {error!r}")
            if self._server_changed.is_set() or clock() - began > self._limits.lasting_s:
                pause_s = self._limits.again_min_s
            if self._server_changed.is_set():
                self._server_changed.clear()
            elif ended.refused:
                self._log_once(
                    "binlog.refused",
                    "the binlog is not followed (%s): what bypasses the proxy is noticed by polling, every"
                    f" vt_poller_interval of its queue. It is tried again every {self._limits.refused_s:g} s, and when"
                    " the server was restarted",
                    ended.text,
                )
                self.following.obstacle = ended.text
                await self._pause(self._limits.refused_s, self._limits.refused_least_s)
            else:
                # If it is not, engine.store.reach logs that. If it was not, that may be why the reader ended.
                was_reachable, self._was_reachable = self._was_reachable, await self._server_is_reachable()
                if was_reachable and self._was_reachable:
                    self._log_once(
                        "binlog.interrupted", "the binlog cannot be followed now, polling until it can: %s", ended.text
                    )
                    self.following.obstacle = ended.text
                await self._pause(pause_s * (1 - random.random() / 4))  # Several proxies do not keep step.
                pause_s = min(2 * pause_s, self._limits.again_max_s)

    async def _pause(self, pause_s: float, least_s: float | None = None) -> None:
        """Pause until the time has passed or another server is used. With `least_s`: or until then, if the engine
        has opened a connection since the attempt."""
        self.following.again_s = asyncio.get_running_loop().time() + pause_s
        least_s = pause_s if least_s is None else least_s
        await _first_of((self._server_changed,), least_s)
        if pause_s > least_s and not self._server_changed.is_set():
            await _first_of((self._server_changed, self._connected), pause_s - least_s)
        self._server_changed.clear()
        self.following.again_s = None

    def _log_once(self, event: str, text: str, detail: str, level: int = logging.WARNING) -> None:
        """Log a change of state, once."""
        if text != self._last_logged:
            self._last_logged = text
            log.log(level, text, detail, extra={"event": event})

    def reader_command(self) -> tuple[str, ...]:
        """The command that runs the reader."""
        return (sys.executable, "-m", f"{__package__}.reader")

    async def _follow(self) -> ReaderEnded:
        """Run a reader until it ends. Returns the reason."""
        try:
            address = self._route.address
        except NoPrimaryError as error:
            return ReaderEnded(str(error))
        self.following.starts += 1
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self.reader_command(),
                stdin=PIPE,
                stdout=PIPE,
                # A terminal's Ctrl-C reaches its whole process group: not this child, which ends
                # with its input.
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.startswith("ACKSTREAM_")},
            )
        except OSError as error:
            return ReaderEnded(f"no process for it: {error}")
        try:
            self._requested = self.tables
            lock = f"ackstream-{secrets.token_hex(16)}"
            self._send(FollowRequest(address, self._reader_limits, self._requested, self._own_writes.mark, lock))
            return await self._listen(process, lock)
        finally:
            self._process = None
            self._own_writes.report_by("", lambda _: None)
            self.following.now = False
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _listen(self, process: Process, lock: str) -> ReaderEnded:
        assert process.stdout is not None
        while True:
            try:
                head = await process.stdout.readexactly(HEAD_BYTES)
                received = value_of(await process.stdout.readexactly(size_of(head)))
            except asyncio.IncompleteReadError:
                return ReaderEnded(f"its reader ended with status {await process.wait()}")
            match received:
                case ReaderStarted(at, locked):
                    self._started(at, lock if locked else "")
                case ChangeBatch():
                    self._count(received)
                    for part in received.parts(MESSAGES_IN_ONE_TURN):
                        self._handle(part)
                        await asyncio.sleep(0)
                case ReaderEnded():
                    return received
                case _:
                    raise AssertionError(received)

    def _started(self, at: str, lock: str) -> None:
        self.following.now = self._was_reachable = True
        self.following.obstacle = ""
        self._log_once("binlog.followed", "following the binlog from %s", at, logging.INFO)
        if lock:
            self._report_connections(lock)
        self._engine.changes_logged(None)

    def _report_connections(self, lock: str) -> None:
        """Send the reader the numbers of the engine's connections to the server where this lock is held."""
        loop, process = asyncio.get_running_loop(), self._process

        def send(numbers: frozenset[int]) -> None:
            if self._process is process is not None:
                self._send(OwnConnections(numbers))

        def send_soon(numbers: frozenset[int]) -> None:  # It is called on any thread.
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(send, numbers)

        self._own_writes.report_by(lock, send_soon)

    def _handle(self, batch: ChangeBatch) -> None:
        """Hand a change set to the engine."""
        engine = self._engine
        if batch.schema_changed:
            loop = asyncio.get_running_loop()
            engine.schema_logged()
            for delay_s in self._limits.schema_again_s:
                loop.call_later(delay_s, engine.schema_logged)
        if batch.everything:
            engine.changes_logged(None)
            return
        for db, name, seen, over, before in batch.tables:
            engine.changes_logged(TableId(db, name), [Entry(*fields) for fields in seen], over, before)

    def _count(self, batch: ChangeBatch) -> None:
        following = self.following
        following.batches += 1
        following.rows += batch.rows
        following.lag_s = batch.lag_s

    async def _server_is_reachable(self) -> bool:
        """Whether the server answers, so the reader ended for another reason."""
        try:
            await self._engine.ping()
        except StoreError as error:
            return not error.unreachable
        return True

    def _send_tables_soon(self) -> None:
        """Send the tables to follow once after a refresh of the catalog, because each message has
        all of them."""
        if self._sending is None:
            self._sending = asyncio.get_running_loop().call_soon(self._send_tables)

    def _send_tables(self) -> None:
        self._sending = None
        tables = self.tables
        if self._process is not None and tables != self._requested:
            self._requested = tables
            self._send(tables)

    def _send(self, value: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():  # A killed reader's input closes before its end is noticed.
            self._process.stdin.write(message(value))


async def _first_of(events: Iterable[asyncio.Event], within_s: float) -> None:
    """Return when one of the events is set, or after this time."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
