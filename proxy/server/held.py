"""Who holds which message since when, as tables for the pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from engine.model import Key, TableId
from proxy.server.markup import duration, link, number, or_dash, table
from proxy.statements.deliveries import HeldDelivery, InFlight, shown_key

HELD_MAX = 50
"""Messages that a page lists."""
LONG_S = 30.0
"""On the page of all queues, a message is named when it has been held for so long."""
LONGEST_MAX = 10
"""So many are named there."""

HEADS = (
    "Message",
    "Deliveries",
    "Held for",
    "Wait ends",
    "Connection",
    "User",
    "Host",
    "Program",
    "Proxy",
    "To end it",
)
NUMBERS = frozenset({"Deliveries", "Held for", "Connection"})


def longest_held(held: Iterable[HeldDelivery]) -> str:
    """Those that this proxy's clients have held for LONG_S, the longest first; empty without one."""
    long = sorted((one for one in held if (one.age_s or 0.0) >= LONG_S), key=lambda one: -(one.age_s or 0.0))
    rows = [
        [
            link("/queue", {"db": one.table.db, "name": one.table.name}, str(one.table)),
            *_cells(one.table, InFlight(one.key, one.epoch, one.age_s, None, one.slot, one), waits=False),
        ]
        for one in long[:LONGEST_MAX]
    ]
    heads = ["Queue", *(head for head in HEADS if head != "Wait ends")]
    return table("held", "Held longest", heads, rows, "", numbers=NUMBERS) if rows else ""


def held_of(queue: TableId, in_flight: Sequence[InFlight]) -> str:
    """Those of a queue, the longest first. Of those at other proxies, the holder is known there."""
    longest_first = sorted(in_flight, key=lambda one: -1.0 if one.since_s is None else one.since_s, reverse=True)
    rows = [_cells(queue, one) for one in longest_first[:HELD_MAX]]
    return table("held", "Held by", HEADS, rows, "Nobody holds a message of it.", numbers=NUMBERS)


def _cells(queue: TableId, one: InFlight, *, waits: bool = True) -> list[str]:
    holder = one.holder
    who: list[str] = ["–"] * 4
    if holder is not None:
        who = [or_dash(value) for value in (holder.connection_id, holder.user, holder.host, holder.program)]
    return [
        link("/message", {"db": queue.db, "name": queue.name, "id": _number(one.key)}, shown_key(one.key)),
        number(one.epoch),
        "–" if one.since_s is None else duration(one.since_s),
        *([_wait(one)] if waits else []),
        *who,
        "–" if one.slot is None else link("/proxies", {}, f"ackstream/{one.slot}"),
        "–" if holder is None or holder.connection_id is None else escape(f"KILL {holder.connection_id}"),
    ]


def _wait(one: InFlight) -> str:
    return "with its transaction" if one.until_s is None else f"in {duration(max(0.0, one.until_s))}"


def _number(key: Key) -> str:
    """An id, as the page of a message takes it."""
    return key.hex() if isinstance(key, bytes) else str(key)
