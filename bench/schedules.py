"""How late scheduled messages are delivered.

The delay is from a message's time, by the server's clock, to the row in a waiting consumer's hand.
One message is due every 10 ms: first on an idle queue, then while two workers enqueue and
acknowledge other messages of lower priority on the same queue as fast as they can.

`make bench-parts` runs it. Trust the ratio rather than the absolute figures.
"""

from __future__ import annotations

import threading
import time

from pymysql.cursors import SSCursor

from bench.queues import connect, create, percentiles
from demo.ackstream import ackstream

SAMPLES = 300
APART_NS = 10_000_000
AHEAD_NS = 500_000_000
BATCH = 10


def lateness(port: int) -> list[float]:
    """Return the seconds from each message's time to its arrival; the server shares this clock."""
    consumer = connect(port)
    begin_ns = time.time_ns() + AHEAD_NS
    due_ns = [begin_ns + number * APART_NS for number in range(SAMPLES)]
    with connect(port) as producer, producer.cursor() as cursor:
        cursor.execute("DELETE FROM m")
        cursor.executemany(
            "INSERT INTO m (time_next, payload) VALUES (%s, %s)", [(time_ns, time_ns) for time_ns in due_ns]
        )
    late: list[float] = []
    cursor = SSCursor(consumer)
    cursor.execute(f"STREAM payload FROM m WHERE payload <> 'other' LIMIT {SAMPLES}")
    while (row := cursor.fetchone()) is not None:
        late.append((time.time_ns() - int(row[0])) / 1e9)
    consumer.close()
    return late


def work(port: int, over: threading.Event) -> None:
    """Enqueue, stream and acknowledge messages until `over` is set."""
    with connect(port) as connection, connection.cursor() as cursor:
        while not over.is_set():
            cursor.executemany("INSERT INTO m (priority, payload) VALUES (1, %s)", ["other"] * BATCH)
            cursor.execute(f"STREAM id FROM m WHERE payload = 'other' LIMIT {BATCH} WAIT 0.1")
            if found := cursor.fetchall():
                cursor.execute(f"ACK FROM m WHERE id IN ({', '.join(str(number) for (number,) in found)})")


def main() -> None:
    with ackstream() as running:
        create(running.port)
        print(f"a scheduled message, idle   {percentiles(lateness(running.port))} late")
        over = threading.Event()
        workers = [threading.Thread(target=work, args=(running.port, over)) for _ in range(2)]
        for worker in workers:
            worker.start()
        busy = lateness(running.port)
        over.set()
        for worker in workers:
            worker.join()
        print(f"a scheduled message, busy   {percentiles(busy)} late")


if __name__ == "__main__":
    main()
