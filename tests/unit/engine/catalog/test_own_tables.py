"""The versions of the tables that ackstream itself makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.catalog.own_tables import OWN_TABLES, PREFIX, RATES_TABLE, OwnTable, version_of
from engine.queue_table import Policy

LATER = OwnTable("ackstream_rates", "rates", lambda _: True, "create_rates", ("rates_to_2", "rates_to_3"))


@pytest.mark.parametrize("name", sorted(OWN_TABLES))
def test_the_comment_of_a_table_names_its_version(name: str) -> None:
    own = OWN_TABLES[name]
    assert own.comment().startswith(PREFIX)
    assert version_of(own.comment()) == own.version
    assert own.problem("shop.t", own.comment()) is None


def test_a_table_of_a_release_without_versions_has_the_first_one() -> None:
    assert version_of("ackstream: MAX_RATE of the queues over all proxies") == 1
    assert RATES_TABLE.problem("shop.ackstream_rates", "") is None


@pytest.mark.parametrize(
    ("version", "end"),
    [
        (1, "this program uses version 3: run ackstream migrate"),
        (4, "this program uses version 3: use a newer ackstream"),
    ],
)
def test_another_version_is_refused_with_the_remedy(version: int, end: str) -> None:
    assert LATER.problem("shop.t", LATER.comment(version)) == f"shop.t has version {version}, {end}"


def test_only_queues_with_a_rate_need_the_table_of_rates() -> None:
    policy = Policy(1, 1, 1, 1, 1, 1)
    assert not RATES_TABLE.needed(policy)
    assert RATES_TABLE.needed(replace(policy, max_rate=5))
