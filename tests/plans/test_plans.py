"""Every statement of the engine reads hardly more than it returns, at 200,000 rows, with each kind of index.

Each store call uses a connection that measures: every statement is explained, then run between two
readings of the session's counters of index entries and rows read. Both proofs are required: a right
plan, and a small counter, because EXPLAIN does not show how far a range is read.

A quarter of the rows is acknowledged, one is scheduled for next year, one is due, and one in flight.
Half of the due rows have the time 0, which is a table's default.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.model import NS_PER_S, Delivery, Portion, Position, Range, Return, RowFormat, Selection, Share, Wanted
from engine.packets import Result, text_values
from engine.queue_table import QueueTable
from engine.quoting import qualified
from engine.store.acks import Ack
from engine.store.connection import OWN_CONTEXT, Begun, SessionContext, StoreConnection
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress, ConnectionLimits
from engine.store.pool import Pool
from engine.store.queries import TableStatements, partition_clause, statement, templates
from proxy.embedded.server import EmbeddedServer
from proxy.server.message_list import DUE, PAGE, STATES, MessageQuery, PageStart, list_messages
from proxy.server.message_list import READ_MAX as LIST_READ_MAX
from proxy.server.tracing import READ_MAX
from proxy.session.queries import sql as client_sql
from tests.support.servers import SERVERS, ServerPool, server_or_skip
from tests.support.stores import GROWING, SCAN_INDEXES, ServerSubject, partitioned_queue

S = NS_PER_S
HOUR = 3600 * S
ROWS = 200_000
LIMIT = 500
PRIORITIES = 5
SLACK = 10
"""Entries read beyond those returned: where a range begins, where it ends, and what a MIN needs."""

PARTITIONS = 7
"""Of the table that has them: live rows, five by time, and the rest."""

MEASURED = {
    "scan_first_priority",
    "scan_next_priority",
    "scan_priority",
    "scan_ties",
    "scan_without_priority",
    "scan_greatest_id",
    "scan_part_odd",
    "scan_part_timed",
    "scan_part_without_priority",
    "scan_part_zero",
    "claim_lock",
    "claim_lock_one",
    "claim_update",
    "claim_update_one",
    "limit_count",
    "ack_lock",
    "ack_update",
    "fetch",
    "lookup",
    "lookup_unlocked",
    "unacknowledged",
    "release_lock",
    "release_unsent",
    "release_sent",
    "count_failure",
    "dead_letter_there",
    "dead_letter_insert",
    "dead_letter_delete",
    "dead_letter_postpone",
    "purge_find",
    "purge_lock",
    "purge_delete",
    "rights_select",
    "rights_update",
    "rights_claim",
    "rights_delete",
    "rights_insert",
}
EXEMPT = {
    "scan_due_slowly",  # Both are for tables without the index, and do sort.
    "scan_later_slowly",
    "retention_drop",  # No ALTER TABLE has a plan, and none of these copies a row.
    "retention_add",
    "retention_split",
    "retention_rest",  # Any one row.
    "group_first",  # These four are measured in test_plans_of_groups.py.
    "group_rotation",
    "group_arrivals",
    "group_arrivals_zero",
    "semaphore_holders",  # Measured in test_plans_of_semaphores.py.
    "group_count",  # These three are measured in test_plans_of_group_limits.py.
    "group_holders",
    "group_heads",
    "group_rates_read",  # Measured in test_plans_of_group_rates.py.
    "batch_waits",  # These are measured in test_plans_of_batches.py.
    "batch_rotation",
    "batch_follow_ups",
    "batch_by_ids",
    "batch_of_parts",
    "batch_lock_waiting",
    "batch_lock_due",
    "batch_set_time",
    "find_abandoned",  # Reads all that is unacknowledged, when a proxy is gone.
}

FILL = """
    INSERT INTO messages (id, priority, epoch, time_next, time_acked, body)
    WITH digits AS (SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
            UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9),
        numbers AS (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d AS n
            FROM digits a, digits b, digits c, digits e, digits f, digits g WHERE g.d < 2)
    SELECT n + 1, n % 5, n % 4 = 3,
        CASE n % 8 WHEN 0 THEN NULL WHEN 4 THEN NULL
            WHEN 1 THEN {now} + 31536000000000000 + n WHEN 5 THEN {now} + 31536000000000000 + n
            WHEN 2 THEN 0 WHEN 6 THEN {now} - 3600000000000 + n
            ELSE {now} + 600000000000 + n END,
        IF(n % 4 = 0, {now} - 7200000000000 + n, NULL), REPEAT('x', 100)
    FROM numbers
