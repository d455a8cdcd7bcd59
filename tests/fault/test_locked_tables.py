"""Tables that another session has locked delay their own queues and no others."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.queues import create_queue, enqueue, run
from tests.support.servers import connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

LOCKED = 12
"""More than the engine has threads."""
MESSAGES = 50
SOON = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000 + 1000000000"


def test_queues_whose_tables_are_locked_do_not_delay_another_one(server, lone_proxy, database, consume) -> None:
    """Reads are allowed, so that each queue tries to claim its message again and again. If all threads waited, each
    message of the free queue would need a claim to fail first."""
    names = [f"locked{number}" for number in range(LOCKED)]
    with contextlib.ExitStack() as stack:
        locker, other = (stack.enter_context(connect(server, database=database)) for _ in range(2))
        streams = {}
        for name in (*names, "free"):
            create_queue(other, name)
            streams[name] = consume(lone_proxy.connect(database=database), f"STREAM payload FROM {name}")
        eventually(lambda: lone_proxy.metric("streams") == LOCKED + 1)
        for name in names:
            run(other, f"INSERT INTO {name} (payload, time_next) VALUES ('waits', {SOON})")
        run(locker, f"LOCK TABLES {', '.join(f'{name} READ' for name in names)}")
        before = lone_proxy.metric("store_errors_total")
        eventually(lambda: lone_proxy.metric("store_errors_total") >= before + LOCKED)
        before = lone_proxy.metric("store_errors_total")
        for number in range(MESSAGES):
            enqueue(other, "free", [str(number)])
            eventually(lambda: len(streams["free"].received) == number + 1)  # noqa: B023
        assert lone_proxy.metric("store_errors_total") - before < MESSAGES / 2
        assert not any(streams[name].received for name in names)
        run(locker, "UNLOCK TABLES")
        eventually(lambda: all(streams[name].received for name in names))
