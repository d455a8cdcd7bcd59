"""Every setting of `ackstream serve`.

They come from the command line, from `ACKSTREAM_…` in the environment, and from a TOML file, in that order. One
frozen object, checked once. Each limit has its reason beside it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from proxy.backend import Backend, is_exposed, password_in
from proxy.login.relay import BackendTls

PREFIX = "ACKSTREAM_"
OF_OTHERS = frozenset({"ACKSTREAM_URL", "ACKSTREAM_PASSWORD", "ACKSTREAM_CACHE", "ACKSTREAM_SPARK_LOG"})
"""Variables that the pipeline's programs, or the tests, read."""


class BadSetting(Exception):
    """A setting that cannot be used; the text is one line that says which and why."""


class Endpoint(str):
    """HOST:PORT, an IPv6 host in brackets."""

    __slots__ = ()

    @property
    def host(self) -> str:
        """The host, without brackets."""
        return self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port; 0 for any free one."""
        return int(self.rpartition(":")[2])

    @classmethod
    def check(cls, text: str) -> Endpoint:
        """Raises ValueError unless it is one."""
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) <= 65535):
            raise ValueError(f"'{text}' is not HOST:PORT (for instance 127.0.0.1:3307)")
        return cls(text)


class Settings(BaseSettings):
    """The settings of `ackstream serve`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, arbitrary_types_allowed=True)

    backend: Backend | None = None
    """The server to stand in front of. None: a private one, its data under `data_dir`."""
    backend_password_file: Path | None = None
    """The password of the engine's account, in place of one in the URL: whoever may list processes reads a command
    line. One line end behind it is no part of it."""
    backend_wait_s: float = Field(default=15.0, ge=0)
    """How long a server that takes no connection is waited for at start: it may be starting, too. Longer is for whoever
    starts the program again."""
    proxy_protocol: bool = False
    """Whether the server is told each client's address by a header of the PROXY protocol, so that accounts match the
    client's host. The server must be set to take it from the proxy (MariaDB: proxy_protocol_networks); MySQL cannot."""
    listen: Endpoint = Endpoint("127.0.0.1:3307")
    """Where clients connect."""
    admin: Endpoint = Endpoint("127.0.0.1:9307")
    """Where metrics and health are served over HTTP."""
    listen_socket: Path | None = None
    """A unix socket on which clients may connect as well. They log in as over TCP, by password; libmysql shows it there
    without TLS, since nothing leaves the machine."""
    listen_socket_mode: int = 0o777
    """Who may connect to it. Everybody, as to mysqld's: who may log in is decided by the server."""
    tls: bool = True
    """Whether TLS is offered to clients. Without, default clients of caching_sha2_password accounts cannot log in."""
    tls_certificate: Path | None = None
    """PEM: our certificate, then those that lead to its authority. None: a self-signed one, kept under `data_dir`."""
    tls_key: Path | None = None
    """PEM: its key. None: it is in the same file."""
    backend_tls: BackendTls = "mirror"
    """Which connections to the server have TLS. `mirror`: those of clients that have it, where the server offers it.
    `always`: all; then a client that sends everything in clear satisfies an account's REQUIRE SSL. `never`: none."""
    backend_ca: Path | None = None
    """PEM: who signed the server's certificate, which is verified then, and its host name too, and TLS that `mirror`
    asks for is not done without. None: connections are encrypted, and nothing proves who is at the other end."""
    data_dir: Path = Path("ackstream-data")
    """Where the private server keeps its data, and the proxy its self-signed certificate."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    connections_max: int = Field(default=1_000, ge=1, le=100_000)
    """Client connections at once. Each has one connection to the server, whose own max_connections is often 151; beyond
    it the server itself says error 1040."""
    login_timeout_s: float = Field(default=10.0, gt=0)
    """Time for a client to log in, as long as MySQL's connect_timeout: a silent peer holds a connection no longer."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Time for the server to take a connection; after it the client is told."""
    withheld_bytes_max: int = Field(default=1 << 20, ge=1 << 12)
    """What a client may send ahead while a statement of ours runs; beyond it the proxy stops reading from it."""
    gathered_bytes_max: int = Field(default=64 << 20, ge=16 << 20)
    """What all clients together may have sent of statements of ours that are not carried out yet, and ahead of what
    runs; beyond it the longest incomplete statement is refused. One has 16 MB at most, and takes six times as much
    while it is carried out."""
    pipelined_max: int = Field(default=1_000, ge=1)
    """Commands that a client may have unanswered; beyond it the proxy stops reading. Drivers have one or two."""
    write_buffer_bytes: int = Field(default=256 << 10, ge=1 << 12)
    """What may wait for a client that reads slowly before its server, or its stream, is paused."""
    keepalive_idle_s: int = Field(default=60, ge=1)
    """A silent connection is probed after so long: middle boxes forget idle ones after a minute or more. There is no
    TCP_USER_TIMEOUT, since it ends connections to clients that are well and read nothing for a while."""
    abandoned_s: float = Field(default=0.5, ge=0)
    """What a vanished client asked for last may take so long; then it is killed. It need not be more: the server
    alone would notice after seconds, or only when it is done."""
    ping_interval_s: float = Field(default=60.0, gt=0)
    """A stream's backing connection is pinged as often, or the server would close it after its wait_timeout."""
    rights_max_age_s: float = Field(default=4.0, gt=0)
    """A running stream delivers nothing on privileges that its client has shown longer ago; it shows them again by two
    short statements on its own connection, every half of this while rows come, and never while none come."""
    drain_timeout_s: float = Field(default=4.0, gt=0)
    """Time for commands under way when the proxy is told to stop; a private server may take 5 s more to stop."""
    engine_connections: int = Field(default=8, ge=2, le=256)
    """Connections that the engine itself keeps to the server, over all queues."""
    catalog_interval_s: float = Field(default=10.0, gt=0)
    """How soon a message table that was made or altered behind the proxy's back is noticed."""

    binlog: Literal["auto", "off"] = "auto"
    """Whether what bypasses the proxy is seen in the server's binary log, where it can be read. It takes a process."""

    _password: str = PrivateAttr("")

    @field_validator("backend", mode="before")
    @classmethod
    def _backend(cls, value: object) -> object:
        return Backend(value) if isinstance(value, str) else value

    @field_validator("listen_socket_mode", mode="before")
    @classmethod
    def _mode(cls, value: object) -> object:
        """Octal digits; TOML has octal numbers of its own."""
        if isinstance(value, str) and (not re.fullmatch("[0-7]{3,4}", value)):
            raise ValueError(f"'{value}' is no file mode in octal (for instance 0770)")
        return int(value, 8) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError("tls_key needs tls_certificate beside it")
        if self.backend_ca is not None and self.backend_tls == "never":
            raise ValueError("backend_ca has no use where backend_tls is never")
        if self.backend is None and self.proxy_protocol:
            raise ValueError(
                "proxy_protocol needs backend beside it: the private server has clients of this machine alone"
            )
        if self.backend is None and self.backend_password_file is not None:
            raise ValueError("backend_password_file needs backend beside it")
        if self.backend is not None and self.backend_password_file is not None and self.backend.encoded_password:
            raise ValueError(
                "backend has a password already: take it out of the URL, or leave backend_password_file out"
            )
        if self.backend_password_file is not None:
            self._password = _password_of(self.backend_password_file)
        elif self.backend is not None:
            self._password = self.backend.password
        return self

    @property
    def backend_password(self) -> str:
        """The password of the engine's account, wherever it was given."""
        return self._password

    @field_validator("listen", "admin", mode="before")
    @classmethod
    def _endpoint(cls, value: object) -> object:
        return Endpoint.check(str(value))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` gives, in its order."""
        return (init_settings,)


def load(flags: Mapping[str, Any], config: Path | None) -> Settings:
    """The settings; flags win over the environment, the environment over the file. Raises BadSetting."""
    names = Settings.model_fields
    origins: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, value in (_from_file(config) if config else {}).items():
        values[name.replace("-", "_")] = value
        origins[name.replace("-", "_")] = f"{name} in {config}"
    for name in names:
        variable = f"{PREFIX}{name.upper()}"
        if variable in os.environ:
            values[name], origins[name] = os.environ[variable], variable
    for name, value in flags.items():
        if value is not None:
            values[name], origins[name] = value, "--" + name.replace("_", "-")
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:  # What is wrong lies between two of them.
            raise BadSetting(reason) from None
        name = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            meant = _nearest(name, names)
            raise BadSetting(f"{origins.get(name, name)}: there is no such setting{meant}") from None
        raise BadSetting(f"{origins.get(name, name)}: {reason[:1].lower()}{reason[1:]}") from None


def advice(settings: Settings, environment: Mapping[str, str]) -> list[str]:
    """What is probably not meant as it is, each in a line for the log; none of it keeps the program from running."""
    names = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in names | OF_OTHERS)
    lines = [f"{name} is ignored: there is no such setting{_nearest(name, names)}" for name in unknown]
    file = settings.backend_password_file
    if file is not None and is_exposed(file):
        lines.append(f"backend_password_file: others than its owner may read or change {file}: chmod 600 {file}")
    return lines


def _password_of(path: Path) -> str:
    try:
        return password_in(path)
    except ValueError as error:
        raise ValueError(f"backend_password_file: {error}") from None


def _nearest(name: str, names: Iterable[str]) -> str:
    """A question for the known name that is most like this one; nothing if none is."""
    by_tail = {known.removeprefix(PREFIX): known for known in names}
    found = difflib.get_close_matches(name.removeprefix(PREFIX), by_tail, n=1)
    return f"; did you mean {by_tail[found[0]]}?" if found else ""


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"--config {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"--config {path} is not TOML: {error}") from None
