"""A view in the place of a table reaches nothing: no statement that the engine's account runs evaluates any of it.
Another table in its place, or none, is an error that is known.

An owner of a database can put a view wherever the engine expects a table, at any moment. With SQL SECURITY INVOKER,
the view and the functions in it would have all the rights of the engine's account.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pymysql
import pytest

from engine.catalog.own_tables import OWN_TABLES, SEMAPHORES_TABLE
from engine.model import TableId, Wanted
from engine.queue_table import GROUP_RATES, LIMITS, SEMAPHORES, QueueTable
from engine.quoting import qualified, quoted
from engine.store.connection import LASTING, StoreConnection
from engine.store.mysql import MySQLStore
from engine.store.opening import BackendAddress, ConnectionLimits
from engine.store.port import StoreError
from engine.store.queries import TableStatements, scan_hint
from engine.store.queries import templates as engine_templates
from proxy.embedded.server import EmbeddedServer
from proxy.session.queries import sql as client_sql
from proxy.session.queries import templates as proxy_templates
from tests.support.stores import COMMENT, GROWING, NEEDS, TAKING, ServerSubject
from tests.support.table_names import NAMES, words_of

NO_SUCH_KEY, NO_BASE_TABLE, LOCKED = 1176, 1347, 1205

BEHIND = {
    "dead_letter_insert": "dead_letter_hold",
    "rights_insert": "rights_select",
    "rights_limits_write": "rights_limits_read",
    "limit_add": "limit_lock",
    "group_rates_write": "group_rates_read",
    "rights_group_rates_write": "rights_group_rates_read",
}
"""Of each INSERT the statement that runs before it, in the same transaction."""

ON_TABLES = sorted(name for name, text in engine_templates().items() if words_of(text.template) & NAMES)
OF_THE_PROXY = sorted(
    {"next_priority", "count_entries", "count_delivered", "earliest", "newest_id", "count_range", "count_table"}
    | {"estimates", "listed_messages", "shown_groups", "shown_messages", "trace_contexts"}
    | {"batches_named", "count_of_batch", "groups_behind", "semaphores", "semaphores_held", "semaphores_waiting"}
)
"""Those of the proxy that the engine's account runs."""

VIEWS = {
    "the rights of its user": "CREATE SQL SECURITY INVOKER VIEW {view} AS SELECT * FROM {table} WHERE {seen} = 1",
    "the rights of its owner": "CREATE SQL SECURITY DEFINER VIEW {view} AS SELECT * FROM {table} WHERE {seen} = 1",
    "rows that are computed first": (
        "CREATE SQL SECURITY INVOKER VIEW {view} AS"
        " SELECT * FROM (SELECT * FROM {table} WHERE {seen} = 1 UNION SELECT * FROM {table} LIMIT 5) AS first_ones"
    ),
    "no table": "CREATE SQL SECURITY INVOKER VIEW {view} AS SELECT * FROM (SELECT {columns} LIMIT 1) AS computed",
}


@dataclass(frozen=True)
class Place:
    """A queue with all options, described, and a second database with views of the same names."""

    subject: ServerSubject
    views: str

    @property
    def queue(self) -> QueueTable:
        """The queue as if it were described there, before the views took its place."""
        return replace(self.subject.table, id=TableId(self.views, self.subject.table.id.name))

    def text(self, name: str, queue: QueueTable) -> str:
        """A statement of either file on that queue and its other tables."""
        template = engine_templates().get(name) or proxy_templates()[name]
        return template.substitute(words(queue, name))

    def put(self, view: str) -> None:
        """Put views in the places of the queue, its dead-letter table and ackstream's own tables."""
        for name in ("messages", "dead", *OWN_TABLES):
            columns = self.subject.execute(f"SHOW COLUMNS FROM {self.subject.database}.{name}")
            seen = f"{self.subject.database}.seen()"
            statement = VIEWS[view].format(
                view=f"{self.views}.{name}",
                table=f"{self.subject.database}.{name}",
                seen=seen,
                columns=", ".join(f"{seen} AS {quoted(column[0])}" for column in columns),
            )
            self.subject.execute(f"DROP VIEW IF EXISTS {self.views}.{name}")
            self.subject.execute(statement)

    def state(self) -> list[object]:
        """All rows behind the views, and how often their function ran."""
        names = ("messages", "dead", *OWN_TABLES, "seen_rows")
        return [self.subject.execute(f"SELECT * FROM {self.subject.database}.{name}") for name in names]


@pytest.fixture(scope="module")
def place(server: EmbeddedServer) -> Iterator[Place]:
    subject = ServerSubject(
        server,
        columns=GROWING + NEEDS + ", tenant INT, traceparent TEXT",
        groups=["tenant"],
        in_flight=10,
        group_limit=2,
        strict=True,
        rate=1.0,
        group_rate=1.0,
        batches=True,
    )
    subject.execute(client_sql(SEMAPHORES_TABLE.create, table=SEMAPHORES, comment=f"'{SEMAPHORES_TABLE.comment()}'"))
    views = f"{subject.database}_views"
    subject.execute("INSERT INTO messages (id, tenant) VALUES (1, 1), (2, 1)")
    subject.execute(f"CREATE TABLE dead {subject.definition.replace(COMMENT, TAKING)}")
    subject.execute("CREATE TABLE seen_rows (n INT)")
    subject.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    subject.execute(
        "CREATE FUNCTION seen() RETURNS INT DETERMINISTIC SQL SECURITY INVOKER"
        " BEGIN INSERT INTO seen_rows VALUES (1); RETURN 1; END"
    )
    subject.execute(f"CREATE DATABASE {views}")
    yield Place(subject, views)
    subject.execute(f"DROP DATABASE {views}")
    subject.close()


