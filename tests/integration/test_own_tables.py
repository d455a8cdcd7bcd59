"""A table of ackstream's own that is another thing than ackstream makes: the queue says so, and does not use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.catalog.own_tables import OWN_TABLES
from engine.queue_table import QueueTable
from proxy.embedded.server import EmbeddedServer
from proxy.session.queries import sql
from tests.support.stores import GROWING, ServerSubject

OTHERS = {
    "a view": ("CREATE VIEW {t} AS SELECT * FROM {t}_before", "it is a view"),
    "a view of its user's rights": ("CREATE SQL SECURITY INVOKER VIEW {t} AS SELECT * FROM {t}_before", "it is a view"),
    "another storage engine": ("CREATE TABLE {t} ({columns}) ENGINE = MyISAM {comment}", "its storage engine is"),
    "a table of several": ("CREATE TABLE {t} ({columns}) ENGINE = MERGE UNION = () {comment}", "its storage engine is"),
    "no primary key": ("CREATE TABLE {t} LIKE {t}_before; ALTER TABLE {t} DROP PRIMARY KEY", "its primary key is"),
    "other columns": ("CREATE TABLE {t} (a INT PRIMARY KEY) {comment}", "its column"),
    "no comment": ("CREATE TABLE {t} ({columns})", "its comment does not begin with ackstream:"),
    "a sequence": ("CREATE SEQUENCE {t}", "its comment does not begin with ackstream:"),
    "a trigger": (
        "CREATE TABLE {t} ({columns}) {comment}; CREATE TRIGGER {t}_t BEFORE INSERT ON {t} FOR EACH ROW SET @a = 1",
        "it has a trigger",
    ),
}


@pytest.fixture(scope="module", params=["rate", "group_rate", "semaphores"])
def subject(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[ServerSubject]:
    """A queue with an option that needs such a table."""
    columns = GROWING + ", tenant INT"
    if request.param == "rate":
        subject = ServerSubject(server, columns=columns, rate=1.0)
    elif request.param == "group_rate":
        subject = ServerSubject(server, columns=columns, groups=["tenant"], group_rate=1.0)
    else:
        subject = ServerSubject(server, columns=columns, semaphores=True)
    yield subject
    subject.close()


def described(subject: ServerSubject) -> QueueTable:
    found = subject.store.describe(subject.table.id).value
    assert isinstance(found, QueueTable)
    return found


def comment_and_columns(name: str) -> dict[str, str]:
    """Of a table as ackstream makes it."""
    own = OWN_TABLES[name]
    made = sql(own.create, table=name, comment=f"'{own.comment()}'")
    columns, _, comment = made.partition("(")[2].rpartition(") ENGINE = InnoDB ")
    return {"columns": columns, "comment": comment}


def put_aside(subject: ServerSubject, other: str) -> str:
    """Put another thing in the place of the queue's table of ackstream's own. Returns the name."""
    *_, name = (own.name for own in OWN_TABLES.values() if own.limit(subject.table.policy))
    subject.execute(f"RENAME TABLE {name} TO {name}_before")
    for statement in OTHERS[other][0].format(t=name, **comment_and_columns(name)).split("; "):
        subject.execute(statement)
    return name


def put_back(subject: ServerSubject, name: str) -> None:
    """The table itself again."""
    ((kind,),) = subject.execute(
        f"SELECT table_type FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '{name}'"
    )
    subject.execute(f"DROP {'VIEW' if kind == 'VIEW' else 'TABLE'} {name}")
    subject.execute(f"RENAME TABLE {name}_before TO {name}")


@pytest.mark.parametrize("other", OTHERS)
def test_another_thing_of_that_name_is_noticed_and_a_problem_of_the_queue(
    subject: ServerSubject, other: str, flavour: str
) -> None:
    if other == "a sequence" and flavour == "mysql":
        pytest.skip("MySQL has no sequences")
    before = subject.store.discover().value.marked[subject.table.id]
    name = put_aside(subject, other)
    try:
        after = subject.store.discover().value.marked[subject.table.id]
        assert after is None or after != before
        found = described(subject)
    finally:
        put_back(subject, name)
    (warning,) = found.warnings
    assert f"{subject.database}.{name} is not as ackstream makes it ({OTHERS[other][1]}" in warning
    assert found.policy.paused
    assert described(subject) == subject.table


def test_what_becomes_a_view_and_was_nothing_before_is_noticed(subject: ServerSubject) -> None:
    name = put_aside(subject, "a view")
    subject.execute(f"DROP VIEW {name}")
    before = subject.store.discover().value.marked[subject.table.id]
    subject.execute(f"CREATE VIEW {name} AS SELECT * FROM {name}_before")
    after = subject.store.discover().value.marked[subject.table.id]
    put_back(subject, name)
    assert after is None or after != before
