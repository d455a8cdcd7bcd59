"""TLS between a session's connection and its socket.

`TlsLayer` is a protocol to the socket's transport and a transport to the session. The session goes on
writing, pausing and closing as before. A connection without TLS has no layer and no cost. The engine
is OpenSSL on two memory buffers (ssl.SSLObject). Nothing is kept beyond the piece at hand: written
bytes are encrypted at once into the socket's buffer, whose limits make the backpressure, and bytes
that arrive are decrypted and passed on at once.

The loop's own `loop.start_tls` cannot be given bytes that have already been read. MySQL 9's clients
send their ClientHello in one segment with the request for TLS, so it fails now and then. Reading the
request in exact sizes from the raw socket before asyncio works, but is a second way of reading for
36 bytes. Measured on uvloop with 1 GB in pieces of 200 kB, in each direction: 0.44 to 0.59 s of CPU
here, 0.45 to 0.63 s under `start_tls`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from proxy.login.relay import TlsPolicy
from proxy.settings import BadSetting, Settings
from proxy.transport import certificates

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
"""More than one record holds, so each read takes a whole one."""

EARLY_MAX = 128 * 1024
"""How much may be written before the handshake is over: a login packet, which has at most half of it."""


class TlsLayer(asyncio.Transport, asyncio.Protocol):
    """TLS on `transport`, whose protocol it becomes; the protocol that was there gets the clear text.

    `failed` gets the reason when the handshake, or later the connection, fails. It decides what
    happens to the session. The socket is closed in any case.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        host: str | None = None,
        failed: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._transport = transport
        self._protocol = cast(asyncio.Protocol, transport.get_protocol())
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._engine = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=host)
        self._failed = failed
        self._established = False
        self._early = bytearray()
        """Written before the handshake was over."""
        transport.set_protocol(self)

    def start(self, received: bytes = b"") -> None:
        """Begin, with the bytes that have already come from the peer."""
        self.data_received(received)

    # The socket's protocol.

    def data_received(self, data: bytes) -> None:
        """Decrypt bytes from the socket and pass the clear text to the session. End the connection if
        TLS fails."""
        if self._transport.is_closing():
            return
        self._incoming.write(data)
        clear, ended = b"", False
        try:
            if self._established or self._handshake():
                clear, ended = self._read()
        except ssl.SSLError as error:
            self._flush()
            self._transport.close()
            self._failed(getattr(error, "verify_message", "") or error.reason or str(error))
            return
        self._flush()
        if clear:
            self._protocol.data_received(clear)
        if ended:
            self._protocol.eof_received()
            self._transport.close()

    def eof_received(self) -> bool | None:
        """The peer sends nothing more: report it to the session."""
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed: report it to the session."""
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """The socket's write buffer is full: report it to the session."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The socket's write buffer has room: report it to the session."""
        self._protocol.resume_writing()

    # The session's transport.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send. Before the end of the handshake, keep up to EARLY_MAX bytes; with more, abort."""
        if not data or self._transport.is_closing():
            return
        if not self._established:
            self._early += data
            if len(self._early) > EARLY_MAX:
                self.abort()
            return
        self._engine.write(data)
        self._transport.write(self._outgoing.read())

    def close(self) -> None:
        """Send close_notify and close the socket when the rest is sent."""
        if self._established and not self._transport.is_closing():
            with contextlib.suppress(ssl.SSLError):  # It leaves our close_notify to be sent, and requires the peer's.
                self._engine.unwrap()
            self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the socket at once. What is not sent is lost."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether the socket is closing or closed."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Read no more from the socket."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits of the socket's write buffer, in bytes of cipher text."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the bytes of cipher text that are not sent yet."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the socket."""
        return self._transport.get_extra_info(name, default)

    def _handshake(self) -> bool:
        """Continue it. Returns whether it is over. Raises ssl.SSLError if it fails."""
        try:
            self._engine.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self._established = True
        if self._early:
            self._engine.write(self._early)
            self._early.clear()
        return True

    def _read(self) -> tuple[bytes, bool]:
        """The clear text that has arrived, and whether the peer has ended its side."""
        pieces: list[bytes] = []
        try:
            while self._incoming.pending or self._engine.pending():
                piece = self._engine.read(READ_BYTES)
                if not piece:
                    return b"".join(pieces), True
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass  # The rest is the beginning of a record.
        except ssl.SSLZeroReturnError:
            return b"".join(pieces), True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), False

    def _flush(self) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())


@dataclass(slots=True)
class Tls:
    """What both connections of a session need for TLS, made of the settings."""

    policy: TlsPolicy
    to_server: ssl.SSLContext
    to_client: ssl.SSLContext | None
    expires: dt.datetime | None = None
    """Until when the certificate for clients is valid, as it was last read; None: there is no TLS."""

    @property
    def expiry_problem(self) -> str | None:
        """What is wrong with the certificate's end, if it is near or past."""
        if self.expires is None or (left := certificates.days_left(self.expires)) >= certificates.EXPIRES_SOON_DAYS:
            return None
        when = f"expires in {left:.0f} days" if left > 0 else f"expired {-left:.0f} days ago"
        return f"the certificate for clients {when}: renew it, then send the proxy SIGHUP"

    def _warn(self) -> None:
        if (problem := self.expiry_problem) is not None:
            log.warning("%s", problem, extra={"event": "certificate.expires"})

    @classmethod
    def of(cls, settings: Settings) -> Tls:
        """Make it of the settings. Raises BadSetting."""
        policy = TlsPolicy(
            offered=settings.tls,
            backend=settings.backend_tls,
            verified=settings.backend_ca is not None,
            key=certificates.rsa_key(settings.data_dir) if settings.backend_tls == "always" else None,
        )
        made = cls(policy, server_context(settings), None)
        made.reload(settings)
        return made

    def reload(self, settings: Settings) -> None:
        """Use a renewed certificate for new connections. Raises BadSetting and keeps the old one."""
        if settings.tls:
            self.to_client = client_context(settings)
            self.expires = certificates.expires(_certificate(settings))
            self._warn()


def client_context(settings: Settings) -> ssl.SSLContext:
    """A context with our certificate, for clients or the admin port. Raises BadSetting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Otherwise a write might have to wait for a read.
    context.options |= ssl.OP_NO_RENEGOTIATION
    load_certificate(context, settings)
    return context


def load_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    """Have new connections use our certificate as it is now. Raises BadSetting."""
    certificate = _certificate(settings)
    try:
        context.load_cert_chain(certificate, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:
        files = f"{certificate}" + (f" with {settings.tls_key}" if settings.tls_key else "")
        raise BadSetting(f"tls_certificate: {files} cannot be used: {error}") from None


def _certificate(settings: Settings) -> Path:
    """The file with our certificate, made if need be. Raises BadSetting."""
    return settings.tls_certificate or certificates.self_signed(settings.data_dir)


def _no_password() -> str:
    raise ValueError("its key is encrypted, and there is nobody to ask for the password")


def server_context(settings: Settings) -> ssl.SSLContext:
    """The context for the server. Its certificate is verified if `backend_ca` is set. Raises BadSetting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if settings.backend_ca is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        context.load_verify_locations(settings.backend_ca)
    except OSError as error:
        raise BadSetting(f"backend_ca: {settings.backend_ca} cannot be used: {error}") from None
    return context
