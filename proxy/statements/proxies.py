"""SHOW PROXIES: the proxies of the server, as its user-level locks show them.

A proxy publishes nothing but the lock of its slot and the attributes of the connection that holds
it: name, version and start (engine.store.roster). A server with performance_schema=ON, MySQL's default,
shows the attributes to connections of the same account. Whatever is not published is NULL.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from engine.model import NS_PER_S, SLOT_LOCK
from engine.quoting import text_literal
from engine.service import Engine
from engine.store.mysql import StoreLimits
from engine.store.port import StoreError
from engine.store.roster import Introduction
from proxy import __version__
from proxy.session.internal_queries import Refused, rows, server_time_ns
from proxy.session.queries import sql
from proxy.settings import Settings
from proxy.statements.results import COUNT, SECONDS, WORDS, ResultColumn, ResultSet

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

PROXY_COLUMNS = (
    ResultColumn("Slot", COUNT),
    ResultColumn("Name", WORDS),
    ResultColumn("Version", WORDS),
    ResultColumn("Since", SECONDS, "NOW() - INTERVAL ROUND({}) SECOND"),
    ResultColumn("Streams", COUNT),
    ResultColumn("In_flight", COUNT),
    ResultColumn("Connection", COUNT),
)

SLOTS_TAKEN = range(1, StoreLimits().proxies_max + 1)
"""The slots that proxies take."""


def introduction(settings: Settings) -> Introduction:
    """What the proxy publishes of itself, apart from its start."""
    return Introduction(f"{socket.gethostname()}:{settings.listen.port}", __version__)


class Proxies:
    """Carries out SHOW PROXIES."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._introduction = introduction(settings)
        self._since_s = time.monotonic()

    async def show(self, session: ClientSession) -> ResultSet:
        """This proxy, and all others that have a slot."""
        own = self._engine.roster.slot
        connections = await self._connections(session)
        published = await read_published(self._engine, list(connections.values()))
        now_ns = await server_time_ns(session)
        shown = [] if own in connections else [self._own_row(None)]
        for slot, number in connections.items():
            shown.append(self._own_row(number) if slot == own else _row(slot, published.get(number), number, now_ns))
        return ResultSet(PROXY_COLUMNS, shown)

    def _own_row(self, connection: int | None) -> list[object]:
        dispatchers = [dispatcher for _, dispatcher in self._engine.runners()]
        return [
            self._engine.roster.slot,
            self._introduction.name,
            self._introduction.version,
            round(time.monotonic() - self._since_s, 3),
            sum(len(dispatcher.subscribers) for dispatcher in dispatchers),
            sum(len(dispatcher.parts.leases) for dispatcher in dispatchers),
            connection,
        ]

    async def _connections(self, session: ClientSession) -> dict[int, int]:
        """The slots that are held, and the server's ids of their connections: every account may read them."""
        try:
            return connections_of(*await rows(session, slot_holders()))
        except Refused:  # A server without user-level locks has no roster.
            return {}


def _row(slot: int, published: Introduction | None, connection: int, now_ns: int) -> list[object]:
    """Another proxy."""
    since_ns = published.since_ns if published else None
    age_s = None if since_ns is None else round((now_ns - since_ns) / NS_PER_S, 3)
    return [slot, published and published.name, published and published.version, age_s, None, None, connection]


def slot_holders() -> str:
    """The statement whose one row `connections_of` reads."""
    locks = ", ".join(f"IS_USED_LOCK({text_literal(f'{SLOT_LOCK}{slot}')})" for slot in SLOTS_TAKEN)
    return sql("slot_holders", locks=locks)


def connections_of(row: Sequence[str | None]) -> dict[int, int]:
    """The slots that are held, each with its connection."""
    return {slot: int(number) for slot, number in zip(SLOTS_TAKEN, row, strict=True) if number is not None}


async def read_published(engine: Engine, connections: Sequence[int]) -> dict[int, Introduction]:
    """What the proxies with these connections publish, as far as the engine's account may read it."""
    found: Sequence[Sequence[str | None]] = ()
    if connections:
        with suppress(StoreError):  # A server without these tables, or without the right to read them.
            text = sql("published", connections=", ".join(map(str, connections)), limit=len(connections))
            found, _ = await engine.read(text)
    read = {int(number or 0): Introduction.read(bytes.fromhex(text or "").decode()) for number, text in found}
    return {number: introduction for number, introduction in read.items() if introduction is not None}
