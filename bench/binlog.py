"""Latency of messages inserted on the server itself, with and without the binary log; its cost.

The latency is from the moment before the INSERT to the row in the consumer's hand. Without the
binary log the poller finds the message, here every second. The time of the INSERT alone is printed
beside it. Then workers drain a backlog through the proxy, with the binary log followed and not
followed.

`make bench-parts` runs it. Trust the ratios rather than the absolute figures.
"""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from bench.queues import CREATE, MESSAGES, connect, fill, percentiles, poll, rate
from demo.ackstream import DIRECTIVES, Running, ackstream

SAMPLES = 300
SAMPLES_POLLED = 20
POLLER_S = 1


def latencies(running: Running, samples: int) -> tuple[list[float], list[float]]:
    """Return seconds from before each INSERT to its row, and seconds of each INSERT alone."""
    received: list[float] = []
    arrived = threading.Semaphore(0)
    consumer = connect(running.port)

    def listen() -> None:
        cursor = SSCursor(consumer)
        cursor.execute(f"STREAM sent FROM m LIMIT {samples}")
        while (row := cursor.fetchone()) is not None:
            received.append(time.monotonic() - row[0])
            arrived.release()

    listener = threading.Thread(target=listen)
    listener.start()
    inserts: list[float] = []
    with connect(running.server_port) as producer, producer.cursor() as cursor:
        for _ in range(samples):
            began = time.monotonic()
            cursor.execute("INSERT INTO m (payload, sent) VALUES ('x', %s)", (began,))
            inserts.append(time.monotonic() - began)
            arrived.acquire()
    listener.join()
    return received, inserts


def await_log(running: Running) -> None:
    """Wait until the binary log is followed."""
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{running.admin_port}/metrics") as answer:
            if b"ackstream_binlog_following 1.0" in answer.read():
                return
        time.sleep(0.05)


def prepare(running: Running) -> Any:
    anywhere = pymysql.connect(host="127.0.0.1", port=running.port, user="root")
    with anywhere, anywhere.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        cursor.execute("USE bench")
        patient = DIRECTIVES.replace("vt_poller_interval=30", f"vt_poller_interval={POLLER_S}")
        cursor.execute(CREATE.replace(DIRECTIVES, patient))
    return connect(running.port)


def main() -> None:
    for setting, samples in (("auto", SAMPLES), ("off", SAMPLES_POLLED)):
        os.environ["ACKSTREAM_BINLOG"] = setting
        with ackstream() as running:
            admin = prepare(running)
            if setting == "auto":
                await_log(running)
            received, inserts = latencies(running, samples)
            fill(admin, MESSAGES)
            drained = rate(poll, running.port, MESSAGES)
        print(f"binlog {setting}: direct INSERT to delivery  {percentiles(received)}")
        print(f"binlog {setting}: the INSERT alone           {percentiles(inserts)}")
        print(f"binlog {setting}: drain                      {drained:,.0f} messages/s")


if __name__ == "__main__":
    main()