"""


@dataclass(frozen=True)
class Measured:
    """One statement that the store ran: its plan, what it returned or changed, and what it read for that."""

    text: str
    plan: dict[str, str]
    count: int
    read: int

    @property
    def name(self) -> str:
        """The first words of the statement, for messages."""
        return " ".join(self.text.split())[:100]


@dataclass
class Meter:
    """The measurements since the last call."""

    statements: list[Measured] = field(default_factory=list)

    def take(self) -> list[Measured]:
        taken, self.statements = self.statements, []
        return taken


class MeasuringConnection(StoreConnection):
    """Runs statements one by one, each explained and counted."""

    def __init__(self, address: BackendAddress, meter: Meter) -> None:
        self._meter: Meter | None = None
        self._begun: tuple[Sequence[str], SessionContext] = (), OWN_CONTEXT
        super().__init__(address, ConnectionLimits())
        self._meter = meter

    def begin(self, statements: Sequence[str], context: SessionContext = OWN_CONTEXT) -> Begun:
        if self._meter is None:
            return super().begin(statements, context)
        self._begun = statements, context
        return Begun(len(statements), None, checked=False)

    def results(self, begun: Begun, keep_last: Callable[[bytes], None] | None = None) -> Iterator[Result]:
        if self._meter is None:
            yield from super().results(begun, keep_last)
            return
        statements, context = self._begun
        for at, text in enumerate(statements):
            yield self._measured(text, context, keep_last if at == len(statements) - 1 else None)

    def _result(self, text: str, context: SessionContext = OWN_CONTEXT) -> Result:
        return next(super().results(super().begin([text], context)))

    def _measured(self, text: str, context: SessionContext, keep: Callable[[bytes], None] | None) -> Result:
        if "/* ackstream" not in text or "/* ackstream catalog" in text:
            return self._result(text, context)
        plan = self._explained(text)
        before = self._read_so_far()
        result = self._result(text, context)
        read = self._read_so_far() - before - self._reading_costs()
        assert self._meter is not None
        self._meter.statements.append(Measured(text, plan, len(result.rows) or result.affected, read))
        for row in result.rows if keep else ():
            keep(row) if keep else None
        return result

    def _explained(self, text: str) -> dict[str, str]:
        names = ("id", "select", "table", "partitions", "type", "possible", "key", "key_len", "ref", "rows", "Extra")
        text = re.sub(r"^(/[*]M!.*?[*]/\s*)+", "", text)  # Settings for this one statement precede an EXPLAIN.
        result = self._result(f"EXPLAIN /*!80000 FORMAT=TRADITIONAL */ /*M! PARTITIONS */ {text}")
        values = [(value or b"").decode() for value in text_values(result.rows[-1])]  # Of INSERT … SELECT, the latter.
        if len(values) > len(names):  # MySQL also shows what is filtered.
            del values[10]
        return dict(zip(names, values, strict=True))

    def _read_so_far(self) -> int:
        result = self._result("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(value or b"0") for _, value in map(text_values, result.rows))

    def _reading_costs(self) -> int:
        first = self._read_so_far()
        return self._read_so_far() - first


@dataclass(frozen=True)
class Bench:
    """A full table, a store that is measured, and its meter."""

    table: QueueTable
    store: MySQLStore
    meter: Meter
    subject: ServerSubject


@pytest.fixture(
    scope="module",
    params=[f"{name} {form}" for name in SERVERS for form in (*SCAN_INDEXES, "partitioned")],
)
def bench(request: pytest.FixtureRequest, server_pool: ServerPool) -> Iterator[Bench]:
    """The table of 200,000 rows, on each server, with each kind of index, and partitioned by time."""
    name, form = request.param.split()
    with ExitStack() as stack:
        if form == "partitioned":
            server = stack.enter_context(server_or_skip(name))  # Proxies of other tests would make more partitions.
            subject = partitioned_queue(server, partition_clause(time.time_ns() - 10 * HOUR, 10 * HOUR, 5))
        else:
            server = server_pool.get(name)
            subject = ServerSubject(server, columns=GROWING, index=SCAN_INDEXES[form])
        stack.callback(subject.close)
        subject.execute("SET SESSION sql_mode = ''")
        subject.execute(FILL.format(now=subject.now_ns()))
        subject.execute("ANALYZE TABLE messages")
        meter = Meter()
        yield Bench(subject.table, measured_store(server, meter), meter, subject)


def measured_store(server: EmbeddedServer, meter: Meter) -> MySQLStore:
    address = BackendAddress(server.host, server.port, "root")
    store = MySQLStore(address)
    store._pool = Pool(lambda: MeasuringConnection(address, meter), 1)
    return store


@pytest.fixture
def due(bench: Bench) -> list[Wanted]:
    """Messages that can be claimed, spread over the table."""
    found = bench.store.scan(bench.table, LIMIT).value.entries
    bench.meter.take()
    return [Wanted(entry.key, entry.epoch, 60 * S + at) for at, entry in enumerate(found) if entry.epoch == 0][:LIMIT]


def by_id(bench: Bench) -> dict[str, Any]:
    """What `frugal` has to expect of a statement by id: an index that is not unique is read up to the next entry."""
    return {"key": bench.table.id_index, "lookups": 2 if bench.table.kept_by_partition else 1}


def frugal(statements: Sequence[Measured], *, key: str, least: int = 1, lookups: int = 1) -> None:
    """Each was planned on that index without sorting, and read little more than it returned or changed."""
    assert len(statements) >= least
    for measured in statements:
        plan = f"{measured.name}: {measured.plan}"
        if not re.search("optimized away|mpossible WHERE|[Nn]o matching", measured.plan["Extra"]):
            assert measured.plan["key"] == key, plan
            assert measured.plan["type"] in {"range", "ref", "const", "eq_ref"}, plan
        if "purge" not in measured.text:
            assert measured.plan["partitions"] in {"", "live"}, plan
        assert "filesort" not in measured.plan["Extra"], plan
        assert "temporary" not in measured.plan["Extra"], plan
        assert measured.read <= lookups * measured.count + SLACK, f"read {measured.read} for {measured.count}: {plan}"


class TestScan:
    @pytest.mark.parametrize("limit", [1, 64, LIMIT, 10_000])
    def test_it_reads_as_many_entries_as_it_returns(self, bench: Bench, limit: int) -> None:
        for _ in range(2):  # The second one knows the priorities.
            result = bench.store.scan(bench.table, limit).value
            assert len(result.entries) >= limit
            assert result.more
            statements = bench.meter.take()
            frugal(statements, key="next_up", least=3)
            assert sum(measured.read for measured in statements) <= 3 * limit + SLACK * len(statements)

    def test_a_poll_reads_an_entry_of_each_table(self, bench: Bench) -> None:
        assert bench.store.unacknowledged([bench.table]).value == {bench.table.id}
        frugal(bench.meter.take(), key="next_up")

    def test_each_of_two_shares_is_read_in_the_order_of_the_index(self, bench: Bench) -> None:
        """The entries of the other share are read past, about as many as are returned."""
        result = bench.store.scan(bench.table, LIMIT, portion=Portion(Share(0, 2), others=LIMIT)).value
        assert len(result.entries) >= LIMIT
        assert len(result.others) >= LIMIT
        assert result.more
        assert result.others_more
        for measured in bench.meter.take():
            plan = f"{measured.name}: {measured.plan}"
            assert measured.plan["key"] in {"next_up", ""}, plan
            assert "filesort" not in measured.plan["Extra"], plan
            assert measured.read <= 3 * measured.count + SLACK, f"read {measured.read} for {measured.count}: {plan}"

    def test_it_passes_over_priorities_whose_rows_are_all_scheduled(self, bench: Bench) -> None:
        bench.subject.execute("UPDATE messages SET priority = 9 WHERE priority = 4 AND time_next > 0 AND epoch = 0")
        for _ in range(2):
            result = bench.store.scan(bench.table, 64).value
            assert result.more
            frugal(bench.meter.take(), key="next_up")


class TestScanForACondition:
    NOBODY = Selection("`body` = 'nobody'")

    def test_after_the_scan_position_it_reads_new_rows_only(self, bench: Bench) -> None:
        """50,000 rows that nobody wants are due, half of them of time 0, and cost nothing once they were passed."""
        now_ns = bench.subject.now_ns()
        places = {priority: Position(ROWS, now_ns) for priority in [*range(PRIORITIES), 9]}
        for _ in range(2):
            part = Range(places, now_ns + 10 * S)
            assert bench.store.scan(bench.table, 64, self.NOBODY, part).value.entries == ()
            statements = bench.meter.take()
            assert sum(measured.read for measured in statements) <= SLACK * len(statements)

    def test_a_full_scan_reads_the_due_rows_and_not_those_scheduled_or_acknowledged(self, bench: Bench) -> None:
        part = Range({}, bench.subject.now_ns() + 10 * S)
        assert bench.store.scan(bench.table, 64, self.NOBODY, part).value.entries == ()
        statements = bench.meter.take()
        assert sum(measured.read for measured in statements) <= 2 * ROWS // 4 + SLACK * len(statements)

    def test_selected_rows_are_found_without_sorting_if_the_index_ascends(self, bench: Bench) -> None:
        part = Range({}, bench.subject.now_ns() + 10 * S)
        result = bench.store.scan(bench.table, 64, Selection("`body` <> 'nobody'"), part).value
        assert len(result.entries) == 64
        statements = bench.meter.take()
        if not bench.table.scan_descending:
            frugal([measured for measured in statements if "time_next IS NULL" not in measured.text], key="next_up")


class TestByKey:
    def test_claiming_reads_each_row_once_to_lock_it_and_once_to_change_it(
        self, bench: Bench, due: list[Wanted]
    ) -> None:
        claims = bench.store.claim(bench.table, due).value
        assert len(claims) == len(due)
        lock, *updates = bench.meter.take()
        frugal([lock], **by_id(bench))
        frugal(updates, **by_id(bench))
        assert sum(update.count for update in updates) == len(claims)

    def test_claiming_one_message_reads_its_row_once_to_lock_it_and_once_to_change_it(
        self, bench: Bench, due: list[Wanted]
    ) -> None:
        sql, want = TableStatements(bench.table), due[LIMIT // 2]
        ids = sql.ids([want.key])
        with bench.store._pool.connection() as connection:
            lock = sql("claim_lock_one", ids=ids)
            update = sql("claim_update_one", ids=ids, epoch=want.epoch, wait_us=60_000_000, below_us=0)
            connection.run([statement("claim_clock"), lock, update])
        statements = bench.meter.take()
        frugal(statements, **by_id(bench), least=2)
        assert [measured.count for measured in statements] == [1, 1]

    @pytest.mark.parametrize("binary", [False, True])
    def test_fetching_reads_each_row_once(self, bench: Bench, due: list[Wanted], *, binary: bool) -> None:
        row_format = RowFormat(("id", "body"), binary=binary)
        found = bench.store.lookup(bench.table, [want.key for want in due]).value
        bench.meter.take()
        keys = {key: Delivery(entry.epoch, entry.due_ns) for key, entry in found.items()}
        assert len(bench.store.fetch(bench.table, row_format, keys, 1 << 20).value.rows) == len(due)
        if not binary:  # A prepared statement has the same text, and cannot be measured in pieces.
            frugal(bench.meter.take(), **by_id(bench))

    @pytest.mark.parametrize("fenced", [False, True])
    def test_acknowledging_reads_each_row_once_to_lock_it_and_once_to_change_it(
        self, bench: Bench, due: list[Wanted], *, fenced: bool
    ) -> None:
        acks = [Ack((want.key,), want.epoch if fenced else None) for want in due]
        counts = bench.store.acknowledge_all(bench.table, acks, bench.subject.origin).value
        assert counts == (1,) * len(due)
        lock, *updates = bench.meter.take()
        frugal([lock], **by_id(bench))
        if bench.table.writes_alike:  # Otherwise clients do it themselves: it moves rows between partitions.
            frugal(updates, **by_id(bench))

    def test_looking_up_reads_each_row_once(self, bench: Bench, due: list[Wanted]) -> None:
        assert len(bench.store.lookup(bench.table, [want.key for want in due]).value) == len(due)
        frugal(bench.meter.take(), **by_id(bench))

    def test_finding_what_is_not_locked_reads_each_row_once(self, bench: Bench, due: list[Wanted]) -> None:
        assert len(bench.store.unlocked(bench.table, [want.key for want in due]).value) == len(due)
        frugal(bench.meter.take(), **by_id(bench))

    @pytest.mark.parametrize("sent", [False, True])
    def test_releasing_reads_each_row_once_to_lock_it_and_once_to_change_it(
        self, bench: Bench, due: list[Wanted], *, sent: bool
    ) -> None:
        claims = bench.store.claim(bench.table, due).value
        bench.meter.take()
        returns = [Return(claim.key, claim.epoch, claim.deadline_ns, claim.due_ns, sent) for claim in claims]
        assert bench.store.release(bench.table, returns).value.rows == len(due)
        frugal(bench.meter.take(), **by_id(bench), least=2)

    def test_counting_failures_reads_each_row_once_to_lock_it_and_once_to_change_it(
        self, bench: Bench, due: list[Wanted]
    ) -> None:
        before = bench.store.lookup(bench.table, [want.key for want in due]).value
        bench.meter.take()
        states = [(entry.key, entry.epoch, entry.due_ns) for entry in before.values()]
        returns = [Return(key, epoch, due_ns, due_ns, False, failed_wait_ns=S) for key, epoch, due_ns in states]
        assert bench.store.release(bench.table, returns).value.rows == len(due)
        frugal(bench.meter.take(), **by_id(bench), least=2)

    def test_missing_rows_cost_one_index_lookup_each(self, bench: Bench) -> None:
        gone = [Wanted(key, 0, S) for key in range(ROWS + 1, ROWS + 1 + LIMIT)]
        assert bench.store.claim(bench.table, gone).value == ()
        (lock,) = bench.meter.take()
        assert lock.plan["key"] == bench.table.id_index
        assert lock.read <= LIMIT + SLACK


IN_FLIGHT, GIVEN_BACK = 300, 200


@pytest.fixture(scope="module", params=SERVERS)
def counted(request: pytest.FixtureRequest, server_pool: ServerPool) -> Iterator[Bench]:
    """200,000 rows. Of those whose leases are not past, most are acknowledged and some were given back."""
    server = server_pool.get(request.param)
    subject = ServerSubject(server, columns=GROWING, in_flight=1_000)
    subject.execute("SET SESSION sql_mode = ''")
    subject.execute(FILL.format(now=subject.now_ns()))
    subject.execute(f"UPDATE messages SET lease = time_next WHERE id % 4 = 0 AND id <= {4 * IN_FLIGHT}")
    ends = subject.now_ns() + HOUR
    subject.execute(f"UPDATE messages SET lease = {ends} WHERE id % 4 = 2 AND id <= {4 * GIVEN_BACK}")
    subject.execute("UPDATE messages SET lease = %s WHERE time_acked IS NOT NULL", ends)
    subject.execute("ANALYZE TABLE messages")
    meter = Meter()
    yield Bench(subject.table, measured_store(server, meter), meter, subject)
    subject.close()


class TestCount:
    """The messages in flight of a queue with a limit."""

    def test_it_reads_the_entries_of_what_is_in_flight_or_was_given_back(self, counted: Bench) -> None:
        answer = counted.store.claim_and_fetch(counted.table, [Wanted(3, 0, S)], None, 0).value
        assert answer.limits is not None
        assert answer.limits.places == 1_000 - IN_FLIGHT - len(answer.claims)
        (count,) = [measured for measured in counted.meter.take() if "COUNT(*)" in measured.text]
        assert count.plan["key"] == "by_lease", count.plan
        assert count.plan["type"] == "range", count.plan
        assert "Using index" in count.plan["Extra"], count.plan
        assert "filesort" not in count.plan["Extra"], count.plan
        derived = 2 * IN_FLIGHT  # Written to the inner table, and read from it.
        assert count.read <= IN_FLIGHT + GIVEN_BACK + derived + SLACK


class TestBury:
    def test_moving_reads_each_row_once_to_lock_copy_and_delete_it(self, bench: Bench, due: list[Wanted]) -> None:
        dead_letter = bench.subject.dead_letter()
        assert len(bench.store.move_dead_letters(bench.table, due, dead_letter).value.moved) == len(due)
        lock, hold, live, acked, insert, delete = bench.meter.take()
        frugal([lock, insert, delete], **by_id(bench))
        assert max(live.read, acked.read) <= PARTITIONS * len(due) + SLACK
        assert hold.read == 0

    def test_their_ids_cost_one_index_lookup_each_in_a_full_dead_letter_table(
        self, bench: Bench, due: list[Wanted]
    ) -> None:
        dead_letter = bench.subject.dead_letter()
        bench.subject.execute("INSERT IGNORE INTO dead SELECT * FROM messages WHERE id % 80 < 40")
        result = bench.store.move_dead_letters(bench.table, due, dead_letter).value
        assert result.problem
        assert result.moved
        lock, hold, live, acked, insert, delete, *postpone = bench.meter.take()
        frugal([lock, insert, delete, *postpone], **by_id(bench), least=4)
        assert max(live.read, acked.read) <= PARTITIONS * len(due) + SLACK
        assert hold.read == 0


class TestLockingByAClient:
    """The statement of a STREAM … FOR UPDATE, which runs in the client's session."""

    @pytest.mark.parametrize("order", ["id", "priority, time_next, id"])
    def test_it_reads_each_row_once_and_sorts_only_what_is_not_in_the_order_of_ids(
        self, bench: Bench, due: list[Wanted], order: str
    ) -> None:
        sql = TableStatements(bench.table)
        words = {"ids": sql.ids(want.key for want in due), "now_ns": bench.subject.now_ns(), "limit": LIMIT}
        text = client_sql(
            "lock_messages",
            **sql.words,
            **words,
            first=sql.words["id"],
            columns="id, body",
            alive="TRUE",
            order=order,
            seconds=1,
        )
        with bench.store._pool.connection() as connection:
            connection.run([text])
        (lock,) = bench.meter.take()
        assert lock.count == len(due)
        if order == "id":
            frugal([lock], **by_id(bench))
        assert lock.plan["key"] == bench.table.id_index
        assert lock.read <= (by_id(bench)["lookups"] + 1) * lock.count + SLACK


