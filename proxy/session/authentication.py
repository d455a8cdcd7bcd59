"""A session's login, and its changes of user where the two connections differ in kind.

The server authenticates the client itself. Bytes of either side go to the relay of `proxy.login`,
whose steps are carried out on the connections.
"""

from __future__ import annotations

from proxy.login.relay import ChangeUserRelay, LoggedIn, LoginRelay, TlsPolicy
from proxy.session.connections import Connections
from proxy.wire.packets import ServerError


class Authentication:
    """The dialogue under way, if there is one: a login first, later changes of user."""

    def __init__(self, connections: Connections, policy: TlsPolicy, *, client_is_local: bool) -> None:
        self._connections = connections
        self.login: LoginRelay | None = LoginRelay(policy, client_is_local=client_is_local)
        """The login under way."""
        self.change_user: ChangeUserRelay | None = None
        """The change of user under way."""
        self.info: LoggedIn | None = None
        """Who logged in; None before that."""

    def client_sent(self, login: LoginRelay, data: bytes) -> None:
        """Bytes from the client during the login. Raises LoginRefused."""
        self._connections.carry_out(login.from_client(data))
        if login.refused:
            self._connections.client.close()

    def server_sent(self, login: LoginRelay, data: bytes) -> bool:
        """Bytes from the server during the login; whether they complete it. Raises LoginRefused."""
        self._connections.carry_out(login.from_server(data))
        if login.refused:
            self._connections.client.close()
        elif login.done is not None:
            self.login, self.info = None, login.done
            return True
        return False

    def begin_change_of_user(self, info: LoggedIn, payload: bytes) -> None:
        """A dialogue follows in which a password may be shown: adapt it to the two connections, as
        the login was."""
        self.change_user = ChangeUserRelay(info)
        self._connections.carry_out(self.change_user.begin(payload))

    def client_continues(self, change_user: ChangeUserRelay, data: bytes) -> None:
        """Bytes from the client during a change of user."""
        self._connections.carry_out(change_user.from_client(data))

    def server_continues(self, change_user: ChangeUserRelay, data: bytes) -> None:
        """Bytes from the server during a change of user."""
        self._connections.carry_out(change_user.from_server(data))
        if change_user.over:
            self.change_user = None

    def refusal(self, error: ServerError) -> bytes | None:
        """The packet that ends the dialogue under way with this error; None if there is no
        dialogue."""
        relay = self.login or self.change_user
        return None if relay is None else relay.refusal(error)
