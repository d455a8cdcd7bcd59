"""The admin port: health and metrics over HTTP.

`/health` reports whether the proxy accepts clients and can reach the server. `/metrics` returns the
Prometheus text format. It is computed at each request from counters that the proxy and the engine
keep anyway, so it adds no work to the hot paths. The event loop's lag alone is measured all the
time (`LoopLag`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from engine.binlog.supervisor import Following
from engine.service import Engine
from engine.store.port import StoreError
from engine.store.reach import Reach
from proxy.server.listener import Proxy
from proxy.server.loop_lag import LoopLag

PROBE_WAIT_S = 2.0
"""A server that takes longer for a query without a table cannot serve clients. Health checks wait for
1 s (Kubernetes) to 10 s (load balancers)."""
PROBE_LASTS_S = 1.0
"""An answer is used for so long: any number of health checks costs one query a second."""


class ProcessMetrics(Collector):
    """The metrics of one process with sessions and an engine."""

    def __init__(self, proxy: Proxy, reach: Reach) -> None:
        self.registry = CollectorRegistry()
        self._proxy, self._reach = proxy, reach
        self.registry.register(self)
        self._lag = LoopLag(self.registry)

    def start(self) -> None:
        """Begin to measure the running event loop."""
        self._lag.start(asyncio.get_running_loop())

    async def text(self) -> bytes:
        """The answer to /metrics."""
        return generate_latest(self.registry)

    def stop(self) -> None:
        """Measure no more."""
        self._lag.stop()

    def collect(self) -> Iterable[Metric]:
        """The present values."""
        yield from self._connections()
        yield from self._counters()
        yield from self._queues()

    def _connections(self) -> Iterable[Metric]:
        proxy = self._proxy
        reachable = self._reach.reason is None
        text = "Whether the server took the engine's last new connection"
        yield GaugeMetricFamily("ackstream_server_reachable", text, reachable)
        yield GaugeMetricFamily("ackstream_connections", "Client connections", len(proxy.sessions))
        yield GaugeMetricFamily("ackstream_streams", "Running STREAM statements", len(list(proxy.streams())))
        yield CounterMetricFamily("ackstream_connections_accepted", "Client connections", proxy.connections_total)

    def _counters(self) -> Iterable[Metric]:
        counters = self._proxy.engine.counters
        for name, text, value in (
            ("delivered", "Messages sent to subscribers", counters.delivered),
            ("redelivered", "Messages claimed for the second time or later", counters.redelivered),
            ("claims", "Claim transactions", counters.claims),
            ("claimed", "Messages claimed", counters.claimed),
            ("claimed_in_vain", "Messages that a claim did not get", counters.claimed_in_vain),
            ("scans", "Scans of a table's index", counters.scans),
            ("scanned", "Keys read by them", counters.scanned),
            ("ack_batches", "Transactions with the acknowledgements of several clients", counters.ack_batches),
            ("acks_gathered", "Acknowledgements in them", counters.acks_gathered),
            ("released", "Messages given back", counters.released),
            ("purged", "Acknowledged rows deleted", counters.purged),
            ("dead_lettered", "Dead messages moved to their dead-letter tables", counters.dead_lettered),
            ("dead_letter_failures", "Attempts to move dead messages that failed", counters.dead_letter_failures),
            ("store_answers", "Statements of the engine that were answered", counters.store_answers),
            ("store_errors", "Statements of the engine that failed", counters.store_errors),
            ("dispatcher_restarts", "Dispatchers started again after a fault", counters.dispatcher_restarts),
            ("catalog_refreshes", "Refreshes of the catalog of tables", counters.catalog_refreshes),
            ("catalog_described", "Tables described because they are new or were changed", counters.catalog_described),
            ("catalog_faults", "Unexpected exceptions while the catalog was read", counters.catalog_faults),
        ):
            yield CounterMetricFamily(f"ackstream_{name}", text, value)

    def _queues(self) -> Iterable[Metric]:
        labels = ["db", "queue"]
        in_flight = GaugeMetricFamily("ackstream_in_flight", "Messages delivered and not over", labels=labels)
        ready = GaugeMetricFamily("ackstream_read_ahead", "Due messages whose keys were read ahead", labels=labels)
        subscribers = GaugeMetricFamily("ackstream_subscribers", "Running streams", labels=labels)
        for queue, dispatcher in self._proxy.engine.runners():
            name = [queue.id.db, queue.id.name]
            in_flight.add_metric(name, dispatcher.in_flight)
            ready.add_metric(name, dispatcher.ready)
            subscribers.add_metric(name, len(dispatcher.subscribers))
        return (in_flight, ready, subscribers)


class BinlogMetrics(Collector):
    """The metrics of the reader of the binary log."""

    def __init__(self, binlog: Following) -> None:
        self._binlog = binlog

    def collect(self) -> Iterable[Metric]:
        """The present values."""
        binlog = self._binlog
        yield GaugeMetricFamily("ackstream_binlog_following", "Whether the binlog is being followed", binlog.now)
        yield GaugeMetricFamily("ackstream_binlog_lag_seconds", "How far behind the server", binlog.lag_s)
        yield CounterMetricFamily("ackstream_binlog_rows", "Changed rows of queues read in the binlog", binlog.rows)
        yield CounterMetricFamily("ackstream_binlog_batches", "Batches of changes from the binlog", binlog.batches)
        yield CounterMetricFamily("ackstream_binlog_starts", "Starts of the binlog's reader", binlog.starts)
        yield CounterMetricFamily("ackstream_binlog_faults", "Readers with unexpected output", binlog.faults)


class Probe:
    """Whether the server answers the engine. One query is under way at a time, and only on request."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: asyncio.Task[str | None] | None = None
        self._until_s = 0.0
        self._reason: str | None = None

    async def reason(self) -> str | None:
        """Return why the server is out of reach, within PROBE_WAIT_S. None when it has answered this
        query or, meanwhile, any other."""
        clock = asyncio.get_running_loop().time
        if self._running is None:
            if clock() < self._until_s:
                return self._reason
            self._running = asyncio.get_running_loop().create_task(self._ping(), name="probe")
        running, answers = self._running, self._engine.counters.store_answers
        done, _ = await asyncio.wait({running}, timeout=PROBE_WAIT_S)
        if done:
            return running.result()
        if self._engine.counters.store_answers > answers:
            return None
        return f"the server has not answered within {PROBE_WAIT_S:g} s"

    async def close(self) -> None:
        """Cancel the query under way."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _ping(self) -> str | None:
        try:
            await self._engine.ping()
            self._reason = None
        except StoreError as error:
            self._reason = str(error)
        finally:
            self._running = None
        self._until_s = asyncio.get_running_loop().time() + PROBE_LASTS_S
        return self._reason


class Admin:
    """The HTTP listener."""

    def __init__(
        self, metrics: Callable[[], Awaitable[bytes]], unreachable: Callable[[], Awaitable[str | None]]
    ) -> None:
        """`metrics`: the answer to /metrics. `unreachable`: why the server is out of reach."""
        self._metrics_text, self._unreachable = metrics, unreachable
        self._draining = False
        app = web.Application()
        app.add_routes([web.get("/health", self._health), web.get("/metrics", self._metrics)])
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address that is listened on. Raises OSError."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        taken_host, taken_port = self._runner.addresses[0][:2]
        return taken_host, taken_port

    def drain(self) -> None:
        """Report from now on that the proxy accepts no clients."""
        self._draining = True

    async def stop(self) -> None:
        """Close the listener."""
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        if self._draining:
            return _unavailable("draining", "the proxy is being stopped")
        if (reason := await self._unreachable()) is not None:
            return _unavailable("unreachable", reason)
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        body = await self._metrics_text()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _unavailable(status: str, reason: str) -> web.Response:
    return web.json_response({"status": status, "reasons": [reason]}, status=503)
