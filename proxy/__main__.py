"""The command line, and the one place where all parts are put together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import uvloop

from engine import pymysql_adapter
from engine.link import BackendAddress
from engine.service import Engine
from engine.shell import EngineSettings
from engine.store import StoreError
from engine.store_mysql import MySQLStore, StoreLimits
from engine.watch import BinlogWatch
from proxy import __version__
from proxy.admin import Admin
from proxy.embedded import EmbeddedServer, EmbeddedServerError
from proxy.listener import Proxy
from proxy.settings import BadSetting, Settings, load
from proxy.tls import Tls
from proxy.wire import mimic_adapter
from sqlrewrite import sqlglot_adapter

log = logging.getLogger("ackstream")

EXIT_BAD_SETTING = 2

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
@click.option("--listen", metavar="HOST:PORT", help="Where clients connect (127.0.0.1:3307; port 0: any free one).")
@click.option("--admin", metavar="HOST:PORT", help="Where health and metrics are served (127.0.0.1:9307).")
@click.option("--listen-socket", metavar="PATH", help="A unix socket where clients may connect as well.")
@click.option("--tls", metavar="on|off", help="Whether clients are offered TLS (on).")
@click.option("--tls-certificate", metavar="FILE", help="PEM, our certificate. Default: self-signed, kept in data-dir.")
@click.option("--tls-key", metavar="FILE", help="PEM, its key, if it is not in the same file.")
@click.option("--backend-tls", metavar="WHEN", help="mirror (what the client chose), always or never.")
@click.option("--backend-ca", metavar="FILE", help="PEM, who signed the server's certificate, which is verified then.")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with any of the settings.")
@click.option("--data-dir", metavar="DIR", help="Where the private server keeps its data (ackstream-data).")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="text or json.")
def serve(config: Path | None, **flags: Any) -> None:
    """Stand in front of a MySQL or MariaDB server."""
    try:
        settings = load(flags, config)
    except BadSetting as error:
        _give_up(str(error))
    _set_up_logging(settings)
    try:
        _check_libraries()
        uvloop.run(_serve(settings))
    except BadSetting as error:
        _give_up(str(error))


def _check_libraries() -> None:
    """Raise BadSetting if an installed release of a given library lacks what is used of it."""
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
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(_backend(settings))
        tls = Tls.of(settings)
        engine = await stack.enter_async_context(_engine(settings, address))
        proxy = Proxy(engine, settings, (address.host, address.port), tls)
        watch = await stack.enter_async_context(_watch(settings, engine, address))
        admin = Admin(proxy, watch.following)
        listen = _shown(*await _listening("listen", settings.listen, proxy.start()))
        stack.callback(proxy.stop_listening)
        if (path := settings.listen_socket) is not None:
            await _listening("listen-socket", path, proxy.start_locally(path))
        if settings.tls_certificate is not None:  # Else a closed terminal ends the program, as it should.
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, tls, settings)
        endpoint = settings.admin
        admin_at = _shown(*await _listening("admin", endpoint, admin.start(endpoint.host, endpoint.port)))
        stack.push_async_callback(admin.stop)
        backend = _shown(address.host, address.port)
        also = "" if path is None else f" socket={path}"
        print(f"ackstream ready listen={listen} admin={admin_at} backend={backend}{also}", flush=True)
        await stop.wait()
        log.info("draining")
        admin.drain()
        proxy.stop_listening()
        await proxy.drain()


@contextlib.asynccontextmanager
async def _backend(settings: Settings) -> AsyncIterator[BackendAddress]:
    """The server that was named, or a private one for as long as we run."""
    if settings.backend is not None:
        given = settings.backend
        tls = {"mirror": None, "always": True, "never": False}[settings.backend_tls]
        ca = None if settings.backend_ca is None else str(settings.backend_ca)
        yield BackendAddress(given.host, given.port, given.user, given.password, tls=tls, ca=ca)
        return
    try:
        server = EmbeddedServer(settings.data_dir)
        await asyncio.to_thread(server.start)
    except EmbeddedServerError as error:
        raise BadSetting(str(error)) from None
    try:
        yield BackendAddress(server.host, server.port, "root", "", unix_socket=str(server.socket_path))
    finally:
        await asyncio.to_thread(server.stop)


@contextlib.asynccontextmanager
async def _engine(settings: Settings, address: BackendAddress) -> AsyncIterator[Engine]:
    store = MySQLStore(address, StoreLimits(connections=settings.engine_connections))
    engine = Engine(
        store,
        EngineSettings(threads=settings.engine_connections, catalog_interval_s=settings.catalog_interval_s),
    )
    try:
        try:
            await engine.start()
        except StoreError as error:
            raise BadSetting(f"--backend {address.host}:{address.port}: {error}") from None
        yield engine
    finally:
        await engine.close()


@contextlib.asynccontextmanager
async def _watch(settings: Settings, engine: Engine, address: BackendAddress) -> AsyncIterator[BinlogWatch]:
    """The server's log as a source of news, unless it is switched off."""
    watch = BinlogWatch(engine, address)
    if settings.binlog == "auto":
        watch.start()
    try:
        yield watch
    finally:
        await watch.close()


def _reload(tls: Tls, settings: Settings) -> None:
    """SIGHUP: the certificate may have been renewed."""
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
        raise BadSetting(f"--{name} {endpoint}: {error.strerror or error}") from None


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


if __name__ == "__main__":
    main()
