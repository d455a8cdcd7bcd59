"""The checker: what a history shows of each promise. A pure function of the history's events.

It reads the history twice. The first pass keeps what concerns many messages (connections, operations,
transactions, faults) and sorts what concerns single messages into buckets on disk, by queue and
token. The second pass checks one bucket after another, so memory does not grow with the number of
messages, only with that of operations.

What is certain and what is not: an operation whose answer was lost *may* have happened, from its
beginning on. An ACK of several messages that affected some of them *may* have affected each. Such
operations excuse a finding and never cause one.

When a delivery begins: at its claim. A row may arrive late, after the ACK of another holder, so the
time of its arrival proves nothing. Its epoch does: only a claim raises it, and a claim cannot come
after the ACK that has left the row with a smaller epoch. The row itself shows the end of its lease
by the server's clock (`time_next`), which is compared with the latest that this clock can have
been when the next delivery arrived.
"""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

from tests.fault.chaos.history import Event, pack, unpack
from tests.fault.chaos.plans import CAPACITIES, TOKENS_OF_A_PROCESS, Limit, Plan

S = 1_000_000
MARGIN_US = 5 * S
"""Nothing may wait longer than its wait and this, once the last fault is over."""
SAMPLE_US = 600_000
"""On a quiet machine, the next sample of all queues begins after less. More does not count, for no rule may depend on
how busy the machine is."""
CLOSE_US = 12 * S
"""A client may notice so late that the proxy has ended its stream: it may have been stopped meanwhile."""
BUSY_US = 60 * S
"""The same for a client whose stream a fault may have ended: it does not read while it holds messages, and waits for
the answers to ACKs of its other connection."""
AFTERMATH_US = 20 * S
"""So long after a fault its effects on the order may show."""
VISIBLE_US = S
"""The order holds among messages committed a tenth of a second before a claim; a busy machine is given more."""
HELD_US = 15 * S
"""No lease is longer."""
MEMORY_MAX = 250 << 20
"""A proxy has 130 MB after a quarter of an hour."""
BUCKET_BITS = 16
BUFFERED = 200
NEVER = 1 << 62

Certainty = Literal["yes", "no", "maybe"]

FREEING = {
    "kill_proxy": 5 * S,
    "freeze_proxy": 20 * S,
    "cut_server": 5 * S,
    "refuse_server": 5 * S,
    "kill_server": 5 * S,
    "restart_server": 5 * S,
    "fail_over": 5 * S,
}
"""After these the others may take a proxy for gone, and give on what it has in flight; for so long after their end.

A proxy that is stopped, or cut off from its server, for less than the life of its lock keeps what it has, unless
KILL ends the connection with its lock meanwhile.
"""
HINDERING = {
    "stop_proxy", "freeze_proxy", "stop_server", "max_connections",
    "refuse_server", "stall_server", "delay_server", "throttle_server", "split_server",
}  # fmt: skip
"""While one of these lasts, a proxy may not get its lock back in time."""
RETAKEN_US = 2 * S
"""So long after the end of its connection the others may wait for its lock."""


class Violation(NamedTuple):
    """A promise that was not kept. `token` is -1 where no single message shows it."""

    rule: str
    queue: str
    token: int
    text: str

    def __str__(self) -> str:
        message = f" message {self.token}" if self.token >= 0 else ""
        return f"{self.rule}: {self.queue}{message}: {self.text}"


@dataclass(slots=True)
class Operation:
    """A statement of a client. `end` is NEVER without an answer."""

    what: str
    queue: str
    conn: str
    tx: str | int
    begin: int
    count: int
    epoch: int | None
    values: dict[str, Any]
    end: int = NEVER
    outcome: str = "unknown"
    affected: int = 0


@dataclass(slots=True)
class Transaction:
    """How a transaction of a client ended."""

    begin: int = NEVER
    end: int = NEVER
    ended: Certainty = "no"
    """Whether it was committed: only if COMMIT was sent."""
    over: int = NEVER
    """When the client began to end it, in whichever way."""


@dataclass(slots=True)
class Connection:
    """A client's connection."""

    proxy: int
    process: int
    opened: int
    relayed: bool = False
    closed: int = NEVER
    last_lock: int = 0
    """When the last STREAM of its began that has locked rows."""
    last_claim_us: float = 0.0
    """The latest time, by the server's clock, at which a row that came over it was claimed at the earliest."""
    why: str = ""

    @property
    def by_choice(self) -> bool:
        """Whether its client has ended it when it wrote that down."""
        return self.why in {"finished", "vanishes", "dies in its transaction"}


class Effect(NamedTuple):
    """Whether an operation took effect, and between which times."""

    certain: Certainty
    begin: int
    end: int


class Fault(NamedTuple):
    """When a fault was there."""

    what: str
    proxy: int
    begin: int
    end: int


class Delivery(NamedTuple):
    """A row that a client received."""

    at: int
    conn: str
    op: str
    epoch: int
    until: int
    locking: bool


