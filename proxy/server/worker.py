"""One of several workers: sessions and an engine, as a proxy of one process has them.

The parent has the listening sockets, the admin port and the reader of the binary log. The worker
gets clients, change sets and orders from it. To the database, workers are so many proxies: the
rows decide who has which message.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from engine.binlog.scope import FollowedTables
from engine.binlog.supervisor import EngineChanges
from engine.model import TableId
from engine.service import Engine
from engine.store.opening import BackendAddress
from engine.store.own_writes import OwnWrites
from engine.store.port import Origin, StoreError
from engine.store.reach import Reach
from engine.store.route import Route
from proxy import checks
from proxy.server import messages
from proxy.server.admin import Probe
from proxy.server.allowances import divide
from proxy.server.backends import Switch
from proxy.server.channel import Channel
from proxy.server.inspection import Inspected, Inspector
from proxy.server.listener import Proxy
from proxy.server.messages import CommitNotice, Topic
from proxy.server.metrics import ProcessMetrics
from proxy.server.parts import engine_settings, reload_certificate, running, store_limits
from proxy.server.shared_engine import SharedEngine, SharedStore
from proxy.server.shares import has_streams, settings_of
from proxy.server.tracing import traced
from proxy.session.session import Session
from proxy.settings import BadSetting, Settings
from proxy.statements.others import Subject
from proxy.statements.proxies import introduction
from proxy.transport.addresses import shown
from proxy.transport.tls import Tls
from sqlrewrite.classify import Kill

log = logging.getLogger(__name__)

OTHERS_WAIT_S = 3.0
"""For the streams of the other workers. The parent answers within `workers.ASK_S`."""

TAKEN_AT_ONCE = 64


class WorkerProxy(Proxy):
    """The sessions of one worker."""

    def __init__(self, worker: Worker, engine: Engine, settings: Settings, route: Route, tls: Tls) -> None:
        super().__init__(engine, settings, route, tls, worker.others, worker.reach, streams=worker.has_streams)
        self._worker = worker

    def session_closed(self, session: Session) -> None:
        """A client is gone."""
        super().session_closed(session)
        self._worker.client_gone()

    def killed(self, kill: Kill, origin: Origin) -> None:
        """A server has accepted a KILL. Its victim may be a session of another worker."""
        super().killed(kill, origin)
        self._worker.channel.send(messages.KillAccepted(kill, origin))

    def killed_elsewhere(self, kill: Kill, origin: Origin) -> None:
        """Another worker's session has sent it."""
        super().killed(kill, origin)


