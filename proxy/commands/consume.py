"""`ackstream consume`: a worker for any program.

Each worker has a connection of its own. It takes a batch (`STREAM … LIMIT n WAIT s`), handles it,
and acknowledges it with the epoch of its delivery, so a late worker acknowledges nothing of a later
delivery. While a batch is handled, its waits are extended. A worker that is killed loses nothing:
its messages are released with its connection.
"""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import click
import pymysql
from pymysql.connections import Connection

from proxy.commands.connection import Address, error_text, give_up, reported, table_name, url_option
from proxy.commands.handlers import Handler, Message, Outcome, Post, Program, Result
from proxy.session.queries import sql

POLL_S = 2
"""How long a worker waits for its first message before it looks whether it is to stop."""

AGAIN_S = 1.0
"""The pause before a lost connection is opened again."""

FAILURE_PAUSE_MAX_S = 300
"""The longest pause after a failed attempt. It doubles with each one, from a second."""

UNDELIVERED = frozenset({"priority", "time_next", "time_acked"})
"""Columns that `STREAM *` leaves out."""

NO_REASONS = frozenset({1105, 1142, 1143})
"""Errors of a NACK with a REASON where the queue has no column for it, or the account may not write that."""

LASTING = frozenset({1044, 1045, 1046, 1049, 1064, 1142, 1143, 1146})
"""Errors that do not pass by themselves."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the workers do."""

    address: Address
    queue: str
    handler: Handler
    batch: int
    delay_s: float
    extend_s: float
    until_empty: bool
    quiet: bool

    @property
    def table(self) -> str:
        """The quoted name of the queue."""
        return table_name(self.queue)


