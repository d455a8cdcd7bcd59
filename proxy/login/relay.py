"""The login dialogue, relayed: the server authenticates the client itself.

Bytes from one side go in and the next steps come out, until the server sends OK or ERR. The greeting
passes with its capabilities reduced to those that the proxy can follow, the client's answer with its
own reduced to those offered (some clients set flags that were not offered). A client that compresses
though that was not offered is refused, in place of the server's OK: a login that ends earlier counts
as an error of the proxy's host (`max_connect_errors`).

Each connection has its own TLS, or none. What follows a client's request for TLS, even in the same
segment, is for the TLS engine alone (`SecureClient.rest`): MySQL 9's clients send their ClientHello
there, and plain packets injected behind the request make the handshake fail. The proxy requests TLS
from the server as the client did, or as the operator has set. Where the two connections differ,
`proxy.login.dialogue` fits the exchange to them. Each connection counts its own packets: TLS takes
one, a translated exchange several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.packets import ERR, HEADER, OK, WireError, frame
from proxy.login.dialogue import AuthDialogue, AuthPackets, LoginRefused, RsaKey, ToClient, ToServer
from proxy.wire.fields import BadHandshake, PacketTooLarge
from proxy.wire.framing import Packet
from proxy.wire.handshake import (
    COMPRESSED,
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
from proxy.wire.packets import UNREACHABLE, ServerError, make_err, parse_err, parse_ok

LOGIN_PACKET_MAX = 64 * 1024
"""Far above any honest login packet. Before its login a client may hold no more of our memory."""

COMPRESSION_REFUSED = ServerError(
    1043,
    "08S01",
    "ackstream offers no compression, and this client compresses all the same: leave its option out"
    " (mysqli: MYSQLI_CLIENT_COMPRESS, PDO: MYSQL_ATTR_COMPRESS, Connector/Python: compress)",
)

BackendTls = Literal["mirror", "always", "never"]


@dataclass(frozen=True, slots=True)
class TlsPolicy:
    """Which connections have TLS."""

    offered: bool = False
    """Whether it is offered to clients."""
    backend: BackendTls = "mirror"
    verified: bool = False
    """Whether the server's certificate is verified; then a server without TLS is refused."""
    key: RsaKey | None = None
    """For clients without TLS of a server with it: only under `always`."""


