"""What the proxy makes for itself: made once, for its own eyes, renewed in time."""

from __future__ import annotations

import datetime as dt
import stat
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from cryptography import x509

from proxy.login.dialogue import encrypt_password
from proxy.settings import BadSetting, Settings
from proxy.transport import certificates
from proxy.transport.tls import Tls, client_context
from tests.support.certificates import make_certificates


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.mark.parametrize("make", [certificates.self_signed, certificates.rsa_key])
def test_it_is_made_once_and_only_its_owner_can_read_it(make: Callable[[Path], object], tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    make(folder)
    (file,) = folder.iterdir()
    before = file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    make(folder)
    assert file.read_bytes() == before
    assert list(folder.iterdir()) == [file]


def test_the_certificate_is_for_this_machine_and_can_be_used(tmp_path: Path) -> None:
    path = certificates.self_signed(tmp_path)
    names = certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert client_context(Settings(data_dir=tmp_path)) is not None


@pytest.mark.parametrize(("days_left", "renewed"), [(31, False), (29, True), (-1, True)])
def test_a_certificate_is_renewed_before_it_ends(tmp_path: Path, days_left: int, renewed: bool) -> None:
    path = certificates.self_signed(tmp_path)
    before = certificate(path)
    now = before.not_valid_after_utc - dt.timedelta(days=days_left)
    with mock.patch.object(certificates, "now", return_value=now):
        certificates.self_signed(tmp_path)
    assert (certificate(path) != before) == renewed


def test_a_password_can_be_encrypted_for_the_key_that_later_starts_find(tmp_path: Path) -> None:
    pem = certificates.rsa_key(tmp_path).public_pem
    cipher = encrypt_password(b"secret\0", b"s" * 20, pem)
    assert certificates.rsa_key(tmp_path).decrypt(cipher, b"s" * 20) == b"secret\0"


@pytest.mark.parametrize(("make", "name"), [(certificates.self_signed, "tls.pem"), (certificates.rsa_key, "rsa.pem")])
def test_a_file_that_was_spoiled_or_cannot_be_made_is_said(
    make: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("spoiled")
    with pytest.raises(BadSetting, match=f"data_dir: .*{name} cannot be used"):
        make(tmp_path)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(BadSetting, match=f"data_dir: .*{name} cannot be"):
        make(tmp_path / "file")


def test_nothing_is_made_that_is_not_needed(tmp_path: Path) -> None:
    tls = Tls.of(Settings(tls=False, data_dir=tmp_path / "data"))
    assert (tls.to_client, tls.policy.offered, tls.policy.key) == (None, False, None)
    assert not (tmp_path / "data").exists()
    assert Tls.of(Settings(tls=False, backend_tls="always", data_dir=tmp_path / "data")).policy.key is not None


@pytest.mark.parametrize(
    ("days", "when"),
    [(13, "expires in 13 days"), (-1, "expired 1 days ago"), (15, None)],
    ids=["soon", "past", "later"],
)
def test_a_certificate_that_expires_soon_is_a_problem_and_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, days: int, when: str | None
) -> None:
    made = make_certificates(tmp_path)
    until = certificates.expires(made.certificate)
    monkeypatch.setattr(certificates, "now", lambda: until - dt.timedelta(days=days))
    settings = Settings(tls_certificate=made.certificate, tls_key=made.key, data_dir=tmp_path)
    tls = Tls.of(settings)
    assert tls.expires == until
    assert (tls.expiry_problem or "").startswith(f"the certificate for clients {when}" if when else "")
    assert bool(tls.expiry_problem) == (when is not None)
    assert [getattr(record, "event", "") for record in caplog.records] == (["certificate.expires"] if when else [])
