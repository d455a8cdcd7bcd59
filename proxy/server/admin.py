"""The admin side: health and metrics over HTTP, for machines.

`/health` says whether the proxy takes clients and can reach the server; `/metrics` is the Prometheus text format, made
anew at each request from what the proxy and the engine count anyway, so that nothing is counted twice and the hot paths
pay nothing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

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

PROBE_WAIT_S = 2.0
"""A server that takes longer for a question without a table is in no state to take clients. Those who ask for health
wait for 1 s (Kubernetes) to 10 s (load balancers)."""
PROBE_LASTS_S = 1.0
"""An answer counts for so long: however many ask, the server is asked once a second."""


class _Collector(Collector):
    def __init__(self, proxy: Proxy, binlog: Following, reach: Reach) -> None:
        self._proxy, self._binlog, self._reach = proxy, binlog, reach

    def collect(self) -> Iterable[Metric]:
        yield from self._connections()
        yield from self._counters()
        yield from self._log()
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
            ("scans", "Looks at a table's index", counters.scans),
            ("scanned", "Keys read by them", counters.scanned),
            ("released", "Messages given back", counters.released),
            ("purged", "Acknowledged rows deleted", counters.purged),
            ("dead_lettered", "Dead messages moved to their dead-letter tables", counters.dead_lettered),
            ("dead_letter_failures", "Attempts to move dead messages that failed", counters.dead_letter_failures),
            ("store_answers", "Statements of the engine that were answered", counters.store_answers),
            ("store_errors", "Statements of the engine that failed", counters.store_errors),
            ("dispatcher_restarts", "Dispatchers started again after a fault of ours", counters.dispatcher_restarts),
            ("catalog_refreshes", "Looks at the catalog of tables", counters.catalog_refreshes),
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
        yield CounterMetricFamily("ackstream_binlog_faults", "Readers that could not be understood", binlog.faults)

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


class Probe:
    """Whether the server answers the engine: asked when somebody wants to know, and once at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asking: asyncio.Task[str | None] | None = None
        self._until_s = 0.0
        self._reason: str | None = None

    async def reason(self) -> str | None:
        """Why the server is out of reach; None when it answers, this question or, when there are many, others. It takes
        PROBE_WAIT_S at most."""
        clock = asyncio.get_running_loop().time
        if self._asking is None:
            if clock() < self._until_s:
                return self._reason
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name="probe")
        asking, answers = self._asking, self._engine.counters.store_answers
        done, _ = await asyncio.wait({asking}, timeout=PROBE_WAIT_S)
        if done:
            return asking.result()
        if self._engine.counters.store_answers > answers:
            return None
        return f"the server has not answered within {PROBE_WAIT_S:g} s"

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})

    async def _ask(self) -> str | None:
        try:
            await self._engine.ping()
            self._reason = None
        except StoreError as error:
            self._reason = str(error)
        finally:
            self._asking = None
        self._until_s = asyncio.get_running_loop().time() + PROBE_LASTS_S
        return self._reason


class Admin:
    """The HTTP listener."""

    def __init__(self, proxy: Proxy, binlog: Following, reach: Reach) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(proxy, binlog, reach))
        self._probe = Probe(proxy.engine)
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
        await self._probe.close()

    async def _health(self, request: web.Request) -> web.Response:
        if self._draining:
            return _unwell("draining", "the proxy was told to stop")
        if (reason := await self._probe.reason()) is not None:
            return _unwell("unreachable", reason)
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _unwell(status: str, reason: str) -> web.Response:
    return web.json_response({"status": status, "reasons": [reason]}, status=503)
