"""Every type of MySQL's as a column of Spark's, by a batch read and by a stream alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pymysql
import pyspark.errors
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from pipeline.common.columns import read
from pipeline.datasource import AckstreamDataSource, register
from pipeline.endpoint import Endpoint
from pipeline.errors import PipelineError
from proxy.embedded.server import Flavour
from tests.pipeline.kinds import ONLY, TYPES, same_in_utc
from tests.support.queues import create_queue, run


@pytest.mark.parametrize("streamed", [False, True], ids=["read", "readStream"])
def test_every_type_arrives_exactly(
    spark: SparkSession, endpoint: Endpoint, connection: Any, flavour: Flavour, tmp_path: Path, streamed: bool
) -> None:
    cases = TYPES + ONLY[flavour]
    create_queue(connection, "m", ", ".join(f"c{number} {kind}" for number, (kind, _, _) in enumerate(cases)))
    run(connection, "SET sql_mode = 'ALLOW_INVALID_DATES'")
    run(connection, "INSERT INTO m () VALUES ()")
    expected: list[dict[str, Any]] = [dict.fromkeys(f"c{number}" for number in range(len(cases)))]
    for number, (kind, _, values) in enumerate(cases):
        for sql, value in values:
            run(connection, f"INSERT INTO m (c{number}) VALUES ({sql})")
            exact = value if value is not ... else Decimal(sql) if kind == "DECIMAL(38,10)" else sql
            expected.append({**expected[0], f"c{number}": exact})
    register(spark)
    options = {"url": f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}", "table": "m"}
    if streamed:
        received: list[Any] = []
        stream = spark.readStream.format("ackstream").options(**options).load()
        schema = stream.schema
        query = stream.writeStream.foreachBatch(lambda batch, _: received.extend(same_in_utc(batch).collect()))
        query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(50)
    else:
        frame = spark.read.format("ackstream").options(**options).load()
        schema = frame.schema
        received = same_in_utc(frame).collect()
    kinds = [("id", t.LongType()), *((f"c{number}", kind) for number, (_, kind, _) in enumerate(cases))]
    assert [(field.name, field.dataType) for field in schema.fields] == [*kinds, ("epoch", t.LongType())]
    for row, wanted in zip(sorted(received, key=lambda row: row["id"]), expected, strict=True):
        for name, value in wanted.items():
            got = bytes(row[name]) if isinstance(value, bytes) else row[name]
            assert (got, type(got)) == (value, type(value)), (name, cases[int(name[1:])][0])


@pytest.fixture
def reading(spark: SparkSession, endpoint: Endpoint) -> Callable[..., DataFrame]:
    """A batch read of the queue m with these options."""
    register(spark)
    url = f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"
    return lambda **options: spark.read.format("ackstream").options(**{"url": url, "table": "m", **options}).load()


def test_a_batch_read_looks_and_changes_nothing(reading: Callable[..., DataFrame], connection: Any) -> None:
    create_queue(connection, "m")
    run(connection, "INSERT INTO m (payload, time_next) VALUES ('due', 0), ('done', 0), ('far', 9000000000000000000)")
    run(connection, "ACK FROM m WHERE id = 2")
    assert [row.payload for row in reading().collect()] == ["due"]
    assert sorted(row.payload for row in reading(messages="unacknowledged").collect()) == ["due", "far"]
    everything = reading(messages="all", columns="id,payload,time_acked", where="payload <> 'far'")
    assert [(row.payload, row.time_acked is not None) for row in everything.collect()] == [
        ("due", False),
        ("done", True),
    ]
    assert [row.epoch for row in reading(messages="all").collect()] == [0, 0, 0]


def test_a_batch_read_is_shared_out_by_ranges_of_ids(reading: Callable[..., DataFrame], connection: Any) -> None:
    create_queue(connection, "m")
    values = ", ".join(f"({number * 7}, 'p{number}')" for number in range(-1_500, 1_500))
    run(connection, f"INSERT INTO m (id, payload) VALUES {values}")
    frame = reading(numPartitions=5)
    assert frame.rdd.getNumPartitions() == 5
    assert sorted(row.payload for row in frame.collect()) == sorted(f"p{number}" for number in range(-1_500, 1_500))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("VARCHAR(40) COLLATE utf8mb4_bin", ["'a'", "'it''s'", "'\\\\'", "'ünï'", "''"]),
        ("BINARY(2)", ["x'0000'", "x'27ff'", "x'5c27'"]),
        ("DECIMAL(30,5)", ["1.5", "1234567890123456789012345.00001", "1234567890123456789012345.00002"]),
        ("BIGINT UNSIGNED", ["18446744073709551615", "1"]),
        ("DATETIME(6)", ["'2026-01-01 00:00:00.000001'", "'2026-01-01 00:00:00.000002'"]),
    ],
)
def test_ids_of_any_exact_type(
    spark: SparkSession, endpoint: Endpoint, connection: Any, tmp_path: Path, kind: str, values: list[str]
) -> None:
    create_queue(connection, "m")
    run(connection, f"ALTER TABLE m MODIFY id {kind} NOT NULL")
    for value in values:
        run(connection, f"INSERT INTO m (id, payload) VALUES ({value}, 'x')")
    register(spark)
    options = {"url": f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}", "table": "m"}
    looked_at = spark.read.format("ackstream").options(**options).load().collect()
    taken: list[Any] = []
    stream = spark.readStream.format("ackstream").options(**options).load()
    query = stream.writeStream.foreachBatch(lambda batch, _: taken.extend(batch.collect()))
    query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(50)
    assert len(taken) == len(looked_at) == len(values)
    assert {row.id if not isinstance(row.id, bytearray) else bytes(row.id) for row in taken} == {
        row.id if not isinstance(row.id, bytearray) else bytes(row.id) for row in looked_at
    }
    assert run(connection, "SELECT 1 FROM m WHERE time_acked IS NULL") == 0


@pytest.mark.either_server
def test_unsigned_ids_are_longs_if_an_option_asks_for_it_and_they_fit(endpoint: Endpoint, connection: Any) -> None:
    create_queue(connection, "m", "n BIGINT UNSIGNED NOT NULL")
    run(connection, "ALTER TABLE m MODIFY id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT")
    run(connection, f"INSERT INTO m (id, n) VALUES ({2**63 - 1}, 0)")
    url = f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"
    source = AckstreamDataSource({"url": url, "table": "m", "unsignedaslong": "true"})
    schema = source.schema()
    assert schema.simpleString() == "struct<id:bigint,n:bigint,epoch:bigint>"

    def received() -> list[dict[str, Any]]:
        reader = source.reader(schema)
        batches: Iterable[Any] = (batch for part in reader.partitions() for batch in reader.read(part))
        return [row for batch in batches for row in batch.to_pylist()]

    assert received() == [{"id": 2**63 - 1, "n": 0, "epoch": 0}]
    run(connection, f"UPDATE m SET n = {2**63}")
    with pytest.raises(PipelineError, match="n is 9223372036854775808, which is no BIGINT: leave out unsignedAsLong"):
        received()


def test_columns_have_values_of_any_length(connection: Any) -> None:
    """Lengths around those whose form changes, and a row of more than a packet."""
    lengths = [0, 250, 251, 65_535, 65_536]
    rows_of = " UNION ALL ".join(f"SELECT {length}, REPEAT('x', {length}), NULL" for length in lengths)
    assert read(rows_of, connection) == [
        [b"%d" % length for length in lengths],
        [b"x" * length for length in lengths],
        [None] * len(lengths),
    ]
    many = 9_000_000
    assert read(f"SELECT REPEAT('a', {many}), REPEAT('b', {many})", connection) == [[b"a" * many], [b"b" * many]]
    assert read("SELECT 1, 2 FROM DUAL WHERE FALSE", connection) == [[], []]


def test_an_error_behind_the_first_rows_is_the_servers(connection: Any) -> None:
    with pytest.raises(pymysql.OperationalError, match="out of range") as caught:
        read(f"SELECT {2**63 - 3} + n FROM (SELECT 1 AS n UNION ALL SELECT 2 UNION ALL SELECT 3) AS t", connection)
    assert caught.value.args[0] == 1690
    with pytest.raises(pymysql.ProgrammingError, match="no_table"):
        read("SELECT 1 FROM no_table", connection)
    assert read("SELECT 1", connection) == [[b"1"]]


def test_a_release_of_pymysql_that_lacks_what_is_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.common.columns.USED", ((pymysql.connections.Connection, "_gone"),))
    with pytest.raises(PipelineError, match=r"PyMySQL \d\S+ lacks _gone, by which rows are read: install"):
        read("SELECT 1", None)


def test_long_values_are_read_a_few_at_a_time(reading: Callable[..., DataFrame], connection: Any) -> None:
    create_queue(connection, "m", "payload LONGTEXT")
    for _ in range(3):
        run(connection, "INSERT INTO m (payload) SELECT REPEAT('x', 100000 + n) FROM (SELECT 1 n UNION SELECT 2) t")
        for _ in range(6):
            run(connection, "INSERT INTO m (payload) SELECT payload FROM m LIMIT 30")
    count = run(connection, "SELECT id FROM m")
    assert count > 200
    lengths = [row.n for row in reading().selectExpr("length(payload) AS n").collect()]
    assert len(lengths) == count
    assert set(lengths) == {100_001, 100_002}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"table": "nowhere"}, "there is no table"),
        ({"table": "plain"}, "is no message table: its comment lacks vitess_message"),
        ({"columns": "id,payment,payload,x"}, "has no column payment, x; it has id, priority, epoch"),
        ({"numPartitions": "0", "colums": "x"}, "numPartitions: must be a whole number from 1"),
    ],
)
def test_a_read_that_cannot_work_says_so_at_once(
    reading: Callable[..., DataFrame], connection: Any, options: dict[str, str], complaint: str
) -> None:
    create_queue(connection, "m")
    run(connection, "CREATE TABLE plain (id INT PRIMARY KEY)")
    with pytest.raises(pyspark.errors.AnalysisException) as caught:
        reading(**options)
    assert complaint in str(caught.value)
