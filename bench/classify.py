"""What classifying and parsing a statement costs: microseconds per call, the best of five rounds.

Run it as `python -m bench.classify`. Every statement that passes through costs one of the first
lines.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

from sqlrewrite.ack import parse_settle
from sqlrewrite.classify import classify
from sqlrewrite.stream import parse_stream

POINT_SELECT = b"SELECT id, message FROM app.jobs WHERE id = 4711"
WITH = b"WITH late AS (SELECT id FROM jobs WHERE due < NOW() AND kind IN (1, 2)) SELECT COUNT(*) FROM late"
INSERT = b"INSERT INTO jobs (id, message) VALUES " + b", ".join(
    b"(%d, '%0100d; once &amp; again')" % (number, number) for number in range(10_000)
)
STREAM = b"STREAM id, message FROM app.jobs LIMIT 10 WAIT 20"


def ack(count: int) -> bytes:
    return b"ACK FROM jobs WHERE id IN (%b)" % b", ".join(b"%d" % number for number in range(count))


def microseconds(call: Callable[[], object]) -> float:
    timer = timeit.Timer(call)
    count, _ = timer.autorange()
    return min(timer.repeat(5, count)) / count * 1e6


def main() -> None:
    few, many = ack(500), ack(10_000)
    calls: dict[str, Callable[[], object]] = {
        "classify a point SELECT": lambda: classify(POINT_SELECT),
        "classify a SELECT behind WITH": lambda: classify(WITH),
        "classify an INSERT of 10,000 rows": lambda: classify(INSERT, multi_statements=False),
        "the same where a packet may hold several statements": lambda: classify(INSERT),
        "classify an ACK of 500 ids": lambda: classify(few),
        "parse an ACK of 500 ids, make its UPDATE": lambda: parse_settle(few).update(),
        "parse an ACK of 10,000 ids, make its UPDATE": lambda: parse_settle(many).update(),
        "parse a STREAM": lambda: parse_stream(STREAM),
    }
    for name, call in calls.items():
        print(f"{name:55} {microseconds(call):8.2f} us")


if __name__ == "__main__":
    main()
