"""What of a server keeps it from being a good one for ackstream, and what to run.

`ackstream doctor` shows all findings. `ackstream serve` logs those that none of its other events
reports, once at its start.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.store.port import StoreError
from proxy.session.internal_queries import from_hex
from proxy.session.queries import sql
from proxy.settings import Settings
from proxy.transport.certificates import now

if TYPE_CHECKING:
    from engine.service import Engine

log = logging.getLogger(__name__)

OLDEST = {"MySQL": (8, 0), "MariaDB": (10, 6)}
"""The oldest releases that are supported."""

SETTLES_AS_IT_IS = (11, 6, 2)
"""The first MariaDB on which a message is settled whatever its transaction has read before."""

OWN_CONNECTIONS = 10
"""Connections of the server that others need besides the clients' and the engine's."""

CLOCKS_APART_S = 5.0
"""A greater difference of clocks is a finding. Smaller ones may be the time of the query."""

BINARY_LOG = "binary log"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result. `level`: `ok`, `warning` or `error`; `remedy`: what to run or to change."""

    level: str
    about: str
    text: str
    remedy: str = ""


def of_server(row: Sequence[str | None], ahead_s: float, settings: Settings) -> Iterator[Finding]:
    """The findings about a server, by the row of the query `doctor`. `ahead_s`: how far its clock is
    ahead of this machine's."""
    version, log_bin, form, image, connections, read_only, zones = (value or "" for value in row)
    yield _version(from_hex(version))
    yield _binary_log(log_bin, form, image)
    yield _connections(int(connections), settings)
    yield _read_only(read_only not in ("0", "OFF"), settings)
    yield _clock(ahead_s)
    if zones == "1":
        yield Finding("ok", "time zones", "named time zones are loaded")
    else:
        text = "no named time zones: conditions with CONVERT_TZ are NULL"
        yield Finding("warning", "time zones", text, "mysql_tzinfo_to_sql /usr/share/zoneinfo | mysql mysql")


def of_snapshot_isolation(version: str, variable: Sequence[Sequence[str | None]]) -> Iterator[Finding]:
    """The finding about `innodb_snapshot_isolation`, by its row if the server has it, and VERSION() in
    hexadecimal."""
    about = "innodb_snapshot_isolation"
    if [value for _, value in variable] != ["ON"]:
        return
    if tuple(map(int, re.findall(r"\d+", from_hex(version))[:3])) >= SETTLES_AS_IT_IS:
        yield Finding("ok", about, "ON: it concerns no ACK, NACK, EXTEND or FOR UPDATE through the proxy")
    else:
        text = "ON: an ACK fails (1020) in a transaction that read before the message was delivered or extended"
        yield Finding("warning", about, text, "SET GLOBAL innodb_snapshot_isolation = OFF, and in my.cnf")


def ahead_s(server_ns: int) -> float:
    """How far a clock that shows `server_ns` now is ahead of this machine's, in seconds."""
    return (dt.datetime.fromtimestamp(server_ns / 1e9, dt.UTC) - now()).total_seconds()


async def warn(engine: Engine, settings: Settings) -> None:
    """Log the findings about the engine's server that no other event reports. A private server and one
    that cannot be read have none."""
    if not settings.backend:
        return
    try:
        (row,), now_ns = await engine.read(sql("doctor"))
    except StoreError:
        return  # There are events for that.
    for finding in of_server(row, ahead_s(now_ns), settings):
        if finding.level != "ok" and finding.about != BINARY_LOG:
            log.warning(
                "%s: %s. What helps: %s",
                finding.about,
                finding.text,
                finding.remedy,
                extra={"event": "server.advice"},
            )


def _version(text: str) -> Finding:
    kind = "MariaDB" if "MariaDB" in text else "MySQL"
    number = tuple(map(int, re.findall(r"\d+", text)[:2]))
    if number >= OLDEST[kind]:
        return Finding("ok", "version", f"{kind} {text}")
    oldest = ".".join(map(str, OLDEST[kind]))
    return Finding("error", "version", f"{kind} {text} is not supported", f"upgrade to {kind} {oldest} or later")


def _binary_log(log_bin: str, form: str, image: str) -> Finding:
    if log_bin != "1":
        text = "off: what bypasses the proxy is found by polling"
        return Finding("warning", BINARY_LOG, text, "start the server with log_bin")
    if form == "STATEMENT":
        text = "binlog_format is STATEMENT: the server refuses the engine's claims (1665), so nothing is delivered"
        return Finding("error", BINARY_LOG, text, "SET GLOBAL binlog_format = ROW, and in my.cnf")
    if form != "ROW":
        text = f"binlog_format is {form}"
        return Finding("warning", BINARY_LOG, text, "SET GLOBAL binlog_format = ROW, and in my.cnf")
    if image != "FULL":
        text = f"{image}: each change costs a scan"
        return Finding("warning", "binlog_row_image", text, "SET GLOBAL binlog_row_image = FULL, and in my.cnf")
    return Finding("ok", BINARY_LOG, "rows, with full images")


def _connections(allowed: int, settings: Settings) -> Finding:
    needed = settings.connections_max + settings.engine_connections + OWN_CONNECTIONS
    if allowed >= needed:
        return Finding("ok", "max_connections", f"{allowed}")
    text = f"{allowed}: the proxy accepts {settings.connections_max} clients, each with a connection to the server"
    return Finding(
        "warning", "max_connections", text, f"SET GLOBAL max_connections = {needed}, or lower connections_max"
    )


def _read_only(read_only: bool, settings: Settings) -> Finding:  # noqa: FBT001
    if not read_only:
        return Finding("ok", "read_only", "the server can be written to")
    if len(settings.backend) > 1:
        return Finding("ok", "read_only", "the server is read-only, as a replica should be")
    return Finding("error", "read_only", "the server is read-only", "name the primary with --backend")


def _clock(ahead: float) -> Finding:
    if abs(ahead) <= CLOCKS_APART_S:
        return Finding("ok", "clock", f"the server's is within {CLOCKS_APART_S:g} s of this machine's")
    side = "ahead of" if ahead > 0 else "behind"
    text = f"the server's is {abs(ahead):.0f} s {side} this machine's: messages come due by the server's"
    return Finding("warning", "clock", text, "timedatectl on both machines: System clock synchronized: yes")
