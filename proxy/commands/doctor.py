"""`ackstream doctor`: what keeps a server from being a good one for ackstream, and what to run.

It connects with the engine's account, as `ackstream serve` does, and changes nothing.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from engine.model import TableId
from engine.queue_table import BrokenTable
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress
from engine.store.port import StoreError
from proxy.checks import Finding, ahead_s, of_server, of_snapshot_isolation
from proxy.commands.connection import EXIT_FAILED
from proxy.commands.servers import addresses, backend_options, settings_of
from proxy.session.queries import sql
from proxy.settings import Endpoint, Settings
from proxy.transport.addresses import beyond_loopback
from proxy.transport.certificates import EXPIRES_SOON_DAYS, days_left, expires

STYLES = {"ok": "green", "warning": "yellow", "error": "red"}
"""Of the levels, on a terminal with colours."""

AT_ONCE = 250
"""Tables described in one packet."""


def findings(settings: Settings, address: BackendAddress, store: MySQLStore) -> Iterator[Finding]:
    """All findings, the server first. Raises StoreError if the server cannot be read."""
    found = store.read(sql("doctor"))
    yield from of_server(found.value[0], ahead_s(found.now_ns), settings)
    yield from of_snapshot_isolation(found.value[0][0] or "", store.read(sql("doctor_snapshot_isolation")).value)
    ((_, cipher),) = store.read(sql("doctor_tls")).value
    yield _backend_tls(cipher or "", address)
    listing = store.discover().value
    for problem in listing.problems:
        yield Finding("warning", f"account {listing.account}", problem)
    if not listing.problems:
        yield Finding("ok", f"account {listing.account}", "it has all global privileges that help")
    yield from _queues(store, list(listing.marked))


def _backend_tls(cipher: str, address: BackendAddress) -> Finding:
    about = "TLS to the server"
    if address.local and not cipher:
        return Finding("ok", about, "none: the server is on this machine")
    if not cipher:
        remedy = "give the server a certificate (ssl_cert, ssl_key), or leave backend_tls = never out"
        return Finding("warning", about, "none: passwords and messages are in clear on the network", remedy)
    if address.ca is None:
        text = f"{cipher}; nothing proves who the server is"
        return Finding("ok" if address.local else "warning", about, text, "--backend-ca with the server's authority")
    return Finding("ok", about, f"{cipher}; the server's certificate was verified")


def client_tls(settings: Settings) -> Finding:
    """Whether clients are offered TLS that they can verify."""
    about, local = "TLS to clients", _is_local(settings.listen.host)
    if not settings.tls:
        text = "none" if local else "none: passwords and messages are in clear on the network"
        return Finding("ok" if local else "warning", about, text, "" if local else "--tls on")
    if settings.tls_certificate is None:
        remedy = "" if local else "--tls-certificate with one that an authority signed"
        return Finding("ok" if local else "warning", about, "self-signed: clients cannot verify the proxy", remedy)
    try:
        left = days_left(expires(settings.tls_certificate))
    except (OSError, ValueError) as error:
        return Finding("error", about, f"{settings.tls_certificate} cannot be read: {error}", "mend --tls-certificate")
    renewal = f"renew {settings.tls_certificate}, then send the proxy SIGHUP"
    if left < 0:
        return Finding("error", about, f"{settings.tls_certificate} expired {-left:.0f} days ago", renewal)
    if left < EXPIRES_SOON_DAYS:
        return Finding("warning", about, f"{settings.tls_certificate} expires in {left:.0f} days", renewal)
    return Finding("ok", about, f"{settings.tls_certificate} is valid for {left:.0f} days")


def _is_local(host: str) -> bool:
    try:
        return beyond_loopback(host) is None
    except OSError:
        return False


def _queues(store: MySQLStore, tables: Sequence[TableId]) -> Iterator[Finding]:
    good = 0
    for at in range(0, len(tables), AT_ONCE):
        for table, found in store.describe_all(tables[at : at + AT_ONCE]).value.items():
            if isinstance(found, BrokenTable):
                for problem in found.problems:
                    yield Finding("error", f"queue {table}", problem)
                continue
            if isinstance(found, StoreError):
                yield Finding("error", f"queue {table}", f"it cannot be described now: {found}")
                continue
            for warning in (*found.warnings, *found.advice):
                yield Finding("warning", f"queue {table}", warning)
            good += not (found.warnings or found.advice)
    yield Finding("ok", "queues", f"{good} of {len(tables)} without a finding")


def ports(settings: Settings) -> Iterator[Finding]:
    """Whether the addresses of `ackstream serve` are free."""
    for name, endpoint in (("listen", settings.listen), ("admin", settings.admin)):
        if (reason := _taken(endpoint)) is None:
            yield Finding("ok", f"--{name}", f"{endpoint} is free")
        else:
            text = f"{endpoint}: {reason}. That is as it should be if the proxy runs already"
            yield Finding("warning", f"--{name}", text, f"ss -ltnp 'sport = :{endpoint.port}'")


def _taken(endpoint: Endpoint) -> str | None:
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((endpoint.host, endpoint.port))
        except OSError as error:
            return error.strerror or str(error)
    return None


@click.command()
@backend_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def doctor(backend: str | None, backend_password_file: str | None, config: Path | None, *, as_json: bool) -> None:
    """Check a server for ackstream, and say what to run where something is missing.

    It checks the version, the binary log, the privileges of the engine's account, max_connections,
    the clock, time zones, TLS, every message table, and whether the ports are free. It changes
    nothing. The exit status is 1 if there is an error, and 0 if there are only warnings.

    \b
    Example:
      ackstream doctor --backend mysql://ackstream@db:3306 --backend-password-file secret
    """
    settings = settings_of(backend, backend_password_file, config)
    found: list[Finding] = []
    for address in addresses(settings):
        store = MySQLStore(address)
        try:
            found += findings(settings, address, store)
        except StoreError as error:
            found.append(
                Finding("error", f"{address.host}:{address.port}", str(error), "check address, user and password")
            )
        finally:
            store.close()
    found.append(client_tls(settings))
    found += ports(settings)
    console = Console()
    for finding in found:
        if as_json:
            click.echo(json.dumps(asdict(finding)))
        else:
            console.print(_line(finding), soft_wrap=True)
    sys.exit(EXIT_FAILED if any(finding.level == "error" for finding in found) else 0)


def _line(finding: Finding) -> Text:
    remedy = f"\n         → {finding.remedy}" if finding.remedy else ""
    return Text.assemble((f"{finding.level:8}", STYLES[finding.level]), f" {finding.about}: {finding.text}{remedy}")