@dataclass(slots=True)
class Life:
    """All that concerns one message."""

    inserts: list[Operation] = field(default_factory=list)
    acks: list[Operation] = field(default_factory=list)
    changes: list[Operation] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    rows: list[tuple[str, int]] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The outcome of a check."""

    violations: list[Violation] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)

    def add(self, violations: Iterable[Violation]) -> None:
        for violation in violations:
            self.figures[f"violations: {violation.rule}"] += 1
            if len(self.violations) < 1000:
                self.violations.append(violation)


class First(NamedTuple):
    """The first delivery of a message of a queue in order: times of the monotonic clock."""

    claimed: int
    token: int
    committed: int


class Turn(NamedTuple):
    """A message of a group in strict order: its deliveries, the first one first, and when it may have been over at the
    earliest."""

    token: int
    arrivals: tuple[tuple[int, str], ...]
    """When it came, and by which STREAM."""
    over: int
    committed: bool
    """Whether it was committed for certain."""

    @property
    def delivered(self) -> int:
        """When it was claimed at the latest."""
        return self.arrivals[0][0] if self.arrivals else NEVER

    def is_of_run(self, before: Turn) -> bool:
        """Whether the STREAM that this message came by first had brought an earlier one."""
        return bool(self.arrivals) and any(
            at <= self.delivered and op == self.arrivals[0][1] for at, op in before.arrivals
        )


@dataclass(slots=True)
class Batch:
    """Messages of one transaction: one of them follows the others, from the same INSERT or in another queue."""

    queue: str
    follow_up: int
    delivered: int = NEVER
    """When the follow-up came first."""
    open_until: int = 0
    """When the last part may have been over at the earliest."""


@dataclass(slots=True)
class Collected:
    """What single messages contribute to the rules about many."""

    acked: Counter[str] = field(default_factory=Counter)
    held: dict[Limit, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    firsts: dict[str, list[First]] = field(default_factory=lambda: defaultdict(list))
    claims: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """Of a queue with a rate, by queue and group: when messages were claimed first."""
    turns: dict[tuple[str, int, int], list[Turn]] = field(default_factory=lambda: defaultdict(list))
    """By queue, group and process."""
    batches: dict[int, Batch] = field(default_factory=dict)
    """By the message that follows."""

    def add(self, facts: Facts, queue: str, token: int, life: Life) -> None:
        plan = facts.plans[queue]
        self.acked[queue] += any(state == "acked" for state, _ in life.rows)
        for limit in plan.limits(token):
            self.held[limit] += certainly_held(facts, queue, life)
        if plan.ordered:
            self.firsts[queue] += first_claim(facts, queue, token, life)
        if plan.rate:
            self.claims[queue, token % (plan.groups or 1)] += [
                found.claimed for found in first_claim(facts, queue, token, life)
            ]
        if plan.strict and life.inserts:
            committed = facts.effect(life.inserts[0]).certain == "yes"
            arrivals = tuple(sorted((delivery.at, delivery.op) for delivery in life.deliveries))
            turn = Turn(token, arrivals, earliest_end(facts, queue, life), committed)
            self.turns[queue, token % plan.groups, token // TOKENS_OF_A_PROCESS].append(turn)
        for insert in life.inserts[:1] if plan.batches else ():
            if "follow_up" in insert.values:
                values = insert.values
                batch = self.batches.setdefault(values["follow_up"], Batch(queue, values["follow_up"]))
                if token == batch.follow_up:
                    batch.queue, batch.delivered = queue, _first_arrival(life)
                else:
                    batch.open_until = max(batch.open_until, earliest_end(facts, queue, life))


class Facts:
    """What the first pass keeps."""

    def __init__(self) -> None:
        self.plans: dict[str, Plan] = {}
        self.operations: dict[str, Operation] = {}
        self.transactions: dict[str, Transaction] = defaultdict(Transaction)
        self.connections: dict[str, Connection] = {}
        self.faults: list[Fault] = []
        self.clears: dict[str, list[Operation]] = defaultdict(list)
        self.redrives: dict[str, list[Operation]] = defaultdict(list)
        self.resizes: dict[str, list[Operation]] = defaultdict(list)
        self.healed = NEVER
        self.samples: list[tuple[int, dict[str, Any]]] = []
        self.arrivals: dict[str, list[int]] = defaultdict(list)
        """Per queue, when something was delivered, once all faults were over."""
        self.locked: dict[str, list[tuple[int, int, str, str]]] = defaultdict(list)
        self.waiting_acks: dict[str, list[Operation]] = defaultdict(list)
        """ACKs outside transactions that lasted longer than a sample: they wait for a lock, and have locked other
        messages meanwhile."""
        """Per queue: when FOR UPDATE delivered messages, how many, and the transaction and the connection."""
        self.memory: Counter[int] = Counter()
        self.alarms: list[str] = []
        self.former_written = False
        self._wall_us = 0
        self._open_faults: dict[int, Fault] = {}
        self._shifts: list[tuple[int, int]] = [(0, 0)]
        """When the server's clock was set, and the greatest of all shifts until then."""

    # The first pass.

    def note(self, event: Event) -> None:
        """Take what concerns many messages."""
        handle = getattr(self, f"_note_{event.kind}", None)
        if handle is not None:
            handle(event.at, event.values)

    def _note_plan(self, at: int, values: dict[str, Any]) -> None:
        self.plans = {plan["name"]: Plan.of(plan) for plan in values["plans"]}

    def _note_clock(self, at: int, values: dict[str, Any]) -> None:
        self._wall_us = values["wall_us"] - at

    def _note_open(self, at: int, values: dict[str, Any]) -> None:
        self.connections[values["conn"]] = Connection(values["proxy"], values["process"], at, values["relayed"])

    def _note_close(self, at: int, values: dict[str, Any]) -> None:
        connection = self.connections[values["conn"]]
        connection.closed, connection.why = at, values["why"]

    def _note_gone(self, at: int, values: dict[str, Any]) -> None:
        for connection in self.connections.values():
            if connection.process == values["process"] and connection.closed == NEVER:
                connection.closed, connection.why = at, "its process was killed"

    def _note_begin(self, at: int, values: dict[str, Any]) -> None:
        what, tx = values["what"], values.get("tx", 0)
        count = sum(1 for _ in unpack(values["tokens"]))
        kept = {name: value for name, value in values.items() if name != "tokens"}  # They are most of it.
        operation = Operation(what, values["queue"], values["conn"], tx, at, count, values.get("epoch"), kept)
        self.operations[values["op"]] = operation
        if what == "clear":
            self.clears[operation.queue].append(operation)
        elif what == "redrive":
            self.redrives[operation.queue].append(operation)
        elif what == "resize":
            self.resizes[values["semaphore"]].append(operation)
        elif what in {"commit", "rollback"}:
            transaction = self.transactions[str(tx)]
            transaction.over = at
            if what == "commit":
                transaction.begin, transaction.ended = at, "maybe"

    def _note_done(self, at: int, values: dict[str, Any]) -> None:
        operation = self.operations[values["op"]]
        operation.end, operation.outcome, operation.affected = at, values["outcome"], values["affected"]
        if operation.what == "ack" and not operation.tx and at - operation.begin > SAMPLE_US:
            self.waiting_acks[operation.queue].append(operation)
        if operation.what == "commit" and operation.outcome == "ok":
            transaction = self.transactions[str(operation.tx)]
            transaction.end, transaction.ended = at, "yes"

    def _note_got(self, at: int, values: dict[str, Any]) -> None:
        connection, queue = self.connections[values["conn"]], values["queue"]
        if values["locking"]:
            operation = self.operations[values["op"]]
            connection.last_lock = operation.begin
            count = sum(1 for _, _, tokens in values["rows"] for _ in unpack(tokens))
            self.locked[queue].append((at, count, str(operation.tx), values["conn"]))
        else:
            claims = (earliest_claim_us(self.plans[queue], epoch, until) for epoch, until, _ in values["rows"])
            connection.last_claim_us = max(connection.last_claim_us, *claims)
        if at >= self.healed:
            self.arrivals[queue].append(at)

    def _note_fault(self, at: int, values: dict[str, Any]) -> None:
        number, phase = values["number"], values["phase"]
        if phase == "begin":
            self._open_faults[number] = Fault(values["what"], values["proxy"], at, NEVER)
        elif phase == "begun":
            if values["shift_us"] > self._shifts[-1][1]:
                self._shifts.append((self._open_faults[number].begin, values["shift_us"]))
        else:
            self.faults.append(self._open_faults.pop(number)._replace(end=at))

    def _note_phase(self, at: int, values: dict[str, Any]) -> None:
        if values["name"] == "healed":
            self.healed = at

    def _note_sample(self, at: int, values: dict[str, Any]) -> None:
        if values["what"] == "memory":
            self.memory[values["proxy"]] = max(self.memory[values["proxy"]], values["bytes"])
        else:
            self.samples.append((at, values))

    def _note_former(self, at: int, values: dict[str, Any]) -> None:
        self.former_written = values["written"]

    def _note_alarm(self, at: int, values: dict[str, Any]) -> None:
        self.alarms.append(values["text"])

    # Questions of the second pass.

    def latest_server_us(self, at: int) -> int:
        """The latest that the server's clock can have shown at this time."""
        place = bisect_right(self._shifts, (at, NEVER)) - 1
        return at + self._wall_us + self._shifts[place][1]

    def earliest_us(self, server_us: int) -> int:
        """When the server's clock can have shown this time at the earliest."""
        return min(max(begin, server_us - self._wall_us - shift) for begin, shift in self._shifts)

    def redriven(self, queue: str, until: int) -> int:
        """How often a dead message of the queue may have come back before this time, as a new one with epoch 0."""
        return sum(redrive.begin <= until and _some(redrive) for redrive in self.redrives[queue])

    def effect(self, operation: Operation) -> Effect:
        """Whether it took effect."""
        if operation.outcome == "error":
            return Effect("no", operation.begin, operation.end)
        if operation.tx:
            transaction = self.transactions[str(operation.tx)]
            return Effect(transaction.ended, transaction.begin, transaction.end)
        certain: Certainty = "yes" if operation.outcome == "ok" else "maybe"
        return Effect(certain, operation.begin, operation.end)

    def allowed(self, limit: Limit, at: int) -> int:
        """How many messages may hold this limit at this time: the most that it has allowed since the first of them
        can have been claimed."""
        if limit.name not in self.resizes:
            return limit.most
        return max(
            capacity for capacity, begin, end in self._capacities(limit.name) if begin <= at and end >= at - HELD_US
        )

    def _capacities(self, semaphore: str) -> Iterator[tuple[int, int, int]]:
        """The capacities that the semaphore may have had, each with its earliest begin and its latest end."""
        resizes = [(resize.values["capacity"], self.effect(resize)) for resize in self.resizes[semaphore]]
        found = [(CAPACITIES[semaphore][0], Effect("yes", 0, 0)), *resizes]
        for capacity, effect in found:
            later = [other.end for _, other in found if other.certain == "yes" and other.begin > effect.begin]
            if effect.certain != "no":
                yield capacity, effect.begin, min(later, default=NEVER) if effect.certain == "yes" else NEVER

    @property
    def clock_was_set(self) -> bool:
        """Whether the server's clock was set during the run."""
        return any(fault.what == "server_clock" for fault in self.faults)

    def claimed(self, delivery: Delivery) -> int:
        """When the delivery began at the earliest: a busy client reads its row later."""
        stream = self.operations[delivery.op]
        if delivery.locking:
            return stream.begin
        plan = self.plans[stream.queue]
        return min(delivery.at, self.earliest_us(int(earliest_claim_us(plan, delivery.epoch, delivery.until))))

    def quiet(self, begin: int, end: int) -> bool:
        """Whether there was no fault from a while before `begin` until `end`."""
        return not any(fault.begin <= end and fault.end + AFTERMATH_US >= begin for fault in self.faults)

    def disturbed(self, first: Delivery, until: int) -> bool:
        """Whether a fault may have freed what this delivery held, or ended its connection, before `until`."""
        connection = self.connections[first.conn]
        if not connection.by_choice:
            if connection.closed <= until + CLOSE_US:
                return True
            if connection.closed <= until + BUSY_US and self._may_be_cut(connection, self.claimed(first), until):
                return True
        return any(
            fault.proxy in {-1, connection.proxy} and fault.end + FREEING[fault.what] >= self.claimed(first)
            for fault in self._freeing[: bisect_right(self._freeing, until, key=lambda fault: fault.begin)]
        )

    def locked_at(self, queue: str, at: int) -> int:
        """How many messages of a queue the transactions of clients hold, which were delivered to them, and the ACKs
        that wait for a lock."""
        return sum(
            count
            for since, count, tx, conn in self.locked[queue]
            if since <= at < min(self.transactions[tx].over, self.connections[conn].closed)
        ) + sum(ack.count for ack in self.waiting_acks[queue] if ack.begin <= at < ack.end)

    @cached_property
    def _freeing(self) -> list[Fault]:
        found = [fault for fault in self.faults if fault.what in FREEING] + [*self._locks_lost()]
        return sorted(found, key=lambda fault: fault.begin)

    def _locks_lost(self) -> Iterator[Fault]:
        """When KILL may have ended the connection with a proxy's lock while the proxy could not lock it again."""
        hindering = [fault for fault in self.faults if fault.what in HINDERING]
        for killed in (fault for fault in self.faults if fault.what == "kill_connections"):
            for other in hindering:
                if other.begin <= killed.end + RETAKEN_US and other.end + RETAKEN_US >= killed.begin:
                    yield Fault("cut_server", other.proxy, killed.begin, max(killed.end, other.end))

    def _may_be_cut(self, connection: Connection, since: int, until: int) -> bool:
        """Whether a fault has ended connections like this one meanwhile, and no row of a later claim came over it: its
        client may read rows of earlier claims long afterwards."""
        last = max(connection.last_lock, self.earliest_us(int(connection.last_claim_us)))
        return any(
            since <= fault.begin <= until
            and last <= fault.end
            and (
                fault.what == "kill_connections"
                or (fault.what == "cut_clients" and fault.proxy == connection.proxy and connection.relayed)
            )
            for fault in self.faults
        )


