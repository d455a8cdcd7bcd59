"""The part of a login in which a password is shown, fitted to two connections of different kind.

Most authentication methods answer a challenge, and the answer is the same on any connection: it is
passed on unchanged. MySQL's sha2 methods are different. If the server has no digest of the password
yet (`caching_sha2_password`), or always (`sha256_password`), the client sends the password itself: on
a secure connection as clear text, otherwise encrypted for the server's RSA key, which it requests.
What a client sends thus fits its own connection, and not a backing connection of the other kind.
Four cases:

    client       server
    secure       secure        the clear text is passed on, inside TLS on both connections
    not secure   not secure    the server's key goes to the client, what it encrypts goes to the server
    secure       not secure    the proxy requests the server's key in the client's place, and encrypts
    not secure   secure        the proxy sends a key of its own, decrypts, and passes the clear text on inside TLS

Only in the last two cases does the proxy hold a password, for one round trip. The password is in no
`repr`, log or error. A client on a unix socket counts as secure although it has no TLS. Some drivers
request the key there all the same, so what a client sends decides, not only the kind of connection.

Payloads in, payloads out; no sockets, no sequence numbers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import cycle
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from engine.packets import WireError
from proxy.wire.handshake import parse_plugin_request
from proxy.wire.packets import ServerError

CACHING_SHA2: Final = "caching_sha2_password"
SHA256: Final = "sha256_password"
KEY_REQUESTS: Final = {CACHING_SHA2: b"\x02", SHA256: b"\x01"}
"""How a client requests the server's key."""

CLEAR_TEXT_PLUGINS: Final = frozenset({"mysql_clear_password", "dialog"})
"""With these a client shows its password because its connection is secure; it cannot be encrypted for the server."""

SWITCH: Final = b"\xfe"
NEXT_FACTOR: Final = b"\x02"
MORE_DATA: Final = b"\x01"
FULL_AUTHENTICATION: Final = b"\x01\x04"

_OAEP: Final = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)  # noqa: S303  # the protocol's


class LoginRefused(Exception):
    """The proxy itself ends a login; `error` is sent to the client."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class ToClient:
    """To be sent to the client."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToServer:
    """To be sent to the server. It may be a password."""

    data: bytes = field(repr=False)


AuthPackets = Sequence[ToClient | ToServer]


class RsaKey:
    """The key that the proxy sends to clients whose own connection is not secure."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key
        self.public_pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def decrypt(self, cipher: bytes, scramble: bytes) -> bytes | None:
        """The password with its closing NUL; None if something else was encrypted, or for another key."""
        try:
            clear = _xor(self._key.decrypt(cipher, _OAEP), scramble)
        except ValueError:
            return None
        return clear if clear.endswith(b"\0") else None


def encrypt_password(password: bytes, scramble: bytes, pem: bytes) -> bytes:
    """A password, with its closing NUL, encrypted for the owner of a key. Raises WireError if it cannot be."""
    try:
        key = load_pem_public_key(pem)
        if not isinstance(key, rsa.RSAPublicKey):
            raise WireError("the server's public key is no RSA key")
        return key.encrypt(_xor(password, scramble), _OAEP)
    except (ValueError, UnsupportedAlgorithm):
        # Without the cause, which might show what was to be encrypted.
        raise WireError("the password cannot be encrypted for the server's public key") from None


def _xor(text: bytes, scramble: bytes) -> bytes:
    if not scramble:
        raise WireError("there is no scramble to encrypt a password with")
    return bytes(a ^ b for a, b in zip(text, cycle(scramble), strict=False))


class _State(Enum):
    PASSING = auto()
    """What comes is passed on."""
    SWITCHED = auto()
    """The client's next packet is its first for the plugin that the server has named."""
    PASSWORD = auto()
    """The client's next packet is its password, or requests the key to encrypt it with."""
    CIPHER = auto()
    """The client has our key: its next packet is encrypted for it."""
    KEY = auto()
    """We have the client's password and have requested the server's key."""


