"""Which tables can take all values of another one's rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from engine.catalog.verdict import Column, Index, IndexColumn, TableFacts, evaluate
from engine.model import TableId
from engine.queue_table import BrokenTable, QueueTable
from engine.store.dead_letter_plan import CHAIN_MAX, NAMES_MAX, Chain, closed_to, columns_to_move, obstacles
from tests.support.stores import COMMENT

SHOP, DEAD = TableId("shop", "mail"), TableId("shop", "dead")
TAKING = f"{COMMENT},dead_letter_of=mail"


def column(name: str, full_type: str = "bigint", extra: str = "") -> Column:
    nullable = name.startswith("time_")
    return Column(name, full_type.partition("(")[0].partition(" ")[0], nullable, 0, extra, full_type)


OWN = [column("id"), column("priority"), column("epoch"), column("time_next"), column("time_acked")]


def facts(table: TableId, *own: Column, comment: str = COMMENT) -> TableFacts:
    primary = Index("PRIMARY", unique=True, columns=(IndexColumn("id", descending=False, whole=True),))
    return TableFacts(table, comment, "InnoDB", [*OWN, *own], [primary])


def told(source: list[Column], target: list[Column]) -> str:
    return "; ".join(obstacles(facts(SHOP, *source), DEAD, facts(DEAD, *target, comment=TAKING)))


def test_all_stored_columns_are_moved_except_the_two_times() -> None:
    source = facts(
        SHOP,
        column("Body", "json"),
        column("twice", extra="VIRTUAL GENERATED"),
        column("at", "datetime", extra="DEFAULT_GENERATED"),
        column("secret", extra="INVISIBLE"),
    )
    assert columns_to_move(source) == ("id", "priority", "epoch", "Body", "at", "secret")


def test_a_table_of_the_same_columns_takes_them_in_any_order_and_case_and_with_more_of_its_own() -> None:
    source = [column("Body", "json"), column("tenant", "int"), column("twice", extra="STORED GENERATED")]
    assert told(source, [column("reason", "text"), column("TENANT", "int"), column("body", "json")]) == ""


@pytest.mark.parametrize(
    ("target", "part"),
    [
        (None, "shop.dead does not exist"),
        (facts(SHOP), "shop.dead is the table itself"),
        (facts(DEAD, comment=""), "shop.dead is no message table"),
        (facts(DEAD, comment="vitess_message"), "shop.dead cannot be used as a queue: vt_ack_wait is missing"),
    ],
)
def test_only_another_message_table_will_do(target: TableFacts | None, part: str) -> None:
    (problem,) = obstacles(facts(SHOP), DEAD, target)
    assert problem.startswith(part)


def test_all_problems_of_its_columns_are_reported_at_once() -> None:
    source = [column("a"), column("b"), column("c", "datetime(6)"), column("d")]
    assert told(source, [column("c", "datetime"), column("d", extra="VIRTUAL GENERATED")]) == (
        "shop.dead lacks columns a, b: add what shop.mail has; "
        "shop.dead computes column d, where shop.mail stores a value: make it an ordinary column; "
        "shop.dead has another type for column c (datetime for datetime(6)): give it that of shop.mail"
    )


def test_of_many_columns_the_first_are_named() -> None:
    assert f"c{NAMES_MAX - 1} and 2 more" in told([column(f"c{number}") for number in range(NAMES_MAX + 2)], [])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("int", "bigint unsigned"),
        ("bigint", "tinyint"),
        ("varchar(50)", "varchar(10)"),
        ("char(10)", "varchar(10)"),
        ("char(10)", "char(5)"),
        ("text", "varchar(10)"),
        ("binary(16)", "varbinary(16)"),
        ("varbinary(20)", "longblob"),
        ("datetime(6)", "datetime(6)"),
        ("enum('a','b')", "enum('a','b')"),
    ],
)
def test_a_type_whose_values_the_server_keeps_or_refuses_is_accepted(ours: str, theirs: str) -> None:
    assert told([column("a", ours)], [column("a", theirs)]) == ""


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("datetime(6)", "datetime"),
        ("timestamp", "datetime"),
        ("double", "float"),
        ("decimal(20,5)", "decimal(20,2)"),
        ("bigint", "double"),
        ("varchar(10)", "char(10)"),
        ("varbinary(4)", "binary(8)"),
        ("blob", "text"),
        ("enum('a','b')", "enum('b','a')"),
        ("json", "longtext"),
    ],
)
def test_a_type_that_could_change_a_value_without_an_error_is_refused(ours: str, theirs: str) -> None:
    assert "has another type for column a" in told([column("a", ours)], [column("a", theirs)])


def test_the_times_and_the_comment_of_the_source_do_not_matter() -> None:
    source = replace(facts(SHOP), comment="vitess_message")
    assert obstacles(source, DEAD, facts(DEAD, comment=TAKING)) == ()


# The other table's consent.


def queue_of(table: TableId, directives: str = "", *, lower_case: int = 0) -> QueueTable:
    verdict = evaluate(replace(facts(table, comment=f"{COMMENT}{directives}"), lower_case_table_names=lower_case))
    assert isinstance(verdict, QueueTable), verdict
    return verdict


@pytest.mark.parametrize(
    ("directives", "taken"),
    [
        ("", False),
        (",dead_letter_of=mail", True),
        (",dead_letter_of=x|shop.mail", True),
        (",dead_letter_of=shop2.mail", False),
        (",dead_letter_of=Mail", False),
        (",dead_letter_of=`shop.mail`", False),
    ],
)
def test_a_table_takes_dead_messages_of_those_that_its_comment_names(directives: str, *, taken: bool) -> None:
    target = facts(DEAD, comment=COMMENT + directives)
    problems = obstacles(facts(SHOP), DEAD, target)
    assert (problems == ()) is taken
    assert taken or "ALTER QUEUE `shop`.`mail` DEAD_LETTER = `shop`.`dead`" in problems[0]


def test_a_name_without_database_is_in_that_of_the_table_whose_comment_it_is() -> None:
    elsewhere = TableId("archive", "dead")
    assert obstacles(facts(SHOP), elsewhere, facts(elsewhere, comment=TAKING))
    assert not obstacles(facts(SHOP), elsewhere, facts(elsewhere, comment=f"{COMMENT},dead_letter_of=shop.mail"))


def test_names_are_compared_as_the_server_compares_them() -> None:
    folding = queue_of(DEAD, ",dead_letter_of=Mail|ÜBER", lower_case=1)
    assert folding.takes_dead_letters_of(TableId("shop", "mail"))
    assert not folding.takes_dead_letters_of(TableId("shop", "über"))
    assert folding.takes_dead_letters_of(TableId("shop", "ÜBER"))
    assert not queue_of(DEAD, ",dead_letter_of=Mail").takes_dead_letters_of(TableId("shop", "mail"))


@pytest.mark.parametrize(("lower_case", "spelled"), [(0, "Graves"), (1, "graves"), (2, "Graves")])
def test_the_dead_letter_table_is_in_the_servers_spelling(lower_case: int, spelled: str) -> None:
    queue = queue_of(SHOP, ",max_attempts=9,dead_letter=Graves", lower_case=lower_case)
    assert queue.dead_letter == TableId(SHOP.db, spelled)


def test_a_user_who_sees_the_queue_alone_gets_the_same_text_for_each_table_that_refuses_its_messages() -> None:
    broken = BrokenTable(DEAD, ("secret",))
    told = {
        closed_to(SHOP, DEAD, found) for found in (None, broken, queue_of(DEAD), queue_of(DEAD, ",dead_letter_of=x"))
    }
    assert len(told) == 1
    assert "ALTER QUEUE `shop`.`mail` DEAD_LETTER = `shop`.`dead`" in str(told.pop())
    assert closed_to(SHOP, DEAD, queue_of(DEAD, ",dead_letter_of=mail")) is None
    assert "is the table itself" in str(closed_to(SHOP, SHOP, queue_of(SHOP)))


def followed(*tables: QueueTable) -> Chain:
    """The chain from SHOP through the first of these tables. The others exist."""
    there = {table.id: table for table in tables}
    chain = Chain(SHOP, tables[0])
    while chain.onward is not None:
        chain.add(there.get(chain.onward))
    return chain


def onward(name: str, to: str, takes: str) -> QueueTable:
    return queue_of(TableId("shop", name), f",max_attempts=9,dead_letter={to},dead_letter_of={takes}")


def test_messages_that_would_come_back_are_not_moved() -> None:
    mail = onward("mail", "dead", "dead|last")
    assert "shop.mail > shop.dead > shop.mail" in str(followed(onward("dead", "mail", "mail"), mail).problem)
    chain = followed(onward("dead", "last", "mail"), onward("last", "mail", "dead"), mail)
    assert "shop.mail > shop.dead > shop.last > shop.mail" in str(chain.problem)


def test_a_chain_that_ends_or_goes_in_a_circle_of_its_own_is_no_obstacle() -> None:
    assert followed(queue_of(DEAD)).problem is None
    assert followed(onward("dead", "nowhere", "mail")).problem is None
    assert followed(onward("dead", "last", "mail"), onward("last", "dead", "dead")).problem is None
    assert followed(onward("dead", "mail", "mail"), onward("mail", "dead", "others")).problem is None


def test_a_chain_without_end_is_not_followed_for_ever() -> None:
    names = [f"d{at}" for at in range(CHAIN_MAX + 5)]
    tables = [onward(name, to, "mail" if at == 0 else names[at - 1]) for at, (name, to) in enumerate(pairwise(names))]
    assert "not followed" in str(followed(*tables).problem)
