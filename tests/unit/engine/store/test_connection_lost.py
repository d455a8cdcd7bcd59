"""The server goes away or refuses in each phase of a connection: errors, and connections used again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from engine.model import Delivery, RowFormat
from engine.packets import PrepareOk
from engine.store.connection import OWN_CONTEXT, StoreConnection
from engine.store.fetch import RowFetch
from engine.store.opening import BackendAddress, ConnectionLimits
from engine.store.pool import Pool
from engine.store.port import StoreError
from proxy.wire.packets import make_err, make_prepare_ok
from tests.support.play import queue_table
from tests.support.scripted import DONE, GONE, OK, QUERY, Say, Script, ScriptedServer, ordinary, rows, scripted_server
from tests.support.waiting import eventually

PREPARE, EXECUTE, CLOSE, RESET = 0x16, 0x17, 0x19, 0x1F
SHUTDOWN = b"\x23\0\0\0\xff" + (1053).to_bytes(2, "little") + b"#08S01Server shutdown in progress"
"""A server's last packet, which is no reply."""


def connection_to(server: ScriptedServer, limits: ConnectionLimits | None = None) -> StoreConnection:
    return StoreConnection(BackendAddress(server.host, server.port, "root"), limits or ConnectionLimits())


@contextmanager
def pool_on(script: Script = ordinary, most: int = 1) -> Iterator[tuple[ScriptedServer, Pool]]:
    with scripted_server(script) as server:
        pool = Pool(lambda: connection_to(server), most)
        yield server, pool
        pool.close()


def answering(**answers: Say) -> Script:
    """An ordinary server, with other replies to statements that contain one of these words."""

    def script(command: int, payload: bytes) -> Say:
        found = next((say for word, say in answers.items() if word.encode() in payload), None)
        return found or ordinary(command, payload)

    return script


def asked(server: ScriptedServer, word: str) -> int:
    return sum(word.encode() in command for command in server.commands)


# While it is opened.


def test_no_server_listens() -> None:
    with scripted_server() as server:
        pass
    with pytest.raises(StoreError, match="refused") as caught:
        connection_to(server)
    assert caught.value.code == 2003


@pytest.mark.parametrize(("greets", "admits"), [(False, False), (True, False)])
def test_the_server_hangs_up_during_the_login(*, greets: bool, admits: bool) -> None:
    with scripted_server(greets=greets, admits=admits) as server, pytest.raises(StoreError) as caught:
        connection_to(server)
    assert caught.value.code // 1000 == 2


def test_a_silent_server_is_given_up_sooner_during_login_than_during_a_statement() -> None:
    with (
        scripted_server(silent=True) as server,
        pytest.raises(StoreError, match="timed out") as caught,
    ):
        connection_to(server, ConnectionLimits(login_s=0.05, read_s=3600.0))
    assert caught.value.code // 1000 == 2


def test_the_server_hangs_up_before_the_session_is_set_up() -> None:
    with scripted_server(answering(autocommit=GONE)) as server, pytest.raises(StoreError) as caught:
        connection_to(server)
    assert (caught.value.code, server.logins) == (2013, 1)


# Between statements.


def test_a_connection_that_ended_while_idle_is_replaced_without_an_error() -> None:
    with pool_on(answering(last=Say([OK], hang_up=True))) as (server, pool):
        with pool.connection() as connection:
            connection.run(["last"])
            assert connection._socket.recv(1) == b""  # It is over, and nobody has been told.
        with pool.connection() as connection:
            connection.run(["next"])
        assert (server.logins, asked(server, "next")) == (2, 1)


def test_a_shutdown_packet_after_the_last_reply_is_no_reply_to_the_next_statement() -> None:
    with pool_on(answering(last=Say([OK], raw=SHUTDOWN))) as (server, pool):
        with pool.connection() as connection:
            connection.run(["last"])
        with pool.connection() as connection:
            connection.run(["next"])
        assert server.logins == 2


# Inside a packet of several statements.


