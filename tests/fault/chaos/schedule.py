"""The faults of a run: a pure function of its seed. A schedule is printed, replayed, and cut down.

A fault begins, lasts, and ends. Several may be under way; those that stop the whole server do not
overlap, because a run in which nothing works shows nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """`proxy` is -1 where it concerns none in particular. Times in seconds since the start of the workload."""

    number: int
    at_s: float
    what: str
    lasts_s: float
    proxy: int = -1
    values: Mapping[str, Any] = field(default_factory=dict)

    def as_values(self) -> dict[str, Any]:
        return {**asdict(self), "values": dict(self.values)}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Fault:
        return cls(**values)

    def __str__(self) -> str:
        of = f" of proxy {self.proxy}" if self.proxy >= 0 else ""
        more = " ".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.number:4d}  {self.at_s:7.1f} s  {self.what}{of} for {self.lasts_s:.1f} s  {more}".rstrip()


WEIGHTS = {
    "kill_proxy": 3,
    "stop_proxy": 3,
    "freeze_proxy": 1,  # for longer than its locks live
    "kill_client": 2,
    "stop_client": 2,
    "cut_clients": 4,
    "stall_clients": 3,
    "delay_clients": 2,
    "throttle_clients": 2,
    "split_clients": 2,
    "cut_server": 4,
    "stall_server": 2,
    "delay_server": 2,
    "throttle_server": 1,
    "split_server": 1,
    "refuse_server": 2,
    "kill_server": 1,
    "restart_server": 1,
    "stop_server": 2,
    "read_only": 2,
    "offline_mode": 1,
    "max_connections": 2,
    "lock_rows": 3,
    "lock_table": 2,
    "deadlocks": 2,
    "old_view": 2,
    "kill_reader": 2,
    "kill_connections": 3,
    "purge_binlog": 1,
    "table_full": 2,
    "server_clock": 1,
    "proxy_clock": 2,
}
"""Which faults there are, and how often each is drawn."""

FAIL_OVER = Fault(0, 6.0, "fail_over", 4.0)
"""Not drawn: it needs a replica."""

OF_A_PROXY = {
    "kill_proxy", "stop_proxy", "freeze_proxy", "cut_clients", "stall_clients", "delay_clients", "throttle_clients",
    "split_clients", "cut_server", "stall_server", "delay_server", "throttle_server", "split_server", "refuse_server",
    "kill_reader",
}  # fmt: skip
OF_THE_SERVER = {
    "kill_server", "restart_server", "stop_server", "read_only", "offline_mode", "max_connections", "table_full",
    "server_clock", "purge_binlog",
}  # fmt: skip
PROCESS = {"kill_proxy", "stop_proxy", "freeze_proxy"}
TO_START_S = 3.0
"""A process that was killed needs so long until it works again."""

LASTS_S = {
    "freeze_proxy": (16, 20),
    "kill_proxy": (0, 4),
    "stop_proxy": (0.2, 6),
    "stop_server": (0.2, 4),
    "kill_server": (0, 3),
    "restart_server": (0, 2),
    "kill_client": (0, 3),
    "cut_clients": (0, 0),
    "cut_server": (0, 0),
    "kill_reader": (0, 0),
    "kill_connections": (0, 0),
    "purge_binlog": (0, 0),
    "server_clock": (0, 0),
}
"""All others last half a second to eight."""
USUAL_S = (0.5, 8.0)
SETTLED = 0.97
"""No fault lasts beyond this part of the run."""
TABLES = (
    "bulk", "plain", "vitess", "limited", "urgent", "locked", "kept", "rescheduled",
    "grouped", "strict", "mailing", "batched",
)  # fmt: skip


def schedule(
    seed: int,
    *,
    seconds: float,
    proxies: int,
    per_minute: float,
    kinds: Collection[str] = (),
    without: Collection[str] = (),
) -> tuple[Fault, ...]:
    """The faults of a run, in the order of their beginnings. `kinds`: only these."""
    draw = random.Random(f"faults/{seed}")
    names = [name for name in WEIGHTS if (not kinds or name in kinds) and name not in without]
    if not names:
        return ()
    weights = [WEIGHTS[name] for name in names]
    faults: list[Fault] = []
    at_s = 2.0
    busy_until_s: dict[object, float] = {}
    while (at_s := at_s + draw.expovariate(per_minute / 60)) < seconds * SETTLED:
        what = draw.choices(names, weights)[0]
        lasts_s = min(round(draw.uniform(*LASTS_S.get(what, USUAL_S)), 2), round(seconds * SETTLED - at_s, 2))
        proxy = draw.randrange(proxies) if what in OF_A_PROXY or what == "proxy_clock" else -1
        values = _values(what, draw)
        target = target_of(what, proxy)
        if at_s < busy_until_s.get(target, 0.0):
            continue
        busy_until_s[target] = at_s + lasts_s + (TO_START_S if what in PROCESS | OF_THE_SERVER else 0)
        faults.append(Fault(len(faults), round(at_s, 2), what, lasts_s, proxy, values))
    return tuple(faults)


def target_of(what: str, proxy: int) -> object:
    """What can have one fault at a time."""
    if what in OF_THE_SERVER:
        return "server"
    if what in PROCESS:
        return proxy
    return proxy, what.rpartition("_")[2] if what in OF_A_PROXY else what


def _values(what: str, draw: random.Random) -> dict[str, Any]:
    leg = what.rpartition("_")[0]
    if leg == "cut":
        return {"part": draw.choice((0.1, 0.5, 1.0)), "seed": draw.randrange(1 << 30)}
    if leg == "stall":
        return draw.choice(({"up": True, "down": False}, {"up": False, "down": True}, {"up": True, "down": True}))
    if leg == "delay":
        return {"seconds": draw.choice((0.005, 0.05, 0.3))}
    if leg == "throttle":
        return {"bytes": draw.choice((5_000, 50_000))}
    if what in {"lock_rows", "lock_table", "deadlocks"}:
        return {"table": draw.choice(TABLES), "seed": draw.randrange(1 << 30)}
    if what in {"kill_client", "stop_client", "kill_connections"}:
        return {"seed": draw.randrange(1 << 30)}
    if (
        what == "server_clock"
    ):  # Far back, nothing would be due for as long; far ahead, MariaDB ends itself ("Long wait (601 seconds)").
        return {"shift_s": draw.choice((-2.0, 1.0, 7.0, 60.0))}
    if what == "proxy_clock":
        return {"shift_s": draw.choice((-600.0, -5.0, 1.0, 7.0, 3600.0))}
    return {}


def shrunk(faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool], runs: int) -> Sequence[Fault]:
    """Fewer faults with which a run still fails, as far as so many runs show: parts of the schedule are left out.

    A run need not fail each time, so the result is a schedule that has failed, not the smallest one.
    """
    parts = 2
    while runs > 0 and len(faults) > 1:
        size = max(1, len(faults) // parts)
        for at in range(0, len(faults), size):
            fewer = [*faults[:at], *faults[at + size :]]
            runs -= 1
            if fails(fewer):
                faults, parts = fewer, max(2, parts - 1)
                break
            if runs <= 0:
                return faults
        else:
            if size == 1:
                return faults
            parts = min(2 * parts, len(faults))
    return faults


def without(faults: Sequence[Fault], numbers: Collection[int]) -> tuple[Fault, ...]:
    """The schedule with some faults left out; the others keep their numbers and times."""
    return tuple(fault for fault in faults if fault.number not in numbers)
