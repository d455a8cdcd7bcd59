"""The parts of a proxy, each with its beginning and its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import ssl
from collections.abc import AsyncIterator, Awaitable
from typing import Protocol, TypeVar

from engine.runtime.executor import EngineSettings
from engine.service import Engine
from engine.store.mysql import StoreLimits
from engine.store.opening import BackendAddress
from engine.store.port import StoreError
from engine.store.pymysql_adapter import ER
from engine.store.route import Route
from proxy.backend import ENCODED
from proxy.embedded.server import EmbeddedServer, EmbeddedServerError
from proxy.server.backends import Backends, backends_of
from proxy.settings import BadSetting, Settings
from proxy.transport.addresses import beyond_loopback, reached_at, shown
from sqlrewrite.settle_grammar import compile_grammars

log = logging.getLogger(__name__)

GARBAGE_THRESHOLDS = (1_500, 5, 15)
"""Objects created, less those deleted, before a garbage collection; such collections before one that
also visits what they left; and those before a full one. A batch of messages creates some thousands,
nearly all without cycles, so collections between batches find nothing. While a collection runs, in
whichever thread, the event loop stands: for 10 ms at most with a hundred thousand messages in flight in
twenty thousand groups. A full one takes 50 ms then. It is rare: it waits until a quarter more objects
are there than after the last one."""

START_AGAIN_S = 0.25
"""The pause between attempts to connect to a server that is starting: an attempt costs little, and
clients wait."""

_Taken = TypeVar("_Taken")


def complete_the_start() -> None:
    """Make what lives as long as the program, so that no client waits for it: compile the patterns of
    statements; exempt all objects of the start from garbage collection, and collect in smaller steps.

    A full collection that visits them stops the event loop for 40 ms; one that does not, for less
    than 1 ms.
    """
    compile_grammars()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


@contextlib.asynccontextmanager
async def backends(settings: Settings) -> AsyncIterator[Backends]:
    """The servers in the settings, or a private one that runs as long as the context. Raises
    BadSetting if several are given and none is the primary in time."""
    if settings.backend:
        found = await asyncio.to_thread(backends_of, settings)
        try:
            await found.find(settings.backend_wait_s)
            yield found
        finally:
            await found.close()
        return
    server = await private_server(settings)
    try:
        address = BackendAddress(server.host, server.port, "root", "", unix_socket=str(server.socket_path))
        yield Backends(Route(address), shown(*address.target), None)
    finally:
        await asyncio.to_thread(server.stop)


async def private_server(settings: Settings) -> EmbeddedServer:
    """The private server, started. Raises BadSetting."""
    await _keep_private(settings)
    try:
        server = EmbeddedServer(settings.data_dir)
        await _started(server)
    except EmbeddedServerError as error:
        raise BadSetting(str(error)) from None
    return server


async def _keep_private(settings: Settings) -> None:
    """Raise BadSetting if other machines could reach the private server through any address of the settings."""
    for setting, endpoint in settings.endpoints.items():
        name = setting.replace("_", "-")
        address = await listening(name, endpoint, asyncio.to_thread(beyond_loopback, endpoint.host))
        if address is not None:
            raise BadSetting(
                f"--{name} {endpoint}: other machines can reach {address}, and root of the private server has no"
                " password. Listen on 127.0.0.1 (or ::1), with --listen-socket beside it if need be, or name a server"
                " whose accounts have passwords with --backend"
            )


async def _started(server: EmbeddedServer) -> None:
    """Start the server on a thread. If this is cancelled, no server is left running."""
    starting = asyncio.ensure_future(asyncio.to_thread(server.start))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        server.abandon()
        await asyncio.wait({starting})
        if not starting.cancelled() and starting.exception() is None:  # It started before it could be abandoned.
            await asyncio.to_thread(server.stop)
        raise


@contextlib.asynccontextmanager
async def running(engine: Engine, settings: Settings, at: str) -> AsyncIterator[None]:
    """Run the engine as long as the context. `at`: the servers, for people. Raises BadSetting if
    the server does not accept it in time."""
    try:
        await _begin(engine, settings, at)
        yield
    finally:
        await engine.close()


def own_listener(settings: Settings, listen: str, user: str, password: str) -> BackendAddress:
    """This proxy's own listener at HOST:PORT as an address to connect to from this machine, with an account. With TLS
    where it is offered: some accounts require it."""
    host, _, port = listen.rpartition(":")
    host = reached_at(host).strip("[]")
    return BackendAddress(host, int(port), user, password, tls=True if settings.tls else None)


def store_limits(settings: Settings) -> StoreLimits:
    """The limits of the engine's store."""
    return StoreLimits(connections=settings.engine_connections)


def engine_settings(settings: Settings) -> EngineSettings:
    """The settings of the engine."""
    return EngineSettings(threads=settings.engine_connections, catalog_interval_s=settings.catalog_interval_s)


async def _begin(engine: Engine, settings: Settings, at: str) -> None:
    """Start the engine once the server accepts connections. Raises BadSetting if it does not in
    time, or for an error."""
    clock = asyncio.get_running_loop().time
    deadline, waiting = clock() + settings.backend_wait_s, False
    while True:
        try:
            await engine.start()
        except StoreError as error:
            if not _may_pass(error) or clock() >= deadline:
                raise BadSetting(f"--backend {at}: {error}{_hint(error, settings)}") from None
            if not waiting:
                waiting = True
                log.warning(
                    "waiting up to %g s for the server at %s: %s",
                    settings.backend_wait_s,
                    at,
                    error,
                    extra={"event": "server.awaited"},
                )
            await asyncio.sleep(START_AGAIN_S)
        else:
            return


def _may_pass(error: StoreError) -> bool:
    """Whether the server may be starting. A certificate that cannot be verified has the same error
    code."""
    original = getattr(error.__cause__, "original_exception", None)
    return error.unreachable and not isinstance(original, ssl.SSLError)


def _hint(error: StoreError, settings: Settings) -> str:
    encoded = any("%" in backend.encoded_password for backend in settings.backend)
    return f" ({ENCODED})" if encoded and error.code == ER.ACCESS_DENIED_ERROR else ""


class Certified(Protocol):
    """What presents the proxy's certificate."""

    def reload(self, settings: Settings) -> None:
        """Use a renewed certificate for new connections. Raises BadSetting and keeps the old one."""


def reload_certificate(certified: Certified, settings: Settings) -> None:
    """Read the certificate again, on SIGHUP."""
    try:
        certified.reload(settings)
    except BadSetting as error:
        log.error("the certificate stays as it was: %s", error, extra={"event": "certificate.refused"})  # noqa: TRY400  # the text says it all
    else:
        log.info("the certificate was read again", extra={"event": "certificate.reloaded"})


async def listening(name: str, endpoint: object, start: Awaitable[_Taken]) -> _Taken:
    """The result of `start`, which listens on the endpoint of this setting. Raises BadSetting."""
    try:
        return await start
    except OSError as error:
        raise BadSetting(f"--{name} {endpoint}: {_reason(error)}") from None


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        hint = "another program listens there; end it (`ss -ltnpx` shows it) or choose another"
        return f"{os.strerror(error.errno)}: {hint}"
    return error.strerror or str(error)
