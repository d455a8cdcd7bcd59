"""The batches of a query from one process to the next, without Spark: a process knows those of an earlier one by the
claims in the checkpoint, and takes no message that only has the same id and epoch."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pipeline.common.statements import Statements
from pipeline.common.table import describe
from pipeline.datasource import AckstreamDataSource
from pipeline.endpoint import Endpoint
from pipeline.errors import PipelineError
from pipeline.source.claims import NOTHING
from pipeline.source.consume import Batches, StreamReader
from pipeline.source.holding import Holder
from pipeline.source.options import SourceOptions
from tests.support.queues import create_queue, rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

QUEUE = "CREATE QUEUE m (payload TEXT) ACK_WAIT = 3600"
INSERT = "INSERT INTO m (id, payload) VALUES (1, 'x'), (2, 'x'), (3, 'x')"
STREAM = "STREAM id, epoch FROM m LIMIT 3 WAIT 20"
FREE = "SELECT COUNT(*) FROM m WHERE time_acked IS NULL AND time_next <= UNIX_TIMESTAMP(NOW(6)) * 1000000000"
LEASE = "SELECT MIN(lease) FROM m"

RESETS: dict[str, tuple[str, ...]] = {
    "dropped and made again": ("DROP TABLE m", QUEUE, INSERT),
    "truncated": ("TRUNCATE TABLE m", INSERT),
    "restored from a backup": ("CREATE TABLE old LIKE m", "DROP TABLE m", "RENAME TABLE old TO m", INSERT),
    "swapped": (QUEUE.replace(" m ", " n "), INSERT.replace(" m ", " n "), "RENAME TABLE m TO old, n TO m"),
    "without its last inserts, after a failover": ("DELETE FROM m", INSERT),
}

Query = Callable[..., Batches]


@pytest.fixture
def query(endpoint: Endpoint, connection: Any) -> Iterator[Query]:
    """A process of a query of the queue m."""
    processes: list[Batches] = []

    def begin(hold_s: int = 60) -> Batches:
        table = describe(connection, str(endpoint.database), "m")
        options = SourceOptions(endpoint, table.database, table.name)
        processes.append(Batches(Holder(endpoint, Statements(table), 2, hold_s), options))
        return processes[-1]

    yield begin
    for process in processes:
        process.close()


def claimed(process: Batches) -> dict[str, Any]:
    """The offset of a batch of three messages."""
    found: list[dict[str, Any]] = []

    def three() -> bool:
        found[:] = [process.next(NOTHING.offset(), ReadMaxRows(3))]
        return bool(found[0]["messages"])

    eventually(three)
    assert found[0]["messages"] == 3
    return found[0]


@pytest.fixture(params=["as claimed", "extended"])
def offset(request: pytest.FixtureRequest, query: Query, connection: Any) -> dict[str, Any]:
    """The offset of a batch whose process has died: its messages were given back."""
    run(connection, QUEUE)
    run(connection, INSERT)
    process = query()
    offset = claimed(process)
    if request.param == "extended":
        ((before,),) = rows(connection, LEASE)
        assert process.pieces(offset)
        run(connection, "EXTEND m WHERE id IN (1, 2, 3) AND epoch = 1 BY 5000")
        assert rows(connection, LEASE) > [(before,)]
    process.close()
    run(connection, "NACK m WHERE id IN (1, 2, 3) AND epoch = 1")  # The proxy does so a moment later.
    return offset


def test_a_batch_that_was_finished_is_acknowledged_by_the_next_process(
    query: Query, offset: dict[str, Any], connection: Any
) -> None:
    assert query().next(offset, ReadMaxRows(1)) == offset
    assert rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NOT NULL AND epoch = 1") == [(3,)]


def test_a_batch_that_was_not_finished_goes_on(query: Query, offset: dict[str, Any], connection: Any) -> None:
    process = query()
    assert sorted(claim[:2] for piece in process.pieces(offset) for claim in piece) == [(1, 1), (2, 1), (3, 1)]
    assert rows(connection, FREE) == [(0,)]
    process.finished(offset)
    assert rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NOT NULL AND epoch = 1") == [(3,)]


@pytest.mark.parametrize("reset", RESETS)
def test_messages_of_a_queue_that_began_anew_are_left_to_who_has_them(
    query: Query, offset: dict[str, Any], endpoint: Endpoint, connection: Any, reset: str
) -> None:
    for statement in RESETS[reset]:
        run(connection, statement)
    with endpoint.connect() as other:
        eventually(lambda: rows(other, STREAM) == [(1, 1), (2, 1), (3, 1)], what="another consumer has them")
        before = rows(connection, "SELECT time_next, time_acked FROM m")
        finished, unfinished = query(), query()
        assert finished.next(offset, ReadMaxRows(3)) == offset
        assert unfinished.pieces(offset) == []
        unfinished.finished(offset)
        assert rows(connection, "SELECT time_next, time_acked FROM m") == before
        assert run(other, "ACK m WHERE id IN (1, 2, 3) AND epoch = 1") == 3


def test_a_running_batch_is_extended_with_the_digits_of_its_claim(query: Query, connection: Any) -> None:
    run(connection, QUEUE.replace("3600", "2"))
    run(connection, INSERT)
    process = query(hold_s=3)
    offset = claimed(process)
    ((before,),) = rows(connection, LEASE)
    eventually(lambda: rows(connection, LEASE) > [(before,)], what="the batch is kept")
    assert rows(connection, "SELECT COUNT(*) FROM m WHERE lease <> time_next") == [(0,)]
    assert sorted(claim[:2] for piece in query().pieces(offset) for claim in piece) == [(1, 1), (2, 1), (3, 1)]


def test_what_an_earlier_process_had_of_a_queue_without_leases_is_delivered_again(
    query: Query, connection: Any
) -> None:
    create_queue(connection, "m", vt_ack_wait="3600")
    run(connection, INSERT)
    process = query()
    offset = claimed(process)
    process.close()
    eventually(lambda: rows(connection, FREE) == [(3,)], what="what the process held is given back")
    process = query()
    assert process.pieces(offset) == []
    process.finished(offset)
    assert sorted(rows(connection, STREAM)) == [(1, 2), (2, 2), (3, 2)]


def test_a_wrong_condition_is_refused_when_the_query_is_planned(endpoint: Endpoint, connection: Any) -> None:
    run(connection, QUEUE)
    place = {"url": f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}", "table": "m"}
    assert AckstreamDataSource({**place, "where": "payload LIKE 'x%'"}).schema()
    with pytest.raises(PipelineError, match=r"the server says: Unknown column 'region' in '.*' \(1054\)"):
        AckstreamDataSource({**place, "where": "region = 'eu'"}).schema()


def test_the_progress_counts_what_the_query_wants_and_shows_a_pause(
    endpoint: Endpoint, connection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run(connection, QUEUE)
    run(connection, INSERT)
    place = {"url": f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}", "table": "m"}
    source = AckstreamDataSource({**place, "where": "id > 1"})
    reader = cast("StreamReader", source.streamReader(source.schema()))
    told = {"queue": f"{endpoint.database}.m", "ready": 2, "more": False}
    assert reader.reportLatestOffset() == {**told, "paused": False}
    run(connection, "PAUSE QUEUE m")
    assert [reader.reportLatestOffset() for _ in range(2)] == [{**told, "paused": True}] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "the queue is paused, so the query gets nothing from it: RESUME QUEUE goes on"
    ]
    reader.stop()


def test_tasks_read_the_messages_of_a_batch(query: Query, endpoint: Endpoint, connection: Any) -> None:
    """On executors, which get a copy of the reader; in the first process and in the next one."""
    run(connection, QUEUE)
    run(connection, INSERT)
    place = {"url": f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}", "table": "m"}
    source = AckstreamDataSource(place)
    offset = claimed(query())
    for _ in range(2):
        reader = cast("StreamReader", source.streamReader(source.schema()))
        copy = pickle.loads(pickle.dumps(reader))
        parts = pickle.loads(pickle.dumps(reader.partitions(NOTHING.offset(), offset)))
        received = [row for part in parts for batch in copy.read(part) for row in batch.to_pylist()]
        assert received == [{"id": number, "payload": "x", "epoch": 1} for number in (1, 2, 3)]
        reader.stop()
