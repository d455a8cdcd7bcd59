"""Queue statements in sessions whose `collation_connection` has at least two bytes for each character.

The server takes the literals of a statement to be in that character set, also those that the proxy writes.
"""

from __future__ import annotations

import pytest

from tests.support.queues import rows, run


@pytest.fixture(params=["utf16_general_ci", "utf32_bin", "ucs2_general_ci"])
def client(request, proxy, database):
    with proxy.connect(database=database) as client:
        run(client, f"SET collation_connection = {request.param}")
        yield client


def test_statements_that_show_find_what_there_is(client, database) -> None:
    ((collation,),) = rows(client, "SELECT @@collation_connection")
    run(client, "CREATE SEMAPHORE mails CAPACITY 2")
    run(
        client,
        "CREATE QUEUE jobs (tenant VARCHAR(20) NOT NULL, needs VARCHAR(20)) GROUP_BY = (tenant) SEMAPHORES = (needs)",
    )
    run(client, "INSERT INTO jobs (tenant, needs) VALUES ('acme', 'mails'), ('other', NULL)")
    assert [row[0] for row in rows(client, f"SHOW QUEUES FROM {database} LIKE 'job%'")] == [f"{database}.jobs"]
    assert [row[0] for row in rows(client, "SHOW GROUPS FROM jobs")] == ["acme", "other"]
    assert [row[0] for row in rows(client, "SHOW GROUPS FROM jobs LIKE 'ac%'")] == ["acme"]
    assert [row[0] for row in rows(client, "SHOW SEMAPHORES LIKE 'mail%'")] == ["mails"]
    assert "GROUP_BY" in rows(client, "SHOW CREATE QUEUE jobs")[0][1]
    assert rows(client, "SHOW PROXIES")
    assert rows(client, "SELECT @@collation_connection") == [(collation,)]


def test_messages_are_delivered_and_settled(client) -> None:
    run(client, "CREATE QUEUE jobs (body VARCHAR(20) NOT NULL)")
    run(client, "INSERT INTO jobs (body) VALUES ('a'), ('b')")
    assert rows(client, "STREAM body FROM jobs LIMIT 2 NOWAIT") == [("a",), ("b",)]
    assert len(rows(client, "SHOW DELIVERIES FROM jobs")) == 2
    run(client, "NACK jobs WHERE id = 1")
    run(client, "ACK jobs WHERE id = 2")
    assert rows(client, "SELECT id, time_acked IS NULL FROM jobs") == [(1, 1), (2, 0)]
