"""How the commands connect, and how they report errors."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

import click
import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from engine.quoting import quoted

URL_VARIABLE = "ACKSTREAM_URL"
PASSWORD_VARIABLE = "ACKSTREAM_PASSWORD"  # noqa: S105  # the name of a variable
LOCAL = "mysql://root@127.0.0.1:3307"
"""The proxy of this machine, as `ackstream serve` starts it."""
SHAPE = "mysql://USER:PASSWORD@HOST:PORT/DATABASE"

EXIT_FAILED = 1
"""The server refused something, or is out of reach."""
EXIT_USAGE = 2
"""A wrong option or argument, as click reports them."""

CONNECT_S = 10
HINTS = {
    1044: "GRANT the account a privilege on the database",
    1045: f"check user and password of the URL (or of {PASSWORD_VARIABLE})",
    1046: f"name the database in the URL ({SHAPE}) or before the queue (DATABASE.QUEUE)",
    1064: "is this the proxy's port? A server without ackstream does not know STREAM and ACK",
    1142: "GRANT SELECT and UPDATE on the queue to the account",
    1146: "SHOW QUEUES lists what there is",
    2003: "is the proxy running, and is this its address?",
}


@dataclass(frozen=True, slots=True)
class Address:
    """A proxy or server, and an account."""

    host: str
    port: int
    user: str
    password: str
    database: str | None

    @classmethod
    def of(cls, url: str) -> Address:
        """The address in a URL. Raises click.BadParameter, whose text shows nothing of the
        password."""
        refusal = click.BadParameter(f"it takes the form {SHAPE}")
        try:
            parts = urlsplit(url)
            port = parts.port or 3307
        except ValueError:  # Its text can hold the password.
            raise refusal from None
        if parts.scheme != "mysql" or not parts.hostname or not parts.username:
            raise refusal
        password = os.environ.get(PASSWORD_VARIABLE) if parts.password is None else unquote(parts.password)
        return cls(parts.hostname, port, unquote(parts.username), password or "", parts.path.strip("/") or None)

    def connect(self, cursor: type[Cursor] = Cursor) -> Connection[Any]:
        """A new connection, in autocommit mode. Raises pymysql.MySQLError."""
        return Connection(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            database=self.database,
            autocommit=True,
            charset="utf8mb4",
            connect_timeout=CONNECT_S,
            cursorclass=cursor,
        )


class _Url(click.ParamType):  # type: ignore[type-arg]  # Before click 8.4 it is not generic.
    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        return value if isinstance(value, Address) else Address.of(value)


url_option = click.option(
    "--url",
    "address",
    type=_Url(),
    envvar=URL_VARIABLE,
    default=LOCAL,
    show_default=True,
    metavar="URL",
    help=f"{SHAPE}, of the proxy; or {URL_VARIABLE}, and {PASSWORD_VARIABLE} for the password.",
)


def table_name(queue: str) -> str:
    """The quoted name of a queue that is given as QUEUE or DATABASE.QUEUE."""
    return ".".join(map(quoted, queue.split(".", 1)))


def counted(number: int, noun: str) -> str:
    """A number of things: "1 message", "2 messages"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def give_up(text: str) -> NoReturn:
    """End the program with one line and EXIT_FAILED."""
    click.echo(f"ackstream: {text}", err=True)
    sys.exit(EXIT_FAILED)


def error_text(error: pymysql.MySQLError) -> str:
    """The error as one line that says what to do."""
    code, text = (*error.args, "", "")[:2]
    hint = HINTS.get(code) if isinstance(code, int) else None
    line = " ".join(f"{text or code} ({code})".split())
    return f"{line}: {hint}" if hint else line


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose errors of the server are one line."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except pymysql.MySQLError as error:
            give_up(error_text(error))

    return run
