"""Which of several queues have unacknowledged messages: by one statement, on both servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.model import TableId
from engine.runtime.polls import POLLED_MAX
from engine.store.port import StoreError
from proxy.embedded.server import EmbeddedServer
from tests.support.stores import ServerSubject, counted_store

pytestmark = pytest.mark.either_server


@pytest.fixture
def subject(server: EmbeddedServer) -> Iterator[ServerSubject]:
    made = ServerSubject(server)
    yield made
    made.close()


def test_one_packet_shows_them_all(subject: ServerSubject) -> None:
    """Due or not, and whatever is acknowledged."""
    named = {name: replace(subject.table, id=TableId(subject.table.id.db, name)) for name in "abc"}
    for name in named:
        subject.execute(f"CREATE TABLE {name} LIKE messages")
        subject.execute(f"INSERT INTO {name} (id, time_next, time_acked, body) VALUES (1, NULL, 5, 'x')")
    subject.execute("INSERT INTO b (id, time_next, body) VALUES (2, 9000000000000000000, 'x')")
    with counted_store(subject) as (store, sent):
        store.ping()
        sent.clear()
        assert store.unacknowledged(list(named.values())).value == {named["b"].id}
        assert len(sent) == 1
        assert store.unacknowledged([subject.table] * POLLED_MAX).value == frozenset()
        subject.execute("DROP TABLE c")
        with pytest.raises(StoreError):
            store.unacknowledged(list(named.values()))
