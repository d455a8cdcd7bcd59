"""Signing in on the pages of the admin port, and running a statement there in two steps: the first shows it, the
second runs it as the account that has signed in.

A form is taken only from a page of this proxy: the browser's Origin must be this address, the cookie is sent on no
request that another site causes, and each form of a session contains the session's token. What runs is made here of
the queue, the message and the action that the form names, and must be what the first step has shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from html import escape
from urllib.parse import urlencode, urlsplit, urlunsplit

from aiohttp import hdrs, web
from multidict import MultiDict, MultiMapping

from engine.model import TableId
from proxy.server.actions import DELAY_MAX_S, DELAY_S, Statement, statements_of
from proxy.server.inspection import Inspected, Question
from proxy.server.markup import field, hidden, link
from proxy.server.message_list import PAGE, STATES
from proxy.server.sign_ins import IDLE_S, Outcome, SignedIn, SignInRefusedError, SignIns
from proxy.transport.addresses import is_loopback

FORM_MAX = 32 * 1024
"""Bytes of a form: the ids of a page of messages and the statement on them, encoded."""
FORM_S = 10.0
"""Time for a form to arrive, once its head has."""
NAME_MAX = 64
"""Characters of a name, as the servers have it."""
ID_MAX = 3_072
"""Characters of an id: what an index can hold."""
PASSWORD_MAX = 1_024
"""Characters."""
BACK = frozenset({"/", "/queue", "/messages", "/message", "/proxies"})
"""Pages to which somebody comes back."""

FOREIGN = "This form comes from another site, or its address is not the one that the browser shows. Nothing was done.\n"
UNSAFE = "Sign in over TLS (admin_tls) or from this machine: otherwise others could read the password.\n"
GONE = "This cannot be done any more: the queue or the message has changed, or is gone."
NONE_CHOSEN = "No message is chosen: tick the boxes of those that you mean."
SIGNED_OUT = "You are not signed in any more. Nothing was done.\n"

Asked = MultiMapping[str]
"""The fields of a form or of an address."""
Inspect = Callable[[Question], Awaitable[Inspected]]
Show = Callable[[web.Request, str, str], web.Response]
"""Makes a page that does not refresh itself of a title and its content."""


class Acting:
    """The handlers."""

    def __init__(self, sign_ins: SignIns, inspect: Inspect, changed: Callable[[], None], show: Show) -> None:
        """`changed`: a statement has run."""
        self._sign_ins, self._inspect, self._changed, self._show = sign_ins, inspect, changed, show

    def routes(self) -> list[web.RouteDef]:
        """What is served."""
        return [
            web.get("/sign-in", self._ask),
            web.post("/sign-in", self._sign_in),
            web.post("/sign-out", self._sign_out),
            web.get("/act", self._first_step),
            web.post("/act", self._second_step),
        ]

    def signed_in(self, request: web.Request) -> SignedIn | None:
        """The session of a request. A page that refreshes itself does not use it."""
        cookie = request.cookies.get(_cookie_name(request), "")
        return self._sign_ins.of(cookie, used="part" not in request.query) if cookie else None

    def account(self, request: web.Request) -> str:
        """Who has signed in, for the head of each page."""
        session = self.signed_in(request)
        if session is None:
            back = request.path_qs if request.path in BACK else "/"
            return f"<p class=account>{link('/sign-in', {'back': back}, 'Sign in')}</p>"
        return (
            f'<form class=account method="post" action="/sign-out">{hidden(token=session.token)}'
            f"<span>{escape(session.user)}</span><button class=quiet>Sign out</button></form>"
        )

    async def _ask(self, request: web.Request) -> web.Response:
        return self._show(request, "Sign in", _sign_in_form(_back(request.query.get("back", "/"))))

    async def _sign_in(self, request: web.Request) -> web.Response:
        form = await _form(request)
        if not (request.secure or is_loopback(request.remote or "")):
            raise web.HTTPForbidden(text=UNSAFE)
        user, back = form.get("user", "")[:NAME_MAX], _back(form.get("back", "/"))
        if (before := self.signed_in(request)) is not None:
            self._sign_ins.end(before)
        try:
            session = await self._sign_ins.sign_in(user, form.get("password", "")[:PASSWORD_MAX])
        except SignInRefusedError as error:
            return self._show(request, "Sign in", _sign_in_form(back, user, str(error)))
        response = web.Response(status=303, headers={hdrs.LOCATION: back, hdrs.CACHE_CONTROL: "no-store"})
        response.set_cookie(
            _cookie_name(request), session.cookie, httponly=True, samesite="Strict", secure=request.secure, path="/"
        )
        return response

    async def _sign_out(self, request: web.Request) -> web.Response:
        session, _ = await self._own_form(request)
        self._sign_ins.end(session)
        response = web.Response(status=303, headers={hdrs.LOCATION: "/", hdrs.CACHE_CONTROL: "no-store"})
        response.del_cookie(_cookie_name(request), path="/")
        return response

    async def _first_step(self, request: web.Request) -> web.Response:
        session = self.signed_in(request)
        if session is None:
            return self._show(request, "Sign in", _sign_in_form(_place(request.query)))
        return await self._shown(request, session, request.query)

    async def _second_step(self, request: web.Request) -> web.Response:
        session, form = await self._own_form(request)
        statement = await self._statement(form)
        if statement is None or statement.text != form.get("statement"):
            return await self._shown(request, session, form, "It is not what was shown. Nothing was done.")
        outcome = await self._sign_ins.run(session, statement.text)
        self._changed()
        return self._show(request, statement.what, _outcome(form, statement, outcome))

    async def _shown(self, request: web.Request, session: SignedIn, asked: Asked, problem: str = "") -> web.Response:
        statement = await self._statement(asked)
        if statement is None:
            text = NONE_CHOSEN if _is_of_list(asked) and not _ids(asked) else GONE
            return self._show(request, "Nothing to do", f"<h1>Nothing to do</h1><p>{text}</p>{_way_back(asked)}")
        return self._show(request, statement.what, _confirmation(asked, statement, session, problem))

    async def _statement(self, asked: Asked) -> Statement | None:
        """The statement of an action on a queue or a message, as they are now."""
        ids = _ids(asked)
        if _is_of_list(asked) and not ids:
            return None
        inspected = await self._inspect(Question(_table(asked), ids))
        found = statements_of(inspected.details, _delay_s(asked))
        wanted = asked.get("do", "")
        return next((statement for statement in found if wanted and statement.name == wanted), None)

    async def _own_form(self, request: web.Request) -> tuple[SignedIn, Asked]:
        """The session and the form that it has sent. Raises HTTPForbidden."""
        form, session = await _form(request), self.signed_in(request)
        if session is None or not session.is_own_form(form.get("token", "")):
            raise web.HTTPForbidden(text=SIGNED_OUT)
        return session, form


def action_links(statements: Sequence[Statement], table: TableId, message: str | None = None) -> str:
    """Buttons that lead to the first step of each action."""
    place = {"db": table.db, "name": table.name, **({} if message is None else {"id": message})}
    links = "".join(
        f"<li>{link('/act', {**place, 'do': one.name}, _label(one), kind='button')}</li>"
        for one in statements
        if one.name
    )
    return f"<ul class=actions aria-label=Actions>{links}</ul>" if links else ""


def choosing(statements: Sequence[Statement], table: TableId, state: str, boxes: str) -> str:
    """A form around messages in one state with a box each. Its buttons lead to the first step of each action on those
    that are chosen."""
    buttons = "".join(
        f'<li><button name="do" value="{one.name}">{escape(_label(one))}</button></li>'
        for one in statements
        if one.name
    )
    return (
        f'<form class=choosing method="get" action="/act">{hidden(db=table.db, name=table.name, state=state)}'
        "<label class=all><input type=checkbox>All of this page</label>"
        f'<ul class=actions aria-label="Actions on those that are chosen">{buttons}</ul>{boxes}</form>'
    )


def _label(statement: Statement) -> str:
    return f"{statement.what.partition(':')[0]} …"


async def _form(request: web.Request) -> Asked:
    """A form that a page of this proxy has sent. Raises HTTPForbidden, HTTPRequestTimeout and what aiohttp raises."""
    own = f"{request.scheme}://{request.host}"
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if request.headers.get(hdrs.ORIGIN) != own or site != "same-origin":
        raise web.HTTPForbidden(text=FOREIGN)
    if request.content_type != "application/x-www-form-urlencoded":
        raise web.HTTPUnsupportedMediaType
    try:
        async with asyncio.timeout(FORM_S):
            form = await request.post()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    return MultiDict((name, value) for name, value in form.items() if isinstance(value, str))


def _cookie_name(request: web.Request) -> str:
    """Browsers send a cookie to every port of a host, and each port may be another proxy."""
    return f"ackstream-{request.url.port or 0}"


def _back(text: str) -> str:
    """The address of one of our pages; that of the queues in place of any other."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return "/"
    is_own = not (parts.scheme or parts.netloc) and parts.path in BACK and text.isascii() and text.isprintable()
    return urlunsplit(("", "", parts.path, parts.query, "")) if is_own else "/"


