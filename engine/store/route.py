"""Where the server is that is used now.

With one server, its address never changes. With several, engine.primary changes it, and there may
be none for a while. Each new connection reads the address here.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.store.opening import BackendAddress
from engine.store.port import NoPrimaryError, StoreError

READ_ONLY = frozenset({1047, 1290, 1836, 3032, 3100})
"""Errors of a server that is no primary any more: it is read-only, offline, or has left its cluster
(1047), or a plugin like Group Replication ended the transaction (3100)."""


class Route:
    """The address of the primary. It is replaced as a whole, so it is safe to read on any
    thread."""

    def __init__(self, address: BackendAddress | None, problem: str = "", *, several: bool = False) -> None:
        """`several`: the server is one of several, so the engine must not write to it while it is
        read-only."""
        self.several = several
        self.present = address
        """None: there is none now."""
        self.problem = problem
        """Why there is none, or what is wrong besides."""
        self.in_doubt: Callable[[], None] = lambda: None
        """Called on any thread when an error indicates that another server is the primary now."""

    @property
    def address(self) -> BackendAddress:
        """The address of the primary. Raises NoPrimaryError."""
        if (address := self.present) is None:
            raise NoPrimaryError(self.problem)
        return address

    def check(self) -> None:
        """Raises NoPrimaryError if there is no primary now."""
        if self.present is None:
            raise NoPrimaryError(self.problem)

    def change(self, address: BackendAddress | None, problem: str = "") -> None:
        """Another server is the primary, or none is, for this reason."""
        self.problem = problem
        self.present = address

    def failed(self, error: StoreError) -> None:
        """A statement of the engine failed."""
        if error.code in READ_ONLY or (error.unreachable and not isinstance(error, NoPrimaryError)):
            self.in_doubt()
