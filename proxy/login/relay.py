"""The login dialogue, relayed: the server authenticates the client itself.

No sockets here: bytes from one side in, and what is to be done out, until the server says OK or
ERR. The greeting passes with its capabilities reduced to those that the proxy can follow, the
client's answer with its own reduced to what was offered (some clients set flags that nobody offered
them).

TLS is each leg's own. What follows a client's request for TLS, even in the same segment, is for the
TLS engine alone (`SecureClient.rest`): MySQL 9's clients send their ClientHello there, and whoever
injects plain packets behind the request gets a failed handshake. Towards the server the proxy asks
for TLS as the client did, or as the operator says. Where the two legs differ, `proxy.login.dialogue`
makes the exchange fit. Each leg counts its own packets: TLS takes one, a translated exchange
several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.packets import ERR, HEADER, OK, WireError, frame
from proxy.login.dialogue import AuthDialogue, LoggedEffect, LoginRefused, RsaKey, ToClient, ToServer
from proxy.wire.fields import BadHandshake, PacketTooLarge
from proxy.wire.framing import Packet
from proxy.wire.handshake import (
    PASSABLE,
    SSL,
    Greeting,
    HandshakeResponse,
    change_user_with_auth,
    mask_greeting,
    mask_response,
    parse_change_user,
    parse_greeting,
    parse_response,
    ssl_request,
    with_auth_response,
)
from proxy.wire.packets import UNREACHABLE, ServerError, make_err, parse_ok

LOGIN_PACKET_MAX = 64 * 1024
"""No honest login packet comes near it; before a login succeeds a client may hold no more of our
memory."""

BackendTls = Literal["mirror", "always", "never"]


@dataclass(frozen=True, slots=True)
class TlsPolicy:
    """Which legs have TLS."""

    offered: bool = False
    """Whether clients may have it."""
    backend: BackendTls = "mirror"
    verified: bool = False
    """Whether the server's certificate is verified; then a server that offers none is not put up
    with."""
    key: RsaKey | None = None
    """For clients without TLS of a server with it: only under `always`."""


@dataclass(frozen=True, slots=True)
class SecureClient:
    """Begin TLS with the client; `rest` is what came behind its request."""

    rest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecureServer:
    """Begin TLS with the server."""


Step = ToClient | ToServer | SecureClient | SecureServer


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A login that the server has accepted."""

    connection_id: int
    capabilities: int
    status: int
    response: HandshakeResponse
    dialogue: AuthDialogue
    """How it was authenticated; a change of user goes on from there."""


