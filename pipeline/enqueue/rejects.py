"""Writes rows that the server refused to Parquet.

They have the queue's columns in the form that `ackstream-enqueue` takes, so they can be corrected
and enqueued as another batch. Three more columns have the batch (`ackstream_batch`, the name of a
folder) and the server's error number and text. Each export of a batch replaces the one before. It
can be repeated at any time from the same data, because slices and places are the same in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ..common.ledger import Reject
from ..common.staging import PLACE, SLICE
from ..common.table import Column
from ..endpoint import quoted
from .load import Load

BATCH: Final = "ackstream_batch"
REASON, CODE = "ackstream_reason", "ackstream_code"


def export(load: Load, rejects: Sequence[Reject], path: str) -> None:
    """Write the rows that were set aside, with the server's reasons."""
    spark = load.mapped.frame.sparkSession
    reasons = spark.createDataFrame(
        [(reject.slice, reject.place, reject.code, reject.reason) for reject in rejects],
        f"{SLICE} INT, {PLACE} BIGINT, {CODE} INT, {REASON} STRING",
    )
    rows = load.sliced(sorted({reject.slice for reject in rejects})).join(f.broadcast(reasons), [SLICE, PLACE])
    kinds = {field.name: field.dataType for field in load.mapped.frame.schema}
    columns = [_given(column, kinds[column.name]).alias(column.name) for column in load.mapped.columns]
    named = rows.select(*columns, CODE, REASON, f.lit(load.batch.name).alias(BATCH))
    # The folders of other batches stay.
    named.write.partitionBy(BATCH).option("partitionOverwriteMode", "dynamic").mode("overwrite").parquet(path)


def _given(column: Column, kind: t.DataType) -> Expression:
    """A value that can be enqueued again. Times are transferred as text, which their columns do not
    take."""
    value = f.col(quoted(column.name))
    if not isinstance(kind, t.StringType):
        return value
    if column.spark_type == t.TimestampType():
        return f.concat(value, f.lit("Z")).try_cast("timestamp")  # in UTC
    if column.spark_type in (t.TimestampNTZType(), t.DateType()):
        return value.try_cast(column.spark_type)
    return value