class AuthDialogue:
    """One authentication between a client and a server, from the client's first answer to the server's OK or ERR.

    `scramble` is the challenge until the server sends another one; `key` is needed if the backing
    connection is secure and the client connection may not be.
    """

    def __init__(self, scramble: bytes, *, client_secure: bool, server_secure: bool, key: RsaKey | None = None) -> None:
        self._scramble = scramble
        self._client_secure = client_secure
        self._server_secure = server_secure
        self._key = key
        self._plugin = ""
        self._state = _State.PASSING
        self._password = b""
        self._envelope: Callable[[bytes], bytes] | None = None

    def __repr__(self) -> str:
        return f"<AuthDialogue {self._plugin} {self._state.name}>"

    @property
    def translates(self) -> bool:
        """Whether anything but passing on may be needed."""
        return self._client_secure != self._server_secure

    def opening(self, plugin: str, auth: bytes, envelope: Callable[[bytes], bytes]) -> AuthPackets:
        """The client's first answer. It travels inside another packet, which `envelope` makes anew around it."""
        self._plugin = plugin
        self._envelope = envelope
        return self._first_answer(auth)

    def from_client(self, payload: bytes) -> AuthPackets:
        """The effects of a payload from the client."""
        state, self._state = self._state, _State.PASSING
        match state:
            case _State.SWITCHED:
                return self._first_answer(payload)
            case _State.PASSWORD:
                return self._password_shown(payload)
            case _State.CIPHER:
                return self._decrypted(payload)
            case _State.PASSING | _State.KEY:
                return [ToServer(payload)]

    def from_server(self, payload: bytes) -> AuthPackets:
        """The effects of a payload from the server. Raises LoginRefused if the proxy must end the login."""
        if self._state is _State.KEY:
            self._state = _State.PASSING
            password, self._password = self._password, b""
            if payload.startswith(MORE_DATA):
                return [ToServer(encrypt_password(password, self._scramble, payload[1:]))]
        # In any other state a packet that is not understood changes nothing: a password must not slip through after it.
        if payload[:1] in {SWITCH, NEXT_FACTOR} and len(payload) > 1:
            self._switch(payload)
        elif payload == FULL_AUTHENTICATION and self._plugin == CACHING_SHA2:
            self._state = _State.PASSWORD
        return [ToClient(payload)]

    def _switch(self, payload: bytes) -> None:
        request = parse_plugin_request(payload)
        self._plugin, self._scramble = request.plugin, request.scramble
        if self._plugin in CLEAR_TEXT_PLUGINS and self._client_secure and not self._server_secure:
            text = f"the account uses {self._plugin}, and the proxy's connection to the server has no TLS"
            raise LoginRefused(ServerError(1045, "28000", f"Access denied: {text} (see backend_tls)"))
        self._state = _State.SWITCHED

    def _first_answer(self, auth: bytes) -> AuthPackets:
        return self._password_shown(auth) if self._plugin == SHA256 else [self._to_server(auth)]

    def _password_shown(self, payload: bytes) -> AuthPackets:
        requests_key = payload == KEY_REQUESTS[self._plugin]
        clear = self._client_secure and not requests_key
        if clear == self._server_secure or not payload.strip(b"\0"):
            return [self._to_server(payload)]
        if clear:
            self._password = payload
            self._state = _State.KEY
            return [self._to_server(KEY_REQUESTS[self._plugin])]
        if requests_key:
            if self._key is None:  # Both connections have TLS: no key is needed.
                return [self._to_server(payload)]
            self._state = _State.CIPHER
            return [ToClient(MORE_DATA + self._key.public_pem)]
        return self._decrypted(payload)  # It has our key already, or believes so.

    def _decrypted(self, cipher: bytes) -> AuthPackets:
        assert self._key is not None
        # Any server refuses a clear-text password on an insecure connection: it must not pass because ours is secure.
        clear = self._key.decrypt(cipher, self._scramble) or secrets.token_hex().encode() + b"\0"
        return [self._to_server(clear)]

    def _to_server(self, auth: bytes) -> ToServer:
        envelope, self._envelope = self._envelope, None
        return ToServer(envelope(auth) if envelope else auth)
