"""The login's packets, read and masked.

The server itself authenticates every client: the proxy relays the server's greeting, the client's
response and all that follows. It changes only the capability flags, because it must be able to
follow whatever both ends agree upon. A flag is offered to the client only if the server offers it
and `PASSABLE` contains it. The server gets at most the flags that were offered, because
libmysqlclient sets some that were not and then does not act on them (a server that does act on them
refuses each query as malformed). Clients that set a flag of `COMPRESSED` do act on it, so they are
refused (`proxy.login.relay`). SSL is neither relayed nor masked: each connection has its own
value (`add`).

Flags are one integer here: MySQL's 32 bits, and above them MariaDB's extended ones. Those are sent in
bytes that the protocol reserves, and only between two ends that leave LONG_PASSWORD unset.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.packets import WireError
from proxy.wire.fields import BadHandshake, Reader, lenenc_pairs
from proxy.wire.mimic_adapter import Capabilities, str_len

LONG_PASSWORD: Final = int(Capabilities.CLIENT_LONG_PASSWORD)
CONNECT_WITH_DB: Final = int(Capabilities.CLIENT_CONNECT_WITH_DB)
PROTOCOL_41: Final = int(Capabilities.CLIENT_PROTOCOL_41)
SSL: Final = int(Capabilities.CLIENT_SSL)
SECURE_CONNECTION: Final = int(Capabilities.CLIENT_SECURE_CONNECTION)
PLUGIN_AUTH: Final = int(Capabilities.CLIENT_PLUGIN_AUTH)
CONNECT_ATTRS: Final = int(Capabilities.CLIENT_CONNECT_ATTRS)
LENENC_AUTH: Final = int(Capabilities.CLIENT_PLUGIN_AUTH_LENENC_CLIENT_DATA)
ZSTD: Final = int(Capabilities.CLIENT_ZSTD_COMPRESSION_ALGORITHM)

MARIADB_STMT_BULK: Final = 1 << 34
MARIADB_EXTENDED_METADATA: Final = 1 << 35
MARIADB_CACHE_METADATA: Final = 1 << 36
MARIADB_BULK_UNIT_RESULTS: Final = 1 << 37

COMPRESS: Final = int(Capabilities.CLIENT_COMPRESS)
COMPRESSED: Final = COMPRESS | ZSTD
"""With one of these a client wraps all that follows its login. mysqlnd (PHP) and Connector/Python set COMPRESS
whether it was offered or not."""

MASKED: Final[Mapping[int, str]] = {
    SSL: "each connection has its own TLS, or none",
    COMPRESS: "packets inside compressed ones cannot be seen",
    ZSTD: "packets inside compressed ones cannot be seen",
    int(Capabilities.CLIENT_OPTIONAL_RESULTSET_METADATA): "moves the column count by a byte",
    int(Capabilities.CLIENT_CAPABILITY_EXTENSION): "announces flags that are not defined yet",
}
"""MySQL's flags that are not offered, and why. MariaDB's PROGRESS (errors that end nothing) and
COM_MULTI (several commands in a packet) are not in `PASSABLE` either, nor is any flag that is still
to come."""

_MARIADB_PASSABLE: Final = (
    MARIADB_STMT_BULK | MARIADB_EXTENDED_METADATA | MARIADB_CACHE_METADATA | MARIADB_BULK_UNIT_RESULTS
)

PASSABLE: Final = (0xFFFFFFFF & ~sum(MASKED)) | _MARIADB_PASSABLE
"""The flags with which the proxy can follow a connection."""

_PROTOCOL_VERSION: Final = 10
_SSL_REQUEST_LEN: Final = 32
_RESPONSE_FIXED: Final = struct.Struct("<IIB19sI")
"""Flags, the client's max_allowed_packet, charset, reserved bytes, extended flags."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """A server's first packet. `scramble` is the challenge without its closing NUL."""

    server_version: str
    connection_id: int
    capabilities: int
    charset: int
    status: int
    scramble: bytes = field(repr=False)
    plugin: str = ""


@dataclass(frozen=True, slots=True)
class HandshakeResponse:
    """A client's answer to it. Texts are decoded as UTF-8 with replacement: for rules and logs."""

    capabilities: int
    max_packet: int
    charset: int
    username: str = ""
    database: str | None = None
    plugin: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    auth_response: bytes = field(default=b"", repr=False)
    is_ssl_request: bool = False
    """A request for TLS: only flags, size and charset are meant."""

    @property
    def program_name(self) -> str | None:
        """What the client calls itself in its connection attributes."""
        return self.attributes.get("program_name")


