"""An error shows the client's own text, and what to write; never the SQL that was sent in its place."""

from __future__ import annotations

from contextlib import closing

import pymysql
import pytest

from engine.packets import ERR, frame
from proxy.wire.packets import parse_err
from tests.support import insides
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import BASE, RawClient

MULTI = pymysql.constants.CLIENT.MULTI_STATEMENTS
OURS = ("UPDATE", "time_acked", "time_next", "\n", "PRIMARY KEY", "vitess_message")
"""Text that only the statements sent in place of the client's contain."""

WRONG = [
    ("ACK FROM m WHERE id = 1 delay 3", "ACK", "'delay 3' at line 1: ", "DELAY and REASON belong to NACK"),
    ("ACK FROM m WHERE id = ", "ACK", "'' at line 1: ", "the server cannot read the condition here"),
    ("ACK FROM m\nWHERE id = 1\n AND AND", "ACK", "'AND' at line 3: ", "an ACK ends with it"),
    ("NACK FROM m WHERE note = 'ö' delayed 3", "NACK", "'delayed 3' at line 1: ", "DELAY seconds and REASON 'text'"),
    ("EXTEND FROM m WHERE id = AND 3 BY 4", "EXTEND", "'AND 3 BY 4' at line 1: ", "EXTEND takes BY seconds"),
]
"""Statements that the server refuses, with the text that the error quotes and the hint in it."""


@pytest.fixture
def connection(proxy, database):
    with proxy.connect(database=database) as connection:
        yield connection


def refused(connection, statement: str) -> tuple[int, str]:
    with pytest.raises(pymysql.MySQLError) as caught:
        rows(connection, statement)
    code, text = caught.value.args
    return code, text


def prepare_refused(proxy, database, statement: str) -> tuple[int, str]:
    with closing(RawClient(proxy, database=database, capabilities=BASE & ~MULTI)) as client:
        packet = client.ask(b"\x16" + statement.encode())[0].payload
    assert packet[0] == ERR
    error = parse_err(packet)
    return error.code, error.message


def checked(statement: str, name: str, quoted: str, hint: str, error: tuple[int, str]) -> None:
    code, text = error
    assert code == 1064
    assert text.startswith(f"You have an error in your {name} statement near {quoted}"), statement
    assert hint in text
    assert not [ours for ours in OURS if ours in text], statement


@pytest.mark.parametrize(("statement", "name", "quoted", "hint"), WRONG)
def test_what_the_server_cannot_read_is_shown_as_the_client_wrote_it(
    connection, statement: str, name: str, quoted: str, hint: str
) -> None:
    create_queue(connection, "m", "payload TEXT, note TEXT")
    checked(statement, name, quoted, hint, refused(connection, statement))
    assert rows(connection, "SELECT 1") == [(1,)]


@pytest.mark.parametrize(("statement", "name", "quoted", "hint"), WRONG)
def test_the_same_when_it_is_prepared(proxy, database, statement: str, name: str, quoted: str, hint: str) -> None:
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m", "payload TEXT, note TEXT")
        checked(statement, name, quoted, hint, prepare_refused(proxy, database, statement))


@pytest.mark.parametrize(
    ("statement", "quoted"),
    [
        ("CREATE QUEUE q (a INT CHECK (a > > 3), b INT)", "'> 3), b INT)' at line 1: "),
        ("CREATE QUEUE q (\n  a INT,\n  UNIQUE KEY x\n)", "')' at line 4: "),
        ("CREATE QUEUE q (a INT) ROW_FORMAT = nosuch", "'nosuch' at line 1: "),
        ("CREATE QUEUE q (a INT KEY KEY >) MAX_ATTEMPTS = 3 DEAD_LETTER = d", "'>) MAX_ATTEMPTS = 3 DEAD_LETTER = d'"),
    ],
)
def test_a_definition_that_the_server_cannot_read(connection, statement: str, quoted: str) -> None:
    for text in (statement, statement.replace("QUEUE", "QUEUE IF NOT EXISTS", 1)):
        checked(text, "CREATE QUEUE", quoted, "as in CREATE TABLE", refused(connection, text))
    assert rows(connection, "SHOW TABLES") == []


@pytest.mark.parametrize(
    ("statement", "equivalent"),
    [
        ("STREAM nothing FROM m", "SELECT nothing FROM m"),
        ("STREAM id, nothing FROM m WHERE missing = 1 LIMIT 1 NOWAIT", "SELECT id, nothing FROM m WHERE missing = 1"),
        ("STREAM * FROM m WHERE missing = 1 NOWAIT", "SELECT * FROM m WHERE missing = 1"),
        ("STREAM nothing FROM m LIMIT 1 WAIT 1 FOR UPDATE", "SELECT nothing FROM m"),
        ("STREAM id FROM m WHERE missing = 1 LIMIT 1 WAIT 1 FOR UPDATE", "SELECT id FROM m WHERE missing = 1"),
        ("ACK m WHERE missing = 1", "SELECT id FROM m WHERE missing = 1"),
        ("NACK m WHERE x.id = 1 DELAY 3", "SELECT id FROM m WHERE x.id = 1"),
        ("EXTEND m WHERE missing = 1 BY 3", "SELECT id FROM m WHERE missing = 1"),
        ("REDRIVE QUEUE m TO other WHERE missing = 1", "SELECT id FROM m WHERE missing = 1"),
    ],
)
def test_an_unknown_column_is_where_the_client_wrote_it(proxy, database, statement: str, equivalent: str) -> None:
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m", "payload TEXT, note TEXT")
        create_queue(connection, "other", "payload TEXT, note TEXT")
        expected = refused(connection, equivalent)
        assert expected[0] == 1054
        assert refused(connection, statement) == expected
    if not statement.startswith("REDRIVE"):
        assert prepare_refused(proxy, database, statement) == expected


