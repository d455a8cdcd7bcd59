"""A connection id belongs to one server. On another server it belongs to another client."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from engine.service import Engine
from engine.store.port import Origin
from engine.store.route import Route
from proxy.server.listener import Proxy
from proxy.session.session import Session
from proxy.session.stream import INTERRUPTED
from proxy.settings import Settings
from proxy.transport.tls import Tls
from proxy.wire.packets import ServerError
from sqlrewrite.classify import Kill

FIRST, SECOND = ("10.0.0.1", 3306), ("10.0.0.2", 3306)


class Victim:
    """The part of a session that a KILL uses."""

    connection_id = 8
    number = 1
    server: Any = None

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.error: ServerError | None = None
        self.aborted = False
        self.server = self

    def interrupt(self, error: ServerError) -> None:
        self.error = error

    def abort(self) -> None:
        self.aborted = True


class Killer:
    """An engine that records its kills."""

    def __init__(self) -> None:
        self.asked: list[Origin] = []

    async def kill(self, _connection_id: int, origin: Origin) -> bool:
        self.asked.append(origin)
        return False

    def disconnected(self, _number: int) -> None: ...


def proxy_with(*victims: Victim, engine: Killer | None = None) -> Proxy:
    proxy = Proxy(cast(Engine, engine or Killer()), Settings(), Route(None), cast(Tls, None))
    for victim in victims:
        proxy.session_opened(cast(Session, victim))
    return proxy


@pytest.mark.parametrize(
    ("victim", "killer", "same"),
    [
        (Origin(FIRST), Origin(FIRST), True),
        (Origin(FIRST), Origin(SECOND), False),
        (Origin(FIRST, "a"), Origin(FIRST, "a"), True),
        (Origin(FIRST, "a"), Origin(FIRST, "b"), False),
        (Origin(FIRST, "a"), Origin(FIRST), True),
    ],
)
def test_a_kill_that_one_server_accepted_ends_no_stream_of_another(victim: Origin, killer: Origin, same: bool) -> None:
    one = Victim(victim)
    proxy_with(one).killed(Kill(8, query_only=True), killer)
    assert one.error is (INTERRUPTED if same else None)


def test_of_two_connections_with_one_id_that_of_the_same_server_is_killed() -> None:
    one, other = Victim(Origin(FIRST)), Victim(Origin(SECOND))
    proxy = proxy_with(one, other)
    proxy.killed(Kill(8, query_only=True), Origin(SECOND))
    assert (one.error, other.error) == (None, INTERRUPTED)
    proxy.session_closed(cast(Session, other))
    proxy.killed(Kill(8, query_only=True), Origin(FIRST))
    assert one.error is INTERRUPTED


def test_a_vanished_clients_statement_is_killed_by_its_servers_name_if_that_is_known() -> None:
    async def abandon(*known: Origin) -> Origin:
        engine, victim = Killer(), Victim(Origin(FIRST))
        proxy = proxy_with(victim, engine=engine)
        for origin in known:
            proxy.server_is(origin)
        await proxy._abandon(cast(Session, victim))
        assert victim.aborted
        return engine.asked[0]

    named = Origin(FIRST, "a")
    assert asyncio.run(abandon()) == Origin(FIRST)
    assert asyncio.run(abandon(named)) == named
    assert asyncio.run(abandon(named, Origin(SECOND, "b"))) == named
    assert asyncio.run(abandon(named, replace(named, name="b"))).address not in (FIRST, SECOND)
