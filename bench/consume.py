"""How many messages a second `ackstream consume --batch` hands to a program, and the CPU time that each costs.

    .venv/bin/python -m bench.consume [--messages 20000] [--batch 500] [--parallel 1] [--exec 'wc -l']

Beside it, by turns, a worker in Python that does the same with PyMySQL and no other program: it streams as many
messages at a time, makes a line of JSON of each, and acknowledges them by one statement.

The rate is of use on a quiet machine alone; the CPU time hardly depends on what else runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from pymysql.connections import Connection

from bench.processes import cpu_s, family
from tests.support.proxies import running_proxy
from tests.support.queues import create_queue, run
from tests.support.servers import connect, running_server

WORKER = """
import json, sys, pymysql
host, port, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with pymysql.connect(host=host, port=port, user="root", database="shop", autocommit=True) as client:
    cursor = client.cursor(pymysql.cursors.DictCursor)
    while cursor.execute(f"STREAM *, epoch FROM m LIMIT {batch} NOWAIT"):
        rows = cursor.fetchall()
        lines = [json.dumps(row) for row in rows]
        ids = ", ".join(str(row["id"]) for row in rows)
        cursor.execute(f"ACK m WHERE id IN ({ids})")
"""


def fill(client: Connection[Any], count: int) -> None:
    for first in range(0, count, 1000):
        values = ", ".join(f'(\'{{"order": {first + at}, "sum": 12.5}}\')' for at in range(min(1000, count - first)))
        run(client, f"INSERT INTO m (payload) VALUES {values}")


def spent_s(pid: int) -> float:
    return sum(map(cpu_s, family(pid)))


@click.command()
@click.option("--messages", default=20_000)
@click.option("--batch", default=500)
@click.option("--parallel", default=1)
@click.option("--exec", "command", default="wc -l")
@click.option("--server", "flavour", type=click.Choice(["mariadb", "mysql"]), default="mariadb")
@click.option("--rounds", default=3)
def main(messages: int, batch: int, parallel: int, command: str, flavour: str, rounds: int) -> None:
    with running_server(flavour) as server, tempfile.TemporaryDirectory() as folder:  # type: ignore[arg-type]
        with connect(server) as root:
            run(root, "CREATE DATABASE shop")
        with running_proxy(server, Path(folder) / "log", ["--log-level", "info"], forked=False) as proxy:
            with proxy.connect(database="shop") as client:
                create_queue(client, "m")
            url = f"mysql://root@{proxy.host}:{proxy.port}/shop"
            consume = [sys.executable, "-m", "proxy", "consume", "m", "--url", url, "--exec", command, "--quiet"]
            consume += ["--batch", str(batch), "--parallel", str(parallel), "--until-empty"]
            worker = [sys.executable, "-c", WORKER, proxy.host, str(proxy.port), str(batch)]
            for _ in range(rounds):
                for name, argv in (("consume --exec", consume), ("in Python", worker)):
                    with proxy.connect(database="shop") as client:
                        fill(client, messages)
                    measure(name, argv, messages, proxy.pid)


def measure(name: str, argv: list[str], messages: int, proxy_pid: int) -> None:
    before_s, proxy_s, own = time.monotonic(), spent_s(proxy_pid), os.times()
    subprocess.run(argv, check=True)
    took_s, after = time.monotonic() - before_s, os.times()
    consumer_s = after.children_user + after.children_system - own.children_user - own.children_system
    proxy_us = (spent_s(proxy_pid) - proxy_s) / messages * 1e6
    print(
        f"{name:15} {messages / took_s:8,.0f} messages/s; CPU of a message: consumer and programs"
        f" {consumer_s / messages * 1e6:.0f} µs, proxy {proxy_us:.0f} µs",
        flush=True,
    )


if __name__ == "__main__":
    main()
