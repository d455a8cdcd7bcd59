"""Spans of OpenTelemetry: the only module that uses its SDK, an extra of the distribution.

The exporter (OTLP over HTTP), the resource and the sampler are configured by the environment variables
that OpenTelemetry defines. Spans are exported by a thread of the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy import __version__
from proxy.settings import BadSetting

MISSING = "tracing requires OpenTelemetry: pip install 'ackstream[tracing]'"


def check() -> None:
    """Raise BadSetting if the extra is not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: PLC0415  # an extra
        import opentelemetry.sdk.trace  # noqa: F401, PLC0415
    except ImportError:
        raise BadSetting(MISSING) from None


class Spans:
    """Makes and exports spans, each linked to the trace context of a message."""

    def __init__(self, exporter: Any = None) -> None:
        """`exporter`: instead of OTLP's. The extra is installed (`check`)."""
        from opentelemetry import trace  # noqa: PLC0415  # an extra
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

            exporter = OTLPSpanExporter()
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        resource = Resource.create({SERVICE_NAME: "ackstream"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("ackstream", __version__)

    def delivery(
        self, name: str, context: str, start_ns: int, end_ns: int, attributes: Mapping[str, str | int | float]
    ) -> None:
        """Make a span of a delivery, linked to the span of this `traceparent`. None if that is malformed, or
        not sampled. Times are since 1970."""
        trace = self._trace
        carried = trace.get_current_span(self._propagator.extract({"traceparent": context})).get_span_context()
        if not carried.is_valid or not carried.trace_flags.sampled:
            return
        span = self._tracer.start_span(
            name,
            kind=trace.SpanKind.CONSUMER,
            attributes=dict(attributes),
            links=[trace.Link(carried)],
            start_time=start_ns,
        )
        span.end(end_ns)

    def close(self) -> None:
        """Export what is left, for some seconds at most. It blocks."""
        self._provider.shutdown()
