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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.model import NS_PER_S, SLOT_LOCK
from engine.quoting import text_literal
from engine.service import Engine
from engine.store.port import StoreError
from engine.store.roster import Introduction
from proxy import __version__
from proxy.session.internal_queries import rows, server_time_ns
from proxy.session.queries import sql
from proxy.settings import Settings
from proxy.statements.others import Others, Subject
from proxy.statements.results import COUNT, SECONDS, WORDS, Column, Result

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession

PROXY_COLUMNS = (
    Column("Slot", COUNT),
    Column("Name", WORDS),
    Column("Version", WORDS),
    Column("Since", SECONDS, "NOW() - INTERVAL ROUND({}) SECOND"),
    Column("Streams", COUNT),
    Column("In_flight", COUNT),
    Column("Connection", COUNT),
)


def introduction(settings: Settings) -> Introduction:
    """What the proxy publishes of itself, apart from its start."""
    return Introduction(f"{socket.gethostname()}:{settings.listen.port}", __version__)


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """The state of this process, or of another worker."""

    slot: int | None
    age_s: float
    streams: int
    in_flight: int


class Proxies:
    """Carries out SHOW PROXIES."""

    def __init__(self, engine: Engine, settings: Settings, others: Others) -> None:
        self._engine = engine
        self._introduction = introduction(settings)
        self._others = others
        self._since_s = time.monotonic()

    def own(self) -> RunningProxy:
        """The state of this process."""
        dispatchers = [dispatcher for _, dispatcher in self._engine.runners()]
        return RunningProxy(
            self._engine.roster.slot,
            time.monotonic() - self._since_s,
            sum(len(dispatcher.subscribers) for dispatcher in dispatchers),
            sum(len(dispatcher.parts.leases) for dispatcher in dispatchers),
        )

    async def show(self, session: ClientSession) -> Result:
        """This proxy and all others that the roster shows."""
        own: Sequence[RunningProxy] = [self.own(), *await self._others(Subject.PROXIES)]
        known = {proxy.slot: proxy for proxy in own if proxy.slot is not None}
        slots = sorted(known.keys() | self._engine.roster.others)
        connections = await self._connections(session, slots)
        published = await read_published(self._engine, [number for number in connections.values() if number])
        now_ns = await server_time_ns(session)
        result = [proxy for proxy in own if proxy.slot is None]
        shown = [self._row(proxy, None, None, now_ns) for proxy in result]
        for slot in slots:
            number = connections[slot]
            shown.append([slot, *self._row(known.get(slot), published.get(number or 0), number, now_ns)[1:]])
        return Result(PROXY_COLUMNS, shown)

    def _row(
        self, proxy: RunningProxy | None, published: Introduction | None, connection: int | None, now_ns: int
    ) -> list[object]:
        if proxy is not None:
            published = self._introduction
            age_s: float | None = proxy.age_s
        else:
            since_ns = published.since_ns if published else None
            age_s = None if since_ns is None else (now_ns - since_ns) / NS_PER_S
        return [
            proxy and proxy.slot,
            published and published.name,
            published and published.version,
            None if age_s is None else round(age_s, 3),
            proxy and proxy.streams,
            proxy and proxy.in_flight,
            connection,
        ]

    async def _connections(self, session: ClientSession, slots: Sequence[int]) -> dict[int, int | None]:
        """The server's ids of the connections that hold these slots: every account may read them."""
        if not slots:
            return {}
        return connections_of(slots, *await rows(session, slot_holders(slots)))


def slot_holders(slots: Sequence[int]) -> str:
    """The statement whose one row `connections_of` reads."""
    locks = ", ".join(f"IS_USED_LOCK({text_literal(f'{SLOT_LOCK}{slot}')})" for slot in slots)
    return sql("slot_holders", locks=locks)


def connections_of(slots: Sequence[int], row: Sequence[str | None]) -> dict[int, int | None]:
    """The connection of each slot; None for a slot that was released meanwhile."""
    return {slot: None if number is None else int(number) for slot, number in zip(slots, row, strict=True)}


async def read_published(engine: Engine, connections: Sequence[int]) -> dict[int, Introduction]:
    """What the proxies with these connections publish, as far as the engine's account may read it."""
    found: Sequence[Sequence[str | None]] = ()
    if connections:
        with suppress(StoreError):  # A server without these tables, or without the right to read them.
            text = sql("published", connections=", ".join(map(str, connections)), limit=len(connections))
            found, _ = await engine.read(text)
    read = {int(number or 0): Introduction.read(bytes.fromhex(text or "").decode()) for number, text in found}
    return {number: introduction for number, introduction in read.items() if introduction is not None}
