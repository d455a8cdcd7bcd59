"""A running stream: row payloads in, packets with consecutive sequence numbers out.

The column packets were sent before, as the server wrote them. The stream sends the rows that the
engine delivers, and then the end of the result set or an error. The client's socket is the only
buffer: while it is full, the stream is paused in the engine, so a client that does not read costs
one batch of rows.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from engine.dispatch.effects import Cause
from engine.packets import frame
from engine.service import Standing, StreamHandle
from proxy.wire.framing import frame_rows
from proxy.wire.packets import ServerError, make_end, make_err

INTERRUPTED = ServerError(1317, "70100", "Query execution was interrupted")
SHUTDOWN = ServerError(1053, "08S01", "Server shutdown in progress: ackstream is stopping, connect again")
SERVER_LOST = ServerError(
    1053, "08S01", "Server shutdown in progress: the server closed the connection, or it was killed; connect again"
)


def unforeseen(error: Exception, session: int) -> ServerError:
    """The client's error for a fault of the proxy. The exception's text may be confidential, so
    only the log has it."""
    text = f"ackstream failed ({type(error).__name__}): its log has the details, at session {session}"
    return ServerError(1105, "HY000", text)


GATHERED_MAX = 1 << 16
"""Bytes that are gathered for one write to the client."""


class GatheredWrites:
    """Packets for the client that are written together: each write is a system call, and wakes the
    client."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._unwritten: list[bytes] = []
        self._bytes = 0

    def hold(self, data: bytes) -> None:
        """Write this at the next `flush`, or at once if GATHERED_MAX bytes wait."""
        self._unwritten.append(data)
        self._bytes += len(data)
        if self._bytes >= GATHERED_MAX:
            self.flush()

    def flush(self) -> None:
        """Write everything now."""
        if self._unwritten:
            unwritten, self._unwritten, self._bytes = self._unwritten, [], 0
            self._write(b"".join(unwritten))


