"""Reads the state of one server, on a connection that is kept for this."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.packets import Result, text_values
from engine.primary.election import Seen, State
from engine.store.connection import StoreConnection
from engine.store.opening import BackendAddress, ConnectionLimits
from engine.store.port import StoreError
from engine.store.queries import statement

LIMITS = ConnectionLimits(connect_s=2.0, login_s=3.0, statement_s=3, read_s=3.0)
"""A server that is slower cannot be used, and a thread waits meanwhile."""

OFF = frozenset({"0", "OFF", ""})

Membership = Callable[[str, Sequence[Result]], tuple[str, str]]
"""From the server's own unit and the results of a query about its cluster: the unit that it belongs
to, and why it cannot be used (empty: it can)."""


class Observer:
    """The monitor connection of one server. For one thread at a time, except for `close`."""

    def __init__(self, address: BackendAddress) -> None:
        self.address = address
        self._connection: StoreConnection | None = None
        self._queries: list[str] = []
        self._membership: Membership = alone
        self._unit = ""
        self._closed = False

    def observe(self) -> Seen:
        """The present state. It takes one round trip, a few more with a new connection."""
        try:
            if self._connection is not None and self._connection.stale():
                self._disconnect()
            connection = self._connection or self._connect()
            return self._state(connection.run(self._queries))
        except StoreError as error:
            self._disconnect()
            return Seen(State.AWAY, text=str(error))

    def close(self) -> None:
        """Close the connection. Does not wait for an observation under way."""
        self._closed = True
        if (connection := self._connection) is not None:
            connection.abort()

    def _connect(self) -> StoreConnection:
        self._connection = connection = StoreConnection(self.address, LIMITS)
        if self._closed:
            raise StoreError("closed")
        name, shown = connection.run([statement("server_name"), statement("monitor_variables")])
        (unit,) = text_values(name.rows[0])
        variables = _pairs(shown)
        self._unit = (unit or b"").decode()
        self._queries = [statement("monitor_mysql" if "super_read_only" in variables else "monitor_mariadb")]
        self._membership = alone
        if variables.get("wsrep_on", "OFF") not in OFF:
            self._membership = of_galera
            self._queries.append(statement("monitor_galera"))
        elif group := variables.get("group_replication_group_name"):
            self._membership = of_group
            if variables.get("group_replication_single_primary_mode") in OFF:
                self._unit = group
            self._queries.append(statement("monitor_group"))
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _state(self, results: Sequence[Result]) -> Seen:
        flags, *membership = results
        problems = [text.decode() for text in text_values(flags.rows[0]) if text]
        unit, problem = self._membership(self._unit, membership)
        problems += [problem] if problem else []
        return Seen(State.READ_ONLY if problems else State.WRITABLE, unit, ", ".join(problems))


def alone(unit: str, _: Sequence[Result]) -> tuple[str, str]:
    """The unit of a server that belongs to no cluster, and no problem."""
    return unit, ""


def of_galera(unit: str, results: Sequence[Result]) -> tuple[str, str]:
    """The unit of a member of a Galera cluster, and why it cannot be used: it is not synchronized,
    or its part of the cluster has no quorum."""
    status = _pairs(results[0])
    cluster = status.get("wsrep_cluster_state_uuid", "") or unit
    part = status.get("wsrep_cluster_status", "")
    if part != "Primary":
        return cluster, f"wsrep_cluster_status={part}"
    return cluster, "" if status.get("wsrep_ready") == "ON" else "wsrep_ready=OFF"


def of_group(unit: str, results: Sequence[Result]) -> tuple[str, str]:
    """The group of a member of group replication, and what keeps the member from writing. Its secondaries are
    read-only anyway. A primary that cannot reach the majority accepts writes and never commits them."""
    own, reached, members = "", 0, 0
    for row in results[0].rows:
        is_own, state = (value or b"" for value in text_values(row))
        members += 1
        reached += state != b"UNREACHABLE"
        if is_own == b"1":
            own = state.decode()
    if own != "ONLINE":
        return unit, f"member_state={own or 'OFFLINE'}"
    return unit, "" if 2 * reached > members else f"it reaches {reached} of {members} members of its group"


def _pairs(result: Result) -> dict[str, str]:
    """The rows of SHOW VARIABLES or SHOW STATUS, names in lower case."""
    found = {}
    for row in result.rows:
        name, value = ((text or b"").decode() for text in text_values(row))
        found[name.lower()] = value
    return found
