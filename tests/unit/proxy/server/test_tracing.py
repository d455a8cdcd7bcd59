"""What tracing costs, and what it leaves out: counted, without a server and without OpenTelemetry."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from engine.dispatch.instant import Instant
from engine.dispatch.leases import Lease
from engine.dispatch.measures import Measures
from engine.queue_table import QueueTable
from engine.service import Engine
from engine.store.port import StoreError
from proxy import logs
from proxy import serve as serving
from proxy.server import tracing
from proxy.server.tracing import CONTEXTS_MAX, NOTED_MAX, Tracing
from tests.support.play import queue_table

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NOW = Instant(5, 1_000)
PLAIN = queue_table()
TRACED = replace(PLAIN, columns=(*PLAIN.columns, "traceparent"))


class Store:
    """The engine, as far as tracing uses it. Each message has CONTEXT in its column."""

    def __init__(self, *, fails: bool = False) -> None:
        self.reads: list[str] = []
        self._fails = fails

    async def read(self, text: str) -> tuple[list[tuple[str, str]], int]:
        self.reads.append(text)
        if self._fails:
            raise StoreError("gone")
        ids = text.partition(" IN (")[2].partition(")")[0].split(", ")
        return [(number, CONTEXT.encode().hex()) for number in ids], 0

    def trace(self, tracer: object) -> None:
        """As the engine's."""


class Spans:
    """What would be exported."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int, Mapping[str, Any]]] = []

    def delivery(self, name: str, context: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        assert (name, context) == (f"deliver {PLAIN.id}", CONTEXT)
        self.made.append((start_ns, end_ns, attributes))


def leases(*keys: int, due_ns: int = 400) -> list[Lease]:
    return [Lease(key, 1, 9_000, 0, due_ns) for key in keys]


def played(store: Store, queue: QueueTable, *batches: list[Lease], inserted: range | None = None) -> Spans:
    """The spans of deliveries that are made at once."""

    async def play() -> Spans:
        spans = Spans()
        subject = Tracing(cast("Engine", store), spans)
        if inserted is not None:
            subject.enqueued(queue.id, inserted, CONTEXT)
        for batch in batches:
            subject.delivered(queue, batch, NOW)
        await subject.close()
        return spans

    return asyncio.run(play())


def test_without_the_extra_the_program_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setenv("ACKSTREAM_TRACING", "true")
    monkeypatch.setattr(logs, "set_up", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        serving.serve.main(["--backend", "mysql://nobody@127.0.0.1:1"], standalone_mode=False)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "ackstream: tracing requires OpenTelemetry: pip install 'ackstream[tracing]'\n"


def test_without_tracing_a_delivery_is_counted_and_nothing_else() -> None:
    measures = Measures()
    assert measures.on_sent is None
    measures.sent(leases(1), NOW)
    assert measures.pickup.total == 1


def test_without_the_column_and_without_contexts_of_inserts_nothing_is_noted_or_read() -> None:
    store = Store()
    assert played(store, PLAIN, leases(1, 2)).made == []
    assert store.reads == []


def test_deliveries_are_read_by_one_statement_whatever_events_delivered_them() -> None:
    store = Store()
    spans = played(store, TRACED, *(leases(number) for number in range(1, 101)))
    assert len(spans.made) == 100
    assert len(store.reads) == 1


def test_a_context_of_an_insert_costs_no_statement() -> None:
    store = Store()
    spans = played(store, PLAIN, leases(1, 2, 3), inserted=range(2, 4))
    assert [attributes["messaging.message.id"] for *_, attributes in spans.made] == ["2", "3"]
    assert store.reads == []


def test_a_span_lasts_from_due_to_delivered() -> None:
    assert played(Store(), TRACED, leases(1)).made[0][:2] == (400, 1_000)
    assert played(Store(), TRACED, leases(1, due_ns=0)).made[0][:2] == (1_000, 1_000)
    assert played(Store(), TRACED, leases(1, due_ns=2_000)).made[0][:2] == (1_000, 1_000)


def test_what_is_noted_and_remembered_has_a_bound() -> None:
    spans = played(Store(), PLAIN, leases(*range(NOTED_MAX + 5)), inserted=range(CONTEXTS_MAX + 5))
    keys = {int(attributes["messaging.message.id"]) for *_, attributes in spans.made}
    assert keys == set(range(5, NOTED_MAX))
    assert tracing.READ_MAX < NOTED_MAX


def test_a_server_that_does_not_answer_costs_the_columns_contexts_alone() -> None:
    assert len(played(Store(fails=True), TRACED, leases(1, 2), inserted=range(1, 2)).made) == 1
