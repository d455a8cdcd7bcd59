"""The embedded server: made, started, stopped, killed, and never there twice or left behind."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from proxy.embedded import server as embedded
from proxy.embedded.server import Binary, EmbeddedServer, EmbeddedServerError, Flavour, find_server
from tests.support.servers import ServerName, binary_or_skip, connect, new_server
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[2]

STARTS_A_SERVER_AND_WAITS = """
import sys
from pathlib import Path
from proxy.embedded.server import Binary, EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), Binary.of_command(sys.argv[2:]))
server.start()
print(server.pid, flush=True)
server.wait()
"""


@pytest.fixture
def binary(server_name: ServerName) -> Binary:
    return binary_or_skip(server_name)


@pytest.fixture
def stopped(server_name: ServerName, binary: Binary, tmp_path: Path) -> Iterator[EmbeddedServer]:
    """Each server, made but not started."""
    server = new_server(server_name, tmp_path / server_name, durable=True)
    yield server
    server.stop(timeout_s=0)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server made but not started, for what does not depend on the flavour."""
    binary_or_skip("mariadb")
    server = new_server("mariadb", tmp_path / "one")
    yield server
    server.stop(timeout_s=0)


def query(server: EmbeddedServer, sql: str) -> list[tuple[object, ...]]:
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_empty_directory_becomes_a_server_for_local_clients(binary: Binary, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "new" / "data", binary) as server:
        assert query(server, "SELECT @@port, @@bind_address, @@log_bin, @@binlog_format") == [
            (server.port, "127.0.0.1", 1, "ROW")
        ]
        assert query(server, "SELECT VERSION(), USER()") == [(server.server_version, "root@localhost")]
        assert query(server, "SELECT COUNT(*) FROM mysql.user WHERE user = ''") == [(0,)]
        with pymysql.connect(unix_socket=str(server.socket_path), user="root"):
            pass
        assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700


def test_a_restart_keeps_data_and_port(stopped: EmbeddedServer) -> None:
    stopped.start()
    port = stopped.port
    query(stopped, "CREATE DATABASE kept")
    stopped.stop()
    stopped.start()
    assert stopped.port == port
    assert query(stopped, "SHOW DATABASES LIKE 'kept'") == [("kept",)]


def test_a_crash_loses_nothing_committed(stopped: EmbeddedServer) -> None:
    stopped.start()
    query(stopped, "CREATE DATABASE kept")
    query(stopped, "CREATE TABLE kept.t (n INT)")
    query(stopped, "INSERT INTO kept.t VALUES (1)")
    stopped.kill()
    stopped.start()
    assert query(stopped, "SELECT n FROM kept.t") == [(1,)]


