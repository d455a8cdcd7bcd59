"""What docs/workers.md states of pools and ORMs, with SQLAlchemy: whose messages go back, and the model of a queue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.proxies import RunningProxy
from tests.support.queues import rows, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.drivers

sqlalchemy = pytest.importorskip("sqlalchemy", reason="the drivers are installed by make test-drivers")
orm = pytest.importorskip("sqlalchemy.orm")
pools = pytest.importorskip("sqlalchemy.pool")

PAGE = (Path(__file__).parents[2] / "docs" / "workers.md").read_text()
NEXT = sqlalchemy.text("STREAM id FROM jobs LIMIT 1 WAIT 10")


@pytest.fixture
def client(proxy: RunningProxy, database: str) -> Iterator[Any]:
    with proxy.connect(database=database) as connection:
        run(connection, "CREATE QUEUE jobs (task VARCHAR(100)) ACK_WAIT = 600")
        yield connection


def engine(proxy: RunningProxy, database: str, **options: Any) -> Any:
    address = f"mysql+pymysql://root@{proxy.host}:{proxy.port}/{database}"
    return sqlalchemy.create_engine(address, isolation_level="AUTOCOMMIT", **options)


def epoch(client: Any) -> int:
    """The epoch of the delivery that another worker gets now; 0: it gets none."""
    delivered = rows(client, "STREAM id, epoch FROM jobs LIMIT 1 NOWAIT")
    return int(delivered[0][1]) if delivered else 0


def test_without_a_pool_the_message_goes_back_when_the_block_ends(proxy: RunningProxy, database: str, client) -> None:
    run(client, "INSERT INTO jobs (task) VALUES ('a')")
    with engine(proxy, database, poolclass=pools.NullPool).connect() as worker:
        assert worker.execute(NEXT).scalar_one() == 1
        assert epoch(client) == 0
    eventually(lambda: epoch(client) == 2)


def test_the_default_pool_keeps_the_connection_and_so_the_message(proxy: RunningProxy, database: str, client) -> None:
    run(client, "INSERT INTO jobs (task) VALUES ('a')")
    pooled = engine(proxy, database)
    with pooled.connect() as worker:
        assert worker.execute(NEXT).scalar_one() == 1
    assert epoch(client) == 0
    pooled.dispose()
    eventually(lambda: epoch(client) == 2)


def test_with_on_disconnect_keep_any_connection_acknowledges(proxy: RunningProxy, database: str, client) -> None:
    run(client, "ALTER QUEUE jobs ON_DISCONNECT = keep")
    run(client, "INSERT INTO jobs (task) VALUES ('a')")
    without = engine(proxy, database, poolclass=pools.NullPool)
    with without.connect() as worker:
        assert worker.execute(NEXT).scalar_one() == 1
    assert epoch(client) == 0
    with without.connect() as other:
        assert other.execute(sqlalchemy.text("ACK jobs WHERE id = 1 AND epoch = 1")).rowcount == 1


def test_the_model_on_the_page_enqueues(proxy: RunningProxy, database: str, client) -> None:
    (text,) = re.findall(r"^```python\n(class Job.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {
        "Base": orm.declarative_base(),
        "Mapped": orm.Mapped,
        "mapped_column": orm.mapped_column,
    }
    exec(compile(text, "docs/workers.md", "exec", dont_inherit=True), names)
    with orm.Session(engine(proxy, database)) as session:
        session.add(names["Job"](task="tea"))
        session.commit()
    assert rows(client, "STREAM * FROM jobs LIMIT 1 WAIT 10") == [(1, "tea")]
