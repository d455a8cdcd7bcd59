"""The metrics of one process, as Prometheus reads them.

They are computed at each request from counters that the proxy and the engine keep anyway. The event
loop's lag is measured all the time (`LoopLag`), and what lasts for too long on a queue is looked for
(`QueueWatch`). The messages in the database are counted while somebody reads them (`Depths`).
docs/metrics.md lists all; a test compares it with this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.binlog.supervisor import Following
from engine.store.reach import Reach
from proxy import __version__
from proxy.server import queue_metrics
from proxy.server.depths import Depths
from proxy.server.listener import Proxy
from proxy.server.loop_lag import LoopLag
from proxy.server.queue_metrics import QueueMetrics, add_durations
from proxy.server.queue_watch import QueueWatch
from proxy.statements.depth import EngineCounting
from proxy.transport.certificates import days_left


class Families(Collector):
    """Families that were collected before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """These families."""
        return self._families


async def exposition(families: Iterable[Metric]) -> bytes:
    """The families in Prometheus's text format, written on a thread: with many queues that takes a
    tenth of a second."""
    registry = CollectorRegistry()
    registry.register(Families(families))
    return await asyncio.to_thread(generate_latest, registry)


class ProcessMetrics(Collector):
    """The metrics of one process with sessions and an engine."""

    def __init__(self, proxy: Proxy, reach: Reach) -> None:
        self.registry = CollectorRegistry()
        self.depths = Depths(proxy.engine, EngineCounting(proxy.engine))
        self._proxy, self._reach = proxy, reach
        self._queues = QueueMetrics()
        self._watch = QueueWatch(proxy.engine, lambda: self.depths.counts)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._lag = LoopLag(self.registry)

    def start(self) -> None:
        """Begin to measure the running event loop, and to watch the queues."""
        self._lag.start(asyncio.get_running_loop())
        self._watch.start()

    async def families(self, *, counted: bool) -> list[Metric]:
        """The present values. With `counted`, the messages in the database are counted for a while
        from now on."""
        if counted:
            self.depths.request()
        readings = await self._queues.read(
            self._proxy.engine.runners(), self.depths.counts, self._proxy.engine.stalled_s()
        )
        whole = list(self.registry.collect())  # After its parts: no total of the proxy is behind their sum.
        return [*whole, *await asyncio.to_thread(queue_metrics.families, readings, self._now_s())]

    async def stop(self) -> None:
        """Measure no more."""
        self._lag.stop()
        await self._watch.close()
        await self.depths.close()

    def collect(self) -> Iterable[Metric]:
        """The present values of the process as a whole."""
        yield from self._connections()
        yield from self._traffic()
        yield from self._counters()
        yield from self._durations()
        yield self._broken()

    def _broken(self) -> Metric:
        text = "1 for a table that is marked as a queue and cannot be used as one: SHOW FULL QUEUES has the reason"
        broken = GaugeMetricFamily("ackstream_queue_broken", text, labels=queue_metrics.LABELS)
        for table in self._proxy.engine.broken()[: queue_metrics.QUEUES_MAX]:
            broken.add_metric([table.id.db, table.id.name], 1)
        return broken

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    def _connections(self) -> Iterable[Metric]:
        proxy, memory = self._proxy, self._proxy.statement_memory
        build = GaugeMetricFamily("ackstream_build_info", "1, with the version of ackstream", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        states = self._reach.states
        stalled_s = max(self._proxy.engine.stalled_s().values(), default=0.0)
        expires = proxy.tls.expires
        expires_s = float("inf") if expires is None else days_left(expires) * 86_400
        expiry_text = "Time until the certificate for clients expires; infinite without TLS"
        for name, help_text, value in (
            ("certificate_expires_seconds", expiry_text, expires_s),
            ("server_reachable", "0 while the server takes no connection of the engine", not states.unreachable.reason),
            ("server_read_only", "1 while the server is read-only", bool(states.read_only.reason)),
            (
                "connections_exhausted",
                "1 while connections are refused (1040): max_connections of the server, or connections_max",
                bool(states.exhausted.reason),
            ),
            (
                "server_stalled_seconds",
                "Time for which the server has not answered a statement of the engine",
                stalled_s,
            ),
            ("connections", "Client connections now", len(proxy.sessions)),
            ("connections_max", "Client connections that are accepted at most", proxy.settings.connections_max),
            ("streams", "Running STREAM statements", len(list(proxy.streams()))),
            ("statement_memory_bytes", "Bytes of long queue statements and of what is sent ahead", memory.used),
            ("statement_memory_max_bytes", "The bound of ackstream_statement_memory_bytes", memory.bytes_max),
        ):
            yield GaugeMetricFamily(f"ackstream_{name}", help_text, value)
        for name, help_text, count in (
            ("connections_accepted", "Client connections that were accepted since the start", proxy.connections_total),
            ("backing_connection_errors", "Clients for which the server took no connection", proxy.backing_errors),
            ("engine_connections_opened", "Connections that the engine has opened", self._reach.opened),
            ("engine_connection_errors", "Connections of the engine that the server did not take", self._reach.refused),
        ):
            yield CounterMetricFamily(f"ackstream_{name}", help_text, count)

    def _traffic(self) -> Iterable[Metric]:
        traffic = self._proxy.traffic
        received = CounterMetricFamily(
            "ackstream_received_bytes", "Bytes received from clients, or on their backing connections", labels=["from"]
        )
        received.add_metric(["clients"], traffic.client_bytes)
        received.add_metric(["server"], traffic.server_bytes)
        yield received
        text = "Statements of clients: relayed to the server, or queue statements by their first word"
        statements = CounterMetricFamily("ackstream_statements", text, labels=["class"])
        statements.add_metric(["relayed"], traffic.relayed)
        for verb, count in sorted(traffic.queue_statements.items(), key=lambda item: item[0].name):
            statements.add_metric([verb.name.lower()], count)
        yield statements

    def _durations(self) -> Iterable[Metric]:
        counters = self._proxy.engine.counters
        for name, text, durations in (
            ("claim", "Time of a claim transaction, with the rows that were read behind it", counters.claim_time),
            ("fetch", "Time of reading rows after their claim", counters.fetch_time),
        ):
            family = HistogramMetricFamily(f"ackstream_{name}_duration_seconds", text, labels=[])
            add_durations(family, [], durations)
            yield family

    def _counters(self) -> Iterable[Metric]:
        counters = self._proxy.engine.counters
        for name, text, value in (
            ("delivered", "Messages sent to subscribers", counters.delivered),
            ("redelivered", "Messages claimed for the second time or later", counters.redelivered),
            ("claims", "Claim transactions", counters.claims),
            ("claimed", "Messages claimed", counters.claimed),
            (
                "claimed_in_vain",
                "Messages that a claim did not get: locked, changed, or taken by another proxy",
                counters.claimed_in_vain,
            ),
            ("scans", "Scans of a table's index, polls of empty queues included", counters.scans),
            ("scanned", "Keys that scans have read", counters.scanned),
            (
                "ack_batches",
                "Transactions in which the engine has carried out clients' acknowledgements",
                counters.ack_batches,
            ),
            ("acks_gathered", "Acknowledgements that the engine has carried out for clients", counters.acks_gathered),
            (
                "released",
                "Messages that the engine gave back, because their consumer was gone or their row could not be sent",
                counters.released,
            ),
            ("purged", "Acknowledged rows that were deleted", counters.purged),
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


class BinlogMetrics(Collector):
    """The metrics of the reader of the binary log."""

    def __init__(self, binlog: Following) -> None:
        self._binlog = binlog

    def collect(self) -> Iterable[Metric]:
        """The present values."""
        binlog = self._binlog
        yield GaugeMetricFamily("ackstream_binlog_following", "1 while the binary log is followed", binlog.now)
        yield GaugeMetricFamily(
            "ackstream_binlog_next_attempt_seconds",
            "Time until the binary log is tried again; 0 while it is followed",
            binlog.next_attempt_s(),
        )
        yield GaugeMetricFamily(
            "ackstream_binlog_lag_seconds", "How far the reader of the binary log is behind the server", binlog.lag_s
        )
        yield CounterMetricFamily(
            "ackstream_binlog_rows",
            "Changed rows of followed queues read in the binary log, without the engine's own",
            binlog.rows,
        )
        yield CounterMetricFamily(
            "ackstream_binlog_batches", "Change sets from the reader of the binary log", binlog.batches
        )
        yield CounterMetricFamily("ackstream_binlog_starts", "Starts of the reader of the binary log", binlog.starts)
        yield CounterMetricFamily(
            "ackstream_binlog_faults", "Readers of the binary log whose output could not be processed", binlog.faults
        )