# The rules about one message. Each yields what it finds.


def existence(facts: Facts, queue: str, token: int, life: Life) -> Iterator[Violation]:
    """What is delivered was committed before; what is committed is there in the end, acknowledged or dead."""
    found = [facts.effect(insert) for insert in life.inserts]
    if not found or found[0].certain == "no":
        if life.deliveries or life.rows:
            yield Violation("phantom", queue, token, "it was never committed")
        return
    inserted = found[0]
    for delivery in life.deliveries:
        if delivery.at < inserted.begin:
            yield Violation("early", queue, token, f"delivered at {delivery.at}, before its commit began")
    if len(life.rows) > 1:
        yield Violation("double", queue, token, f"it is there more than once: {life.rows}")
    if not life.rows:
        removals = [facts.effect(change) for change in life.changes if change.what == "delete" and _some(change)]
        removals += [facts.effect(clear) for clear in facts.clears[queue]]
        removed = any(effect.certain != "no" and effect.end >= inserted.begin for effect in removals)
        if inserted.certain == "yes" and not removed:
            yield Violation("lost", queue, token, "committed, and there is no row")
    elif life.rows[0][0] == "waiting":
        yield Violation("stuck", queue, token, f"not acknowledged when all is over, epoch {life.rows[0][1]}")
    elif life.rows[0][0] == "dead" and life.rows[0][1] < facts.plans[queue].max_attempts:
        yield Violation("dead too early", queue, token, f"after {life.rows[0][1]} deliveries")