class Workers:
    """The workers of one `consume`."""

    def __init__(self, plan: Plan, count: int) -> None:
        self._plan = plan
        self._stopping, self._cut = threading.Event(), threading.Event()
        self._failure: str | None = None
        self._threads = [threading.Thread(target=self._work, name=f"worker {at}") for at in range(count)]

    def run(self, grace_s: float) -> str | None:
        """Work until `stop` is called, or with `until_empty` until no message is due. Returns why it
        failed, or None."""
        for thread in self._threads:
            thread.start()
        while any(thread.is_alive() for thread in self._threads):
            for thread in self._threads:
                thread.join(0.1)
            if self._stopping.is_set():
                if self._failure is None:
                    self._log(f"stopping: what is under way has {grace_s:g} s")
                self._join(grace_s)
        return self._failure

    def stop(self) -> None:
        """Begin no other batch."""
        self._stopping.set()

    def _join(self, grace_s: float) -> None:
        """Wait for the batches under way; after the grace they are ended and given back."""
        cut = threading.Timer(grace_s, self._end_batches)
        cut.daemon = True
        cut.start()
        for thread in self._threads:
            thread.join()
        cut.cancel()

    def _end_batches(self) -> None:
        self._cut.set()
        self._plan.handler.stop()

    def _work(self) -> None:
        with ThreadPoolExecutor(1) as helper:
            while not self._stopping.is_set():
                try:
                    with self._plan.address.connect() as connection:
                        if self._consume(connection, helper):
                            return
                except pymysql.MySQLError as error:
                    if error.args and error.args[0] in LASTING:
                        self._fail(error_text(error))
                        return
                    self._log(f"{error_text(error)}; connecting again")
                    self._stopping.wait(AGAIN_S)

    def _consume(self, connection: Connection[Any], helper: ThreadPoolExecutor) -> bool:
        """Handle batches. Returns whether no message was due, with `until_empty`."""
        wait = "NOWAIT" if self._plan.until_empty else f"WAIT {POLL_S}"
        if (failure := self._missing(connection)) is not None:
            self._fail(failure)
            return True
        keeps_reasons = self._keeps_reasons(connection)
        while not self._stopping.is_set():
            with connection.cursor() as cursor:
                cursor.execute(f"STREAM *, id, epoch FROM {self._plan.table} LIMIT {self._plan.batch} {wait}")
                names = [column[0] for column in cursor.description]
                batch = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            if batch:
                outcome = self._handled(connection, batch, helper)
                self._settle(connection, batch, outcome, outcome.reason if keeps_reasons else "")
            elif self._plan.until_empty:
                return True
        return False

    def _fail(self, text: str) -> None:
        self._failure = text
        self._stopping.set()

    def _missing(self, connection: Connection[Any]) -> str | None:
        """Which column the handler names and the queue does not deliver, before a message is delivered."""
        if not self._plan.handler.columns:
            return None
        with connection.cursor() as cursor:
            cursor.execute(sql("stream_columns", columns="*, id, epoch", table=self._plan.table, condition="TRUE"))
            there = {column[0] for column in cursor.description} - UNDELIVERED
        for name in sorted(self._plan.handler.columns - there):
            return (
                f"{{{name}}} is no column of {self._plan.queue}, which has {', '.join(sorted(there))}. Put a command "
                "with other braces into a script"
            )
        return None

    def _keeps_reasons(self, connection: Connection[Any]) -> bool:
        """Whether the queue has a column for reasons that the account may write."""
        with connection.cursor() as cursor:
            try:
                cursor.execute(f"NACK FROM {self._plan.table} WHERE FALSE REASON ''")
            except pymysql.MySQLError as error:
                if error.args and error.args[0] in NO_REASONS:
                    return False
                raise
        return True

    def _handled(self, connection: Connection[Any], batch: Sequence[Message], helper: ThreadPoolExecutor) -> Outcome:
        handling = helper.submit(self._plan.handler.handle, batch)
        while True:
            try:
                return handling.result(self._plan.extend_s)
            except TimeoutError:
                if not handling.done():
                    self._each_epoch(connection, batch, "EXTEND", f" BY {_seconds(3 * self._plan.extend_s)}")
            except Exception as error:  # noqa: BLE001  # A fault here must not end the worker.
                return Outcome(Result.FAILED, repr(error))

    def _settle(self, connection: Connection[Any], batch: Sequence[Message], outcome: Outcome, reason: str) -> None:
        """`reason`: what the queue is to keep of why; empty: nothing."""
        self._report(batch, outcome)
        if outcome.result is Result.DONE:
            if (count := self._each_epoch(connection, batch, "ACK")) < len(batch):
                self._log(f"{len(batch) - count} of {len(batch)} messages were delivered again meanwhile")
            return
        if self._cut.is_set():
            self._each_epoch(connection, batch, "NACK")
        elif outcome.result is Result.AGAIN:
            delay_s = self._plan.delay_s if outcome.delay_s is None else outcome.delay_s
            self._give_back(connection, batch, delay_s, reason)
        else:
            for message in batch:
                pause_s = min(2 ** (min(message["epoch"], 20) - 1), FAILURE_PAUSE_MAX_S)
                self._give_back(connection, [message], pause_s, reason)

    def _give_back(self, connection: Connection[Any], batch: Sequence[Message], delay_s: float, reason: str) -> None:
        end = f" DELAY {_seconds(delay_s)}"
        if reason:
            self._each_epoch(connection, batch, "NACK", f"{end} REASON %s", reason)
        else:
            self._each_epoch(connection, batch, "NACK", end)

    def _each_epoch(
        self, connection: Connection[Any], batch: Sequence[Message], verb: str, end: str = "", *values: str
    ) -> int:
        """Run a queue statement for the messages of each epoch. Returns the affected rows. `values`: those of
        the places in `end`."""
        by_epoch: dict[int, list[object]] = defaultdict(list)
        for message in batch:
            by_epoch[message["epoch"]].append(message["id"])
        count = 0
        with connection.cursor() as cursor:
            for epoch, ids in by_epoch.items():
                which = "id = %s" if len(ids) == 1 else f"id IN ({', '.join(['%s'] * len(ids))})"
                text = f"{verb} FROM {self._plan.table} WHERE {which} AND epoch = {epoch}{end}"
                count += cursor.execute(text, [*ids, *values])
        return count

    def _report(self, batch: Sequence[Message], outcome: Outcome) -> None:
        if self._plan.quiet and outcome.result is Result.DONE:
            return
        who = f"message {batch[0]['id']}" if len(batch) == 1 else f"{len(batch)} messages from {batch[0]['id']} on"
        for line in outcome.text.splitlines():
            self._log(f"{who}: {line}")

    def _log(self, text: str) -> None:
        click.echo(f"{self._plan.queue}: {text}", err=True)


