"""The ledger of batches and the queue's table: what was written to a table that is gone is not taken for written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.common.ledger import WRITE, Batch, Ledger
from pipeline.common.statements import NOW
from pipeline.common.table import describe
from pipeline.endpoint import Endpoint
from pipeline.enqueue.abandon import abandon
from pipeline.errors import PipelineError
from tests.support.queues import rows, run

pytestmark = pytest.mark.either_server

QUEUE = "CREATE QUEUE m (payload VARCHAR(100))"
NEW = Batch("b", "streaming", "f", None, 2, 3, 0, None)
GONE = "was made again or altered since batch 'b' was written"

ANEW = {
    "dropped and made again": ("DROP TABLE m", QUEUE),
    "restored": ("CREATE TABLE old LIKE m", "DROP TABLE m", "RENAME TABLE old TO m"),
    "swapped": (QUEUE.replace(" m ", " n "), "RENAME TABLE m TO old, n TO m"),
}

Again = Callable[[], Batch]


@pytest.fixture
def again(endpoint: Endpoint, connection: Any) -> Again:
    """Begin the batch, as each of its runs does."""
    return lambda: Ledger(describe(connection, str(endpoint.database), "m")).begin(connection, NEW)


@pytest.fixture(params=["whole", "first slice of two"])
def written(request: pytest.FixtureRequest, endpoint: Endpoint, connection: Any, again: Again) -> str:
    """What is written of the batch."""
    run(connection, QUEUE)
    batch, ledger = again(), Ledger(describe(connection, str(endpoint.database), "m"))
    with connection.cursor() as cursor:
        ledger.add_slices(cursor, batch, [0, 1])
        whole = request.param == "whole"
        for number in [0, 1] if whole else [0]:
            run(connection, f"INSERT INTO m (payload, time_next) VALUES ('x', {batch.begun})")
            assert ledger.write_slice(cursor, batch, number)
        assert not whole or ledger.finish(cursor, batch, set())
    return str(request.param)


@pytest.mark.parametrize("reset", ANEW)
def test_a_batch_of_a_queue_that_began_anew_is_refused_until_it_is_abandoned(
    written: str, again: Again, endpoint: Endpoint, connection: Any, reset: str
) -> None:
    assert written
    for statement in ANEW[reset]:
        run(connection, statement)
    run(connection, "INSERT INTO m (payload) VALUES ('of somebody else')")
    with pytest.raises(PipelineError, match=GONE):
        again()
    assert "its name is free" in abandon(endpoint, "m", "b")
    assert again().finished is None
    assert rows(connection, "SELECT COUNT(*) FROM ackstream_slices") == [(0,)]


@pytest.mark.parametrize("consumed", [False, True], ids=["waiting", "consumed"])
def test_a_batch_of_a_queue_that_was_altered_goes_on(
    written: str, again: Again, endpoint: Endpoint, connection: Any, consumed: bool
) -> None:
    if consumed:
        run(connection, "ACK m WHERE TRUE")
    run(connection, "ALTER QUEUE m ACK_WAIT = 77")
    assert (again().finished is not None) == (written == "whole")
    if written == "whole":
        with pytest.raises(PipelineError, match="batch 'b' is done"):
            abandon(endpoint, "m", "b")
    else:
        assert "1 of its 2 slices are in" in abandon(endpoint, "m", "b")


def test_a_batch_of_df_write_is_refused_likewise(endpoint: Endpoint, connection: Any) -> None:
    run(connection, QUEUE)
    ledger = Ledger(describe(connection, str(endpoint.database), "m"))
    batch = ledger.open(connection, "b", WRITE)
    run(connection, f"INSERT INTO m (payload, time_next) VALUES ('x', {NOW})")
    ledger.add_slice(connection.cursor(), batch, 1, 1, "f")
    assert ledger.open(connection, "b", WRITE).finished is not None
    for statement in ANEW["dropped and made again"]:
        run(connection, statement)
    with pytest.raises(PipelineError, match=GONE):
        Ledger(describe(connection, str(endpoint.database), "m")).open(connection, "b", WRITE)