class Worker:
    """The state of this process."""

    def __init__(self, settings: Settings, number: int, clients: socket.socket) -> None:
        """`settings`: those of the whole proxy. `number`: this worker's. `clients`: where clients
        come from."""
        self.settings = settings_of(settings, number)
        self._number = number
        self.has_streams = has_streams(settings, number)
        self._part_of = lambda total: divide(total, settings.workers)[number - 1] if self.has_streams else 0
        self.channel = Channel(self._receive, self._parent_lost)
        self.begun: asyncio.Future[Route] = asyncio.get_running_loop().create_future()
        self.draining = asyncio.Event()
        self.ended = asyncio.Event()
        """The channel is closed."""
        self._closing = False
        self._clients = clients
        self._own_writes = OwnWrites()
        self.reach = Reach()
        self._tls = Tls.of(settings)
        self._asked: dict[int, asyncio.Future[Sequence[Any]]] = {}
        self._numbers = itertools.count(1)
        self._notices: list[CommitNotice] = []
        self._gone = 0
        self._sending_tables = False
        self._sent_tables: FollowedTables = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine: SharedEngine | None = None
        self._switch: Switch | None = None
        self._inspector: Inspector | None = None
        self._parts: tuple[SharedEngine, WorkerProxy, EngineChanges, ProcessMetrics, Probe] | None = None

    async def start(self, route: Route, stack: AsyncExitStack) -> Proxy:
        """Start the engine, and take clients. Raises BadSetting."""
        loop = asyncio.get_running_loop()
        store = SharedStore(
            route,
            store_limits(self.settings),
            reach=self.reach,
            own_writes=self._own_writes,
            introduction=introduction(self.settings),
        )
        engine = SharedEngine(
            store,
            engine_settings(self.settings),
            self._notify,
            self.channel.send,
            self._part_of,
            others_stream=self.settings.workers > self.has_streams,
        )
        engine.has_streams = self.has_streams

        def released(table: TableId) -> None:  # It is called on any thread.
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(engine.released, table)

        store.on_released = released
        engine.on_queues = self._send_tables_soon
        await stack.enter_async_context(running(engine, self.settings, _shown(route)))
        await stack.enter_async_context(traced(engine, self.settings))
        if self._number == 1:
            await checks.warn(engine, self.settings)
        proxy = WorkerProxy(self, engine, self.settings, route, self._tls)
        self._switch = Switch(route, store, engine, proxy)
        self._switch.follow()
        metrics, probe = ProcessMetrics(proxy, self.reach, counts_queues=self._number == 1), Probe(engine)
        metrics.start()
        stack.push_async_callback(metrics.stop)
        stack.push_async_callback(probe.close)
        self._inspector = Inspector(engine, introduction(self.settings), show_payload=self.settings.admin_show_payload)
        stack.callback(self._inspector.close)
        self._parts = engine, proxy, EngineChanges(engine, self._own_writes), metrics, probe
        self.channel.send(messages.EngineConnections(self._own_writes.mark))
        self._send_tables()
        loop.add_reader(self._clients, self._take_clients, proxy)
        self.channel.send(messages.Ready())
        return proxy

    def _route_of(self, address: BackendAddress | None, problem: str, *, several: bool) -> Route:
        loop, route = asyncio.get_running_loop(), Route(address, problem, several=several)

        def in_doubt() -> None:  # It is called on any thread.
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(self.channel.send, messages.InDoubt())

        if several:
            route.in_doubt = in_doubt
        return route

    async def fail(self, text: str) -> None:
        """Report that this worker cannot start."""
        self.channel.send(messages.Failed(text))
        self._closing = True
        self.channel.close()
        await self.ended.wait()

    def leave(self) -> None:
        """Drain, without an order of the parent."""
        self.channel.send(messages.Leaving())
        self.draining.set()

    # The parent's messages.

    def _receive(self, message: object) -> None:
        match message:
            case messages.Begin(address, problem, several):
                self.begun.set_result(self._route_of(address, problem, several=several))
            case messages.RouteChanged(address, problem):
                self.begun.result().change(address, problem)
                if self._switch is not None:
                    self._switch.follow()
            case messages.Drain():
                self.draining.set()
            case messages.OthersAnswers(number, found):
                if (asked := self._asked.get(number)) is not None and not asked.done():
                    asked.set_result(found)
            case _ if self._parts is not None:
                self._receive_running(message, *self._parts)
            case _:
                pass  # It knows nothing yet that could be out of date.

    def _receive_running(
        self,
        message: object,
        engine: SharedEngine,
        proxy: WorkerProxy,
        changes: EngineChanges,
        metrics: ProcessMetrics,
        probe: Probe,
    ) -> None:
        match message:
            case messages.Changes(batch):
                changes.handle(batch)
            case messages.Notices(notices):
                for notice in notices:
                    engine.take(notice)
            case messages.KillAccepted(kill, origin):
                proxy.killed_elsewhere(kill, origin)
            case messages.ReaderFollows(lock):
                engine.log_followed = True
                changes.started(lock, self._send_connections)
            case messages.ReaderGone():
                engine.log_followed = False
                changes.ended()
                engine.missed()  # What was committed since the reader's end was not notified either.
            case messages.Allow(limited, units):
                engine.limits.follow(limited, units)
            case messages.Missed():
                engine.missed()
            case messages.Ask(number, Topic.METRICS):
                self.channel.send(messages.Answer(number, metrics.families(counted=False)))
            case messages.Ask(number, Topic.COUNTED_METRICS):
                self.channel.send(messages.Answer(number, metrics.families()))
            case messages.Ask(number, Subject() as subject):
                self.channel.send(messages.Answer(number, proxy.own(subject)))
            case messages.Ask(number, Topic.INSPECT, question) if question is not None and self._inspector is not None:
                self._spawn(self._answer_inspection(number, self._inspector.inspect(question)))
            case messages.Ask(number, Topic.HEALTH):
                self._spawn(self._answer_health(number, probe.reason()))
            case messages.Ask(number, Topic.READY):
                self._spawn(self._answer_health(number, probe.unready()))
            case messages.Ask(number, Topic.REACHABLE):
                self._spawn(self._answer_reachable(number, engine))
            case messages.Reload():
                reload_certificate(self._tls, self.settings)
            case _:
                raise AssertionError(message)

    async def _answer_health(self, number: int, reason: Awaitable[str | None]) -> None:
        self.channel.send(messages.Answer(number, await reason))

    async def _answer_inspection(self, number: int, inspected: Awaitable[Inspected]) -> None:
        self.channel.send(messages.Answer(number, await inspected))

    async def _answer_reachable(self, number: int, engine: SharedEngine) -> None:
        reachable = True
        try:
            await engine.ping()
        except StoreError as error:
            reachable = not error.unreachable
        self.channel.send(messages.Answer(number, reachable))

    def _parent_lost(self) -> None:
        self.ended.set()
        if not self._closing:
            log.error("the parent process has ended", extra={"event": "worker.orphaned"})
            os._exit(1)

    # Messages to the parent.

    def _notify(self, notice: CommitNotice) -> None:
        """Send it with all others of this turn of the event loop."""
        if not self._notices:
            asyncio.get_running_loop().call_soon(self._send_notices)
        if notice not in self._notices[-1:]:
            self._notices.append(notice)

    def _send_notices(self) -> None:
        notices, self._notices = self._notices, []
        self.channel.offer(messages.Notices(notices))

    def client_gone(self) -> None:
        """A client has disconnected."""
        if self._gone == 0:
            asyncio.get_running_loop().call_soon(self._send_gone)
        self._gone += 1

    def _send_gone(self) -> None:
        gone, self._gone = self._gone, 0
        self.channel.send(messages.ClientsGone(gone))

    def _send_tables_soon(self) -> None:
        if self._parts is not None and not self._sending_tables:
            self._sending_tables = True
            asyncio.get_running_loop().call_soon(self._send_tables)

    def _send_tables(self) -> None:
        self._sending_tables = False
        assert self._parts is not None
        tables = self._parts[2].tables
        if tables != self._sent_tables:
            self._sent_tables = tables
            self.channel.send(messages.Tables(tables))

    def _send_connections(self, numbers: frozenset[int]) -> None:
        self.channel.send(messages.EngineConnections(self._own_writes.mark, numbers))

    async def others(self, subject: Subject) -> Sequence[Any]:
        """What the other workers have of it, those that answer in time."""
        number = next(self._numbers)
        asked: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        self.channel.send(messages.AskOthers(number, subject))
        try:
            async with asyncio.timeout(OTHERS_WAIT_S):
                return await asked
        except TimeoutError:
            return ()
        finally:
            del self._asked[number]

    # Clients.

    def _take_clients(self, proxy: Proxy) -> None:
        for _ in range(TAKEN_AT_ONCE):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._clients, 1, 1)
            except BlockingIOError:
                return
            except OSError as error:  # As without a free file descriptor.
                log.error("a client could not be taken: %s", error, extra={"event": "client.not_taken"})  # noqa: TRY400  # the text says it all
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._clients)
                return
            if not descriptors:
                log.error("a client was lost: there is no free file descriptor", extra={"event": "client.lost"})
                self.client_gone()
                continue
            client = socket.socket(fileno=descriptors[0])
            client.setblocking(False)
            self._spawn(self._adopt(proxy, client))

    async def _adopt(self, proxy: Proxy, client: socket.socket) -> None:
        try:
            await proxy.adopt(client)
        except OSError:
            client.close()
            self.client_gone()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def work(settings: Settings, number: int, channel: socket.socket, clients: socket.socket) -> None:
    """Do the work of the worker with this number. Returns when it has drained, or when it could not
    start and the parent has the reason."""
    clients.setblocking(False)
    worker = Worker(settings, number, clients)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.leave)
    await worker.channel.open(channel)
    draining = asyncio.ensure_future(worker.draining.wait())
    async with AsyncExitStack() as stack:
        starting = asyncio.ensure_future(_start(worker, stack))
        await asyncio.wait({starting, draining}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return
        try:
            proxy = starting.result()
        except BadSetting as error:
            await worker.fail(str(error))
            return
        await draining
        await proxy.drain()


async def _start(worker: Worker, stack: AsyncExitStack) -> Proxy:
    return await worker.start(await worker.begun, stack)


def _shown(route: Route) -> str:
    """The server, for people."""
    return "several servers" if route.present is None else shown(route.present.host, route.present.port)
