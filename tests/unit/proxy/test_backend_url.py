"""The server as an operator names it, and its password: what is taken, and what is said of the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proxy.backend import ENCODED, PASSWORD_BYTES_MAX, Backend, is_exposed, password_in
from proxy.settings import BadSetting, Settings, advice, load


def test_a_url_has_a_host_a_port_and_the_engines_account() -> None:
    backend = Backend("mysql://us%40er:p%40ss%2F%23@db.example:3310")
    assert (backend.host, backend.port, backend.user, backend.password) == ("db.example", 3310, "us@er", "p@ss/#")
    assert "p@ss" not in repr(backend)


@pytest.mark.parametrize(
    ("url", "host", "port", "password"),
    [
        ("mysql://u@h", "h", 3306, ""),
        ("mysql://u:@h:", "h", 3306, ""),
        ("mysql://u:a@b:c@h", "h", 3306, "a@b:c"),
        ("mysql://u:p@[::1]:1", "::1", 1, "p"),
        ("mysql://u:p@[::1]/", "::1", 3306, "p"),
    ],
)
def test_parts_that_are_left_out_have_defaults(url: str, host: str, port: int, password: str) -> None:
    backend = Backend(url)
    assert (backend.host, backend.port, backend.password) == (host, port, password)


@pytest.mark.parametrize("password", ["a#b", "a/b", "a?b", "a@b/c", "12#b", "a%b", "a%zz", "a[b", "a]b", "a\u2100b"])
def test_a_password_that_breaks_its_url_gets_a_hint_and_is_not_shown(password: str) -> None:
    with pytest.raises(ValueError, match="the password") as refused:
        Backend(f"mysql://root:{password}@db.example:3306")
    assert ENCODED in str(refused.value)
    assert password not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("postgres://u@h", "it takes the form mysql://"),
        ("mysql://h:3306", "it takes the form mysql://"),
        ("mysql://u:hush@h/shop", "a database is chosen by each client"),
        ("mysql://u:hush@h?ssl=1", "nothing can follow HOST:PORT"),
        ("mysql://u:hush@h:port", "PORT is a number between 1 and 65535"),
        ("mysql://u:hush@h:0", "PORT is a number between 1 and 65535"),
        ("mysql://u:hush@h:65536", "PORT is a number between 1 and 65535"),
    ],
)
def test_what_is_no_such_url_is_refused_with_its_reason(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refused:
        Backend(url)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("held", "password"),
    [(b"secret", "secret"), (b"secret\n", "secret"), (b"secret\r\n", "secret"), (b" a#/?@%: \n", " a#/?@%: ")],
)
def test_a_file_holds_the_password_as_it_is_but_for_one_line_end(tmp_path: Path, held: bytes, password: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(held)
    assert password_in(file) == password


@pytest.mark.parametrize(
    ("held", "complaint"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"hush\n\n", "has several lines"),
        (b"user=a\nhush\n", "has several lines"),
        (b"hush\xff", "is not UTF-8"),
        (b"hush" * PASSWORD_BYTES_MAX, f"more than {PASSWORD_BYTES_MAX} bytes"),
    ],
)
def test_a_file_that_holds_something_else_is_refused_without_being_shown(
    tmp_path: Path, held: bytes, complaint: str
) -> None:
    file = tmp_path / "password"
    file.write_bytes(held)
    with pytest.raises(BadSetting, match=complaint) as refused:
        load({"backend": "mysql://u@h", "backend_password_file": str(file)}, None)
    assert str(refused.value).startswith(f"backend_password_file: {file} ")
    assert "hush" not in str(refused.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(BadSetting, match="backend_password_file: /nowhere/password cannot be read: No such file"):
        load({"backend": "mysql://u@h", "backend_password_file": "/nowhere/password"}, None)


def test_the_password_is_read_once_so_that_a_pipe_will_do() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"secret\n")
    os.close(writer)
    settings = load({"backend": "mysql://u@h", "backend_password_file": f"/dev/fd/{reader}"}, None)
    os.close(reader)
    assert settings.password_of(settings.backend[0]) == "secret"
    assert "secret" not in repr(settings)


def test_the_url_or_the_file_has_the_password_and_not_both(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret")
    with pytest.raises(BadSetting, match="backend has a password already"):
        load({"backend": "mysql://u:p@h", "backend_password_file": str(file)}, None)
    with pytest.raises(BadSetting, match="backend_password_file needs backend"):
        load({"backend_password_file": str(file)}, None)
    settings = load({"backend": "mysql://u:p@h"}, None)
    assert settings.password_of(settings.backend[0]) == "p"


def test_the_proxy_protocol_is_for_a_server_that_was_named() -> None:
    with pytest.raises(BadSetting, match="proxy_protocol needs backend"):
        load({"proxy_protocol": "on"}, None)


@pytest.mark.parametrize(("mode", "exposed"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_a_password_file_that_others_can_read_is_warned_of(tmp_path: Path, mode: int, *, exposed: bool) -> None:
    file = tmp_path / "password"
    file.write_text("secret")
    file.chmod(mode)
    assert is_exposed(file) is exposed
    lines = advice(load({"backend": "mysql://u@h", "backend_password_file": str(file)}, None), {})
    assert [f"chmod 600 {file}" in line for line in lines] == [True] * exposed


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("ACKSTREAM_LISTN", "; did you mean ACKSTREAM_LISTEN?"),
        ("ACKSTREAM_BACKEND_PASSWORD", "; did you mean ACKSTREAM_BACKEND_PASSWORD_FILE?"),
        ("ACKSTREAM_TLS_CERT", "; did you mean ACKSTREAM_TLS_CERTIFICATE?"),
        ("ACKSTREAM_SERVICE_HOST", ""),
    ],
)
def test_a_variable_of_no_setting_is_named_with_the_nearest_that_is_one(variable: str, said: str) -> None:
    environment = {"PATH": "/bin", "ACKSTREAM_LISTEN": "h:1", "ACKSTREAM_PASSWORD": "the pipeline's", variable: "x"}
    assert advice(Settings(), environment) == [f"{variable} is ignored: there is no such setting{said}"]


@pytest.mark.parametrize(("key", "said"), [("conections-max", "; did you mean connections_max?"), ("xyzzy", "")])
def test_a_key_of_no_setting_is_refused_with_the_nearest_that_is_one(tmp_path: Path, key: str, said: str) -> None:
    file = tmp_path / "ackstream.toml"
    file.write_text(f"{key} = 1\n")
    with pytest.raises(BadSetting) as refused:
        load({}, file)
    assert str(refused.value) == f"{key} in {file}: there is no such setting{said}"


def named(backend: object) -> list[str]:
    return [repr(server) for server in load({"backend": backend}, None).backend]


def test_several_servers_are_given_by_several_urls_or_by_hosts_behind_one() -> None:
    both = ["mysql://u:…@a:3307", "mysql://u:…@b:3306"]
    assert named(["mysql://u:p@a:3307", "mysql://u:p@b"]) == both
    assert named("mysql://u:p@a:3307,b") == both
    assert named("mysql://u:p@a:3307, mysql://u:p@b:3306") == both
    assert named(("mysql://u@[::1]:3307,c", "mysql://v@d")) == [
        "mysql://u:…@::1:3307",
        "mysql://u:…@c:3306",
        "mysql://v:…@d:3306",
    ]


def test_each_server_has_the_account_of_its_url_and_a_password_may_have_commas() -> None:
    settings = load({"backend": "mysql://u:p,q@a,b,mysql://v:r@c"}, None)
    accounts = [(server.host, server.user, settings.password_of(server)) for server in settings.backend]
    assert accounts == [("a", "u", "p,q"), ("b", "u", "p,q"), ("c", "v", "r")]


@pytest.mark.parametrize("backend", ["mysql://u:p@a,", "mysql://u:p@a,,b", "mysql://u@a,mysql://u@a:3306", []])
def test_a_list_with_a_gap_or_with_a_server_twice_is_refused_and_shows_no_password(backend: object) -> None:
    with pytest.raises(BadSetting) as refused:
        load({"backend": backend}, None)
    assert ":p@" not in str(refused.value)
