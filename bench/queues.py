"""Queues through the proxy, compared with plain SQL: one run, one machine, one server.

*Drain*: workers take and acknowledge messages until a backlog is gone. Four long-poll the proxy.
Four others take one message per transaction with SELECT … FOR UPDATE SKIP LOCKED straight from the
server (a commit to take, a commit to finish, as a worker needs that can die in between).

*Latency*: from the moment before an INSERT to its message in a waiting consumer's hand. The time of
the INSERT alone is printed beside it; the difference is the queue's.

`make bench-parts` runs it. Trust the ratios rather than the absolute figures.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from demo.ackstream import DIRECTIVES, ackstream

MESSAGES = 20_000
MESSAGES_ONE_BY_ONE = 2_000
WORKERS = 4
BATCH = 200
SAMPLES = 500
PAYLOAD = "x" * 120

CREATE = f"""
CREATE TABLE m (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, priority INT NOT NULL DEFAULT 0,
  epoch BIGINT NOT NULL DEFAULT 0, time_next BIGINT DEFAULT 0, time_acked BIGINT DEFAULT NULL,
  payload VARCHAR(200), sent DOUBLE, KEY next_idx (time_acked, priority, time_next))
COMMENT 'vitess_message,{DIRECTIVES}'
"""


def connect(port: int) -> Any:
    # Both without TLS, since they are compared and the private server may offer none.
    return pymysql.connect(
        host="127.0.0.1", port=port, user="root", autocommit=True, database="bench", ssl_disabled=True
    )


def create(port: int, statement: str = CREATE) -> None:
    """Create the queue in a new database."""
    anywhere = pymysql.connect(host="127.0.0.1", port=port, user="root")
    with anywhere, anywhere.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        cursor.execute("USE bench")
        cursor.execute(statement)


def fill(connection: Any, count: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM m")
        for _ in range(0, count, 1_000):
            cursor.executemany("INSERT INTO m (payload) VALUES (%s)", [(PAYLOAD,)] * 1_000)


def poll(port: int) -> None:
    """A worker that uses the proxy."""
    connection = connect(port)
    with connection.cursor() as cursor:
        while cursor.execute(f"STREAM id, payload FROM m LIMIT {BATCH} WAIT 0.2"):
            ids = ", ".join(str(row[0]) for row in cursor.fetchall())
            cursor.execute(f"ACK FROM m WHERE id IN ({ids})")


def take_one_by_one(port: int) -> None:
    """A worker that uses plain SQL."""
    connection = connect(port)
    connection.autocommit(False)
    with connection.cursor() as cursor:
        while True:
            cursor.execute(
                "SELECT id, payload FROM m WHERE time_acked IS NULL AND priority = 0 AND time_next = 0"
                " ORDER BY time_next LIMIT 1 FOR UPDATE SKIP LOCKED"
            )
            row = cursor.fetchone()
            if row is None:
                return
            cursor.execute("UPDATE m SET time_next = 1, epoch = epoch + 1 WHERE id = %s", (row[0],))
            connection.commit()
            cursor.execute("UPDATE m SET time_next = NULL, time_acked = 1 WHERE id = %s", (row[0],))
            connection.commit()


def rate(worker: Callable[[int], None], port: int, messages: int) -> float:
    """Run WORKERS workers until none finds a message; return messages per second in total."""
    threads = [threading.Thread(target=worker, args=(port,)) for _ in range(WORKERS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return messages / (time.monotonic() - began)


def latencies(port: int, producer_port: int, samples: int) -> tuple[list[float], list[float]]:
    """Return seconds from before each INSERT to its row, and seconds of each INSERT alone."""
    received: list[float] = []
    arrived = threading.Semaphore(0)
    consumer = connect(port)

    def listen() -> None:
        cursor = SSCursor(consumer)
        cursor.execute(f"STREAM sent FROM m LIMIT {samples}")
        while (row := cursor.fetchone()) is not None:
            received.append(time.monotonic() - row[0])
            arrived.release()

    listener = threading.Thread(target=listen)
    listener.start()
    inserts: list[float] = []
    with connect(producer_port) as producer, producer.cursor() as cursor:
        for _ in range(samples):
            began = time.monotonic()
            cursor.execute("INSERT INTO m (payload, sent) VALUES ('x', %s)", (began,))
            inserts.append(time.monotonic() - began)
            arrived.acquire()
    listener.join()
    return received, inserts


def percentiles(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    return f"p50 {1e3 * cuts[49]:.2f} ms, p99 {1e3 * cuts[98]:.2f} ms"


def main() -> None:
    with ackstream() as running:
        create(running.port)
        admin = connect(running.port)
        received, inserts = latencies(running.port, running.port, SAMPLES)
        print(f"enqueue to delivery   {percentiles(received)}")
        print(f"the INSERT alone      {percentiles(inserts)}")
        fill(admin, MESSAGES_ONE_BY_ONE)
        one_by_one = rate(take_one_by_one, running.server_port, MESSAGES_ONE_BY_ONE)
        fill(admin, MESSAGES)
        streamed = rate(poll, running.port, MESSAGES)
        print(f"drain, one by one     {one_by_one:,.0f} messages/s ({WORKERS} workers, FOR UPDATE SKIP LOCKED, direct)")
        print(f"drain, STREAM and ACK {streamed:,.0f} messages/s ({WORKERS} workers, LIMIT {BATCH}, through the proxy)")
        print(f"ratio                 {streamed / one_by_one:.1f}")


if __name__ == "__main__":
    main()
