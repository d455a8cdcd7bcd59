"""`ackstream serve`, which creates and connects all parts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

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
from proxy.backend import backends_in
from proxy.commandline import conceal
from proxy.embedded.server import EmbeddedServer
from proxy.server import otel_adapter
from proxy.server.access import Access
from proxy.server.admin import Admin, Probe
from proxy.server.backends import Switch
from proxy.server.inspection import Inspector
from proxy.server.listener import Proxy
from proxy.server.metrics import BinlogMetrics, ProcessMetrics
from proxy.server.parts import (
    backends,
    complete_the_start,
    engine_settings,
    listening,
    own_listener,
    private_server,
    reload_certificate,
    running,
    store_limits,
)
from proxy.server.problems import known_problems
from proxy.server.processes import Announce, Report, Supervisor
from proxy.server.sign_ins import SignIns
from proxy.server.sources import Sources, first_held, own_streams
from proxy.server.tracing import traced
from proxy.settings import BadSetting, Settings, advice, load
from proxy.statements.deliveries import Deliveries
from proxy.statements.proxies import introduction
from proxy.transport.addresses import shown, url_of
from proxy.transport.backlog import warn_if_cut
from proxy.transport.proxy_protocol import check_taken
from proxy.transport.tls import Tls
from proxy.wire import mimic_adapter
from sqlrewrite import sqlglot_adapter

log = logging.getLogger("ackstream")

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
@click.option("--processes", metavar="N", help="Whole proxies on one port, each with an admin port of its own (1).")
@click.option(
    "--streams", metavar="on|off", help="Whether STREAM is possible (on); off: for other clients' statements."
)
@click.option("--workers", hidden=True)
@click.option("--listen-statements", hidden=True)
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with any of the settings.")
@click.option("--data-dir", metavar="DIR", help="The directory of the private server's data (ackstream-data).")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="text or json.")
def serve(config: Path | None, **flags: Any) -> None:
    """Stand in front of a MySQL or MariaDB server, and make queues of its tables.

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
        status = _run(settings, partial(_announce, settings)) if settings.processes == 1 else _supervise(settings)
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


def _run(settings: Settings, announce: Announce, began: Callable[[], None] = lambda: None) -> int:
    """Be one proxy. Returns the exit status. `began` is called when the event loop runs. Raises BadSetting."""
    return uvloop.run(_serve(settings, announce, began))


def _supervise(settings: Settings) -> int:
    """Run several proxies, in front of one private server if there is no other. Returns the exit status. Raises
    BadSetting."""

    def be_one_of_them(its: Settings, report: Report) -> int:
        try:
            return _run(its, report.ready, report.beat)
        except BadSetting as error:
            click.echo(f"ackstream: {error}", err=True)
            return EXIT_BAD_SETTING

    with contextlib.ExitStack() as stack:
        if not settings.backend:
            server = uvloop.run(_private(settings))
            if server is None:
                return 0
            stack.callback(server.stop)
            at = tuple(backends_in(f"mysql://root@{server.host}:{server.port}"))
            settings = settings.model_copy(update={"backend": at})
        complete_the_start()
        return Supervisor(settings, be_one_of_them, partial(_announce, settings)).run()


async def _private(settings: Settings) -> EmbeddedServer | None:
    return await _unless_stopped(_signal_to_stop(), private_server(settings))


Drain = Callable[[], Awaitable[None]]
"""Stops listening, ends all connections, and returns when they have ended."""

_Started = TypeVar("_Started")


