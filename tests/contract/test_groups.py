"""Message groups: whatever reads messages returns their groups, alike in both stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from engine.model import NS_PER_S, Group, GroupColumn, IdKind, Key, Range, RowFormat, Wanted
from engine.store.memory import Row
from tests.support.servers import ServerPool
from tests.support.stores import EVEN, GROWING, MemorySubject, ServerSubject

S = NS_PER_S

COLUMNS = (GroupColumn("tenant", IdKind.TEXT), GroupColumn("region", IdKind.INTEGER))

AnySubject = MemorySubject | ServerSubject


@pytest.fixture(scope="module")
def on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    """Makes one table for each kind of server, and empties it for each test."""
    subjects: dict[str, ServerSubject] = {}

    def find(flavour: str) -> ServerSubject:
        if flavour not in subjects:
            server = server_pool.get("mysql" if flavour == "mysql" else "mariadb")
            columns = GROWING + ", tenant VARCHAR(20), region INT"
            subjects[flavour] = ServerSubject(server, columns=columns, groups=("tenant", "region"))
        subjects[flavour].renew()
        return subjects[flavour]

    yield find
    for subject in subjects.values():
        subject.close()


@pytest.fixture(params=["memory", "mysql", "mariadb"])
def subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    return MemorySubject(groups=COLUMNS) if kind == "memory" else on_server(kind)


GROUPS: dict[Key, Group] = {1: ("acme", 7), 2: ("Zürich", -1), 3: (None, 7), 4: ("acme", None), 5: (None, None)}


@pytest.fixture
def filled(subject: AnySubject) -> AnySubject:
    """One due message of each group, of several priorities, at different times."""
    now_ns = subject.now_ns()
    times = [0, now_ns - 2 * S, None, now_ns - S, 0]
    for at, (key, group) in enumerate(GROUPS.items()):
        subject.put(Row(key, priority=at % 2, time_next_ns=times[at], group=group))
    return subject


def test_the_catalog_knows_the_group_columns_and_their_index(subject: AnySubject) -> None:
    assert subject.table.group_columns == COLUMNS
    assert subject.table.group_index == "by_group"


def test_a_scan_shows_groups(filled: AnySubject) -> None:
    entries = filled.store.scan(filled.table, 10).value.entries
    assert {entry.key: entry.group for entry in entries} == GROUPS


def test_a_scan_with_a_condition_shows_groups(filled: AnySubject) -> None:
    entries = filled.store.scan(filled.table, 10, EVEN, Range({}, filled.now_ns() + S)).value.entries
    assert {entry.key: entry.group for entry in entries} == {key: GROUPS[key] for key in (2, 4)}


def test_a_claim_shows_groups(filled: AnySubject) -> None:
    claims = filled.store.claim(filled.table, [Wanted(key, 0, 30 * S) for key in GROUPS]).value
    assert {claim.key: claim.group for claim in claims} == GROUPS


def test_a_claim_that_reads_its_rows_shows_groups(filled: AnySubject) -> None:
    wanted = [Wanted(key, 0, 30 * S) for key in GROUPS]
    result = filled.store.claim_and_fetch(filled.table, wanted, RowFormat(("body",), binary=False), 1_000_000).value
    assert {claim.key: claim.group for claim in result.claims} == GROUPS


def test_a_lookup_shows_groups(filled: AnySubject) -> None:
    found = filled.store.lookup(filled.table, list(GROUPS)).value
    assert {key: entry.group for key, entry in found.items()} == GROUPS