def _some(operation: Operation) -> bool:
    """Whether it may have affected a message."""
    return operation.affected > 0 or operation.end == NEVER or operation.outcome == "unknown"


def acknowledgements(facts: Facts, queue: str, token: int, life: Life) -> Iterator[Violation]:
    """An ACK that affected a message is in its row, and no other did."""
    effects = [(ack, facts.effect(ack)) for ack in life.acks]
    certain = [ack for ack, effect in effects if effect.certain == "yes" and ack.affected == ack.count]
    if len(certain) > 1:
        yield Violation("acknowledged twice", queue, token, f"at {[ack.begin for ack in certain]}")
    states = {state for state, _ in life.rows}
    if certain and states & {"waiting", "dead"}:
        yield Violation("ACK lost", queue, token, f"acknowledged at {certain[0].end}, and the row is {states}")
    if "acked" in states and not any(effect.certain != "no" and _some(ack) for ack, effect in effects):
        yield Violation("acknowledged by nobody", queue, token, "no ACK can have done it")


def epochs(facts: Facts, queue: str, token: int, life: Life) -> Iterator[Violation]:
    """Each claim is delivered once; none begins after the ACK, which leaves the epoch as it is."""
    seen: Counter[int] = Counter(delivery.epoch for delivery in life.deliveries if not delivery.locking)
    lives = 1 + facts.redriven(queue, NEVER)
    for epoch, count in seen.items():
        if count > lives:
            yield Violation("one claim, two deliveries", queue, token, f"epoch {epoch} was delivered {count} times")
    if lives == 1 and life.rows and life.rows[0][0] == "acked" and seen and max(seen) > life.rows[0][1]:
        yield Violation(
            "delivered after its ACK", queue, token, f"epoch {max(seen)}, acknowledged at {life.rows[0][1]}"
        )
    for ack in life.acks:
        effect = facts.effect(ack)
        if effect.certain == "yes" and ack.affected == ack.count:
            for delivery in life.deliveries:
                if delivery.locking and facts.operations[delivery.op].begin > effect.end:
                    yield Violation("delivered after its ACK", queue, token, f"locked at {delivery.at}")
                claimed_us = earliest_claim_us(facts.plans[queue], delivery.epoch, delivery.until)
                late_us = claimed_us - facts.latest_server_us(effect.end)
                if not delivery.locking and late_us > 0:
                    text = f"epoch {delivery.epoch} was claimed {late_us / S:.3f} s after the ACK was answered"
                    yield Violation("delivered after its ACK", queue, token, text)