def _signal_to_stop() -> asyncio.Future[Any]:
    """What is done when a signal ends the program."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return asyncio.ensure_future(stop.wait())


async def _unless_stopped(stopping: asyncio.Future[Any], start: Coroutine[Any, Any, _Started]) -> _Started | None:
    """The result of `start`. None: a signal came before, and `start` was cancelled."""
    starting = asyncio.ensure_future(start)
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        log.info("stopped before it was ready", extra={"event": "start.stopped"})
        starting.cancel()
        await asyncio.wait({starting})
        return None
    return starting.result()


async def _serve(settings: Settings, announce: Announce, began: Callable[[], None]) -> int:
    """Serve until a signal ends it. Returns the exit status. Raises BadSetting."""
    stopping = _signal_to_stop()
    began()
    async with contextlib.AsyncExitStack() as stack:
        started = await _unless_stopped(stopping, _start(settings, stack, announce))
        if started is None:
            return 0
        drain, admin = started
        await stopping
        log.info("draining", extra={"event": "drain.began"})
        admin.drain()
        await drain()
    return 0


async def _start(settings: Settings, stack: contextlib.AsyncExitStack, announce: Announce) -> tuple[Drain, Admin]:
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
    engine.has_streams = settings.streams
    await stack.enter_async_context(running(engine, settings, servers.shown))
    if settings.proxy_protocol:
        await asyncio.to_thread(check_taken, servers.route.address, ConnectionLimits())
    await stack.enter_async_context(traced(engine, settings))
    proxy = Proxy(engine, settings, servers.route, tls, reach=reach)
    watch = await stack.enter_async_context(_watch(settings, engine, servers.route, own_writes, reach))
    switch = Switch(servers.route, store, engine, proxy)
    servers.start(partial(_follow, switch, watch))
    listen = shown(*await listening("listen", settings.listen, proxy.start()))
    stack.callback(proxy.stop_listening)
    if (path := settings.listen_socket) is not None:
        await listening("listen-socket", path, proxy.start_locally(path))
    _reload_on_hangup(settings, partial(reload_certificate, tls, settings), access)
    metrics, probe = ProcessMetrics(proxy, reach), Probe(engine, reach.states)
    metrics.registry.register(BinlogMetrics(watch.following))
    metrics.start()
    stack.push_async_callback(metrics.stop)
    probe.start()
    stack.push_async_callback(probe.close)
    deliveries = Deliveries(engine, lambda: proxy.sessions)
    inspector = Inspector(engine, introduction(settings), deliveries, show_payload=settings.admin_show_payload)
    stack.callback(inspector.close)
    sources = Sources(
        metrics.families,
        probe.reason,
        probe.unready,
        inspector.inspect,
        inspector.forget,
        partial(own_streams, proxy),
        partial(known_problems, proxy, watch.following, lambda: metrics.depths.counts),
        partial(first_held, deliveries),
    )
    sign_ins = SignIns(partial(own_listener, settings, listen))
    admin = Admin(sources, access, sign_ins, settings.admin_connections_max, show_payload=settings.admin_show_payload)
    await checks.warn(engine, settings)
    admin_at = await _ready(settings, stack, admin)
    announce(listen, admin_at, servers.shown)

    async def drain() -> None:
        proxy.stop_listening()
        await proxy.drain()

    return drain, admin


def _reload_on_hangup(settings: Settings, reload: Callable[[], None], access: Access) -> None:
    """Read the certificate again on SIGHUP. Without one, SIGHUP (a closed terminal) ends the
    program."""

    def reload_all() -> None:
        reload()
        if access.context is not None:
            reload_certificate(access, settings)

    if settings.tls_certificate is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_all)


async def _ready(settings: Settings, stack: contextlib.AsyncExitStack, admin: Admin) -> str:
    """Serve the admin port, and return its address: clients can connect."""
    endpoint = settings.admin
    start = admin.start(endpoint.host, endpoint.port, reuse_port=settings.reuse_port)
    address = shown(*await listening("admin", endpoint, start))
    stack.push_async_callback(admin.stop)
    warn_if_cut()
    complete_the_start()
    log.info("clients can connect", extra={"event": "proxy.ready"})
    return address


def _announce(settings: Settings, listen: str, admin: str, backend: str) -> None:
    """Print both lines at once: a program may have read the first one and left."""
    also = "" if settings.listen_socket is None else f" socket={settings.listen_socket}"
    page = url_of(admin, secure=settings.admin_tls)
    print(
        f"ackstream ready listen={listen} admin={admin} backend={backend}{also}\nthe page of queues: {page}", flush=True
    )


def _follow(switch: Switch, watch: BinlogFollower) -> None:
    """The route has changed."""
    if switch.follow() or not watch.following.now:
        watch.server_changed()


@contextlib.asynccontextmanager
async def _watch(
    settings: Settings, engine: Engine, route: Route, own_writes: OwnWrites, reach: Reach
) -> AsyncIterator[BinlogFollower]:
    """The follower of the server's binary log, started unless it is switched off."""
    watch = BinlogFollower(engine, route, own_writes=own_writes)
    if settings.binlog == "auto":
        watch.start()
        reach.on_opened = watch.connected
    try:
        yield watch
    finally:
        await watch.close()
