"""The command line of `ackstream serve`, which creates and connects all parts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import uvloop

from engine.binlog.supervisor import BinlogFollower
from engine.runtime.executor import EngineSettings
from engine.service import Engine
from engine.store import pymysql_adapter
from engine.store.connection import BackendAddress, ConnectionLimits
from engine.store.mysql import MySQLStore, StoreLimits
from engine.store.own_writes import OwnWrites
from engine.store.port import StoreError
from engine.store.pymysql_adapter import ER
from engine.store.reach import Reach
from proxy import __version__
from proxy.backend import ENCODED
from proxy.commandline import conceal
from proxy.embedded.server import EmbeddedServer, EmbeddedServerError
from proxy.server.admin import Admin
from proxy.server.listener import Proxy
from proxy.settings import BadSetting, Endpoint, Settings, advice, load
from proxy.transport.addresses import beyond_loopback, shown
from proxy.transport.proxy_protocol import check_taken
from proxy.transport.tls import Tls
from proxy.wire import mimic_adapter
from sqlrewrite import sqlglot_adapter

log = logging.getLogger("ackstream")

EXIT_BAD_SETTING = 2

GARBAGE_THRESHOLD = 10_000
"""Objects created, less those deleted, before a garbage collection. A batch of messages creates
some thousands, nearly all without cycles, so collections between batches find nothing."""

START_AGAIN_S = 0.25
"""The pause between attempts to connect to a server that is starting: an attempt costs little, and
clients wait."""

_Taken = TypeVar("_Taken")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


@click.group()
@click.version_option(__version__, prog_name="ackstream")
def main() -> None:
    """Message queues in the MySQL you already have."""


@main.command()
@click.option(
    "--backend",
    metavar="URL",
    help="mysql://USER:PASSWORD@HOST:PORT, the engine's own account. Default: a private server.",
)
@click.option(
    "--backend-password-file", metavar="FILE", help="The file with that password, in place of the URL: one line."
)
@click.option("--listen", metavar="HOST:PORT", help="Where clients connect (127.0.0.1:3307; port 0: any free one).")
@click.option("--admin", metavar="HOST:PORT", help="Where health and metrics are served (127.0.0.1:9307).")
@click.option("--listen-socket", metavar="PATH", help="A unix socket where clients may connect as well.")
@click.option("--tls", metavar="on|off", help="Whether clients are offered TLS (on).")
@click.option("--tls-certificate", metavar="FILE", help="PEM, the certificate. Default: self-signed, kept in data-dir.")
@click.option("--tls-key", metavar="FILE", help="PEM, its key, if it is not in the same file.")
@click.option("--backend-tls", metavar="WHEN", help="mirror (what the client chose), always or never.")
@click.option(
    "--backend-ca", metavar="FILE", help="PEM, the authority of the server's certificate, which is then verified."
)
@click.option(
    "--proxy-protocol",
    metavar="on|off",
    help="Whether the server gets clients' addresses by the PROXY protocol (off).",
)
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with any of the settings.")
@click.option("--data-dir", metavar="DIR", help="The directory of the private server's data (ackstream-data).")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="text or json.")
def serve(config: Path | None, **flags: Any) -> None:
    """Stand in front of a MySQL or MariaDB server."""
    try:
        settings = load(flags, config)
    except BadSetting as error:
        _give_up(str(error))
    concealed = _conceal_password(settings)
    _set_up_logging(settings)
    for line in advice(settings, os.environ):
        log.warning("%s", line)
    if not concealed:
        log.warning(
            "other users can read the password of the URL in the process list: --backend-password-file hides it"
        )
    try:
        _check_libraries()
        uvloop.run(_serve(settings))
    except BadSetting as error:
        _give_up(str(error))


def _check_libraries() -> None:
    """Raise BadSetting if the installed release of a library lacks something that its adapter
    uses."""
    try:
        pymysql_adapter.check()
        sqlglot_adapter.check()
        mimic_adapter.check()
    except (
        pymysql_adapter.IncompatibleVersionError,
        sqlglot_adapter.IncompatibleVersionError,
        mimic_adapter.IncompatibleVersionError,
    ) as error:
        raise BadSetting(str(error)) from None


def _conceal_password(settings: Settings) -> bool:
    """Remove the password from the command line that other users see; return whether they cannot
    read it there."""
    backend = settings.backend
    if backend is None or not backend.encoded_password:
        return True
    return conceal(backend.before_password, backend.encoded_password)


def _give_up(text: str) -> NoReturn:
    click.echo(f"ackstream: {text}", err=True)
    sys.exit(EXIT_BAD_SETTING)


def _set_up_logging(settings: Settings) -> None:
    handler = logging.StreamHandler()
    if settings.log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stopping = asyncio.ensure_future(stop.wait())
    async with contextlib.AsyncExitStack() as stack:
        starting = asyncio.ensure_future(_start(settings, stack))
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            log.info("stopped before it was ready")
            starting.cancel()
            await asyncio.wait({starting})
            return
        proxy, admin = starting.result()
        await stopping
        log.info("draining")
        admin.drain()
        proxy.stop_listening()
        await proxy.drain()


async def _start(settings: Settings, stack: contextlib.AsyncExitStack) -> tuple[Proxy, Admin]:
    """Create all parts, to be closed with the stack, and print that clients can connect. Raises
    BadSetting."""
    address = await stack.enter_async_context(_backend(settings))
    tls = Tls.of(settings)
    reach = Reach()
    own_writes = OwnWrites()
    engine = await stack.enter_async_context(_engine(settings, address, reach, own_writes))
    if settings.proxy_protocol:
        await asyncio.to_thread(check_taken, address, ConnectionLimits())
    proxy = Proxy(engine, settings, (address.host, address.port), tls)
    watch = await stack.enter_async_context(_watch(settings, engine, address, own_writes))
    admin = Admin(proxy, watch.following, reach)
    listen = shown(*await _listening("listen", settings.listen, proxy.start()))
    stack.callback(proxy.stop_listening)
    if (path := settings.listen_socket) is not None:
        await _listening("listen-socket", path, proxy.start_locally(path))
    if settings.tls_certificate is not None:  # Without it, SIGHUP (a closed terminal) ends the program.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, tls, settings)
    endpoint = settings.admin
    admin_at = shown(*await _listening("admin", endpoint, admin.start(endpoint.host, endpoint.port)))
    stack.push_async_callback(admin.stop)
    also = "" if path is None else f" socket={path}"
    backend = shown(address.host, address.port)
    _exempt_from_garbage_collection()
    print(f"ackstream ready listen={listen} admin={admin_at} backend={backend}{also}", flush=True)
    return proxy, admin


def _exempt_from_garbage_collection() -> None:
    """Exempt all objects of the start (modules, patterns) from garbage collection, and collect
    less often.

    They live as long as the program. A full collection that visits them stops the event loop for
    40 ms; one that does not, for less than 1 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


