"""How many messages a second `ackstream consume --batch` hands to a program, and the CPU time that each costs.

    .venv/bin/python -m bench.consume [--messages 20000] [--batch 500] [--parallel 1] [--exec 'wc -l']
    .venv/bin/python -m bench.consume --kills 20 [--messages 20000] [--batch 100]

Beside it, by turns, a worker in Python that does the same with PyMySQL and no other program: it streams as many
messages at a time, makes a line of JSON of each, and acknowledges them by one statement.

The rate is of use on a quiet machine alone; the CPU time hardly depends on what else runs.

With `--kills` both append the messages to a file, and are killed by SIGKILL so many times while they
work. Then it is counted which messages were never handled, and which several times.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import click
from pymysql.connections import Connection

from bench.processes import cpu_s, family
from tests.support.proxies import running_proxy
from tests.support.queues import create_queue, rows, run
from tests.support.servers import connect, running_server
from tests.support.waiting import eventually

WORKER = """
import json, sys, pymysql
host, port, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with pymysql.connect(host=host, port=port, user="root", database="shop", autocommit=True) as client:
    cursor = client.cursor(pymysql.cursors.DictCursor)
    while cursor.execute(f"STREAM *, epoch FROM m LIMIT {batch} NOWAIT"):
        rows = cursor.fetchall()
        lines = [json.dumps(row) for row in rows]
        if len(sys.argv) > 4:
            with open(sys.argv[4], "a") as handled:
                handled.write("\\n".join(lines) + "\\n")
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
@click.option("--kills", default=0, help="Kill each of them so many times, in place of the rates.")
def main(messages: int, batch: int, parallel: int, command: str, flavour: str, rounds: int, kills: int) -> None:
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
            if kills:
                handled = Path(folder) / "handled"
                consume[consume.index("--exec") + 1] = f"tee -a {handled}"
                for name, argv in (("consume --exec", consume), ("in Python", [*worker, str(handled)])):
                    with proxy.connect(database="shop") as client:
                        survive(client, name, argv, messages, handled, kills)
                return
            for _ in range(rounds):
                for name, argv in (("consume --exec", consume), ("in Python", worker)):
                    with proxy.connect(database="shop") as client:
                        fill(client, messages)
                    measure(name, argv, messages, proxy.pid)


def has_begun(process: subprocess.Popen[bytes], handled: Path, size: int) -> bool:
    """Whether a consumer has handled messages, or found none."""
    return handled.stat().st_size > size or process.poll() is not None


def survive(client: Connection[Any], name: str, argv: list[str], messages: int, handled: Path, kills: int) -> None:
    """Kill a consumer again and again while it drains the queue, and print what became of the messages. The
    next one begins when the one before is gone."""
    run(client, "TRUNCATE m")
    fill(client, messages)
    handled.write_text("")
    chance, killed, before_s = random.Random(7), 0, time.monotonic()
    left = messages
    while left:
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        began_with = handled.stat().st_size
        eventually(partial(has_begun, process, handled, began_with), timeout_s=60)
        if killed < kills:
            try:
                process.wait(chance.uniform(0, 0.1))  # Somewhere between two batches.
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
        process.wait()
        ((left,),) = rows(client, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL")
    times = Counter(json.loads(line)["id"] for line in handled.read_text().splitlines())
    print(
        f"{name:15} {messages} messages, killed {killed} times: {messages - len(times)} never handled,"
        f" {sum(count > 1 for count in times.values())} more than once; {time.monotonic() - before_s:.0f} s",
        flush=True,
    )


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