def test_a_server_ends_with_the_program_that_started_it(stopped: EmbeddedServer, binary: Binary) -> None:
    argv = [sys.executable, "-c", STARTS_A_SERVER_AND_WAITS, str(stopped.data_dir)]
    with subprocess.Popen([*argv, *binary.command], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        assert is_alive(pid)
        program.send_signal(signal.SIGKILL)
    eventually(lambda: not is_alive(pid), what="the server's end")
    stopped.start()  # what was left behind is no obstacle


def test_a_left_over_socket_lock_of_another_process_is_no_obstacle(
    stopped: EmbeddedServer,
) -> None:
    stopped.start()
    stopped.kill()
    stopped.socket_path.with_name("mysqld.sock.lock").write_text("1\n")
    stopped.start()


def test_a_half_made_directory_is_made_anew(binary: Binary, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ibdata1").write_bytes(b"half")
    with EmbeddedServer(tmp_path, binary) as server:
        assert query(server, "SELECT 1") == [(1,)]


def test_a_starting_server_leaves_the_temporary_tables_of_others_alone(
    stopped: EmbeddedServer, server_name: ServerName, tmp_path: Path
) -> None:
    stopped.start()
    with connect(stopped) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE work")
        cursor.execute("CREATE TEMPORARY TABLE work.t (n INT) ENGINE=MyISAM")
        cursor.execute("SELECT @@tmpdir")
        ((tmpdir,),) = cursor.fetchall()
        files = set(Path(tmpdir).glob("#sql*"))
        with new_server(server_name, tmp_path / "other"):
            assert files
            assert files == set(Path(tmpdir).glob("#sql*"))
        cursor.execute("DROP TEMPORARY TABLE work.t")


def test_a_server_outlives_the_thread_that_started_it(one: EmbeddedServer) -> None:
    starter = threading.Thread(target=one.start)
    starter.start()
    starter.join()
    assert query(one, "SELECT 1") == [(1,)]
    assert not one.wait(timeout_s=0.1)


def test_the_end_of_a_server_can_be_waited_for(one: EmbeddedServer) -> None:
    one.start()
    os.kill(one.pid, signal.SIGKILL)
    assert one.wait(timeout_s=10)


def test_a_directory_serves_one_program_at_a_time(one: EmbeddedServer) -> None:
    one.start()
    with pytest.raises(EmbeddedServerError, match="in use by another running ackstream"):
        EmbeddedServer(one.data_dir, one.binary).start()
    assert query(one, "SELECT 1") == [(1,)]
    one.stop()
    with EmbeddedServer(one.data_dir, one.binary):
        pass


def test_a_directory_of_the_other_kind_of_server_is_refused(one: EmbeddedServer) -> None:
    (one.data_dir / "server.txt").write_text("mysql 9.7.4\n")
    with pytest.raises(EmbeddedServerError, match=r"made by mysql 9\.7\.4, and this is mariadb"):
        one.start()


def test_a_taken_port_is_left_to_its_owner(
    one: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one.start()
    guesses = iter([one.port, one.port, embedded._free_port()])
    monkeypatch.setattr(embedded, "_free_port", lambda: next(guesses))
    with new_server("mariadb", tmp_path / "other") as other:
        assert other.port != one.port
        assert query(other, "SELECT @@port") == [(other.port,)]


def test_a_long_path_gets_its_socket_elsewhere(one: EmbeddedServer, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100) / "data"
    long.parent.mkdir()
    one.data_dir.rename(long)
    with EmbeddedServer(long, one.binary) as server:
        assert len(os.fsencode(server.socket_path)) <= embedded.SOCKET_PATH_BYTES_MAX
        socket_dir = server.socket_path.parent
        assert socket_dir != long
    assert not socket_dir.exists()


def test_what_the_server_says_is_in_the_error(one: EmbeddedServer) -> None:
    server = EmbeddedServer(one.data_dir, one.binary, ["--no-such-option"])
    with pytest.raises(EmbeddedServerError, match=r"(?s)error\.log.*no-such-option"):
        server.start()
    one.start()  # the directory is free again


def test_a_root_with_a_password_is_told_apart_from_a_slow_start(one: EmbeddedServer) -> None:
    one.start()
    query(one, "ALTER USER root@localhost IDENTIFIED BY 'secret'")
    one.stop()
    with pytest.raises(EmbeddedServerError, match=r"root of the embedded server .* has a password"):
        one.start()


def test_a_machine_without_a_server_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded, "USUAL_PLACES", ())
    with pytest.raises(EmbeddedServerError, match=r"no mysqld or mariadbd.*--backend"):
        find_server()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("/usr/sbin/mysqld  Ver 8.0.44 for Linux on x86_64", ("mysql", (8, 0, 44))),
        ("mysqld  Ver 10.11.14-MariaDB-0+deb12u1 for debian-linux-gnu", ("mariadb", (10, 11, 14))),
        ("mysqld  Ver 11.8.3-MariaDB-log for Linux", ("mariadb", (11, 8, 3))),
    ],
)
def test_a_program_is_what_it_says_and_not_what_it_is_called(
    tmp_path: Path, said: str, expected: tuple[Flavour, tuple[int, ...]]
) -> None:
    program = fake_server(tmp_path, said)
    binary = Binary.of_command([str(program)])
    assert (binary.flavour, binary.version) == expected


def test_a_server_that_is_too_old_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_server(tmp_path, "mysqld  Ver 5.7.44 for Linux on x86_64")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    monkeypatch.setattr(embedded, "USUAL_PLACES", ())
    monkeypatch.setattr(embedded, "PROGRAMS", ("mysqld",))
    with pytest.raises(EmbeddedServerError, match=r"mysqld is mysql 5\.7\.44"):
        find_server()


def fake_server(directory: Path, version_line: str) -> Path:
    program = directory / "mysqld"
    program.write_text(f"#!/bin/sh\necho '{version_line}'\n")
    program.chmod(0o755)
    return program
