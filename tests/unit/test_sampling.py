"""A slice of the long tests: repeated by its seed, on servers that are there, and never empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import sampling
from tests.support.servers import FLAVOUR_OF, MARIADBS, SERVERS, ServerName

CASES = """
import pytest

@pytest.mark.either_server
@pytest.mark.parametrize("way", range(20))
@pytest.mark.parametrize("server_name", ["mysql", "mariadb", "mariadb-11"])
def test_either(server_name, way): ...

@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", range(20))
def test_sampled(way): ...

@pytest.mark.either_server
def test_without_a_server(): ...

@pytest.mark.either_server
@pytest.mark.parametrize("server_name", ["mariadb"])
def test_of_one_server(server_name): ...

SERVERS = ("mysql", "mariadb", "mariadb-11")

@pytest.mark.parametrize("way", range(20))
@pytest.mark.parametrize("store", ["memory", *SERVERS, *(f"{name} old" for name in SERVERS)])
def test_of_each_flavour(store, way): ...
"""


@pytest.fixture
def items(request: pytest.FixtureRequest, tmp_path: Path) -> list[Any]:
    file = tmp_path / "test_cases.py"
    file.write_text(CASES)
    module = pytest.Module.from_parent(request.session, path=file)
    return [item for function in module.collect() for item in _flat(function)]


def _flat(node: Any) -> list[pytest.Item]:
    return [node] if isinstance(node, pytest.Item) else [item for child in node.collect() for item in _flat(child)]


def names(items: Sequence[Any]) -> list[str]:
    return [item.name for item in items]


def draw(
    items: Sequence[Any], seed: int, monkeypatch: pytest.MonkeyPatch, servers: Sequence[ServerName] = SERVERS
) -> list[Any]:
    monkeypatch.setattr(sampling, "SEED", seed)
    monkeypatch.setattr(sampling, "LONG", False)
    return sampling.taken(items, servers)


def test_each_case_is_taken_on_one_server_and_so_many_cases_of_a_matrix(
    items: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = draw(items, 1, monkeypatch)
    ways = Counter(item.callspec.params["way"] for item in drawn if item.originalname == "test_either")
    assert ways == dict.fromkeys(range(20), 1)
    assert Counter(item.originalname for item in drawn) == {
        "test_either": 20,
        "test_sampled": 3,
        "test_without_a_server": 1,
        "test_of_one_server": 1,
        "test_of_each_flavour": 20 * 5,
    }
    servers = {item.callspec.params["server_name"] for item in drawn if item.originalname == "test_either"}
    assert {FLAVOUR_OF[server] for server in servers} == {"mysql", "mariadb"}


def test_of_two_servers_of_one_flavour_a_file_has_one_throughout(
    items: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for seed in range(20):
        drawn = draw(items, seed, monkeypatch)
        stores = {item.callspec.params["store"] for item in drawn if item.originalname == "test_of_each_flavour"}
        (mariadb,) = {store for store in stores if store in MARIADBS}
        assert stores == {"memory", "mysql", "mysql old", mariadb, f"{mariadb} old"}
        seen.add(mariadb)
    assert seen == set(MARIADBS)


def test_a_seed_repeats_a_draw_and_another_draws_anew(items: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(draw(items, 1, monkeypatch)) == names(draw(items, 1, monkeypatch))
    assert names(draw(items, 1, monkeypatch)) != names(draw(items, 2, monkeypatch))
    seen = {name for seed in range(100) for name in names(draw(items, seed, monkeypatch))}
    assert seen == set(names(items))


def test_a_server_that_is_missing_is_not_drawn(items: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = draw(items, 1, monkeypatch, ["mariadb"])
    assert {item.callspec.params["server_name"] for item in drawn if item.originalname == "test_either"} == {"mariadb"}


def test_a_long_run_and_a_case_that_is_named_leave_nothing_out(
    items: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = items[7]
    assert draw([case], 1, monkeypatch) == [case]
    monkeypatch.setattr(sampling, "LONG", True)
    assert sampling.taken(items, SERVERS) == items
