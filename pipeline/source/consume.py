"""A queue as a source of Spark: which messages are in which batch, and when they are acknowledged.

How Spark calls a Python source (4.2 and 4.3, observed by logging every call):

- One process beside the driver has the reader for the whole life of a query: `latestOffset`,
  `partitions`, `commit`. When the query ends, in any way, this process is killed a moment after
  `stop`. So nothing depends on `stop`: messages are released because the process's connections
  close (`holding`).
- Executors get a copy of the reader, and `read` a partition for each attempt of a task.
- Spark calls `latestOffset(start, …)` for a new batch when the batch that ended at `start` is in
  its commit log, and again and again while nothing comes. It calls `commit(start)` only after the
  next batch was found and logged, so the last messages of a queue that falls silent would stay
  unacknowledged until more arrive. So `latestOffset(start)` *is* the commit of `start` and first
  acknowledges it. `commit` does the same and finds it done.
- After a crash Spark calls `partitions` for the logged, unfinished batch, then continues with
  `latestOffset` behind it. A batch that was finished but not acknowledged is `start` of the first
  `latestOffset`. Of either, the process knows only the claims, and uses those that it recognises.

The offset of a batch is its claims (`claims`). A batch that runs again has the same messages, less
those that have been delivered to another consumer since, and never new ones. A sink that has a
batch of this number already skips it, and its messages are then acknowledged.

At most `maxMessagesPerBatch` messages are in flight, and no batch begins before the previous one is
acknowledged. So a slow query has few messages in flight and leaves the others to other consumers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..common.columns import reading
from ..common.connection import LazyConnection
from ..common.pages import Pages
from ..common.ranges import Range, even
from ..common.rows import FIRST_READ, next_size, record_batch, selection
from ..common.statements import IDS_MAX, NOW, Statements, fetching
from ..common.table import Table
from ..errors import without_traceback
from .claims import NOTHING, Claims, Offset
from .filters import pushed
from .holding import Holder
from .options import SourceOptions

IDLE_WAIT_S = 0.5
"""How long `latestOffset` waits for the first message of an empty queue: a long poll instead of a
hundred calls a second. A query over several sources waits for each in turn."""

PIECE_MIN = 1_000
"""Messages for which a task is worth its cost."""

READY_SAMPLED = 100_000
"""Entries of the index that are read for a query's progress, at most: some hundredths of a second."""

_log = logging.getLogger(__name__)