def words(queue: QueueTable, name: str) -> dict[str, object]:
    """What the words of a statement on a queue with all options stand for."""
    sql, db = TableStatements(queue), queue.id.db
    own = GROUP_RATES if "group_rates" in name else SEMAPHORES if "semaphores" in name else LIMITS
    assert queue.batch
    assert queue.after_batch
    assert queue.lease_index
    assert queue.lease_column
    return {
        **sql.words,
        **sql.order_words,
        **dict.fromkeys(("portion", "partitions", "nowait", "fences"), ""),
        **dict.fromkeys(("priority", "epoch", "number", "place", "after_ns", "after_id", "from_ns", "age_ns"), 0),
        **dict.fromkeys(("wait_us", "below_us", "full_ns", "batch", "batches", "ids", "in_flight"), 1),
        **dict.fromkeys(("limit", "most", "count", "read", "until_ns", "before_ns", "now_ns", "waiting_ns"), 10),
        **dict.fromkeys(("in_group", "gone", "named", "range"), "TRUE"),
        **dict.fromkeys(("is_open", "reason", "reason_at"), "NULL"),
        "time_next": "time_next",
        "order": "time_next",
        "value": quoted("needs"),
        "state": "",
        "liked": "1",
        "read_max": 10,
        "columns": quoted("tenant") if name == "shown_groups" else quoted("id"),
        "values": quoted("tenant"),
        "lease": quoted(queue.lease_column),
        "lease_index": quoted(queue.lease_index),
        "needs": quoted("needs"),
        "column": quoted("needs"),
        "after_batch": quoted(queue.after_batch.name),
        "after_index": quoted(queue.after_batch.index),
        "batch_value": quoted(queue.after_batch.name),
        "parts": qualified(queue.id),
        "part_batch": quoted(queue.batch.name),
        "part_index": quoted(queue.batch.index),
        "dead_letter": qualified(TableId(db, "dead")),
        "own": qualified(TableId(db, own)),
        "limits": qualified(queue.limits),
        "rates": qualified(queue.group_rates),
        "semaphores": qualified(queue.semaphores),
        "queue": "'messages'",
        "group_hash": "UNHEX(SHA2('', 256))",
        "groups": "x'00'",
        "rows": "('messages', x'00', 1)",
        "names": "'a'" if name == "semaphore_lock" else quoted("p"),
        "definitions": "PARTITION p VALUES LESS THAN (1)",
        "behind": "x'00'" if name == "group_rates_behind" else "TRUE",
        "index": f"{qualified(queue.id)} {scan_hint(queue)}",
        "counts": f"SELECT COUNT(*) FROM {qualified(queue.id)} {scan_hint(queue)}",
    }


def outcome(store: MySQLStore, texts: Sequence[str]) -> int:
    """The error of statements in one transaction, which is undone; 0: there is none."""
    with store._pool.connection() as connection:
        return outcome_on(connection, texts)


def outcome_on(connection: StoreConnection, texts: Sequence[str]) -> int:
    try:
        connection.run(["START TRANSACTION", *texts])
    except StoreError as error:
        return error.code
    finally:
        connection.run(["ROLLBACK"])
    return 0


@pytest.mark.parametrize("view", VIEWS)
def test_the_server_refuses_each_statement_on_a_view_and_evaluates_nothing(place: Place, view: str) -> None:
    place.put(view)
    before = place.state()
    answers = {}
    for name in (*ON_TABLES, *OF_THE_PROXY):
        texts = [place.text(one, place.queue) for one in (BEHIND.get(name), name) if one]
        answers[name] = outcome(place.subject.store, texts)
        assert place.state() == before, f"{name}: {texts}"
    refusals = {name: NO_BASE_TABLE if text.startswith("ALTER") else NO_SUCH_KEY for name, text in _texts().items()}
    assert answers == refusals


def test_each_statement_works_on_the_tables_themselves(place: Place) -> None:
    """So the refusals above are those of views, and not of what the words stand for."""
    for name, text in _texts().items():
        texts = [place.text(one, place.subject.table) for one in (BEHIND.get(name), name) if one]
        if not text.startswith("ALTER"):
            assert outcome(place.subject.store, texts) == 0, texts


def _texts() -> dict[str, str]:
    files = {**proxy_templates(), **engine_templates()}
    return {name: files[name].template for name in (*ON_TABLES, *OF_THE_PROXY)}


