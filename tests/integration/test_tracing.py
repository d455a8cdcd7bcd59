"""Tracing: each delivery of a message with a trace context is a span that is linked to it, as a collector gets it."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mysql.connector
import pytest

from proxy.embedded.server import EmbeddedServer
from proxy.server.otel_adapter import Spans
from tests.support.proxies import RunningProxy, environment, running_proxy
from tests.support.queues import rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.either_server

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"
CREATE = "CREATE QUEUE m (payload TEXT, traceparent VARCHAR(100))"


@dataclass
class Collector:
    """Receives spans by OTLP over HTTP."""

    port: int = 0
    spans: list[Any] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    def take(self, body: bytes) -> None:
        for of_resource in trace_service.ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {item.key: item.value.string_value for item in of_resource.resource.attributes}
            self.services.add(attributes["service.name"])
            for of_scope in of_resource.scope_spans:
                self.spans += of_scope.spans

    def span(self, number: int) -> dict[str, Any]:
        """The attributes of the last span of a message."""
        found = [values for values in map(attributes_of, self.spans) if values["messaging.message.id"] == str(number)]
        return found[-1] if found else {}


def attributes_of(span: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        collector.port = server.server_port
        yield collector
        server.shutdown()


@contextlib.contextmanager
def traced_by(collector: Collector, server: EmbeddedServer, folder: Path) -> Iterator[RunningProxy]:
    """A proxy that sends its spans to the collector."""
    with environment(
        ACKSTREAM_TRACING="true",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.port}",
        OTEL_BSP_SCHEDULE_DELAY="100",
        OTEL_SERVICE_NAME="orders-queue",
    ):
        folder.mkdir(exist_ok=True)
        with running_proxy(server, folder / "log", forked=False) as proxy:
            yield proxy


@pytest.fixture
def tracing(server: EmbeddedServer, collector: Collector, tmp_path: Path) -> Iterator[RunningProxy]:
    """A proxy that traces."""
    collector.spans.clear()
    with traced_by(collector, server, tmp_path) as proxy:
        yield proxy


@pytest.fixture
def client(tracing: RunningProxy, database: str) -> Iterator[Any]:
    with tracing.connect(database=database) as client:
        run(client, CREATE)
        yield client


def received(client: Any, count: int) -> list[int]:
    return [number for (number,) in rows(client, f"STREAM id FROM m LIMIT {count} WAIT 20")]


def test_a_delivery_is_a_span_linked_to_the_context_in_the_column(
    client: Any, collector: Collector, database: str
) -> None:
    run(client, f"INSERT INTO m (payload, traceparent) VALUES ('a', '{CONTEXT}'), ('b', NULL), ('c', '{UNSAMPLED}')")
    run(client, f"INSERT INTO m (payload, traceparent) VALUES ('d', 'nonsense'), ('e', '{CONTEXT} and more')")
    assert sorted(received(client, 5)) == [1, 2, 3, 4, 5]
    eventually(lambda: collector.span(5))
    assert {attributes_of(span)["messaging.message.id"] for span in collector.spans} == {"1", "5"}
    span = next(span for span in collector.spans if attributes_of(span)["messaging.message.id"] == "1")
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [(TRACE, SPAN)]
    assert (span.parent_span_id, span.name) == (b"", f"deliver {database}.m")
    found = attributes_of(span)
    wait_s = found.pop("messaging.ackstream.message.wait_s")
    assert found == {
        "messaging.system": "ackstream",
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "receive",
        "messaging.destination.name": f"{database}.m",
        "messaging.message.id": "1",
        "messaging.ackstream.message.delivery_attempt": 1,
    }
    assert round(wait_s * 1e9) == pytest.approx(span.end_time_unix_nano - span.start_time_unix_nano, abs=1000)
    assert collector.services == {"orders-queue"}


def test_each_delivery_has_a_span_with_its_attempt(client: Any, collector: Collector) -> None:
    run(client, f"INSERT INTO m (payload, traceparent) VALUES ('a', '{CONTEXT}')")
    for attempt in (1, 2, 3):
        assert received(client, 1) == [1]
        run(client, "NACK m WHERE id = 1")
        eventually(lambda: len(collector.spans) == attempt)  # noqa: B023  # It is called before the next one.
        assert collector.span(1)["messaging.ackstream.message.delivery_attempt"] == attempt


def test_a_comment_of_the_insert_is_the_context_of_all_its_messages(client: Any, collector: Collector) -> None:
    run(client, f"INSERT INTO m (payload) VALUES ('a'), ('b') /*traceparent='{CONTEXT}'*/")
    run(client, "INSERT INTO m (payload) VALUES ('c')")
    client.begin()
    run(client, f"INSERT INTO m (payload) VALUES ('d') /*traceparent='{CONTEXT}'*/;")
    client.commit()
    assert sorted(received(client, 4)) == [1, 2, 3, 4]
    eventually(lambda: collector.span(4))
    assert {attributes_of(span)["messaging.message.id"] for span in collector.spans} == {"1", "2", "4"}


@pytest.mark.parametrize("tracing", [1], indirect=True, ids=["one process"])
def test_a_query_attribute_of_the_insert_is_its_context(
    tracing: RunningProxy, client: Any, database: str, collector: Collector, flavour: str
) -> None:
    if flavour == "mariadb":
        pytest.skip("MariaDB knows no query attributes")
    with (
        mysql.connector.connect(
            host=tracing.host, port=tracing.port, user="root", database=database, autocommit=True, use_pure=True
        ) as producer,
        producer.cursor() as cursor,
    ):
        cursor.add_attribute("traceparent", CONTEXT)
        cursor.execute("INSERT INTO m (payload) VALUES ('a')")
    assert received(client, 1) == [1]
    eventually(lambda: collector.span(1))


@pytest.mark.parametrize("lives", [True, False], ids=["another proxy", "a later proxy"])
def test_the_context_in_the_column_is_known_to_every_proxy_and_that_of_a_comment_to_its_own_alone(
    server: EmbeddedServer, collector: Collector, database: str, tmp_path: Path, lives: bool
) -> None:
    collector.spans.clear()
    with traced_by(collector, server, tmp_path / "first") as first:
        with first.connect(database=database) as client:
            run(client, CREATE)
            run(client, f"INSERT INTO m (payload) VALUES ('a') /*traceparent='{CONTEXT}'*/")
            run(client, f"INSERT INTO m (payload, traceparent) VALUES ('b', '{CONTEXT}')")
        if not lives:
            assert first.terminate() == 0
        with (
            traced_by(collector, server, tmp_path / "second") as second,
            second.connect(database=database) as consumer,
        ):
            assert sorted(received(consumer, 2)) == [1, 2]
            eventually(lambda: collector.span(2))
    assert [attributes_of(span)["messaging.message.id"] for span in collector.spans] == ["2"]


def test_what_is_left_is_exported_when_the_proxy_stops(
    tracing: RunningProxy, client: Any, collector: Collector
) -> None:
    run(client, f"INSERT INTO m (payload, traceparent) VALUES ('a', '{CONTEXT}')")
    assert received(client, 1) == [1]
    assert tracing.terminate() == 0
    assert collector.span(1)


@pytest.mark.parametrize("tracing", [1], indirect=True, ids=["one process"])
def test_a_locked_delivery_is_the_next_attempt(client: Any, collector: Collector) -> None:
    run(client, f"INSERT INTO m (payload, traceparent) VALUES ('a', '{CONTEXT}')")
    client.begin()
    assert rows(client, "STREAM id FROM m LIMIT 1 WAIT 20 FOR UPDATE") == [(1,)]
    eventually(lambda: collector.span(1))
    assert collector.span(1)["messaging.ackstream.message.delivery_attempt"] == 1
    client.rollback()


def test_spans_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment=test")
    exporter = memory.InMemorySpanExporter()
    spans = Spans(exporter)
    spans.delivery("deliver shop.m", CONTEXT, 5, 9, {"messaging.message.id": "1"})
    for context in (UNSAMPLED, "", "nonsense"):
        spans.delivery("deliver shop.m", context, 5, 9, {})
    spans.close()
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind.name, span.start_time, span.end_time) == ("deliver shop.m", "CONSUMER", 5, 9)
    assert [f"{link.context.span_id:016x}" for link in span.links] == [SPAN]
    assert span.parent is None
    assert span.resource.attributes["service.name"] == "ackstream"
    assert span.resource.attributes["deployment"] == "test"
