"""A network of the run's own, in which there is nothing but the loopback.

Some suites dial addresses that they take for unreachable, or for their authors' own hosts. Here they reach nobody.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import sys
from collections.abc import Sequence

SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
IFF_UP = 0x1
INTERFACE_FLAGS = struct.Struct("16sh14x")


def is_alone() -> bool:
    """Whether this process has a network of its own."""
    return {name for _, name in socket.if_nameindex()} == {"lo"}


def start_alone(argv: Sequence[str]) -> None:
    """Turn into this program of Python's, with a network of its own. Returns only where that cannot be."""
    unshare = shutil.which("unshare")
    if unshare is not None:
        as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        os.execv(unshare, [unshare, "--net", *as_root, sys.executable, *argv])


def bring_loopback_up() -> None:
    """A new network's loopback is there, and down."""
    with socket.socket() as any_socket:
        asked = INTERFACE_FLAGS.pack(b"lo", 0)
        name, flags = INTERFACE_FLAGS.unpack(fcntl.ioctl(any_socket, SIOCGIFFLAGS, asked))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, INTERFACE_FLAGS.pack(name, flags | IFF_UP))
