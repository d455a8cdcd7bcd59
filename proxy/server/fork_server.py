"""The fork server: a child process from which the workers are forked.

A fork shares the memory of all imports, and takes milliseconds where a new program takes a second.
But a process must not fork once it has threads or an event loop, as the parent has. So the parent
forks this process before it has either. It does nothing but fork, and report which worker has ended
and how. It ends with the parent, and the workers end with it (PR_SET_PDEATHSIG), however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from proxy.embedded.child_process import LOST_PARENT_STATUS, die_with_parent

FORK, KILL = 1, 2
"""Requests: fork a worker with this number; end the worker with this process id."""
FORKED, ENDED = 1, 2
"""Answers: its process id; its process id and wait status."""
MESSAGE = struct.Struct("<BiI")

Work = Callable[[int, socket.socket, socket.socket], None]
"""The work of a worker: its number, its end of the channel, and the socket on which it gets
clients."""


class ForkServer:
    """The parent's side. To be made before there are threads or an event loop."""

    def __init__(self, work: Work) -> None:
        """`work` runs in each worker, whose process ends with it."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._requests, end = socket.socketpair()
        if os.fork() == 0:
            try:
                self._requests.close()
                _run(end, work, parent)
            except BaseException:  # noqa: BLE001  # The last frame of this process, as without room for another.
                traceback.print_exc()
            finally:
                os._exit(1)
        end.close()
        self._requests.setblocking(False)
        self._forked: asyncio.Future[int] | None = None
        self._on_ended: Callable[[int], None] = lambda _: None
        self._workers: dict[int, Callable[[int], None]] = {}
        """By process id, what is called at its end."""
        self._on_lost: Callable[[], None] = lambda: None

    def start(self, on_lost: Callable[[], None]) -> None:
        """Begin to take its answers on the running event loop. `on_lost`: the fork server has
        ended, and all workers with it."""
        self._on_lost = on_lost
        asyncio.get_running_loop().add_reader(self._requests, self._read)

    async def fork(
        self, number: int, channel: socket.socket, clients: socket.socket, on_ended: Callable[[int], None]
    ) -> int:
        """Fork a worker with these sockets, which are closed here. Returns its process id. One
        call at a time. `on_ended` is called with its wait status."""
        self._forked, self._on_ended = asyncio.get_running_loop().create_future(), on_ended
        with channel, clients:
            socket.send_fds(self._requests, [MESSAGE.pack(FORK, number, 0)], [channel.fileno(), clients.fileno()])
        return await self._forked

    def kill(self, pid: int) -> None:
        """End a worker at once, unless it has ended."""
        with contextlib.suppress(OSError):
            self._requests.send(MESSAGE.pack(KILL, pid, 0))

    def close(self) -> None:
        """End the fork server, and all workers with it."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self._requests)
        self._requests.close()

    def _read(self) -> None:
        try:
            data = self._requests.recv(MESSAGE.size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if len(data) < MESSAGE.size:
            asyncio.get_running_loop().remove_reader(self._requests)
            self._on_lost()
            return
        kind, pid, status = MESSAGE.unpack(data)
        if kind == FORKED:
            assert self._forked is not None
            self._workers[pid] = self._on_ended
            if not self._forked.done():
                self._forked.set_result(pid)
        else:
            self._workers.pop(pid)(status)


def _run(requests: socket.socket, work: Work, parent: int) -> NoReturn:
    """The fork server itself."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(LOST_PARENT_STATUS)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # They reach all processes of a terminal or a service.
    wakeups, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup)
    workers: set[int] = set()
    while True:
        ready, _, _ = select.select([requests.fileno(), wakeups], [], [])
        if wakeups in ready:
            os.read(wakeups, 4096)
            for pid, status in _ended(workers):
                _send(requests, ENDED, pid, status)
        if requests.fileno() not in ready:
            continue
        try:
            data, sockets, *_ = socket.recv_fds(requests, MESSAGE.size, 2)
        except ConnectionResetError:  # The parent has ended, and left a message unread.
            os._exit(0)
        if len(data) < MESSAGE.size:
            os._exit(0)
        kind, value, _ = MESSAGE.unpack(data)
        if kind == KILL:
            if value in workers:  # It is not reaped, so no other process has its id.
                os.kill(value, signal.SIGKILL)
            continue
        pid = os.fork()
        if pid == 0:
            requests.close()
            os.close(wakeups)
            os.close(wakeup)
            _work(work, value, sockets)
        workers.add(pid)
        for descriptor in sockets:
            os.close(descriptor)
        _send(requests, FORKED, pid, 0)


def _send(requests: socket.socket, kind: int, pid: int, status: int) -> None:
    try:
        requests.sendall(MESSAGE.pack(kind, pid, status & 0xFFFFFFFF))
    except OSError:
        os._exit(0)


def _ended(workers: set[int]) -> list[tuple[int, int]]:
    """The workers that have ended, each with its wait status."""
    found = []
    for pid in list(workers):
        reaped, status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            workers.discard(pid)
            found.append((pid, status))
    return found


def _work(work: Work, number: int, sockets: list[int]) -> NoReturn:
    """A worker."""
    status = 1
    try:
        fork_server = os.getppid()
        die_with_parent()
        if os.getppid() != fork_server:
            os._exit(LOST_PARENT_STATUS)
        os.setsid()  # Linux divides the cores among sessions first: a busy worker is then no burden on the others.
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_DFL)
        channel, clients = (socket.socket(fileno=descriptor) for descriptor in sockets)
        work(number, channel, clients)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  # The last frame of this process.
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
