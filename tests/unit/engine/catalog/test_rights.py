"""What SHOW GRANTS says of the engine's account, and what is said where a privilege is missing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.catalog.privileges import OF_A_QUEUE, Grants
from engine.model import TableId

TABLE = TableId("shop", "orders")
TO = " TO `engine`@`%`"


def grants(*lines: str, mariadb: bool = False) -> Grants:
    return Grants("`engine`@`%`", tuple(line + TO if line.startswith("GRANT") else line for line in lines), mariadb)


@pytest.mark.parametrize(
    "lines",
    [
        ["GRANT ALL PRIVILEGES ON *.*"],
        ["GRANT SELECT, INSERT, UPDATE, DELETE, CREATE TEMPORARY TABLES ON *.*"],
        ["GRANT USAGE ON *.*", "GRANT SELECT, UPDATE, DELETE ON `shop`.*"],
        ["GRANT ALL PRIVILEGES ON `shop`.`orders`"],
        ["GRANT SELECT ON *.*", "GRANT UPDATE, DELETE ON `shop`.*"],
        ["GRANT EVENT ON *.*", "GRANT SELECT, UPDATE, DELETE ON `shop`.`orders`"],
    ],
)
def test_privileges_that_are_there_beyond_doubt_are_seen(lines: Sequence[str]) -> None:
    assert grants(*lines).cover(TABLE, OF_A_QUEUE)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["GRANT USAGE ON *.*"],
        ["GRANT SELECT, UPDATE ON *.*"],
        ["GRANT SELECT ON *.*", "GRANT UPDATE ON `shop`.*", "GRANT DELETE ON `shop`.`orders`"],
        ["GRANT UPDATE ON `shop`.*", "GRANT SELECT, UPDATE, DELETE ON `shop`.`orders`"],
        ["GRANT SELECT, UPDATE, DELETE ON `shop`.`order`"],
        ["GRANT SELECT, UPDATE, DELETE ON `other`.*"],
        ["GRANT SELECT, UPDATE, DELETE ON `sh%`.*"],
        ["GRANT SELECT, UPDATE (`epoch`, `DELETE`), DELETE ON `shop`.`orders`"],
        ["GRANT `clerk`@`%`"],
        ["GRANT EXECUTE ON PROCEDURE `shop`.`orders`"],
        ["GRANT ALL PRIVILEGES ON *.*", "REVOKE DELETE ON `shop`.* FROM `engine`@`%`"],
    ],
)
def test_where_there_is_a_doubt_the_server_is_to_be_asked(lines: Sequence[str]) -> None:
    assert not grants(*lines).cover(TABLE, OF_A_QUEUE)


def test_of_two_patterns_that_fit_a_database_the_server_goes_by_one_and_so_neither_counts() -> None:
    found = grants("GRANT SELECT, UPDATE, DELETE ON `a_b`.*", "GRANT SELECT ON `a\\_b`.*")
    assert not found.cover(TableId("a_b", "orders"), OF_A_QUEUE)
    assert grants("GRANT SELECT, UPDATE, DELETE ON `a\\_b`.*").cover(TableId("a_b", "orders"), OF_A_QUEUE)


def test_names_with_backticks_are_read_as_they_are_written() -> None:
    found = grants("GRANT SELECT, UPDATE, DELETE ON `sh``op`.`or``ders`", "GRANT DELETE ON `x``y`.*")
    assert found.cover(TableId("sh`op", "or`ders"), OF_A_QUEUE)
    assert found.cover(TableId("x`y", "any"), ["DELETE"])


def test_what_is_missing_is_told_as_the_statement_that_grants_it() -> None:
    text = grants().missing_problem(TableId("sh`op", "orders"), ["UPDATE", "DELETE"])
    assert text.endswith("GRANT UPDATE, DELETE ON `sh``op`.`orders` TO `engine`@`%`")


@pytest.mark.parametrize(("mariadb", "privilege"), [(False, "CONNECTION_ADMIN"), (True, "CONNECTION ADMIN")])
def test_an_account_that_cannot_end_connections_is_told_so(mariadb: bool, privilege: str) -> None:
    (problem,) = grants("GRANT SELECT ON *.*", "GRANT CONNECTION_ADMIN ON `x`.*", mariadb=mariadb).problems()
    assert problem.endswith(f"GRANT {privilege} ON *.* TO `engine`@`%`")
    assert grants(f"GRANT SELECT ON *.*, {privilege} ON *.*", f"GRANT {privilege} ON *.*").problems() == ()
    assert grants("GRANT ALL PRIVILEGES ON *.*").problems() == ()


def test_a_server_that_checks_no_privileges_grants_all() -> None:
    found = Grants("", (), checked=False)
    assert found.cover(TABLE, OF_A_QUEUE)
    assert found.problems() == ()


def test_other_privileges_have_another_stamp() -> None:
    assert grants("GRANT SELECT ON *.*").stamp == grants("GRANT SELECT ON *.*").stamp
    assert grants("GRANT SELECT ON *.*").stamp != grants("GRANT SELECT, UPDATE ON *.*").stamp