def _seconds(seconds: float) -> str:
    """As a queue statement takes them: without an exponent."""
    return f"{seconds:.3f}"


@click.command()
@click.argument("queue")
@url_option
@click.option("--exec", "command", metavar="COMMAND", help="Run this program for each message (no shell).")
@click.option("--http", "post", metavar="URL", help="Post each message to this URL.")
@click.option("--batch", type=click.IntRange(1, 10_000), help="Handle up to N messages at a time, as lines of JSON.")
@click.option("--parallel", default=1, show_default=True, type=click.IntRange(1, 256), help="Workers.")
@click.option(
    "--timeout", default=300.0, show_default=True, help="Seconds until a program or request counts as failed."
)
@click.option("--delay", default=60.0, show_default=True, help="Seconds until a message that was given back is due.")
@click.option(
    "--extend", default=5.0, show_default=True, help="Seconds between two EXTENDs while a message is handled."
)
@click.option("--grace", default=30.0, show_default=True, help="Seconds for messages under way, after SIGTERM.")
@click.option("--until-empty", is_flag=True, help="End when no message is due.")
@click.option("--quiet", is_flag=True, help="Log no output of programs that succeed.")
@reported
def consume(
    queue: str,
    address: Address,
    command: str | None,
    post: str | None,
    batch: int | None,
    parallel: int,
    timeout: float,
    delay: float,
    extend: float,
    grace: float,
    until_empty: bool,  # noqa: FBT001  # click passes it
    quiet: bool,  # noqa: FBT001
) -> None:
    """Hand the messages of QUEUE to a program or a URL, and acknowledge them.

    A message is a JSON object on the program's standard input. Without --batch, {column} in an argument
    stands for a column's value. A value may begin with a dash: put -- before it if the program takes
    options. The environment has MESSAGE_ID, MESSAGE_EPOCH, MESSAGE_QUEUE, and each column as
    COLUMN_name. If the queue has the option REASON, it keeps why a message was not done.

    \b
    The program's exit status decides what becomes of the message:
      0      it is acknowledged
      75     it is given back, and due again after --delay
      other  the attempt has failed: due again after 1 s, 2 s, 4 s … up to 5 min

    A URL that answers 2xx acknowledges; 408, 425, 429 and 503 give back (Retry-After counts), as
    does a URL out of reach; any other status is a failure.

    \b
    Examples:
      ackstream consume orders --exec './handle-order'
      ackstream consume mails --exec 'sendmail {address}' --parallel 8
      ackstream consume events --batch 500 --exec 'clickhouse-client -q "…"'
      ackstream consume hooks --http http://127.0.0.1:8080/hook
    """
    if (command is None) == (post is None) or not (command or post):
        raise click.UsageError("one of --exec and --http says what to do with messages")
    if command is not None:
        try:
            handler: Handler = Program(command, timeout, queue, in_batches=batch is not None)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--exec") from None
    elif post is not None and post.startswith(("http://", "https://")):
        handler = Post(post, timeout, lines=batch is not None)
    else:
        raise click.BadParameter("it begins with http:// or https://", param_hint="--http")
    plan = Plan(address, queue, handler, batch or 1, delay, extend, until_empty, quiet)
    workers = Workers(plan, parallel)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: workers.stop())
    if (failure := workers.run(grace)) is not None:
        give_up(failure)
