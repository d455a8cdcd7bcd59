"""The servers of the commands that connect as `ackstream serve` does, with an account of `--backend`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from engine.store.opening import BackendAddress
from proxy.commands.connection import EXIT_USAGE
from proxy.settings import BadSetting, Settings, load


def backend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name the servers: parameters of `settings_of`."""
    for option in (
        click.option("--config", type=click.Path(path_type=Path), help="The TOML file of `serve`."),
        click.option("--backend-password-file", metavar="FILE", help="As for `serve`."),
        click.option("--backend", metavar="URL", help="As for `serve`; or ACKSTREAM_BACKEND."),
    ):
        command = option(command)
    return command


def settings_of(backend: str | None, backend_password_file: str | None, config: Path | None) -> Settings:
    """The settings, with at least one server. Ends the program with one line if there is none."""
    try:
        settings = load(
            {"backend": [backend] if backend else None, "backend_password_file": backend_password_file}, config
        )
    except BadSetting as error:
        _refuse(str(error))
    if not settings.backend:
        _refuse("--backend names the server: mysql://USER:PASSWORD@HOST:PORT")
    return settings


def addresses(settings: Settings) -> Iterator[BackendAddress]:
    """The servers, with the account and the TLS of the settings."""
    tls = {"mirror": None, "always": True, "never": False}[settings.backend_tls]
    ca = None if settings.backend_ca is None else str(settings.backend_ca)
    for server in settings.backend:
        password = settings.password_of(server)
        yield BackendAddress(server.host, server.port, server.user, password, tls=tls, ca=ca)


def _refuse(text: str) -> NoReturn:
    click.echo(f"ackstream: {text}", err=True)
    sys.exit(EXIT_USAGE)
