"""CREATE QUEUE and its family: what they say, what is passed through, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.catalog.directives import OPTIONS
from sqlrewrite.errors import SqlError
from sqlrewrite.lexicon import SqlMode
from sqlrewrite.names import TableName
from sqlrewrite.queue_statements import (
    AlterQueue,
    AlterSemaphore,
    CreateQueue,
    CreateSemaphore,
    DropQueue,
    DropSemaphore,
    PauseQueue,
    PurgeQueue,
    RedriveQueue,
    ShowBatches,
    ShowCreateQueue,
    ShowDeliveries,
    ShowGroups,
    ShowProxies,
    ShowQueues,
    ShowSemaphores,
    ShowStreams,
)
from sqlrewrite.queues import parse_queue_statement
from sqlrewrite.tokens import STATEMENT_BYTES_MAX

FIXTURES = Path(__file__).parents[2] / "fixtures"
T = TableName("t")

OWN = (
    "id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT",
    "priority INT NOT NULL DEFAULT 0",
    "epoch BIGINT NOT NULL DEFAULT 0",
    "time_next BIGINT DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)",
    "time_acked BIGINT DEFAULT NULL",
)
KEYS = ("PRIMARY KEY (id)", "KEY (time_acked, priority, time_next, id)")


def parse(sql: str | bytes, codec: str = "utf-8", **mode: bool) -> Any:
    return parse_queue_statement(sql if isinstance(sql, bytes) else sql.encode(), OPTIONS, codec, SqlMode(**mode))


def create(sql: str) -> CreateQueue:
    statement = parse(f"CREATE QUEUE t {sql}")
    assert isinstance(statement, CreateQueue)
    return statement


def definitions(text: bytes) -> list[str]:
    """The definitions on lines of their own, as a reader would list them."""
    return [line.strip(", ") for line in text.decode().splitlines() if line.strip(", ")]


@pytest.mark.parametrize("statement", (FIXTURES / "queues.sql").read_text().splitlines())
def test_every_statement_that_is_classified_as_ours_can_be_read(statement: str) -> None:
    assert parse(statement, ansi_quotes=True)


def test_the_queues_own_columns_and_keys_are_added_around_the_applications() -> None:
    statement = create("(user_id BIGINT, payload JSON)")
    assert definitions(statement.definitions_sql(None)) == [*OWN, "user_id BIGINT, payload JSON", *KEYS]


@pytest.mark.parametrize("sql", ["", "()", "( )", "ACK_WAIT = 1"])
def test_a_queue_needs_no_columns_of_the_applications(sql: str) -> None:
    assert definitions(create(sql).definitions_sql(None)) == [*OWN, *KEYS]


@pytest.mark.parametrize(
    ("declared", "added"),
    [
        ("id BINARY(16) PRIMARY KEY", [*OWN[1:], KEYS[1]]),
        ("`ID` BINARY(16) KEY", [*OWN[1:], KEYS[1]]),
        ("id BINARY(16)", [*OWN[1:], *KEYS]),
        ("id BINARY(16) COMMENT 'PRIMARY KEY'", [*OWN[1:], *KEYS]),
        ("id SERIAL, a INT PRIMARY KEY", [*OWN[1:], KEYS[1]]),
        ("id INT, PRIMARY KEY (id)", [*OWN[1:], KEYS[1]]),
        ("id INT, CONSTRAINT pk PRIMARY KEY USING BTREE (`id` ASC)", [*OWN[1:], KEYS[1]]),
        ("a INT, PRIMARY KEY (a)", [*OWN, "UNIQUE KEY (id)", KEYS[1]]),
        ("a INT, PRIMARY KEY (a), UNIQUE u (id)", [*OWN, KEYS[1]]),
        ("a INT, PRIMARY KEY (a), UNIQUE u (id(4))", [*OWN, "UNIQUE KEY (id)", KEYS[1]]),
        ("priority TINYINT, epoch BIGINT", [OWN[0], *OWN[3:], *KEYS]),
        ("time_next BIGINT DEFAULT 0, `time_acked` BIGINT", [*OWN[:3], *KEYS]),
        ("KEY mine (time_acked, priority, time_next DESC)", [*OWN, KEYS[0]]),
        ("INDEX (time_acked, priority)", [*OWN, *KEYS]),
        ("period INT, vector INT, `key` INT, PERIOD FOR SYSTEM_TIME (a, b)", [*OWN, *KEYS]),
        ("a INT CHECK (a IN (1, 2)), CHECK (a <> 3), FOREIGN KEY (a) REFERENCES u (id)", [*OWN, *KEYS]),
    ],
)
def test_what_is_declared_is_not_added(declared: str, added: list[str]) -> None:
    found = definitions(create(f"({declared})").definitions_sql(None))
    assert declared in found
    assert [definition for definition in found if definition != declared] == added


@pytest.mark.parametrize(
    ("sql", "options", "rest"),
    [
        ("ACK_WAIT = 30", {"ACK_WAIT": "30"}, ""),
        ("ack_wait .5 Max_Rate=100,CACHE_SIZE 7", {"ACK_WAIT": ".5", "MAX_RATE": "100", "CACHE_SIZE": "7"}, ""),
        ("DEAD_LETTER orders_dead", {"DEAD_LETTER": "orders_dead"}, ""),
        ("DEAD_LETTER = app . `dead`", {"DEAD_LETTER": "app.dead"}, ""),
        ("DEAD_LETTER_OF (a, app . `b`)", {"DEAD_LETTER_OF": "a|app.b"}, ""),
        ("ON_DISCONNECT = keep", {"ON_DISCONNECT": "keep"}, ""),
        ("MESSAGE_COLS = (id, `a b`)", {"MESSAGE_COLS": "id|a b"}, ""),
        ("MESSAGE_COLS 'id|a'", {"MESSAGE_COLS": "id|a"}, ""),
        ("MAX_RATE = DEFAULT", {"MAX_RATE": None}, ""),
        ("ENGINE=InnoDB ACK_WAIT=1 CHARSET utf8mb4", {"ACK_WAIT": "1"}, "ENGINE=InnoDB CHARSET utf8mb4"),
        ("ENGINE = InnoDB, ACK_WAIT = 1, CHECKSUM = 1", {"ACK_WAIT": "1"}, "ENGINE = InnoDB, CHECKSUM = 1"),
        ("DEFAULT CHARACTER SET = utf8mb4 COLLATE x", {}, "DEFAULT CHARACTER SET = utf8mb4 COLLATE x"),
        ("DATA DIRECTORY = '/ACK_WAIT=1' UNION = (a, b)", {}, "DATA DIRECTORY = '/ACK_WAIT=1' UNION = (a, b)"),
        ("PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (9)) ACK_WAIT = 1", {"ACK_WAIT": "1"},
         "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (9))"),
        ("ACK_WAIT = 1 /*!50100 PARTITION BY KEY (id) PARTITIONS 2 */", {"ACK_WAIT": "1"},
         "/*!50100 PARTITION BY KEY (id) PARTITIONS 2 */"),
        ("WITH SYSTEM VERSIONING ACK_WAIT = 1", {"ACK_WAIT": "1"}, "WITH SYSTEM VERSIONING"),
    ],
)  # fmt: skip
def test_options_are_cut_out_of_the_tables_own_in_any_order(sql: str, options: dict[str, str], rest: str) -> None:
    statement = create(f"(a INT) {sql}")
    assert (dict(statement.options), statement.table_options.decode()) == (options, rest)


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        ("GROUP_BY = (`a.b`, `c d`, e)", "a.b|c d|e"),
        ("GROUP_BY = `a.b`", "a.b"),
        ("DEAD_LETTER = `d.dead`", "`d.dead`"),
        ("DEAD_LETTER = `my shop`.dead", "`my shop`.dead"),
        ("DEAD_LETTER_OF = (a, `b|c`, shop.`d``e`)", "a|`b|c`|shop.`d``e`"),
    ],
)
def test_the_names_in_an_option_are_spelled_as_a_directive_takes_them(value: str, spelled: str) -> None:
    ((_, written),) = parse(f"ALTER QUEUE t {value}").options
    assert written == spelled


@pytest.mark.parametrize(
    "value", ["(x y)", "(x)y)", "(`x|y`)", "(x, `y|z`)", "`x|y`", "()", "(x,)", "('x')", "(x.y.z)"]
)
def test_what_is_no_list_of_names_is_refused(value: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(f"ALTER QUEUE t GROUP_BY = {value}")
    assert caught.value.code == 1064


def test_a_comment_and_a_retention_are_ours_too() -> None:
    statement = create("COMMENT = 'it''s \\'mine\\'\\n' RETENTION BY PARTITION ENGINE InnoDB")
    assert (statement.comment, statement.by_partition, statement.table_options) == (
        "it's 'mine'\n",
        True,
        b"ENGINE InnoDB",
    )
    assert parse(b"CREATE QUEUE t COMMENT 'a\\n'", no_backslash_escapes=True).comment == "a\\n"


def test_what_passes_through_keeps_the_clients_bytes() -> None:
    sql = "CREATE QUEUE t (`größe` INT DEFAULT 1 /* ) ' */, n VARCHAR(9) DEFAULT ')') COMMENT 'größe'".encode("latin-1")
    statement = parse(sql, codec="latin-1")
    assert "`größe` INT DEFAULT 1 /* ) ' */, n VARCHAR(9) DEFAULT ')'".encode("latin-1") in statement.definitions_sql(
        None
    )
    assert statement.comment == "größe"


def test_dead_letters_have_the_same_columns_and_nothing_that_could_refuse_them() -> None:
    statement = create(
        "(id CHAR(9) UNIQUE, a INT UNIQUE KEY, b INT CONSTRAINT c1 CHECK (b > 0), CONSTRAINT c2 CHECK (a > 0),"
        " CONSTRAINT c3 FOREIGN KEY (a) REFERENCES u (id), UNIQUE KEY k (a, b), KEY (b), UNIQUE (id))"
    )
    text = statement.dead_letter_sql(None).decode()
    assert "id CHAR(9) UNIQUE," in text
    assert "UNIQUE (id)" in text
    assert "KEY (b)" in text
    assert [word for word in ("a INT UNIQUE", "c1", "c2", "c3", "FOREIGN", "(a, b)") if word in text] == []
    assert text.count("CHECK") == 2


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ALTER QUEUE t ACK_WAIT = 5, max_rate DEFAULT", AlterQueue(T, (("ACK_WAIT", "5"), ("MAX_RATE", None)), None)),
        ("ALTER QUEUE a.t COMMENT 'x'", AlterQueue(TableName("t", "a"), (), "x")),
        ("DROP QUEUE t", DropQueue(T, if_exists=False)),
        ("DROP QUEUE IF EXISTS `t`", DropQueue(T, if_exists=True)),
        ("PAUSE QUEUE t", PauseQueue(T, paused=True)),
        ("RESUME QUEUE t", PauseQueue(T, paused=False)),
        ("PURGE QUEUE t;", PurgeQueue(T)),
        ("REDRIVE QUEUE t", RedriveQueue(T, None, None)),
        ("REDRIVE QUEUE t TO a.u", RedriveQueue(T, TableName("u", "a"), None)),
        ("SHOW QUEUES", ShowQueues(None, None)),
        ("SHOW QUEUES FROM a LIKE 'b%'", ShowQueues("a", b"'b%'")),
        ("SHOW QUEUES LIKE 'b%' IN a", ShowQueues("a", b"'b%'")),
        ("SHOW FULL QUEUES FROM a", ShowQueues("a", None, full=True)),
        ("SHOW QUEUES WITH PROBLEMS", ShowQueues(None, None, with_problems=True)),
        ("SHOW FULL QUEUES FROM a LIKE 'b%' WITH PROBLEMS", ShowQueues("a", b"'b%'", full=True, with_problems=True)),
        ("SHOW STREAMS", ShowStreams()),
        ("SHOW BATCHES FROM t", ShowBatches(TableName("t"), None)),
        ("show batches from a.t limit 20", ShowBatches(TableName("t", "a"), 20)),
        ("SHOW DELIVERIES", ShowDeliveries(None, None)),
        ("show deliveries from a.t limit 20", ShowDeliveries(TableName("t", "a"), 20)),
        ("SHOW DELIVERIES LIMIT 10000", ShowDeliveries(None, 10_000)),
        ("SHOW GROUPS FROM a.t", ShowGroups(TableName("t", "a"), None, None)),
        ("show groups in t like 'x%' limit 9", ShowGroups(T, b"'x%'", 9)),
        ("SHOW PROXIES", ShowProxies()),
        ("SHOW SEMAPHORES", ShowSemaphores(None, None)),
        ("show semaphores like 'x%' from a;", ShowSemaphores("a", b"'x%'")),
        ("CREATE SEMAPHORE t CAPACITY 16", CreateSemaphore(T, 16, if_not_exists=False)),
        (
            "create semaphore if not exists a.t capacity = 1",
            CreateSemaphore(TableName("t", "a"), 1, if_not_exists=True),
        ),
        ("ALTER SEMAPHORE `t` CAPACITY 1000000;", AlterSemaphore(T, 1_000_000)),
        ("DROP SEMAPHORE a.t", DropSemaphore(TableName("t", "a"), if_exists=False)),
        ("DROP SEMAPHORE IF EXISTS t", DropSemaphore(T, if_exists=True)),
        ("SHOW CREATE QUEUE a.t", ShowCreateQueue(TableName("t", "a"))),
    ],
)
def test_the_others_are_small(sql: str, expected: object) -> None:
    assert parse(sql) == expected


@pytest.mark.parametrize("name", ["`a,b`", "` a`", "`a `", f"`{'x' * 65}`"])
def test_a_name_that_no_column_of_needs_can_contain_is_refused(name: str) -> None:
    with pytest.raises(SqlError, match="cannot be the name of a semaphore"):
        parse(f"CREATE SEMAPHORE {name} CAPACITY 1")


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE SEMAPHORE CAPACITY 1", "CREATE SEMAPHORE t", "CREATE SEMAPHORE t CAPACITY",
        "CREATE SEMAPHORE t CAPACITY 0",
        "CREATE SEMAPHORE t CAPACITY 1.5", "ALTER SEMAPHORE t CAPACITY 1000001", "DROP SEMAPHORE t CAPACITY 1",
        "PAUSE SEMAPHORE t", "SHOW SEMAPHORES FROM",
    ],
)  # fmt: skip
def test_other_statements_about_semaphores_are_refused(sql: str) -> None:
    with pytest.raises(SqlError):
        parse(sql)


def test_a_redrive_has_the_condition_of_a_stream() -> None:
    statement = parse("REDRIVE QUEUE t TO u WHERE `größe` = ? AND b <> '?' ; -- x")
    assert isinstance(statement, RedriveQueue)
    assert statement.condition is not None
    assert statement.condition.columns == {"größe", "b"}
    assert statement.param_count == 1
    bound = statement.bind([7]).condition
    assert bound is not None
    assert "`größe` = 7" in bound.sql()
    with pytest.raises(SqlError, match="1 parameters, and 2 were given"):
        statement.bind([7, 8])


def test_partitions_by_time_have_other_keys() -> None:
    statement = create("(id BINARY(16) -- mine\n, a INT) RETENTION BY PARTITION")
    assert statement.definitions_sql(None).decode().split(",\n")[-2:] == [
        "UNIQUE KEY (id, time_acked)",
        "KEY (time_acked, priority, time_next, id)",
    ]
    assert b"id BINARY(16) NOT NULL -- mine\n" in statement.definitions_sql(None)
    assert b"PRIMARY KEY (id)" in statement.dead_letter_sql(None)
    assert b"id BINARY(16) -- mine" in statement.dead_letter_sql(None)
    assert b"UNIQUE" not in create("(KEY (id)) RETENTION BY PARTITION").definitions_sql(None)


@pytest.mark.parametrize(
    ("clause", "by_time"),
    [
        ("RANGE (time_acked)", True),
        ("range /* x */ columns (`Time_Acked`)", True),
        ("RANGE (time_acked DIV 2)", False),
        ("RANGE COLUMNS (time_acked, id)", False),
        ("HASH (time_acked)", False),
    ],
)
def test_an_applications_own_partitions_by_time_are_recognised(clause: str, *, by_time: bool) -> None:
    statement = create(f"(a INT) ACK_WAIT 5 PARTITION BY {clause} (PARTITION p VALUES LESS THAN (5)) MAX_RATE 3")
    assert (b"UNIQUE KEY (id, time_acked)" in statement.definitions_sql(None)) is by_time
    assert (b"PRIMARY KEY" in statement.dead_letter_sql(None)) is not by_time


def test_a_very_long_statement_is_refused_before_it_is_cut() -> None:
    with pytest.raises(SqlError, match="more than"):
        parse(b"CREATE QUEUE t (" + b"a INT," * (STATEMENT_BYTES_MAX // 6) + b"b INT)")


@pytest.mark.cpu(20)
@pytest.mark.parametrize(
    "piece",
    [b"(", b"'", b"/*!", b"a,", b"\0"],
)
def test_hostile_text_comes_to_an_end(piece: bytes) -> None:
    with pytest.raises(SqlError):
        parse(b"CREATE QUEUE t (" + piece * 200_001)
