"""How a connection to the server is opened: its address, the limits of waiting, TLS. PyMySQL connects and
authenticates (engine.store.pymysql_adapter)."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.store.pymysql_adapter import CLIENT, CR, Connection, OperationalError

PROGRAM = "ackstream"
"""The program's name in the attributes of its connections."""

_Kind = TypeVar("_Kind", bound=Connection)


@dataclass(frozen=True, slots=True)
class BackendAddress:
    """The server's address and the engine's account. Its repr leaves out the password."""

    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)
    unix_socket: str | None = None
    tls: bool | None = None
    """True: always TLS. None: TLS where the server offers it, except on this machine, where it
    protects nothing and costs 60 ms a connection."""
    ca: str | None = None
    """A file with the certificates of authorities. TLS is then required, and the server's
    certificate and host name are verified. None: they are not verified."""
    ip: str | None = None
    """Where to connect, if `host` has several addresses. The certificate is that of `host`."""

    @property
    def target(self) -> tuple[str, int]:
        """Where to connect."""
        return self.ip or self.host, self.port

    @property
    def local(self) -> bool:
        """Whether the server is reached without leaving this machine."""
        if self.unix_socket or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Time limits of a connection."""

    connect_s: float = 5.0
    """A server on a reachable network accepts in less, and the dispatcher tries again anyway."""
    login_s: float = 10.0
    """For each reply until the login is done. A thread that opens a connection cannot be
    interrupted. The server itself waits five seconds for a name server that does not reply."""
    statement_s: int = 20
    """The server's own limit. No statement of the engine takes a second unless a table has no
    index. This limit then frees the thread, with an error that names the cause, which our timeout
    would not."""
    read_s: float = 30.0
    """Without a reply for this time the server or the network is gone: the server would have ended
    the statement before."""
    lock_wait_s: int = 1
    """Locked rows are skipped, so the engine waits only for a table that is being altered. Trying
    again is better than waiting."""


def connect(address: BackendAddress, limits: ConnectionLimits, kind: type[_Kind], **more: Any) -> _Kind:
    """A connection of PyMySQL or of a subclass, with `more` of its options."""
    options: dict[str, Any] = {
        "program_name": PROGRAM,
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": address.password,
        "unix_socket": address.unix_socket,
        "charset": "utf8mb4",
        "autocommit": None,
        "ssl": _tls(address) if address.tls or address.ca else None,
        "ssl_disabled": address.local and not address.ca if address.tls is None else not address.tls,
        "connect_timeout": limits.connect_s,
        "read_timeout": limits.read_s,
        "write_timeout": limits.read_s,
        "client_flag": CLIENT.MULTI_STATEMENTS,
    }
    if address.ip is None or address.unix_socket or more.get("defer_connect"):
        return kind(**(options | more))
    connection = kind(**(options | more | {"defer_connect": True}))
    connection.connect(_reached(address, limits))
    return connection


def _reached(address: BackendAddress, limits: ConnectionLimits) -> socket.socket:
    """A socket connected to the server's own address, where its name has several. Raises
    MySQLError, as a connection by name does."""
    try:
        channel = socket.create_connection(address.target, limits.connect_s)
    except OSError as error:
        text = f"Can't connect to MySQL server on {address.ip!r} ({error})"
        raise OperationalError(CR.CR_CONN_HOST_ERROR, text) from error
    channel.settimeout(None)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return channel


def _tls(address: BackendAddress) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if address.ca is not None:
        context.load_verify_locations(address.ca)
        return context
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
