"""HAProxy in front of proxies, by the file of docker/: as processes, without containers."""

from __future__ import annotations

import contextlib
import re
import ssl
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql

from bench.processes import free_port, listening_process
from tests.support.proxies import RunningProxy
from tests.support.servers import cache_dir, foreign_command

CONFIG = Path(__file__).parents[2] / "docker" / "haproxy.cfg"
ROOT = cache_dir() / "relays-sid"


@contextlib.contextmanager
def haproxy(proxies: Sequence[RunningProxy], folder: Path, *, tls: bool = True) -> Iterator[int]:
    """The port of HAProxy in front of these two. `tls`: whether their admin ports have it."""
    port = free_port()
    text = CONFIG.read_text().replace("bind :3307", f"bind 127.0.0.1:{port}")
    text = (
        text.replace(" check check-ssl verify none port 9307", " check check-ssl verify none" if tls else " check")
        .replace(" resolvers docker", "")
        .replace("resolvers docker\n    parse-resolv-conf\n", "")
    )
    for number, proxy in enumerate(proxies, 1):
        before = f"ackstream-{number}:3307"
        assert before in text
        text = text.replace(before, f"127.0.0.1:{proxy.port} port {proxy.admin_port}")
    config = folder / "haproxy.cfg"
    config.write_text(text)
    with listening_process([*foreign_command(ROOT, "usr/sbin/haproxy"), "-f", str(config)], folder / "haproxy", port):
        yield port


def connected(port: int, **options: Any) -> Any:
    """A client's connection through HAProxy."""
    return pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True, **options)


def connections(proxy: RunningProxy) -> int:
    """The client connections of a proxy with `admin_tls`."""
    address = f"https://127.0.0.1:{proxy.admin_port}/metrics?counted=no"
    with urllib.request.urlopen(address, context=ssl._create_unverified_context()) as answer:
        found = re.search(r"^ackstream_connections ([0-9]+)", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])
