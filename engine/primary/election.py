"""Decides which of several servers is the primary, from what each of them shows.

A server is writable if it accepts writes of ordinary accounts. The members of one cluster that
accept writes at several members at once (Galera, Group Replication in multi-primary mode) count as
one unit, and so do several addresses of one server. Every other server is a unit of its own.

A unit is *promoted* when it is writable and was read-only before. A unit that was away and is
writable again is not promoted: it is what it was. Of a writable unit that was not seen before, it
is unknown when it was promoted, so it counts as promoted together with the last one. The rules:

* Only the unit that was promoted last can be primary. A former primary that returns writable is
  therefore not used while the new one is. Of two that were promoted together, neither can be
  primary until the other is read-only.
* A unit becomes primary only while no other one is seen writable. So if a second server becomes
  writable, and the first one still is, there is no primary until one of them is not.
* Within a unit, the present primary stays while it is writable. If it is not, the first writable
  member in the order of the settings follows it.

Of two proxies that have seen the same changes, one may therefore have no primary, but they never have
different ones (tests/property/test_election.py plays histories). A proxy that misses a change of
`read_only`, because it does not reach the server or the change is shorter than the interval of its
observations, may choose another primary than the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto


class State(Enum):
    """Whether a server can be the primary."""

    AWAY = auto()
    """It does not answer."""
    READ_ONLY = auto()
    """It answers, and accepts no writes, or is not in a working part of its cluster."""
    WRITABLE = auto()


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation of a server."""

    state: State
    unit: str = ""
    """The name of what it is a part of: all members of a cluster with several primaries have one, and so
    have all addresses of one server. Empty while it is away: the last one counts."""
    text: str = ""
    """The reason for its state, for logs and errors."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of an observation of all servers."""

    primary: str | None
    """The server to use; None: none can be used now."""
    since_s: float
    """Since when this is so."""
    problem: str = ""
    """Why there is no primary, or which writable servers are not used."""


@dataclass(slots=True)
class _Server:
    """What is remembered of a server."""

    unit: str
    was_seen: bool = False
    writable: bool = False
    """By its last answer."""
    seen: Seen = Seen(State.AWAY, text="not tried yet")


class Election:
    """The state of one proxy's decision. All times are those of the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._promotions: dict[str, int] = {}
        """The units that were writable when they were last seen, and the number of the observation
        in which they were promoted."""
        self._known: set[str] = set()
        """The units that were seen before."""
        self._observations = 0
        self._chosen: str | None = None
        """The unit of the last primary."""
        self.decision = Decision(None, 0.0, "no server was tried yet")

    def observe(self, seen: Mapping[str, Seen], now_s: float) -> Decision:
        """All servers were observed, in the order of the settings. A server that is missing is not
        in the settings any more."""
        self._observations += 1
        self._remember(seen)
        primary, problem = self._decide()
        before = self.decision
        if primary is not None:
            self._chosen = self._servers[primary].unit
        if primary != before.primary or self._observations == 1:
            self.decision = Decision(primary, now_s, problem)
        else:
            self.decision = Decision(primary, before.since_s, problem)
        return self.decision

    def _remember(self, seen: Mapping[str, Seen]) -> None:
        """Update the memory of servers, and then that of units."""
        servers: dict[str, _Server] = {}
        for name, observed in seen.items():
            server = self._servers.get(name) or _Server(name)
            servers[name] = server
            server.seen = observed
            if observed.state is not State.AWAY:
                server.unit, server.was_seen = observed.unit or name, True
                server.writable = observed.state is State.WRITABLE
        self._servers = servers
        last = max(self._promotions.values(), default=self._observations)
        writable = {server.unit for server in servers.values() if self._is_writable(server.unit)}
        self._promotions = {
            unit: self._promotions.get(unit, self._observations if unit in self._known else last) for unit in writable
        }
        self._known |= {server.unit for server in servers.values() if server.was_seen}

    def _is_writable(self, unit: str) -> bool:
        """Whether the unit is writable, as far as known: what its members show counts, or what they
        showed last if all are away."""
        members = [server for server in self._servers.values() if server.unit == unit]
        present = [server for server in members if server.seen.state is not State.AWAY]
        return any(server.writable for server in present or members)

    def _decide(self) -> tuple[str | None, str]:
        """The primary, and the problem."""
        usable = [name for name, server in self._servers.items() if server.seen.state is State.WRITABLE]
        if not usable:
            return None, f"no server accepts writes ({self._states()})"
        units = {self._servers[name].unit for name in usable}
        last = max(self._promotions.values())
        newest = [unit for unit, promoted in self._promotions.items() if promoted == last]
        if len(newest) > 1 or (newest[0] != self._chosen and len(units) > 1):
            names = ", ".join(usable)
            return None, f"several servers accept writes, and none is used until the others are read-only: {names}"
        if newest[0] not in units:
            away = ", ".join(name for name, server in self._servers.items() if server.unit == newest[0])
            return None, f"the last primary is away ({away}), and was promoted after {', '.join(usable)}"
        members = [name for name in usable if self._servers[name].unit == newest[0]]
        primary = self.decision.primary if self.decision.primary in members else members[0]
        others = [name for name in usable if name not in members]
        problem = f"these accept writes, too, and are not used: {', '.join(others)}" if others else ""
        return primary, problem

    def _states(self) -> str:
        return "; ".join(f"{name}: {server.seen.text or 'read-only'}" for name, server in self._servers.items())
