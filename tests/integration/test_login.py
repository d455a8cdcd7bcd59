"""Logging in: as on a direct connection, whichever of the two legs has TLS, and never with less security."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import mysql.connector
import pymysql
import pytest
from cryptography import x509
from pymysql.cursors import SSCursor

from proxy.embedded.server import EmbeddedServer, Flavour
from tests.support import insides, logins
from tests.support.certificates import certificates, make_certificates
from tests.support.logins import CLIENTS, Account, account, change_user, current_user, forget_passwords
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import FLAVOUR_OF, MARIADBS, SERVERS, ServerName, ServerPool, connect, running_server
from tests.support.waiting import eventually, settled

PLUGINS = {
    "mysql": ["caching_sha2_password", "sha256_password"],
    "mariadb": ["mysql_native_password"],
}
LOGINS = [
    *(("mysql", plugin, client) for plugin in PLUGINS["mysql"] for client in CLIENTS),
    *(
        (name, "mysql_native_password", client) for name in MARIADBS for client in CLIENTS if client != "mysql"
    ),  # It has no such plugin.
    *((name, "ed25519", "mariadb") for name in MARIADBS),  # Nor have the others this one.
]
ONE_FLAVOUR = pytest.mark.parametrize("server_name", MARIADBS, indirect=True)
"""For what is the proxy's business alone."""
EACH_PLUGIN = [(name, plugin) for name in SERVERS for plugin in PLUGINS[FLAVOUR_OF[name]]]
LEGS = {
    "TLS and TLS": (True, "mirror"),
    "plain and plain": (False, "mirror"),
    "TLS and plain": (True, "never"),
    "plain and TLS": (False, "always"),
}
INCAPABLE = {("connector", "caching_sha2_password"), ("connector", "sha256_password")}
"""It shows its password in clear or not at all, so it cannot log in without TLS, and a server refuses the former."""