def earliest_claim_us(plan: Plan, epoch: int, until: int) -> float:
    """When a claim was made at the earliest, by the server's clock: the wait of a first delivery has no jitter."""
    wait_s: float = min(plan.ack_wait_s * 2 ** min(epoch - 1, 30), max(plan.ack_wait_s, plan.max_wait_s))
    wait_us = wait_s * S
    return until - (wait_us if epoch == 1 else wait_us * 4 / 3)


def holders(facts: Facts, queue: str, token: int, life: Life) -> Iterator[Violation]:
    """Between a claim and its deadline nobody else gets the message, unless it was given back or its holder is gone."""
    claims = sorted((delivery for delivery in life.deliveries if not delivery.locking), key=lambda found: found.epoch)
    locks = [delivery for delivery in life.deliveries if delivery.locking]
    for first in claims:
        later = [found for found in claims if found.epoch > first.epoch][:1]
        # A claim before this one may have had its epoch, if it was given back unsent after that lock.
        later += [found for found in locks if found.epoch >= first.epoch and found.at >= facts.claimed(first)]
        for second in later:
            short_us = _deadline_us(facts, first, second, life) - facts.latest_server_us(second.at)
            if short_us > 0 and not _given_back(facts, queue, first, second, life):
                text = f"epoch {first.epoch} and {second.epoch}, {short_us / S:.3f} s before the first one's deadline"
                yield Violation("two holders", queue, token, text)
    for first in locks:
        over = facts.transactions[str(facts.operations[first.op].tx)].over
        over = min(over, facts.connections[first.conn].closed)
        for second in [*locks, *claims]:
            other = second.op != first.op and (second.locking or second.epoch > first.epoch)
            if other and first.at < second.at < over and not _one_is_gone(facts, first, second):
                yield Violation("two holders", queue, token, f"locked at {first.at}, delivered at {second.at}")


