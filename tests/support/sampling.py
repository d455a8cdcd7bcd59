"""Which cases of the tests a run takes: a slice drawn by a seed, or all of them.

A test that runs on each server runs on one of each flavour, which is drawn for its file. Two marks
name what is too long even so. Of a test with `either_server`, each case is drawn for one of the two
servers that are left. Of a test with `sampled(n)`, n cases are drawn. The draw depends on TESTS_SEED
and on the names of the cases alone, so a seed repeats a run; without it, each run draws anew. With
TESTS_LONG set, as `make test-long` sets it, nothing is left out.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import pytest

from tests.support.servers import FLAVOUR_OF, SERVERS, ServerName

SEED: Final = int(os.environ.setdefault("TESTS_SEED", str(secrets.randbelow(1_000_000))))
"""Set in the environment too, from which the processes of pytest-xdist inherit it."""

LONG: Final = bool(os.environ.get("TESTS_LONG"))


def examples(count: int) -> int:
    """How many examples a play of `count` has in this run: 25 times as many in a long one."""
    return 25 * count if LONG else count


def taken(items: Sequence[pytest.Item], there: Collection[ServerName]) -> list[pytest.Item]:
    """The items of this run, in their order; `there` are the servers of this machine."""
    if LONG:
        return list(items)
    return _sampled(_on_either_server(_on_one_of_each_flavour(items, there), there))


def _on_one_of_each_flavour(items: Sequence[pytest.Item], there: Collection[ServerName]) -> list[pytest.Item]:
    """Of the items that differ in their server alone, one of each flavour: of the same server throughout a file."""
    left_out: set[pytest.Item] = set()
    for cases in _twins(items).values():
        file = next(iter(cases.values())).path.name
        order = random.Random(f"{SEED} {file}").sample(SERVERS, len(SERVERS))
        names = sorted(_there(cases, there), key=order.index)
        drawn = {FLAVOUR_OF[name]: cases[name] for name in reversed(names)}
        left_out.update(set(cases.values()) - set(drawn.values()))
    return [item for item in items if item not in left_out]


def _on_either_server(items: Sequence[pytest.Item], there: Collection[ServerName]) -> list[pytest.Item]:
    """Of the items that differ in their server alone, one, if they are marked so."""
    left_out: set[pytest.Item] = set()
    for twins, cases in _twins(items).items():
        if all(case.get_closest_marker("either_server") for case in cases.values()):
            drawn = _draw(twins, [cases[name] for name in _there(cases, there)], 1)
            left_out.update(set(cases.values()) - set(drawn))
    return [item for item in items if item not in left_out]


def _twins(items: Sequence[pytest.Item]) -> Mapping[str, dict[ServerName, pytest.Item]]:
    """The items that have a server; those that differ in it alone are together."""
    twins: dict[str, dict[ServerName, pytest.Item]] = defaultdict(dict)
    for item in items:
        if server := _server_name(item):
            function, _, case = item.nodeid.partition("[")
            twins[f"{function}[{case.replace(server, '*', 1)}"][server] = item
    return twins


def _there(names: Collection[ServerName], there: Collection[ServerName]) -> Collection[ServerName]:
    """Those that this machine has, or all, whose cases are then reported as skipped."""
    return [name for name in names if name in there] or names


def _sampled(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Of the items of one test function, as many as its mark says."""
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            functions[item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for name, cases in functions.items():
        mark = cases[0].get_closest_marker("sampled")
        assert mark is not None
        left_out.update(set(cases) - set(_draw(name, cases, mark.args[0])))
    return [item for item in items if item not in left_out]


def _draw(name: str, cases: Iterable[pytest.Item], count: int) -> list[pytest.Item]:
    ordered = sorted(cases, key=lambda case: case.nodeid)
    return random.Random(f"{SEED} {name}").sample(ordered, min(count, len(ordered)))


def _server_name(item: pytest.Item) -> ServerName | None:
    """The server of a case, if it needs one: the first word of a parameter, as in "mariadb-11 descending"."""
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec else ()
    words = {value.partition(" ")[0] for value in values if isinstance(value, str)}
    return next((name for name in SERVERS if name in words), None)
