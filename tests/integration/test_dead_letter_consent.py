"""Dead messages go only where the owner of the dead-letter table lets them: shown with accounts of limited rights."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

from tests.support.proxies import running_proxy
from tests.support.queues import create_queue, rows, run
from tests.support.servers import binary_or_skip, connect, running_server
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

NOW_NS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"


@pytest.fixture
def root(proxy, database) -> Iterator[Connection[Any]]:
    with proxy.connect(database=database) as connection:
        yield connection


@pytest.fixture
def shop(server, database) -> Iterator[str]:
    """Somebody else's database, with a queue `orders` in it that has a live and an acknowledged message."""
    name = f"{database}_shop"
    with connect(server) as direct:
        run(direct, f"CREATE DATABASE {name}")
        direct.select_db(name)
        create_queue(direct, "orders", vt_purge_after="9999999")
        run(direct, f"INSERT INTO orders (id, payload, time_next, time_acked) VALUES (1, 'paid', NULL, {NOW_NS})")
        run(direct, "INSERT INTO orders (id, payload) VALUES (2, 'open')")
        yield name
        run(direct, f"DROP DATABASE {name}")


@pytest.fixture
def account(server, proxy, database):
    """Makes connections through the proxy of a user with these privileges."""
    made: list[str] = []
    with contextlib.ExitStack() as open_until_then, connect(server) as direct:

        def log_in(*grants: str) -> Connection[Any]:
            made.append(f"u_{uuid.uuid4().hex[:12]}")
            run(direct, f"CREATE USER {made[-1]}@localhost")
            for grant in grants:
                run(direct, f"GRANT {grant} TO {made[-1]}@localhost")
            return open_until_then.enter_context(proxy.connect(user=made[-1], password="", database=database))

        yield log_in
        for user in made:
            run(direct, f"DROP USER {user}@localhost")


def refused(connection: Connection[Any], statement: str) -> tuple[int, str]:
    with pytest.raises(pymysql.MySQLError) as error:
        run(connection, statement)
    number, text = error.value.args
    return number, text


def comment(connection: Connection[Any], table: str) -> str:
    db, _, name = table.rpartition(".")
    found = rows(
        connection,
        "SELECT table_comment FROM information_schema.tables WHERE table_schema = COALESCE(NULLIF(%s, ''), DATABASE())"
        " AND table_name = %s",
        [db, name],
    )
    return str(found[0][0])


def die(connection: Connection[Any], queue: str, *keys: int) -> None:
    """Insert messages that were delivered as often as they may be, and wait until the engine has dealt with them."""
    for key in keys:
        run(connection, f"INSERT INTO {queue} (id, epoch, payload) VALUES ({key}, 1, 'poison')")
    rows(connection, f"STREAM * FROM {queue} NOWAIT")
    dealt_with = f"SELECT COUNT(*) FROM {queue} WHERE time_acked IS NULL AND time_next < {NOW_NS}"
    eventually(lambda: rows(connection, dealt_with) == [(0,)], what="all are moved or postponed")


def contents(connection: Connection[Any], table: str) -> list[tuple[Any, ...]]:
    return rows(connection, f"SELECT id, payload FROM {table} ORDER BY id")


def problem(connection: Connection[Any], queue: str) -> str:
    (database,) = rows(connection, "SELECT DATABASE()")[0]
    (found,) = [row[-1] for row in rows(connection, f"SHOW FULL QUEUES FROM {database}") if row[1] == queue]
    return found or ""


def test_a_plain_comment_does_not_make_the_engine_write_where_its_writer_may_not(root, database, shop, account) -> None:
    attacker = account(f"ALL ON {database}.*")
    create_queue(attacker, "q", max_attempts="1", dead_letter=f"{shop}.orders")
    before = contents(root, f"{shop}.orders")
    die(attacker, "q", 1, 3)
    assert contents(root, f"{shop}.orders") == before
    assert contents(root, "q") == [(1, "poison"), (3, "poison")]
    told = problem(attacker, "q")
    assert told.startswith(f"dead messages stay here: {shop}.orders, its DEAD_LETTER, does not exist, cannot be used")
    assert f"ALTER QUEUE `{database}`.`q` DEAD_LETTER = `{shop}`.`orders`, by an account with ALTER on both" in told
    run(root, f"ALTER QUEUE `{database}`.`q` DEAD_LETTER = `{shop}`.`orders`")
    assert problem(attacker, "q") == ""


