"""Which messages are free: by a call that waits, and by one that is begun."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.store.mysql import MySQLStore
from proxy.embedded.server import EmbeddedServer
from tests.support.stores import ServerSubject, counted_store, result_of

pytestmark = pytest.mark.either_server


@pytest.fixture
def subject(server: EmbeddedServer) -> Iterator[ServerSubject]:
    made = ServerSubject(server)
    for key in (1, 2, 3):
        made.execute("INSERT INTO messages (id, time_next, body) VALUES (%s, 5, 'x')", key)
    yield made
    made.close()


@pytest.fixture
def counted(subject: ServerSubject) -> Iterator[tuple[MySQLStore, list[bytes]]]:
    """A store with a connection, and the packets that it sends."""
    with counted_store(subject) as (store, sent):
        store.ping()
        sent.clear()
        yield store, sent


def test_one_packet_shows_those_that_exist_and_are_free(subject: ServerSubject, counted: Any) -> None:
    store, sent = counted
    with subject.locked(2):
        assert store.unlocked(subject.table, [1, 2, 4]).value == {1}
        call = store.begin_unlocked(subject.table, [1, 2, 4])
        assert call is not None
        result = result_of(call)
    assert result is not None
    assert (result.value, call.waits, len(sent)) == ({1}, False, 2)


def test_no_place_between_rows_stays_locked_while_the_result_is_not_read(subject: ServerSubject, counted: Any) -> None:
    store, _ = counted
    call = store.begin_unlocked(subject.table, [3, 4])
    subject.execute("SET SESSION innodb_lock_wait_timeout = 1")
    subject.execute("INSERT INTO messages (id, time_next, body) VALUES (9, 5, 'x')")
    assert call is not None
    assert result_of(call).value == {3}  # type: ignore[union-attr]


def test_it_is_not_begun_where_it_would_have_to_wait(subject: ServerSubject, counted: Any) -> None:
    """For a connection, or for room in the send buffer."""
    store, _ = counted
    assert store.begin_unlocked(subject.table, range(10**15, 10**15 + 1_000)) is None
    call = store.begin_unlocked(subject.table, [1])
    assert call is not None
    assert store.begin_unlocked(subject.table, [2]) is None
    assert result_of(call).value == {1}  # type: ignore[union-attr]
    store.close()
    assert store.begin_unlocked(subject.table, [1]) is None