def _one_is_gone(facts: Facts, first: Delivery, second: Delivery) -> bool:
    """Whether a fault may have ended one of two deliveries before the other began. The second row to be read may have
    been sent first."""
    reversed_ = facts.claimed(second) < first.at and facts.disturbed(second, first.at)
    return reversed_ or facts.disturbed(first, second.at)


def _deadline_us(facts: Facts, first: Delivery, second: Delivery, life: Life) -> float:
    """The earliest end that the first delivery can have had when the second one came. EXTEND may set an earlier one."""
    ends: list[float] = [first.until]
    for change in sorted(life.changes, key=lambda change: change.begin):
        if change.what != "extend" or change.epoch not in {None, first.epoch} or change.begin >= second.at:
            continue
        end = change.begin + facts.latest_server_us(0) + change.values["by_s"] * S
        effect = facts.effect(change)
        if effect.certain == "yes" and change.affected == change.count and change.end < second.at:
            ends = [end]
        elif effect.certain != "no" and _some(change):
            ends.append(end)
    return min(ends)


def _given_back(facts: Facts, queue: str, first: Delivery, second: Delivery, life: Life) -> bool:
    if facts.connections[first.conn].closed <= second.at and not facts.plans[queue].keep:
        return True
    if facts.redriven(queue, max(first.at, second.at)):  # They may be of two lives, the later one first.
        return True
    if any(
        change.what in {"nack", "reschedule"}
        and change.begin <= second.at
        and change.epoch in {None, first.epoch}
        and _some(change)
        and facts.effect(change).certain != "no"
        for change in life.changes
    ):
        return True
    return facts.disturbed(first, second.at)


RULES = (existence, acknowledgements, epochs, holders)


# The rules about a run as a whole.


def sums(facts: Facts, acked: Counter[str]) -> Iterator[Violation]:
    """The affected rows of a queue's ACKs add up to one a message."""
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for operation in facts.operations.values():
        if operation.what == "ack":
            effect = facts.effect(operation)
            known = operation.outcome == "ok"
            least[operation.queue] += operation.affected if effect.certain == "yes" and known else 0
            most[operation.queue] += (operation.affected if known else operation.count) if effect.certain != "no" else 0
    for queue in facts.plans:
        if not facts.clears[queue] and not least[queue] <= acked[queue] <= most[queue]:
            text = f"{acked[queue]} rows are acknowledged, ACKs have affected {least[queue]} to {most[queue]}"
            yield Violation("sum of ACKs", queue, -1, text)


def progress(facts: Facts) -> Iterator[Violation]:
    """Once the last fault is over, and with it the waits of what was delivered before, which may hold all places of a
    limit, no due message waits while its queue delivers nothing, nor any other queue that shares its semaphores. Those
    that a transaction holds, which FOR UPDATE leaves due, do not wait. While proxies and server do not answer the
    harness either, time does not count."""
    first = facts.samples[0][1]["queue"] if facts.samples else ""
    counted = _counted_time([at for at, sample in facts.samples if sample["queue"] == first])
    waiting_since: dict[str, int] = {}
    sharing = [queue for queue, plan in facts.plans.items() if plan.needs]
    shared = sorted(at for queue in sharing for at in facts.arrivals[queue])
    for at, sample in facts.samples:
        queue = sample["queue"]
        if sample["due"] <= facts.locked_at(queue, at):
            waiting_since.pop(queue, None)
            continue
        since = waiting_since.setdefault(queue, at)
        arrivals = shared if queue in sharing else facts.arrivals[queue]
        place = bisect_right(arrivals, at)
        over = facts.healed + int(facts.plans[queue].max_wait_s * S * 4 / 3)
        waits = counted(at) - counted(max(since, over, arrivals[place - 1] if place else 0))
        if waits > MARGIN_US:
            text = f"{sample['due']} due messages and no delivery for {waits / S:.1f} s, all faults over"
            yield Violation("no progress", queue, -1, text)
            waiting_since[queue] = at


def _counted_time(samples: Sequence[int]) -> Callable[[int], int]:
    """A clock that stops SAMPLE_US after a sample until the next one."""
    passed = [0, *accumulate(min(later - sooner, SAMPLE_US) for sooner, later in pairwise(samples))]

    def counted(at: int) -> int:
        place = bisect_right(samples, at) - 1
        return at - samples[0] if place < 0 else passed[place] + min(at - samples[place], SAMPLE_US)

    return counted