class _Side:
    """One side's packets: what has come, and the number that the next one has."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.seq = 0

    def receive(self, chunk: bytes) -> None:
        self._buffer += chunk

    def take(self) -> Packet | None:
        """The next whole packet, if it is here. One at a time: behind a packet another protocol may
        begin."""
        if len(self._buffer) < HEADER:
            return None
        length = int.from_bytes(self._buffer[:3], "little")
        if length > LOGIN_PACKET_MAX:
            raise PacketTooLarge(f"a login packet of {length} bytes exceeds the limit of {LOGIN_PACKET_MAX} bytes")
        if len(self._buffer) < HEADER + length:
            return None
        packet = Packet(self._buffer[3], bytes(self._buffer[HEADER : HEADER + length]))
        del self._buffer[: HEADER + length]
        return packet

    def take_rest(self) -> bytes:
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def send(self, payload: bytes) -> bytes:
        """The packet that carries this."""
        packet = frame(payload, self.seq)
        self.seq = self.seq + 1 & 0xFF
        return packet

    def received(self, seq: int) -> None:
        self.seq = seq + 1 & 0xFF


class _Exchange:
    """Two legs with an authentication between them."""

    def __init__(self) -> None:
        self._client = _Side()
        self._server = _Side()

    def refusal(self, error: ServerError) -> bytes:
        """The packet that tells the client why it is sent away."""
        return self._client.send(make_err(error.code, error.sqlstate, error.message))

    def _client_packet(self) -> bytes | None:
        """The next payload from the client. One that is out of step might be a command sent
        ahead."""
        packet = self._client.take()
        if packet is None:
            return None
        if packet.seq != self._client.seq:
            raise BadHandshake(f"packet {packet.seq} of the login came where {self._client.seq} was due")
        self._client.received(packet.seq)
        return packet.payload

    def _framed(self, said: LoggedEffect) -> list[Step]:
        return [
            ToClient(self._client.send(each.data))
            if isinstance(each, ToClient)
            else ToServer(self._server.send(each.data))
            for each in said
        ]


class LoginRelay(_Exchange):
    """One login. `done` once the server accepted it, `refused` once it did not and the client was
    told.

    A server that has greeted may refuse before it is answered (MariaDB, when it has read the header
    of the PROXY protocol). The client expects no packet then, so it is told when it has answered:
    the login is `waiting` till then, and needs no server any more.

    `client_is_local`: the client is on a unix socket.
    """

    def __init__(self, policy: TlsPolicy, *, client_is_local: bool = False) -> None:
        super().__init__()
        self.done: LoggedIn | None = None
        self.refused = False
        self._early_refusal: bytes | None = None
        self.greeting: Greeting | None = None
        self._policy = policy
        self._client_is_local = client_is_local
        self._client_tls = False
        self._response: HandshakeResponse | None = None
        self._dialogue: AuthDialogue | None = None

    @property
    def waiting(self) -> bool:
        """Whether the client is to be told of a refusal once it has answered the greeting."""
        return self._early_refusal is not None and not self.refused

    def from_server(self, chunk: bytes) -> Sequence[Step]:
        """What is to be done. Raises WireError when that is no MySQL server."""
        self._server.receive(chunk)
        steps: list[Step] = []
        while (packet := self._server.take()) is not None:
            self._server.received(packet.seq)
            steps += self._framed(self._server_said(packet.payload))
        return steps

    def from_client(self, chunk: bytes) -> Sequence[Step]:
        """What is to be done. Raises WireError when that is no MySQL client, LoginRefused when it
        cannot be served."""
        if self.greeting is None:
            raise BadHandshake("the client spoke before it was greeted")
        self._client.receive(chunk)
        steps: list[Step] = []
        while (payload := self._client_packet()) is not None:
            if self._dialogue is not None:
                steps += self._framed(self._dialogue.from_client(payload))
            elif parse_response(payload).is_ssl_request:
                return [self._secure_client()]
            elif self._early_refusal is not None:
                self.refused = True
                return [ToClient(self._client.send(self._early_refusal))]
            else:
                steps += self._answered(payload, self.greeting)
        return steps

    def _server_said(self, payload: bytes) -> LoggedEffect:
        first = payload[0] if payload else None
        if first == ERR and self.greeting is not None and self._response is None:
            self._early_refusal = payload
            return []
        if first == ERR:
            self.refused = True
        elif self.greeting is None:
            self.greeting = parse_greeting(payload)
            return [ToClient(mask_greeting(payload, PASSABLE, add=SSL if self._policy.offered else 0))]
        elif self._dialogue is None or self._response is None:
            raise WireError("the server went on before it had an answer to its greeting")
        elif first == OK:
            status = parse_ok(payload).head.status
            flags = self._response.capabilities
            self.done = LoggedIn(self.greeting.connection_id, flags, status, self._response, self._dialogue)
        else:
            return self._dialogue.from_server(payload)
        return [ToClient(payload)]

    def _secure_client(self) -> SecureClient:
        if self._client_tls or not self._policy.offered:
            raise BadHandshake(
                "the client asked for TLS " + ("twice" if self._client_tls else "without being offered it")
            )
        self._client_tls = True
        return SecureClient(self._client.take_rest())

    def _answered(self, payload: bytes, greeting: Greeting) -> list[Step]:
        """The client has answered the greeting: now the server can be asked for TLS, and be
        answered."""
        tls = self._server_tls(greeting)
        payload = mask_response(payload, greeting.capabilities & PASSABLE, add=SSL if tls else 0)
        response = self._response = parse_response(payload)
        self._dialogue = AuthDialogue(
            greeting.scramble,
            client_secure=self._client_tls or self._client_is_local,
            server_secure=tls,
            key=self._policy.key,
        )

        def envelope(auth: bytes) -> bytes:
            return payload if auth == response.auth_response else with_auth_response(payload, auth)

        steps: list[Step] = [ToServer(self._server.send(ssl_request(payload))), SecureServer()] if tls else []
        return steps + self._framed(self._dialogue.opening(response.plugin or "", response.auth_response, envelope))

    def _server_tls(self, greeting: Greeting) -> bool:
        wanted = self._policy.backend == "always" or (self._policy.backend == "mirror" and self._client_tls)
        has_it = bool(greeting.capabilities & SSL)
        if wanted and not has_it and (self._policy.verified or self._policy.backend == "always"):
            text = "ackstream does not go on: the backing server offers no TLS, and its settings demand it"
            raise LoginRefused(ServerError(UNREACHABLE, "HY000", text))
        return wanted and has_it


class ChangeUserRelay(_Exchange):
    """One COM_CHANGE_USER, whose dialogue is fitted to the two legs as the login's was. `over` with
    the OK or ERR."""

    def __init__(self, login: LoggedIn) -> None:
        super().__init__()
        self.over = False
        self._capabilities = login.capabilities
        self._dialogue = login.dialogue

    def begin(self, payload: bytes) -> Sequence[Step]:
        """The command itself."""
        self._client.received(0)
        change = parse_change_user(payload, self._capabilities)

        def envelope(auth: bytes) -> bytes:
            return payload if auth == change.auth_response else change_user_with_auth(payload, auth, self._capabilities)

        return self._framed(self._dialogue.opening(change.plugin or "", change.auth_response, envelope))

    def from_server(self, chunk: bytes) -> Sequence[Step]:
        """What is to be done."""
        self._server.receive(chunk)
        steps: list[Step] = []
        while (packet := self._server.take()) is not None:
            self._server.received(packet.seq)
            self.over = packet.payload[:1] in {bytes([OK]), bytes([ERR])}
            said = [ToClient(packet.payload)] if self.over else self._dialogue.from_server(packet.payload)
            steps += self._framed(said)
        return steps

    def from_client(self, chunk: bytes) -> Sequence[Step]:
        """What is to be done."""
        self._client.receive(chunk)
        steps: list[Step] = []
        while (payload := self._client_packet()) is not None:
            steps += self._framed(self._dialogue.from_client(payload))
        return steps
