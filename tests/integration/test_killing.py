"""KILL both ways: what the server accepts ends what runs here, and what it refuses ends nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pymysql
import pytest
from mysql_mimic.types import Commands, str_len

from proxy.wire.packets import parse_err, parse_ok
from tests.support.queues import Consumer, create_queue, enqueue, rows, run, user
from tests.support.raw import BASE, RawClient
from tests.support.servers import MARIADBS, connect
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m")
        enqueue(connection, "m", "a")
        yield connection


@pytest.fixture
def streaming(proxy, database, connection, consume) -> Consumer:
    """A stream that has delivered a message and waits for more."""
    consumer: Consumer = consume(proxy.connect(database=database), "STREAM * FROM m")
    eventually(lambda: consumer.received)
    return consumer


def kill_as_text(client: RawClient, victim: int) -> None:
    client.query(f"KILL QUERY {victim}")


def kill_prepared(client: RawClient, victim: int) -> None:
    client.execute(client.prepare(f"KILL QUERY {victim}"))


def kill_prepared_with_a_parameter(client: RawClient, victim: int) -> None:
    number = client.prepare("KILL QUERY ?")
    client.execute(number, 0xFFFFFFF)
    client.execute(number, victim)


EXPRESSIONS = ("{} + 0", "(SELECT {})", "@victim", "'{}'", "{}.4 /* about */;", "CAST('{}' AS CHAR(20))")


@pytest.mark.parametrize("prepared", [False, True], ids=["text", "prepared"])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_kill_query_of_a_connection_that_an_expression_names_ends_its_stream(
    proxy, streaming, expression: str, *, prepared: bool
) -> None:
    victim = streaming.connection.thread_id()
    with RawClient(proxy) as other:
        other.query(f"SET @victim = {victim}")
        text = f"KILL QUERY {expression.format(victim)}"
        number = other.prepare(text) if prepared else 0
        answer = other.execute(number) if prepared else other.query(text)
        assert parse_ok(answer[-1].payload)
    assert streaming.ended.wait(10)
    assert isinstance(streaming.error, pymysql.MySQLError)
    assert streaming.error.args[0] == 1317


def test_the_expression_of_a_kill_is_evaluated_once_and_leaves_the_transaction_as_it_was(
    proxy, database, streaming
) -> None:
    victim = streaming.connection.thread_id()
    with RawClient(proxy, BASE, database) as other:
        other.query(f"SET autocommit = 0, @next = {victim - 1}")
        other.query("KILL QUERY (SELECT @next := @next + 1)")
        assert not other.outcome.in_transaction
        assert other.query("SELECT @next")[-2].payload == str_len(str(victim).encode())
    assert streaming.ended.wait(10)


@pytest.mark.parametrize("expression", ["NULL", "-1", "nothing", "(SELECT 1", "0 +", "1.5e300", "(SELECT 1, 2)"])
def test_a_kill_of_an_expression_without_a_connection_is_the_servers_own_error(
    server, proxy, database, expression: str
) -> None:
    errors = []
    for place in (server, proxy):
        with RawClient(place, BASE, database) as client:
            errors.append(client.query(f"KILL QUERY {expression}")[-1])
    assert errors[0] == errors[1]
    assert parse_err(errors[0].payload).code


@pytest.mark.parametrize("kill", [kill_as_text, kill_prepared, kill_prepared_with_a_parameter])
def test_kill_query_ends_a_stream_and_its_connection_goes_on(proxy, flavour, streaming, kill) -> None:
    if kill is kill_prepared_with_a_parameter and flavour == "mysql":
        kill = kill_prepared  # Whose KILL takes none.
    with RawClient(proxy) as other:
        kill(other, streaming.connection.thread_id())
    assert streaming.ended.wait(10)
    assert isinstance(streaming.error, pymysql.MySQLError)
    assert streaming.error.args[0] == 1317
    assert run(streaming.connection, "ACK FROM m WHERE id = 1") == 1


@pytest.mark.parametrize("statement", ["KILL {}", "KILL CONNECTION {}"])
@pytest.mark.parametrize("place", ["server", "proxy"])
def test_kill_connection_ends_a_stream_with_an_error_and_its_connection(
    request, streaming, connection, proxy, place, statement
) -> None:
    with RawClient(request.getfixturevalue(place)) as other:
        other.query(statement.format(streaming.connection.thread_id()))
    assert streaming.ended.wait(10)
    assert isinstance(streaming.error, pymysql.MySQLError)
    assert streaming.error.args[0] == 1053
    with pytest.raises(pymysql.err.OperationalError):
        rows(streaming.connection, "SELECT 1")
    assert rows(connection, "STREAM *, epoch FROM m WAIT 20") == [(1, "a", 2)]


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")  # MySQL has done away with it.
def test_the_command_for_it_ends_a_stream_and_its_connection(proxy, streaming) -> None:
    with RawClient(proxy) as other:
        other.ask(bytes([Commands.COM_PROCESS_KILL]) + streaming.connection.thread_id().to_bytes(4, "little"))
    assert streaming.ended.wait(10)
    assert isinstance(streaming.error, pymysql.MySQLError)
    assert streaming.error.args[0] == 1053


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")
@pytest.mark.parametrize(
    ("statement", "code"), [("KILL HARD {}", 1053), ("KILL SOFT CONNECTION {}", 1053), ("KILL SOFT QUERY {}", 1317)]
)
def test_mariadbs_degrees_of_killing_end_a_stream(proxy, streaming, statement, code) -> None:
    with RawClient(proxy) as other:
        other.query(statement.format(streaming.connection.thread_id()))
    assert streaming.ended.wait(10)
    assert isinstance(streaming.error, pymysql.MySQLError)
    assert streaming.error.args[0] == code


@pytest.fixture
def streaming_user(proxy, database, connection, consume) -> Iterator[tuple[str, Consumer]]:
    """The stream of a user of its own, that has delivered a message and waits for more."""
    with user(connection, database, "SELECT", "UPDATE") as name:
        consumer: Consumer = consume(proxy.connect(database=database, user=name), "STREAM * FROM m")
        eventually(lambda: consumer.received)
        yield name, consumer


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")
@pytest.mark.parametrize("place", ["server", "proxy"])
def test_kill_user_ends_all_that_one_user_streams_and_releases_it(request, connection, streaming_user, place) -> None:
    name, consumer = streaming_user
    with RawClient(request.getfixturevalue(place)) as other:
        other.query(f"KILL USER {name}")
    assert consumer.ended.wait(10)
    assert isinstance(consumer.error, pymysql.MySQLError)
    assert consumer.error.args[0] == 1053
    assert rows(connection, "STREAM *, epoch FROM m WAIT 20") == [(1, "a", 2)]


@pytest.mark.parametrize("server_name", MARIADBS, indirect=True, scope="session")
@pytest.mark.parametrize("kill", ["KILL QUERY USER {name}", "KILL QUERY ID {query}"])
def test_kill_query_by_anything_but_the_connection_is_not_seen_by_an_idle_stream(
    proxy, connection, streaming_user, kill
) -> None:
    """It is the server that knows whom it means, and it has nothing to interrupt there."""
    name, consumer = streaming_user
    number = consumer.connection.thread_id()
    ((query,),) = rows(connection, f"SELECT query_id FROM information_schema.processlist WHERE id = {number}")
    with RawClient(proxy) as other:
        other.query(kill.format(name=name, query=query))
    enqueue(connection, "m", "c")
    eventually(lambda: len(consumer.received) == 2)


@pytest.mark.parametrize("kill", ["KILL", "KILL QUERY"])
def test_another_users_stream_is_refused_by_the_server_and_lives(proxy, database, connection, streaming, kill) -> None:
    with user(connection, database, "SELECT") as name, RawClient(proxy, user=name) as other:
        for text in (f"{kill} {streaming.connection.thread_id()}", f"{kill} 4000000000"):
            answer = other.query(text)
            assert parse_err(answer[-1].payload).code == (1094 if "4000000000" in text else 1095)
        number = other.prepare(f"{kill} {streaming.connection.thread_id()}")
        assert parse_err(other.execute(number)[-1].payload).code == 1095
    enqueue(connection, "m", "b")
    eventually(lambda: len(streaming.received) == 2)


def test_the_connection_that_kills_itself_gets_the_servers_error(server, proxy) -> None:
    answers = []
    for place in (server, proxy):
        with RawClient(place, BASE) as client:
            answers.append(client.query("KILL CONNECTION_ID()")[-1])
            with pytest.raises((ConnectionError, BrokenPipeError)):
                client.query("SELECT 1")
    assert answers[0] == answers[1]
    assert parse_err(answers[0].payload).code in (1317, 1927)


def test_kill_query_reaches_a_statement_that_is_not_ours(proxy, server) -> None:
    with RawClient(proxy) as client, connect(server) as root:
        client.send(b"\x03SELECT SLEEP(60) FROM information_schema.tables")
        number = client.greeting.connection_id
        busy = f"SELECT id FROM information_schema.processlist WHERE id = {number} AND info LIKE 'SELECT SLEEP%'"
        eventually(lambda: rows(root, busy))
        with RawClient(proxy) as other:
            other.query(f"KILL QUERY {number}")
        assert parse_err(client.answer(0x03)[-1].payload).code == 1317
        assert client.query("SELECT 'alive'")[-2].payload == b"\x05alive"


def test_a_kill_query_of_an_administrator_on_the_server_itself_is_not_seen_by_an_idle_stream(
    server, connection, streaming
) -> None:
    """The server has nothing to interrupt; KILL CONNECTION is what works from there."""
    with connect(server) as root:
        run(root, f"KILL QUERY {streaming.connection.thread_id()}")
    enqueue(connection, "m", "b")
    eventually(lambda: len(streaming.received) == 2)
