"""The two connections of a session: what is written to them, TLS on them, and when they are not
read.

A connection is not read while what it sends cannot be passed on: the client while the server is
full or the client has too many commands unanswered, the server while the client is full. A stream
is paused in the server's place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from proxy.login.dialogue import ToClient, ToServer
from proxy.login.relay import SecureClient, SecureServer, Step
from proxy.session.stream import Stream
from proxy.transport.tls import Tls, TlsLayer


class Connections:
    """The client connection and the backing connection of one session."""

    def __init__(
        self,
        tls: Tls,
        *,
        client_tls_failed: Callable[[str], None],
        server_tls_failed: Callable[[str], None],
    ) -> None:
        """The functions are given a reason."""
        self.client: asyncio.Transport
        self.server: asyncio.Transport
        self.server_ready = False
        """Whether the backing connection is open."""
        self.client_is_full = False
        """Whether the client does not read what was written to it."""
        self.client_is_held = False
        """Whether the client is not read because too much of what it sent waits."""
        self._server_is_full = False
        self._tls = tls
        self.server_host = ""
        """The server's name, which its certificate is checked against."""
        self._client_tls_failed = client_tls_failed
        self._server_tls_failed = server_tls_failed

    def write_server(self, data: bytes) -> None:
        """Write to the server, if it is there."""
        if data and self.server_ready:
            self.server.write(data)

    def write_client(self, data: bytes) -> None:
        """Write to the client, if it is there."""
        if data and not self.client.is_closing():
            self.client.write(data)

    # Which of them are read.

    def client_full(self, stream: Stream | None) -> None:
        """The client does not read: stop reading for it."""
        self.client_is_full = True
        if stream is not None:
            stream.pause()
        if self.server_ready and (stream is None or (stream.rows_from_server and not stream.over)):
            self.server.pause_reading()

    def client_has_room(self, stream: Stream | None) -> None:
        """The client reads again."""
        self.client_is_full = False
        self.read_server()
        if stream is not None:
            stream.resume()

    def read_server(self) -> None:
        """Read the server, however full the client is: nothing of what comes is for it."""
        if self.server_ready and not self.server.is_closing():
            self.server.resume_reading()

    def stream_over(self) -> None:
        """Relaying goes on: the client may still be full of a stream's rows."""
        if self.client_is_full:
            self.server.pause_reading()

    def server_full(self) -> None:
        """The server does not read."""
        self._server_is_full = True
        self.client.pause_reading()

    def server_has_room(self) -> None:
        """The server reads again."""
        self._server_is_full = False
        self._read_client()

    def hold_client(self) -> None:
        """Do not read the client until `release_client`."""
        self.client_is_held = True
        self.client.pause_reading()

    def release_client(self) -> None:
        """Read the client again, unless it is for another reason that it is not read."""
        self.client_is_held = False
        self._read_client()

    def _read_client(self) -> None:
        if not (self.client_is_held or self._server_is_full or self.client.is_closing()):
            self.client.resume_reading()

    # Steps of a login.

    def carry_out(self, steps: Sequence[Step]) -> None:
        """Carry out the steps of a login. Beginning TLS may bring more from the client at once, so
        it comes last."""
        for step in steps:
            match step:
                case ToClient(data):
                    self.write_client(data)
                case ToServer(data):
                    self.write_server(data)
                case SecureServer():
                    self._secure_server()
                case SecureClient(rest):
                    self._secure_client(rest)

    def _secure_client(self, rest: bytes) -> None:
        context = self._tls.to_client
        assert context is not None
        layer = TlsLayer(self.client, context, server_side=True, failed=self._client_tls_failed)
        self.client = layer
        layer.start(rest)

    def _secure_server(self) -> None:
        if not self.server_ready:
            return
        layer = TlsLayer(
            self.server, self._tls.to_server, server_side=False, host=self.server_host, failed=self._server_tls_failed
        )
        self.server = layer
        layer.start()
