"""The admin port: probes and metrics over HTTP.

| path       | answer |
|------------|--------|
| `/`        | the page of queues (proxy.server.page) |
| `/queue`, `/proxies` | further pages (proxy.server.queue_page) |
| `/messages`, `/message` | messages of a queue, one of them (proxy.server.message_page) |
| `/sign-in`, `/sign-out`, `/act` | acting with one's own rights (proxy.server.acting) |
| `/livez`   | 200 as long as the event loop runs |
| `/readyz`  | 200 if clients can be served here; else 503 with the reasons |
| `/health`  | 200 if the proxy accepts clients and reaches a server; else 503 with the reason |
| `/metrics` | the Prometheus text format (proxy.server.metrics); `?counted=no`: no count in the database |

proxy.server.access has who may read what. The event loop reads values, of many queues in steps. What
is made of them, the history included, is made on threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from aiohttp import web
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from engine.model import TableId
from engine.service import Engine
from engine.store.port import StoreError
from engine.store.server_states import ServerStates
from proxy.server import markup, message_page, page, queue_page
from proxy.server.access import Access
from proxy.server.acting import FORM_MAX, ID_MAX, NAME_MAX, Acting
from proxy.server.admin_connections import AdminConnections
from proxy.server.inspection import PROXIES, Inspected, Question
from proxy.server.message_list import STATES, MessageQuery, PageStart
from proxy.server.message_rows import TEXT_MAX
from proxy.server.metrics import exposition
from proxy.server.overview import History, Overview
from proxy.server.problems import Problem
from proxy.server.sign_ins import SignIns
from proxy.server.sources import Sources
from proxy.session.queries import sql

PROBE_WAIT_S = 2.0
"""A server that takes longer for a query without a table cannot serve clients. Health checks wait for
1 s (Kubernetes) to 10 s (load balancers)."""
PROBE_LASTS_S = 1.0
"""An answer is used for so long: any number of health checks costs one query a second."""

WATCH_S = 5.0
"""A state of the server that lasts is in the log and in the metrics that much later."""

PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # With no-referrer, forms would come without an Origin.
}

UNANSWERED = f"the server has not answered within {PROBE_WAIT_S:g} s"
DRAINING = "the proxy is being stopped"
READ_ONLY = "the server is read-only: messages cannot be claimed or acknowledged"


class Probe:
    """Whether the server answers the engine, and is not read-only. One query is under way at a time: on request,
    and every WATCH_S for the log and the metrics."""

    def __init__(self, engine: Engine, states: ServerStates) -> None:
        self._engine, self._states = engine, states
        self._running: asyncio.Task[str | None] | None = None
        self._until_s = 0.0
        self._reason: str | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look every WATCH_S."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="watch of the server")

    async def unready(self) -> str | None:
        """Why clients cannot be served: as `reason`, or because the server is read-only."""
        return await self.reason() or self._states.read_only.reason

    async def reason(self) -> str | None:
        """Return why the server is out of reach, within PROBE_WAIT_S. None when it has answered this
        query or, meanwhile, any other."""
        clock = asyncio.get_running_loop().time
        if self._running is None:
            if clock() < self._until_s:
                return self._reason
            self._running = asyncio.get_running_loop().create_task(self._look(), name="probe")
        running, answers = self._running, self._engine.counters.store_answers
        done, _ = await asyncio.wait({running}, timeout=PROBE_WAIT_S)
        if done:
            return running.result()
        if self._engine.counters.store_answers > answers:
            return None
        return UNANSWERED

    async def close(self) -> None:
        """Look no more."""
        for task in (self._watching, self._running):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    async def _watch(self) -> None:
        while True:
            await self.reason()
            self._states.exhausted.end()
            await asyncio.sleep(WATCH_S)

    async def _look(self) -> str | None:
        try:
            ((read_only,),), _ = await self._engine.read(sql("read_only"))
            self._reason = None
            if read_only != "0":
                self._states.read_only.report(READ_ONLY)
            else:
                self._states.read_only.end()
        except StoreError as error:
            self._reason = str(error)
        finally:
            self._running = None
        self._until_s = asyncio.get_running_loop().time() + PROBE_LASTS_S
        return self._reason


class Admin:
    """The HTTP listener."""

    def __init__(
        self, sources: Sources, access: Access, sign_ins: SignIns, connections_max: int, *, show_payload: bool = False
    ) -> None:
        """`connections_max`: how many connections may be open. `show_payload`: whether the page of a message
        shows what the application has written."""
        self._sources, self._show_payload = sources, show_payload
        self._draining = False
        self._history = History()
        self._connections = AdminConnections(connections_max, access.context)
        self._sign_ins = sign_ins
        self._acting = Acting(sign_ins, sources.inspect, sources.changed, self._still)
        app = web.Application(middlewares=[self._connections.follow, access.check], client_max_size=FORM_MAX)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/queue", self._queue),
                web.get("/messages", self._messages),
                web.get("/message", self._message),
                web.get("/proxies", self._proxies),
                web.get(r"/{name:pico\.css|page\.(?:css|js)}", self._asset),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                *self._acting.routes(),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, max_line_size=FORM_MAX)

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> tuple[str, int]:
        """Listen, and return the address that is listened on. `reuse_port`: another proxy may
        listen there, too. Raises OSError."""
        await self._runner.setup()
        assert self._runner.server is not None
        return await self._connections.listen(self._runner.server, host, port, reuse_port=reuse_port)

    def drain(self) -> None:
        """Report from now on that the proxy accepts no clients."""
        self._draining = True

    async def stop(self) -> None:
        """Close the listener and end all sessions."""
        self._connections.close()
        await self._sign_ins.close()
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        if self._draining:
            return _unavailable("draining", DRAINING)
        if (reason := await self._sources.unreachable()) is not None:
            return _unavailable("unreachable", reason)
        return web.json_response({"status": "ok"})

    async def _livez(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        reasons = [DRAINING] if self._draining else []
        if (reason := await self._sources.unready()) is not None:
            reasons.append(reason)
        if reasons:
            return web.json_response({"status": "not ready", "reasons": reasons}, status=503)
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        families = await self._sources.collected(counted=request.query.get("counted") != "no")
        await self._view(families)
        return _compressed(web.Response(body=await exposition(families), headers={"Content-Type": CONTENT_TYPE_LATEST}))

    # The pages. With `part=content`, the answer is the part that the script replaces.

    async def _page(self, request: web.Request) -> web.Response:
        overview, wanted = await self._overview(), page.Request.of(request.query)
        render = page.content if _is_part(request) else partial(page.document, account=self._acting.account(request))
        unready = await self._sources.unready()
        problems = [problem for problem in await self._sources.problems() if problem.text != unready]
        problems = [*([Problem(None, unready)] if unready else []), *problems]
        held = await self._sources.held()
        return _html(await asyncio.to_thread(render, overview, wanted, problems, held))

    async def _queue(self, request: web.Request) -> web.Response:
        name = _table(request)
        overview, streams = await self._overview(), self._sources.streams()
        inspected = await self._sources.inspect(Question(name))
        content = partial(
            queue_page.queue_content,
            overview,
            inspected,
            streams,
            name,
            show_payload=self._show_payload,
            may_act=self._acting.signed_in(request) is not None,
        )
        return await self._answer(request, f"ackstream: {name}", content, message_page.search_form(name), inspected)

    async def _messages(self, request: web.Request) -> web.Response:
        name, wanted = _table(request), _wanted(request)
        inspected = await self._sources.inspect(Question(name, listed=wanted))
        may_act = self._acting.signed_in(request) is not None
        content = partial(message_page.list_content, inspected, name, may_act=may_act)
        form = message_page.list_form(inspected, name, wanted)
        return await self._answer(request, f"ackstream: messages of {name}", content, form, inspected)

    async def _message(self, request: web.Request) -> web.Response:
        name, number = _table(request), request.query.get("id", "")[:ID_MAX]
        inspected = await self._sources.inspect(Question(name, (number,)))
        may_act = self._acting.signed_in(request) is not None
        content = partial(message_page.message_content, inspected, name, number, may_act=may_act)
        return await self._answer(
            request, f"ackstream: message of {name}", content, message_page.search_form(name), inspected
        )

    async def _proxies(self, request: web.Request) -> web.Response:
        inspected = await self._sources.inspect(PROXIES)
        content = partial(queue_page.proxies_content, await self._overview(), inspected, self._sources.streams())
        return await self._answer(request, "ackstream: proxies", content)

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        kind = "text/css" if name.endswith("css") else "text/javascript"
        return _compressed(web.Response(text=markup.asset(name), content_type=kind, headers=PAGE_HEADERS))

    async def _answer(
        self,
        request: web.Request,
        title: str,
        render: Callable[[], str],
        search: str = "",
        inspected: Inspected | None = None,
    ) -> web.Response:
        """A page, with 404 if it shows that what was to be `inspected` is not there."""
        is_there = inspected is None or inspected.details is not None or bool(inspected.problem)
        content = await asyncio.to_thread(render)
        whole = content if _is_part(request) else markup.document(title, content, search, self._acting.account(request))
        return _html(whole, 200 if is_there else 404)

    def _still(self, request: web.Request, title: str, content: str) -> web.Response:
        """A page that does not refresh itself."""
        account = self._acting.account(request)
        return _html(markup.document(f"ackstream: {title}", content, account=account, is_live=False))

    async def _overview(self) -> Overview:
        return await self._view(await self._sources.collected(counted=True))

    async def _view(self, families: Sequence[Metric]) -> Overview:
        return await asyncio.to_thread(self._history.view, families, asyncio.get_running_loop().time())


def _table(request: web.Request) -> TableId:
    return TableId(request.query.get("db", "")[:NAME_MAX], request.query.get("name", "")[:NAME_MAX])


def _wanted(request: web.Request) -> MessageQuery:
    """Which messages a visitor wants to see; unknown values count as absent."""
    query = request.query
    state = query.get("state", "")
    group = tuple(value[:TEXT_MAX] for value in query.getall("group", []))
    return MessageQuery(
        state if state in STATES else STATES[0],
        PageStart.of(query.get("after", "")[: 2 * ID_MAX + NAME_MAX]),
        query.get("reason", "")[:TEXT_MAX],
        group if any(group) else (),
        query.get("column", "")[:NAME_MAX] if query.get("value") else "",
        query.get("value", "")[:TEXT_MAX],
    )


def _is_part(request: web.Request) -> bool:
    return request.query.get("part") == "content"


def _html(text: str, status: int = 200) -> web.Response:
    return _compressed(web.Response(text=text, status=status, content_type="text/html", headers=PAGE_HEADERS))


def _compressed(response: web.Response) -> web.Response:
    """The response, compressed for clients that take that."""
    response.enable_compression()
    return response


def _unavailable(status: str, reason: str) -> web.Response:
    return web.json_response({"status": status, "reasons": [reason]}, status=503)