def _table(asked: Asked) -> TableId:
    return TableId(asked.get("db", "")[:NAME_MAX], asked.get("name", "")[:NAME_MAX])


def _ids(asked: Asked) -> tuple[str, ...]:
    """The messages that an action is on; empty: it is on the queue."""
    return tuple(id_[:ID_MAX] for id_ in asked.getall("id", [])[:PAGE])


def _is_of_list(asked: Asked) -> bool:
    """Whether the action is on messages that are chosen of a list; without one chosen, it is not on all."""
    return asked.get("state", "") in STATES


def _delay_s(asked: Asked) -> int:
    digits = asked.get("seconds", "")[:12]
    return min(int(digits), DELAY_MAX_S) if digits.isascii() and digits.isdecimal() else DELAY_S


def _place(asked: Asked) -> str:
    """The page that the action stands on: of the queue, of a message, or of messages in one state."""
    table, ids = _table(asked), _ids(asked)
    query = {"db": table.db, "name": table.name}
    if _is_of_list(asked):
        return f"/messages?{urlencode({**query, 'state': asked['state']})}"
    return f"/message?{urlencode({**query, 'id': ids[0]})}" if ids else f"/queue?{urlencode(query)}"


def _way_back(asked: Asked) -> str:
    return f'<p><a href="{escape(_place(asked), quote=True)}">Back</a></p>'


