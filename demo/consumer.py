"""A worker as anybody would write it: long polls, works, acknowledges. Prints one line a batch: acknowledged,
redelivered."""

from __future__ import annotations

import sys

import pymysql

BATCH = 200


def main(port: int, name: str) -> None:
    connection = pymysql.connect(host="127.0.0.1", port=port, user="root", database="demo", autocommit=True)
    with connection.cursor() as cursor:
        while True:
            cursor.execute(f"STREAM id, record, epoch FROM flights LIMIT {BATCH} WAIT 1")
            batch = cursor.fetchall()
            if not batch:
                continue
            print(name, "got", len(batch), flush=True)
            ids = ", ".join(str(number) for number, _, _ in batch)
            acknowledged = cursor.execute(f"ACK FROM flights WHERE id IN ({ids})")
            again = sum(epoch > 1 for _, _, epoch in batch)
            print(name, "acked", acknowledged, again, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