def test_the_outcome_of_statements_without_a_reply_is_unknown_and_the_connection_is_not_used_again() -> None:
    with pool_on(answering(third=Say([OK, OK], hang_up=True))) as (server, pool):
        with pytest.raises(StoreError) as caught, pool.connection() as connection:
            connection.run(["first", "refused", "third"])
        assert (caught.value.code, caught.value.lasting, connection.broken) == (2013, False, True)
        assert asked(server, "ROLLBACK") == 0
        with pool.connection() as other:
            assert other is not connection


def test_the_first_statement_that_fails_ends_them_and_the_transaction_is_rolled_back() -> None:
    refused = Say([OK, make_err(1213, "40001", "Deadlock found")])
    with pool_on(answering(third=refused)) as (server, pool):
        with pytest.raises(StoreError) as caught, pool.connection() as connection:
            connection.run(["first", "refused", "third"])
        assert (caught.value.code, connection.broken) == (1213, False)
        with pool.connection() as again:
            assert again is connection
            assert again.run(["next"])[0].affected == 0
        assert [asked(server, word) for word in ("ROLLBACK", "next")] == [1, 1]
        assert server.logins == 1


def test_rows_that_break_off_are_an_error_and_no_result() -> None:
    begun = Say(rows(["1"], ["2"])[:-1], hang_up=True)
    with pool_on(answering(SELECT=begun)) as (_, pool):
        seen: list[bytes] = []
        with pytest.raises(StoreError) as caught, pool.connection() as connection:
            connection.run(["SELECT"], keep_last=seen.append)
        assert (caught.value.code, seen) == (2013, [b"\x011", b"\x012"])


def test_a_connection_whose_transaction_cannot_be_rolled_back_is_closed() -> None:
    refused = Say([make_err(1317, "70100", "Query execution was interrupted")])
    with pool_on(answering(fails=refused, ROLLBACK=refused)) as (server, pool):
        with pytest.raises(StoreError, match="interrupted"), pool.connection() as connection:
            connection.run(["fails"])
        with pool.connection() as other:
            assert other is not connection
        assert server.logins == 2


def test_an_error_of_ours_leaves_no_reply_for_the_next_user() -> None:
    def faulty(_: bytes) -> None:
        raise AttributeError

    with pool_on(answering(SELECT=Say(rows(["1"])))) as (_, pool):
        with pytest.raises(AttributeError), pool.connection() as connection:
            connection.run(["SELECT"], keep_last=faulty)
        with pool.connection() as other:
            assert other is not connection


def test_a_prepared_statement_whose_execution_fails_is_closed() -> None:
    def script(command: int, payload: bytes) -> Say:
        if command == CLOSE:
            closed.set()
        return {
            PREPARE: Say([make_prepare_ok(PrepareOk(7, 0, 0))]),
            EXECUTE: Say([make_err(3024, "HY000", "maximum statement execution time exceeded")]),
            CLOSE: Say(),
        }.get(command) or (Say(rows(["1"])) if b"UTC_TIMESTAMP" in payload else ordinary(command, payload))

    closed = threading.Event()
    row_format = RowFormat(("id",), binary=True, charset="utf8mb4", time_zone="+00:00", pad_char=False)
    with pool_on(script) as (_, pool):
        fetch = RowFetch(queue_table(), row_format, {1: Delivery(1, 1)}, 1000, 100)
        with pytest.raises(StoreError, match="maximum statement"), pool.connection(fetch.context) as connection:
            fetch.run(connection)
        assert closed.wait(20)


# Behind statements that write.

PYMYSQL_SETS = b"SET NAMES utf8mb4"
"""The command before the reset with which a connection begins."""


def resetting(reset: Callable[[], Say]) -> Script:
    """An ordinary server with this reply to a reset, except to the one with which a connection begins."""
    before = b""

    def script(command: int, payload: bytes) -> Say:
        nonlocal before
        begins, before = before == PYMYSQL_SETS, payload
        return reset() if command == RESET and not begins else ordinary(command, payload)

    return script


