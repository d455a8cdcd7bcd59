"""What a client has set for its transactions is neither used up nor obeyed by internal queries on its connection."""

from __future__ import annotations

import contextlib

import pymysql
import pytest

from tests.support.queues import create_queue, enqueue, rows, run

QUEUE_STATEMENTS = [
    "STREAM payload FROM m NOWAIT",
    "SHOW QUEUES",
    "SHOW CREATE QUEUE m",
    "PAUSE QUEUE m",
    "PURGE QUEUE m",
]
IN_TRANSACTION = 1
READ_ONLY_TRANSACTION = 1792


@pytest.mark.parametrize("completion_type", ["CHAIN", "RELEASE"])
@pytest.mark.parametrize("statement", [*QUEUE_STATEMENTS, "STREAM nothing FROM m NOWAIT"])
def test_the_end_of_an_internal_query_begins_no_transaction_and_closes_no_connection(
    proxy, database, completion_type, statement
) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        run(client, f"SET completion_type = '{completion_type}', autocommit = 0")
        with contextlib.suppress(pymysql.ProgrammingError, pymysql.OperationalError):  # A column that is not there.
            rows(client, statement)
        run(client, "SET @x = 1")
        assert not client.server_status & IN_TRANSACTION
        run(client, "SET completion_type = 'NO_CHAIN'")


def next_transactions(flavour: str) -> list[str]:
    prefix = "transaction" if flavour == "mysql" else "tx"
    return [
        "SET TRANSACTION READ ONLY",
        f"/* a */ set @@{prefix}_read_only = 1",
        f"SET @x = 1, @@`{prefix}_read_only` = ON",
    ]


def test_a_transaction_set_once_is_still_the_clients_after_a_queue_statement(proxy, flavour, database) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        for setting in next_transactions(flavour):
            for statement in QUEUE_STATEMENTS:
                run(client, setting)
                run(client, "SELECT @@version")
                with pytest.raises(pymysql.MySQLError, match="SET SESSION TRANSACTION") as refused:
                    rows(client, statement)
                assert refused.value.args[0] == 1105
                with pytest.raises(pymysql.MySQLError) as read_only:
                    enqueue(client, "m", "a")
                assert read_only.value.args[0] == READ_ONLY_TRANSACTION
                run(client, "COMMIT")


def test_a_transaction_that_was_set_once_and_is_over_refuses_no_queue_statement(proxy, flavour, database) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        enqueue(client, "m", "ab")
        for setting in next_transactions(flavour):
            for use in ("COMMIT", "SELECT COUNT(*) FROM m", "ROLLBACK"):
                run(client, setting)
                run(client, use)
                rows(client, "STREAM payload FROM m LIMIT 1 NOWAIT")
        run(client, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        rows(client, "STREAM payload FROM m LIMIT 1 NOWAIT")


def test_an_ack_is_the_transaction_that_was_set(proxy, database) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        enqueue(client, "m", "a")
        run(client, "SET TRANSACTION READ ONLY")
        with pytest.raises(pymysql.MySQLError) as read_only:
            run(client, "ACK FROM m WHERE id = 1")
        assert read_only.value.args[0] == READ_ONLY_TRANSACTION


def test_a_set_transaction_for_the_session_is_obeyed_by_a_bounded_stream_in_a_transaction(proxy, database) -> None:
    with proxy.connect(database=database) as client:
        create_queue(client, "m")
        enqueue(client, "m", "a")
        run(client, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        run(client, "BEGIN")
        assert rows(client, "STREAM payload FROM m LIMIT 1 WAIT 5") == [("a",)]
        assert run(client, "ACK FROM m WHERE id = 1") == 1
        run(client, "COMMIT")
