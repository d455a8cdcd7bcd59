"""A Galera cluster of MariaDB on this machine.

No member copies its data from another one: all begin with copies of the first one's, which was stopped in an orderly
way. A script in place of Galera's own tells a member that joins its position, and Galera sends what follows it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import environment
from tests.support.queues import rows
from tests.support.servers import binary_or_skip, connect, new_server, server_on
from tests.support.waiting import eventually

PROVIDERS = (Path("/usr/lib/galera/libgalera_smm.so"), Path("/usr/lib64/galera-4/libgalera_smm.so"))

LEFT_BEHIND = ("proxy.lock", "server.lock", "mysqld.sock*", "server.pid", "gvwstate.dat", "galera.cache")

TRANSFER = """#!/bin/sh
while [ $# -gt 0 ]; do
	case $1 in --role) role=$2 ;; --address) address=$2 ;; --gtid) gtid=$2 ;; esac
	shift
done
if [ "$role" = donor ]; then
	echo "$gtid" >"$ACKSTREAM_GALERA/draft" && mv "$ACKSTREAM_GALERA/draft" "$ACKSTREAM_GALERA/position"
	echo "done $gtid"
else
	rm -f "$ACKSTREAM_GALERA/position"
	echo "ready $address:4444/position"
	until [ -s "$ACKSTREAM_GALERA/position" ]; do sleep 0.05; done
	cat "$ACKSTREAM_GALERA/position"
fi
"""


def provider_or_skip() -> Path:
    """Galera's library."""
    binary_or_skip("mariadb")
    found = next((path for path in PROVIDERS if path.exists()), None)
    if found is None:
        pytest.skip("Galera is not installed: scripts/prepare galera")
    return found


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _options(provider: Path, number: int, ports: Sequence[int]) -> list[str]:
    own, first = ports[2 * number], ports[2 * number + 1]
    listening = f"gmcast.listen_addr=tcp://127.0.0.1:{own};ist.recv_addr=127.0.0.1:{first};gcache.size=16M"
    return [
        "--wsrep-on=ON",
        f"--wsrep-provider={provider}",
        "--wsrep-cluster-name=ackstream",
        f"--wsrep-node-name=node{number}",
        f"--wsrep-node-address=127.0.0.1:{own}",
        f"--wsrep-provider-options={listening}",
        "--wsrep-sst-method=position",
        "--innodb-autoinc-lock-mode=2",
        f"--server-id={number + 1}",
        "--log-slave-updates=ON",
    ]


def is_synced(server: EmbeddedServer, members: int) -> bool:
    """Whether it is a working member of a cluster of so many."""
    try:
        with connect(server) as connection:
            status = dict(rows(connection, "SHOW GLOBAL STATUS LIKE 'wsrep%'"))
    except pymysql.MySQLError:  # While it joins, it ends connections.
        return False
    return (status["wsrep_ready"], status["wsrep_cluster_size"]) == ("ON", str(members))


@contextlib.contextmanager
def galera_cluster() -> Iterator[list[EmbeddedServer]]:
    """Three members."""
    provider, ports = provider_or_skip(), _free_ports(6)
    with tempfile.TemporaryDirectory(prefix="ackstream-galera-") as directory, contextlib.ExitStack() as stack:
        members: list[EmbeddedServer] = []
        script = Path(directory) / "wsrep_sst_position"
        script.write_text(TRANSFER)
        script.chmod(0o755)
        stack.enter_context(environment(ACKSTREAM_GALERA=directory, PATH=f"{directory}:{os.environ['PATH']}"))
        bootstrap = [*_options(provider, 0, ports), "--wsrep-cluster-address=gcomm://"]
        with new_server("mariadb", Path(directory) / "node0", options=bootstrap) as alone:
            eventually(partial(is_synced, alone, 1), timeout_s=30)
            alone.stop(timeout_s=30)
        for number in (1, 2):
            left = shutil.ignore_patterns(*LEFT_BEHIND)
            shutil.copytree(alone.data_dir, Path(directory) / f"node{number}", ignore=left)
        for number in range(3):
            others = f"127.0.0.1:{ports[0]}" if number else ""
            options = [*_options(provider, number, ports), f"--wsrep-cluster-address=gcomm://{others}"]
            members.append(server_on("mariadb", Path(directory) / f"node{number}", durable=False, options=options))
            stack.callback(members[-1].kill)
            members[-1].start()
            eventually(partial(is_synced, members[-1], number + 1), timeout_s=30)
        yield members