def surroundings(facts: Facts) -> Iterator[Violation]:
    """Memory is bounded, no proxy has logged an exception, and none writes to a server that was the primary."""
    if facts.former_written:
        yield Violation("written to two", "", -1, "the former primary has committed transactions since")
    for proxy, most in facts.memory.items():
        if most > MEMORY_MAX:
            yield Violation("memory", "", -1, f"proxy {proxy} had {most >> 20} MB")
    for alarm in facts.alarms:
        yield Violation("alarm", "", -1, alarm)


def limits(facts: Facts, held: dict[Limit, list[tuple[int, int]]]) -> Iterator[Violation]:
    """No more messages are certainly in flight than a limit allows, over all proxies: of a queue, of a group, or of
    all that need a semaphore."""
    for limit, changes in held.items():
        count = excess = 0
        text = ""
        for at, change in sorted(changes):
            count += change
            if change > 0 and count - (allowed := facts.allowed(limit, at)) > excess:
                excess = count - allowed
                text = f"{limit.name} {count} at {at}, {allowed} are allowed"
        if text:
            yield Violation(limit.rule, limit.queue, -1, text.lstrip())


def rates(facts: Facts, claims: dict[tuple[str, int], list[int]]) -> Iterator[Violation]:
    """In no second is more of a group, or of a queue, claimed than its rate allows, and what the duration of a claim
    adds, which is short where no fault was near."""
    for (queue, group), found in claims.items():
        most = facts.plans[queue].rate * 3 // 2 + 1
        times = sorted(found)
        for first, last in zip(times, times[most:], strict=False):
            if last - first < S and facts.quiet(first, last):
                text = f"group {group}: more than {most} messages in the second from {first}"
                yield Violation("rate", queue, -1, text)
                break


def succession(facts: Facts, turns: dict[tuple[str, int, int], list[Turn]]) -> Iterator[Violation]:
    """In strict order, a message comes when no earlier one of its group is unacknowledged, unless they are of one run.

    Compares what one producer has inserted, one transaction after the other: each was committed before the later
    ones, if it was committed.
    """
    for (queue, group, _), found in turns.items():
        runs = facts.plans[queue].group_limit > 1
        before: list[Turn] = []
        for turn in sorted(found):
            ahead = [other for other in before if other.over > turn.delivered and not (runs and turn.is_of_run(other))]
            if ahead:
                text = f"group {group}: {ahead[0].token} was not over when it came, at {turn.delivered}"
                yield Violation("strict order", queue, turn.token, text)
            if turn.committed:
                before.append(turn)


def batches_done(batches: Iterable[Batch]) -> Iterator[Violation]:
    """A follow-up comes when all parts of its batch are over."""
    for batch in batches:
        if batch.delivered < batch.open_until:
            text = f"it came at {batch.delivered}, and a part was not over then"
            yield Violation("follow-up", batch.queue, batch.follow_up, text)


def _first_arrival(life: Life) -> int:
    """When the message was claimed at the latest."""
    return min((delivery.at for delivery in life.deliveries), default=NEVER)


def earliest_end(facts: Facts, queue: str, life: Life) -> int:
    """When the message may have been over at the earliest: acknowledged, deleted or dead, unless its queue holds what
    follows a dead message. NEVER: it was not."""
    if any(state == "dead" for state, _ in life.rows) and not facts.plans[queue].redriven:
        return 0
    ends = [*life.acks, *(change for change in life.changes if change.what == "delete")]
    effects = [facts.effect(operation) for operation in ends if _some(operation)]
    effects += [facts.effect(clear) for clear in facts.clears[queue]]
    return min((effect.begin for effect in effects if effect.certain != "no"), default=NEVER)


def order(facts: Facts, firsts: dict[str, list[First]]) -> Iterator[Violation]:
    """What one producer has inserted comes in this order, if it was committed long enough before the others' claim."""
    for queue, found in firsts.items():
        before: list[First] = []
        for first in sorted(found):
            for other in reversed(before):
                if other.claimed < first.committed + VISIBLE_US:
                    break
                same_producer = other.token // TOKENS_OF_A_PROCESS == first.token // TOKENS_OF_A_PROCESS
                if same_producer and other.token > first.token and facts.quiet(first.committed, first.claimed):
                    text = (
                        f"committed at {first.committed}, and {other.token} was claimed before it, at {other.claimed}"
                    )
                    yield Violation("order", queue, first.token, text)
                    break
            before.append(first)


def first_claim(facts: Facts, queue: str, token: int, life: Life) -> Iterator[First]:
    """The claim of the first delivery, where the server's clock was never set."""
    for delivery in life.deliveries:
        if delivery.epoch == 1 and not delivery.locking and life.inserts and not facts.clock_was_set:
            committed = facts.effect(life.inserts[0])
            if committed.certain == "yes":
                claimed = delivery.until - int(facts.plans[queue].ack_wait_s * S) - facts.latest_server_us(0)
                yield First(claimed, token, committed.end)


