"""The whole life of a message, in order, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.fault.chaos.history import Event, unpack


def life(events: Iterable[Event], queue: str, token: int) -> Iterator[str]:
    """Lines about a message: its operations and deliveries, their connections, the faults between them."""
    found = list(_about(events, queue, token))
    mine = [event.at for event in found if event.kind != "fault"]
    first = min(mine, default=0)
    for event in sorted(found, key=lambda event: event.at):
        if event.kind == "fault" and not first <= event.at <= max(mine):
            continue
        values = {name: value for name, value in event.values.items() if name not in {"tokens", "rows"}}
        shown = " ".join(f"{name}={value}" for name, value in values.items() if value not in ("", None, {}))
        yield f"{(event.at - first) / 1e6:12.6f} s  {event.kind:7s} {shown}"


def _about(events: Iterable[Event], queue: str, token: int) -> Iterator[Event]:
    opens: dict[str, Event] = {}
    conns: set[str] = set()
    txs: set[str] = set()
    ops: set[str] = set()
    for event in events:
        values = event.values
        if event.kind == "open":
            opens[values["conn"]] = event
            continue
        if event.kind == "fault":
            yield event
            continue
        more: dict[str, int] = {}
        if event.kind == "got" and values["queue"] == queue:
            mine = [row for row in values["rows"] if token in unpack(row[2])]
            more = {"epoch": mine[0][0], "until": mine[0][1]} if mine else {}
            concerns = bool(mine)
        elif event.kind in {"begin", "final"} and values["queue"] == queue:
            concerns = token in unpack(values["tokens"]) or values.get("what") == "clear"
        else:
            concerns = values.get("op") in ops or (values.get("tx") or "-") in txs
            concerns = concerns or (event.kind == "close" and values["conn"] in conns)
        if not concerns:
            continue
        if event.kind == "begin":
            ops.add(values["op"])
            if values.get("tx"):
                txs.add(values["tx"])
        conn = values.get("conn", "")
        if conn in opens:
            conns.add(conn)
            yield opens.pop(conn)
        yield Event(event.at, event.kind, {**values, **more})