@dataclass(frozen=True, slots=True)
class SecureClient:
    """Begin TLS with the client; `rest` are the bytes behind its request."""

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
    """One side's packets: the bytes received, and the sequence number of the next packet."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.seq = 0

    def add_bytes(self, chunk: bytes) -> None:
        self._buffer += chunk

    def take(self) -> Packet | None:
        """The next packet, None if it is not whole yet. One at a time: another protocol may begin behind it."""
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

    def count(self, seq: int) -> None:
        self.seq = seq + 1 & 0xFF


class _Exchange:
    """A client connection and a backing connection with an authentication between them."""

    def __init__(self) -> None:
        self._client = _Side()
        self._server = _Side()

    def refusal(self, error: ServerError) -> bytes:
        """The packet that reports to the client why its connection ends."""
        return self._client.send(make_err(error.code, error.sqlstate, error.message))

    def _client_packet(self) -> bytes | None:
        """The next payload from the client, None if it is not whole yet.

        Raises BadHandshake for a packet out of step, which might be a command sent ahead."""
        packet = self._client.take()
        if packet is None:
            return None
        if packet.seq != self._client.seq:
            raise BadHandshake(f"packet {packet.seq} of the login came where {self._client.seq} was due")
        self._client.count(packet.seq)
        return packet.payload

    def _framed(self, effects: AuthPackets) -> list[Step]:
        return [
            ToClient(self._client.send(effect.data))
            if isinstance(effect, ToClient)
            else ToServer(self._server.send(effect.data))
            for effect in effects
        ]


class LoginRelay(_Exchange):
    """One login. `done` is set when the server accepts it, `refused` when the client gets a refusal.

    A server may refuse between its greeting and the client's answer (MariaDB, after it has read the
    header of the PROXY protocol). The client expects no packet then, so it gets the refusal when it
    has answered. Until then the login is `waiting`, and needs no server any more.

    `client_is_local`: the client is on a unix socket.
    """

    def __init__(self, policy: TlsPolicy, *, client_is_local: bool = False) -> None:
        super().__init__()
        self.done: LoggedIn | None = None
        self.refused = False
        self.error: int | None = None
        """The number of the server's error, if it has refused the login."""
        self._early_refusal: bytes | None = None
        self.greeting: Greeting | None = None
        self._policy = policy
        self._client_is_local = client_is_local
        self._client_tls = False
        self._compresses = False
        """Whether the client compresses all that follows its login."""
        self._response: HandshakeResponse | None = None
        self._dialogue: AuthDialogue | None = None

    @property
    def waiting(self) -> bool:
        """Whether a refusal waits for the client's answer to the greeting."""
        return self._early_refusal is not None and not self.refused

    def from_server(self, chunk: bytes) -> Sequence[Step]:
        """The steps that follow from the server's bytes.

        Raises WireError if that is no MySQL server, LoginRefused if the client cannot be served."""
        self._server.add_bytes(chunk)
        steps: list[Step] = []
        while (packet := self._server.take()) is not None:
            self._server.count(packet.seq)
            steps += self._framed(self._server_effects(packet.payload))
        return steps

    def from_client(self, chunk: bytes) -> Sequence[Step]:
        """The steps that follow from the client's bytes.

        Raises WireError if that is no MySQL client, LoginRefused if it cannot be served."""
        if self.greeting is None:
            raise BadHandshake("the client spoke before it was greeted")
        self._client.add_bytes(chunk)
        steps: list[Step] = []
        while (payload := self._client_packet()) is not None:
            if self._dialogue is not None:
                steps += self._framed(self._dialogue.from_client(payload))
            elif (response := parse_response(payload)).is_ssl_request:
                return [self._secure_client()]
            elif self._early_refusal is not None:
                self.refused = True
                return [ToClient(self._client.send(self._early_refusal))]
            else:
                self._compresses = bool(response.capabilities & COMPRESSED)
                steps += self._answered(payload, self.greeting)
        return steps

    def _server_effects(self, payload: bytes) -> AuthPackets:
        first = payload[0] if payload else None
        if first == ERR:
            self.error = parse_err(payload).code
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
        elif first == OK and self._compresses:
            raise LoginRefused(COMPRESSION_REFUSED)
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
        """The steps after the client's answer to the greeting: TLS with the server, if any, and the answer."""
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
    """One COM_CHANGE_USER. Its dialogue is fitted to the two connections as the login's was.

    `over` is set with the OK or ERR."""

    def __init__(self, login: LoggedIn) -> None:
        super().__init__()
        self.over = False
        self._capabilities = login.capabilities
        self._dialogue = login.dialogue

    def begin(self, payload: bytes) -> Sequence[Step]:
        """The steps for the command itself."""
        self._client.count(0)
        change = parse_change_user(payload, self._capabilities)

        def envelope(auth: bytes) -> bytes:
            return payload if auth == change.auth_response else change_user_with_auth(payload, auth, self._capabilities)

        return self._framed(self._dialogue.opening(change.plugin or "", change.auth_response, envelope))

    def from_server(self, chunk: bytes) -> Sequence[Step]:
        """The steps that follow from the server's bytes."""
        self._server.add_bytes(chunk)
        steps: list[Step] = []
        while (packet := self._server.take()) is not None:
            self._server.count(packet.seq)
            self.over = packet.payload[:1] in {bytes([OK]), bytes([ERR])}
            effects = [ToClient(packet.payload)] if self.over else self._dialogue.from_server(packet.payload)
            steps += self._framed(effects)
        return steps

    def from_client(self, chunk: bytes) -> Sequence[Step]:
        """The steps that follow from the client's bytes."""
        self._client.add_bytes(chunk)
        steps: list[Step] = []
        while (payload := self._client_packet()) is not None:
            steps += self._framed(self._dialogue.from_client(payload))
        return steps
