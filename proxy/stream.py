"""A running stream: row payloads in, packets with running sequence numbers out.

The column packets have been sent already, as the server wrote them; here come the rows that the engine delivers, and in
the end what ends a result set, or an error in its place. The client's socket is the only buffer: when it is full, the
engine is told to deliver nothing (`pause`), so a client that does not read costs a batch of rows and no more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from engine.effects import Cause
from engine.service import Standing, StreamHandle
from proxy.wire.framing import frame, frame_rows
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
    """The engine's sink for one client's STREAM statement."""

    def __init__(self, write: Callable[[bytes], None], seq: int, condition: str | None = None) -> None:
        """`seq` is that of the last column packet, `condition` what it wants, for people, if not all."""
        self._write = write
        self._seq = seq
        self._handle: StreamHandle | None = None
        self._ended: asyncio.Future[ServerError | None] = asyncio.get_running_loop().create_future()
        self.rows = 0
        self.condition = condition
        self.since_s = self.last_row_s = time.monotonic()

    @property
    def standing(self) -> Standing | None:
        """Where it stands with the engine; None when it is over."""
        return None if self._handle is None or self.over else self._handle.standing

    @property
    def over(self) -> bool:
        """Whether nothing more will be delivered."""
        return self._ended.done()

    def attach(self, handle: StreamHandle) -> None:
        """Where to ask the engine for less. The engine may have ended the stream by then."""
        self._handle = handle

    def deliver(self, rows: tuple[bytes, ...]) -> None:
        """See engine.service.Sink."""
        if not self.over:
            data, self._seq = frame_rows(rows, self._seq)
            self.rows += len(rows)
            self.last_row_s = time.monotonic()
            self._write(data)

    def end(self, cause: Cause, text: str) -> None:
        """See engine.service.Sink."""
        match cause:
            case Cause.COMPLETE:
                self._finish(None)
            case Cause.DRAINING:
                self._finish(SHUTDOWN)
            case Cause.UNUSABLE:
                self._finish(ServerError(1105, "HY000", f"The stream ended: {text}"))

    def abort(self, error: ServerError) -> None:
        """End it from the client's side: nothing is delivered any more, what was sent stays the client's."""
        if not self.over:
            self._finish(error)
            if self._handle is not None:
                self._handle.cancel()

    def pause(self) -> None:
        """The client's socket is full."""
        if self._handle is not None and not self.over:
            self._handle.pause()

    def resume(self) -> None:
        """The client's socket has room again."""
        if self._handle is not None and not self.over:
            self._handle.resume()

    async def wait(self, timeout_s: float) -> bool:
        """Whether the stream has ended, at the latest after so long."""
        await asyncio.wait([self._ended], timeout=timeout_s)
        return self.over

    def close(self, capabilities: int, status: int) -> None:
        """Write the result's last packet."""
        error = self._ended.result()
        if error is None:
            last = make_end(capabilities, status)
        else:
            last = make_err(error.code, error.sqlstate, str(error.message))
        self._write(frame(last, self._seq))

    def _finish(self, error: ServerError | None) -> None:
        if not self.over:
            self._ended.set_result(error)
