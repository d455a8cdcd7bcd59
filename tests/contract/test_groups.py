"""Message groups: whatever reads messages returns their groups, alike in both stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from engine.model import NS_PER_S, Arrivals, Entry, Group, GroupScan, Key, Portion, Range, RowFormat, Share, Wanted
from engine.queue_table import GroupColumn, IdKind
from tests.support.memory_store import Row
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import EVEN, GROWING, AnySubject, MemorySubject, ServerSubject, kept_subjects

S = NS_PER_S

COLUMNS = (GroupColumn("tenant", IdKind.TEXT), GroupColumn("region", IdKind.INTEGER))


@pytest.fixture(scope="module")
def on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    """Makes one table for each kind of server, and empties it for each test."""
    columns = GROWING + ", tenant VARCHAR(20), region INT"
    yield from kept_subjects(
        server_pool, lambda server, _: ServerSubject(server, columns=columns, groups=("tenant", "region"))
    )


@pytest.fixture(params=["memory", *SERVERS])
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


def by_group(entries: Sequence[Entry]) -> dict[Group, list[Key]]:
    """The ids of entries by their groups."""
    found: dict[Group, list[Key]] = {}
    for entry in entries:
        assert entry.group is not None
        found.setdefault(entry.group, []).append(entry.key)
    return found


ORDER: list[Group] = [(None, None), (None, 7), ("acme", None), ("acme", -1), ("acme", 7), ("bmce", 0)]
"""Groups in the order of the index: NULL first."""


@pytest.fixture
def backlog(subject: AnySubject) -> AnySubject:
    """Of each group three due messages, one scheduled, one acknowledged, and one of another priority."""
    now_ns, key = subject.now_ns(), 0
    for group in ORDER:
        for time_ns in (0, now_ns - 2 * S, None, now_ns + 3600 * S):
            key += 1
            subject.put(Row(key, time_next_ns=time_ns, group=group))
        subject.put(Row(key + 100, priority=1, group=group), Row(key + 200, time_acked_ns=now_ns - S, group=group))
    return subject


def test_a_group_is_read_by_its_name(backlog: AnySubject) -> None:
    request = GroupScan(0, tuple((group, 3 if group == ("acme", 7) else 4) for group in ORDER))
    result = backlog.store.scan_groups(backlog.table, request).value
    found = by_group(result.entries)
    assert found.keys() == set(ORDER)
    assert all(len(keys) == 3 for keys in found.values())
    assert sorted(map(str, found["acme", 7])) == ["17", "18", "19"]
    assert result.deep == (("acme", 7),)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 1_000])
def test_the_rotation_passes_over_all_groups(backlog: AnySubject, step: int) -> None:
    passed: list[Group] = []
    after: Group | None = None
    for _ in range(100):
        request = GroupScan(0, after=after, quota=1, room=1, step_max=step, entries_max=1)
        result = backlog.store.scan_groups(backlog.table, request).value
        passed += by_group(result.entries)
        assert set(result.deep) >= set(by_group(result.entries))
        if (after := result.after) is None:
            break
    assert passed == ORDER


def test_the_rotation_reads_as_much_as_there_is_room_for(backlog: AnySubject) -> None:
    result = backlog.store.scan_groups(backlog.table, GroupScan(0, quota=2, room=1_000)).value
    assert all(len(keys) == 2 for keys in by_group(result.entries).values())
    assert len(result.entries) == 12
    assert result.after is None
    few = backlog.store.scan_groups(backlog.table, GroupScan(0, quota=2, room=3, step_max=4)).value
    assert len(by_group(few.entries)) == 2
    assert few.after == ORDER[1]


def test_the_rotation_of_a_share_reads_its_messages_alone(backlog: AnySubject) -> None:
    shares = [Portion(Share(number, 2)) for number in range(2)]
    halves = [backlog.store.scan_groups(backlog.table, GroupScan(0, quota=9, room=99), of).value for of in shares]
    one, other = ({entry.key for entry in half.entries} for half in halves)
    assert not one & other
    assert len(one | other) == 18


def test_arrivals_are_the_messages_that_came_due_last(subject: AnySubject) -> None:
    now_ns = subject.now_ns()
    for key in range(1, 6):
        subject.put(Row(key, time_next_ns=0, group=("old", key)))
        subject.put(Row(key + 10, time_next_ns=now_ns - (6 - key) * S, group=("new", key)))
    subject.put(Row(30, priority=1, time_next_ns=now_ns - S, group=("other", 0)))
    request = GroupScan(0, arrivals=Arrivals(after_ns=now_ns - 5 * S, after_id=2, until_ns=now_ns - S, limit=10))
    result = subject.store.scan_groups(subject.table, request).value
    assert sorted(entry.key for entry in result.arrivals if isinstance(entry.key, int)) == [3, 4, 5, 12, 13, 14, 15]
    assert {entry.key: entry.group for entry in result.arrivals}[12] == ("new", 2)
    assert (result.arrivals_cut, result.greatest_id, result.entries) == (False, 5, ())
    last = GroupScan(0, arrivals=Arrivals(after_ns=0, after_id=5, until_ns=now_ns, limit=2))
    result = subject.store.scan_groups(subject.table, last).value
    assert [entry.key for entry in result.arrivals] == [15, 14]
    assert (result.arrivals_cut, result.greatest_id) == (True, 5)


def test_without_an_index_nothing_is_read_by_group(backlog: AnySubject) -> None:
    table = replace(backlog.table, group_index=None)
    assert backlog.store.scan_groups(table, GroupScan(0, quota=9, room=9)).value.entries == ()
