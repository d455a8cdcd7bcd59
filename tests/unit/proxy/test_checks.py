"""What `ackstream doctor` finds of a server, and the start of `serve` logs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from engine.store.opening import BackendAddress
from proxy.backend import Backend
from proxy.checks import of_server, of_snapshot_isolation
from proxy.commands.doctor import _backend_tls, client_tls
from proxy.settings import Endpoint, Settings
from proxy.transport import certificates

PRIMARY = Backend("mysql://ackstream@db:3306")
GOOD = [b"9.7.0".hex(), "1", "ROW", "FULL", "2000", "0", "1"]


def levels(row: list[str], ahead_s: float = 0.0, **settings: Any) -> dict[str, str]:
    """What is not in order."""
    found = of_server(row, ahead_s, Settings(**{"backend": (PRIMARY,), **settings}))
    return {finding.about: finding.level for finding in found if finding.level != "ok"}


@pytest.mark.parametrize(
    ("at", "value", "found"),
    [
        (0, b"9.7.0".hex(), {}),
        (0, b"5.7.44".hex(), {"version": "error"}),
        (0, b"10.11.6-MariaDB".hex(), {}),
        (0, b"10.5.29-MariaDB".hex(), {"version": "error"}),
        (1, "0", {"binary log": "warning"}),
        (2, "MIXED", {"binary log": "warning"}),
        (3, "MINIMAL", {"binlog_row_image": "warning"}),
        (4, "151", {"max_connections": "warning"}),
        (5, "1", {"read_only": "error"}),
        (6, "0", {"time zones": "warning"}),
    ],
)
def test_each_setting_of_the_server_has_its_finding(at: int, value: str, found: dict[str, str]) -> None:
    assert levels([*GOOD[:at], value, *GOOD[at + 1 :]]) == found


@pytest.mark.parametrize(
    ("version", "value", "expected"),
    [
        (b"11.8.9-MariaDB", ["ON"], ["ok"]),
        (b"11.6.2-MariaDB", ["ON"], ["ok"]),
        (b"11.6.1-MariaDB", ["ON"], ["warning"]),
        (b"10.11.19-MariaDB", ["ON"], ["warning"]),
        (b"10.11.19-MariaDB", ["OFF"], []),
        (b"9.7.0", [], []),
    ],
)
def test_isolation_that_refuses_acks_is_a_finding(version: bytes, value: list[str], expected: list[str]) -> None:
    variable = [("innodb_snapshot_isolation", one) for one in value]
    assert [finding.level for finding in of_snapshot_isolation(version.hex(), variable)] == expected


def test_of_several_servers_some_may_be_read_only() -> None:
    replica = [*GOOD[:5], "1", GOOD[6]]
    assert levels(replica, backend=(PRIMARY, Backend("mysql://ackstream@db2:3306"))) == {}


@pytest.mark.parametrize(("ahead_s", "words"), [(60.4, "60 s ahead of"), (-3600.0, "3600 s behind")])
def test_a_clock_that_differs_is_a_finding(ahead_s: float, words: str) -> None:
    (finding,) = (found for found in of_server(GOOD, ahead_s, Settings(backend=(PRIMARY,))) if found.level != "ok")
    assert (finding.about, finding.level) == ("clock", "warning")
    assert words in finding.text
    assert levels(GOOD, 4.0) == {}


@pytest.mark.parametrize(
    ("host", "cipher", "ca", "level"),
    [
        ("127.0.0.1", "", None, "ok"),
        ("127.0.0.1", "TLS_AES_256_GCM_SHA384", None, "ok"),
        ("192.0.2.1", "", None, "warning"),
        ("192.0.2.1", "TLS_AES_256_GCM_SHA384", None, "warning"),
        ("192.0.2.1", "TLS_AES_256_GCM_SHA384", "ca.pem", "ok"),
    ],
)
def test_tls_to_a_server_elsewhere_should_be_verified(host: str, cipher: str, ca: str | None, level: str) -> None:
    assert _backend_tls(cipher, BackendAddress(host, 3306, "ackstream", ca=ca)).level == level


@pytest.mark.parametrize(
    ("listen", "tls", "level"),
    [
        ("127.0.0.1:3307", False, "ok"),
        ("127.0.0.1:3307", True, "ok"),
        ("192.0.2.1:3307", False, "warning"),
        ("192.0.2.1:3307", True, "warning"),
    ],
)
def test_tls_to_clients_elsewhere_should_be_verifiable(listen: str, tls: bool, level: str) -> None:
    assert client_tls(Settings(listen=Endpoint(listen), tls=tls)).level == level


@pytest.mark.parametrize(("days", "level"), [(-0.5, "error"), (5, "warning"), (90, "ok")])
def test_a_certificate_that_ends_soon_is_a_finding(
    days: float, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LIFE", dt.timedelta(days=days))
    path = tmp_path / "tls.pem"
    path.write_bytes(certificates._certificate(ec.generate_private_key(ec.SECP256R1())).public_bytes(Encoding.PEM))
    assert client_tls(Settings(tls_certificate=path)).level == level


def test_a_certificate_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    for name in ("bad.pem", "missing.pem"):
        assert client_tls(Settings(tls_certificate=tmp_path / name)).level == "error"
