"""Which cases of the long tests a run takes: a slice drawn by a seed, or all of them.

Two marks name the matrices that are too long for each run. Of a test with `sampled(n)`, n cases are drawn.
Of a test with `either_server`, each case is drawn for one of the two servers. The draw depends on
TESTS_SEED and on the names of the cases alone, so a seed repeats a run; without it, each run draws
anew. With TESTS_LONG set, as `make test-long` sets it, nothing is left out.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import pytest

SEED: Final = int(os.environ.setdefault("TESTS_SEED", str(secrets.randbelow(1_000_000))))
"""Set in the environment too, from which the processes of pytest-xdist inherit it."""

LONG: Final = bool(os.environ.get("TESTS_LONG"))


def examples(count: int) -> int:
    """How many examples a play of `count` has in this run: 25 times as many in a long one."""
    return 25 * count if LONG else count


def taken(items: Sequence[pytest.Item], servers: Collection[str]) -> list[pytest.Item]:
    """The items of this run, in their order; `servers` are the flavours there are on this machine."""
    if LONG:
        return list(items)
    return _sampled(_on_either_server(items, servers))


def _on_either_server(items: Sequence[pytest.Item], servers: Collection[str]) -> list[pytest.Item]:
    """Of the items that differ in their server alone, one, if they are marked so."""
    twins: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("either_server"):
            flavour = _flavour(item)
            twins[item.nodeid.replace(flavour, "*") if flavour else item.nodeid].append(item)
    left_out: set[pytest.Item] = set()
    for name, cases in twins.items():
        there = [case for case in cases if _flavour(case) in servers] or cases
        left_out.update(set(cases) - {_draw(name, there, 1)[0]})
    return [item for item in items if item not in left_out]


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


def _flavour(item: pytest.Item) -> str | None:
    """The server of a case, if it needs one."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("flavour") if callspec else None
