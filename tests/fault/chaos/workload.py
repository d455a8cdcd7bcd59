"""The workload: one process of producers and consumers. What each of them does is drawn from the seed.

The process gets its orders as one line of JSON on standard input. Later lines change the phase:
`heal` (producers stop, consumers acknowledge all that they get), `end` or the end of the input (the
process ends). All that happens goes into the history; nothing is checked here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from tests.fault.chaos.client import PATIENCE_S, Client, LostError, Result, Row, ServerError
from tests.fault.chaos.history import Writer, now_us, pack
from tests.fault.chaos.plans import CAPACITIES, TOKENS_OF_A_PROCESS, Plan

DATABASE = "shop"
PAUSE_S = 0.3
HOLD_S = 7.0
AHEAD_S = 10
"""Producers are ahead of the consumers by what they insert in so long."""
UNKNOWN = {1053, 1079, 1158, 1159, 1160, 1161, 1180, 1184, 2013}
"""Errors after which a statement may have been committed."""

NOW_NS = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)"


class Orders(NamedTuple):
    """What a process is given."""

    process: int
    place: int
    seed: str
    history: str
    plans: list[dict[str, Any]]
    routes: list[list[int]]
    """Ports: for each proxy, the direct one and that of the relay in front of it."""
    """Ports: for each proxy, that of clients which receive no messages; 0 without one."""
    server: int
    batch: int
    rate: float
    """Messages a second of a share of 1."""
    misbehave: float
    """Likelihood that a batch is not simply acknowledged."""


class Message(NamedTuple):
    """A delivery, as its consumer knows it."""

    id: str
    """As it is written in SQL."""
    token: int
    epoch: int


class Workload:
    """State that the actors of a process share."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.history = Writer(Path(orders.history))
        self.healed = asyncio.Event()
        self._ended = asyncio.Event()
        self._numbers = itertools.count(1)
        self._tokens = itertools.count(orders.process * TOKENS_OF_A_PROCESS + 1)
        self.ahead: Counter[str] = Counter()
        """By queue: how many messages wait, as a producer has counted them last, and what this process has inserted and
        acknowledged since."""

    def number(self) -> str:
        """A name for an operation, a connection or a transaction, unique in the run."""
        return f"{self.orders.process}.{next(self._numbers)}"

    def tokens(self, count: int) -> list[int]:
        return [next(self._tokens) for _ in range(count)]

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the process ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    def end(self) -> None:
        """End all pauses."""
        self._ended.set()


