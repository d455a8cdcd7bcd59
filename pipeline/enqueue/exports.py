"""Rows that did not come into a queue, as Parquet: those that the server refused, and those of slices that are missing.

They have the queue's columns, as `ackstream-enqueue` takes them again, so that whoever corrects them gives them as
another batch; and three more, of which `ackstream_batch` is the name of a folder. Each export of a batch replaces the
one before, and can be made again at any time from the same data, since slices and places in them are the same in each
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from pipeline.common.table import Column
from pipeline.endpoint import quoted
from pipeline.enqueue.cut import PLACE, SLICE
from pipeline.enqueue.ledger import Reject
from pipeline.enqueue.load import Load

BATCH: Final = "ackstream_batch"
REASON, CODE = "ackstream_reason", "ackstream_code"


def export_rejects(load: Load, rejects: Sequence[Reject], path: str) -> None:
    """Write the rows that were set aside, with the server's reasons."""
    spark = load.mapped.frame.sparkSession
    told = spark.createDataFrame(
        [(reject.slice, reject.place, reject.code, reject.reason) for reject in rejects],
        f"{SLICE} INT, {PLACE} BIGINT, {CODE} INT, {REASON} STRING",
    )
    rows = load.sliced(sorted({reject.slice for reject in rejects}))
    _export(load, rows.join(f.broadcast(told), [SLICE, PLACE]), [f.col(CODE), f.col(REASON)], path)


def export_slices(load: Load, numbers: Sequence[int], path: str) -> None:
    """Write the rows of slices."""
    _export(load, load.sliced(numbers), [], path)


def _export(load: Load, rows: DataFrame, more: Sequence[Expression], path: str) -> None:
    kinds = {field.name: field.dataType for field in load.mapped.frame.schema}
    columns = [_given(column, kinds[column.name]).alias(column.name) for column in load.mapped.columns]
    named = rows.select(*columns, *more, f.lit(load.batch.name).alias(BATCH))
    # Other batches' folders stay.
    named.write.partitionBy(BATCH).option("partitionOverwriteMode", "dynamic").mode("overwrite").parquet(path)


def _given(column: Column, kind: t.DataType) -> Expression:
    """A value as it can be given again: times travel as text, and a text does not go into their columns."""
    value = f.col(quoted(column.name))
    if not isinstance(kind, t.StringType):
        return value
    if column.spark_type == t.TimestampType():
        return f.concat(value, f.lit("Z")).try_cast("timestamp")  # in UTC
    if column.spark_type in (t.TimestampNTZType(), t.DateType()):
        return value.try_cast(column.spark_type)
    return value
