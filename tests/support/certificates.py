"""Certificates for tests: an authority and the certificates it signs, deleted with the test process."""

from __future__ import annotations

import atexit
import datetime as dt
import functools
import ipaddress
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Certificates:
    """Files: the authority's certificate; one for 127.0.0.1 with its key."""

    ca: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, name: str = "127.0.0.1", *, days: int = 30, rsa_key: bool = False) -> Certificates:
    """A new authority, and a certificate that it signs for a host name or an address, with an RSA key or one of EC."""
    folder.mkdir(exist_ok=True)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    key = rsa.generate_private_key(65537, 2048) if rsa_key else ec.generate_private_key(ec.SECP256R1())
    files = Certificates(folder / "ca.pem", folder / "certificate.pem", folder / "key.pem")
    ca = _builder("test authority", days).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    files.ca.write_bytes(_signed(ca.issuer_name(_name("test authority")), ca_key, ca_key))
    hosts = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name)]
    )
    leaf = _builder(name, days).issuer_name(_name("test authority")).add_extension(hosts, critical=False)
    files.certificate.write_bytes(_signed(leaf, key, ca_key))
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


@functools.cache
def certificates() -> Certificates:
    """Those of this process's servers."""
    folder = Path(tempfile.mkdtemp(prefix="ackstream-tls-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_certificates(folder)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(name: str, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(_name(name)).serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - DAY).not_valid_after(now + days * DAY)


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    by: ec.EllipticCurvePrivateKey,
) -> bytes:
    return builder.public_key(key.public_key()).sign(by, hashes.SHA256()).public_bytes(Encoding.PEM)
