"""Drops old partitions and makes new ones on a real server, without delaying others.

An ALTER TABLE needs an exclusive lock for a moment. While a transaction uses the table, the ALTER
is tried again later. If the account lacks the privilege, or the server refuses, old rows are
deleted one by one instead, and the problem is logged once. Another proxy may have made the same
change a moment before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from engine.model import TableId
from engine.queue_table import QueueTable
from engine.quoting import quoted
from engine.store.connection import StoreConnection
from engine.store.information_schema import partitions
from engine.store.partition_plan import PartitionPlan, plan_partitions
from engine.store.port import StoreError
from engine.store.pymysql_adapter import ER
from engine.store.queries import TableStatements, partition_definitions
from engine.store.recent import Recent

log = logging.getLogger(__name__)

NOWAIT_ROUNDS = 3
"""After this many failed rounds the table is always in use, and an ALTER TABLE has to wait for it:
for a second at most, in which other statements wait behind it. MySQL has no other way."""

WAITED_S = 0.5
"""An attempt of this length has delayed others, so it is not repeated soon. NOWAIT fails at once,
and can be repeated."""

DONE_BY_ANOTHER = frozenset({1481, 1493, 1507, 1508, 1517})
"""Errors of an ALTER TABLE that another proxy has already made: MAXVALUE is not last, values do not
increase, no such partition, the last partition, such a partition exists. PyMySQL defines no names
for them."""


class Retention:
    """Maintains the partitions of one server's queues. Safe for any number of threads.

    A thread that does not know of another one's change tries it in vain.
    """

    def __init__(
        self, locked_pauses_s: Sequence[float], busy_pause_s: float, refused_pause_s: float, tables_remembered: int
    ) -> None:
        self._locked_pauses_s = locked_pauses_s
        self._busy_pause_s, self._refused_pause_s = busy_pause_s, refused_pause_s
        # A table dropped from these is tried again at once, and its problem is logged again.
        self._not_before_s: Recent[TableId, float] = Recent(tables_remembered)
        self._undroppable: Recent[TableId, bool] = Recent(tables_remembered)
        self._busy_rounds: Recent[TableId, int] = Recent(tables_remembered)
        self._logged_problems: Recent[TableId, str] = Recent(tables_remembered)

    def maintain(self, connection: StoreConnection, table: QueueTable, age_ns: int) -> Sequence[str]:
        """Drop and make partitions that are due.

        Returns the partitions in which old rows must be deleted one by one. Empty: all partitions.
        """
        found = partitions(connection, table.id)
        plan = plan_partitions(found.value, found.now_ns, age_ns)
        if (plan.drop or plan.add) and time.monotonic() >= self._not_before_s.get(table.id, 0):
            self._attempt(connection, table, plan)
        return () if table.id in self._undroppable else plan.sweep

    def _attempt(self, connection: StoreConnection, table: QueueTable, plan: PartitionPlan) -> None:
        sql = TableStatements(table)
        nowait = "/*M! NOWAIT */" if self._busy_rounds.get(table.id, 0) < NOWAIT_ROUNDS else ""
        for step in (_add, _drop):
            try:
                self._retry_while_locked(connection, partial(step, connection, sql, plan, nowait))
            except StoreError as error:
                if connection.broken:
                    raise
                if error.code not in DONE_BY_ANOTHER:
                    self._give_up(table.id, error, dropping=step is _drop)
                if error.code == ER.LOCK_WAIT_TIMEOUT:
                    self._busy_rounds.put(table.id, self._busy_rounds.get(table.id, 0) + 1)
                    return
            else:
                if step is _add and plan.add:
                    log.info(
                        "queue %s: made the partitions %s",
                        table.id,
                        ", ".join(partition.name for partition in plan.add),
                        extra={"event": "partitions.made", "queue": str(table.id)},
                    )
                if step is _drop and plan.drop:
                    self._undroppable.forget(table.id)
                    log.info(
                        "queue %s: dropped the partitions %s",
                        table.id,
                        ", ".join(plan.drop),
                        extra={"event": "partitions.dropped", "queue": str(table.id)},
                    )
        self._busy_rounds.forget(table.id)

    def _retry_while_locked(self, connection: StoreConnection, step: Callable[[], None]) -> None:
        for pause_s in self._locked_pauses_s:
            began_s = time.monotonic()
            try:
                step()
            except StoreError as error:
                waited = time.monotonic() - began_s >= WAITED_S
                if connection.broken or waited or error.code != ER.LOCK_WAIT_TIMEOUT:
                    raise
                time.sleep(pause_s)
            else:
                return
        step()

    def _give_up(self, table: TableId, error: StoreError, *, dropping: bool) -> None:
        busy = error.code == ER.LOCK_WAIT_TIMEOUT
        soon_s = 4.0 ** self._busy_rounds.get(table, 0)  # At first the engine itself may have been reading the table.
        pause_s = min(soon_s, self._busy_pause_s) if busy else self._refused_pause_s
        self._not_before_s.put(table, time.monotonic() + pause_s)
        if busy:
            return
        if dropping:
            self._undroppable.put(table, True)
        if table not in self._logged_problems:
            self._logged_problems.put(table, str(error))
            log.warning(
                "queue %s: its partitions cannot be maintained: %s",
                table,
                error,
                extra={"event": "partitions.failed", "queue": str(table)},
            )


def _add(connection: StoreConnection, sql: TableStatements, plan: PartitionPlan, nowait: str) -> None:
    if not plan.add:
        return
    if plan.rest is None:
        connection.run([sql("retention_add", nowait=nowait, definitions=partition_definitions(plan.add))])
        return
    made = partition_definitions([*plan.add, plan.rest])
    (rows,) = connection.run([sql("retention_rest", partitions=sql.within([plan.rest.name]))])
    if rows.rows:
        raise StoreError(
            f"new ones would be split off {plan.rest.name}, which has rows that this would copy. When there is time for"
            f" that: ALTER TABLE … REORGANIZE PARTITION {quoted(plan.rest.name)} INTO ({made})"
        )
    connection.run([sql("retention_split", nowait=nowait, names=quoted(plan.rest.name), definitions=made)])


def _drop(connection: StoreConnection, sql: TableStatements, plan: PartitionPlan, nowait: str) -> None:
    if plan.drop:
        connection.run([sql("retention_drop", nowait=nowait, names=", ".join(map(quoted, plan.drop)))])