class Stream:
    """The engine's sink for one client's STREAM statement.

    The client's right to the rows is proven before the stream begins, and again while it runs. Rows
    are written only on a proof that is at most `proof_max_age_s` old, else they wait for the next
    one (`unproven`). A proof is requested when rows come and half of that time has passed, so the
    rows of a busy stream do not wait. An idle stream needs none.
    """

    rows_from_server = False
    """Whether the rows come over the backing connection, which is not read while the client is
    full."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        condition: str | None = None,
        *,
        proof_max_age_s: float = math.inf,
        proven_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        limit: int | None = None,
        waits: bool = True,
        is_bounded: bool = False,
    ) -> None:
        """`condition` selects the messages, as SHOW STREAMS displays it (None: all). `proven_s` is when
        the first proof was begun; None: now. `limit`: the rows behind which the engine ends it, by the
        same event that delivers the last of them. `waits`: messages may come later. Without, the column
        packets are written with the first rows or the end. `is_bounded`: its client expects it to end
        (WAIT, NOWAIT)."""
        self.is_bounded = is_bounded
        self._writes = GatheredWrites(write)
        self._limit = limit
        self._waits = waits
        self._seq = 1
        self.has_begun = False
        """Whether the packets that precede the rows are known."""
        self._handle: StreamHandle | None = None
        self._clock = clock
        self._over = False
        self._closed = False
        self._end: Callable[[], bytes] | None = None
        self._error: ServerError | None = None
        self._attention = asyncio.Event()
        """Set when the stream is over or needs a proof."""
        self._proof_max_age_s = proof_max_age_s
        self._proven_s = clock() if proven_s is None else proven_s
        self._held: list[tuple[bytes, ...]] = []
        """Rows that wait for a proof: at most those that were claimed for the stream, which is
        paused meanwhile."""
        self._client_is_full = False
        self._is_paused = False
        self.unproven = False
        """Whether the stream needs a proof."""
        self.rows = 0
        self.condition = condition
        self.since_s = self.last_row_s = clock()

    @property
    def standing(self) -> Standing | None:
        """Its state in the engine; None when it is over."""
        return None if self._handle is None or self.over else self._handle.standing

    @property
    def over(self) -> bool:
        """Whether nothing more is delivered. Rows that wait for a proof may still be sent."""
        return self._over

    def attach(self, handle: StreamHandle) -> None:
        """Set the engine's handle. The engine may have ended the stream before."""
        self._handle = handle

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        """Send rows, or keep them until the next proof."""
        if self._over:
            return
        age_s = self._clock() - self._proven_s
        if self._held or age_s > self._proof_max_age_s:
            self._held.append(rows)
            self._throttle()
        else:
            self._send(rows)
        if age_s > self._proof_max_age_s / 2:
            self.unproven = True
            self._attention.set()

    def end(self, cause: Cause, text: str) -> None:
        """The engine ends the stream; `text` is the reason if its table is unusable."""
        match cause:
            case Cause.COMPLETE:
                self._finish(None)
            case Cause.DRAINING:
                self._drop()
                self._finish(SHUTDOWN)
            case Cause.UNUSABLE:
                self._drop()
                self._finish(ServerError(1105, "HY000", f"The stream ended: {text}"))

    def abort(self, error: ServerError) -> None:
        """End the stream with this error. Nothing more is delivered, and the messages that were
        sent stay in flight."""
        if error.code != INTERRUPTED.code:
            self._drop()
        if not self._over:
            self._finish(error)
            if self._handle is not None:
                self._handle.cancel()

    def complete(self) -> None:
        """End the stream as if nothing more were due. Rows that wait for a proof are still sent."""
        if not self._over:
            self._finish(None)
            if self._handle is not None:
                self._handle.cancel()

    def proven(self, begun_s: float) -> None:
        """The client may have the rows, as internal queries have shown that began at `begun_s`."""
        self._proven_s = begun_s
        self.unproven = False
        held, self._held = self._held, []
        for rows in held:
            self._send(rows)
        self._throttle()

    def refuse(self, error: ServerError) -> None:
        """End the stream with this error because the client may not have the rows any more. Its
        unacknowledged messages are released."""
        self._drop()
        self._over, self._error = True, error
        self._attention.set()
        if self._handle is not None:
            self._handle.revoke()

    def connection_lost(self) -> None:
        """The client is gone, or the server. The engine learns it next."""

    def pause(self) -> None:
        """The client's socket is full."""
        self._client_is_full = True
        self._throttle()

    def resume(self) -> None:
        """The client's socket has room again."""
        self._client_is_full = False
        self._throttle()

    def begin(self, header: Sequence[bytes]) -> None:
        """Send the packets that precede all rows: those of the columns."""
        columns, self._seq = frame_rows(header, self._seq)
        self.has_begun = True
        self._writes.hold(columns)
        if self._waits:
            self._writes.flush()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until the stream is over or needs a proof, or the time has passed; return whether
        one of the former."""
        if not self._attention.is_set():  # Cheaper than asyncio.timeout, which has a task cancelled.
            timer = asyncio.get_running_loop().call_later(timeout_s, self._attention.set)
            try:
                await self._attention.wait()
            finally:
                timer.cancel()
        self._attention.clear()
        return self._over or self.unproven

    def ends_with(self, end: Callable[[], bytes]) -> None:
        """The column packets are sent. If the stream is complete later, `end` gives the packet that
        ends its rows, which is then written with the last of them."""
        self._end = end

    def close(self, capabilities: int, status: int) -> None:
        """Write the last packet of the result set, unless it was written with the last rows."""
        if self._closed:
            return
        error = self._error
        if error is None:
            last = make_end(capabilities, status)
        else:
            last = make_err(error.code, error.sqlstate, str(error.message))
        self._writes.hold(frame(last, self._seq))
        self._writes.flush()

    def _send(self, rows: tuple[bytes, ...]) -> None:
        data, self._seq = frame_rows(rows, self._seq)
        self.rows += len(rows)
        self.last_row_s = self._clock()
        self._writes.hold(data)
        if not self.rows_from_server and self.rows != self._limit:
            self._writes.flush()

    def _drop(self) -> None:
        """Drop the rows that wait, so that no proof is needed."""
        self._held.clear()
        self.unproven = False

    def _throttle(self) -> None:
        """Pause the stream in the engine while the client is full or rows wait for a proof; else
        resume it."""
        paused = self._client_is_full or bool(self._held)
        if paused != self._is_paused and self._handle is not None and not self._over:
            self._is_paused = paused
            if paused:
                self._handle.pause()
            else:
                self._handle.resume()

    def _finish(self, error: ServerError | None) -> None:
        if not self._over:
            self._over, self._error = True, error
            self.unproven &= bool(self._held)
            self._attention.set()
            if error is None and self._end is not None and not self._held:
                self._closed = True
                self._writes.hold(frame(self._end(), self._seq))
                self._writes.flush()
