"""Several proxies on one port (`--processes N`): their supervisor, which has no part in their work.

Each is a whole proxy, as a second `ackstream serve` with `reuse_port` would be: the kernel gives it a
part of the clients, and it has its own engine, reader of the binary log, admin port and slot. When
one ends or hangs, another one takes its place; the others go on.

A fork shares the memory of all imports, and takes a tenth of a second where a new program takes one.
So the supervisor has no event loop; its only thread waits for the private server's end, if there is
one. The kernel ends all proxies with it (PR_SET_PDEATHSIG). A proxy shows through a pipe that its
event loop turns: an answer of its admin port would depend on who else asks there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from proxy.embedded.child_process import LOST_PARENT_STATUS, die_with_parent
from proxy.settings import Endpoint, Settings

log = logging.getLogger(__name__)

BEAT_S = 1.0
"""How often a proxy shows that its event loop turns."""
HUNG_S = 10.0
"""A proxy that has not shown it for so long is killed: the longest known stalls of the event loop are
under two seconds. Clients that the kernel gives it meanwhile wait, and lose their connections then."""
STOPS = (signal.SIGTERM, signal.SIGINT)
KILL_AFTER_S = 1.0
"""A proxy that has not ended so long after the time of its drain is killed."""
AGAIN_S = 1.0
"""The pause before a proxy is started again. A start takes a tenth of a second of processor time, and a
few queries for each queue."""
TICK_S = 0.1
"""How often the supervisor looks for signals, and for who has ended or hangs."""


class Report:
    """What a proxy shows its supervisor."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe

    def beat(self) -> None:
        """Show from now on that the running event loop turns."""
        self._write(b"\n")
        asyncio.get_running_loop().call_later(BEAT_S, self.beat)

    def ready(self, listen: str, admin: str, backend: str) -> None:
        """Clients can connect at these addresses."""
        self._write(f"{listen} {admin} {backend}\n".encode())

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(BlockingIOError):  # The supervisor is stopped.
            os.write(self._pipe, line)


Serve = Callable[[Settings, Report], int]
"""The main function of a proxy: it returns the exit status."""
Announce = Callable[[str, str, str], None]
"""Takes where clients can connect, the admin port, and the server."""


@dataclass(eq=False, slots=True)
class Process:
    """The place of one proxy, and the process that has it now."""

    number: int
    """From 0 on."""
    pid: int = 0
    """0: none runs."""
    pipe: int = -1
    heard_s: float = 0.0
    """When it last showed that it lives."""
    start_s: float = 0.0
    """When the next one starts, while none runs."""
    addresses: list[str] = field(default_factory=list)
    """Where it listens, its admin port and its server, once it is ready."""
    fault: str = ""
    """Why it is killed, behind a colon."""