class Proxies:
    """A proxy of each `backend_tls` in front of each server, started when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.stack = contextlib.ExitStack()
        self._folder = folder
        self._running: dict[tuple[int, str], RunningProxy] = {}

    def get(self, server: EmbeddedServer, mode: str) -> RunningProxy:
        key = server.port, mode
        if key not in self._running:
            log = self._folder / f"{server.port}-{mode}.log"
            self._running[key] = self.stack.enter_context(running_proxy(server, log, ["--backend-tls", mode]))
        return self._running[key]


@pytest.fixture(scope="module")
def all_proxies(server_pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxies]:
    """Each looks after all the queues of its server: so they are gone before other tests begin."""
    proxies = Proxies(tmp_path_factory.mktemp("tls"))
    with proxies.stack:
        yield proxies


@pytest.fixture
def through(server: EmbeddedServer, all_proxies: Proxies) -> Callable[[str], RunningProxy]:
    """The proxy in front of the server whose `backend_tls` is this."""
    return lambda mode: all_proxies.get(server, mode)


@contextlib.contextmanager
def accounts(server: EmbeddedServer, plugin: str) -> Iterator[tuple[Account, Account]]:
    """One with a password and one without."""
    if plugin == "ed25519":
        with connect(server) as root:
            try:
                run(root, "INSTALL SONAME 'auth_ed25519'")
            except pymysql.MySQLError as error:
                if error.args[0] not in {1968, 1125}:  # It is there already.
                    pytest.skip("this MariaDB comes without ed25519 (Debian: mariadb-server has it)")
    with account(server, plugin) as one, account(server, plugin, "") as other:
        yield one, other


@pytest.mark.parametrize("legs", LEGS)
@pytest.mark.parametrize(("server_name", "plugin", "client"), LOGINS, indirect=["server_name"])
def test_a_login_ends_as_on_a_direct_connection(
    server: EmbeddedServer, through, plugin: str, client: str, legs: str
) -> None:
    tls, mode = LEGS[legs]
    log_in = CLIENTS[client]
    with accounts(server, plugin) as (some, none):
        attempts = [(some.user, "secret"), (some.user, "wrong"), (some.user, ""), (none.user, "")]
        outcomes: list[list[logins.Outcome]] = []
        for place in (server, through(mode)):
            outcomes.append([])
            for user, password in attempts:
                forget_passwords(server)
                outcomes[-1].append(log_in(place, user, password, tls))
        direct, relayed = outcomes
        assert relayed == direct
        if tls or (client, plugin) not in INCAPABLE:
            assert relayed[:3] == [some.user, 1045, 1045]
            assert log_in(through(mode), some.user, "secret", tls) == some.user  # By its digest, where there is one.
            assert log_in(through(mode), some.user, "secret", tls) == some.user
    assert "secret" not in through(mode).output


@pytest.mark.parametrize("server_name", ["mysql"], indirect=True)
def test_the_command_line_with_its_defaults_never_fails_to_begin_tls(through) -> None:
    proxy = through("mirror")
    with account(proxy.server, "caching_sha2_password", require="SSL") as user:
        options = (f"-h{proxy.host}", f"-P{proxy.port}", f"-u{user.user}", "-psecret")
        assert [logins.command_line("mysql", *options) for _ in range(20)] == [user.user] * 20


@pytest.mark.parametrize("legs", LEGS)
def test_an_account_that_requires_tls_has_it_from_end_to_end_unless_the_operator_says_otherwise(
    server: EmbeddedServer, through, flavour: Flavour, legs: str
) -> None:
    tls, mode = LEGS[legs]
    with account(server, PLUGINS[flavour][0], require="SSL") as user:
        outcome = logins.by_pymysql(through(mode), user.user, "secret", tls)
    assert outcome == (user.user if legs in {"TLS and TLS", "plain and TLS"} else 1045)


def test_an_account_that_requires_a_clients_certificate_is_refused_by_the_server(
    server: EmbeddedServer, through, flavour: Flavour
) -> None:
    with account(server, PLUGINS[flavour][0], require="X509") as user:
        for mode in ("mirror", "always", "never"):
            assert logins.by_pymysql(through(mode), user.user, "secret", tls=True) == 1045


@pytest.mark.parametrize("legs", LEGS)
def test_an_unknown_database_is_the_servers_own_error_on_any_legs(through, legs: str) -> None:
    tls, mode = LEGS[legs]
    with pytest.raises(pymysql.err.OperationalError) as error:
        through(mode).connect(database="no_such_database", ssl_disabled=not tls)
    assert error.value.args[0] == 1049


# -- COM_CHANGE_USER


@pytest.mark.parametrize("legs", LEGS)
@pytest.mark.parametrize(("server_name", "plugin"), EACH_PLUGIN, indirect=["server_name"])
def test_a_client_can_become_another_user(
    server: EmbeddedServer, through, plugin: str, legs: str, database: str
) -> None:
    tls, mode = LEGS[legs]
    with account(server, plugin) as other, through(mode).connect(ssl_disabled=not tls, database=database) as client:
        create_queue(client, "m")
        with connect(server) as root:
            run(root, f"GRANT SELECT, INSERT, UPDATE ON {database}.* TO {other.user}@localhost")
        forget_passwords(server)
        for _ in range(2):  # The second time by its digest.
            change_user(client, other.user, "secret", plugin)
            assert current_user(client) == other.user
        run(client, f"USE {database}")
        enqueue(client, "m", ["a"])
        assert rows(client, "STREAM id, payload FROM m NOWAIT") == [(1, "a")]
        forget_passwords(server)
        with pytest.raises(pymysql.err.OperationalError) as error:
            change_user(client, other.user, "wrong", plugin)
        assert error.value.args[0] == 1045
    assert "secret" not in through(mode).output


@pytest.mark.parametrize("legs", ["plain and plain", "TLS and plain"])
@pytest.mark.parametrize(("server_name", "plugin"), [("mysql", "caching_sha2_password")], indirect=["server_name"])
def test_a_change_of_user_may_be_long_and_come_in_parts(
    server: EmbeddedServer, through, plugin: str, legs: str
) -> None:
    tls, mode = LEGS[legs]
    proxy = through(mode)
    with (
        account(server, plugin) as other,
        proxy.connect(ssl_disabled=not tls) as client,
        proxy.connect() as bystander,
    ):

        def write_in_parts(data: bytes) -> None:
            insides.socket_of(client).sendall(data[:5000])
            assert rows(bystander, "SELECT 1") == [(1,)]  # So the proxy has seen the first part by itself.
            insides.socket_of(client).sendall(data[5000:])

        insides.write_by(client, write_in_parts)
        change_user(client, other.user, "secret", plugin, attribute="x" * 20_000)
        assert current_user(client) == other.user


@pytest.mark.parametrize("legs", ["TLS and TLS", "TLS and plain"])
@pytest.mark.parametrize(("server_name", "plugin"), EACH_PLUGIN, indirect=["server_name"])
def test_a_real_driver_can_become_another_user(server: EmbeddedServer, through, plugin: str, legs: str) -> None:
    proxy = through(LEGS[legs][1])
    with account(server, plugin) as other:
        client = mysql.connector.connect(host=proxy.host, port=proxy.port, user="root", use_pure=True)
        with contextlib.closing(client), contextlib.closing(client.cursor()) as cursor:
            forget_passwords(server)
            client.cmd_change_user(other.user, "secret", "")
            cursor.execute("SELECT CURRENT_USER()")
            assert logins.named(cursor.fetchone()) == other.user


# -- What goes on inside TLS


@pytest.mark.parametrize("legs", LEGS)
def test_a_message_is_streamed_and_acknowledged_on_any_legs(through, database: str, consume, legs: str) -> None:
    tls, mode = LEGS[legs]
    proxy = through(mode)
    with proxy.connect(database=database, ssl_disabled=not tls) as client:
        assert bool(client._secure) == tls
        create_queue(client, "m")
        consumer = consume(proxy.connect(database=database, ssl_disabled=not tls), "STREAM * FROM m")
        enqueue(client, "m", ["a", "b"])
        eventually(lambda: consumer.received == [(1, "a"), (2, "b")])
        assert run(client, "ACK FROM m WHERE id = 1") == 1


@pytest.mark.parametrize("legs", ["TLS and TLS", "TLS and plain"])
def test_a_large_statement_and_its_large_answer_go_through_tls(server: EmbeddedServer, through, legs: str) -> None:
    _, mode = LEGS[legs]
    with connect(server) as root:
        run(root, f"SET GLOBAL max_allowed_packet = {64 << 20}")
    text = "".join(map(str, range(2_600_000)))
    with through(mode).connect(ssl_disabled=False, max_allowed_packet=64 << 20) as client:
        assert len(text) > 1 << 24
        assert rows(client, "SELECT %s", [text]) == [(text,)]


@pytest.mark.parametrize("legs", ["TLS and TLS", "TLS and plain", "plain and TLS"])
def test_a_client_that_reads_slowly_costs_no_memory_inside_tls(through, database: str, legs: str) -> None:
    tls, mode = LEGS[legs]
    proxy = through(mode)
    with proxy.connect(database=database, ssl_disabled=not tls) as client, SSCursor(client) as cursor:
        before = proxy.memory_kb
        cursor.execute(
            "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
            " SELECT i, REPEAT('x', 100000) FROM n"
        )
        assert cursor.fetchone() is not None
        assert settled(lambda: proxy.memory_kb) - before < 16 << 10
        assert sum(len(row[1]) for row in cursor) == 999 * 100_000


@pytest.mark.parametrize("legs", LEGS)
def test_a_server_that_dies_ends_the_clients_connection_on_any_legs(server: EmbeddedServer, through, legs: str) -> None:
    tls, mode = LEGS[legs]
    with through(mode).connect(ssl_disabled=not tls) as client, connect(server) as root:
        run(root, f"KILL {client.thread_id()}")
        with pytest.raises(pymysql.err.OperationalError):
            eventually(lambda: rows(client, "SELECT 1") and None)


def test_a_client_that_vanishes_inside_tls_frees_its_backing_connection(server: EmbeddedServer, through) -> None:
    client = through("mirror").connect(ssl_disabled=False)
    thread = client.thread_id()
    insides.vanish(client)
    with connect(server) as root:
        eventually(lambda: not rows(root, f"SELECT id FROM information_schema.processlist WHERE id = {thread}"))


# -- What is offered


def request_tls(sock: socket.socket) -> bytes:
    """Read the greeting; the packet that asks for TLS."""
    header = sock.recv(4, socket.MSG_WAITALL)
    sock.recv(int.from_bytes(header[:3], "little"), socket.MSG_WAITALL)
    return b"\x20\0\0\x01" + (0x000AA205 | 0x800).to_bytes(4, "little") + (1 << 24).to_bytes(4, "little") + bytes(24)


@ONE_FLAVOUR
@pytest.mark.parametrize("cut", [1, 4, 35, 36, 37, 100, 10_000])
def test_the_clients_hello_may_come_in_one_segment_with_its_request(through, cut: int) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    engine = context.wrap_bio(received, to_send)
    with socket.create_connection((through("mirror").host, through("mirror").port), timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with pytest.raises(ssl.SSLWantReadError):
            engine.do_handshake()
        begin = request_tls(sock) + to_send.read()
        sock.sendall(begin[:cut])
        sock.sendall(begin[cut:])
        while engine.version() is None or engine.cipher() is None:
            received.write(sock.recv(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                engine.do_handshake()
    assert engine.version() in {"TLSv1.2", "TLSv1.3"}


def test_plain_packets_behind_the_request_for_tls_are_never_obeyed(through) -> None:
    proxy = through("mirror")
    with socket.create_connection((proxy.host, proxy.port), timeout=10) as sock:
        request = request_tls(sock)
        login = request[4:] + b"root\0\0"
        injected = len(login).to_bytes(3, "little") + b"\x02" + login + b"\x09\0\0\0\x03SELECT 1"
        sock.sendall(request + injected)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := sock.recv(65536):
                answer += chunk
    assert answer[:1] in {b"", b"\x15"}  # A TLS alert, or nothing; no packet.


@ONE_FLAVOUR
def test_where_no_tls_is_offered_none_is_begun(server: EmbeddedServer, tmp_path: Path) -> None:
    with running_proxy(server, tmp_path / "log", ["--tls", "off"]) as proxy:
        assert not (tmp_path / "data").exists()
        with proxy.connect(ssl_disabled=False) as client:
            assert not client._secure
        with socket.create_connection((proxy.host, proxy.port), timeout=10) as sock:
            sock.sendall(request_tls(sock))
            answer = sock.recv(65536)
        assert answer[3:7] == b"\x02\xff" + (1043).to_bytes(2, "little")


def served(proxy: RunningProxy, authority: Path | None = None, ciphers: str = "") -> x509.Certificate:
    """The certificate that the proxy shows; with `ciphers`, to a client of TLS 1.2 that knows these alone."""
    context = ssl.create_default_context(cafile=authority)
    if ciphers:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((proxy.host, proxy.port), timeout=10) as sock:
        sock.sendall(request_tls(sock))
        with context.wrap_socket(sock, server_hostname=proxy.host) as secured:
            certificate = secured.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate)


@ONE_FLAVOUR
def test_a_self_signed_certificate_is_made_at_first_and_used_again(server: EmbeddedServer, tmp_path: Path) -> None:
    shown = []
    for number in range(2):
        with running_proxy(server, tmp_path / f"{number}.log") as proxy:
            shown.append(served(proxy))
    assert shown[0] == shown[1]
    assert stat.S_IMODE((tmp_path / "data" / "tls.pem").stat().st_mode) == 0o600


@ONE_FLAVOUR
def test_clients_that_know_rsa_alone_need_a_certificate_with_such_a_key(server: EmbeddedServer, tmp_path: Path) -> None:
    with running_proxy(server, tmp_path / "log") as proxy, pytest.raises(ssl.SSLError, match=r"(?i)handshake.failure"):
        served(proxy, ciphers="ECDHE-RSA-AES128-GCM-SHA256")
    own = make_certificates(tmp_path / "own", rsa_key=True)
    options = ["--tls-certificate", str(own.certificate), "--tls-key", str(own.key)]
    with running_proxy(server, tmp_path / "other.log", options) as proxy:
        served(proxy, own.ca, "ECDHE-RSA-AES128-GCM-SHA256")


@ONE_FLAVOUR
def test_a_certificate_of_ones_own_is_shown_and_read_again_on_sighup(server: EmbeddedServer, tmp_path: Path) -> None:
    own = make_certificates(tmp_path / "own")
    options = ["--tls-certificate", str(own.certificate), "--tls-key", str(own.key)]
    with running_proxy(server, tmp_path / "log", options) as proxy:
        old = served(proxy, own.ca)
        with proxy.connect(ssl_ca=str(own.ca), ssl_verify_identity=True, ssl_disabled=False) as client:
            assert client._secure
            own.certificate.write_text("half written")
            proxy.send(signal.SIGHUP)
            eventually(lambda: "the certificate stays as it was" in proxy.output)
            assert served(proxy, own.ca) == old
            make_certificates(tmp_path / "own")
            proxy.send(signal.SIGHUP)
            eventually(lambda: "the certificate was read again" in proxy.output)
            assert served(proxy, own.ca) != old
            assert rows(client, "SELECT 1") == [(1,)]


# -- Who the server is


def test_the_engine_has_tls_to_a_server_that_its_authority_vouches_for(
    server: EmbeddedServer, flavour: Flavour, tmp_path: Path
) -> None:
    options = ["--backend-tls", "always", "--backend-ca", str(certificates().ca)]
    with account(server, PLUGINS[flavour][0], require="SSL") as engine:
        name = f"{engine.user}:secret"
        with running_proxy(server, tmp_path / "log", options, name) as proxy, proxy.connect() as client:
            assert rows(client, "SHOW STATUS LIKE 'Ssl_version'")[0][1].startswith("TLS")
        with pytest.raises(AssertionError, match="Access denied"):
            RunningProxy(server, tmp_path / "log", ["--backend-tls", "never"], name).start()


@ONE_FLAVOUR
def test_a_server_that_nobody_vouches_for_is_not_connected_to(server: EmbeddedServer, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other").ca
    with pytest.raises(AssertionError, match="certificate verify failed"):
        RunningProxy(server, tmp_path / "log", ["--backend-ca", str(other)]).start()


def test_a_client_is_told_that_nobody_vouches_for_the_server(
    server_name: ServerName, flavour: Flavour, tmp_path: Path
) -> None:
    own = make_certificates(tmp_path / "own")
    options = [f"--ssl-ca={own.ca}", f"--ssl-cert={own.certificate}", f"--ssl-key={own.key}"]
    with (
        running_server(server_name, options=options) as server,
        running_proxy(server, tmp_path / "log", ["--backend-ca", str(own.ca)]) as proxy,
    ):
        proxy.connect(ssl_disabled=False).close()
        make_certificates(tmp_path / "own")
        with connect(server) as root:
            run(root, "ALTER INSTANCE RELOAD TLS" if flavour == "mysql" else "FLUSH SSL")
        with pytest.raises(pymysql.err.OperationalError, match="no TLS connection to the backing server") as error:
            proxy.connect(ssl_disabled=False)
        assert error.value.args[0] == 1105


# -- A unix socket


@pytest.mark.parametrize("mode", ["mirror", "always"])
def test_clients_on_a_unix_socket_log_in_by_password(
    server: EmbeddedServer, flavour: Flavour, tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "sock"
    options = ["--listen-socket", str(path), "--backend-tls", mode]
    with running_proxy(server, tmp_path / "log", options) as proxy:
        assert f" socket={path}\n" in proxy.output
        for plugin in PLUGINS[flavour]:
            with account(server, plugin) as user:
                clients: list[Flavour] = ["mysql", "mariadb"] if flavour == "mysql" else ["mariadb"]
                for client in clients:
                    for password, outcome in (("secret", user.user), ("wrong", 1045)):
                        forget_passwords(server)
                        seen = logins.command_line(client, f"-S{path}", f"-u{user.user}", logins.shown(password))
                        assert seen == outcome
                forget_passwords(server)
                with proxy.connect(unix_socket=str(path), user=user.user, password="secret") as driver:
                    assert current_user(driver) == user.user
        assert "secret" not in proxy.output
        assert proxy.terminate() == 0
    assert not path.exists()


def test_a_root_without_a_password_on_the_servers_own_socket_gains_nothing(
    server: EmbeddedServer, flavour: Flavour, tmp_path: Path
) -> None:
    plugin = {"mysql": "auth_socket", "mariadb": "unix_socket"}[flavour]
    path = tmp_path / "sock"
    with connect(server) as root:
        if flavour == "mysql":
            with contextlib.suppress(pymysql.MySQLError):
                run(root, "INSTALL PLUGIN auth_socket SONAME 'auth_socket.so'")
        try:
            run(root, f"CREATE USER nobody@localhost IDENTIFIED {'WITH' if flavour == 'mysql' else 'VIA'} {plugin}")
        except pymysql.MySQLError:
            pytest.skip(f"this server comes without {plugin}")
        try:
            with (
                running_proxy(server, tmp_path / "log", ["--listen-socket", str(path)]) as proxy,
                pytest.raises(pymysql.err.OperationalError) as error,
            ):
                proxy.connect(unix_socket=str(path), user="nobody")
            assert error.value.args[0] in {1045, 1698}
        finally:
            run(root, "DROP USER nobody@localhost")


@ONE_FLAVOUR
def test_a_socket_that_a_killed_proxy_left_is_taken_over_and_one_in_use_is_not(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    path = tmp_path / "sock"
    options = ["--listen-socket", str(path)]
    killed = RunningProxy(server, tmp_path / "killed.log", options)
    killed.start()
    killed.kill()
    assert path.is_socket()
    with running_proxy(server, tmp_path / "log", options) as proxy:
        second = RunningProxy(server, tmp_path / "second.log", options)
        with pytest.raises(AssertionError, match=f"--listen-socket {path}: Address already in use"):
            second.start()
        with proxy.connect(unix_socket=str(path)) as client:
            assert rows(client, "SELECT 1") == [(1,)]


@ONE_FLAVOUR
def test_the_mode_of_the_socket_says_who_may_connect(server: EmbeddedServer, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "sock"
    monkeypatch.setenv("ACKSTREAM_LISTEN_SOCKET_MODE", "0700")
    with running_proxy(server, tmp_path / "log", ["--listen-socket", str(path)]):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@ONE_FLAVOUR
def test_a_file_that_is_no_socket_is_left_alone(server: EmbeddedServer, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(AssertionError, match="there is a file that is no socket"):
        RunningProxy(server, tmp_path / "log", ["--listen-socket", str(path)]).start()
    assert path.read_text() == "data"
