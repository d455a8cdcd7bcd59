"""The parent of several workers: it accepts clients, starts workers and starts them again, and has
what they share.

It passes each client on to the worker of its address with the fewest, change sets from the one
reader of the binary log to each worker that follows their queues, and notices of each worker to the
others. A worker that reads slowly loses change sets and notices, and is then sent `Missed`: it
delays nobody else. The parent answers /health and /metrics for all.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.binlog.pipe import ChangeBatch, OwnConnections
from engine.binlog.scope import FollowedTables, scope_for_all
from engine.binlog.supervisor import ReaderSupervisor
from engine.model import TableId
from engine.store.route import Route
from proxy.server import messages
from proxy.server.accepting import Acceptor
from proxy.server.allowances import Allowances, Order
from proxy.server.channel import Channel
from proxy.server.fork_server import ForkServer
from proxy.server.inspection import Inspected, Question, ShownProxy
from proxy.server.messages import Topic
from proxy.server.metrics import BinlogMetrics
from proxy.server.shares import Restarts, has_streams, settings_of
from proxy.server.sources import Sources
from proxy.server.totals import Totals
from proxy.settings import BadSetting, Settings
from proxy.statements.others import Subject
from proxy.statements.show import RunningStream

log = logging.getLogger(__name__)

ASK_S = 2.5
"""How long workers may take to answer: longer than a health check of the server
(`admin.PROBE_WAIT_S`)."""

KILL_AFTER_S = 1.0
"""A worker that has not ended so long after `drain_timeout_s`, or after it has closed its channel,
is killed."""

TURN_S = 1.0
"""How often a limit with fewer units than workers with streams is divided in another way."""

CLIENT = b"c"
"""The byte that comes with a client's file descriptor."""


class State(Enum):
    """The state of a worker's process."""

    STARTING = auto()
    READY = auto()
    """It accepts clients."""
    LEAVING = auto()
    """It drains."""
    ENDED = auto()