@contextlib.asynccontextmanager
async def _backend(settings: Settings) -> AsyncIterator[BackendAddress]:
    """The address of the server in the settings, or of a private one that runs as long as the
    context."""
    if settings.backend is not None:
        given = settings.backend
        tls = {"mirror": None, "always": True, "never": False}[settings.backend_tls]
        ca = None if settings.backend_ca is None else str(settings.backend_ca)
        yield BackendAddress(given.host, given.port, given.user, settings.backend_password, tls=tls, ca=ca)
        return
    await _keep_private(settings.listen)
    try:
        server = EmbeddedServer(settings.data_dir)
        await _started(server)
    except EmbeddedServerError as error:
        raise BadSetting(str(error)) from None
    try:
        yield BackendAddress(server.host, server.port, "root", "", unix_socket=str(server.socket_path))
    finally:
        await asyncio.to_thread(server.stop)


async def _keep_private(listen: Endpoint) -> None:
    """Raise BadSetting if other machines could reach the private server through this endpoint."""
    address = await _listening("listen", listen, asyncio.to_thread(beyond_loopback, listen.host))
    if address is not None:
        raise BadSetting(
            f"--listen {listen}: other machines can reach {address}, and root of the private server has no password."
            " Listen on 127.0.0.1 (or ::1), with --listen-socket beside it if need be, or name a server whose accounts"
            " have passwords with --backend"
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
async def _engine(
    settings: Settings, address: BackendAddress, reach: Reach, own_writes: OwnWrites
) -> AsyncIterator[Engine]:
    limits = StoreLimits(connections=settings.engine_connections)
    store = MySQLStore(address, limits, reach=reach, own_writes=own_writes)
    engine = Engine(
        store,
        EngineSettings(threads=settings.engine_connections, catalog_interval_s=settings.catalog_interval_s),
    )
    try:
        await _begin(engine, settings, shown(address.host, address.port))
        yield engine
    finally:
        await engine.close()


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
                log.warning("waiting up to %g s for the server at %s: %s", settings.backend_wait_s, at, error)
            await asyncio.sleep(START_AGAIN_S)
        else:
            return


def _may_pass(error: StoreError) -> bool:
    """Whether the server may be starting. A certificate that cannot be verified has the same error
    code."""
    original = getattr(error.__cause__, "original_exception", None)
    return error.unreachable and not isinstance(original, ssl.SSLError)


def _hint(error: StoreError, settings: Settings) -> str:
    encoded = settings.backend is not None and "%" in settings.backend.encoded_password
    return f" ({ENCODED})" if encoded and error.code == ER.ACCESS_DENIED_ERROR else ""


@contextlib.asynccontextmanager
async def _watch(
    settings: Settings, engine: Engine, address: BackendAddress, own_writes: OwnWrites
) -> AsyncIterator[BinlogFollower]:
    """The follower of the server's binary log, started unless it is switched off."""
    watch = BinlogFollower(engine, address, own_writes=own_writes)
    if settings.binlog == "auto":
        watch.start()
    try:
        yield watch
    finally:
        await watch.close()


def _reload(tls: Tls, settings: Settings) -> None:
    """Read the certificate again, on SIGHUP."""
    try:
        tls.reload(settings)
    except BadSetting as error:
        log.error("the certificate stays as it was: %s", error)  # noqa: TRY400  # the text says it all
    else:
        log.info("the certificate was read again")


async def _listening(name: str, endpoint: object, start: Awaitable[_Taken]) -> _Taken:
    try:
        return await start
    except OSError as error:
        raise BadSetting(f"--{name} {endpoint}: {_reason(error)}") from None


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        hint = "another program listens there; end it (`ss -ltnpx` shows it) or choose another"
        return f"{os.strerror(error.errno)}: {hint}"
    return error.strerror or str(error)


if __name__ == "__main__":
    main()