@dataclass(frozen=True, slots=True)
class ChangeUser:
    """COM_CHANGE_USER, whose login dialogue follows."""

    username: str
    database: str
    charset: int | None = None
    plugin: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    auth_response: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class PluginRequest:
    """The server requires another plugin: an auth switch, or a further factor."""

    plugin: str
    scramble: bytes = field(repr=False)


def parse_greeting(payload: bytes) -> Greeting:
    """Read a greeting. Precondition: it is not an ERR (a refusal)."""
    reader = Reader(payload)
    if reader.uint(1) != _PROTOCOL_VERSION:
        raise BadHandshake("the server does not greet with protocol version 10")
    version = reader.null_bytes()
    connection_id = reader.uint(4)
    scramble = reader.take(8)
    reader.take(1)
    low, charset, status, high = (reader.uint(width) for width in (2, 1, 2, 2))
    scramble_len = reader.uint(1)
    reader.take(6)
    extended = reader.uint(4)
    capabilities = _join_flags(low | high << 16, extended)
    if capabilities & SECURE_CONNECTION:
        scramble += reader.take(max(13, scramble_len - 8)).rstrip(b"\0")
    plugin = reader.null_bytes_or_rest() if capabilities & PLUGIN_AUTH else b""
    return Greeting(
        version.decode("utf-8", "replace"),
        connection_id,
        capabilities,
        charset,
        status,
        scramble,
        plugin.decode("utf-8", "replace"),
    )


def mask_greeting(payload: bytes, offered: int, *, add: int = 0) -> bytes:
    """The greeting with no flags but those in `offered` and in `add`; all other bytes unchanged.

    `offered` must keep the flags that shape the greeting itself (SECURE_CONNECTION, PLUGIN_AUTH).
    """
    greeting = parse_greeting(payload)
    kept = greeting.capabilities & offered | add
    masked = bytearray(payload)
    at = payload.index(0, 1) + 1 + 13
    masked[at : at + 2] = (kept & 0xFFFF).to_bytes(2, "little")
    masked[at + 5 : at + 7] = (kept >> 16 & 0xFFFF).to_bytes(2, "little")
    if not greeting.capabilities & LONG_PASSWORD:
        masked[at + 14 : at + 18] = (kept >> 32).to_bytes(4, "little")
    return bytes(masked)


def parse_response(payload: bytes) -> HandshakeResponse:
    """Read a client's answer to the greeting, or its request for TLS. Raises `BadHandshake`."""
    response, _fields = _read_response(payload)
    return response


def mask_response(payload: bytes, advertised: int, *, add: int = 0) -> bytes:
    """The response without the flags that were not advertised and without their fields, and with
    the flags in `add`, which must be flags without a field.

    LONG_PASSWORD stays as the client set it: it tells whether MariaDB's extended flags may follow.
    """
    response, fields = _read_response(payload)
    kept = response.capabilities & (advertised | LONG_PASSWORD) | add
    extended = payload[28:32]
    if not response.capabilities & LONG_PASSWORD:
        extended = (kept >> 32).to_bytes(4, "little")
    if fields and response.capabilities & ~kept & LENENC_AUTH:
        fields[0] = (0, _auth_field(fields[0][1], response.auth_response, kept))
    head = (kept & 0xFFFFFFFF).to_bytes(4, "little") + payload[4:28] + extended
    return head + b"".join(text for flag, text in fields if kept & flag == flag)


def ssl_request(response: bytes) -> bytes:
    """The request for TLS that precedes a response with the SSL flag: its own first bytes."""
    return response[:_SSL_REQUEST_LEN]


def with_auth_response(payload: bytes, auth: bytes) -> bytes:
    """The response with other auth data."""
    response, fields = _read_response(payload)
    field_of_auth = _auth_field(fields[0][1], auth, response.capabilities)
    return payload[:_SSL_REQUEST_LEN] + field_of_auth + b"".join(text for _, text in fields[1:])


def parse_plugin_request(payload: bytes) -> PluginRequest:
    """Read an auth switch request, or the request for a next factor, which looks the same after its first byte."""
    reader = Reader(payload, 1)
    plugin = reader.null_bytes_or_rest()
    return PluginRequest(plugin.decode("utf-8", "replace"), reader.rest().removesuffix(b"\0"))


