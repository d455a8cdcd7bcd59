"""The answer to one relayed command, whose error is put into other words before the client gets it.

Pure: bytes of the server in, bytes for the client out. All but the error passes unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from engine.packets import ERR, HEADER, PAYLOAD_MAX, frame
from proxy.wire.packets import ServerError, make_err, parse_err
from proxy.wire.walker import FileRequest, Outcome

Rephrase = Callable[[ServerError], ServerError | None]
"""Returns what the client gets in place of the server's error; None: the server's."""

_FIRST: Final = HEADER + 1
"""So many bytes show whether a packet is an error."""


class Rephrasing:
    """Begins with the first byte of the answer: nothing else is outstanding when the command is sent."""

    def __init__(self, rephrase: Rephrase) -> None:
        self.over = False
        """Whether the answer has ended."""
        self._rephrase = rephrase
        self._held = b""
        """The beginning of a packet that may be the error."""
        self._skip = 0
        """Bytes of the current packet that are still to come."""
        self._continues = False
        """Whether the next packet continues a payload."""

    def feed(self, data: bytes, events: Iterable[Outcome[Any] | FileRequest]) -> bytes:
        """The bytes for the client. `events`: what the walker has found in `data`."""
        pieces: list[bytes] = []
        errors: list[int] = []
        for piece, is_error in self._pieces(data):
            if is_error:
                errors.append(len(pieces))
            pieces.append(piece)
        places = iter(errors)
        for event in events:
            if isinstance(event, FileRequest):
                continue
            at = None if event.ok else next(places, None)
            if event.command is not None and not self.over:
                self.over = True
                if at is not None:
                    pieces[at] = self._rephrased(pieces[at])
        if self.over:  # What is held begins the next answer.
            pieces.append(self._held)
        return b"".join(pieces)

    def _pieces(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """The bytes in pieces, each with whether it is a whole error packet."""
        data = self._held + data
        self._held = b""
        begin = at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            length = int.from_bytes(data[at : at + 3], "little")
            end = at + HEADER + length
            known = len(data) - at >= (_FIRST if length else HEADER)
            is_error = known and length and data[at + HEADER] == ERR and not self._continues
            if not known or (is_error and end > len(data)):
                yield data[begin:at], False
                self._held = data[at:]
                return
            self._continues = length == PAYLOAD_MAX
            if is_error:
                yield data[begin:at], False
                yield data[at:end], True
                begin = at = end
            else:
                self._skip = end - at
        yield data[begin:], False

    def _rephrased(self, packet: bytes) -> bytes:
        error = self._rephrase(parse_err(packet[HEADER:]))
        if error is None:
            return packet
        return frame(make_err(error.code, error.sqlstate, error.message), packet[HEADER - 1])
