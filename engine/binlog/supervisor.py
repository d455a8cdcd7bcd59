"""The parent's side of the binary log: it keeps a reader running (engine.binlog.reader) and tells
the engine its news.

Whatever goes wrong with the reader, the engine polls as if there were no log, and the reader is
started again, at growing intervals. Each new one begins at the log's end, so all tables are looked
at then: no position is kept, and a log that was purged, cut off by a crash or of another server is
no special case. What cannot work (no log, no privilege) is said once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass

from engine.binlog.pipe import (
    HEAD_BYTES,
    BinlogLimits,
    ChangeBatch,
    FollowRequest,
    ReaderEnded,
    ReaderStarted,
    message,
    size_of,
    value_of,
)
from engine.model import Entry, TableId
from engine.service import Engine
from engine.store.connection import BackendAddress
from engine.store.port import StoreError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowerLimits:
    """When a reader that ended is started again, each with its reason."""

    again_min_s: float = 0.2
    again_max_s: float = 10.0
    """A reader costs a third of a second of processor time to start; polling does meanwhile."""
    lasting_s: float = 10.0
    """A reader that lived so long was well: the next one comes soon."""
    refused_s: float = 300.0
    """The server or the account must be changed first; nobody waits for it."""
    schema_again_s: tuple[float, ...] = (0.1, 1.0)
    """The log tells of a changed table a moment before the change can be seen, so we look again."""


@dataclass(slots=True)
class Following:
    """How it goes, for metrics."""

    now: bool = False
    rows: int = 0
    batches: int = 0
    starts: int = 0
    faults: int = 0
    """Readers that said what could not be understood or taken; another one was started."""
    lag_s: float = 0.0


class BinlogFollower:
    """Keeps an engine informed of what the server's binary log says."""

    def __init__(
        self,
        engine: Engine,
        address: BackendAddress,
        limits: FollowerLimits | None = None,
        reader_limits: BinlogLimits | None = None,
    ) -> None:
        self.following = Following()
        self._engine, self._address = engine, address
        self._limits = limits or FollowerLimits()
        self._reader_limits = reader_limits or BinlogLimits()
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._requested: frozenset[TableId] = frozenset()
        self._sending: asyncio.Handle | None = None
        self._last_logged = ""

    def start(self) -> None:
        """Begin; returns at once."""
        self._engine.on_queues = self._send_tables_soon
        self._task = asyncio.get_running_loop().create_task(self._keep_following(), name="binlog")

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
            try:
                ended = await self._follow()
            except Exception as error:  # Of ours: without a follower, what bypasses the proxy would wait for polls.
                self.following.faults += 1
                log.exception("the news of the binlog could not be taken")
                ended = ReaderEnded(f"its news could not be taken: {error!r}")
            if clock() - began > self._limits.lasting_s:
                pause_s = self._limits.again_min_s
            if ended.refused:
                self._log_once(
                    "the binlog is not followed (%s): what bypasses the proxy is noticed by polling", ended.text
                )
                await asyncio.sleep(self._limits.refused_s)
                continue
            if await self._server_is_reachable():
                self._log_once("the binlog cannot be followed now, polling until it can: %s", ended.text)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._limits.again_max_s)

    async def _server_is_reachable(self) -> bool:
        """Whether something else than the server's absence, which engine.store.reach tells of, must
        have ended the reader."""
        try:
            await self._engine.ping()
        except StoreError as error:
            return not error.unreachable
        return True

    def _log_once(self, text: str, detail: str, level: int = logging.WARNING) -> None:
        """Log a change of state, once."""
        if text != self._last_logged:
            self._last_logged = text
            log.log(level, text, detail)

    def reader_command(self) -> tuple[str, ...]:
        """The reader's program."""
        return (sys.executable, "-m", "engine.binlog.reader")

    async def _follow(self) -> ReaderEnded:
        """Run a reader until it ends; why it did."""
        self.following.starts += 1
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self.reader_command(),
                stdin=PIPE,
                stdout=PIPE,
                # A terminal's Ctrl-C reaches its whole process group: not this child, which ends with its input.
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.startswith("ACKSTREAM_")},
            )
        except OSError as error:
            return ReaderEnded(f"no process for it: {error}")
        try:
            self._requested = self._tables()
            self._send(FollowRequest(self._address, self._reader_limits, self._requested))
            return await self._listen(process)
        finally:
            self._process = None
            self.following.now = False
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _listen(self, process: Process) -> ReaderEnded:
        assert process.stdout is not None
        while True:
            try:
                head = await process.stdout.readexactly(HEAD_BYTES)
                said = value_of(await process.stdout.readexactly(size_of(head)))
            except asyncio.IncompleteReadError:
                return ReaderEnded(f"its reader ended with status {await process.wait()}")
            match said:
                case ReaderStarted(at):
                    self.following.now = True
                    self._log_once("following the binlog from %s", at, logging.INFO)
                    self._engine.changes_logged(None)
                case ChangeBatch():
                    self._handle_batch(said)
                case ReaderEnded():
                    return said
                case _:
                    raise AssertionError(said)

    def _handle_batch(self, batch: ChangeBatch) -> None:
        following, engine = self.following, self._engine
        following.batches += 1
        following.rows += batch.rows
        following.lag_s = batch.lag_s
        if batch.schema_changed:
            loop = asyncio.get_running_loop()
            engine.schema_logged()
            for delay_s in self._limits.schema_again_s:
                loop.call_later(delay_s, engine.schema_logged)
        if batch.everything:
            engine.changes_logged(None)
            return
        for db, name, seen, over in batch.tables:
            engine.changes_logged(TableId(db, name), [Entry(*each) for each in seen], over)

    def _tables(self) -> frozenset[TableId]:
        return frozenset(queue.id for queue, _ in self._engine.runners())

    def _send_tables_soon(self) -> None:
        """Once for all queues that a look at the catalog finds, for all are told each time."""
        if self._sending is None:
            self._sending = asyncio.get_running_loop().call_soon(self._send_tables)

    def _send_tables(self) -> None:
        self._sending = None
        tables = self._tables()
        if self._process is not None and tables != self._requested:
            self._requested = tables
            self._send(tables)

    def _send(self, value: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(message(value))