def test_with_consent_written_by_who_may_alter_the_target_they_move_and_without_it_no_more(
    root, database, shop, account
) -> None:
    tenant = account(f"ALL ON {database}.*")
    create_queue(tenant, "q", max_attempts="1", dead_letter=f"{shop}.orders")
    clerk = account(f"ALTER, CREATE, INSERT, SELECT ON {shop}.orders", f"SELECT ON {database}.*")
    run(clerk, f"ALTER QUEUE {shop}.orders DEAD_LETTER_OF = ({database}.q, other)")
    assert comment(root, f"{shop}.orders").endswith(f",dead_letter_of={database}.q|other")
    assert problem(tenant, "q") == ""
    die(tenant, "q", 1)
    assert contents(root, f"{shop}.orders") == [(1, "poison"), (2, "open")]
    run(clerk, f"ALTER QUEUE {shop}.orders DEAD_LETTER_OF = NONE")
    die(tenant, "q", 3)
    assert contents(tenant, "q") == [(3, "poison")]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE QUEUE n (payload TEXT) MAX_ATTEMPTS = 1 DEAD_LETTER = {shop}.orders",
        "ALTER QUEUE q MAX_ATTEMPTS = 1 DEAD_LETTER = {shop}.orders",
        "ALTER QUEUE {shop}.orders DEAD_LETTER_OF = {database}.q",
    ],
)
def test_who_may_read_the_target_alone_cannot_consent_by_any_statement(
    root, database, shop, account, statement: str
) -> None:
    reader = account(f"ALL ON {database}.*", f"SELECT, INSERT, UPDATE, DELETE ON {shop}.*")
    create_queue(reader, "q")
    before = comment(root, f"{shop}.orders"), comment(root, "q")
    number, text = refused(reader, statement.format(shop=shop, database=database))
    assert (number, "ALTER command denied" in text, "orders" in text) == (1142, True, True)
    assert (comment(root, f"{shop}.orders"), comment(root, "q")) == before
    assert rows(root, "SHOW TABLES") == [("q",)]


def test_who_has_rights_on_one_table_of_a_database_cannot_reach_another_one_of_it(root, database, account) -> None:
    create_queue(root, "orders")
    create_queue(root, "q")
    user = account(f"ALL ON {database}.q")
    text = comment(user, "q") + ",max_attempts=1,dead_letter=orders"
    run(user, f"ALTER TABLE q COMMENT '{text}'")
    die(user, "q", 1)
    assert contents(root, "orders") == []
    assert contents(root, "q") == [(1, "poison")]


def test_create_and_alter_queue_consent_with_the_clients_own_rights(root, database, account) -> None:
    user = account(f"SELECT, INSERT, UPDATE, CREATE, ALTER ON {database}.*")
    run(user, "CREATE QUEUE a (payload TEXT) MAX_ATTEMPTS = 1 DEAD_LETTER = graves")
    assert comment(root, "graves").endswith(",dead_letter_of=a")
    run(user, "CREATE QUEUE b (payload TEXT) MAX_ATTEMPTS = 1 DEAD_LETTER = graves")
    run(user, "CREATE QUEUE `odd |``name` (payload TEXT)")
    for _ in range(2):
        run(user, f"ALTER QUEUE `odd |``name` MAX_ATTEMPTS = 1 DEAD_LETTER = {database}.graves")
    assert comment(root, "graves").endswith(",dead_letter_of=a|b|`odd |``name`")
    for key, queue in enumerate(["a", "b", "`odd |``name`"], 1):
        die(user, queue, key)
    assert contents(root, "graves") == [(key, "poison") for key in (1, 2, 3)]
    run(user, "CREATE QUEUE `a,b` (payload TEXT)")
    number, text = refused(user, "ALTER QUEUE `a,b` MAX_ATTEMPTS = 1 DEAD_LETTER = graves")
    assert (number, "has to name" in text, "comma" in text) == (1105, True, True)


@pytest.mark.parametrize("name", ["`odd.letters`", "`odd letters`", "`odd|letters`", "`odd``letters`"])
def test_a_dead_letter_table_can_have_any_name_but_one_with_a_comma(root, database, name) -> None:
    run(root, f"CREATE QUEUE q (payload TEXT) MAX_ATTEMPTS = 1 DEAD_LETTER = {name}")
    die(root, "q", 1)
    assert (contents(root, "q"), contents(root, name)) == ([], [(1, "poison")])
    text = rows(root, "SHOW CREATE QUEUE q")[0][1]
    run(root, f"REDRIVE QUEUE {name}")
    assert (contents(root, "q"), contents(root, name)) == ([(1, "poison")], [])
    run(root, "DROP QUEUE q")
    run(root, text)
    assert rows(root, "SHOW CREATE QUEUE q")[0][1] == text
    number, problem = refused(root, "ALTER QUEUE q DEAD_LETTER = `odd,letters`")
    assert (number, "comma" in problem) == (1105, True)