def _sign_in_form(back: str, user: str = "", problem: str = "") -> str:
    refused = f"<p class=late role=alert>{escape(problem)}</p>" if problem else ""
    return (
        "<h1>Sign in</h1><p>With an account of the database. What you do here runs as this account, with its rights"
        f" alone. You are signed out when you are idle for {IDLE_S / 60:.0f} minutes. The password is not kept.</p>"
        f"{refused}"
        f'<form class=tall method="post" action="/sign-in">{hidden(back=back)}'
        f"{field('user', 'Account', user, 'text', 'username')}"
        f"{field('password', 'Password', '', 'password', 'current-password')}<button>Sign in</button></form>"
    )


def _confirmation(asked: Asked, statement: Statement, session: SignedIn, problem: str) -> str:
    table, ids = _table(asked), _ids(asked)
    named = {"db": table.db, "name": table.name, "do": statement.name, "state": asked.get("state", "")}
    place = hidden(**named) + "".join(hidden(id=id_) for id_ in ids)
    delay, seconds = "", {}
    if statement.takes_delay:
        seconds = {"seconds": str(_delay_s(asked))}
        delay = (
            f'<form method="get" action="/act">{place}'
            f"{field('seconds', 'Seconds from now', seconds['seconds'], 'number')}"
            "<button class=quiet>Change</button></form>"
        )
    warning = f"<p class=late role=alert>{escape(problem)}</p>" if problem else ""
    subject = f"{table}, message {ids[0]}" if len(ids) == 1 else str(table)
    own = place + hidden(**seconds, statement=statement.text, token=session.token)
    return (
        f"<h1>{escape(statement.what)}</h1><p>{escape(subject)}</p>{warning}{delay}<pre>{escape(statement.text)};</pre>"
        f'<form method="post" action="/act">{own}<button>Run it as {escape(session.user)}</button>'
        f'<a href="{escape(_place(asked), quote=True)}">Cancel</a></form>'
    )


def _outcome(asked: Asked, statement: Statement, outcome: Outcome) -> str:
    kind = "late" if outcome.is_error else "done"
    return (
        f"<h1>{escape(statement.what)}</h1><pre>{escape(statement.text)};</pre>"
        f"<p class={kind} role=status>{escape(outcome.text)}</p>{_way_back(asked)}"
    )
