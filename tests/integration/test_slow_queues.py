"""Queues whose statements take seconds delay no other: each of their claims keeps a thread of the engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.queues import create_queue, rows, run

pytestmark = pytest.mark.either_server

SLOW = 12
"""More than the engine has threads."""


def sleeping(connection: Any) -> int:
    """How many statements sleep in a trigger."""
    ((count,),) = rows(connection, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'")
    return int(count)


def test_messages_of_others_come_while_a_dozen_slow_queues_are_busy(proxy, database, consume) -> None:
    with proxy.connect(database=database) as connection:
        create_queue(connection, "quick")
        for number in range(SLOW):
            create_queue(connection, f"slow{number}")
            run(connection, f"CREATE TRIGGER sleeps{number} BEFORE UPDATE ON slow{number} FOR EACH ROW DO SLEEP(8)")
            run(connection, f"INSERT INTO slow{number} (payload) VALUES ('x')")
        assert rows(connection, "STREAM payload FROM quick NOWAIT") == []
        consumers = [consume(proxy.connect(database=database), f"STREAM * FROM slow{n}") for n in range(SLOW)]
        for payload in "abcde":
            run(connection, f"INSERT INTO quick (payload) VALUES ('{payload}')")
            assert rows(connection, "STREAM payload FROM quick LIMIT 1 WAIT 20") == [(payload,)]
            run(connection, "ACK FROM quick WHERE id > 0")
        assert sleeping(connection) > 0, "the slow queues were not busy any more"
        assert not any(consumer.received for consumer in consumers)
