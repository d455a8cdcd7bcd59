"""ACKs of several clients in one packet: the same result as in two, on both servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from engine.packets import Result
from engine.store.acknowledging import REFUSALS_MAX, SHORT_BYTES
from engine.store.acks import Ack
from engine.store.connection import Begun, StoreConnection
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress
from engine.store.port import AckResult, AckUnknownError, StoreError
from proxy.embedded.server import EmbeddedServer
from tests.support.stores import ServerSubject, counted_store, result_of
from tests.support.waiting import eventually

PAIR = [Ack((1,)), Ack((2,))]


@pytest.fixture
def subject(server: EmbeddedServer) -> Iterator[ServerSubject]:
    made = ServerSubject(server)
    made.execute("INSERT INTO messages (id) VALUES (1), (2), (3)")
    yield made
    made.close()


@pytest.fixture
def counted(subject: ServerSubject) -> Iterator[tuple[MySQLStore, list[bytes]]]:
    """A store that knows its server, and the packets that it sends."""
    with counted_store(subject) as (store, sent):
        store.acknowledge_all(subject.table, [Ack((77,))], subject.origin)
        store.ping()  # Reads the replies to the reset.
        sent.clear()
        yield store, sent


Batch = Callable[[Sequence[Ack]], Sequence[AckResult]]


@pytest.fixture(params=["called", "begun"])
def batch(request: pytest.FixtureRequest, subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]) -> Batch:
    """Carries out ACKs, and returns their counts. The store begins them before the result is waited for, or not."""
    store, origin = counted[0], subject.origin

    def carry_out(acks: Sequence[Ack]) -> Sequence[AckResult]:
        begun = store.begin_acks(subject.table, acks, origin) if request.param == "begun" else None
        result = result_of(begun) if begun else store.acknowledge_all(subject.table, acks, origin)
        assert result is not None
        return list(result.value)

    return carry_out


def live(subject: ServerSubject) -> list[int]:
    return [key for (key,) in subject.execute("SELECT id FROM messages WHERE time_acked IS NULL ORDER BY id")]


def test_acks_by_id_are_one_packet(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]], batch: Batch
) -> None:
    assert batch([Ack((2,)), Ack((1,)), Ack((2,)), Ack((77,))]) == [1, 1, 0, 0]
    assert (live(subject), len(counted[1])) == ([3], 1)


def test_acks_with_an_epoch_are_one_too(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]], batch: Batch
) -> None:
    assert batch([Ack((1,), 0), Ack((2,), 5), Ack((3,)), Ack((2,), 6)]) == [1, 0, 1, 0]
    assert (live(subject), len(counted[1])) == ([2], 1)


def test_beside_a_locked_row_the_others_are_acknowledged_in_halves(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]], batch: Batch
) -> None:
    with subject.locked(1):
        assert batch([Ack((1,)), Ack((2,))]) == [None, 1]
    assert live(subject) == [1, 3]
    assert len([packet for packet in counted[1] if b"ackstream ack" in packet]) == 3
    assert batch([Ack((1, 3))]) == [2]


def test_a_message_that_is_acknowledged_keeps_its_time(subject: ServerSubject, batch: Batch) -> None:
    subject.execute("UPDATE messages SET time_acked = 5, time_next = NULL WHERE id = 1")
    assert batch(PAIR) == [0, 1]
    assert subject.execute("SELECT time_acked FROM messages WHERE id = 1") == [(5,)]


def test_a_packet_that_was_begun_is_carried_out_before_its_result_is_waited_for(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    call = counted[0].begin_acks(subject.table, PAIR, subject.origin)
    assert call is not None
    eventually(lambda: live(subject) == [3], what="the acknowledgement")
    result = result_of(call)
    assert result is not None
    assert (result.value, call.waits) == ((1, 1), False)


def test_of_proxies_that_acknowledge_the_same_messages_at_once_one_counts_each(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    """The one that comes later finds locked rows, or none."""
    keys = range(1000, 1020)
    acks = [Ack((key,)) for key in keys]
    with counted_store(subject) as (second, _), counted_store(subject) as (third, _):
        stores = [counted[0], second, third]
        for store in stores:
            store.acknowledge_all(subject.table, [Ack((77,))], subject.origin)
        for _ in range(20):
            subject.execute("DELETE FROM messages")
            subject.execute(f"INSERT INTO messages (id) VALUES {', '.join(f'({key})' for key in keys)}")
            for store in stores:
                store.ping()
            calls = [store.begin_acks(subject.table, acks, subject.origin) for store in stores]
            results = [result_of(call) for call in calls if call is not None]
            assert len(results) == len(stores)
            counts = [
                sum(count or 0 for count in of_key) for of_key in zip(*(r.value for r in results if r), strict=True)
            ]
            assert max(counts) <= 1
            assert live(subject) == [key for key, count in zip(keys, counts, strict=True) if not count]


def test_its_replies_may_come_in_tls_records(subject: ServerSubject) -> None:
    store = MySQLStore(BackendAddress(subject.server.host, subject.server.port, "root", tls=True))
    subject.execute("INSERT INTO messages (id) SELECT seq FROM (SELECT 100 + id AS seq FROM messages) AS more")
    for acks in ([Ack((key,)) for key in range(200)], PAIR, [Ack((3,)), Ack((3,))]):
        store.acknowledge_all(subject.table, [Ack((77,), 5)], subject.origin)  # So the server is known.
        store.ping()
        call = store.begin_acks(subject.table, acks, subject.origin)
        assert call is not None
        result_of(call)
        assert not call.waits
    assert live(subject) == []
    store.close()


def test_nothing_is_begun_that_would_have_to_wait(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    """For a connection, for room in the send buffer, or for the result of the first packet. Or for the server's
    name."""
    store, sent = counted
    begin = partial(store.begin_acks, subject.table)
    assert begin([Ack(tuple(range(SHORT_BYTES)))], subject.origin) is None
    assert begin(PAIR, replace(subject.origin, name="another")) is None
    call = begin(PAIR, subject.origin)
    assert call is not None
    assert begin([Ack((3,)), Ack((3,))], subject.origin) is None
    result = result_of(call)
    assert result is not None
    assert (result.value, len(sent)) == ((1, 1), 1)
    store.close()
    assert begin([Ack((3,)), Ack((3,))], subject.origin) is None
    assert live(subject) == [3]


@pytest.mark.parametrize("begun", [False, True])
def test_on_a_read_only_server_all_are_left_out(private_server: EmbeddedServer, *, begun: bool) -> None:
    """Though the engine's account could write there."""
    subject = ServerSubject(private_server)
    subject.execute("INSERT INTO messages (id) VALUES (1), (2)")
    store, origin = subject.store, subject.origin
    store.acknowledge_all(subject.table, [Ack((77,))], origin)
    store.ping()
    subject.execute("SET GLOBAL read_only = 1")
    try:
        call = store.begin_acks(subject.table, PAIR, origin) if begun else None
        assert (call is None) is not begun
        result = result_of(call) if call else store.acknowledge_all(subject.table, PAIR, origin)
        assert result is not None
        assert list(result.value) == [None, None]
        assert live(subject) == [1, 2]
    finally:
        subject.execute("SET GLOBAL read_only = 0")
        subject.close()


