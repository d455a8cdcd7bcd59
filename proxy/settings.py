"""Every setting of `ackstream serve`.

They are read from the command line, from `ACKSTREAM_…` in the environment, and from a TOML file, in
this order. They form one frozen object, which is validated once. Each limit has its reason beside
it.
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

from proxy.backend import Backend, backends_in, distinct, is_exposed, password_in
from proxy.login.relay import BackendTls

PREFIX = "ACKSTREAM_"
OF_OTHERS = frozenset({"ACKSTREAM_URL", "ACKSTREAM_PASSWORD", "ACKSTREAM_CACHE", "ACKSTREAM_SPARK_LOG"})
"""Variables that are read by the pipeline's programs or the tests."""


REPLACED = {
    "workers": "processes takes its place: so many whole proxies on one port",
    "listen_statements": "start a second proxy for clients that receive no messages, with streams = off",
}
"""Settings of earlier releases, and what to do."""

STATEMENT_BYTES_MIN = 16 << 20
"""The longest queue statement."""

ADMIN_TOKEN_MIN = 16
"""Characters. Nothing limits how often a token may be guessed."""


class BadSetting(Exception):
    """A setting is invalid. The text is one line with its name and the reason."""


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

    def at(self, port: int) -> Endpoint:
        """The endpoint of this host with another port."""
        return Endpoint(f"{self.rpartition(':')[0]}:{port}")

    @classmethod
    def check(cls, text: str) -> Endpoint:
        """The endpoint that `text` denotes. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) <= 65535):
            raise ValueError(f"'{text}' is not HOST:PORT (for instance 127.0.0.1:3307)")
        return cls(text)


class Settings(BaseSettings):
    """The settings of `ackstream serve`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, arbitrary_types_allowed=True)

    backend: tuple[Backend, ...] = ()
    """The backing server, or several of which one is the primary. None: a private one, with its
    data under `data_dir`."""
    backend_password_file: Path | None = None
    """The file with the password of the engine's account, in place of the URL: every user who may
    list processes can read a command line. One line end behind the password is not part of it."""
    backend_wait_s: float = Field(default=15.0, ge=0)
    """How long to wait at start for a server that accepts no connection: it may be starting as
    well. A longer wait is the task of the program that restarts the proxy."""
    proxy_protocol: bool = False
    """Whether the proxy sends the server each client's address in a header of the PROXY protocol,
    so that accounts match the client's host. The server must be configured to accept it (MariaDB:
    proxy_protocol_networks); MySQL cannot."""
    listen: Endpoint = Endpoint("127.0.0.1:3307")
    """Where clients connect."""
    admin: Endpoint = Endpoint("127.0.0.1:9307")
    """Where metrics, health and the page are served over HTTP. Elsewhere than on a loopback address
    this requires `admin_token_file` and `admin_tls`."""
    admin_token_file: Path | None = None
    """The file with a token, in one line, that requests to `admin` must show: as a bearer token, or
    as the password of any user. The probes need none."""
    admin_tls: bool = False
    """Whether `admin` is served over HTTPS, with the certificate of `tls_certificate` or the
    self-signed one."""
    admin_connections_max: int = Field(default=64, ge=4, le=10_000)
    """Connections of `admin`. The one that was silent longest makes room for the next. Prometheus, probes
    and some open pages have fewer; a stranger's leave file descriptors for clients."""
    admin_show_payload: bool = False
    """Whether the pages of `admin` show payloads and the conditions of streams. Who may read the
    page then reads messages with the rights of the engine's account."""
    listen_socket: Path | None = None
    """A unix socket on which clients may connect as well. They log in by password, as over TCP.
    libmysql sends the password there without TLS, because nothing leaves the machine."""
    listen_socket_mode: int = 0o777
    """The mode of that socket. All users may connect, as to mysqld's: the server decides who may
    log in."""
    tls: bool = True
    """Whether TLS is offered to clients. Without it, default clients of caching_sha2_password
    accounts cannot log in."""
    tls_certificate: Path | None = None
    """PEM: the proxy's certificate, then those up to its authority. None: a self-signed one, kept
    under `data_dir`."""
    tls_key: Path | None = None
    """PEM: the key of that certificate. None: it is in the same file."""
    backend_tls: BackendTls = "mirror"
    """Which backing connections have TLS. `mirror`: those of clients that have it, if the server
    offers it. `always`: all; a client without TLS then satisfies an account's REQUIRE SSL. `never`:
    none."""
    backend_ca: Path | None = None
    """PEM: the authority of the server's certificate. The certificate and its host name are then
    verified, and TLS is required where `mirror` would use it. None: connections are encrypted, but
    the server is not authenticated."""
    processes: int = Field(default=1, ge=1, le=32)
    """Proxies on the port of `listen`, each a process with an engine and an admin port of its own: those
    behind the first one have the ports behind that of `admin`. Every other setting is each one's own.
    Relaying takes about one core for 20,000 statements a second, so more than one help only where the
    machine has cores to spare. 32: the slots of a server's proxies."""
    streams: bool = True
    """Whether STREAM is possible. Without it, statements of other clients never wait while this proxy's
    queues drain, because it delivers nothing. It takes no slot among the proxies."""
    data_dir: Path = Path("ackstream-data")
    """The directory of the private server's data and of the self-signed certificate."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    connections_max: int = Field(default=1_000, ge=1, le=100_000)
    """Simultaneous client connections. Each has one connection to the server, whose own
    max_connections is often 151; beyond that the server refuses with error 1040."""
    login_timeout_s: float = Field(default=10.0, gt=0)
    """Time for a client to log in, the same as MySQL's connect_timeout. A silent peer holds a
    connection no longer."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Time for the server to accept a connection; after it the client gets an error."""
    withheld_bytes_max: int = Field(default=1 << 20, ge=1 << 12)
    """Bytes that a client may send ahead while a queue statement runs; beyond them the proxy stops
    reading from it."""
    statement_bytes_max: int = Field(default=64 << 20, ge=STATEMENT_BYTES_MIN)
    """Bytes of queue statements that are not carried out yet, and of what is sent ahead of running
    ones, for all clients together; beyond them the longest incomplete statement is refused. A
    statement has at most 16 MB, and takes six times as much while it is carried out."""
    pipelined_max: int = Field(default=1_000, ge=1)
    """Unanswered commands of one client; beyond them the proxy stops reading from it. Drivers have
    one or two."""
    write_buffer_bytes: int = Field(default=256 << 10, ge=1 << 12)
    """Bytes that may wait for a client that reads slowly before its server or its stream is
    paused."""
    keepalive_idle_s: int = Field(default=60, ge=1)
    """A silent connection is probed after this time: middle boxes drop idle ones after a minute or
    more. There is no TCP_USER_TIMEOUT, because it ends connections to healthy clients that read
    nothing for a while."""
    abandoned_s: float = Field(default=0.5, ge=0)
    """How long the last statement of a vanished client may run before it is killed. The server
    alone would notice after seconds, or when the statement is done."""
    ping_interval_s: float = Field(default=60.0, gt=0)
    """The longest interval of pings on a stream's backing connection, which the server would close
    after its wait_timeout. It is half of that timeout at most."""
    rights_max_age_s: float = Field(default=4.0, gt=0)
    """A stream delivers no rows if its client's privileges were proven longer ago. The proof takes one
    or two short statements on the backing connection, at half of this interval, while rows come. A stream
    that is idle runs none. A session that repeats its STREAM proves them at a quarter of it, one that
    acknowledges messages at this interval."""
    tracing: bool = False
    """Whether each delivery of a message with a trace context is a span of OpenTelemetry. It needs
    `ackstream[tracing]`; the exporter is configured by the variables of OpenTelemetry (OTEL_…)."""
    gather_acks: bool = True
    """Whether the engine carries out acknowledgements by ids outside transactions, and commits those of
    several clients together."""
    drain_work_s: float = Field(default=0.0, ge=0)
    """Time at a stop for clients to acknowledge the messages that they hold, before these are
    released and `drain_timeout_s` begins. With 0, a restart takes a message from a consumer that is
    at work on it."""
    reuse_port: bool = False
    """Whether another proxy may listen on the same addresses (SO_REUSEPORT), so that a new one can
    take over before this one stops. Off, because a second proxy on an address is usually a
    mistake."""
    drain_timeout_s: float = Field(default=4.0, gt=0)
    """Time for commands under way when the proxy stops; a private server may take 5 s more to
    stop."""
    engine_connections: int = Field(default=8, ge=2, le=256)
    """Connections of the engine to the server, for all queues."""
    catalog_interval_s: float = Field(default=10.0, gt=0)
    """How soon the engine notices a message table that was created or altered without the proxy."""

    binlog: Literal["auto", "off"] = "auto"
    """Whether changes that bypass the proxy are read from the server's binary log, if it can be
    read. It takes a process."""

    _password: str = PrivateAttr("")
    _admin_token: str = PrivateAttr("")

    @field_validator("backend", mode="before")
    @classmethod
    def _backend(cls, value: object) -> object:
        """From a list in one text, or from several such texts."""
        if value == ():  # The default.
            return value
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            return value
        return distinct([backend for text in texts for backend in backends_in(text)])

    @field_validator("listen_socket_mode", mode="before")
    @classmethod
    def _mode(cls, value: object) -> object:
        """A number from octal digits. TOML has octal numbers of its own."""
        if isinstance(value, str) and (not re.fullmatch("[0-7]{3,4}", value)):
            raise ValueError(f"'{value}' is no file mode in octal (for instance 0770)")
        return int(value, 8) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError("tls_key needs tls_certificate beside it")
        if self.backend_ca is not None and self.backend_tls == "never":
            raise ValueError("backend_ca has no use where backend_tls is never")
        if self.processes > 1 and self.listen_socket is not None:
            raise ValueError(
                "listen_socket and processes exclude each other: one process has the socket. Start a proxy of its own"
                " for it"
            )
        if self.admin.port + self.processes > 65536:
            raise ValueError(f"processes: there are no {self.processes} ports from that of admin on ({self.admin})")
        if not self.backend and self.proxy_protocol:
            raise ValueError(
                "proxy_protocol needs backend beside it: the private server has clients of this machine alone"
            )
        if not self.backend and self.backend_password_file is not None:
            raise ValueError("backend_password_file needs backend beside it")
        if self.backend_password_file is not None and any(backend.encoded_password for backend in self.backend):
            raise ValueError(
                "backend has a password already: take it out of the URL, or leave backend_password_file out"
            )
        if self.backend_password_file is not None:
            self._password = _line_of(self.backend_password_file, "backend_password_file")
        if self.admin_token_file is not None:
            self._admin_token = _line_of(self.admin_token_file, "admin_token_file")
            if len(self._admin_token) < ADMIN_TOKEN_MIN:
                raise ValueError(f"admin_token_file: the token has fewer than {ADMIN_TOKEN_MIN} characters")
        return self

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """Every address where the proxy listens over TCP, by its setting."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if isinstance(value, Endpoint)}

    @property
    def admin_token(self) -> str:
        """The token that requests to `admin` must show; empty without one."""
        return self._admin_token

    def password_of(self, backend: Backend) -> str:
        """The password of the engine's account on this server, wherever it was given."""
        return self._password or backend.password

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
        """Only the values that `load` gives."""
        return (init_settings,)