def certainly_held(facts: Facts, queue: str, life: Life) -> Iterator[tuple[int, int]]:
    """When each delivery began and ended to be in flight for certain, as changes of a count. Others may have ended
    it between its claim and its arrival."""
    changes = [(operation.begin, _latest_effect(facts, operation)) for operation in (*life.acks, *life.changes)]
    for delivery in life.deliveries:
        claimed = facts.claimed(delivery)
        end = min((begin for begin, latest in changes if latest > claimed), default=NEVER)
        end = min(end, facts.connections[delivery.conn].closed, facts.earliest_us(delivery.until))
        if end > delivery.at and not facts.disturbed(delivery, end):
            yield delivery.at, 1
            yield end, -1


def _latest_effect(facts: Facts, operation: Operation) -> int:
    """When it took effect at the latest, if it did."""
    effect = facts.effect(operation)
    return operation.end if effect.certain == "no" else max(operation.end, effect.end)


# Both passes.


class Buckets:
    """What concerns single messages, in files by queue and token."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._waiting: dict[tuple[str, int], list[str]] = defaultdict(list)
        self._names: dict[tuple[str, int], Path] = {}

    def add(self, queue: str, tokens: str, kind: str, *values: Any) -> None:
        """Keep values for these tokens."""
        parts: dict[int, list[int]] = defaultdict(list)
        for token in unpack(tokens):
            parts[token >> BUCKET_BITS].append(token)
        for number, part in parts.items():
            waiting = self._waiting[queue, number]
            waiting.append(json.dumps([kind, pack(part), values], separators=(",", ":")))
            if len(waiting) >= BUFFERED:
                self._write(queue, number)

    def _write(self, queue: str, number: int) -> None:
        path = self._names.setdefault((queue, number), self._folder / f"{queue}.{number}")
        with path.open("a") as file:
            file.writelines(line + "\n" for line in self._waiting.pop((queue, number)))

    def read(self) -> Iterator[tuple[str, list[tuple[str, str, list[Any]]]]]:
        """Each bucket: its queue and what was kept."""
        for queue, number in list(self._waiting):
            self._write(queue, number)
        for (queue, _), path in sorted(self._names.items()):
            with path.open() as file:
                yield queue, _lines(file)


def _lines(file: TextIO) -> list[tuple[str, str, list[Any]]]:
    return [tuple(json.loads(line)) for line in file]


def check(events: Iterable[Event]) -> Report:
    """Check a history."""
    report = Report()
    with ExitStack() as stack:
        facts = Facts()
        buckets = Buckets(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="history-"))), stack)
        for event in events:
            facts.note(event)
            _sort(event, facts, buckets)
        many = Collected()
        for queue, lines in buckets.read():
            for token, life in _lives(facts, lines).items():
                _check_life(facts, queue, token, life, report)
                many.add(facts, queue, token, life)
    for found in (
        sums(facts, many.acked),
        progress(facts),
        surroundings(facts),
        order(facts, many.firsts),
        limits(facts, many.held),
        rates(facts, many.claims),
        succession(facts, many.turns),
        batches_done(many.batches.values()),
    ):
        report.add(found)
    report.figures["follow-ups delivered"] = sum(batch.delivered < NEVER for batch in many.batches.values())
    report.figures["faults"] = len(facts.faults)
    report.figures["operations"] = len(facts.operations)
    report.figures["most memory of a proxy, MB"] = max(facts.memory.values(), default=0) >> 20
    return report


def _sort(event: Event, facts: Facts, buckets: Buckets) -> None:
    values = event.values
    if event.kind == "begin" and values["tokens"]:
        buckets.add(values["queue"], values["tokens"], "op", values["op"])
    elif event.kind == "got":
        for epoch, until, tokens in values["rows"]:
            row = (event.at, values["conn"], values["op"], epoch, until, values["locking"])
            buckets.add(values["queue"], tokens, "got", *row)
    elif event.kind == "final":
        buckets.add(values["queue"], values["tokens"], "row", values["state"], values["epoch"])


def _lives(facts: Facts, lines: list[tuple[str, str, list[Any]]]) -> dict[int, Life]:
    lives: dict[int, Life] = defaultdict(Life)
    for kind, tokens, values in lines:
        if kind == "op":
            operation = facts.operations[values[0]]
            for token in unpack(tokens):
                life = lives[token]
                kept = {"insert": life.inserts, "ack": life.acks}.get(operation.what, life.changes)
                kept.append(operation)
        elif kind == "got":
            delivery = Delivery(*values)
            for token in unpack(tokens):
                lives[token].deliveries.append(delivery)
        else:
            for token in unpack(tokens):
                lives[token].rows.append((values[0], values[1]))
    return lives


def _check_life(facts: Facts, queue: str, token: int, life: Life, report: Report) -> None:
    for rule in RULES:
        report.add(rule(facts, queue, token, life))
    figures = report.figures
    if life.rows:
        figures[f"messages {life.rows[0][0]}"] += 1
    figures["deliveries"] += len(life.deliveries)
    figures["deliveries beyond the first"] += max(0, len(life.deliveries) - 1)
