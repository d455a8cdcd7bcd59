"""The worker of examples/python with a `handle` whose work the test controls: it takes the user-level lock that is
named as the task, if the task begins with `gate`, and it fails at the first delivery of `fail` and at each
of `broken`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pymysql

EXAMPLE = Path(__file__).parents[2] / "examples" / "python" / "worker_pymysql.py"


def main(port: str, database: str, ack_wait_s: str, grace_s: str) -> None:
    names = runpy.run_path(str(EXAMPLE))
    failed: set[str] = set()

    def handle(cursor: Any, task: str) -> None:
        names["handle"](cursor, task)
        if task == "broken" or (task == "fail" and task not in failed):
            failed.add(task)
            raise ValueError("no water")
        if task.startswith("gate"):
            cursor.execute("SELECT GET_LOCK(%s, 40)", (task,))
            cursor.execute("DO RELEASE_LOCK(%s)", (task,))

    def connect() -> Any:
        return pymysql.connect(host="127.0.0.1", port=int(port), user="root", database=database)

    names["Worker"](connect, handle, int(ack_wait_s), float(grace_s)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
