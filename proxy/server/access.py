"""Who may read the admin port.

On an address of the loopback interface everybody of this machine may, unless a token is set.
Elsewhere the port is served only with a token and TLS. The probes need no token: load balancers and
orchestrators have none, and the answers contain no data.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ssl

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from proxy.server.parts import listening
from proxy.settings import BadSetting, Settings
from proxy.transport.addresses import beyond_loopback
from proxy.transport.tls import client_context, load_certificate

PROBES = frozenset({"/livez", "/readyz", "/health"})
LOCAL_NAMES = frozenset({"127.0.0.1", "::1", "localhost"})
OTHER_NAME = (
    "Without admin_token_file only this machine may read this, by a name of its own: http://127.0.0.1:9307/."
    " From another machine: ssh -L 9307:127.0.0.1:9307 HOST\n"
)
CHALLENGES = ('Basic realm="ackstream: the token is the password", charset="UTF-8"', 'Bearer realm="ackstream"')
"""Browsers request a user and a password for the first one."""


class Access:
    """What a request to the admin port must show."""

    def __init__(self, token: str, context: ssl.SSLContext | None = None) -> None:
        """`token`: empty if none is required. `context`: for TLS."""
        self._token = token.encode()
        self.context = context

    @classmethod
    async def of(cls, settings: Settings) -> Access:
        """As the settings require. Raises BadSetting."""
        address = await listening("admin", settings.admin, asyncio.to_thread(beyond_loopback, settings.admin.host))
        missing = [] if settings.admin_token else ["admin_token_file (a file with a token of 16 characters or more)"]
        missing += [] if settings.admin_tls else ["admin_tls = true"]
        if address is not None and missing:
            raise BadSetting(
                f"--admin {settings.admin}: other machines can reach {address}: set {' and '.join(missing)},"
                " or listen on 127.0.0.1"
            )
        return cls(settings.admin_token, client_context(settings) if settings.admin_tls else None)

    def reload(self, settings: Settings) -> None:
        """Use a renewed certificate for new connections. Raises BadSetting."""
        if self.context is not None:
            client_context(settings)  # One that cannot be used leaves the present one as it is.
            load_certificate(self.context, settings)

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what lacks the token; without a token, what comes by another name of this machine."""
        if not self._token:
            _check_name(request)
        elif request.path not in PROBES and not self._has_token(request):
            refusal = web.HTTPUnauthorized(text="The token is missing or wrong.\n")
            for challenge in CHALLENGES:
                refusal.headers.add("WWW-Authenticate", challenge)
            raise refusal
        return await handler(request)

    def _has_token(self, request: web.Request) -> bool:
        scheme, _, value = request.headers.get("Authorization", "").partition(" ")
        shown = value.strip().encode()
        if scheme.casefold() == "basic":
            try:
                shown = base64.b64decode(shown, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.casefold() != "bearer":
            return False
        return hmac.compare_digest(shown, self._token)


def _check_name(request: web.Request) -> None:
    """Refuse a request by another name: a site could have its own name lead to this machine, and read
    with the browser of somebody here whatever is open to this machine, metrics and probes included.
    A browser always names the host; probes of load balancers often name none."""
    if hdrs.HOST in request.headers and request.url.host not in LOCAL_NAMES:
        raise web.HTTPForbidden(text=OTHER_NAME)