def test_a_dead_letter_table_is_named_in_any_case_where_the_server_spells_names_in_lower_case(tmp_path) -> None:
    # MySQL has this setting only on data that were made with it.
    binary_or_skip("mariadb")
    with (
        running_server("mariadb", options=["--lower-case-table-names=1"]) as server,
        running_proxy(server, tmp_path / "log") as proxy,
    ):
        with connect(server) as direct:
            run(direct, "CREATE DATABASE shop")
        with proxy.connect(database="shop") as root:
            run(root, "CREATE QUEUE Orders (payload TEXT) MAX_ATTEMPTS = 1 DEAD_LETTER = Graves")
            die(root, "Orders", 1)
            assert contents(root, "graves") == [(1, "poison")]
            run(root, "REDRIVE QUEUE Graves")
            assert (contents(root, "graves"), contents(root, "orders")) == ([], [(1, "poison")])


def test_a_queue_under_another_name_is_another_queue(root, database) -> None:
    run(root, "CREATE QUEUE a (payload TEXT) MAX_ATTEMPTS = 1 DEAD_LETTER = graves")
    run(root, "RENAME TABLE a TO b")
    die(root, "b", 1)
    assert contents(root, "b") == [(1, "poison")]
    assert f"ALTER QUEUE `{database}`.`b` DEAD_LETTER = `{database}`.`graves`" in problem(root, "b")


def test_a_queue_is_not_its_own_dead_letter_table_nor_by_way_of_others(root, database) -> None:
    number, text = refused(root, "CREATE QUEUE a (payload TEXT) MAX_ATTEMPTS = 1 DEAD_LETTER = a")
    assert (number, "is the queue itself" in text) == (1105, True)
    create_queue(root, "a", max_attempts="1", dead_letter="b", dead_letter_of="c")
    create_queue(root, "b", max_attempts="1", dead_letter="c", dead_letter_of="a")
    create_queue(root, "c", max_attempts="1", dead_letter="a", dead_letter_of="b")
    assert problem(root, "a").startswith(f"dead messages would come back: {database}.a > {database}.b > {database}.c")
    die(root, "a", 1)
    assert [contents(root, name) for name in "abc"] == [[(1, "poison")], [], []]


@pytest.mark.parametrize("mode", ["TRADITIONAL", ""])
def test_a_dead_letter_table_that_cannot_name_another_queue_is_an_error_that_says_so(root, database, mode: str) -> None:
    """Without strict mode the server would cut the comment, and so end the consent or the last name."""
    run(root, f"SET sql_mode = '{mode}'")
    sources = [f"q{number:09}" for number in range(169)]
    create_queue(root, "letters", dead_letter_of="|".join(sources))
    before = comment(root, "letters")
    named = "|" + "n" * 64
    assert len(before) <= 2048 < len(before + named)
    create_queue(root, "mail")
    for statement in (
        f"CREATE QUEUE `{named[1:]}` MAX_ATTEMPTS = 3 DEAD_LETTER = letters",
        f"ALTER QUEUE letters DEAD_LETTER_OF = ({', '.join(sources)}, {named[1:]})",
    ):
        number, text = refused(root, statement)
        assert number == 1628
        assert re.fullmatch(
            rf"The COMMENT of {database}\.letters would have 2\d\d\d characters, and a table's comment has 2048 at"
            r" most: its dead_letter_of would name 170 queues\. Give some of them another DEAD_LETTER, or take away"
            r" those that are gone: ALTER QUEUE … DEAD_LETTER_OF = \(…\)",
            text,
        ), text
    assert comment(root, "letters") == before
    assert rows(root, "SHOW TABLES LIKE 'n%'") == []


@pytest.mark.parametrize("mode", ["TRADITIONAL", ""])
def test_a_comment_that_is_too_long_is_refused_before_anything_is_made(root, database, mode: str) -> None:
    run(root, f"SET sql_mode = '{mode}'")
    number, text = refused(
        root, f"CREATE QUEUE mail MAX_ATTEMPTS = 3 DEAD_LETTER = mail_dead COMMENT = '{'long ' * 400}'"
    )
    assert (number, text.partition(" would")[0]) == (1628, f"The COMMENT of {database}.mail")
    assert text.endswith("2048 at most: shorten the text of COMMENT, or the directives")
    assert rows(root, "SHOW TABLES") == []
