"""`tls=verify`: a proxy whose certificate an authority of ours has signed, reached from Python, from Spark's JDBC
writer and from the tasks of the source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipeline.datasource import register
from pipeline.endpoint import Endpoint
from pipeline.enqueue import enqueue
from pipeline.errors import PipelineError
from proxy.embedded.server import EmbeddedServer
from tests.support.certificates import Certificates, make_certificates
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import rows, run
from tests.support.servers import connect


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "own")


@pytest.fixture
def proxy(server: EmbeddedServer, own: Certificates, tmp_path: Path) -> Iterator[RunningProxy]:
    """Shows that certificate."""
    options = ["--tls-certificate", str(own.certificate), "--tls-key", str(own.key)]
    with running_proxy(server, tmp_path / "log", options) as proxy:
        yield proxy


@pytest.fixture
def account(server: EmbeddedServer, database: str) -> Iterator[str]:
    """One that the server lets in over TLS alone."""
    name = f"tls_{database}"
    with connect(server) as root:
        run(root, f"CREATE USER {name}@localhost REQUIRE SSL")
        run(root, f"GRANT ALL ON {database}.* TO {name}@localhost")
        yield name
        run(root, f"DROP USER {name}@localhost")


@pytest.fixture
def url(proxy: RunningProxy, database: str, account: str, own: Certificates) -> str:
    return f"mysql://{account}@{proxy.host}:{proxy.port}/{database}?tls=verify&ca={own.ca}"


@pytest.fixture
def wrong_url(url: str, own: Certificates, tmp_path: Path) -> str:
    """With an authority that has signed nothing of the proxy's."""
    return url.replace(str(own.ca), str(make_certificates(tmp_path / "other").ca))


def streamed(spark: SparkSession, url: str, checkpoint: Path) -> list[Any]:
    """What a streaming query gets out of the queue m."""
    register(spark)
    got: list[Any] = []

    def take(frame: DataFrame, number: int) -> None:
        got.extend(row.payload for row in frame.collect())

    query = spark.readStream.format("ackstream").options(url=url, table="m").load().writeStream.foreachBatch(take)
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination(60)
    return got


@pytest.mark.parametrize("mode", ["streaming", "atomic"])
def test_all_ways_in_work_with_the_authority_that_signed(
    mode: Any, url: str, spark: SparkSession, tmp_path: Path
) -> None:
    endpoint = Endpoint.from_url(url)
    with endpoint.connect() as connection:
        run(connection, "CREATE QUEUE m (payload BIGINT)")
        enqueue(spark.range(100).selectExpr("id AS payload"), endpoint, "m", batch="b", mode=mode)
        assert sorted(streamed(spark, url, tmp_path / "checkpoint")) == list(range(100))
        assert rows(connection, "SELECT COUNT(*) FROM m WHERE time_acked IS NULL") == [(0,)]


def test_none_works_with_another_authority_and_each_says_so_at_once(
    url: str, wrong_url: str, own: Certificates, spark: SparkSession, tmp_path: Path
) -> None:
    wrong = Endpoint.from_url(wrong_url)
    with Endpoint.from_url(url).connect() as connection:
        run(connection, "CREATE QUEUE m (payload BIGINT)")
        run(connection, "INSERT INTO m (payload) VALUES (1)")
        said = r"shows a certificate that .*other/ca.pem does not vouch for: .*`ca` in the URL names the file"
        with pytest.raises(PipelineError, match=said):
            enqueue(spark.range(100).selectExpr("id AS payload"), wrong, "m", batch="b")
        with pytest.raises(PySparkException, match=said):
            streamed(spark, wrong_url, tmp_path / "checkpoint")
        assert rows(connection, "SELECT COUNT(*) FROM m WHERE epoch = 0") == [(1,)]


def test_a_certificate_for_another_name_is_none(
    server: EmbeddedServer, database: str, spark: SparkSession, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path / "db", "db.example")
    options = ["--tls-certificate", str(other.certificate), "--tls-key", str(other.key)]
    with running_proxy(server, tmp_path / "log", options) as proxy:
        endpoint = Endpoint.from_url(f"mysql://root@127.0.0.1:{proxy.port}/{database}?tls=verify&ca={other.ca}")
        with pytest.raises(PipelineError, match="does not vouch for: IP address mismatch"):
            endpoint.connect()


def test_a_file_that_is_no_authoritys(tmp_path: Path) -> None:
    endpoint = Endpoint.from_url(f"mysql://root@127.0.0.1:1/d?tls=verify&ca={tmp_path}/none.pem")
    (tmp_path / "text.pem").write_text("text")
    for file in ("none.pem", "text.pem"):
        with pytest.raises(PipelineError, match=rf"the authority's file .*{file} cannot be read"):
            replace(endpoint, ca=str(tmp_path / file)).connect()