class Batches:
    """The batches of one query, in its one process beside the driver."""

    def __init__(self, holder: Holder, options: SourceOptions) -> None:
        self._holder = holder
        self._options = options
        self._latest: Offset | None = None
        """The last batch that this process began or found finished."""
        self._own = NOTHING
        """Its messages that this process has claimed or taken again."""
        self._acknowledged: Offset | None = None
        self._paused = False
        self._left: int | None = None
        """With `availableNow`: how many messages the query may still take."""

    def take_what_is_there(self) -> None:
        """Take as many messages as are due now, however many come meanwhile, and then end."""
        self._left = self._holder.count_ready()

    def next(self, start: Offset, limit: ReadLimit) -> Offset:
        """The batch after `start`, which is finished; `start` itself if there is nothing."""
        if self._latest is not None and start != self._latest:
            return self._latest  # called again before that batch has run
        self.finished(start)
        most = self._options.batch_max
        bounded = isinstance(limit, ReadMaxRows)
        if isinstance(limit, ReadMaxRows):
            most = min(most, limit.max_rows)
        if self._left is not None:
            most = min(most, self._left)
        claims = NOTHING
        if most:
            claims = self._holder.claim(most, IDLE_WAIT_S if bounded and self._left is None else 0)
        if self._left is not None:
            self._left = self._left - len(claims) if claims else 0
        self._own, self._latest = claims, claims.offset() if claims else start
        return self._latest

    def finished(self, batch: Offset) -> None:
        """Acknowledge a batch that Spark has committed."""
        if batch == self._acknowledged:
            return
        claims = self._own if batch == self._latest else self._holder.recognised(Claims.from_offset(batch))
        count = self._holder.acknowledge(claims)
        if count < batch["messages"]:
            # All others were acknowledged already, deleted, or delivered to another consumer.
            _log.info("%d of %d messages of a finished batch were still to be acknowledged", count, batch["messages"])
        self._acknowledged = batch

    def pieces(self, batch: Offset) -> list[Claims]:
        """The claims for each of a batch's tasks."""
        if batch != self._latest:
            self._own = self._holder.take_again(Claims.from_offset(batch))
            held, count = len(self._own), batch["messages"]
            _log.warning("a batch begun by an earlier run goes on with %d of its %d messages", held, count)
            self._latest = batch
        return self._own.split(min(self._options.partitions, max(1, -(-len(self._own) // PIECE_MIN))))

    def sample_ready(self) -> tuple[int, bool, bool]:
        """How many messages are due among the first READY_SAMPLED, whether there are more than these,
        and whether the queue is paused, which the log also shows."""
        paused = self._holder.is_paused()
        if paused and not self._paused:
            _log.warning("the queue is paused, so the query gets nothing from it: RESUME QUEUE goes on")
        self._paused = paused
        return *self._holder.sample_ready(READY_SAMPLED), paused

    def close(self) -> None:
        """Release what is held."""
        self._holder.close()


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark calls for `readStream`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        # The table is read later: if this raises an error, Spark 4.3 replaces it by one of its own.
        self._options = options
        self._schema = schema
        self._batches: Batches | None = None

    @cached_property
    def _statements(self) -> Statements:
        return Statements(self._options.describe(), self._options.where)

    def __getstate__(self) -> dict[str, Any]:
        """Executors get no claims, and read those of their partition."""
        return {**self.__dict__, "_batches": None}

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Before the first batch: nothing to acknowledge."""
        return NOTHING.offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """The option `maxMessagesPerBatch`."""
        return ReadMaxRows(self._options.batch_max)

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Count the messages that are due."""
        self._driver.take_what_is_there()

    @without_traceback
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """Acknowledge the batch that ended at `start`, and claim the next one."""
        return self._driver.next(start, limit)

    @without_traceback
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """For the query's progress: the queue, how many of its messages are due for this query (at
        least so many, if `more`), and whether it is paused."""
        ready, more, paused = self._driver.sample_ready()
        name = f"{self._options.database}.{self._options.table}"
        return {"queue": name, "ready": ready, "more": more, "paused": paused}

    @without_traceback
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks of a batch."""
        return [] if start == end else [InputPartition(piece) for piece in self._driver.pieces(end)]

    @without_traceback
    def commit(self, end: Offset) -> None:
        """Acknowledge a batch, unless that was done."""
        self._driver.finished(end)

    def stop(self) -> None:
        """Release what is held."""
        if self._batches is not None:
            self._batches.close()

    @without_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor: the messages of a task, less those that have been delivered again
        since."""
        connection = LazyConnection(self._options.endpoint)
        what = selection(self._statements.table, self._schema)
        size = FIRST_READ
        for epoch, ids in partition.value.by_epoch.items():
            at = 0
            while at < len(ids):
                columns = connection.run(reading(self._statements.read(what, epoch, ids[at : at + size])))
                at += size
                if columns[0]:
                    yield record_batch(columns, self._schema)
                    size = next_size(size, columns, IDS_MAX)
        connection.close()

    @property
    def _driver(self) -> Batches:
        if self._batches is None:
            options = self._options
            holder = Holder(options.endpoint, self._statements, options.connections, options.hold_s)
            self._batches = Batches(holder, options)
        return self._batches


class BatchReader(DataSourceReader):
    """What Spark calls for `read`: it returns messages, claims none and changes nothing.

    It cannot acknowledge messages, because Spark does not report when the result of a batch read is
    safe. Messages that are acknowledged before that are lost if the job fails. To take what is
    there and stop, use `spark.readStream` with `trigger(availableNow=True)`.
    """

    def __init__(self, options: SourceOptions, table: Table, schema: StructType) -> None:
        self._options = options
        self._statements = Statements(table, options.where)
        self._schema = schema
        self._what = selection(table, schema)
        self._conditions: list[str] = []
        """The filters of Spark that the server evaluates."""

    @without_traceback
    def partitions(self) -> list[InputPartition]:
        """Even ranges of ids if they are integers. The time up to which messages are due is the
        same for all."""
        connection = LazyConnection(self._options.endpoint)
        ((now_ns,),) = connection.run(fetching(f"SELECT {NOW}"))
        ((least, greatest),) = connection.run(fetching(self._statements.ends()))
        connection.close()
        condition = self._statements.read_condition(self._options.messages, int(now_ns), self._conditions)
        if least is None or not self._statements.whole_ids:
            return [InputPartition((condition, Range(None, None)))]
        first, last = int(least), int(greatest)
        pieces = min(self._options.partitions, -(-(last - first + 1) // PIECE_MIN))
        return [InputPartition((condition, Range(*ends))) for ends in even(first - 1, last, pieces)]

    @without_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        condition, ids = partition.value
        pages = Pages(self._options.endpoint, self._statements, self._what, self._schema, condition)
        for batch, _ in pages.of([ids]):
            yield batch


class FilteredReader(BatchReader):
    """A BatchReader that leaves filters to the server.

    It is for the process in which Spark asks for that: elsewhere Spark refuses a reader that has
    this method if its setting for it is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Returns those that Spark has to evaluate (again)."""
        for given in filters:
            found = pushed(given, self._statements.table)
            if found is not None:
                self._conditions.append(found.condition)
            if found is None or not found.exact:
                yield given
