"""The backing servers as the operator specifies them: URLs with the engine's account, and a file
with its password."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

PASSWORD_BYTES_MAX = 4096
"""A password of MySQL has at most a few hundred bytes, so a larger file is the wrong one."""

ENCODED = (
    "in the URL a #, /, ?, @, %, [ or ] of the password is written %23, %2F, %3F, %40, %25, %5B or %5D;"
    " --backend-password-file takes the password as it is"
)

SERVERS_MAX = 64
"""Servers of one proxy. Each has a thread and a connection that watch it."""

_FORM = "it takes the form mysql://USER:PASSWORD@HOST:PORT"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Backend:
    """A backing server and the engine's account on it.

    Raises ValueError, whose text shows nothing of the password.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host, user = parts.hostname, parts.username
        except ValueError:  # Its text can hold the password.
            raise ValueError(_form_of(url)) from None
        if parts.scheme != "mysql" or not host or not user:
            raise ValueError(_form_of(url))
        if parts.path.strip("/") or parts.query or parts.fragment:
            hint = f" ({ENCODED})" if "@" in parts.path + parts.query + parts.fragment else ""
            raise ValueError(f"nothing can follow HOST:PORT: a database is chosen by each client{hint}")
        encoded = parts.password or ""
        if _BAD_ESCAPE.search(user + encoded):
            raise ValueError(f"a % in it is followed by two hexadecimal digits: {ENCODED}")
        self.host = host
        self.port = _port_of(parts.netloc)
        self.user = unquote(user)
        self.password = unquote(encoded)
        self.encoded_password = encoded
        """The password as the URL has it; empty without one."""
        self.before_password = url.partition(f":{encoded}@")[0] + ":"
        """The URL up to the password."""

    @property
    def name(self) -> str:
        """HOST:PORT, an IPv6 host in brackets: the name of the server among several."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"mysql://{self.user}:…@{self.host}:{self.port}"


def backends_in(text: str) -> tuple[Backend, ...]:
    """The servers in a list: URLs, or further HOST:PORT with the account of the URL before them,
    separated by commas.

    Raises ValueError, whose text shows nothing of a password.
    """
    found: list[Backend] = []
    for url in re.split(r",\s*(?=mysql://)", text.strip()):
        before, at, hosts = url.rpartition("@")
        first, *others = hosts.split(",") if at else [url]
        found.append(Backend(before + at + first))
        if not all(map(str.strip, others)):
            raise ValueError(f"{_FORM}, with commas between several")
        found += [Backend(f"{before}@{host.strip()}") for host in others]
    return tuple(found)


def distinct(backends: Sequence[Backend]) -> tuple[Backend, ...]:
    """The servers, if they fit together. Raises ValueError."""
    if not backends:
        raise ValueError(_FORM)
    names = [backend.name for backend in backends]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]} is given twice")
    if len(backends) > SERVERS_MAX:
        raise ValueError(f"at most {SERVERS_MAX} servers can be given")
    return tuple(backends)


def _form_of(url: str) -> str:
    return f"{_FORM} ({ENCODED})" if "@" in url and url.startswith("mysql://") else _FORM


def _port_of(netloc: str) -> int:
    _, colon, port = netloc.rpartition("@")[2].rpartition("]")[2].rpartition(":")
    if not colon or not port:
        return 3306
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= 65535):
        raise ValueError(f"{_FORM}, and PORT is a number between 1 and 65535")
    return int(port)


def password_in(path: Path) -> str:
    """The password in a file: its content without one line end. Raises ValueError."""
    try:
        with path.open("rb") as file:
            raw = file.read(PASSWORD_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > PASSWORD_BYTES_MAX:
        raise ValueError(f"{path} has more than {PASSWORD_BYTES_MAX} bytes: it should hold a password and nothing else")
    try:
        password = raw.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None
    if not password:
        raise ValueError(f"{path} is empty: it should hold a password")
    if "\n" in password or "\0" in password:
        raise ValueError(f"{path} has several lines: it should hold a password and nothing else")
    return password


def is_exposed(path: Path) -> bool:
    """Whether users other than its owner can read or change this file. Nobody else can read a
    pipe."""
    mode = path.stat().st_mode
    return stat.S_ISREG(mode) and bool(mode & (stat.S_IRWXG | stat.S_IRWXO))
