"""The page of proxies: one reading for all visitors, and what is missing where the server shows less."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from engine.catalog.directives import OPTIONS
from engine.service import Engine
from engine.store.port import Roster, StoreError
from engine.store.roster import Introduction
from proxy.server.inspection import PROXIES, Inspected, Inspector, settings_of_queue
from proxy.statements.deliveries import Deliveries
from proxy.statements.proxies import SLOTS_TAKEN
from tests.support.play import queue_table

NOW_NS = 10**18
OWN = Introduction("here:3307", "2")
OTHER = Introduction("there:3307", "1", NOW_NS - 5)


class StubEngine:
    """The engine, as far as the page of proxies uses it: slots 1 (own) and 2."""

    def __init__(self, *, published: bool = True, fails: bool = False) -> None:
        self.reads: list[str] = []
        self.roster = Roster(1, frozenset({2}))
        self._published, self._fails = published, fails

    def runners(self) -> list[object]:
        return []

    async def read(self, text: str) -> tuple[list[tuple[str | None, ...]], int]:
        self.reads.append(text)
        await asyncio.sleep(0)
        if self._fails:
            raise StoreError("gone")
        if "IS_USED_LOCK" in text:
            held = {self.roster.slot, *self.roster.others}
            return [tuple(f"1{slot}" if slot in held else None for slot in SLOTS_TAKEN)], NOW_NS
        return [("12", OTHER.program.encode().hex())] if self._published else [], NOW_NS


def answers(engine: StubEngine, visitors: int = 1) -> list[Inspected]:
    async def ask() -> list[Inspected]:
        inspector = Inspector(
            cast("Engine", engine), OWN, Deliveries(cast("Engine", engine), lambda: ()), show_payload=False
        )
        try:
            return list(await asyncio.gather(*(inspector.inspect(PROXIES) for _ in range(visitors))))
        finally:
            inspector.close()

    return asyncio.run(ask())


def test_the_page_has_all_settings_of_a_queue() -> None:
    shown = dict(settings_of_queue(queue_table()))
    assert shown.keys() == OPTIONS.keys()
    assert (shown["ACK_WAIT"], shown["PAUSED"], shown["MAX_RATE"]) == ("30 s", "0", "none")


def test_all_visitors_share_one_reading() -> None:
    engine = StubEngine()
    assert len({id(found) for found in answers(engine, visitors=20)}) == 1
    assert len(engine.reads) == 2


def test_each_proxy_is_shown_with_what_it_publishes() -> None:
    (found,) = answers(StubEngine())
    own, other = found.proxies
    assert (own.slot, own.name, own.version, own.connection, own.is_own) == (1, "here:3307", "2", 11, True)
    assert (other.slot, other.name, other.version, other.connection) == (2, "there:3307", "1", 12)
    assert (other.since_ns, other.is_own, found.now_ns) == (NOW_NS - 5, False, NOW_NS)


def test_what_is_not_published_is_not_known() -> None:
    (found,) = answers(StubEngine(published=False))
    assert [(proxy.slot, proxy.name) for proxy in found.proxies] == [(1, "here:3307"), (2, None)]


def test_a_server_that_does_not_answer_is_named() -> None:
    (found,) = answers(StubEngine(fails=True))
    assert (found.problem, [proxy.connection for proxy in found.proxies]) == ("gone", [None])


@pytest.mark.parametrize("slot", [None, 1])
def test_this_proxy_is_always_shown(slot: int | None) -> None:
    engine = StubEngine()
    engine.roster = Roster(slot, frozenset())
    (found,) = answers(engine)
    assert [(proxy.slot, proxy.is_own) for proxy in found.proxies] == [(slot, True)]
