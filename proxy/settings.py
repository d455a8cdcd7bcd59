"""Every setting of `ackstream serve`.

They come from the command line, from `ACKSTREAM_…` in the environment, and from a TOML file, in that order. One
frozen object, checked once. Each limit has its reason beside it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from proxy.login import BackendTls


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


class Backend:
    """The backing server and the engine's own account on it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "mysql" or not parts.hostname or not parts.username:
            raise ValueError("it takes the form mysql://USER:PASSWORD@HOST:PORT")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError("nothing can follow HOST:PORT: a database is chosen by each client")
        self.host = parts.hostname
        self.port = parts.port or 3306
        self.user = unquote(parts.username)
        self.password = unquote(parts.password or "")

    def __repr__(self) -> str:
        return f"mysql://{self.user}:…@{self.host}:{self.port}"


class Settings(BaseSettings):
    """The settings of `ackstream serve`."""

    model_config = SettingsConfigDict(
        env_prefix="ACKSTREAM_", extra="forbid", frozen=True, arbitrary_types_allowed=True
    )

    backend: Backend | None = None
    """The server to stand in front of. None: a private one, its data under `data_dir`."""
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
    drain_timeout_s: float = Field(default=4.0, gt=0)
    """Time for commands under way when the proxy is told to stop; a private server may take 5 s more to stop."""
    engine_connections: int = Field(default=8, ge=2, le=256)
    """Connections that the engine itself keeps to the server, over all queues."""
    catalog_interval_s: float = Field(default=10.0, gt=0)
    """How soon a message table that was made or altered behind the proxy's back is noticed."""

    binlog: Literal["auto", "off"] = "auto"
    """Whether what bypasses the proxy is seen in the server's binary log, where it can be read. It takes a process."""

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
        return self

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
        variable = f"ACKSTREAM_{name.upper()}"
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
            raise BadSetting(f"{origins.get(name, name)}: there is no such setting") from None
        raise BadSetting(f"{origins.get(name, name)}: {reason[:1].lower()}{reason[1:]}") from None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"--config {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"--config {path} is not TOML: {error}") from None
