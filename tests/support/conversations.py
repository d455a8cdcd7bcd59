"""Scripts of clients that together use every command of the protocol.

Each script is for one client in an empty database.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from mysql_mimic.types import Commands

from engine.packets import ERR, text_values
from proxy.wire.framing import Packet
from tests.support.raw import DEPRECATE_EOF, RawClient

CURSOR = 1
Script = Callable[[RawClient], None]
SCRIPTS: list[Script] = []


def script(play: Script) -> Script:
    SCRIPTS.append(play)
    return play


@script
def several_statements_and_several_results(client: RawClient) -> None:
    client.query("SELECT 1; SELECT 2, 'x' FROM DUAL WHERE FALSE; DO 0; SELECT 3")
    client.query("SELECT 1; SELECT nothing; SELECT 3")
    client.query("CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2); SELECT * FROM t; DROP TABLE t")
    client.query("SELECT 1; SELEC 2; SELECT 3")
    client.query("")
    client.query("/* nothing */")
    client.query(";")


@script
def procedures_with_results_and_parameters_going_out(client: RawClient) -> None:
    client.query(
        "CREATE PROCEDURE p (IN a INT, OUT b INT, INOUT c VARCHAR(20))"
        " BEGIN SET b = a * 2; SET c = CONCAT(c, '!'); SELECT a, c; SELECT 'second'; END"
    )
    client.query("SET @c = 'text'; CALL p(4, @b, @c); SELECT @b, @c")
    number = client.prepare("CALL p(?, ?, ?)")
    for _ in range(2):
        client.execute(number, 5, None, "bound")
    client.query("CREATE PROCEDURE fails () BEGIN SELECT 1; SELECT * FROM missing; END")
    client.query("CALL fails()")
    client.execute(client.prepare("CALL fails()"))
    client.query("DROP PROCEDURE p")


@script
def prepared_statements(client: RawClient) -> None:
    client.query("CREATE TABLE t (a INT, b TEXT)")
    insert = client.prepare("INSERT INTO t VALUES (?, ?)")
    for a in range(3):
        client.execute(insert, a, f"row {a}")
    client.execute(insert, None, None)
    select = client.prepare("SELECT * FROM t WHERE a >= ? OR ? IS NULL")
    client.execute(select, 1, None)
    client.execute(select, 1, "x")
    client.prepare("SELEC ?")
    client.prepare("DO 0")
    client.about(Commands.COM_STMT_RESET, select)
    client.about(Commands.COM_STMT_CLOSE, select)
    client.execute(select, 1, None)  # 1243
    client.about(Commands.COM_STMT_RESET, 4711)
    client.about(Commands.COM_STMT_FETCH, 4711, bytes(4))


@script
def cursors(client: RawClient) -> None:
    client.query("CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2), (3), (4), (5)")
    number = client.prepare("SELECT a FROM t ORDER BY a")
    client.execute(number, cursor=CURSOR)
    for _ in range(4):
        client.about(Commands.COM_STMT_FETCH, number, (2).to_bytes(4, "little"))
    client.execute(number, cursor=CURSOR)
    client.about(Commands.COM_STMT_RESET, number)
    client.about(Commands.COM_STMT_FETCH, number, (2).to_bytes(4, "little"))
    # Not again without a cursor: MySQL 9.7 answers that with columns, no rows and a wrong end.
    client.execute(client.prepare("SELECT a FROM t WHERE a > 9"), cursor=CURSOR)
    client.execute(client.prepare("INSERT INTO t VALUES (6)"), cursor=CURSOR)


@script
def procedures_and_functions_that_open_cursors(client: RawClient) -> None:
    """The server marks what they send as if the client had a cursor."""
    client.query("CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2), (3)")
    opens = "DECLARE n INT; DECLARE c CURSOR FOR SELECT a FROM t ORDER BY a; OPEN c; FETCH c INTO n;"
    client.query(
        f"CREATE PROCEDURE p () BEGIN {opens} SELECT n; SELECT a FROM t ORDER BY a; CLOSE c; SELECT 'closed'; END"
    )
    client.query(f"CREATE PROCEDURE q (OUT b INT) BEGIN {opens} SELECT 'open'; SET b = n; END")
    client.query(f"CREATE FUNCTION f () RETURNS INT DETERMINISTIC READS SQL DATA BEGIN {opens} RETURN n; END")
    client.query("CALL p()")
    client.query("SELECT 1; CALL p(); SELECT a, f() FROM t ORDER BY a")
    client.query("CALL q(@b)")
    client.query("SELECT a FROM t WHERE a = f()")
    for text in ("CALL p()", "CALL q(?)", "SELECT a FROM t WHERE a >= f() ORDER BY a"):
        number = client.prepare(text)
        values = (None,) * text.count("?")
        client.execute(number, *values)
        client.execute(number, *values, cursor=CURSOR)
        client.about(Commands.COM_STMT_FETCH, number, (2).to_bytes(4, "little"))
        client.query("SELECT f()")


@script
def long_data(client: RawClient) -> None:
    client.query("CREATE TABLE t (a LONGBLOB)")
    number = client.prepare("INSERT INTO t VALUES (?)")
    for _ in range(3):
        client.about(Commands.COM_STMT_SEND_LONG_DATA, number, b"\0\0" + b"\x03STREAM" * 10_000)
    client.execute(number, "not this")
    client.about(Commands.COM_STMT_SEND_LONG_DATA, number, b"\0\0forgotten")
    client.about(Commands.COM_STMT_RESET, number)
    client.execute(number, "this")
    client.query("SELECT LENGTH(a), MD5(a) FROM t")
    client.about(Commands.COM_STMT_SEND_LONG_DATA, 4711, b"\0\0to nobody")


@script
def a_reset_of_the_connection(client: RawClient) -> None:
    client.query("SET @a = 1, time_zone = '+05:00'; CREATE TEMPORARY TABLE t (a INT); BEGIN")
    number = client.prepare("SELECT @a")
    client.ask(bytes([Commands.COM_RESET_CONNECTION]))
    client.execute(number)
    client.query("SELECT @a, @@time_zone")
    client.query("SELECT * FROM t")


@script
def small_commands(client: RawClient) -> None:
    client.ask(bytes([Commands.COM_PING]))
    client.ask(bytes([Commands.COM_STATISTICS]), told=_but_for_figures)
    client.ask(bytes([Commands.COM_INIT_DB]) + b"information_schema")
    client.query("SELECT DATABASE()")
    client.ask(bytes([Commands.COM_INIT_DB]) + b"missing")
    client.ask(bytes([Commands.COM_DEBUG]))
    client.ask(bytes([Commands.COM_PROCESS_INFO]), told=partial(_of_its_own_process, client))
    client.ask(bytes([Commands.COM_PROCESS_KILL]) + (0xFFFFFF).to_bytes(4, "little"))


def _but_for_figures(packets: list[Packet]) -> list[Packet]:
    return [Packet(seq, re.sub(rb"[0-9.]+", b"n", payload)) for seq, payload in packets]


def _of_its_own_process(client: RawClient, packets: list[Packet]) -> list[Packet]:
    """Of a list of processes the columns, the row of this connection and the end; how many others there are may
    change, and with them the number of the last packet."""
    if packets[0].payload[0] == ERR:
        return packets
    assert all((after.seq - before.seq) % 256 == 1 for before, after in pairwise(packets)), packets
    rows_at = 1 + packets[0].payload[0] + (not client.capabilities & DEPRECATE_EOF)
    *rows, last = packets[rows_at:]
    number = b"%d" % client.greeting.connection_id
    (own,) = (values for row in rows if (values := text_values(row.payload))[0] == number)
    _, user, host, db, command, _time, _state, info = own[:8]
    same = (user, (host or b"").partition(b":")[0], db, command, info, *own[8:])
    return [*packets[:rows_at], Packet(0, repr(same).encode()), Packet(0, last.payload)]


@script
def a_list_of_fields(client: RawClient) -> None:
    client.query("CREATE TABLE t (a INT DEFAULT 7, b VARCHAR(20) NOT NULL, abc TEXT)")
    client.ask(bytes([Commands.COM_FIELD_LIST]) + b"t\0")
    client.ask(bytes([Commands.COM_FIELD_LIST]) + b"t\0a%")
    client.ask(bytes([Commands.COM_FIELD_LIST]) + b"missing\0")


@script
def several_statements_switched_off_and_on(client: RawClient) -> None:
    for option in (1, 0, 7):
        client.ask(bytes([Commands.COM_SET_OPTION]) + option.to_bytes(2, "little"))
        client.query("SELECT 1; SELECT 2")


@script
def commands_that_nobody_knows(client: RawClient) -> None:
    client.ask(b"")
    for command in (0x00, 0x05, 0x06, 0x0B, 0x0F, 0x10, 0x13, 0x14, 0x1D, 0x50, 0xF0):
        client.ask(bytes([command]) + b"text")
        client.query("SELECT 1")


@script
def files_that_the_client_loads(client: RawClient) -> None:
    client.query("CREATE TABLE t (a TEXT)")
    load = make_load(client, "LOAD DATA LOCAL INFILE 'any' INTO TABLE t")
    line = b"\x03STREAM * FROM m\n"
    client.ask(load, file=[line * 1000] * 300)  # Number 254 of the packets begins like a command.
    client.ask(load, file=[])
    client.ask(load, file=[b"no line end"])
    client.ask(make_load(client, "LOAD DATA LOCAL INFILE 'any' INTO TABLE missing"), file=[line])
    client.ask(make_load(client, "LOAD DATA LOCAL INFILE 'a' INTO TABLE t; SELECT COUNT(*) FROM t"), file=[line])
    client.query("SELECT COUNT(*), MD5(GROUP_CONCAT(DISTINCT a)) FROM t")


def make_load(client: RawClient, text: str) -> bytes:
    return b"\x03" + (b"\0\1" if client.attributes else b"") + text.encode()


@script
def transactions_and_what_a_session_tracks(client: RawClient) -> None:
    client.query("CREATE TABLE t (a INT) ENGINE=InnoDB")
    client.query("SET session_track_transaction_info = 'CHARACTERISTICS', session_track_state_change = ON")
    client.query("SET session_track_system_variables = 'autocommit,character_set_client,sql_mode,time_zone'")
    for statement in (
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "SAVEPOINT s",
        "ROLLBACK TO s",
        "COMMIT",
        "SET autocommit = 0",
        "SELECT * FROM t",
        "ROLLBACK",
        "SET NAMES latin1",
        "USE mysql",
        "START TRANSACTION READ ONLY",
        "COMMIT AND CHAIN",
        "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
        "SET time_zone = '+03:00'; SET @a = 1",
    ):
        client.query(statement)


@script
def warnings_errors_and_odd_results(client: RawClient) -> None:
    client.query("CREATE TABLE t (a TINYINT, PRIMARY KEY (a))")
    client.query("INSERT IGNORE INTO t VALUES (1000), (1)")
    client.query("SHOW WARNINGS")
    client.query("INSERT INTO t VALUES (1), (1)")
    client.query("UPDATE t SET a = 2 WHERE a = 1")
    client.query("SELECT '', NULL, REPEAT('x', 300), REPEAT('x', 70000), 1.5, NOW() IS NULL")
    client.query("EXPLAIN SELECT * FROM t")
    client.query("CHECK TABLE t")
    client.query("HANDLER t OPEN; HANDLER t READ FIRST; HANDLER t CLOSE")
    client.query("SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'so'")
    client.query("PREPARE s FROM 'SELECT ?'; SET @a = 1; EXECUTE s USING @a; DEALLOCATE PREPARE s")
