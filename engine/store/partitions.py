"""The care of partitions on a real server: old ones dropped, new ones made, and nobody kept waiting for it.

An ALTER TABLE needs the table for itself for a moment. Where somebody's transaction has it, it is given up until later;
where the account may not, or the server does not want to, old rows are deleted one by one instead, and the log says so
once. Another proxy that has done the same thing a moment before makes no difference.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from engine.model import QueueTable, TableId
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
"""After so many in vain, somebody always has the table, and an ALTER TABLE has to queue for it: for a second at most,
in which others queue behind it. MySQL knows no other way."""

WAITED_S = 0.5
"""Who asked for so long for a busy table kept others waiting; NOWAIT says it at once, and may be asked again soon."""

DONE_BY_ANOTHER = frozenset({1481, 1493, 1507, 1508, 1517})
"""What an ALTER TABLE says that comes second: MAXVALUE is not last, values do not increase, no such partition, the last
one, such a partition exists. PyMySQL has no names for them."""


class Retention:
    """The care of one server's partitions, for any number of threads: what one does not know yet, it tries in vain."""

    def __init__(
        self, locked_pauses_s: Sequence[float], busy_pause_s: float, refused_pause_s: float, tables_remembered: int
    ) -> None:
        self._locked_pauses_s = locked_pauses_s
        self._busy_pause_s, self._refused_pause_s = busy_pause_s, refused_pause_s
        # A table that was forgotten is tried at once again, and its problem logged again.
        self._not_before_s: Recent[TableId, float] = Recent(tables_remembered)
        self._undroppable: Recent[TableId, bool] = Recent(tables_remembered)
        self._busy_rounds: Recent[TableId, int] = Recent(tables_remembered)
        self._logged_problems: Recent[TableId, str] = Recent(tables_remembered)

    def maintain(self, connection: StoreConnection, table: QueueTable, age_ns: int) -> Sequence[str]:
        """Drop and make what is due; the partitions in which old rows are to be deleted one by one (none: in all)."""
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
                    log.info("queue %s: made the partitions %s", table.id, ", ".join(each.name for each in plan.add))
                if step is _drop and plan.drop:
                    self._undroppable.forget(table.id)
                    log.info("queue %s: dropped the partitions %s", table.id, ", ".join(plan.drop))
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
        soon_s = 4.0 ** self._busy_rounds.get(table, 0)  # At first it may have been our own look at the table.
        pause_s = min(soon_s, self._busy_pause_s) if busy else self._refused_pause_s
        self._not_before_s.put(table, time.monotonic() + pause_s)
        if busy:
            return
        if dropping:
            self._undroppable.put(table, True)
        if table not in self._logged_problems:
            self._logged_problems.put(table, str(error))
            log.warning("queue %s: its partitions cannot be looked after: %s", table, error)


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
