"""The reader of the binary log on real servers, and the engine's own transactions: none of their events is decoded,
except those that change more than the dispatcher knows."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from engine.binlog.changes import Change, ChangeSet
from engine.binlog.pipe import BinlogLimits, FollowRequest
from engine.binlog.reader import LogReader, Outbox
from engine.binlog.replication_adapter import Event, Rows
from engine.binlog.scope import ChangeFilter, Scope
from engine.model import Entry, Key, Return, TableId, Wanted
from engine.queue_table import QueueTable
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress
from engine.store.own_writes import OwnWrites
from proxy.embedded.server import EmbeddedServer
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.servers import ServerName, connect, server_or_skip

pytestmark = pytest.mark.either_server

WAIT_NS = 30 * 10**9
LAST = 999_999


class LogReadError(Exception):
    """The reader has read everything."""


class Told(Outbox):
    """Keeps the changes up to the message LAST."""

    def __init__(self) -> None:
        super().__init__(BinlogLimits())
        self.changes = ChangeSet(1_000)

    def add(self, changes: ChangeSet) -> None:
        self.changes.add(changes)
        if any(LAST in (rows or {}) for rows in self.changes.tables.values()):
            raise LogReadError


class CountingReader(LogReader):
    """Keeps the events of rows that were decoded."""

    def __init__(self, request: FollowRequest, told: Told) -> None:
        super().__init__(request, told, lambda _: None)
        self.decoded: list[Rows] = []
        begin = self._begin()
        self._begin = lambda: begin  # type: ignore[method-assign]  # What is written until it runs.

    def _handle(self, event: Event) -> None:
        if isinstance(event, Rows):
            self.decoded.append(event)
        super()._handle(event)


class Log:
    """Queues, a store on them, and what a reader for this store reads of what is done meanwhile."""

    def __init__(self, server: EmbeddedServer, database: str, stack: ExitStack) -> None:
        self.root = stack.enter_context(connect(server, database=database))
        create_queue(self.root, "dead", dead_letter_of="m")
        create_queue(self.root, "m", max_attempts="1", dead_letter="dead")
        create_queue(self.root, "leased", "payload TEXT, lease BIGINT", lease="lease")
        self.server, self.stack, self.database = server, stack, database
        self.own = OwnWrites()
        self.store = self.new_store(self.own)
        self.told, self.lock = Told(), f"lock-{secrets.token_hex(8)}"
        tables = [self.id(name) for name in ("m", "dead", "leased")]
        address = BackendAddress(server.host, server.port, "root")
        self.reader = CountingReader(
            FollowRequest(address, BinlogLimits(), dict.fromkeys(tables, Scope()), self.own.mark, "a lock of its own"),
            self.told,
        )
        run(self.root, f"DO GET_LOCK('{self.lock}', 0)")
        self.own.report_by(self.lock, self.reader.own_connections)

    def id(self, name: str) -> TableId:
        return TableId(self.database, name)

    def queue(self, name: str = "m") -> QueueTable:
        found = self.store.describe(self.id(name)).value
        assert isinstance(found, QueueTable), found
        return found

    def new_store(self, own: OwnWrites | None = None) -> MySQLStore:
        store = MySQLStore(BackendAddress(self.server.host, self.server.port, "root"), own_writes=own)
        self.stack.callback(store.close)
        return store

    def read(self) -> dict[Key, Entry | None]:
        """What the reader reports of the queue m. Meanwhile `reader.decoded` is filled."""
        run(self.root, f"INSERT INTO m (id) VALUES ({LAST})")
        with pytest.raises(LogReadError):
            self.reader.run()
        self.reader.decoded.pop()
        changes = dict(self.told.changes.tables[self.id("m")] or {})
        del changes[LAST]
        return {key: change.entry for key, change in changes.items()}


@pytest.fixture(scope="module")
def server(server_name: ServerName) -> Iterator[EmbeddedServer]:
    """A server without a proxy. The shared one has a proxy at times, which purges and moves messages
    as well."""
    with server_or_skip(server_name) as server:
        yield server


@pytest.fixture
def log(server, database) -> Iterator[Log]:
    with ExitStack() as stack:
        yield Log(server, database, stack)


def claim(store: MySQLStore, queue: QueueTable, keys: list[int], epoch: int = 0) -> list[Return]:
    claims = store.claim(queue, [Wanted(key, epoch, WAIT_NS) for key in keys]).value
    assert [claimed.key for claimed in claims] == keys
    return [
        Return(claimed.key, claimed.epoch, claimed.deadline_ns, claimed.due_ns, sent=claimed.key % 2 == 0)
        for claimed in claims
    ]


def test_of_claims_releases_and_purges_no_event_is_decoded(log: Log) -> None:
    enqueue(log.root, "m", ["x"] * 100)
    run(log.root, "UPDATE m SET time_acked = 1, time_next = NULL WHERE id > 90")
    queue = log.queue()
    for key in range(1, 51):
        log.store.release(queue, claim(log.store, queue, [key]))
    claim(log.store, queue, list(range(51, 91)))
    assert log.store.purge(queue, 0, 100).value.rows == 10
    log.read()
    assert [event.change for event in log.reader.decoded] == [Change.INSERT, Change.UPDATE]


def test_what_others_do_in_between_is_reported(log: Log) -> None:
    enqueue(log.root, "m", "abc")
    queue, another_proxy = log.queue(), log.new_store(OwnWrites())
    claim(log.store, queue, [1])
    claim(another_proxy, queue, [2])
    run(log.root, "UPDATE m SET time_acked = 1, time_next = NULL WHERE id = 1")
    changes = log.read()
    assert changes[1] is None
    assert changes[2] is not None
    assert (changes[2].epoch, changes[3]) == (1, Entry(3, 0, 0, 0))


def test_of_a_queue_with_a_lease_column_the_claims_and_acknowledgements_of_other_proxies_are_left_out(log: Log) -> None:
    own, other = 3, 4
    log.reader.followed.replace(
        {log.id("m"): Scope(), log.id("leased"): Scope(ChangeFilter("lease", frozenset({own})))}
    )
    enqueue(log.root, "leased", "abcd")
    for slot, keys, store in ((own, (1, 2), log.store), (other, (3, 4), log.new_store(OwnWrites()))):
        wanted = [Wanted(key, 0, WAIT_NS) for key in keys]
        assert len(store.claim(log.queue("leased"), wanted, slot).value) == len(keys)
    run(log.root, "UPDATE leased SET time_acked = 1, time_next = NULL WHERE id IN (1, 3)")
    run(log.root, "UPDATE leased SET time_next = 0 WHERE id = 4")
    log.read()
    changes = log.told.changes.tables[log.id("leased")] or {}
    inserted = {key: Entry(key, 0, 0, 0) for key in (2, 3)}
    assert {key: change.entry for key, change in changes.items()} == {1: None, **inserted, 4: Entry(4, 1, 0, 0)}


def test_an_acknowledgement_comes_with_the_delivery_that_the_row_showed(log: Log) -> None:
    """So it is known to be younger than the claim, which is not reported."""
    enqueue(log.root, "m", "ab")
    (given,) = claim(log.store, log.queue(), [1])
    run(log.root, "UPDATE m SET time_acked = 1, time_next = NULL")
    log.read()
    (changes,) = (found for found in log.told.changes.by_table() if found.table == log.id("m"))
    assert changes.before == {1: (given.epoch, given.deadline_ns), 2: (0, 0)}


def test_dead_messages_that_are_moved_are_reported_where_they_arrive(log: Log) -> None:
    """The dispatcher of that queue has no other report if the answer is lost."""
    enqueue(log.root, "m", "ab")
    run(log.root, "UPDATE m SET epoch = 1")
    dead = log.store.move_dead_letters(log.queue(), [Wanted(key, 1, WAIT_NS) for key in (1, 2)], log.id("dead"))
    assert dead.value.moved == (1, 2)
    log.read()
    assert set(log.told.changes.tables[log.id("dead")] or ()) == {1, 2}


def test_what_a_trigger_writes_to_another_queue_is_reported(log: Log) -> None:
    run(log.root, "CREATE TRIGGER t AFTER UPDATE ON m FOR EACH ROW UPDATE dead SET priority = 7 WHERE id = NEW.id")
    enqueue(log.root, "m", "ab")
    enqueue(log.root, "dead", "ab")
    claim(log.store, log.queue(), [1])
    log.read()
    changes = log.told.changes.tables[log.id("dead")]
    assert changes is not None
    assert changes[1].entry == Entry(1, 0, 7, 0)


def reported(own: OwnWrites, lock: str, use: Callable[[], Any]) -> list[frozenset[int]]:
    numbers: list[frozenset[int]] = []
    own.report_by(lock, numbers.append)
    use()
    use()
    return numbers


def test_a_connection_reports_its_number_if_it_finds_the_lock_on_its_server(log: Log) -> None:
    found = reported(log.own, log.lock, log.store.ping)
    assert len(found) == 1  # Once for each lock.
    (number,) = found[0]
    assert (number,) in rows(log.root, "SELECT id FROM information_schema.processlist")
    rows(log.root, f"SELECT RELEASE_LOCK('{log.lock}')")
    assert reported(log.own, log.lock, log.store.ping) == [frozenset()]  # As after a restart or a failover.
    assert reported(log.own, "", log.store.ping) == []


def test_the_number_of_a_connection_that_ended_is_withdrawn(log: Log) -> None:
    numbers: list[frozenset[int]] = []
    log.own.report_by(log.lock, numbers.append)
    log.store.ping()
    (first,) = numbers[0]
    run(log.root, f"KILL {first}")
    while len(numbers) < 2:
        try:
            log.store.ping()
        except Exception:  # noqa: BLE001  # The connection that was killed.
            continue
    assert first not in numbers[1]
    assert len(numbers[1]) == 1