class Supervisor:
    """Keeps all proxies running until a signal comes."""

    def __init__(self, settings: Settings, serve: Serve, announce: Announce) -> None:
        """`announce` is called once, when all are ready, with all admin ports."""
        self._settings, self._serve, self._announce = settings, serve, announce
        self._pid = os.getpid()
        self._processes = [Process(at, start_s=at and math.inf) for at in range(settings.processes)]
        self._was_ready, self._status = False, 0
        self._signals: set[int] = set()
        """Those that have come, and are not obeyed yet."""
        self._deadline_s: float | None = None
        """When those that drain are killed; None: no signal has come."""

    def run(self) -> int:
        """Start all proxies, the first one before the others, because it shows whether the settings
        are good. Returns the exit status when all have ended."""
        for number in (*STOPS, *((signal.SIGHUP,) if self._settings.tls_certificate is not None else ())):
            signal.signal(number, lambda number, _: self._signals.add(number))
        while self._deadline_s is None or any(process.pid for process in self._processes):
            while self._signals:
                self._stop() if self._signals.pop() in STOPS else self._send(signal.SIGHUP)
            running = {process.pipe: process for process in self._processes if process.pid}
            for pipe in select.select(list(running), [], [], TICK_S)[0]:
                self._read(running[pipe])
            for process in self._processes:  # Behind the reading: the supervisor itself may have stood still.
                self._care_for(process)
        return self._status

    def _stop(self) -> None:
        if self._deadline_s is None:
            drain_s = self._settings.drain_work_s + self._settings.drain_timeout_s
            self._deadline_s = time.monotonic() + drain_s + KILL_AFTER_S
            self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.pid:  # It is not reaped, so no other process has its id.
                os.kill(process.pid, number)

    def _care_for(self, process: Process) -> None:
        now_s = time.monotonic()
        if process.pid:
            reaped, status = os.waitpid(process.pid, os.WNOHANG)
            if reaped:
                self._ended(process, os.waitstatus_to_exitcode(status))
            elif now_s > min(process.heard_s + HUNG_S, self._deadline_s or math.inf):
                process.fault = ": it did not drain in time" if self._deadline_s else f": it hung for {HUNG_S:g} s"
                os.kill(process.pid, signal.SIGKILL)
        elif self._deadline_s is None and now_s >= process.start_s:
            self._start(process)

    def _start(self, process: Process) -> None:
        process.fault, process.heard_s = "", time.monotonic()
        pipes: tuple[int, ...] = ()
        try:
            pipes = os.pipe()
            pid = os.fork()
        except OSError as error:  # No room for another process, or no file descriptor.
            for pipe in pipes:
                os.close(pipe)
            self._log_end(process, f"could not be started ({error.strerror})")
            return
        if pid == 0:
            os.close(pipes[0])
            self._become(process, pipes[1])
        os.close(pipes[1])
        process.pid, process.pipe = pid, pipes[0]

    def _become(self, process: Process, pipe: int) -> NoReturn:
        """Be the proxy, in the process that was forked for it."""
        status = 1
        try:
            die_with_parent()
            if os.getppid() != self._pid:
                os._exit(LOST_PARENT_STATUS)
            os.setsid()  # Linux divides the cores among sessions first. And Ctrl-C reaches the supervisor alone.
            for number in (*STOPS, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for other in self._processes:
                if other.pid:
                    os.close(other.pipe)
            status = self._serve(self._settings_of(process), Report(pipe))
        except BaseException:  # noqa: BLE001  # The last frame of this process.
            traceback.print_exc()
        finally:
            os._exit(status)

    def _settings_of(self, process: Process) -> Settings:
        """Each has an admin port of its own, and keeps it. All listen where the first one did."""
        admin, listen = self._settings.admin, self._settings.listen
        admin = admin.at(admin.port and admin.port + process.number)
        if addresses := self._processes[0].addresses:
            listen = listen.at(Endpoint(addresses[0]).port)
        if process.addresses:
            admin = admin.at(Endpoint(process.addresses[1]).port)
        return self._settings.model_copy(update={"admin": admin, "listen": listen})

    def _read(self, process: Process) -> None:
        """Take what a proxy shows. The lines are far shorter than what a pipe passes on as a whole."""
        process.heard_s = time.monotonic()
        for line in filter(None, os.read(process.pipe, 65536).decode().splitlines()):
            process.addresses = line.split(" ")
            if self._was_ready:
                continue
            for other in self._processes:
                other.start_s = min(other.start_s, process.heard_s)
            if all(other.addresses for other in self._processes):
                self._was_ready = True
                listen, _, backend = self._processes[0].addresses
                self._announce(listen, ",".join(other.addresses[1] for other in self._processes), backend)

    def _ended(self, process: Process, status: int) -> None:
        os.close(process.pipe)
        pid, process.pid = process.pid, 0
        if not self._was_ready and self._deadline_s is None:
            self._status = max(status, 1)
            self._stop()
        how = f"status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
        self._log_end(process, f"(pid {pid}) has ended ({how}{process.fault})")

    def _log_end(self, process: Process, what: str) -> None:
        """One line in the log; another process starts after a pause."""
        process.start_s = time.monotonic() + AGAIN_S
        follows = "" if self._deadline_s is not None else f"; another one starts in {AGAIN_S:g} s"
        if follows or process.fault:
            log.warning("process %d %s%s", process.number, what, follows, extra={"event": "process.failed"})
        else:
            log.info("process %d %s", process.number, what, extra={"event": "process.ended"})
