"""`format("ackstream")` for Spark: a queue to read as a stream or as it stands, and to write to.

    from ackstream_spark.datasource import register
    register(spark)
    spark.readStream.format("ackstream").options(url="mysql://USER@HOST:PORT/DATABASE", table="orders").load()

Spark calls it in separate processes on the driver's and the executors' machines. All of them need
this package.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .common.rows import schema_of
from .common.statements import Statements, fetching
from .common.tasks import is_classic
from .endpoint import PASSWORD_VARIABLE
from .errors import PipelineError, without_traceback
from .source.consume import BatchReader, FilteredReader, StreamReader
from .source.options import Common, read_options, schema_options, sink_options, stream_options, write_options
from .source.sink import BatchWriter, Sink, StreamWriter

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
"""Spark's setting that Python sources may evaluate filters. It is off by default."""

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module of the process in which Spark asks a source for that."""


class AckstreamDataSource(DataSource):
    """What Spark calls."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(…)`."""
        return "ackstream"

    @without_traceback
    def schema(self) -> StructType:
        """The table's application columns and `epoch`, or those named in `columns`."""
        options = schema_options(self.options)
        table = options.describe()
        statements = Statements(table, options.where)  # raises PipelineError for a table that is no queue
        if options.where is not None:
            options.endpoint.first(fetching(statements.none()))
        return schema_of(table, options.columns, unsigned_as_long=options.unsigned_as_long)

    @without_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for `spark.read`."""
        options = read_options(self.options)
        reader = FilteredReader if _PUSHING in sys.modules else BatchReader
        return reader(options, options.describe(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """The reader for `spark.readStream`."""
        return StreamReader(stream_options(self.options), schema)

    @without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802  # Spark's
        """The writer for `df.writeStream`."""
        return StreamWriter(self._sink(sink_options(self.options), schema, overwrite))

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  # Spark's
        """The writer for `df.write`."""
        options, batch = write_options(self.options)
        return BatchWriter(self._sink(options, schema, overwrite), batch)

    def _sink(self, options: Common, schema: StructType, overwrite: bool) -> Sink:  # noqa: FBT001  # as it came
        if overwrite:
            raise PipelineError('a queue is only added to: mode("append"), outputMode("append")')
        return Sink.of(options, options.describe(), schema)


def register(spark: SparkSession) -> None:
    """Make `format("ackstream")` known to a session, and let it evaluate filters, unless the session
    has a setting for that.

    Spark's processes get the password that ACKSTREAM_PASSWORD has at this moment. (The JVM's own
    environment is that of its start. A session of Spark Connect has the server's.)
    """
    if PUSHDOWN not in spark.conf.getAll:
        spark.conf.set(PUSHDOWN, "true")
    if not is_classic(spark):
        spark.dataSource.register(AckstreamDataSource)
        return
    environment = spark.sparkContext.environment  # copied for each function that is registered
    before = dict(environment)
    if PASSWORD_VARIABLE in os.environ:
        environment[PASSWORD_VARIABLE] = os.environ[PASSWORD_VARIABLE]
    try:
        spark.dataSource.register(AckstreamDataSource)
    finally:
        environment.clear()
        environment.update(before)
