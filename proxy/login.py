"""The login dialogue, relayed: the server authenticates the client itself, and the proxy learns no password.

No sockets here: bytes from one side in, bytes for the other side out, until the server says OK or ERR. The greeting
passes with its capabilities reduced to those that the proxy can follow, the client's answer with its own reduced to
what was offered (some clients set flags that nobody offered them). All else passes as it is, so every authentication
plugin that needs nothing but the two ends works.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.wire.fields import BadHandshake
from proxy.wire.framing import Packets, frame
from proxy.wire.handshake import (
    PASSABLE,
    Greeting,
    HandshakeResponse,
    mask_greeting,
    mask_response,
    parse_greeting,
    parse_response,
)
from proxy.wire.packets import ERR, OK, parse_ok

LOGIN_PACKET_MAX = 64 * 1024
"""No honest login packet comes near it; before a login succeeds a client may hold no more of our memory."""


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A login that the server has accepted."""

    connection_id: int
    capabilities: int
    status: int
    response: HandshakeResponse


class LoginRelay:
    """One login. `done` once the server accepted it, `refused` once it (or the proxy) did not."""

    def __init__(self) -> None:
        self.done: LoggedIn | None = None
        self.refused = False
        self.greeting: Greeting | None = None
        self._response: HandshakeResponse | None = None
        self._from_server = Packets(LOGIN_PACKET_MAX)
        self._from_client = Packets(LOGIN_PACKET_MAX)

    def from_server(self, chunk: bytes) -> bytes:
        """What the client is to be sent. Raises WireError when that is no MySQL server."""
        return b"".join(frame(self._server_said(each.payload), each.seq) for each in self._from_server.feed(chunk))

    def from_client(self, chunk: bytes) -> bytes:
        """What the server is to be sent. Raises WireError when that is no MySQL client."""
        if self.greeting is None:
            raise BadHandshake("the client spoke before it was greeted")
        return b"".join(frame(self._client_said(each.payload), each.seq) for each in self._from_client.feed(chunk))

    def _server_said(self, payload: bytes) -> bytes:
        first = payload[0] if payload else None
        if first == ERR:
            self.refused = True
        elif self.greeting is None:
            self.greeting = parse_greeting(payload)
            return mask_greeting(payload, PASSABLE)
        elif first == OK and self._response is not None:
            capabilities = self._response.capabilities
            self.done = LoggedIn(
                self.greeting.connection_id, capabilities, parse_ok(payload).head.status, self._response
            )
        return payload

    def _client_said(self, payload: bytes) -> bytes:
        if self._response is not None:
            return payload
        assert self.greeting is not None
        payload = mask_response(payload, self.greeting.capabilities & PASSABLE)
        self._response = parse_response(payload)
        return payload
