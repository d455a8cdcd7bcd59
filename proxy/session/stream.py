"""A running stream: row payloads in, packets with running sequence numbers out.

The column packets have been sent already, as the server wrote them; here come the rows that the engine delivers, and in
the end what ends a result set, or an error in its place. The client's socket is the only buffer: when it is full, the
engine is told to deliver nothing (`pause`), so a client that does not read costs a batch of rows and no more.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

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
    """What a client is told of a fault of ours. What the exception says may be nobody's business but the log's."""
    text = f"ackstream failed ({type(error).__name__}): its log tells more, at session {session}"
    return ServerError(1105, "HY000", text)


class Stream:
    """The engine's sink for one client's STREAM statement.

    Its client has shown that it may have the rows before it began, and shows it again while it runs: rows are written
    on a proof that is no older than `proof_max_age_s`, and wait for another one otherwise (`unproven`). The next one is
    wanted when rows come and half that time has passed, so that those of a busy stream do not wait; an idle one wants
    none.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        seq: int,
        condition: str | None = None,
        *,
        proof_max_age_s: float = math.inf,
        proven_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seq` is that of the last column packet, `condition` what it wants, for people, if not all. `proven_s`: when
        the first proof was begun (now)."""
        self._write = write
        self._seq = seq
        self._handle: StreamHandle | None = None
        self._clock = clock
        self._over = False
        self._error: ServerError | None = None
        self._news = asyncio.Event()
        """Set when it is over or a proof is wanted."""
        self._proof_max_age_s = proof_max_age_s
        self._proven_s = clock() if proven_s is None else proven_s
        self._held: list[tuple[bytes, ...]] = []
        """Rows that wait for a proof: no more than was claimed for the stream, for it is paused meanwhile."""
        self._client_is_full = False
        self._is_paused = False
        self.unproven = False
        """Whether a proof is wanted."""
        self.rows = 0
        self.condition = condition
        self.since_s = self.last_row_s = clock()

    @property
    def standing(self) -> Standing | None:
        """Where it stands with the engine; None when it is over."""
        return None if self._handle is None or self.over else self._handle.standing

    @property
    def over(self) -> bool:
        """Whether nothing more will be delivered, but what waits for a proof."""
        return self._over

    def attach(self, handle: StreamHandle) -> None:
        """Where to ask the engine for less. The engine may have ended the stream by then."""
        self._handle = handle

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        """See engine.service.Sink."""
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
            self._news.set()

    def end(self, cause: Cause, text: str) -> None:
        """See engine.service.Sink."""
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
        """End it from the client's side: nothing is delivered any more, what was sent stays the client's."""
        if error.code != INTERRUPTED.code:
            self._drop()
        if not self._over:
            self._finish(error)
            if self._handle is not None:
                self._handle.cancel()

    def proven(self, begun_s: float) -> None:
        """The client may have the rows, as it has shown by questions that began then."""
        self._proven_s = begun_s
        self.unproven = False
        held, self._held = self._held, []
        for rows in held:
            self._send(rows)
        self._throttle()

    def refuse(self, error: ServerError) -> None:
        """The client may not have the rows any more: it ends with this, and others get what is not acknowledged."""
        self._drop()
        self._over, self._error = True, error
        self._news.set()
        if self._handle is not None:
            self._handle.revoke()

    def pause(self) -> None:
        """The client's socket is full."""
        self._client_is_full = True
        self._throttle()

    def resume(self) -> None:
        """The client's socket has room again."""
        self._client_is_full = False
        self._throttle()

    async def wait(self, timeout_s: float) -> bool:
        """Whether the stream is over or wants a proof, at the latest after so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        self._news.clear()
        return self._over or self.unproven

    def close(self, capabilities: int, status: int) -> None:
        """Write the result's last packet."""
        error = self._error
        if error is None:
            last = make_end(capabilities, status)
        else:
            last = make_err(error.code, error.sqlstate, str(error.message))
        self._write(frame(last, self._seq))

    def _send(self, rows: tuple[bytes, ...]) -> None:
        data, self._seq = frame_rows(rows, self._seq)
        self.rows += len(rows)
        self.last_row_s = self._clock()
        self._write(data)

    def _drop(self) -> None:
        """What waits will not be sent, so no proof is wanted."""
        self._held.clear()
        self.unproven = False

    def _throttle(self) -> None:
        """Have the engine deliver nothing while there is a reason."""
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
            self._news.set()
