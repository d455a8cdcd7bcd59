"""The watch: servers that hang, that come and go, and what is reported of them."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, cast

import pytest

from engine.packets import Result
from engine.primary.election import Decision, Seen, State
from engine.primary.observation import Observer, of_galera, of_group
from engine.primary.watch import PrimaryWatch, WatchLimits
from engine.store.opening import BackendAddress
from tests.support.waiting import eventually

P = ParamSpec("P")

FAST = WatchLimits(interval_s=0.01, requested_s=0.001, answer_s=0.05, silent_s=0.1)
WRITABLE, READ_ONLY = Seen(State.WRITABLE), Seen(State.READ_ONLY, text="read_only=1")


class Servers:
    """Servers by their hosts: what each shows, or a wait."""

    def __init__(self, **shown: Seen) -> None:
        self.shown = shown
        self.hanging: dict[str, threading.Event] = {}
        self.observed = 0
        self.closed: list[str] = []
        self.decisions: list[Decision] = []

    def watch(self) -> PrimaryWatch:
        return PrimaryWatch(self.addresses(*self.shown), self.decisions.append, FAST, self.observer)

    @staticmethod
    def addresses(*hosts: str) -> dict[str, BackendAddress]:
        return {host: BackendAddress(host, 3306, "root") for host in hosts}

    def observer(self, address: BackendAddress) -> Observer:
        return cast(Observer, FakeObserver(self, address))


class FakeObserver:
    def __init__(self, servers: Servers, address: BackendAddress) -> None:
        self._servers, self.address = servers, address

    def observe(self) -> Seen:
        self._servers.observed += 1
        if (hanging := self._servers.hanging.get(self.address.host)) is not None:
            hanging.wait(10)
        return self._servers.shown[self.address.host]

    def close(self) -> None:
        self._servers.closed.append(self.address.host)
        if (hanging := self._servers.hanging.get(self.address.host)) is not None:
            hanging.set()


def run_async(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def decided(servers: Servers, primary: str | None) -> bool:
    return servers.decisions[-1].primary == primary


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, condition)


@run_async
async def test_each_change_is_reported_once_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine.primary.watch")
    servers = Servers(a=WRITABLE, b=READ_ONLY)
    watch = servers.watch()
    watch.start()
    for shown, primary in (({"a": READ_ONLY}, None), ({"b": WRITABLE}, "b"), ({"b": Seen(State.AWAY)}, None)):
        await until(lambda: len(servers.decisions) > 0 and servers.observed > 6)
        servers.shown |= shown
        await until(partial(decided, servers, primary))
        servers.observed = 0
    await watch.close()
    assert [decision.primary for decision in servers.decisions] == ["a", None, "b", None]
    assert len(caplog.messages) == 4


@run_async
async def test_a_server_that_hangs_delays_nobody_and_is_away_after_a_while() -> None:
    servers = Servers(a=WRITABLE, b=READ_ONLY)
    watch = servers.watch()
    assert (await watch.observe()).primary == "a"
    servers.hanging["a"] = threading.Event()
    assert (await watch.observe()).primary == "a", "a slow answer changes nothing yet"
    servers.shown["b"] = WRITABLE
    watch.start()
    await until(lambda: watch.decision.primary == "b")
    servers.hanging["a"].set()
    await watch.close()


@run_async
async def test_a_server_of_another_address_is_observed_anew() -> None:
    servers = Servers(a=WRITABLE, b=READ_ONLY)
    watch = servers.watch()
    await watch.observe()
    moved = servers.addresses("a") | {"b": BackendAddress("c", 3306, "root")}
    servers.shown["c"] = READ_ONLY
    watch.set_servers(moved)
    assert servers.closed == ["b"]
    await watch.observe()
    assert watch.states == {"a": WRITABLE, "b": READ_ONLY}
    await watch.close()


def row(*values: str) -> bytes:
    return b"".join(bytes([len(value)]) + value.encode() for value in values)


@pytest.mark.parametrize(
    ("status", "ready", "problem"),
    [
        ("Primary", "ON", ""),
        ("Primary", "OFF", "wsrep_ready=OFF"),
        ("non-Primary", "OFF", "wsrep_cluster_status=non-Primary"),
    ],
)
def test_a_member_of_galera_is_used_while_its_part_of_the_cluster_has_a_quorum(
    status: str, ready: str, problem: str
) -> None:
    shown = Result(
        [row("wsrep_cluster_state_uuid", "uuid"), row("wsrep_cluster_status", status), row("wsrep_ready", ready)]
    )
    assert of_galera("server", [shown]) == ("uuid", problem)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([("1", "ONLINE"), ("0", "ONLINE"), ("0", "ONLINE")], ""),
        ([("1", "RECOVERING"), ("0", "ONLINE")], "member_state=RECOVERING"),
        ([("0", "ONLINE")], "member_state=OFFLINE"),
        ([("1", "ONLINE"), ("0", "UNREACHABLE"), ("0", "UNREACHABLE")], "it reaches 1 of 3 members of its group"),
        ([("1", "ONLINE"), ("0", "ONLINE"), ("0", "UNREACHABLE")], ""),
    ],
)
def test_a_member_of_a_group_is_used_while_it_reaches_the_majority(
    members: list[tuple[str, str]], problem: str
) -> None:
    assert of_group("server", [Result([row(*member) for member in members])]) == ("server", problem)
