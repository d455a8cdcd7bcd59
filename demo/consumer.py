"""An ordinary worker: it long-polls, works, acknowledges, and prints a line for each step. When its connection is lost,
it connects again."""

from __future__ import annotations

import json
import sys
import time

import pymysql

BATCH = 200
WORK_S = 0.02
"""Time spent on a batch, besides parsing it."""


RECONNECT_S = 0.2


def main(port: int, name: str) -> None:
    while True:
        try:
            work(port, name)
        except pymysql.MySQLError:
            time.sleep(RECONNECT_S)


def work(port: int, name: str) -> None:
    connection = pymysql.connect(host="127.0.0.1", port=port, user="root", database="demo", autocommit=True)
    with connection.cursor() as cursor:
        while True:
            cursor.execute(f"STREAM id, record FROM flights LIMIT {BATCH} WAIT 1")
            batch = cursor.fetchall()
            if not batch:
                continue
            print(name, "got", len(batch), flush=True)
            for _, record in batch:
                json.loads(record)
            time.sleep(WORK_S)
            ids = ", ".join(str(number) for number, _ in batch)
            print(name, "acked", cursor.execute(f"ACK FROM flights WHERE id IN ({ids})"), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
