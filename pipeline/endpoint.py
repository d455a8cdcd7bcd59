"""Where the proxy is, and how to connect to it.

The password comes from an option of Spark, a file or the environment, never from the command line
or a URL, which process lists show. Spark keeps it out of its logs and plans, because of the
option's name.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.constants import CR, ER
from pymysql.cursors import Cursor, SSCursor

from .errors import JobError, PipelineError, server_says

PASSWORD_VARIABLE: Final = "ACKSTREAM_PASSWORD"  # noqa: S105 (the name of a variable)
DEFAULT_PORT: Final = 3307
URL_SHAPE: Final = "mysql://USER@HOST:PORT/DATABASE[?tls=off|on|verify&ca=FILE]"

CONNECT_S: Final = 3
"""A proxy on a reachable network answers sooner, and what does not is tried again."""

FIRST_ANSWER_S: Final = 10
"""A job's first statements read a few rows of information_schema. A port that accepts connections and
never answers is not MySQL's."""

SILENT_S: Final = 3.0
"""After so long, work that is tried again is reported in the log, which Python shows by default."""

FIRST_WAIT_S: Final = 0.1
"""The longest wait before a first repetition; it doubles with each further one."""

TRANSIENT: Final = frozenset(
    {
        ER.LOCK_DEADLOCK,
        ER.CHECKREAD,  # MariaDB: a row has changed since the transaction began to read
        ER.LOCK_WAIT_TIMEOUT,
        ER.SERVER_SHUTDOWN,
        ER.CON_COUNT_ERROR,
        ER.TOO_MANY_USER_CONNECTIONS,
        ER.OPTION_PREVENTS_STATEMENT,  # the server became read-only: a failover is under way
        1836,  # the same
        1927,  # MariaDB: connection was killed
        3101,  # a group of servers rolled it back
        CR.CR_CONNECTION_ERROR,
        CR.CR_CONN_HOST_ERROR,
        CR.CR_SERVER_GONE_ERROR,
        CR.CR_SERVER_LOST,
    }
)
"""Errors after which the same work may succeed on a new connection."""

LOGIN_REFUSED: Final = frozenset(
    {ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.BAD_DB_ERROR, ER.HOST_NOT_PRIVILEGED, 1698}
)
"""Errors of a login that is refused again and again. (1698: a plugin of MariaDB denies access.)"""

PROXY_CANNOT_READ: Final = "ackstream cannot read the queue: "
PROXY_CANNOT_REACH: Final = (
    "ackstream cannot connect to the backing server",
    "ackstream has no TLS connection to the backing server",
)
"""How the text of error 1105 begins if the proxy cannot connect to its server."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Tls(Enum):
    """How the connection to the proxy is protected."""

    OFF = "off"
    ON = "on"
    """Encrypted; any certificate of the proxy is accepted, such as the one that it makes for
    itself."""
    VERIFY = "verify"
    """Encrypted, with a certificate for this host name that an authority signed: the system's, or
    the one in `ca`."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try again after a deadlock, a lost connection or a failover."""

    attempts: int = 40
    """With the waits between them a minute or two, which a failover takes at most. Attempts and not
    a time, because the work itself may take long."""
    longest_wait_s: float = 5.0
    longest_s: float | None = None
    """For how long, at most."""


FIRST_CONTACT: Final = Patience(longest_s=20)
"""For a job that has not reached the proxy yet: a wrong port is as likely as a proxy that starts."""

