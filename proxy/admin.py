"""The admin side: health and metrics over HTTP, for machines.

`/health` says whether the proxy takes clients; `/metrics` is the Prometheus text format, made anew at each request from
what the proxy and the engine count anyway, so that nothing is counted twice and the hot paths pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from engine.watch import Following
from proxy.listener import Proxy


class _Collector(Collector):
    def __init__(self, proxy: Proxy, binlog: Following) -> None:
        self._proxy, self._binlog = proxy, binlog

    def collect(self) -> Iterable[Metric]:
        yield from self._connections()
        yield from self._counters()
        yield from self._log()
        yield from self._queues()

    def _connections(self) -> Iterable[Metric]:
        proxy = self._proxy
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
            ("scans", "Looks at a table's index", counters.scans),
            ("scanned", "Keys read by them", counters.scanned),
            ("released", "Messages given back", counters.released),
            ("purged", "Acknowledged rows deleted", counters.purged),
            ("buried", "Dead messages moved to their dead-letter tables", counters.buried),
            ("unburied", "Attempts to move dead messages that failed", counters.unburied),
            ("store_errors", "Statements of the engine that failed", counters.store_errors),
            ("catalog_looks", "Looks at the catalog of tables", counters.catalog_looks),
            ("catalog_described", "Tables described because they are new or were changed", counters.catalog_described),
            ("catalog_faults", "Unexpected exceptions while the catalog was read", counters.catalog_faults),
        ):
            yield CounterMetricFamily(f"ackstream_{name}", text, value)

    def _log(self) -> Iterable[Metric]:
        binlog = self._binlog
        yield GaugeMetricFamily("ackstream_binlog_following", "Whether the binlog is being followed", binlog.now)
        yield GaugeMetricFamily("ackstream_binlog_lag_seconds", "How far behind the server", binlog.lag_s)
        yield CounterMetricFamily("ackstream_binlog_rows", "Changed rows of queues read in the binlog", binlog.rows)
        yield CounterMetricFamily("ackstream_binlog_batches", "Batches of news from the binlog", binlog.batches)
        yield CounterMetricFamily("ackstream_binlog_starts", "Starts of the binlog's reader", binlog.starts)

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


class Admin:
    """The HTTP listener."""

    def __init__(self, proxy: Proxy, binlog: Following) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(proxy, binlog))
        self._draining = False
        app = web.Application()
        app.add_routes([web.get("/health", self._health), web.get("/metrics", self._metrics)])
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address that was taken. Raises OSError."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        taken_host, taken_port = self._runner.addresses[0][:2]
        return taken_host, taken_port

    def drain(self) -> None:
        """Say from now on that no client should be sent here."""
        self._draining = True

    async def stop(self) -> None:
        """Close the listener."""
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        if self._draining:
            return web.json_response({"status": "draining"}, status=503)
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
