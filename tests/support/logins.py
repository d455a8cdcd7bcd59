"""Logins by drivers and command lines, with and without TLS, and their outcomes.

An outcome is the name of the account that the server let in, or the number of the error, or its text where the
client itself gave up.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import mysql.connector
import pymysql
from mysql_mimic.types import str_len
from pymysql.connections import Connection

from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support import insides
from tests.support.queues import rows, run
from tests.support.servers import client_program, connect

Outcome = str | int
COM_CHANGE_USER = 0x11


class Place(Protocol):
    """A server, or a proxy in front of one."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


@dataclass(frozen=True)
class Account:
    """A user of this server."""

    user: str
    password: str


@contextlib.contextmanager
def account(server: EmbeddedServer, plugin: str, password: str = "secret", require: str = "NONE") -> Iterator[Account]:
    """A user that logs in with a plugin."""
    user = f"{plugin[:6]}_{'some' if password else 'none'}_{require.lower()}"
    with connect(server) as root:
        identified = f"IDENTIFIED WITH {plugin} BY '{password}'"
        if server.flavour == "mariadb":
            identified = f"IDENTIFIED VIA {plugin} USING PASSWORD('{password}')"
        run(root, f"CREATE USER {user}@localhost {identified} REQUIRE {require}")
        try:
            yield Account(user, password)
        finally:
            run(root, f"DROP USER {user}@localhost")


def forget_passwords(server: EmbeddedServer) -> None:
    """Clear the server's cache of digests, so that the next login sends the password itself."""
    with connect(server) as root:
        run(root, "FLUSH PRIVILEGES")


def by_pymysql(place: Place, user: str, password: str, tls: bool) -> Outcome:
    try:
        with pymysql.connect(
            host=place.host, port=place.port, user=user, password=password, ssl_disabled=not tls
        ) as client:
            return current_user(client)
    except pymysql.MySQLError as error:
        return int(error.args[0])


def by_connector(place: Place, user: str, password: str, tls: bool) -> Outcome:
    try:
        client = mysql.connector.connect(
            host=place.host, port=place.port, user=user, password=password, ssl_disabled=not tls, use_pure=True
        )
    except mysql.connector.Error as error:
        return int(error.errno) if error.errno > 0 else str(error)
    with contextlib.closing(client), contextlib.closing(client.cursor()) as cursor:
        cursor.execute("SELECT CURRENT_USER()")
        return named(cursor.fetchone())


def by_command_line(flavour: Flavour) -> Callable[[Place, str, str, bool], Outcome]:
    """The flavour's own."""
    secure = {"mysql": ["--ssl-mode=REQUIRED"], "mariadb": ["--ssl"]}[flavour]
    insecure = {"mysql": ["--ssl-mode=DISABLED", "--get-server-public-key"], "mariadb": ["--skip-ssl"]}[flavour]

    def log_in(place: Place, user: str, password: str, tls: bool) -> Outcome:
        return command_line(
            flavour, f"-h{place.host}", f"-P{place.port}", f"-u{user}", shown(password), *(secure if tls else insecure)
        )

    return log_in


def shown(password: str) -> str:
    return f"-p{password}" if password else "--skip-password"


def command_line(flavour: Flavour, *options: str) -> Outcome:
    """How a login by the command line ends."""
    done = subprocess.run(
        [*client_program(flavour), *options, "-BNe", "SELECT CURRENT_USER()"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    error = re.search(r"ERROR (\d+)", done.stderr)
    return int(error[1]) if error else done.stdout.partition("@")[0] or done.stderr


CLIENTS: dict[str, Callable[[Place, str, str, bool], Outcome]] = {
    "pymysql": by_pymysql,
    "connector": by_connector,
    "mysql": by_command_line("mysql"),
    "mariadb": by_command_line("mariadb"),
}


def current_user(client: Connection[Any]) -> str:
    return named(rows(client, "SELECT CURRENT_USER()")[0])


def named(row: Any) -> str:
    return str(row[0]).partition("@")[0]


def change_user(client: Any, user: str, password: str, plugin: str, attribute: str = "") -> None:
    """COM_CHANGE_USER by PyMySQL, which has all its parts but no method for it."""
    client.user, client.password = user.encode(), password.encode()
    attributes = str_len(b"long") + str_len(attribute.encode())
    insides.send(
        client,
        COM_CHANGE_USER,
        user.encode() + b"\0\0\0" + bytes([45, 0]) + plugin.encode() + b"\0" + bytes(str_len(attributes)),
    )
    insides.authenticate(client)
