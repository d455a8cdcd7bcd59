"""The known queues: when and how often the catalog is read, and the effects of faults."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from engine.model import TableId
from engine.queue_table import BrokenTable, QueueTable
from engine.runtime.executor import EngineSettings, StoreExecutor
from engine.runtime.indirect_writes import IndirectWrites
from engine.runtime.queues import TEXTS_MAX, Listener, Queues, UnusableQueue
from engine.store.port import Described, Listing, StoreError, Timed
from tests.support.memory_store import MemoryStore
from tests.support.play import queue_table

QUEUE = queue_table()
SEEN, OTHER_TEXT = b"seen", b"another"


def table(number: int) -> TableId:
    return TableId("test", f"m{number}")


@dataclass
class CountingStore(MemoryStore):
    """Counts its calls, and runs the test's callbacks before it returns."""

    calls: Counter[str] = field(default_factory=Counter)
    described: list[TableId] = field(default_factory=list)
    before: Callable[[str, Sequence[TableId]], None] = lambda _name, _tables: None
    failing: Callable[[TableId], StoreError | None] = lambda _table: None
    """Why a table cannot be described, if so."""
    stir: Callable[[], object] = lambda: None

    def discover(self) -> Timed[Listing]:
        self.calls["discover"] += 1
        self.stir()
        self.before("discover", [])
        return super().discover()

    def describe(self, table: TableId) -> Timed[QueueTable | BrokenTable | None]:
        self.calls["describe"] += 1
        self.described.append(table)
        answer = super().describe(table)
        self.before("describe", [table])
        return answer

    def describe_all(self, tables: Sequence[TableId]) -> Timed[Mapping[TableId, Described]]:
        self.calls["describe_all"] += 1
        self.described += tables
        self.before("describe_all", tables)
        found = super().describe_all(tables)
        errors = {table: error for table in tables if (error := self.failing(table))}
        return replace(found, value={**found.value, **errors})

    def forget_calls(self) -> None:
        self.calls.clear()
        self.described.clear()


