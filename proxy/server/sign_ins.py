"""Who has signed in on the pages of the admin port: each with a connection of their own to this proxy.

The connection is the session. It is opened with the account's name and password, as any client's, so the server
decides who may log in and what each may do. The password is kept in no place. A random cookie names the session in
its browser, a second secret stands in each of its forms.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.store.opening import BackendAddress, ConnectionLimits, connect
from engine.store.pymysql_adapter import CR, Connection, MySQLError

log = logging.getLogger(__name__)

SIGNED_IN_MAX = 16
"""Sessions at once, each a connection of this proxy and of the server. Those who act on queues are a few people."""
IDLE_S = 900.0
"""A session that is not used for so long ends: its browser may stand open somewhere. Pages that refresh themselves
do not use it."""
LASTS_S = 8 * 3600.0
"""A session ends after so long in any case: a working day."""
TRIES_AT_ONCE = 2
"""Logins under way."""
TRIES_WAITING_MAX = 8
"""Logins that wait for others; a further one is refused."""
REFUSED_PAUSE_S = 1.0
"""How long a refused login holds its place: passwords are guessed at two a second at most, whatever the server's
own limits are."""
ANSWER_S = 60.0
"""How long a statement may take. A browser waits that long for an answer."""
LOOK_S = 10.0
"""How often idle sessions are looked for."""

PROGRAM = "ackstream page"
"""The program's name of these connections, in SHOW STREAMS and in the server's lists."""

LOST = frozenset({0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST})
"""Errors after which a connection is of no use."""
BUSY = "Too many are signing in: try again in a moment."
FULL = (
    f"{SIGNED_IN_MAX} are signed in, and no more can be. A session that is not used ends after {IDLE_S / 60:.0f} min."
)
UNANSWERED = (
    f"There was no answer within {ANSWER_S:.0f} s, so the statement is stopped and you are signed out. Part of it may"
    " be done: a purge or a redrive keeps what its last batch has done."
)

_T = TypeVar("_T")


class SignInRefusedError(Exception):
    """Why somebody is not signed in."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the server answered to a statement."""

    text: str
    is_error: bool = False


@dataclass(eq=False, slots=True)
class SignedIn:
    """A session."""

    user: str
    connection: Connection = field(repr=False)
    began_s: float
    used_s: float
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """What each form contains."""
    is_busy: bool = False
    """Whether a statement is under way."""

    def is_own_form(self, token: str) -> bool:
        """Whether a form with this token is one of the session's."""
        return hmac.compare_digest(token.encode(), self.token.encode())


class SignIns:
    """The sessions."""

    def __init__(self, address: Callable[[str, str], BackendAddress]) -> None:
        """`address`: of this proxy's own listener, with a user and a password."""
        self._address = address
        self._sessions: dict[str, SignedIn] = {}
        """By cookie."""
        self._tries = asyncio.Semaphore(TRIES_AT_ONCE)
        self._waiting = 0
        self._looking: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(SIGNED_IN_MAX + TRIES_AT_ONCE, thread_name_prefix="page")
        self._closing: set[asyncio.Future[None]] = set()

    def of(self, cookie: str, *, used: bool) -> SignedIn | None:
        """The session that a cookie names. `used`: somebody acts, so its idle time begins anew."""
        self._look()
        session = self._sessions.get(cookie)
        if session is not None and used:
            session.used_s = _now_s()
        return session

    async def sign_in(self, user: str, password: str) -> SignedIn:
        """A new session. Raises SignInRefusedError with the server's error."""
        if self._waiting >= TRIES_WAITING_MAX:
            raise SignInRefusedError(BUSY)
        self._waiting += 1
        try:
            async with self._tries:
                if len(self._sessions) >= SIGNED_IN_MAX:
                    raise SignInRefusedError(FULL)
                session = await self._logged_in(user, password)
        finally:
            self._waiting -= 1
        self._sessions[session.cookie] = session
        if self._looking is None:
            self._look_again()
        log.info("%r has signed in on the page", user, extra={"event": "page.signed_in", "user": user})
        return session

    async def run(self, session: SignedIn, statement: str) -> Outcome:
        """Carry out a statement with the rights of its account."""
        if session.is_busy:
            return Outcome("Your last statement is still under way.", is_error=True)
        session.is_busy = True
        log.info(
            "%r runs on the page: %s",
            session.user,
            statement,
            extra={"event": "page.statement", "user": session.user, "statement": statement},
        )
        try:
            affected = await self._threaded(_affected, session.connection, statement)
        except MySQLError as error:
            code, text = (*error.args, "", "")[:2]
            if code in LOST:
                self.end(session)
                return Outcome(UNANSWERED if "timed out" in str(text) else f"{text} Sign in again.", is_error=True)
            return Outcome(f"({code}) {text}", is_error=True)
        finally:
            session.is_busy = False
            session.used_s = _now_s()
        return Outcome(f"{affected:,} {'row' if affected == 1 else 'rows'} affected.")

    def end(self, session: SignedIn) -> None:
        """End a session and its connection."""
        if self._sessions.pop(session.cookie, None) is not None:
            closing = asyncio.get_running_loop().run_in_executor(self._threads, _close, session.connection)
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            self.end(session)
        if self._looking is not None:
            self._looking.cancel()
        if self._closing:
            await asyncio.wait(self._closing, timeout=1.0)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _logged_in(self, user: str, password: str) -> SignedIn:
        try:
            connection = await self._threaded(_connected, self._address(user, password))
        except (MySQLError, OSError) as error:
            await asyncio.sleep(REFUSED_PAUSE_S)
            code, text = (*error.args, "", "")[:2]
            log.warning("%r is not signed in: %s", user, text, extra={"event": "page.refused", "user": user})
            raise SignInRefusedError(f"({code}) {text}") from None
        return SignedIn(user, connection, _now_s(), _now_s())

    async def _threaded(self, call: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def _look_again(self) -> None:
        self._look()
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look_again) if self._sessions else None

    def _look(self) -> None:
        """End sessions that are idle or old."""
        now_s = _now_s()
        for session in list(self._sessions.values()):
            is_over = now_s > min(session.used_s + IDLE_S, session.began_s + LASTS_S)
            if is_over and not session.is_busy:
                self.end(session)


def _connected(address: BackendAddress) -> Connection:
    """A connection that has logged in. Raises MySQLError."""
    limits = ConnectionLimits(read_s=ANSWER_S)
    connection = connect(address, limits, Connection, program_name=PROGRAM, autocommit=True, client_flag=0)
    connection.password = b""  # PyMySQL keeps it for connecting again, which nobody asks of it.
    return connection


def _affected(connection: Connection, statement: str) -> int:
    """The affected rows of a statement. Raises MySQLError."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return max(0, int(cursor.rowcount))


def _close(connection: Connection) -> None:
    with contextlib.suppress(MySQLError, OSError):
        connection.close()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