def test_a_session_that_has_written_is_reset_when_it_is_given_back() -> None:
    with pool_on(answering(SELECT=Say(rows(["1"])))) as (server, pool):
        with pool.connection() as connection:
            connection.run(["SELECT"])
        with pool.connection() as connection:
            connection.run(["UPDATE"])
        with pool.connection() as again:
            assert again is connection
            assert again.run(["SELECT"])[0].rows == [b"\x011"]
        _, settings, *others = server.commands[1:]  # The first one is PyMySQL's, the next one a reset.
        assert others == [b"\x03SELECT", b"\x03UPDATE", bytes([RESET]), settings, b"\x03SELECT"]


@pytest.mark.parametrize("said", [Say([make_err(1317, "70100", "Query execution was interrupted")]), GONE])
def test_a_connection_whose_reset_has_failed_is_replaced_without_an_error(said: Say) -> None:
    with pool_on(resetting(lambda: said)) as (server, pool):
        with pool.connection() as connection:
            connection.run(["UPDATE"])
        with pool.connection() as other:
            assert other is not connection
            assert other.run(["next"])[0].affected == 0
        assert server.logins == 2


def test_a_caller_that_waits_for_the_reply_to_a_reset_gets_an_error_when_the_pool_is_closed() -> None:
    came = threading.Event()

    def reset() -> Say:
        came.set()
        return Say()

    with pool_on(resetting(reset)) as (_, pool):
        with pool.connection() as connection:
            connection.run(["UPDATE"])
        errors: list[StoreError] = []

        def use() -> None:
            try:
                with pool.connection():
                    pass
            except StoreError as error:
                errors.append(error)

        user = threading.Thread(target=use)
        user.start()
        assert came.wait(20)
        pool.close()
        user.join(20)
        assert [str(error) for error in errors] == ["the store is closed"]


# A command behind statements, in one packet.


def read_behind(connection: StoreConnection, statements: list[str]) -> list[object]:
    """Run these and a SELECT behind them. Returns what was reported."""
    reported: list[object] = []
    succeeded = connection.read_with_command(
        connection.send_with_command(statements, OWN_CONTEXT, QUERY, b"SELECT"),
        OWN_CONTEXT,
        lambda: reported.append(connection.result().rows),
        lambda results: reported.append([result.affected for result in results]),
    )
    return [*reported, succeeded]


def test_the_results_of_the_statements_are_reported_before_the_reply_is_read() -> None:
    with pool_on(answering(SELECT=Say(rows(["1"])))) as (_, pool), pool.connection() as connection:
        assert read_behind(connection, ["first", "second"]) == [[0, 0], [b"\x011"], True]


def test_a_statement_that_fails_before_a_command_leaves_the_connection_in_step() -> None:
    refused = Say([OK, make_err(3572, "HY000", "Statement aborted because lock(s) could not be acquired")])
    with pool_on(answering(refused=refused, SELECT=Say(rows(["1"])))) as (_, pool), pool.connection() as connection:
        with pytest.raises(StoreError, match="lock"):
            read_behind(connection, ["first", "refused", "third"])
        assert not connection.broken
        assert connection.run(["next", "last"])[1].affected == 0


def test_a_command_that_fails_behind_statements_is_no_error_of_theirs() -> None:
    refused = Say([make_err(1054, "42S22", "Unknown column")])
    with pool_on(answering(SELECT=refused)) as (_, pool), pool.connection() as connection:
        assert read_behind(connection, ["first"]) == [[0], False]
        assert connection.run(["next"])[0].affected == 0


# While the pool is closed.


def test_a_connection_that_is_opened_while_the_pool_is_closed_is_not_used() -> None:
    with scripted_server() as server:
        opened: list[StoreConnection] = []

        def open_link() -> StoreConnection:
            opened.append(connection_to(server))
            pool.close()
            return opened[0]

        pool = Pool(open_link, 1)
        with pytest.raises(StoreError, match="the store is closed"), pool.connection():
            pytest.fail("it was used")
        assert opened[0].broken


