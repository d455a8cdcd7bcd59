"""Network addresses: which of them only this machine can reach."""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(address: str) -> bool:
    """Whether this IP address, also one of IPv4 written as IPv6, belongs to this machine alone."""
    parsed = ipaddress.ip_address(address)
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def beyond_loopback(host: str) -> str | None:
    """An address of `host`, a name or an address to listen on, that other machines can reach; None if there is none.

    Raises OSError when the name has no address. It may block.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return next((str(entry[4][0]) for entry in found if not is_loopback(str(entry[4][0]))), None)


def shown(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - to be replaced, not to listen on


def url_of(listening: str, *, secure: bool) -> str:
    """What a browser on this machine opens to see a page that is served at HOST:PORT, the first of several
    separated by commas."""
    host, _, port = listening.partition(",")[0].rpartition(":")
    return f"{'https' if secure else 'http'}://{reached_at(host)}:{port}/"


def reached_at(host: str) -> str:
    """The host, an IPv6 one in brackets, to connect to from this machine if a program listens there."""
    return _UNSPECIFIED.get(host, host)