def load(flags: Mapping[str, Any], config: Path | None) -> Settings:
    """The settings. Flags override the environment, and the environment overrides the file. Raises
    BadSetting."""
    names = Settings.model_fields
    origins: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, value in (_from_file(config) if config else {}).items():
        values[name.replace("-", "_")] = value
        origins[name.replace("-", "_")] = f"{name} in {config}"
    for name in (*names, *REPLACED):
        variable = f"{PREFIX}{name.upper()}"
        if variable in os.environ:
            values[name], origins[name] = os.environ[variable], variable
    for name, value in flags.items():
        if value is not None:
            values[name], origins[name] = value, "--" + name.replace("_", "-")
    for name, instead in REPLACED.items():
        if name in values:
            raise BadSetting(f"{origins[name]}: there is no such setting any more; {instead}")
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:  # Two settings do not fit together.
            raise BadSetting(reason) from None
        name = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            meant = _nearest(name, names)
            raise BadSetting(f"{origins.get(name, name)}: there is no such setting{meant}") from None
        raise BadSetting(f"{origins.get(name, name)}: {reason[:1].lower()}{reason[1:]}") from None


def advice(settings: Settings, environment: Mapping[str, str]) -> list[str]:
    """Settings that are valid and probably not meant so: one line for the log each."""
    names = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in names | OF_OTHERS)
    lines = [f"{name} is ignored: there is no such setting{_nearest(name, names)}" for name in unknown]
    files = {
        "backend_password_file": settings.backend_password_file,
        "admin_token_file": settings.admin_token_file,
    }
    for name, file in files.items():
        if file is not None and is_exposed(file):
            lines.append(f"{name}: others than its owner may read or change {file}: chmod 600 {file}")
    return lines


def _line_of(path: Path, setting: str) -> str:
    """The secret in the file of a setting. Raises ValueError."""
    try:
        return password_in(path)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


def _nearest(name: str, names: Iterable[str]) -> str:
    """A question about the known name that is most similar to this one; empty if none is similar."""
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