class Connection:
    """A connection whose operations are recorded."""

    def __init__(self, load: Workload, client: Client, name: str) -> None:
        self.load, self.client, self.name = load, client, name
        self._open = True

    @classmethod
    async def open(
        cls,
        load: Workload,
        draw: random.Random,
        *,
        direct: bool = False,
        prepares: bool = False,
        streams: bool = True,
    ) -> Connection:
        """Connect through any proxy, by way of its relay every other time, or to the server itself. Without
        `streams`, it may be the address for clients that receive no messages."""
        routes = load.orders.routes
        proxy = -1 if direct else draw.randrange(len(routes))
        relayed = draw.random() < 0.5
        port = load.orders.server if direct else routes[proxy][relayed]
        client = await Client.connect("127.0.0.1", port, DATABASE, prepares=prepares)
        name = load.number()
        load.history.write("open", conn=name, proxy=proxy, relayed=relayed, process=load.orders.process)
        return cls(load, client, name)

    async def run(
        self,
        sql: str,
        what: str,
        queue: str,
        tokens: Iterable[int] = (),
        **more: Any,
    ) -> Result:
        """Run a statement. Raises LostError, ServerError; whichever, the outcome is recorded."""
        number = self.begin(what, queue, tokens, **more)
        outcome, affected, error = "unknown", 0, ""
        try:
            result = await self.client.query(sql)
            outcome, affected = "ok", result.affected
            if what == "ack":
                self.load.ahead[queue] -= affected
            return result
        except ServerError as failure:
            error = str(failure)
            unknown = failure.number in UNKNOWN or "not known" in failure.text or what == "commit"
            outcome = "unknown" if unknown else "error"
            raise
        except LostError as failure:
            error = str(failure)
            raise
        finally:
            self.load.history.write("done", op=number, outcome=outcome, affected=affected, error=error)

    def begin(self, what: str, queue: str, tokens: Iterable[int] = (), **more: Any) -> str:
        number = self.load.number()
        values = {"op": number, "conn": self.name, "what": what, "queue": queue, "tokens": pack(tokens), **more}
        self.load.history.write("begin", **values)
        return number

    def got(self, number: str, plan: Plan, rows: Sequence[Row], *, locking: bool = False) -> list[Message]:
        """Record rows `id, token, epoch, time_next`."""
        at = now_us()
        messages = []
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for identity, token, epoch, time_next in rows:
            assert identity is not None
            assert token is not None
            assert epoch is not None
            message = Message(plan.written(identity), int(token), int(epoch))
            messages.append(message)
            groups[message.epoch, int(time_next or 0) // 1000].append(message.token)
        packed = [[epoch, until, pack(tokens)] for (epoch, until), tokens in groups.items()]
        self.load.history.write("got", at, conn=self.name, op=number, queue=plan.name, rows=packed, locking=locking)
        return messages

    def close(self, why: str) -> None:
        """End it, by the owner's will or because it was lost."""
        if self._open:
            self._open = False
            self.load.history.write("close", conn=self.name, why=why)
            self.client.abort()


async def actor(load: Workload, seed: str, body: Callable[[random.Random], Awaitable[None]]) -> None:
    """Run the body over and over: whatever ends it, it begins again after a pause."""
    draw = random.Random(seed)
    while True:
        with contextlib.suppress(LostError, ServerError):
            await body(draw)
        await load.pause(PAUSE_S * draw.random())


class Producer:
    """Inserts messages, in transactions that commit, roll back or die."""

    def __init__(self, load: Workload, plan: Plan) -> None:
        self._load, self._plan = load, plan
        self._quota_per_s = (plan.quota_per_s or max(1.0, plan.share * load.orders.rate)) / plan.producers
        self._recent: list[int] = []

    async def __call__(self, draw: random.Random) -> None:
        if self._load.healed.is_set():
            await self._load.pause(PAUSE_S)
            return
        connection = await Connection.open(self._load, draw, direct=draw.random() < 0.3, streams=False)
        try:
            if self._plan.plain_sql:
                # An UPDATE that waits for a consumer's transaction has locked other messages, which nobody can get.
                await connection.run("SET SESSION innodb_lock_wait_timeout = 3", "set", "")
            await self._count(connection)
            for _ in range(draw.randrange(5, 60)):
                if not await self._consumers_caught_up():
                    break
                began = time.monotonic()
                inserted = await self._transaction(connection, draw)
                if self._plan.plain_sql and draw.random() < 0.2:
                    await self._plain(connection, draw)
                await self._load.pause(max(0.0, inserted / self._quota_per_s - (time.monotonic() - began)))
            connection.close("finished")
        except (LostError, ServerError) as failure:
            connection.close(str(failure))
            raise

    @property
    def _most(self) -> int:
        """So many messages may wait. With more, a fault would show itself late, and the run would not end."""
        plan = self._plan
        return int(max(AHEAD_S * self._quota_per_s * plan.producers, 2 * (plan.batch or self._load.orders.batch)))

    async def _count(self, connection: Connection) -> None:
        """Of a process that was killed, nobody knows how far it was ahead."""
        waiting = f"SELECT 1 FROM {self._plan.name} WHERE time_acked IS NULL LIMIT {self._most}"
        result = await connection.run(f"SELECT COUNT(*) FROM ({waiting}) AS waiting", "set", "")
        self._load.ahead[self._plan.name] = int(result.rows[0][0] or 0)

    async def _consumers_caught_up(self) -> bool:
        """Wait until fewer messages are waiting. Returns False if that takes long, and when producers are to stop."""
        for _ in range(AHEAD_S * 10):
            if self._load.healed.is_set():
                return False
            if self._load.ahead[self._plan.name] < self._most:
                return True
            await self._load.pause(0.1)
        return False

    async def _transaction(self, connection: Connection, draw: random.Random) -> int:
        fate = draw.random()
        if fate < 0.7 and not self._plan.follow_ups:
            return await self._insert(connection, draw, 0)
        tx = self._load.number()
        await connection.run("BEGIN", "tx", "", tx=tx)
        inserted = 0
        for _ in range(draw.randrange(1, 4)):
            inserted += await self._insert(connection, draw, tx)
        if fate < 0.94:
            await connection.run("COMMIT", "commit", "", tx=tx)
        elif fate < 0.98:
            await connection.run("ROLLBACK", "rollback", "", tx=tx)
        else:
            connection.close("dies in its transaction")
            raise LostError("died")
        return inserted

    async def _insert(self, connection: Connection, draw: random.Random, tx: str | int) -> int:
        plan = self._plan
        most = (plan.batch or self._load.orders.batch) if draw.random() < 0.8 else 1
        tokens = self._load.tokens(max(1, min(draw.randrange(1, most + 1), int(self._quota_per_s) or 1)))
        delayed = plan.delays and draw.random() < 0.3
        time_next = f"{NOW_NS} + {draw.randrange(1, 3000)} * 1000000" if delayed else NOW_NS
        follow_up = tokens[-1] if plan.batches and len(tokens) > 1 else 0
        parts = tokens[:-1] if plan.follow_ups and follow_up else tokens
        for name, written in ((plan.name, parts), (plan.follow_ups, tokens[len(parts) :])):
            if written:
                rows = ",".join(
                    f"({token},{self._kind(token, draw)},{draw.randrange(plan.priorities)},{time_next},"
                    f"'body of {token}'{self._more_values(token, follow_up)})"
                    for token in written
                )
                sql = f"INSERT INTO {name} (token, kind, priority, time_next, body{self._more_columns}) VALUES {rows}"
                more = {"follow_up": follow_up} if follow_up else {}
                await connection.run(sql, "insert", name, written, tx=tx, **more)
        self._load.ahead[plan.name] += len(parts)
        self._recent = (self._recent + parts)[-2000:]
        return len(tokens)

    def _kind(self, token: int, draw: random.Random) -> int:
        return token % self._plan.groups if self._plan.groups else draw.randrange(self._plan.kinds)

    @property
    def _more_columns(self) -> str:
        if self._plan.ids:
            return ", id"
        return ", needs" if self._plan.needs else ", batch, after_batch" if self._plan.batches else ""

    def _more_values(self, token: int, follow_up: int) -> str:
        """`follow_up`: the message that follows all others of its INSERT, and the number of their batch."""
        if self._plan.ids:
            return f",{self._plan.id_of(token)}"
        if self._plan.needs:
            return f",'{self._plan.needs_of(token)}'"
        if not self._plan.batches:
            return ""
        return ",NULL,NULL" if not follow_up else f",NULL,{token}" if token == follow_up else f",{follow_up},NULL"

    async def _plain(self, connection: Connection, draw: random.Random) -> None:
        """What an application may do to messages without the proxy's statements."""
        if not self._recent:
            return
        first = draw.choice(self._recent)
        tokens = [token for token in self._recent if first <= token < first + draw.randrange(1, 20)]
        where = f"token BETWEEN {tokens[0]} AND {tokens[-1]} AND time_acked IS NULL"
        name = self._plan.name
        fate = draw.random()
        if fate < 0.6:
            delay = draw.randrange(3000)
            sql = f"UPDATE {name} SET time_next = {NOW_NS} + {delay} * 1000000 WHERE {where}"
            await connection.run(sql, "reschedule", name, range(tokens[0], tokens[-1] + 1))
        elif fate < 0.9:
            sql = f"UPDATE {name} SET time_acked = {NOW_NS}, time_next = NULL WHERE {where}"
            await connection.run(sql, "ack", name, range(tokens[0], tokens[-1] + 1))
        else:
            await connection.run(f"DELETE FROM {name} WHERE {where}", "delete", name, range(tokens[0], tokens[-1] + 1))


class Settling:
    """What a consumer does with what it got."""

    def __init__(self, load: Workload, plan: Plan) -> None:
        self._load, self._plan = load, plan

    async def settle(self, connection: Connection, messages: Sequence[Message], draw: random.Random) -> None:
        """Acknowledge, or do something worse; over `connection`. Raises LostError, ServerError."""
        orders, plan = self._load.orders, self._plan
        if self._load.healed.is_set() or draw.random() > (0.02 if plan.careful else orders.misbehave):
            await self._ack(connection, messages, draw)
            return
        fate = draw.random()
        if fate < 0.2:
            await self._hold(HOLD_S * draw.random())
            await self._ack(connection, messages, draw)
        elif fate < 0.35:
            await self._write(connection, "NACK", messages, "nack", f" DELAY {draw.choice((0, 0.2, 1.5))}")
        elif fate < 0.45:
            await self._write(connection, "EXTEND", messages, "extend", " BY 6", by_s=6)
            await self._hold(HOLD_S * draw.random())
            await self._ack(connection, messages, draw)
        elif fate < 0.6:
            await self._in_transaction(connection, messages, draw)
        elif fate < 0.7:
            half = len(messages) // 2
            await self._ack(connection, messages[:half], draw)
        elif fate < 0.8:
            connection.close("vanishes")
            raise LostError("vanished")
        # Otherwise they are forgotten: they come again after their wait.

    async def _hold(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._load.healed.wait()

    async def _in_transaction(self, connection: Connection, messages: Sequence[Message], draw: random.Random) -> None:
        tx = self._load.number()
        await connection.run("BEGIN", "tx", "", tx=tx)
        await self._ack(connection, messages, draw, tx=tx)
        if draw.random() < 0.6:
            await connection.run("COMMIT", "commit", "", tx=tx)
        else:
            await connection.run("ROLLBACK", "rollback", "", tx=tx)

    async def _ack(
        self, connection: Connection, messages: Sequence[Message], draw: random.Random, tx: str | int = 0
    ) -> None:
        if draw.random() < 0.2:
            if messages:
                tokens = [message.token for message in messages]
                sql = f"ACK {self._plan.name} WHERE {self._these(messages)}"
                await connection.run(sql, "ack", self._plan.name, tokens, tx=tx)
            return
        await self._write(connection, "ACK", messages, "ack", "", tx=tx)

    async def _write(
        self, connection: Connection, verb: str, messages: Sequence[Message], what: str, end: str, **more: Any
    ) -> None:
        """The verb, fenced by the epoch of each delivery."""
        epochs: dict[int, list[Message]] = defaultdict(list)
        for message in messages:
            epochs[message.epoch].append(message)
        for epoch, group in epochs.items():
            sql = f"{verb} {self._plan.name} WHERE {self._these(group)} AND epoch = {epoch}{end}"
            await connection.run(sql, what, self._plan.name, [message.token for message in group], epoch=epoch, **more)

    def _these(self, messages: Sequence[Message]) -> str:
        """The condition on ids; on tokens where ids may be given out again."""
        if self._plan.ddl:
            return f"token IN ({','.join(str(message.token) for message in messages)})"
        if len(messages) == 1:
            return f"id = {messages[0].id}"
        return f"id IN ({','.join(message.id for message in messages)})"


class Streamer(Settling):
    """An endless stream, with a second connection for acknowledgements."""

    def __init__(self, load: Workload, plan: Plan, kind: int) -> None:
        super().__init__(load, plan)
        self._where = f" WHERE kind = {kind}" if plan.kinds > 1 else ""

    async def __call__(self, draw: random.Random) -> None:
        stream = await Connection.open(self._load, draw, prepares=self._plan.prepares)
        try:
            acks = await Connection.open(self._load, draw, prepares=self._plan.prepares, streams=False)
        except BaseException as failure:
            stream.close(str(failure))
            raise
        try:
            await self._read(stream, acks, draw)
            stream.close("finished")
            acks.close("finished")
        except (LostError, ServerError) as failure:
            stream.close(str(failure))
            acks.close(str(failure))
            raise

    async def _read(self, stream: Connection, acks: Connection, draw: random.Random) -> None:
        plan = self._plan
        options = f" PREFETCH {draw.randrange(1, plan.prefetch + 1)}" if plan.prefetch and draw.random() < 0.5 else ""
        sql = f"STREAM id, token, epoch, time_next FROM {plan.name}{self._where}{options}"
        number = stream.begin("stream", plan.name, sql=sql)
        batches, life = 0, draw.randrange(20, 2000)
        async for rows in stream.client.stream(sql, patience_s=PATIENCE_S):
            if not rows:
                continue
            await self.settle(acks, stream.got(number, plan, rows), draw)
            batches += 1
            if batches >= life and not self._load.healed.is_set():
                return
            if draw.random() < 0.002 and not self._load.healed.is_set():
                stream.client.pause_reading()
                await self._hold(HOLD_S * draw.random())
                stream.client.resume_reading()


class Poller(Settling):
    """Bounded streams, acknowledged over the same connection."""

    async def __call__(self, draw: random.Random) -> None:
        connection = await Connection.open(self._load, draw, prepares=self._plan.prepares)
        plan = self._plan
        try:
            for _ in range(draw.randrange(3, 100)):
                limit = 1 if plan.singles else draw.choice((1, 5, 50))
                sql = f"STREAM id, token, epoch, time_next FROM {plan.name} LIMIT {limit} WAIT 2"
                number = connection.begin("stream", plan.name, sql=sql)
                messages: list[Message] = []
                async for rows in connection.client.stream(sql, patience_s=PATIENCE_S):
                    if rows:
                        messages += connection.got(number, plan, rows)
                if messages:
                    await self.settle(connection, messages, draw)
            connection.close("finished")
        except (LostError, ServerError) as failure:
            connection.close(str(failure))
            raise


class Locker(Settling):
    """Workers that lock messages in their own transaction."""

    async def __call__(self, draw: random.Random) -> None:
        connection = await Connection.open(self._load, draw, prepares=self._plan.prepares)
        try:
            await connection.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "set", "")
            for _ in range(draw.randrange(3, 100)):
                await self._work(connection, draw)
            connection.close("finished")
        except (LostError, ServerError) as failure:
            connection.close(str(failure))
            raise

    async def _work(self, connection: Connection, draw: random.Random) -> None:
        plan = self._plan
        tx = self._load.number()
        await connection.run("BEGIN", "tx", "", tx=tx)
        limit = draw.choice((1, 10, 50))
        sql = f"STREAM id, token, epoch, time_next FROM {plan.name} LIMIT {limit} WAIT 2 FOR UPDATE"
        number = connection.begin("stream", plan.name, sql=sql, tx=tx)
        messages: list[Message] = []
        async for rows in connection.client.stream(sql, patience_s=PATIENCE_S):
            if rows:
                messages += connection.got(number, plan, rows, locking=True)
        healed = self._load.healed.is_set()
        fate = draw.random()
        if not healed and fate < 0.1:
            await self._hold(HOLD_S * draw.random())
        if messages and (healed or fate < 0.85):
            ids = ",".join(message.id for message in messages)
            tokens = [message.token for message in messages]
            await connection.run(f"ACK {plan.name} WHERE id IN ({ids})", "ack", plan.name, tokens, tx=tx)
        if not healed and 0.93 < fate < 0.96:
            connection.close("dies in its transaction")
            raise LostError("died")
        if not healed and fate > 0.96:
            await connection.run("ROLLBACK", "rollback", "", tx=tx)
        else:
            await connection.run("COMMIT", "commit", "", tx=tx)


class Definer:
    """DDL on a queue in use."""

    def __init__(self, load: Workload, plan: Plan) -> None:
        self._load, self._plan = load, plan

    async def __call__(self, draw: random.Random) -> None:
        await self._load.pause(draw.uniform(2, 8))
        if self._load.healed.is_set():
            return
        connection = await Connection.open(self._load, draw, streams=False)
        try:
            await self._define(connection, draw.choice(self._plan.ddl), draw)
            connection.close("finished")
        except (LostError, ServerError) as failure:
            connection.close(str(failure))
            raise

    async def _define(self, connection: Connection, what: str, draw: random.Random) -> None:
        name = self._plan.name
        await connection.run("SET SESSION lock_wait_timeout = 5", "set", "")
        if what == "alter":
            await connection.run(f"ALTER TABLE {name} ADD COLUMN extra{draw.randrange(10**9)} INT", "ddl", name)
        elif what == "comment":
            await connection.run(f"ALTER QUEUE {name} MAX_BACKOFF = {draw.choice((6, 7, 8))}", "ddl", name)
        elif what == "truncate":
            await connection.run(f"TRUNCATE TABLE {name}", "clear", name)
        elif what == "recreate":
            await connection.run(f"DROP QUEUE {name}", "clear", name)
            await self._load.pause(draw.choice((0, 0.5)))
            await recreate(connection, self._plan)
        elif what == "pause":
            await connection.run(f"PAUSE QUEUE {name}", "ddl", name)
            await self._load.pause(draw.uniform(0, 2))
            await self._resume(connection)

    async def _resume(self, connection: Connection) -> None:
        """Until it succeeds, because nobody else does it once all faults are over. A transaction may have the table for
        longer than the wait for its lock."""
        while True:
            with contextlib.suppress(ServerError):
                await connection.run(f"RESUME QUEUE {self._plan.name}", "ddl", self._plan.name)
                return
            await self._load.pause(PAUSE_S)


class Resizer:
    """ALTER SEMAPHORE on a semaphore in use."""

    def __init__(self, load: Workload) -> None:
        self._load = load

    async def __call__(self, draw: random.Random) -> None:
        await self._load.pause(draw.uniform(5, 25))
        if self._load.healed.is_set():
            return
        name = draw.choice(sorted(CAPACITIES))
        capacity = draw.choice(CAPACITIES[name])
        connection = await Connection.open(self._load, draw, streams=False)
        try:
            sql = f"ALTER SEMAPHORE {name} CAPACITY {capacity}"
            await connection.run(sql, "resize", "", semaphore=name, capacity=capacity)
            connection.close("finished")
        except (LostError, ServerError) as failure:
            connection.close(str(failure))
            raise


class Redriver:
    """REDRIVE QUEUE, also after the last fault."""

    def __init__(self, load: Workload, plan: Plan) -> None:
        self._load, self._plan = load, plan

    async def __call__(self, draw: random.Random) -> None:
        await self._load.pause(1 if self._load.healed.is_set() else draw.uniform(2, 8))
        connection = await Connection.open(self._load, draw, streams=False)
        try:
            name = self._plan.name
            await connection.run(f"REDRIVE QUEUE {self._plan.dead_letter} TO {name}", "redrive", name)
            connection.close("finished")
        except (LostError, ServerError) as failure:
            connection.close(str(failure))
            raise


async def recreate(connection: Connection, plan: Plan) -> None:
    await connection.run(plan.create.replace("CREATE QUEUE ", "CREATE QUEUE IF NOT EXISTS "), "ddl", plan.name)


def bodies(load: Workload, plan: Plan) -> list[Callable[[random.Random], Awaitable[None]]]:
    """The actors of a process on one queue."""
    made: list[Callable[[random.Random], Awaitable[None]]] = [Producer(load, plan) for _ in range(plan.producers)]
    made += [Streamer(load, plan, place % plan.kinds) for place in range(plan.streams)]
    made += [Poller(load, plan) for _ in range(plan.pollers) if load.orders.place == 0 or not plan.ordered]
    made += [Locker(load, plan) for _ in range(plan.lockers)]
    made += [Definer(load, plan)] if plan.ddl else []
    made += [Redriver(load, plan)] if plan.redriven and load.orders.place == 0 else []
    made += [Resizer(load)] if plan.resized and load.orders.place == 0 else []
    return made


async def serve(orders: Orders) -> None:
    """Run all actors until the input ends."""
    load = Workload(orders)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = []
    for plan in map(Plan.of, orders.plans):
        for place, body in enumerate(bodies(load, plan)):
            seed = f"{orders.seed}/{orders.process}/{plan.name}/{place}"
            tasks.append(asyncio.create_task(actor(load, seed, body)))
    watching = [asyncio.create_task(_watch(task)) for task in tasks]
    while (line := await reader.readline()) and line.strip() != b"end":
        if line.strip() == b"heal":
            load.healed.set()
    load.end()
    for task in (*watching, *tasks):
        task.cancel()


async def _watch(task: asyncio.Task[None]) -> None:
    """An actor that fails otherwise than by what it may meet is a fault of the harness: end loudly."""
    try:
        await task
    except Exception:
        logging.getLogger(__name__).exception("a fault of the harness")
        os._exit(1)


def main() -> None:
    """Read the orders from standard input, and follow them."""
    line = b""
    while not line.endswith(b"\n"):  # Not a byte more: the rest is asyncio's.
        line += os.read(sys.stdin.fileno(), 1)
    uvloop.run(serve(Orders(**json.loads(line))))


if __name__ == "__main__":
    main()
