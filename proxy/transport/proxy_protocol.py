"""The header of the PROXY protocol (version 2), which gives the server the client's address.

The header is the first data on a client's backing connection. The server uses it only if it is
configured to accept it from the proxy's address (MariaDB: `proxy_protocol_networks`). Accounts then
match the client's host, and the process list shows it.

For a client on the proxy's own machine the header has no address (`LOCAL`), and the server uses the
proxy's. On the server's machine 127.0.0.1 would mean another machine, and would match accounts at
localhost. If the server listens on this machine, 127.0.0.1 means the same, and is passed on.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from contextlib import suppress
from typing import Final

from engine.packets import ERR, WireError
from engine.store.opening import BackendAddress, ConnectionLimits, connect
from engine.store.pymysql_adapter import Connection, MySQLError
from proxy.settings import BadSetting
from proxy.transport.addresses import is_loopback, shown
from proxy.wire.framing import Packets
from proxy.wire.packets import parse_err

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_LOCAL, _PROXY = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21

LOCAL: Final = _SIGNATURE + struct.pack(">BBH", _LOCAL, 0, 0)
"""For a connection of the proxy's own, or of a client on its machine."""

OBJECTION_MAX: Final = 4096
"""Bytes of a greeting and an error packet. A server sends some hundreds."""

Address = tuple[str, int]


def header(client: Address | None, accepted_at: Address | None, *, server_is_here: bool) -> bytes:
    """Return the header for a client at `client` that was accepted at `accepted_at` (None: on a unix
    socket). `server_is_here`: the server has a loopback address.
    """
    if client is None or accepted_at is None or (is_loopback(client[0]) and not server_is_here):
        return LOCAL
    source, target = _ip(client[0]), _ip(accepted_at[0])
    if source.version != target.version:
        return LOCAL
    addresses = source.packed + target.packed + struct.pack(">HH", client[1], accepted_at[1])
    family = _TCP4 if source.version == 4 else _TCP6
    return _SIGNATURE + struct.pack(">BBH", _PROXY, family, len(addresses)) + addresses


def announcement(client: asyncio.BaseTransport, server: asyncio.BaseTransport) -> bytes:
    """Return the header for a session with these two connections."""
    reached = _address_of(server, "peername")
    server_is_here = reached is not None and is_loopback(reached[0])
    return header(_address_of(client, "peername"), _address_of(client, "sockname"), server_is_here=server_is_here)


def _address_of(transport: asyncio.BaseTransport, end: str) -> Address | None:
    """Return None on a unix socket, or when the connection has ended."""
    found = transport.get_extra_info(end)
    return (found[0], found[1]) if isinstance(found, tuple) else None


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address without a zone, an IPv4-mapped IPv6 address as IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def check_taken(address: BackendAddress, limits: ConnectionLimits) -> None:
    """Log in as the engine with a header. Raises BadSetting when the server does not accept it.

    It blocks for as long as `limits` allow for two connections. Precondition: without a header the
    login succeeds.
    """
    connection = connect(address, ConnectionLimits(read_s=limits.connect_s), Connection, defer_connect=True)
    try:
        with _introduced(address, limits) as channel:
            connection.connect(channel)
            connection.close()
    except (MySQLError, OSError) as error:
        raise BadSetting(
            f"proxy_protocol: the server at {shown(address.host, address.port)} does not take the header of the PROXY"
            f" protocol (it says: {_objection(address, limits) or error}). MariaDB takes it from the addresses in its"
            " proxy_protocol_networks, which must hold this machine's; MySQL does not take it"
        ) from None


def _introduced(address: BackendAddress, limits: ConnectionLimits) -> socket.socket:
    channel = socket.create_connection(address.target, timeout=limits.connect_s)
    channel.sendall(LOCAL)
    return channel


def _objection(address: BackendAddress, limits: ConnectionLimits) -> str:
    """Return the error that the server sends after a header. A client that logs in does not read it."""
    packets, text = Packets(OBJECTION_MAX), ""
    with suppress(OSError, WireError), _introduced(address, limits) as channel:
        while data := channel.recv(OBJECTION_MAX):
            for packet in packets.feed(data):
                if packet.payload[:1] == bytes([ERR]):
                    text = parse_err(packet.payload).message
    return text
