"""`ackstream doctor`: what keeps a server from being a good one for ackstream, and what to run.

It connects with the engine's account, as `ackstream serve` does, and changes nothing.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from engine.model import BrokenTable, TableId
from engine.store.mysql import MySQLStore
from engine.store.port import StoreError
from proxy.commands.connection import EXIT_FAILED
from proxy.commands.servers import addresses, backend_options, settings_of
from proxy.session.internal_queries import from_hex
from proxy.session.queries import sql
from proxy.settings import Endpoint, Settings

OLDEST = {"MySQL": (8, 0), "MariaDB": (10, 6)}
"""The oldest releases that are supported."""

AT_ONCE = 250
"""Tables described in one packet."""

OWN_CONNECTIONS = 10
"""Connections of the server that others need besides the clients' and the engine's."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result. `level`: `ok`, `warning` or `error`; `remedy`: what to run or to change."""

    level: str
    about: str
    text: str
    remedy: str = ""


def findings(settings: Settings, store: MySQLStore) -> Iterator[Finding]:
    """All findings, the server first. Raises StoreError if the server cannot be read."""
    (row,) = store.read(sql("doctor")).value
    version, log_bin, form, image, connections, read_only, zones = (value or "" for value in row)
    yield _version(from_hex(version))
    yield from _binary_log(log_bin, form, image)
    yield _connections(int(connections), settings)
    if read_only not in ("0", "OFF") and len(settings.backend) > 1:
        yield Finding("ok", "read_only", "the server is read-only, as a replica should be")
    elif read_only not in ("0", "OFF"):
        yield Finding("error", "read_only", "the server is read-only", "name the primary with --backend")
    if zones == "1":
        yield Finding("ok", "time zones", "named time zones are loaded")
    else:
        text = "no named time zones: conditions with CONVERT_TZ are NULL"
        yield Finding("warning", "time zones", text, "mysql_tzinfo_to_sql /usr/share/zoneinfo | mysql mysql")
    listing = store.discover().value
    for problem in listing.problems:
        yield Finding("warning", f"account {listing.account}", problem)
    if not listing.problems:
        yield Finding("ok", f"account {listing.account}", "it has all global privileges that help")
    yield from _queues(store, list(listing.marked))


def _version(text: str) -> Finding:
    kind = "MariaDB" if "MariaDB" in text else "MySQL"
    number = tuple(map(int, re.findall(r"\d+", text)[:2]))
    if number >= OLDEST[kind]:
        return Finding("ok", "version", f"{kind} {text}")
    oldest = ".".join(map(str, OLDEST[kind]))
    return Finding("error", "version", f"{kind} {text} is not supported", f"upgrade to {kind} {oldest} or later")


def _binary_log(log_bin: str, form: str, image: str) -> Iterator[Finding]:
    about = "binary log"
    if log_bin != "1":
        yield Finding(
            "warning", about, "off: what bypasses the proxy is found by polling", "start the server with log_bin"
        )
    elif form != "ROW":
        yield Finding("warning", about, f"binlog_format is {form}", "SET GLOBAL binlog_format = ROW, and in my.cnf")
    elif image != "FULL":
        text = f"binlog_row_image is {image}: each change costs a scan"
        yield Finding("warning", about, text, "SET GLOBAL binlog_row_image = FULL, and in my.cnf")
    else:
        yield Finding("ok", about, "rows, with full images")


def _connections(allowed: int, settings: Settings) -> Finding:
    needed = settings.connections_max + settings.engine_connections + OWN_CONNECTIONS
    if allowed >= needed:
        return Finding("ok", "max_connections", f"{allowed}")
    text = f"{allowed}: the proxy accepts {settings.connections_max} clients, each with a connection to the server"
    return Finding(
        "warning", "max_connections", text, f"SET GLOBAL max_connections = {needed}, or lower connections_max"
    )


def _queues(store: MySQLStore, tables: Sequence[TableId]) -> Iterator[Finding]:
    good = 0
    for at in range(0, len(tables), AT_ONCE):
        for table, found in store.describe_all(tables[at : at + AT_ONCE]).value.items():
            if isinstance(found, BrokenTable):
                for problem in found.problems:
                    yield Finding("error", f"queue {table}", problem)
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
    time zones, every message table, and whether the ports are free. It changes nothing. The exit
    status is 1 if there is an error, and 0 if there are only warnings.

    \b
    Example:
      ackstream doctor --backend mysql://ackstream@db:3306 --backend-password-file secret
    """
    settings = settings_of(backend, backend_password_file, config)
    found: list[Finding] = []
    for address in addresses(settings):
        store = MySQLStore(address)
        try:
            found += findings(settings, store)
        except StoreError as error:
            found.append(
                Finding("error", f"{address.host}:{address.port}", str(error), "check address, user and password")
            )
        finally:
            store.close()
    found += ports(settings)
    for finding in found:
        click.echo(json.dumps(asdict(finding)) if as_json else _line(finding))
    sys.exit(EXIT_FAILED if any(finding.level == "error" for finding in found) else 0)


def _line(finding: Finding) -> str:
    remedy = f"\n         → {finding.remedy}" if finding.remedy else ""
    return f"{finding.level:8} {finding.about}: {finding.text}{remedy}"
