"""Random histories of servers, as several proxies see them.

Servers are promoted and demoted, vanish and return, also two at once. Each proxy observes all servers between any two
such changes, or some proxies cannot reach some servers for a while, or a proxy starts in the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine.primary.election import Election, Seen, State
from tests.support.sampling import examples

SERVERS = ("a", "b", "c")


@dataclass
class World:
    """Servers as they are."""

    up: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(SERVERS, True))
    writable: dict[str, bool] = field(default_factory=lambda: {name: name == "a" for name in SERVERS})

    def seen(self, hidden: frozenset[str] = frozenset()) -> dict[str, Seen]:
        return {name: self._seen(name, hidden) for name in SERVERS}

    def _seen(self, name: str, hidden: frozenset[str]) -> Seen:
        if not self.up[name] or name in hidden:
            return Seen(State.AWAY, text="no answer")
        return Seen(State.WRITABLE if self.writable[name] else State.READ_ONLY)


@dataclass(frozen=True)
class Change:
    """What happens to one server: it toggles one of its two states. Then proxies observe."""

    server: str
    promotes: bool
    observers: tuple[int, ...]
    """The order in which the proxies observe: all of them, with the first one once more at the end."""


Step = tuple[str, bool, frozenset[str], frozenset[str]]
"""A server, whether it toggles being writable (else being there), and what each of two proxies cannot see then."""

NAMES = st.sampled_from(SERVERS)
CHANGES = st.lists(st.builds(Change, NAMES, st.booleans(), st.permutations(range(3)).map(tuple)), max_size=40)
HIDDEN = st.frozensets(NAMES, max_size=2)
"""The servers that a proxy cannot reach."""
STEPS = st.lists(st.tuples(NAMES, st.booleans(), HIDDEN, HIDDEN), max_size=30)
PARTIAL = st.lists(st.tuples(st.builds(Change, NAMES, st.booleans(), st.just(())), HIDDEN), max_size=40)


def happen(world: World, change: Change) -> None:
    states = world.writable if change.promotes else world.up
    states[change.server] = not states[change.server]


def proxies_agree(changes: Sequence[Change], late: int, election: Callable[[], Election]) -> None:
    """Three proxies see everything; the third one starts after `late` changes."""
    world, proxies = World(), [election(), election()]
    for number, change in enumerate(changes):
        if number == late:
            proxies.append(election())
        happen(world, change)
        for at in change.observers:
            if at < len(proxies):
                proxies[at].observe(world.seen(), number)
        primaries = {proxy.decision.primary for proxy in proxies} - {None}
        assert len(primaries) <= 1, f"two primaries after {number + 1} changes: {primaries}"
        assert all(world.up[name] and world.writable[name] for name in primaries if name)


def never_leaves_a_writable_primary_for_another(
    changes: Sequence[tuple[Change, frozenset[str]]], election: Callable[[], Election]
) -> None:
    """One proxy that cannot reach some servers at some times."""
    world, proxy, last = World(), election(), None
    for number, (change, hidden) in enumerate(changes):
        happen(world, change)
        seen = world.seen(hidden)
        primary = proxy.observe(seen, number).primary
        if primary is None:
            continue
        assert seen[primary].state is State.WRITABLE
        if primary != last:
            others = [name for name in SERVERS if name != primary and seen[name].state is State.WRITABLE]
            assert not others, "it became the primary beside another writable server"
        last = primary


def proxies_agree_at_last(steps: Sequence[Step], election: Callable[[], Election]) -> None:
    """Two proxies cannot reach some servers at some times, each others. No server is promoted or demoted meanwhile
    that one of them cannot see. In the end both see all servers."""
    world, hidden = World(), (frozenset[str](), frozenset[str]())
    proxies = (election(), election())
    for number, (name, promotes, *hidden_next) in enumerate(steps):
        if not promotes or (world.up[name] and not any(name in servers for servers in (*hidden, *hidden_next))):
            happen(world, Change(name, promotes, ()))
        hidden = (hidden_next[0], hidden_next[1])
        for proxy, servers in zip(proxies, hidden, strict=True):
            proxy.observe(world.seen(servers), number)
    primaries = {proxy.observe(world.seen(), 100).primary for proxy in proxies} - {None}
    assert len(primaries) <= 1, f"two primaries: {primaries}"


@settings(max_examples=examples(100))
@given(STEPS)
def test_proxies_that_see_the_same_again_never_use_two_servers(steps: list[Step]) -> None:
    proxies_agree_at_last(steps, Election)


@settings(max_examples=examples(100))
@given(CHANGES, st.integers(0, 40))
def test_proxies_that_see_the_same_never_use_two_servers(changes: list[Change], late: int) -> None:
    proxies_agree(changes, late, Election)


@settings(max_examples=examples(100))
@given(PARTIAL)
def test_a_primary_is_writable_and_alone_when_it_is_chosen(changes: list[tuple[Change, frozenset[str]]]) -> None:
    never_leaves_a_writable_primary_for_another(changes, Election)


@settings(max_examples=examples(80))
@given(CHANGES)
def test_once_one_server_alone_is_writable_and_all_are_seen_it_is_the_primary(changes: list[Change]) -> None:
    world, proxy = World(), Election()
    for number, change in enumerate(changes):
        happen(world, change)
        proxy.observe(world.seen(), number)
    world.up = dict.fromkeys(SERVERS, True)
    world.writable = {name: name == "b" for name in SERVERS}
    assert proxy.observe(world.seen(), 100).primary == "b"


# Elections that are broken on purpose: the play finds each of them.


class FirstWritable(Election):
    """The first writable server in the list, whatever was before."""

    def _decide(self) -> tuple[str | None, str]:
        usable = [name for name, server in self._servers.items() if server.seen.state is State.WRITABLE]
        return (usable[0] if usable else None), "these accept writes"


class Sticky(Election):
    """The present one as long as it is writable, else the only writable one."""

    def _decide(self) -> tuple[str | None, str]:
        usable = [name for name, server in self._servers.items() if server.seen.state is State.WRITABLE]
        present = self.decision.primary
        if present in usable:
            return present, ""
        return (usable[0] if len(usable) == 1 else None), ""


@pytest.mark.parametrize("broken", [FirstWritable, Sticky])
def test_the_play_objects_to_a_broken_election(broken: type[Election]) -> None:
    hunt = settings(max_examples=3_000, phases=[Phase.generate], database=None)

    @hunt
    @given(CHANGES, PARTIAL, STEPS)
    def play(changes: list[Change], partial: list[tuple[Change, frozenset[str]]], steps: list[Step]) -> None:
        proxies_agree(changes, 3, broken)
        proxies_agree_at_last(steps, broken)
        never_leaves_a_writable_primary_for_another(partial, broken)

    with pytest.raises(AssertionError):
        play()
