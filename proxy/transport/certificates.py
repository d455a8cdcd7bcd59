"""The proxy's own certificate for TLS and its own RSA key for passwords.

Each is one PEM file in the data directory, readable by its owner only. It is created when it is
first needed and used again by later starts, so that clients which pin it keep working. A file is
written under another name first and then renamed. Two proxies that start at once in one directory
may overwrite each other's file, but never read half of one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import logging
import os
import secrets
import socket
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from proxy.login.dialogue import RsaKey
from proxy.settings import BadSetting

log = logging.getLogger(__name__)

LIFE: Final = dt.timedelta(days=3650)
"""As long as mysqld's own. No client can verify it, and a client that pins it should keep working."""
EXPIRES_SOON_DAYS: Final = 14
"""A certificate that expires within so many days is a problem."""
RENEWED_BEFORE: Final = dt.timedelta(days=30)
"""It is checked only when the proxy starts."""
RSA_BITS: Final = 2048
"""As many as mysqld's own key has. A password encrypted for it has at most 213 bytes."""


def self_signed(directory: Path) -> Path:
    """Return the file with the self-signed certificate and its key, and create it if needed. Raises
    BadSetting."""
    path = directory / "tls.pem"
    if not _still_good(path):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(key).public_bytes(Encoding.PEM)
        _keep(path, key, certificate)
        log.info("made a self-signed certificate for clients: %s", path, extra={"event": "certificate.made"})
    return path


def rsa_key(directory: Path) -> RsaKey:
    """Return the key with which clients encrypt passwords, and create it if needed. Raises
    BadSetting."""
    path = directory / "rsa.pem"
    if path.exists():
        try:
            key = load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise BadSetting(f"data_dir: {path} cannot be used: {error}") from None
        if isinstance(key, rsa.RSAPrivateKey):
            return RsaKey(key)
        raise BadSetting(f"data_dir: {path} is no RSA key")
    made = rsa.generate_private_key(65537, RSA_BITS)
    _keep(path, made)
    return RsaKey(made)


def expires(path: Path) -> dt.datetime:
    """Until when the first certificate in a PEM file is valid. Raises OSError and ValueError."""
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc


def days_left(until: dt.datetime) -> float:
    """For how many days a certificate that is valid until then is valid from now."""
    return (until - now()) / dt.timedelta(days=1)


def _still_good(path: Path) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise BadSetting(f"data_dir: {path} cannot be used: {error}") from None
    return certificate.not_valid_after_utc - now() > RENEWED_BEFORE


def _certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ackstream self-signed")])
    hosts = {host for host in ("localhost", socket.gethostname()) if host and host.isascii()}
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - dt.timedelta(days=1))  # Clocks differ.
        .not_valid_after(now() + LIFE)
        .add_extension(x509.SubjectAlternativeName([*map(x509.DNSName, sorted(hosts)), *addresses]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )


def _keep(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, certificate: bytes = b"") -> None:
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise BadSetting(
            f"data_dir: {path} cannot be kept: {error.strerror or error};"
            " give a --data-dir that can be written, or for TLS a --tls-certificate"
        ) from None


def now() -> dt.datetime:
    """This machine's date, by which certificates are valid."""
    return dt.datetime.now(dt.UTC)