@pytest.mark.parametrize("statement", ["STREAM note FROM m NOWAIT", "STREAM id FROM m WHERE note = 'a' NOWAIT"])
def test_so_is_a_column_that_was_dropped_after_the_same_stream(connection, proxy, database, statement: str) -> None:
    create_queue(connection, "m", "payload TEXT, note TEXT")
    assert rows(connection, statement) == []
    with proxy.connect(database=database) as other:
        run(other, "ALTER TABLE m DROP COLUMN note")
    assert refused(connection, statement) == refused(
        connection, statement.replace("STREAM", "SELECT").replace(" NOWAIT", "")
    )


def test_an_error_about_the_next_command_stays_as_it_is(proxy, database) -> None:
    with proxy.connect(database=database) as connection:
        create_queue(connection, "m", "payload TEXT, note TEXT")
        enqueue(connection, "m", "a")
        sent = ("ACK FROM m WHERE id = 1 delay 3", "SELEC 1", "SELECT 1")
        insides.socket_of(connection).sendall(b"".join(frame(b"\x03" + text.encode(), 0) for text in sent))
        for expected in ("in your ACK statement near 'delay 3'", "near 'SELEC 1'"):
            insides.expect_answer(connection)
            with pytest.raises(pymysql.err.ProgrammingError, match=expected):
                insides.answer(connection)
        insides.expect_answer(connection)
        assert insides.answer(connection).rows == ((1,),)


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("PAUSE m", "write PAUSE QUEUE m"),
        ("SHOW QUEUE", "write SHOW QUEUES"),
        ("STREEM * FROM m", "write STREAM"),
        ("SHOW QUEUS", "SHOW QUEUS is no statement: write SHOW QUEUES"),
        ("CREATE QUEU q (a INT)", "write CREATE QUEUE"),
        ("ALTER QUEU q ACK_WAIT = 3", "write ALTER QUEUE"),
        ("DROP QUEU q", "write DROP QUEUE"),
        ("RENAME QUEUE m TO n", "write RENAME TABLE"),
        ("SET STATEMENT max_statement_time=1 FOR STREAM id FROM m LIMIT 1 WAIT 5", "leave that out, or the driver's"),
        ("CREATE OR REPLACE QUEUE m (a INT)", "CREATE QUEUE replaces no table"),
        ("NAK FROM m WHERE id = ?", "write NACK"),
        ("STREAM * FROM m NOWAIT; SELECT 1", "has to be alone in its packet"),
    ],
)
def test_a_hint_in_a_query_and_when_it_is_prepared(proxy, database, statement: str, hint: str) -> None:
    with proxy.connect(database=database) as connection:
        in_a_query = refused(connection, statement)
    for code, text in (in_a_query, prepare_refused(proxy, database, statement)):
        assert code == 1064
        assert hint in text


@pytest.mark.parametrize(
    ("second", "hint"),
    [
        ("STREAM * FROM m NOWAIT", "; a statement of ackstream's has to be alone in its packet"),
        ("ACK FROM m WHERE id = 1", "; a statement of ackstream's has to be alone in its packet"),
        ("SHOW QUEUES", "; a statement of ackstream's has to be alone in its packet"),
        ("PAUSE m", "; write PAUSE QUEUE m; a statement of ackstream's has to be alone"),
        ("STREEM * FROM m", "; STREEM is no statement: write STREAM; a statement of ackstream's has to be alone"),
        ("DROP QUEU m", "; DROP QUEU is no statement: write DROP QUEUE; a statement of ackstream's has to be alone"),
        ("SHOW QUEUS", "; SHOW QUEUS is no statement: write SHOW QUEUES; a statement of ackstream's has to be alone"),
    ],
)
def test_a_hint_for_a_later_statement_of_a_packet(proxy, database, second: str, hint: str) -> None:
    with proxy.connect(database=database, client_flag=MULTI) as connection:
        create_queue(connection, "m", "payload TEXT, note TEXT")
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO m (payload) VALUES ('a'); SELECT id FROM m; {second}; SELECT 2")
            assert cursor.rowcount == 1
            assert cursor.nextset()
            assert cursor.fetchall() == ((1,),)
            with pytest.raises(pymysql.err.ProgrammingError) as caught:
                cursor.nextset()
        assert caught.value.args[0] == 1064
        assert hint in caught.value.args[1]
        # The insert of that packet was noticed: the message is delivered.
        assert rows(connection, "STREAM id FROM m LIMIT 1 WAIT 20") == [(1,)]
        assert run(connection, "ACK FROM m WHERE id = 1") == 1