class Catalog:
    """The queues of a store, and the calls of their listener."""

    def __init__(self, store: CountingStore, settings: EngineSettings) -> None:
        self.store = store
        self.running: dict[TableId, QueueTable] = {}
        self.found: Callable[[QueueTable], None] = lambda _queue: None
        self.executor = StoreExecutor(store, settings)
        self.stirred = asyncio.Event()
        loop = asyncio.get_running_loop()
        store.stir = lambda: loop.call_soon_threadsafe(self.stirred.set)
        self.queues = Queues(self.executor, IndirectWrites(), Listener(self._found, self._lost, lambda: None))

    def _found(self, queue: QueueTable) -> None:
        self.found(queue)
        self.running[queue.id] = queue
        self.stirred.set()

    def _lost(self, table: TableId, _text: str) -> None:
        del self.running[table]
        self.stirred.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the effects of store calls and their results."""
        async with asyncio.timeout(10):
            while not condition():
                await self.stirred.wait()
                self.stirred.clear()


def play(
    scene: Callable[[Catalog], Awaitable[None]], *, queues: int = 1, settings: EngineSettings | None = None
) -> None:
    """Run a scene on a catalog of queues m0, m1, … The scene itself refreshes the catalog."""

    async def played() -> None:
        store = CountingStore(now_ns=10**18)
        for number in range(queues):
            store.add_table(replace(QUEUE, id=table(number)))
        catalog = Catalog(store, settings or EngineSettings(catalog_interval_s=3600, catalog_pause_s=0.001))
        await catalog.queues.start()
        store.forget_calls()
        try:
            await scene(catalog)
        finally:
            await catalog.queues.close()
            await catalog.executor.close()

    asyncio.run(played())


# The cost of a refresh.


@pytest.mark.parametrize("queues", [1, 1_000])
def test_a_refresh_without_changes_is_one_call_however_many_queues_there_are(queues: int) -> None:
    async def scene(catalog: Catalog) -> None:
        assert len(catalog.running) == queues
        await catalog.queues.refresh()
        assert catalog.store.calls == {"discover": 1}

    play(scene, queues=queues)


def test_a_refresh_describes_the_changed_tables_alone_in_one_call() -> None:
    async def scene(catalog: Catalog) -> None:
        store = catalog.store
        for number in (3, 5):
            changed = replace(QUEUE, id=table(number), columns=(*QUEUE.columns, "more"))
            store.tables[table(number)] = changed
        del store.tables[table(7)]
        store.add_table(replace(QUEUE, id=table(1_000)))
        await catalog.queues.refresh()
        assert store.calls == {"discover": 1, "describe_all": 1}
        assert set(store.described) == {table(3), table(5), table(7), table(1_000)}
        assert catalog.running.keys() == {table(number) for number in (*range(100), 1_000) if number != 7}
        assert "more" in catalog.running[table(3)].columns

    play(scene, queues=100)


def test_a_thousand_changes_in_a_row_cause_one_refresh_at_once_and_the_next_after_a_pause() -> None:
    async def scene(catalog: Catalog) -> None:
        catalog.queues.refresh_soon()
        await catalog.until(lambda: catalog.store.calls["discover"] == 1)
        for _ in range(1_000):
            catalog.queues.schema_changed("t")
            await asyncio.sleep(0)
        for _ in range(10):  # A pause as long as a refresh would take.
            await catalog.queues.inspect(table(0), fresh=True)
        assert catalog.store.calls["discover"] == 1

    play(scene, settings=EngineSettings(catalog_interval_s=3600, catalog_pause_s=3600))


def slowly(_name: str, _tables: Sequence[TableId]) -> None:
    threading.Event().wait(0.02)


def test_refreshes_take_no_more_than_their_share_of_the_time() -> None:
    async def scene(catalog: Catalog) -> None:
        catalog.store.before = slowly
        catalog.queues.refresh_soon()
        await catalog.until(lambda: catalog.store.calls["discover"] == 1)
        catalog.queues.refresh_soon()
        for _ in range(10):
            await catalog.queues.inspect(table(0), fresh=True)
        assert catalog.store.calls["discover"] == 1

    play(scene, settings=EngineSettings(catalog_interval_s=3600, catalog_pause_s=0.001, catalog_share=0.000_001))


def test_a_slow_refresh_is_followed_by_the_next_one_after_the_interval_at_the_latest() -> None:
    async def scene(catalog: Catalog) -> None:
        catalog.store.before = slowly
        catalog.queues.refresh_soon()
        await catalog.until(lambda: catalog.store.calls["discover"] == 3)

    play(scene, settings=EngineSettings(catalog_interval_s=0.01, catalog_pause_s=0.001, catalog_share=0.000_001))


LOCKED = StoreError("Lock wait timeout exceeded", code=1205)


def altered(number: int) -> QueueTable:
    return replace(QUEUE, id=table(number), columns=(*QUEUE.columns, "more"))


@pytest.mark.parametrize("alone", [False, True], ids=["together", "alone"])
def test_a_table_that_could_not_be_described_is_described_soon_without_another_change(alone: bool) -> None:
    async def scene(catalog: Catalog) -> None:
        store, failing = catalog.store, iter(range(5))

        def fails(name: str, _tables: Sequence[TableId]) -> None:
            if name != "discover" and next(failing, None) is not None:
                raise LOCKED

        if alone:
            store.before = fails
        else:
            store.failing = lambda _table: LOCKED if next(failing, None) is not None else None
        store.tables[table(0)] = altered(0)
        catalog.queues.refresh_soon()
        await catalog.until(lambda: "more" in catalog.running[table(0)].columns)
        assert store.calls["discover"] == 1

    play(scene, settings=EngineSettings(catalog_interval_s=3600, catalog_pause_s=0.001, catalog_share=1))


def test_tables_that_cannot_be_described_do_not_delay_the_changes_of_others() -> None:
    """A team has locked its tables: each description of its queues waits for that."""
    theirs, ours = [table(number) for number in range(300)], table(300)

    async def scene(catalog: Catalog) -> None:
        store, waits, go_on = catalog.store, threading.Event(), threading.Event()

        def waits_for_the_lock(name: str, tables: Sequence[TableId]) -> None:
            if name == "describe_all" and ours not in tables:
                waits.set()
                assert go_on.wait(10)

        store.failing = lambda one: LOCKED if one != ours and not go_on.is_set() else None
        for number in range(301):
            store.tables[table(number)] = altered(number)
        await catalog.queues.refresh()
        store.before = waits_for_the_lock
        assert await asyncio.to_thread(waits.wait, 10)
        store.forget_calls()
        store.tables[ours] = replace(altered(300), columns=("most",))
        await catalog.queues.refresh()
        assert catalog.running[ours].columns == ("most",)
        assert store.described == [ours]
        go_on.set()
        await catalog.until(lambda: all("more" in catalog.running[one].columns for one in theirs))

    settings = EngineSettings(catalog_interval_s=3600, catalog_pause_s=0.001, catalog_share=1)
    play(scene, queues=301, settings=settings)


def test_a_late_table_that_was_dropped_is_forgotten() -> None:
    async def scene(catalog: Catalog) -> None:
        store = catalog.store
        store.failing = lambda one: LOCKED if one in store.tables else None
        store.tables[table(0)] = altered(0)
        await catalog.queues.refresh()
        del store.tables[table(0)]
        await catalog.until(lambda: not catalog.running)
        await catalog.queues.refresh()
        assert catalog.queues.remembered == 0

    play(scene)


def test_the_catalog_is_read_again_however_often_it_could_not_be_read() -> None:
    """A server that is away for three hours causes about a thousand failures in a row."""
    often = 1_100

    async def scene(catalog: Catalog) -> None:
        def fails(name: str, _tables: Sequence[TableId]) -> None:
            if name == "discover" and catalog.store.calls["discover"] <= often:
                raise StoreError("the server is away", code=2003)

        catalog.store.before = fails
        catalog.queues.refresh_soon()
        await catalog.until(lambda: catalog.store.calls["discover"] > often)

    play(scene, settings=EngineSettings(catalog_interval_s=0.000_01, catalog_pause_s=0.000_001))


# Single tables.


def test_a_definition_seen_with_the_known_description_costs_no_call() -> None:
    async def scene(catalog: Catalog) -> None:
        for _ in range(2):
            assert (await catalog.queues.queue(table(0), text=SEEN)).id == table(0)
        assert catalog.store.calls == {"describe": 1}
        catalog.queues.schema_changed()
        await catalog.queues.queue(table(0), text=SEEN)
        assert catalog.store.calls["describe"] == 1

    play(scene, settings=EngineSettings(catalog_interval_s=3600, catalog_pause_s=3600))


def test_a_description_that_equals_the_known_one_is_the_known_one() -> None:
    """A session recognizes the queue of its last STREAM by identity."""

    async def scene(catalog: Catalog) -> None:
        await catalog.queues.refresh()
        catalog.store.tables[table(0)] = replace(QUEUE, id=table(0))  # As from another read.
        described = await catalog.queues.queue(table(0), text=SEEN)
        assert described is catalog.queues.known_by(table(0), SEEN)

    play(scene)


def test_a_definition_seen_before_a_later_read_replaced_its_description_proves_nothing() -> None:
    async def scene(catalog: Catalog) -> None:
        read, changed = threading.Event(), threading.Event()

        def before(name: str, _tables: Sequence[TableId]) -> None:
            if name == "describe":
                read.set()
                assert changed.wait(10)

        catalog.store.before = before
        described = asyncio.ensure_future(catalog.queues.queue(table(0), text=SEEN))
        assert await asyncio.to_thread(read.wait, 10)
        catalog.store.tables[table(0)] = replace(QUEUE, id=table(0), default_columns=("id", "more"))
        await catalog.queues.refresh()
        changed.set()
        assert (await described).default_columns == QUEUE.default_columns
        assert catalog.queues.known_by(table(0), SEEN) is None

    play(scene)


def test_with_a_new_definition_the_table_is_described_before_it_is_used() -> None:
    async def scene(catalog: Catalog) -> None:
        await catalog.queues.queue(table(0), text=SEEN)
        catalog.store.tables[table(0)] = replace(QUEUE, id=table(0), default_columns=("id", "more"))
        queue = await catalog.queues.queue(table(0), text=OTHER_TEXT)
        assert queue.default_columns == ("id", "more")
        assert catalog.running[table(0)] == queue
        del catalog.store.tables[table(0)]
        with pytest.raises(UnusableQueue, match="may not see: GRANT"):
            await catalog.queues.queue(table(0), text=b"a third")
        assert not catalog.running

    play(scene)


def test_a_definition_from_before_the_last_change_proves_nothing() -> None:
    async def scene(catalog: Catalog) -> None:
        await catalog.queues.queue(table(0), text=SEEN)
        catalog.store.tables[table(0)] = replace(QUEUE, id=table(0), default_columns=("id", "more"))
        await catalog.queues.queue(table(0), text=OTHER_TEXT)
        catalog.store.tables[table(0)] = replace(QUEUE, id=table(0))
        assert (await catalog.queues.queue(table(0), text=SEEN)).default_columns == QUEUE.default_columns

    play(scene)


def test_a_thousand_concurrent_callers_cause_two_descriptions() -> None:
    async def scene(catalog: Catalog) -> None:
        asking = (catalog.queues.queue(table(0), text=SEEN) for _ in range(1_000))
        await asyncio.gather(*asking)
        assert catalog.store.calls["describe"] <= 2

    play(scene)


def test_a_changed_table_is_described_when_it_is_needed_and_the_others_are_not() -> None:
    async def scene(catalog: Catalog) -> None:
        await catalog.queues.refresh()  # The next one is an hour away.
        catalog.store.forget_calls()
        catalog.queues.schema_changed("m1")
        for number in (0, 1, 1, 2):
            await catalog.queues.queue(table(number))
        assert catalog.store.described == [table(1)]
        catalog.queues.schema_changed()
        for number in (0, 1, 2):
            await catalog.queues.queue(table(number))
        assert catalog.store.described == [table(1), table(0), table(1), table(2)]

    play(scene, queues=3, settings=EngineSettings(catalog_interval_s=3600, catalog_pause_s=3600))


def test_after_a_refresh_no_table_is_described_by_itself() -> None:
    async def scene(catalog: Catalog) -> None:
        catalog.queues.schema_changed()
        await catalog.queues.refresh()
        for number in range(100):
            await catalog.queues.queue(table(number))
        assert catalog.store.calls == {"discover": 1}

    play(scene, queues=100)


def test_a_change_in_the_binary_log_causes_a_refresh_and_does_not_delay_acknowledgements() -> None:
    async def scene(catalog: Catalog) -> None:
        await catalog.queues.refresh()
        catalog.queues.refresh_soon()
        await catalog.queues.queue(table(0))
        assert catalog.store.calls == {"discover": 1}

    play(scene, settings=EngineSettings(catalog_interval_s=3600, catalog_pause_s=3600))


def test_a_distrusted_table_is_described_again_although_its_stamp_is_the_same() -> None:
    async def scene(catalog: Catalog) -> None:
        catalog.queues.distrust(table(1))
        await catalog.queues.refresh()
        assert catalog.store.described == [table(1)]

    play(scene, queues=3)


def test_the_result_of_an_earlier_read_does_not_replace_that_of_a_later_one() -> None:
    async def scene(catalog: Catalog) -> None:
        store, go_on, waits = catalog.store, threading.Event(), threading.Event()

        def hold_the_single_description(name: str, _tables: Sequence[TableId]) -> None:
            if name == "describe":
                waits.set()
                go_on.wait(10)

        store.before = hold_the_single_description
        early = asyncio.create_task(catalog.queues.inspect(table(0), fresh=True))
        await asyncio.to_thread(waits.wait, 10)
        store.tables[table(0)] = replace(QUEUE, id=table(0), columns=("new",))
        await catalog.queues.refresh()
        assert catalog.running[table(0)].columns == ("new",)
        go_on.set()
        await early
        assert catalog.running[table(0)].columns == ("new",)

    play(scene)


# Memory.


def test_tables_that_are_no_queues_are_remembered_until_the_next_refresh_up_to_a_bound() -> None:
    async def scene(catalog: Catalog) -> None:
        before = catalog.queues.remembered
        for number in range(100, 200):
            assert await catalog.queues.inspect(table(number)) is None
        assert catalog.queues.remembered <= before + 10
        asked = catalog.store.calls["describe"]
        assert await catalog.queues.inspect(table(199)) is None
        assert catalog.store.calls["describe"] == asked
        await catalog.queues.refresh()
        assert catalog.queues.remembered == before

    play(scene, settings=EngineSettings(catalog_interval_s=3600, catalog_pause_s=0.001, catalog_tables_max=10))


def test_queues_that_are_dropped_are_forgotten() -> None:
    async def scene(catalog: Catalog) -> None:
        catalog.store.tables.clear()
        await catalog.queues.refresh()
        await catalog.queues.refresh()
        assert catalog.queues.remembered == 0
        assert not catalog.running

    play(scene, queues=100)


def test_a_few_definitions_of_each_queue_are_remembered() -> None:
    async def scene(catalog: Catalog) -> None:
        before = catalog.queues.remembered
        for number in range(10 * TEXTS_MAX):
            await catalog.queues.queue(table(0), text=b"%d" % number)
        assert catalog.queues.remembered <= before + TEXTS_MAX

    play(scene)


# Faults.


@pytest.mark.parametrize("error", [StoreError("the server is gone"), ValueError("a fault of ours")])
def test_a_failed_refresh_is_repeated_and_finds_what_was_missed(error: Exception) -> None:
    async def scene(catalog: Catalog) -> None:
        failing = iter([True, True, False])

        def fail(name: str, _tables: Sequence[TableId]) -> None:
            if name == "discover" and next(failing, False):
                raise error

        catalog.store.before = fail
        catalog.store.add_table(replace(QUEUE, id=table(5)))
        catalog.queues.refresh_soon()
        await catalog.until(lambda: table(5) in catalog.running)
        assert catalog.executor.counters.catalog_faults == (2 if isinstance(error, ValueError) else 0)

    play(scene)


@pytest.mark.parametrize("error", [StoreError("it is locked"), ValueError("a fault of ours")])
def test_a_table_that_cannot_be_described_affects_no_other_and_is_described_when_it_can_be(error: Exception) -> None:
    async def scene(catalog: Catalog) -> None:
        ill = True

        def fail(_name: str, tables: Sequence[TableId]) -> None:
            if table(5) in tables and ill:
                raise error

        catalog.store.before = fail
        for number in (4, 5, 6):
            catalog.store.add_table(replace(QUEUE, id=table(number)))
        await catalog.queues.refresh()
        assert catalog.running.keys() == {table(0), table(4), table(6)}
        with pytest.raises(StoreError):
            await catalog.queues.queue(table(5))
        ill = False
        await catalog.until(lambda: table(5) in catalog.running)

    play(scene)


def test_a_queue_that_could_not_be_started_is_started_by_the_next_refresh() -> None:
    async def scene(catalog: Catalog) -> None:
        def refuse(queue: QueueTable) -> None:
            if queue.id == table(5):
                raise ValueError("a fault of ours")

        catalog.found = refuse
        for number in (4, 5, 6):
            catalog.store.add_table(replace(QUEUE, id=table(number)))
        await catalog.queues.refresh()
        assert catalog.running.keys() == {table(0), table(4), table(6)}
        assert catalog.executor.counters.catalog_faults == 1
        catalog.found = lambda _queue: None
        await catalog.queues.refresh()
        assert table(5) in catalog.running

    play(scene)


def test_a_broken_table_is_reported_and_ends_its_queue() -> None:
    async def scene(catalog: Catalog) -> None:
        catalog.store.tables[table(0)] = BrokenTable(table(0), ("column id is missing",))
        await catalog.queues.refresh()
        assert not catalog.running
        with pytest.raises(UnusableQueue, match="column id is missing"):
            await catalog.queues.queue(table(0))

    play(scene)


def test_two_refreshes_at_a_time_both_succeed() -> None:
    """REDRIVE QUEUE without TO refreshes the catalog itself, whatever the periodic refresh does."""

    async def scene(catalog: Catalog) -> None:
        both = threading.Barrier(2)

        def wait_for_the_other(name: str, _tables: Sequence[TableId]) -> None:
            if name == "discover" and catalog.store.calls["discover"] <= 2:
                both.wait(10)

        catalog.queues.schema_changed("m0")
        catalog.store.before = wait_for_the_other
        await asyncio.gather(catalog.queues.refresh(), catalog.queues.refresh())

    play(scene)