@contextmanager
def locked_table(subject: ServerSubject) -> Iterator[None]:
    subject.execute("LOCK TABLES messages WRITE")
    try:
        yield
    finally:
        subject.execute("UNLOCK TABLES")


def test_a_lost_connection_leaves_the_outcome_of_a_begun_packet_unknown(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]]
) -> None:
    store, origin = counted[0], subject.origin
    subject.execute("CREATE TRIGGER t BEFORE UPDATE ON messages FOR EACH ROW DO SLEEP(0.5)")  # It is not done before.
    call = store.begin_acks(subject.table, PAIR, origin)
    assert call is not None
    store.close()
    with pytest.raises(AckUnknownError):
        result_of(call)


def test_a_locked_table_is_waited_for_once(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]], batch: Batch
) -> None:
    with locked_table(subject), suppress(StoreError):
        assert batch(PAIR) == [None, None]  # MariaDB refuses at once.
    waits = [packet for packet in counted[1] if b"ackstream ack" in packet]
    assert (live(subject), len(waits)) in [([1, 2, 3], 1), ([1, 2, 3], 3)]


def test_after_many_refusals_the_rest_is_left_out(
    subject: ServerSubject, counted: tuple[MySQLStore, list[bytes]], batch: Batch
) -> None:
    subject.execute("DELETE FROM messages")
    subject.execute(f"INSERT INTO messages (id) VALUES {', '.join(f'({key})' for key in range(200))}")
    with subject.locked(*range(200)):
        assert batch([Ack((key,)) for key in range(200)]) == [None] * 200
    assert len([packet for packet in counted[1] if b"ackstream ack" in packet]) == REFUSALS_MAX


def test_a_commit_that_fails_is_certainly_undone_if_the_rows_show_it(
    subject: ServerSubject, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's reply to the commit is replaced. One of the messages does not exist."""
    failing(monkeypatch, committed=False)
    with pytest.raises(StoreError) as raised:
        batch([*PAIR, Ack((77,))])
    assert not isinstance(raised.value, AckUnknownError)
    assert live(subject) == [1, 2, 3]


def test_a_commit_that_fails_is_unknown_if_a_row_is_acknowledged(
    subject: ServerSubject, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, committed=True)
    with pytest.raises(AckUnknownError):
        batch(PAIR)
    assert live(subject) == [3]


def failing(monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> None:
    """The next COMMIT is answered with an error. Not `committed`: a ROLLBACK is sent in its place."""
    begin, results = StoreConnection.begin, StoreConnection.results
    commits: set[int] = set()

    def begin_it(connection: StoreConnection, statements: Sequence[str], *context: Any) -> Begun:
        if statements[-1] != "COMMIT":
            return begin(connection, statements, *context)
        begun = begin(connection, statements if committed else [*statements[:-1], "ROLLBACK"], *context)
        commits.add(id(begun))
        return begun

    def read(connection: StoreConnection, begun: Begun, *keep: Any) -> Iterator[Result]:
        replies = list(results(connection, begun, *keep))
        if id(begun) in commits:
            yield from replies[:-1]
            raise StoreError("the commit has failed", code=1180)
        yield from replies

    monkeypatch.setattr(StoreConnection, "begin", begin_it)
    monkeypatch.setattr(StoreConnection, "results", read)


def test_a_row_that_changes_between_lock_and_update_leaves_the_outcome_unknown(
    subject: ServerSubject, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock's reply loses a row, as if that had been acknowledged then and not any more at the UPDATE."""
    results = StoreConnection.results

    def read(connection: StoreConnection, begun: Begun, *keep: Any) -> Iterator[Result]:
        for result in results(connection, begun, *keep):
            yield Result(result.rows[1:]) if len(result.rows) > 1 else result

    monkeypatch.setattr(StoreConnection, "results", read)
    with pytest.raises(AckUnknownError):
        batch(PAIR)
    assert live(subject) == [3]
