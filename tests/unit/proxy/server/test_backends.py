"""A name with several addresses stands for several servers, one for each address."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from engine.store.opening import BackendAddress
from proxy.backend import backends_in
from proxy.server.backends import backends_of
from proxy.settings import Settings


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Sequence[str]]:
    """A name server with these names."""
    known: dict[str, Sequence[str]] = {
        "db": ["10.0.0.2", "10.0.0.1"],
        "single": ["10.0.0.9"],
        "here": ["127.0.0.1", "::1"],
    }

    def look_up(host: str, port: int, **_: object) -> list[tuple[object, object, object, str, tuple[str, int]]]:
        if host not in known:
            raise socket.gaierror("Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


def resolved(*urls: str, **settings: object) -> Mapping[str, BackendAddress]:
    given = tuple(backend for url in urls for backend in backends_in(url))
    found = backends_of(Settings(backend=given, **settings))  # type: ignore[arg-type]
    assert found._resolve is not None
    return found._resolve()


def test_each_address_of_a_name_is_a_server_and_the_certificate_is_that_of_the_name(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.touch()
    found = resolved("mysql://app:secret@db:3306", backend_tls="always", backend_ca=authority)
    assert [(address.target, address.host) for address in found.values()] == [
        (("10.0.0.1", 3306), "db"),
        (("10.0.0.2", 3306), "db"),
    ]
    assert list(found) == ["db:3306/10.0.0.1", "db:3306/10.0.0.2"]
    assert {(address.user, address.password, address.tls, address.ca) for address in found.values()} == {
        ("app", "secret", True, str(authority))
    }


def test_names_with_one_address_and_with_several_are_one_set() -> None:
    found = resolved("mysql://app@db:3306", "mysql://app@single:3307")
    assert [address.target for address in found.values()] == [
        ("10.0.0.1", 3306),
        ("10.0.0.2", 3306),
        ("single", 3307),
    ]


def test_a_server_behind_a_name_may_be_replaced_and_a_failed_look_up_changes_nothing(
    names: dict[str, Sequence[str]],
) -> None:
    found = backends_of(Settings(backend=tuple(backends_in("mysql://app@db:3306"))))
    assert found._resolve is not None
    before = found._resolve()
    addresses = names.pop("db")
    assert found._resolve() == before
    names["db"] = [addresses[0], "10.0.0.3"]
    assert [address.target[0] for address in found._resolve().values()] == ["10.0.0.2", "10.0.0.3"]


@pytest.mark.parametrize("host", ["single", "here"])
def test_one_server_is_not_watched(host: str) -> None:
    """Both addresses of this machine lead to the same server."""
    found = backends_of(Settings(backend=tuple(backends_in(f"mysql://app@{host}:3306"))))
    assert found._resolve is None
    assert not found.route.several