class TestTracing:
    def test_the_contexts_of_delivered_messages_are_read_by_id(self, bench: Bench, due: list[Wanted]) -> None:
        sql = TableStatements(bench.table)
        words = {**sql.words, "ids": sql.ids({want.key for want in due}), "limit": READ_MAX}
        text = client_sql("trace_contexts", **words).replace("traceparent", "body")  # The table has no such column.
        with bench.store._pool.connection() as connection:
            connection.run([text])
        (read,) = bench.meter.take()
        assert read.plan["key"] == bench.table.id_index
        if not bench.table.kept_by_partition:  # Where it is, an id is searched for in each partition.
            frugal([read], **by_id(bench))


class BenchCounting:
    """The connection of a bench, as the admin port's pages use the engine's."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def rows(self, text: str) -> Sequence[Sequence[str | None]]:
        return self._bench.store.read(text).value

    async def expected(self, text: str) -> list[int]:
        raise NotImplementedError(text)

    async def now_ns(self) -> int:
        return self._bench.subject.now_ns()


class TestMessageList:
    """The admin port's page of messages."""

    @pytest.mark.parametrize("state", STATES)
    def test_each_page_reads_as_many_entries_as_it_looks_at(self, bench: Bench, state: str) -> None:
        now_ns = bench.subject.now_ns()
        middle = PageStart(2, 0 if state in DUE else now_ns + 600 * S, str(ROWS // 2).encode().hex())
        most = PAGE + 1 if state in DUE else LIST_READ_MAX
        for begin in (None, middle):
            after: PageStart | None = begin
            for _ in range(3):
                listed = asyncio.run(list_messages(BenchCounting(bench), bench.table, MessageQuery(state, after)))
                statements = bench.meter.take()
                frugal(statements, key="next_up")
                assert sum(measured.read for measured in statements) <= most + SLACK * len(statements)
                assert len(listed.messages) == PAGE or state not in DUE
                after = listed.next

    def test_messages_of_a_value_are_read_in_the_order_of_ids_from_the_columns_index(self, bench: Bench) -> None:
        """All rows have the same, and a quarter of them is acknowledged."""
        if bench.table.kept_by_partition:
            return
        bench.subject.execute("ALTER TABLE messages ADD COLUMN city CHAR(4) DEFAULT 'Rome', ADD INDEX by_city (city)")
        queue = bench.store.describe(bench.table.id).value
        assert isinstance(queue, QueueTable)
        (column,) = queue.indexed
        bench.meter.take()
        after: PageStart | None = None
        for _ in range(3):
            wanted = MessageQuery("ready", after, column=column.name, value="Rome")
            listed = asyncio.run(list_messages(BenchCounting(bench), queue, wanted))
            frugal(bench.meter.take(), key=column.index)
            assert (listed.read, len(listed.messages)) == (LIST_READ_MAX, PAGE)
            after = listed.next
        bench.subject.execute("ALTER TABLE messages DROP COLUMN city")


class TestPurge:
    def test_it_reads_what_it_deletes(self, bench: Bench) -> None:
        assert bench.store.purge(bench.table, 3600 * S, LIMIT).value.rows == LIMIT
        find, lock, delete = bench.meter.take()
        frugal([find], key="next_up")
        lookups = 3 if bench.table.kept_by_partition else 1  # An id is looked for in the lowest partition, too.
        frugal([lock, delete], key=bench.table.id_index, lookups=lookups)

    def test_finding_nothing_costs_nothing(self, bench: Bench) -> None:
        assert bench.store.purge(bench.table, 100 * 3600 * S, LIMIT).value.rows == 0
        frugal(bench.meter.take(), key="next_up")


class TestPrivileges:
    @pytest.mark.parametrize("privilege", ["select", "update", "claim", "delete", "insert"])
    def test_checking_a_privilege_reads_nothing(self, bench: Bench, privilege: str) -> None:
        with bench.store._pool.connection() as connection:
            connection.run([statement(f"rights_{privilege}", table=qualified(bench.table.id), and_lease="")])
        (asked,) = bench.meter.take()
        assert asked.read == 0


def test_no_statement_on_a_table_is_forgotten_here() -> None:
    on_tables = {name for name, text in templates().items() if re.search(r"\$table\b", text.template)}
    assert on_tables == MEASURED | EXEMPT
