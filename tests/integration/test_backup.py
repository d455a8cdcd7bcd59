"""A dump of the server contains its queues: docs/sizing.md."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support.queues import rows, run
from tests.support.servers import cache_dir, client_program, foreign_command


def dump_program(flavour: str) -> list[str]:
    root = cache_dir() / "mysql-sid"
    if flavour == "mysql" and (root / "usr/bin/mysqldump").exists():
        return [*foreign_command(root, "usr/bin/mysqldump"), "--no-defaults", "--set-gtid-purged=OFF"]
    path = shutil.which("mariadb-dump" if flavour == "mariadb" else "mysqldump")
    if path is None:
        pytest.skip(f"no dump program for {flavour} on this machine")
    return [path, "--no-defaults"]


def test_a_restored_queue_delivers_what_was_unacknowledged(server, proxy, database, flavour) -> None:
    restored = f"{database}_restored"
    address = ["-h", server.host, "-P", str(server.port), "-u", "root"]
    with proxy.connect(database=database) as client:
        run(client, "CREATE QUEUE orders (item TEXT) ACK_WAIT = 1 MAX_ATTEMPTS = 5 DEAD_LETTER = orders_dead")
        run(client, "INSERT INTO orders (item) VALUES ('tea'), ('bread'), ('milk')")
        assert len(rows(client, "STREAM * FROM orders LIMIT 2 WAIT 20")) == 2
        run(client, "ACK orders WHERE id = 1")
        run(client, "PAUSE QUEUE orders")
        dump = subprocess.run(
            [*dump_program(flavour), *address, "--single-transaction", database], capture_output=True, check=True
        ).stdout
        run(client, f"CREATE DATABASE {restored}")
        try:
            subprocess.run([*client_program(flavour), *address, restored], input=dump, check=True)
            run(client, f"USE {restored}")
            assert "PAUSED = 1" in rows(client, "SHOW CREATE QUEUE orders")[0][1]
            run(client, "RESUME QUEUE orders")
            delivered = [row for _ in range(2) for row in rows(client, "STREAM * FROM orders LIMIT 1 WAIT 20")]
            assert sorted(delivered) == [(2, "bread"), (3, "milk")]
            assert run(client, "ACK orders WHERE id IN (2, 3)") == 2
        finally:
            run(client, f"DROP DATABASE {restored}")