@pytest.mark.parametrize("view", VIEWS)
def test_no_call_of_the_store_on_a_queue_that_has_become_a_view_evaluates_any_of_it(place: Place, view: str) -> None:
    """With a scan index or without, with a condition or without."""
    place.put(view)
    before = place.state()
    store, queue = place.subject.store, place.queue
    slow = replace(queue, scan_index=None)
    calls = {
        "a scan": lambda: store.scan(queue, 10),
        "a scan without index": lambda: store.scan(slow, 10),
        "abandoned messages": lambda: store.find_abandoned(slow, 1, 10),
        "a purge": lambda: store.purge(queue, 0, 10),
        "a purge without index": lambda: store.purge(slow, 0, 10),
        "a poll": lambda: store.unacknowledged([queue]),
        "dead letters": lambda: store.move_dead_letters(queue, [Wanted(1, 0, 1)], TableId(place.views, "dead")),
    }
    for name, call in calls.items():
        with pytest.raises(StoreError) as refused:
            call()
        assert refused.value.code == NO_SUCH_KEY, name
        assert place.state() == before, name
    assert store.describe(queue.id).value is None


@pytest.mark.parametrize("view", VIEWS)
def test_dead_messages_stay_where_their_dead_letter_table_has_become_a_view(place: Place, view: str) -> None:
    place.put(view)
    before, subject = place.state(), place.subject
    moved = subject.store.move_dead_letters(subject.table, [Wanted(1, 0, 0)], TableId(place.views, "dead")).value
    assert not moved.moved
    assert moved.problem is not None
    assert "is a view" in moved.problem
    assert place.state()[1:] == before[1:]


OTHERS = {
    "nothing": "DO 0",
    "a table with other columns": "CREATE TABLE {name} (a INT)",
    "a table of another storage engine": "CREATE TABLE {name} (a INT) ENGINE = MyISAM",
}
OF_ANY_TABLE = {"dead_letter_hold", "rights_delete"}
"""These name no column and no index. What runs behind the first one knows the columns by then."""


@pytest.mark.parametrize("other", OTHERS)
def test_each_statement_on_a_table_that_is_another_one_by_now_fails_for_as_long_as_that_lasts(
    place: Place, other: str
) -> None:
    with in_the_place_of_views(place, OTHERS[other]):
        for name, text in _texts().items():
            texts = [place.text(one, place.queue) for one in (BEHIND.get(name), name) if one]
            code = outcome(place.subject.store, texts)
            if text.startswith("ALTER"):
                assert code, name
            elif name not in OF_ANY_TABLE or other == "nothing":
                assert code in LASTING, f"{code}: {texts}"


def test_each_statement_on_a_locked_table_ends_by_its_time_limit(place: Place) -> None:
    """All at once, each on a connection of its own: a server waits a second at least."""
    address = BackendAddress(place.subject.server.host, place.subject.server.port, "root")

    def answer(name: str) -> int:
        connection = StoreConnection(address, ConnectionLimits(lock_wait_s=1))
        try:
            return outcome_on(connection, [place.text(one, place.queue) for one in (BEHIND.get(name), name) if one])
        finally:
            connection.close()

    locked = ", ".join(f"{place.views}.{name} WRITE" for name in ("messages", "dead", *OWN_TABLES))
    like = f"CREATE TABLE {{name}} LIKE {place.subject.database}.{{table}}"
    with in_the_place_of_views(place, like), place.subject.connect() as other, other.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {locked}")
        with ThreadPoolExecutor(len(_texts())) as threads:
            answers = dict(zip(_texts(), threads.map(answer, _texts()), strict=True))
    assert answers == dict.fromkeys(_texts(), LOCKED)


@pytest.mark.parametrize("insert", BEHIND)
def test_what_an_insert_writes_to_cannot_be_replaced_behind_the_statement_that_proves_it(
    place: Place, insert: str
) -> None:
    like = f"CREATE TABLE {{name}} LIKE {place.subject.database}.{{table}}"
    (named,) = {name for name in ("dead", *OWN_TABLES) if f".`{name}`" in place.text(insert, place.queue)} or {
        "messages"
    }
    with in_the_place_of_views(place, like), place.subject.connect() as other, other.cursor() as cursor:
        cursor.execute("SET SESSION lock_wait_timeout = 1")
        with place.subject.store._pool.connection() as connection:
            connection.run(["START TRANSACTION", place.text(BEHIND[insert], place.queue)])
            with pytest.raises(pymysql.OperationalError) as refused:
                cursor.execute(f"RENAME TABLE {place.views}.{named} TO {place.views}.gone")
            connection.run([place.text(insert, place.queue), "ROLLBACK"])
    assert refused.value.args[0] == LOCKED


@contextmanager
def in_the_place_of_views(place: Place, statement: str) -> Iterator[None]:
    """What this statement makes in the place of each view, and nothing afterwards."""
    for name in ("messages", "dead", *OWN_TABLES):
        place.subject.execute(f"DROP VIEW IF EXISTS {place.views}.{name}")
        place.subject.execute(statement.format(name=f"{place.views}.{name}", table=name))
    try:
        yield
    finally:
        for name in ("messages", "dead", *OWN_TABLES):
            place.subject.execute(f"DROP TABLE IF EXISTS {place.views}.{name}")
