"""The servers in the settings, and the one that is used now.

With one server that has one address, nothing is observed: it is used, whatever it does. With
several, or with a name that has several addresses, engine.primary finds the primary. Names are
resolved again every few seconds, because servers behind a name may be replaced.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from engine.primary.election import Decision
from engine.primary.watch import PrimaryWatch
from engine.service import Engine
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress
from engine.store.route import Route
from proxy.backend import Backend
from proxy.server.listener import Proxy
from proxy.settings import BadSetting, Settings
from proxy.transport.addresses import is_loopback

log = logging.getLogger(__name__)

RESOLVE_S = 5.0
"""Between two look-ups of the names. A name server is asked for nothing more often."""


class Backends:
    """The servers in the settings, to be started once the parts that use them are there."""

    def __init__(self, route: Route, shown: str, resolve: Callable[[], Mapping[str, BackendAddress]] | None) -> None:
        """`shown`: the servers, for people. `resolve`: returns all servers by name (None: there is
        one, and it is not observed). It blocks."""
        self.route = route
        self.shown = shown
        self._resolve = resolve
        self._watch: PrimaryWatch | None = None
        self._resolving: asyncio.Task[None] | None = None
        self._changed: Callable[[], None] = lambda: None

    async def find(self, wait_s: float) -> None:
        """Find the primary. Raises BadSetting if there is none within this time."""
        if self._resolve is None:
            return
        loop = asyncio.get_running_loop()
        deadline, waiting = loop.time() + wait_s, False
        self._watch = PrimaryWatch(await asyncio.to_thread(self._resolve), self._decided)
        while (decision := await self._watch.observe()).primary is None:
            if loop.time() >= deadline:
                raise BadSetting(f"--backend {self.shown}: {decision.problem}")
            if not waiting:
                waiting = True
                log.warning(
                    "waiting up to %g s for a primary among %s: %s",
                    wait_s,
                    self.shown,
                    decision.problem,
                    extra={"event": "primary.awaited"},
                )
            await asyncio.sleep(self._watch.limits.interval_s)

    def start(self, changed: Callable[[], None]) -> None:
        """Observe the servers from now on. `changed` is called after each change of the route."""
        if self._watch is None:
            return
        loop, watch = asyncio.get_running_loop(), self._watch

        def in_doubt() -> None:  # It is called on any thread.
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(watch.request)

        self._changed = changed
        self.route.in_doubt = in_doubt
        watch.start()
        self._resolving = loop.create_task(self._keep_resolving(watch), name="resolve")

    async def close(self) -> None:
        """Observe nothing any more."""
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.gather(self._resolving, return_exceptions=True)
        if self._watch is not None:
            await self._watch.close()

    def _decided(self, decision: Decision) -> None:
        assert self._watch is not None
        address = None if decision.primary is None else self._watch.address(decision.primary)
        self.route.change(address, decision.problem)
        self._changed()

    async def _keep_resolving(self, watch: PrimaryWatch) -> None:
        assert self._resolve is not None
        while True:
            await asyncio.sleep(RESOLVE_S)
            watch.set_servers(await asyncio.to_thread(self._resolve))


def backends_of(settings: Settings) -> Backends:
    """The servers in the settings. It blocks while names are looked up."""
    given = {backend.name: (backend, _address_of(backend, settings)) for backend in settings.backend}
    shown = ",".join(given)
    known: dict[str, Sequence[str]] = {}

    def resolve() -> Mapping[str, BackendAddress]:
        found: dict[str, BackendAddress] = {}
        for name, (backend, address) in given.items():
            ips = _ips(backend) or known.get(name, ())
            known[name] = ips
            if len(ips) > 1:
                found.update({f"{name}/{ip}": _at(address, ip) for ip in ips})
            else:
                found[name] = address
        return found

    if len(given) == 1 and len(resolve()) == 1:
        ((_, address),) = given.values()
        return Backends(Route(address), shown, None)
    return Backends(Route(None, "no server was tried yet", several=True), shown, resolve)


def _address_of(backend: Backend, settings: Settings) -> BackendAddress:
    tls = {"mirror": None, "always": True, "never": False}[settings.backend_tls]
    ca = None if settings.backend_ca is None else str(settings.backend_ca)
    return BackendAddress(backend.host, backend.port, backend.user, settings.password_of(backend), tls=tls, ca=ca)


def _at(address: BackendAddress, ip: str) -> BackendAddress:
    return BackendAddress(
        address.host, address.port, address.user, address.password, tls=address.tls, ca=address.ca, ip=ip
    )


def _ips(backend: Backend) -> list[str]:
    """The addresses of a server's name, sorted; none if it has none now, or if they are this
    machine's."""
    try:
        found = socket.getaddrinfo(backend.host, backend.port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    ips = sorted({str(entry[4][0]) for entry in found})
    return [] if all(map(is_loopback, ips)) else ips


class Switch:
    """Brings the parts of one process from one primary to the next."""

    def __init__(self, route: Route, store: MySQLStore, engine: Engine, proxy: Proxy) -> None:
        self._route, self._store, self._engine, self._proxy = route, store, engine, proxy
        self._used = route.present

    def follow(self) -> bool:
        """The route may have changed. Returns whether another server is the primary.

        Without a primary, calls of the engine fail, and new clients get an error. Sessions stay with
        the last primary, which refuses their writes, until there is another one: it may be the
        primary again.
        """
        if (address := self._route.present) is None:
            return False
        if address == self._used:
            self._engine.server_returned()
            return False
        self._used = address
        # The sessions first: no message of theirs may be released while they can acknowledge it.
        self._proxy.server_changed(address)
        self._store.server_changed()
        self._engine.server_changed()
        return True