UNREACHED: Final = frozenset({CR.CR_CONN_HOST_ERROR, CR.CR_SERVER_LOST})
"""PyMySQL's errors if nobody accepts a connection, or if no server answers there."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A proxy, an account on its server, and the database where unqualified names are looked
    for."""

    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)
    database: str | None = None
    tls: Tls = Tls.OFF
    ca: str | None = None

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        password: str | None = None,
        password_file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Endpoint:
        """Read `URL_SHAPE`. Without `tls`, TLS is off for this machine, where it protects nothing,
        and on elsewhere.

        The password is the one given, or else the first line of the file, or else in the
        environment at this moment, or else empty. Raises PipelineError.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or DEFAULT_PORT
            options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
            tls = Tls(options.pop("tls")) if "tls" in options else None
            ca = options.pop("ca", None)
        except ValueError as error:
            raise PipelineError(f"the URL must look like {URL_SHAPE}: {error}") from None
        if parts.password is not None:
            raise PipelineError(f"a password does not belong in the URL: use ${PASSWORD_VARIABLE} or a password file")
        if parts.scheme != "mysql" or not parts.hostname or not parts.username or options or parts.fragment:
            raise PipelineError(f"the URL must look like {URL_SHAPE}")
        if ca and tls is not Tls.VERIFY:
            raise PipelineError("the URL's `ca` is of use with tls=verify only")
        return cls(
            parts.hostname,
            port,
            unquote(parts.username),
            _password(password_file, environ) if password is None else password,
            unquote(parts.path.strip("/")) or None,
            tls or (Tls.OFF if _is_this_machine(parts.hostname) else Tls.ON),
            ca,
        )

    def connect(self, cursor: type[Cursor | SSCursor] = Cursor, **options: Any) -> Any:
        """A PyMySQL connection: autocommit, utf8mb4, UTC, strict. Its type is Any, because it
        depends on the cursor.

        Raises pymysql.MySQLError, and PipelineError where trying again does not help.
        """
        given: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "database": self.database,
            "autocommit": True,
            "charset": "utf8mb4",
            "connect_timeout": CONNECT_S,
            "cursorclass": cursor,
            "init_command": f"SET {SESSION}",
            **({"ssl_disabled": True} if self.tls is Tls.OFF else {"ssl": self._context()}),
        }
        try:
            return pymysql.connect(**{**given, **options})
        except pymysql.InternalError as error:  # what comes is not a packet
            raise PipelineError(f"{self.host}:{self.port} does not speak MySQL: correct the port in the URL") from error
        except pymysql.OperationalError as error:
            if (wrong := self._wrong(error)) is not None:
                raise PipelineError(wrong) from None
            if error.args[0] not in UNREACHED:
                raise
            reason = getattr(error, "original_exception", None)
            said = getattr(reason, "strerror", None) or reason or "no MySQL answers there"
            raise pymysql.OperationalError(
                CR.CR_CONN_HOST_ERROR, f"cannot connect to {self.host}:{self.port} ({said})"
            ) from None

    def run(self, work: Callable[[Any], T], patience: Patience | None = None, **options: Any) -> T:
        """Run `work` on a connection of its own, with options of PyMySQL, and again on another one
        after each transient error.

        `work` must be safe to repeat even if its commit succeeded: the answer to a commit can get
        lost.
        """

        def attempt() -> T:
            connection = self.connect(**options)
            try:
                return work(connection)
            finally:
                connection.close() if connection.open else None

        return again(attempt, patience)

    def first(self, work: Callable[[Any], T]) -> T:
        """Run the first `work` of a job, which asks little, and fail soon if nobody answers. Raises
        PipelineError, and JobError for what may pass."""
        try:
            return self.run(work, FIRST_CONTACT, read_timeout=FIRST_ANSWER_S)
        except pymysql.MySQLError as error:
            raise (JobError if is_transient(error) else PipelineError)(server_says(error)) from None

    def in_database(self, database: str) -> Endpoint:
        """This endpoint in another database."""
        return replace(self, database=database)

    def _wrong(self, error: pymysql.OperationalError) -> str | None:
        """A text about an error that stays until something is changed; None for any other. PyMySQL
        reports both as the same failure to connect."""
        reason = getattr(error, "original_exception", None)
        if isinstance(reason, ssl.SSLCertVerificationError):
            return (
                f"{self.host}:{self.port} shows a certificate that {self.ca or 'this system'} does not vouch for:"
                f" {reason.verify_message}. `ca` in the URL names the file of the authority that signed it"
            )
        if isinstance(reason, socket.gaierror) and reason.errno != socket.EAI_AGAIN:
            return f"there is no host {self.host!r} ({reason.strerror}): correct it in the URL"
        if error.args[0] in LOGIN_REFUSED:
            return (
                f"{self.host}:{self.port} refuses the login: {error.args[1]} ({error.args[0]}). The URL names user and"
                f" database, {PASSWORD_VARIABLE} or a file has the password"
            )
        return None

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # ssl.SSLError is one
            raise PipelineError(f"the authority's file {self.ca} cannot be read: {error}") from None
        if self.tls is Tls.ON:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


SESSION: Final = "sql_mode='STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO',time_zone='+00:00'"
"""A value that does not fit is an error, 0 is a valid id, and times are in UTC whatever the
machines' zones are."""


# --- trying again ---


def again(attempt: Callable[[], T], patience: Patience | None = None) -> T:
    """The result of `attempt`, which is repeated with exponential backoff after transient errors.
    After SILENT_S the log reports it.

    Raises the last error.
    """
    patience = patience or Patience()
    longest_s, began_s, silent = FIRST_WAIT_S, time.monotonic(), True
    for _ in range(patience.attempts - 1):
        try:
            return attempt()
        except Exception as error:
            passed_s = time.monotonic() - began_s
            if not is_transient(error) or (patience.longest_s is not None and passed_s >= patience.longest_s):
                raise
            if silent and passed_s >= SILENT_S:
                most = "a minute or two" if patience.longest_s is None else f"{patience.longest_s:.0f} s"
                _log.warning("%s, trying for %s", server_says(error), most)
                silent = False
        time.sleep(random.uniform(0, longest_s))
        longest_s = min(2 * longest_s, patience.longest_wait_s)
    return attempt()


def is_transient(error: BaseException) -> bool:
    """Whether trying again on a new connection can help."""
    if isinstance(error, pymysql.err.InterfaceError):
        return True  # PyMySQL had closed the connection already
    return isinstance(error, pymysql.MySQLError) and error.args[:1] != () and _code(error) in TRANSIENT


def _code(error: pymysql.MySQLError) -> int:
    """The error's number.

    If the proxy could not read a queue, it is the server's number, which ends the text. If the
    proxy cannot connect to its server, it is the number that clients use for this.
    """
    code, text = error.args[0], str(error.args[-1])
    if code == ER.UNKNOWN_ERROR and text.startswith(PROXY_CANNOT_REACH):
        return CR.CR_CONN_HOST_ERROR
    if code == ER.UNKNOWN_ERROR and text.startswith(PROXY_CANNOT_READ):
        number = text.rpartition("(")[2].removesuffix(")")
        return int(number) if number.isdecimal() else CR.CR_SERVER_LOST
    return int(code)


# --- names ---


def quoted(*names: str) -> str:
    """Names in backquotes, with dots: `db`.`t`."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


def quoted_list(names: Sequence[str]) -> str:
    """Names of columns in backquotes, with commas."""
    return ", ".join(map(quoted, names))


def _password(file: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> str:
    if file is None:
        return environ.get(PASSWORD_VARIABLE, "")
    try:
        return Path(file).read_text().split("\n", 1)[0]
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"the password file {file} cannot be read: {error}") from None


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
