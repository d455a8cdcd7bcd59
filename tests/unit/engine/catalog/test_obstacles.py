"""Which settings of a server keep the engine from claiming anything."""

from __future__ import annotations

import pytest

from engine.catalog.obstacles import obstacle_of

USUAL = {"log_bin": "ON", "binlog_format": "ROW", "innodb_read_only": "OFF", "innodb_force_recovery": "0"}
GALERA = {"wsrep_on": "ON", "wsrep_forced_binlog_format": "NONE"}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        USUAL,
        {**USUAL, "binlog_format": "MIXED"},
        {**USUAL, "log_bin": "OFF", "binlog_format": "STATEMENT"},
        {**USUAL, "innodb_force_recovery": "3"},
        {**USUAL, **GALERA},
        {**USUAL, **GALERA, "wsrep_on": "OFF", "wsrep_forced_binlog_format": "STATEMENT"},
        {**USUAL, **GALERA, "binlog_format": "STATEMENT", "wsrep_forced_binlog_format": "ROW"},
    ],
)
@pytest.mark.parametrize("mariadb", [True, False])
def test_the_usual_servers_have_none(variables: dict[str, str], *, mariadb: bool) -> None:
    assert obstacle_of(variables, mariadb=mariadb) is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"binlog_format": "STATEMENT"}, "SET GLOBAL binlog_format = ROW"),
        ({**GALERA, "wsrep_forced_binlog_format": "STATEMENT"}, "SET GLOBAL binlog_format = ROW"),
        ({"innodb_read_only": "ON"}, "innodb_read_only"),
        ({"innodb_force_recovery": "4"}, "innodb_force_recovery"),
    ],
)
def test_a_setting_that_refuses_every_claim_is_one(changed: dict[str, str], told: str) -> None:
    obstacle = obstacle_of({**USUAL, **changed}, mariadb=False)
    assert obstacle is not None
    assert told in obstacle.text


def test_mariadb_takes_writes_in_forced_recovery() -> None:
    assert obstacle_of({**USUAL, "innodb_force_recovery": "4"}, mariadb=True) is None