def test_waiting_callers_get_an_error_when_the_pool_is_closed() -> None:
    with pool_on(answering(waits=Say())) as (server, pool):
        errors: list[StoreError] = []

        def use(work: Callable[[StoreConnection], object]) -> None:
            try:
                with pool.connection() as connection:
                    work(connection)
            except StoreError as error:
                errors.append(error)

        taken = threading.Event()

        def wait_for_an_answer(connection: StoreConnection) -> None:
            taken.set()
            connection.run(["waits"])

        users = [
            threading.Thread(target=use, args=[work]) for work in (wait_for_an_answer, lambda connection: connection)
        ]
        users[0].start()
        assert taken.wait(20)
        users[1].start()
        pool.close()
        for user in users:
            user.join(20)
        assert len(errors) == 2
        assert server.logins == 1


# A connection that is taken without waiting.


def test_without_an_idle_connection_none_is_ready() -> None:
    with pool_on() as (server, pool):
        assert pool.ready() is None
        assert server.logins == 0


def test_a_connection_is_ready_when_the_replies_to_its_reset_are_here() -> None:
    """The reset's replies come after `release` is set: a connection that owes them would be waited for."""
    release = threading.Event()

    def reset() -> Say:
        assert release.wait(20)
        return DONE

    with pool_on(resetting(reset)) as (_, pool):
        with pool.connection() as connection:
            connection.run(["UPDATE m SET a = 1", "COMMIT"])
        assert pool.ready() is None
        release.set()
        ready = eventually(pool.ready, what="a connection that is ready")
        assert ready is connection
        assert pool.ready() is None
        with pool.lent(ready):
            assert ready.run(["next"])[0].affected == 0
        assert pool.ready() is connection


def test_a_connection_that_the_server_has_ended_is_not_ready() -> None:
    with pool_on(answering(last=Say([OK], hang_up=True))) as (server, pool):
        with pool.connection() as connection:
            connection.run(["last"])
            assert connection._socket.recv(1) == b""
        assert pool.ready() is None
        with pool.connection() as another:
            another.run(["next"])
        assert server.logins == 2


def test_after_an_error_a_connection_that_was_taken_is_not_used_again() -> None:
    with pool_on(answering(breaks=GONE)) as (server, pool):
        with pool.connection():
            pass
        ready = pool.ready()
        assert ready is not None
        with pytest.raises(StoreError), pool.lent(ready):
            ready.run(["breaks"])
        with pool.connection() as another:
            another.run(["next"])
        assert server.logins == 2


@pytest.mark.parametrize("end", ["abandon", "close"])
def test_a_connection_that_was_taken_fails_when_the_pool_leaves_its_server(end: str) -> None:
    with pool_on() as (server, pool):
        with pool.connection():
            pass
        ready = pool.ready()
        assert ready is not None
        getattr(pool, end)()
        with pytest.raises(StoreError), pool.lent(ready):
            ready.run(["late"])
        assert pool.ready() is None
        if end == "abandon":
            with pool.connection() as another:
                another.run(["next"])
            assert server.logins == 2


def test_a_connection_that_was_taken_is_used_to_its_end_when_the_pool_is_renewed() -> None:
    with pool_on() as (server, pool):
        with pool.connection():
            pass
        ready = pool.ready()
        assert ready is not None
        pool.renew()
        with pool.lent(ready):
            ready.run(["late"])
        with pool.connection() as another:
            another.run(["next"])
        assert (server.logins, asked(server, "late")) == (2, 1)


def test_no_connection_is_ready_while_a_thread_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the event loop, which is quick, could take each one that it gives back."""
    with pool_on(most=1) as (_, pool):
        with pool.connection():
            pass
        ready = pool.ready()
        assert ready is not None
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(waited_for, pool)
            eventually(lambda: pool._wanted, what="a thread that waits")
            with monkeypatch.context() as late, pool.lent(ready):
                late.setattr(pool._changed, "notify", lambda: None)  # The thread is slow.
            assert pool.ready() is None
            with pool._changed:
                pool._changed.notify()
            assert waits.result(10) is ready
        assert pool.ready() is ready


def waited_for(pool: Pool) -> StoreConnection:
    with pool.connection() as connection:
        return connection