def parse_change_user(payload: bytes, capabilities: int) -> ChangeUser:
    """Read a COM_CHANGE_USER, command byte included. Its later fields may be missing."""
    reader = Reader(payload, 1)
    username = reader.null_bytes()
    auth = _read_auth(reader, capabilities & ~LENENC_AUTH)
    database = reader.null_bytes_or_rest()
    charset = reader.uint(2) if reader.left else None
    plugin = reader.null_bytes_or_rest() if reader.left and capabilities & PLUGIN_AUTH else None
    block = reader.lenenc_bytes() if reader.left and capabilities & CONNECT_ATTRS else b""
    return ChangeUser(
        username.decode("utf-8", "replace"),
        database.decode("utf-8", "replace"),
        charset,
        None if plugin is None else plugin.decode("utf-8", "replace"),
        _attributes(block),
        auth,
    )


def change_user_with_auth(payload: bytes, auth: bytes, capabilities: int) -> bytes:
    """The COM_CHANGE_USER with other auth data."""
    reader = Reader(payload, 1)
    reader.null_bytes()
    _read_auth(reader, capabilities & ~LENENC_AUTH)
    head = _auth_field(payload[1 : reader.at], auth, capabilities & ~LENENC_AUTH)
    return payload[:1] + head + reader.rest()


def _join_flags(flags: int, extended: int) -> int:
    return flags if flags & LONG_PASSWORD else flags | extended << 32


def _read_response(payload: bytes) -> tuple[HandshakeResponse, list[tuple[int, bytes]]]:
    """The response, and its fields as sent, each with the flag that it depends on (0: none)."""
    if len(payload) < _SSL_REQUEST_LEN or not payload[1] << 8 & PROTOCOL_41:
        raise BadHandshake("the client does not speak protocol 4.1 (MySQL 4.1 or later is needed)")
    flags, max_packet, charset, _reserved, extended = _RESPONSE_FIXED.unpack_from(payload)
    flags = _join_flags(flags, extended)
    if len(payload) == _SSL_REQUEST_LEN and flags & SSL:
        return HandshakeResponse(flags, max_packet, charset, is_ssl_request=True), []
    reader = Reader(payload, _SSL_REQUEST_LEN)
    spans = _Spans(reader)
    username = reader.null_bytes()
    auth = _read_auth(reader, flags)
    spans.close(0)
    database = _optional_text(spans, flags, CONNECT_WITH_DB)
    plugin = _optional_text(spans, flags, PLUGIN_AUTH)
    block = reader.lenenc_bytes() if flags & CONNECT_ATTRS and reader.left else b""
    spans.close(CONNECT_ATTRS)
    if flags & ZSTD:
        reader.take(min(1, reader.left))
        spans.close(ZSTD)
    reader.rest()
    spans.close(0)
    response = HandshakeResponse(
        flags,
        max_packet,
        charset,
        username.decode("utf-8", "replace"),
        database,
        plugin,
        _attributes(block),
        auth,
    )
    return response, spans.fields


class _Spans:
    """The bytes of each field of a response, as they are read."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.fields: list[tuple[int, bytes]] = []
        self._start = reader.at

    def close(self, flag: int) -> None:
        self.fields.append((flag, self.reader.data[self._start : self.reader.at]))
        self._start = self.reader.at


def _optional_text(spans: _Spans, flags: int, flag: int) -> str | None:
    if not flags & flag:
        return None
    text = spans.reader.null_bytes_or_rest()
    spans.close(flag)
    return text.decode("utf-8", "replace")


def _read_auth(reader: Reader, flags: int) -> bytes:
    if flags & LENENC_AUTH:
        return reader.lenenc_bytes()
    if flags & SECURE_CONNECTION:
        return reader.take(reader.uint(1))
    return reader.null_bytes()


def _auth_field(span: bytes, auth: bytes, flags: int) -> bytes:
    """User name and auth data, `span`, with this auth data in the form that the flags demand."""
    username = span[: span.index(0) + 1]
    if flags & LENENC_AUTH:
        return username + bytes(str_len(auth))
    if not flags & SECURE_CONNECTION:
        raise WireError("the client's auth data has a form that this server does not take")
    if len(auth) > 0xFF:
        raise WireError(f"{len(auth)} bytes of auth data exceed what this server takes (255)")
    return username + bytes([len(auth)]) + auth


def _attributes(block: bytes) -> dict[str, str]:
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in lenenc_pairs(block)}
