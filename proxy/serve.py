"""`ackstream serve`, which creates and connects all parts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
import uvloop

from engine.binlog.supervisor import BinlogFollower
from engine.service import Engine
from engine.store import pymysql_adapter
from engine.store.mysql import MySQLStore
from engine.store.opening import ConnectionLimits
from engine.store.own_writes import OwnWrites
from engine.store.reach import Reach
from engine.store.route import Route
from proxy import checks, logs
from proxy.commandline import conceal
from proxy.server import otel_adapter
from proxy.server.accepting import Acceptor
from proxy.server.access import Access
from proxy.server.admin import Admin, Probe
from proxy.server.backends import Switch
from proxy.server.fork_server import ForkServer
from proxy.server.inspection import Inspector
from proxy.server.listener import Proxy
from proxy.server.metrics import BinlogMetrics, ProcessMetrics
from proxy.server.parts import (
    backends,
    engine_settings,
    exempt_from_garbage_collection,
    listening,
    reload_certificate,
    running,
    store_limits,
)
from proxy.server.sources import Sources, own_streams
from proxy.server.tracing import traced
from proxy.server.worker import work
from proxy.server.workers import Workers
from proxy.settings import BadSetting, Endpoint, Settings, advice, load
from proxy.statements.proxies import introduction
from proxy.transport.addresses import shown
from proxy.transport.backlog import warn_if_cut
from proxy.transport.proxy_protocol import check_taken
from proxy.transport.tls import Tls
from proxy.transport.unixsocket import UnixSocket
from proxy.wire import mimic_adapter
from sqlrewrite import sqlglot_adapter

log = logging.getLogger("ackstream")

EXIT_NO_WORKERS = 1
"""The workers have ended, and no others can be started."""
EXIT_BAD_SETTING = 2


@click.command()
@click.option(
    "--backend",
    metavar="URL",
    multiple=True,
    help="mysql://USER:PASSWORD@HOST:PORT, the engine's own account. Several times: the servers of which one is the"
    " primary. Default: a private server.",
)
@click.option(
    "--backend-password-file", metavar="FILE", help="The file with that password, in place of the URL: one line."
)
@click.option("--listen", metavar="HOST:PORT", help="Where clients connect (127.0.0.1:3307; port 0: any free one).")
@click.option("--admin", metavar="HOST:PORT", help="Where health and metrics are served (127.0.0.1:9307).")
@click.option("--listen-socket", metavar="PATH", help="A unix socket where clients may connect as well.")
@click.option(
    "--listen-statements",
    metavar="HOST:PORT",
    help="Where clients connect that receive no messages. They have a process of their own.",
)
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
@click.option("--workers", metavar="N", help="Processes that share the work, on one port (1).")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with any of the settings.")
@click.option("--data-dir", metavar="DIR", help="The directory of the private server's data (ackstream-data).")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="text or json.")
def serve(config: Path | None, **flags: Any) -> None:
    r"""Stand in front of a MySQL or MariaDB server, and make queues of its tables.

    Each option is also a name in the file of --config, and a variable: --data-dir is data_dir and
    ACKSTREAM_DATA_DIR. `ackstream doctor` checks the server beforehand. SIGTERM drains.

    \b
    Examples:
      ackstream serve
      ackstream serve --backend mysql://ackstream@db:3306 --backend-password-file secret
      ackstream serve --backend mysql://ackstream@db1:3306,db2:3306 --config ackstream.toml
    """
    try:
        settings = load({**flags, "backend": flags["backend"] or None}, config)
    except BadSetting as error:
        _give_up(str(error))
    concealed = _conceal_password(settings)
    logs.set_up(settings.log_level, settings.log_format)
    for line in advice(settings, os.environ):
        log.warning("%s", line, extra={"event": "settings.advice"})
    if not concealed:
        log.warning(
            "other users can read the password of the URL in the process list: --backend-password-file hides it",
            extra={"event": "settings.password_exposed"},
        )
    try:
        _check_libraries()
        if settings.tracing:
            otel_adapter.check()
        if settings.processes == 1:
            status = uvloop.run(_serve(settings, None))
        else:
            exempt_from_garbage_collection()
            status = uvloop.run(_serve(settings, ForkServer(partial(_work, settings))))
    except BadSetting as error:
        _give_up(str(error))
    sys.exit(status)


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
    concealed = True
    for backend in settings.backend:
        if backend.encoded_password:
            concealed &= conceal(backend.before_password, backend.encoded_password)
    return concealed


def _give_up(text: str) -> NoReturn:
    click.echo(f"ackstream: {text}", err=True)
    sys.exit(EXIT_BAD_SETTING)


Drain = Callable[[], Awaitable[None]]
"""Stops listening, ends all connections, and returns when they have ended."""


async def _serve(settings: Settings, fork_server: ForkServer | None) -> int:
    """Serve until a signal ends it. Returns the exit status. Raises BadSetting."""
    stop, lost = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stopping = asyncio.ensure_future(stop.wait())
    async with contextlib.AsyncExitStack() as stack:
        start = _start(settings, stack) if fork_server is None else _start_workers(settings, fork_server, stack, lost)
        starting = asyncio.ensure_future(start)
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            log.info("stopped before it was ready", extra={"event": "start.stopped"})
            starting.cancel()
            await asyncio.wait({starting})
            return 0
        drain, admin = starting.result()
        losing = asyncio.ensure_future(lost.wait())
        await asyncio.wait({stopping, losing}, return_when=asyncio.FIRST_COMPLETED)
        if lost.is_set():
            return EXIT_NO_WORKERS
        log.info("draining", extra={"event": "drain.began"})
        admin.drain()
        await drain()
    return 0


async def _start(settings: Settings, stack: contextlib.AsyncExitStack) -> tuple[Drain, Admin]:
    """Create all parts, to be closed with the stack, and print that clients can connect. Raises
    BadSetting."""
    access = await Access.of(settings)
    servers = await stack.enter_async_context(backends(settings))
    tls = Tls.of(settings)
    reach = Reach()
    own_writes = OwnWrites()
    store = MySQLStore(
        servers.route, store_limits(settings), reach=reach, own_writes=own_writes, introduction=introduction(settings)
    )
    engine = Engine(store, engine_settings(settings))
    await stack.enter_async_context(running(engine, settings, servers.shown))
    if settings.proxy_protocol:
        await asyncio.to_thread(check_taken, servers.route.address, ConnectionLimits())
    await stack.enter_async_context(traced(engine, settings))
    proxy = Proxy(engine, settings, servers.route, tls, reach=reach)
    watch = await stack.enter_async_context(_watch(settings, engine, servers.route, own_writes))
    switch = Switch(servers.route, store, engine, proxy)
    servers.start(partial(_follow, switch, watch))
    listen = shown(*await listening("listen", settings.listen, proxy.start()))
    stack.callback(proxy.stop_listening)
    if (path := settings.listen_socket) is not None:
        await listening("listen-socket", path, proxy.start_locally(path))
    _reload_on_hangup(settings, partial(reload_certificate, tls, settings), access)
    metrics, probe = ProcessMetrics(proxy, reach), Probe(engine)
    metrics.registry.register(BinlogMetrics(watch.following))
    metrics.start()
    stack.push_async_callback(metrics.stop)
    stack.push_async_callback(probe.close)
    inspector = Inspector(engine, introduction(settings), show_payload=settings.admin_show_payload)
    stack.callback(inspector.close)
    sources = Sources(metrics.collected, probe.reason, probe.unready, inspector.inspect, partial(own_streams, proxy))
    admin = Admin(sources, access, show_payload=settings.admin_show_payload)
    await checks.warn(engine, settings)
    await _ready(settings, stack, admin, listen, servers.shown)

    async def drain() -> None:
        proxy.stop_listening()
        await proxy.drain()

    return drain, admin


async def _start_workers(
    settings: Settings, fork_server: ForkServer, stack: contextlib.AsyncExitStack, lost: asyncio.Event
) -> tuple[Drain, Admin]:
    """As `_start`, with workers in processes of their own. `lost` is set when all workers have ended by a fault."""
    access = await Access.of(settings)
    servers = await stack.enter_async_context(backends(settings))
    Tls.of(settings)  # A new certificate is made once, before there are workers.
    if settings.proxy_protocol:
        await asyncio.to_thread(check_taken, servers.route.address, ConnectionLimits())
    workers = Workers(settings, fork_server, servers.route, lost)
    servers.start(workers.route_changed)
    stack.push_async_callback(workers.close)
    acceptor = workers.acceptor
    listen = await _listen("listen", settings.listen, acceptor)
    statements = None
    if settings.listen_statements is not None:
        statements = await _listen("listen-statements", settings.listen_statements, workers.statements_acceptor)
    if settings.listen_socket is not None:
        await listening("listen-socket", settings.listen_socket, _listen_locally(acceptor, settings))
    await workers.start()
    _reload_on_hangup(settings, workers.reload, access)
    admin = Admin(workers.sources, access, show_payload=settings.admin_show_payload)
    await _ready(settings, stack, admin, listen, servers.shown, statements)
    workers.accept()
    return workers.drain, admin


async def _listen(setting: str, endpoint: Endpoint, acceptor: Acceptor) -> str:
    return shown(*await listening(setting, endpoint, acceptor.listen(endpoint.host, endpoint.port)))


async def _listen_locally(acceptor: Acceptor, settings: Settings) -> None:
    assert settings.listen_socket is not None
    acceptor.listen_locally(UnixSocket(settings.listen_socket, settings.listen_socket_mode))


def _reload_on_hangup(settings: Settings, reload: Callable[[], None], access: Access) -> None:
    """Read the certificate again on SIGHUP. Without one, SIGHUP (a closed terminal) ends the
    program."""

    def reload_all() -> None:
        reload()
        if access.context is not None:
            reload_certificate(access, settings)

    if settings.tls_certificate is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_all)


async def _ready(
    settings: Settings,
    stack: contextlib.AsyncExitStack,
    admin: Admin,
    listen: str,
    backend: str,
    statements: str | None = None,
) -> None:
    """Serve the admin port, and print that clients can connect."""
    endpoint = settings.admin
    admin_at = shown(
        *await listening("admin", endpoint, admin.start(endpoint.host, endpoint.port, reuse_port=settings.reuse_port))
    )
    stack.push_async_callback(admin.stop)
    path = settings.listen_socket
    also = ("" if path is None else f" socket={path}") + ("" if statements is None else f" statements={statements}")
    warn_if_cut()
    exempt_from_garbage_collection()
    log.info("clients can connect", extra={"event": "proxy.ready"})
    print(f"ackstream ready listen={listen} admin={admin_at} backend={backend}{also}", flush=True)


def _follow(switch: Switch, watch: BinlogFollower) -> None:
    """The route has changed."""
    if switch.follow() or not watch.following.now:
        watch.server_changed()


def _work(settings: Settings, number: int, channel: socket.socket, clients: socket.socket) -> None:
    """The main function of a worker, in a process of its own."""
    logs.set_up(settings.log_level, settings.log_format, number)
    exempt_from_garbage_collection()
    uvloop.run(work(settings, number, channel, clients))


@contextlib.asynccontextmanager
async def _watch(
    settings: Settings, engine: Engine, route: Route, own_writes: OwnWrites
) -> AsyncIterator[BinlogFollower]:
    """The follower of the server's binary log, started unless it is switched off."""
    watch = BinlogFollower(engine, route, own_writes=own_writes)
    if settings.binlog == "auto":
        watch.start()
    try:
        yield watch
    finally:
        await watch.close()
