"""Which addresses other machines can reach, and what the server is told of a client's."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from proxy.transport.addresses import beyond_loopback
from proxy.transport.proxy_protocol import LOCAL, Address, header

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
PROXY: Address = ("192.0.2.7", 3307)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_is_this_machines_alone(host: str) -> None:
    assert beyond_loopback(host) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "::", "192.0.2.7", "fe80::1%1", "::ffff:192.0.2.7", "::ffff:0.0.0.0"])
def test_all_else_can_be_reached_by_other_machines(host: str) -> None:
    assert beyond_loopback(host) is not None


def test_a_name_is_as_open_as_the_most_open_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(family, socket.SOCK_STREAM, 6, "", (at, 0)) for family, at in
             ((socket.AF_INET, "127.0.1.1"), (socket.AF_INET6, "2001:db8::1"))]  # fmt: skip
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert beyond_loopback("db.example") == "2001:db8::1"


@pytest.mark.parametrize(
    ("client", "accepted_at", "family", "source", "target"),
    [
        (("203.0.113.9", 50000), PROXY, b"\x11", "203.0.113.9", "192.0.2.7"),
        (("::ffff:203.0.113.9", 50000), ("::ffff:192.0.2.7", 3307), b"\x11", "203.0.113.9", "192.0.2.7"),
        (("2001:db8::9", 50000), ("2001:db8::1", 3307), b"\x21", "2001:db8::9", "2001:db8::1"),
        (("fe80::9%eth0", 50000), ("fe80::1%eth0", 3307), b"\x21", "fe80::9", "fe80::1"),
    ],
)
def test_the_header_has_both_ends_of_the_clients_connection(
    client: Address, accepted_at: Address, family: bytes, source: str, target: str
) -> None:
    body = ipaddress.ip_address(source).packed + ipaddress.ip_address(target).packed + b"\xc3\x50\x0c\xeb"
    expected = SIGNATURE + b"\x21" + family + len(body).to_bytes(2, "big") + body
    assert header(client, accepted_at, server_is_here=False) == expected


def test_a_client_on_a_unix_socket_has_no_address() -> None:
    assert header(None, None, server_is_here=True) == LOCAL == SIGNATURE + b"\x20\x00\x00\x00"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_told_only_to_a_server_on_this_machine(address: str) -> None:
    """Elsewhere it would match accounts at localhost, which are for clients on the server's own machine."""
    assert header((address, 1), (address, 2), server_is_here=False) == LOCAL
    assert header((address, 1), (address, 2), server_is_here=True) != LOCAL