@dataclass(eq=False, slots=True)
class WorkerProcess:
    """One process. Another one with its number follows it."""

    number: int
    has_streams: bool
    """False: it serves `listen_statements`."""
    connections_max: int
    channel: Channel
    clients: socket.socket
    state: State = State.STARTING
    pid: int = 0
    began_s: float = 0.0
    connections: int = 0
    failure: str = ""
    """Why it cannot start."""
    tables: FollowedTables = field(default_factory=dict)
    own: OwnConnections | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is ready, or has ended."""

    @property
    def is_full(self) -> bool:
        """Whether it may have no more clients."""
        return self.connections >= self.connections_max


class SharedReader(ReaderSupervisor):
    """The reader of the binary log for all workers."""

    def __init__(self, workers: Workers, route: Route, count: int) -> None:
        super().__init__(route)
        self.consumers = tuple(range(1, count + 1))
        self._workers = workers
        self.lock: str | None = None
        """The lock that the reader holds (empty: none), or None: no reader follows the binary log."""

    @property
    def tables(self) -> FollowedTables:
        """The queues that any worker knows."""
        of_workers = {worker.number: worker.tables for worker in self._workers.running()}
        names = frozenset[TableId]().union(*of_workers.values())
        return {
            name: scope_for_all({number: tables[name] for number, tables in of_workers.items() if name in tables})
            for name in names
        }

    def reader_started(self, lock: str) -> None:
        """A reader follows the binary log from now on."""
        self.lock = lock
        for worker in self._workers.running():
            if worker.own is not None:
                self.send_connections(OwnConnections(frozenset(), worker.number, worker.own.mark))
            worker.channel.send(messages.ReaderFollows(lock))

    def handle_batch(self, batch: ChangeBatch) -> None:
        """Pass a change set on to its worker."""
        if (worker := self._workers.present(batch.consumer)) is not None:
            worker.channel.offer(messages.Changes(batch))

    def reader_ended(self) -> None:
        """The reader has ended."""
        self.lock = None
        for worker in self._workers.running():
            worker.channel.send(messages.ReaderGone())

    async def server_is_reachable(self) -> bool:
        """Whether the server answers a worker."""
        return await self._workers.server_is_reachable()


class Workers(Collector):
    """All workers."""

    def __init__(self, settings: Settings, fork_server: ForkServer, route: Route, lost: asyncio.Event) -> None:
        """`lost` is set when the fork server has ended, and all workers with it."""
        self.reader = SharedReader(self, route, settings.processes)
        self.acceptor = Acceptor(partial(self._pass_on, streams=True), reuse_port=settings.reuse_port)
        self.statements_acceptor = Acceptor(partial(self._pass_on, streams=False), reuse_port=settings.reuse_port)
        """Of `listen_statements`."""
        self._lost = lost
        self._settings, self._fork_server, self._route = settings, fork_server, route
        self._used = route.present
        self._present: dict[int, WorkerProcess] = {}
        self._restarts = {number: Restarts() for number in range(1, settings.processes + 1)}
        self._started_again = 0
        self._forking = asyncio.Lock()
        self._accepting = self._stopping = False
        self._asked: dict[tuple[int, int], asyncio.Future[Any]] = {}
        """By worker and number of the Ask."""
        self._numbers = itertools.count(1)
        self._totals = Totals()
        self._allowances = Allowances()
        self._answering: frozenset[int] = frozenset()
        """The workers that have answered the last request for metrics."""
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._registry.register(BinlogMetrics(self.reader.following))
        self._tasks: set[asyncio.Task[None]] = set()

    # Life.

    async def start(self) -> None:
        """Start all workers. Raises BadSetting if one of them cannot start.

        The first one shows whether the settings are good.
        """
        self._fork_server.start(self._fork_server_lost)
        await self._start_first(1)
        await asyncio.gather(*map(self._start_first, range(2, self._settings.processes + 1)))
        if self._settings.binlog == "auto":
            self.reader.start()
        self._turn()

    async def _start_first(self, number: int) -> None:
        worker = await self._start(number)
        await worker.changed.wait()
        if worker.state is State.ENDED:
            raise BadSetting(worker.failure or f"worker {number} ended while it started: see the log")

    def accept(self) -> None:
        """Begin to accept clients."""
        self._accepting = True
        self._accept_if_possible()

    async def drain(self) -> None:
        """Accept no more clients, drain all workers, and return when all have ended."""
        self._stopping = True
        self._close_acceptors()
        for worker in self.running():
            worker.channel.send(messages.Drain())
        try:
            async with asyncio.timeout(self._settings.drain_work_s + self._settings.drain_timeout_s + KILL_AFTER_S):
                await self._all_ended()
        except TimeoutError:
            log.warning("%d workers that did not end are killed", len(self.running()), extra={"event": "worker.killed"})

    async def close(self) -> None:
        """End all workers at once, and the reader."""
        self._stopping = True
        self._close_acceptors()
        self._fork_server.close()
        for worker in self.running():
            worker.channel.close()
            worker.clients.close()
        await self.reader.close()

    async def _all_ended(self) -> None:
        for worker in self.running():
            while worker.state is not State.ENDED and not self._lost.is_set():
                worker.changed.clear()
                await worker.changed.wait()

    def reload(self) -> None:
        """Have all workers read the TLS certificate again."""
        for worker in self.running():
            worker.channel.send(messages.Reload())

    def route_changed(self) -> None:
        """Another server may be the primary, or none."""
        for worker in self.running():
            worker.channel.send(messages.RouteChanged(self._route.present, self._route.problem))
        if (address := self._route.present) is not None:
            changed, self._used = address != self._used, address
            if changed or not self.reader.following.now:
                self.reader.server_changed()

    def running(self) -> list[WorkerProcess]:
        """The workers that have not ended."""
        return list(self._present.values())

    def present(self, number: int) -> WorkerProcess | None:
        """The worker with this number, if it runs."""
        return self._present.get(number)

    # Processes.

    async def _start(self, number: int) -> WorkerProcess:
        ours, theirs = socket.socketpair()
        clients, clients_end = socket.socketpair()
        clients.setblocking(False)
        worker = WorkerProcess(
            number,
            has_streams(self._settings, number),
            settings_of(self._settings, number).connections_max,
            channel=Channel(lambda message: self._receive(worker, message), lambda: self._channel_lost(worker)),
            clients=clients,
        )
        worker.began_s = asyncio.get_running_loop().time()
        self._present[number] = worker
        async with self._forking:
            worker.pid = await self._fork_server.fork(number, theirs, clients_end, partial(self._ended, worker))
        await worker.channel.open(ours)
        worker.channel.send(messages.Begin(self._route.present, self._route.problem, self._route.several))
        return worker

    def _channel_lost(self, worker: WorkerProcess) -> None:
        """It has ended, is about to end, or does not read."""
        asyncio.get_running_loop().call_later(KILL_AFTER_S, self._kill, worker)

    def _kill(self, worker: WorkerProcess) -> None:
        if worker.state is not State.ENDED:
            self._fork_server.kill(worker.pid)

    def _ended(self, worker: WorkerProcess, status: int) -> None:
        loop = asyncio.get_running_loop()
        starting, worker.state = worker.state is State.STARTING, State.ENDED
        worker.clients.close()
        worker.channel.close()
        del self._present[worker.number]
        self._totals.ended(worker.number)
        self._send_orders(self._allowances.ended(worker.number))
        for (number, _), asked in self._asked.items():
            if number == worker.number and not asked.done():
                asked.set_result(None)
        worker.changed.set()
        self._accept_if_possible()
        self.reader.send_tables_soon()
        if self._stopping or (starting and not self._accepting):
            return
        pause_s = self._restarts[worker.number].pause_after_s(loop.time() - worker.began_s)
        log.warning(
            "worker %d (pid %d) has ended (%s); another one starts in %.1f s",
            *(worker.number, worker.pid, worker.failure or _how(status), pause_s),
            extra={"event": "worker.ended"},
        )
        self._started_again += 1
        loop.call_later(pause_s, self._start_again, worker.number)

    def _start_again(self, number: int) -> None:
        if not self._stopping:
            self._spawn(self._start_next(number))

    async def _start_next(self, number: int) -> None:
        await self._start(number)

    def _fork_server_lost(self) -> None:
        if not self._stopping:
            log.error(
                "the process from which workers are forked has ended, and they with it",
                extra={"event": "fork_server.ended"},
            )
        self._lost.set()
        for worker in self.running():
            worker.changed.set()

    # Clients.

    def _accept_if_possible(self) -> None:
        for acceptor, streams in ((self.acceptor, True), (self.statements_acceptor, False)):
            if self._ready(streams=streams) and self._accepting and not self._stopping:
                acceptor.resume()
            else:
                acceptor.pause()

    def _ready(self, *, streams: bool) -> list[WorkerProcess]:
        """The workers that take clients, with or without streams."""
        return [worker for worker in self.running() if worker.state is State.READY and worker.has_streams is streams]

    def _close_acceptors(self) -> None:
        self.acceptor.close()
        self.statements_acceptor.close()

    def _pass_on(self, client: socket.socket, *, streams: bool) -> None:
        """Pass a client on to the worker of its address with the fewest. If all are full, that one
        refuses it."""
        with client:
            ready = self._ready(streams=streams)
            for worker in sorted(ready, key=lambda worker: (worker.is_full, worker.connections, worker.number)):
                try:
                    socket.send_fds(worker.clients, [CLIENT], [client.fileno()])
                except OSError:  # It takes none, or has ended.
                    continue
                worker.connections += 1
                return
            log.error("a client was turned away: no worker takes it", extra={"event": "client.turned_away"})

    # Messages.

    def _receive(self, worker: WorkerProcess, message: object) -> None:
        match message:
            case messages.Notices():
                for other in self._others(worker):
                    other.channel.offer(message)
            case messages.KillAccepted():
                for other in self._others(worker):
                    other.channel.send(message)
            case messages.ClientsGone(count):
                worker.connections -= count
            case messages.Answer(number, value):
                if (asked := self._asked.get((worker.number, number))) is not None and not asked.done():
                    asked.set_result(value)
            case messages.Demand(limits):
                self._send_orders(self._allowances.demand(worker.number, limits))
            case messages.Uses(limited, ordered, used):
                self._send_orders(self._allowances.uses(worker.number, limited, ordered, used))
            case messages.AskOthers(number, subject):
                self._spawn(self._answer_for_others(worker, number, subject))
            case messages.Tables(tables):
                worker.tables = tables
                self.reader.send_tables_soon()
            case messages.EngineConnections(mark, numbers):
                worker.own = OwnConnections(numbers, worker.number, mark)
                if self.reader.lock is not None:
                    self.reader.send_connections(worker.own)
            case messages.Ready():
                worker.state = State.READY
                if self.reader.lock is not None:
                    worker.channel.send(messages.ReaderFollows(self.reader.lock))
                worker.changed.set()
                self._accept_if_possible()
            case messages.InDoubt():
                self._route.in_doubt()
            case messages.Leaving():
                worker.state = State.LEAVING
                self._accept_if_possible()
            case messages.Failed(text):
                worker.failure = text
            case _:
                raise AssertionError(message)

    def _turn(self) -> None:
        if not self._stopping:
            self._send_orders(self._allowances.turn())
            asyncio.get_running_loop().call_later(TURN_S, self._turn)

    def _send_orders(self, orders: Iterable[Order]) -> None:
        for order in orders:
            if (worker := self.present(order.worker)) is not None:
                worker.channel.send(messages.Allow(order.limited, order.units))

    def _others(self, worker: WorkerProcess) -> list[WorkerProcess]:
        return [other for other in self.running() if other is not worker]

    async def _answer_for_others(self, worker: WorkerProcess, number: int, subject: Subject) -> None:
        answers = await self._ask(subject, self._others(worker))
        found = [item for answer in answers.values() for item in answer or ()]
        worker.channel.send(messages.OthersAnswers(number, found))

    async def _ask(
        self, topic: Topic | Subject, workers: Iterable[WorkerProcess], question: Question | None = None
    ) -> Mapping[int, Any]:
        """The answers of those that give one within ASK_S, by their numbers."""
        number = next(self._numbers)
        asked: dict[int, asyncio.Future[Any]] = {}
        for worker in workers:
            if worker.state in {State.READY, State.LEAVING}:
                future = asyncio.get_running_loop().create_future()
                asked[worker.number] = self._asked[worker.number, number] = future
                worker.channel.send(messages.Ask(number, topic, question))
        if asked:
            await asyncio.wait(asked.values(), timeout=ASK_S)
        for worker_number in asked:
            del self._asked[worker_number, number]
        return {name: future.result() for name, future in asked.items() if future.done()}

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The admin port.

    async def unreachable(self) -> str | None:
        """Why the server is out of reach; None if any worker reaches it."""
        return await self._common_reason(Topic.HEALTH)

    async def unready(self) -> str | None:
        """Why clients cannot be served; None if any worker serves them."""
        return await self._common_reason(Topic.READY)

    async def _common_reason(self, topic: Topic) -> str | None:
        answers = list((await self._ask(topic, self.running())).values())
        if not answers:
            return "no worker answers"
        return None if None in answers else str(answers[0])

    async def server_is_reachable(self) -> bool:
        """Whether the server answers any worker now."""
        return True in (await self._ask(Topic.REACHABLE, self.running())).values()

    @property
    def sources(self) -> Sources:
        """What the admin port shows."""
        return Sources(self.collected, self.unreachable, self.unready, self.inspect, self.streams)

    async def streams(self) -> Sequence[RunningStream]:
        """The streams of all workers that answer in time."""
        answers = await self._ask(Subject.STREAMS, self.running())
        return [stream for found in answers.values() for stream in found or ()]

    async def inspect(self, question: Question) -> Inspected:
        """The answer of the first worker that gives one, with the events of all."""
        workers = self.running()
        first = await self._ask(Topic.INSPECT, workers[:1], question)
        others = await self._ask(Topic.INSPECT, workers[1:], replace(question, events_alone=True))
        found = next(iter(first.values()), None) or Inspected(None, "no worker answers")
        events = sorted({event for answer in (found, *others.values()) for event in answer.events}, reverse=True)
        own = {proxy.slot: proxy for answer in others.values() for proxy in answer.proxies if proxy.slot is not None}
        proxies = tuple(_with_own(proxy, own.get(proxy.slot)) for proxy in found.proxies)
        return replace(found, events=tuple(events), proxies=proxies)

    async def collected(self, *, counted: bool) -> list[Metric]:
        """The metrics; `counted` as for ProcessMetrics.families."""
        answers = await self._ask(Topic.COUNTED_METRICS if counted else Topic.METRICS, self.running())
        self._answering = frozenset(number for number, families in answers.items() if families is not None)
        for number in self._answering:
            self._totals.report(number, answers[number])
        return list(self._registry.collect())

    def collect(self) -> Iterable[Metric]:
        """The metrics of all workers as one."""
        yield from self._totals.families()
        yield from own_metrics({number: number in self._answering for number in self._restarts}, self._started_again)


def own_metrics(answers: Mapping[int, bool], started_again: int) -> Iterable[Metric]:
    """The metrics of the parent. `answers`: whether each worker answers."""
    up = GaugeMetricFamily("ackstream_worker_up", "Whether the worker answers", labels=["worker"])
    for number, answer in answers.items():
        up.add_metric([str(number)], answer)
    yield up
    text = "Workers that were started because one had ended"
    yield CounterMetricFamily("ackstream_worker_restarts", text, started_again)


def _with_own(proxy: ShownProxy, own: ShownProxy | None) -> ShownProxy:
    """A proxy of the roster, with what a worker knows of itself (`own`)."""
    if own is None:
        return proxy
    return replace(proxy, name=own.name, version=own.version, streams=own.streams, in_flight=own.in_flight)


def _how(status: int) -> str:
    """How a process has ended, by its wait status."""
    code = os.waitstatus_to_exitcode(status)
    return f"status {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
