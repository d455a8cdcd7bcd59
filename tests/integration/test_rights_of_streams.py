"""Rights that are taken away from a running stream: it ends with the server's error, and others get its messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pymysql
import pytest

from proxy.embedded.server import EmbeddedServer
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.queues import create_queue, enqueue, rows, run
from tests.support.raw import RawClient
from tests.support.servers import connect
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def strict_proxy(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """A proxy that believes no proof of rights longer than a moment."""
    folder = tmp_path_factory.mktemp("strict")
    config = folder / "config.toml"
    config.write_text("rights_max_age_s = 0.001\n")
    with running_proxy(server, folder / "log", ["--config", str(config)]) as proxy:
        yield proxy


@pytest.fixture
def root(server, database):
    with connect(server, database=database) as root:
        create_queue(root, "m", "payload TEXT, secret TEXT")
        yield root


@pytest.fixture
def name(root, database) -> Iterator[str]:
    """A user without any rights yet."""
    name = f"u_{database}"
    run(root, f"CREATE USER {name}@localhost")
    yield name
    run(root, f"DROP USER IF EXISTS {name}@localhost")


TAKEN = {
    "UPDATE on the table": (["SELECT, UPDATE ON {db}.m"], "REVOKE UPDATE ON {db}.m FROM {user}", 1142),
    "SELECT on the table": (["SELECT, UPDATE ON {db}.m"], "REVOKE SELECT ON {db}.m FROM {user}", 1143),
    "all on the table": (["ALL ON {db}.m"], "REVOKE ALL ON {db}.m FROM {user}", 1142),
    "everything": (["SELECT, UPDATE ON {db}.m"], "REVOKE ALL PRIVILEGES, GRANT OPTION FROM {user}", 1142),
    "SELECT on a column": (
        ["SELECT (id, payload, secret), UPDATE ON {db}.m"], "REVOKE SELECT (payload) ON {db}.m FROM {user}", 1143
    ),
    "SELECT on a column of the condition": (
        ["SELECT (id, payload, secret), UPDATE ON {db}.m"], "REVOKE SELECT (secret) ON {db}.m FROM {user}", 1143
    ),
    "all on the database": (["ALL ON {db}.*"], "REVOKE ALL ON {db}.* FROM {user}", 1142),
    "the account, with rights on the table": (["SELECT, UPDATE ON {db}.m"], "DROP USER {user}", 1142),
    "the account, with global rights": (["SELECT, UPDATE ON *.*"], "DROP USER {user}", 1045),
}  # fmt: skip


@pytest.mark.parametrize(("granted", "taken", "code"), TAKEN.values(), ids=TAKEN)
def test_a_stream_ends_when_its_rights_are_taken_away_and_its_messages_are_for_others(
    strict_proxy, root, database, name, consume, granted, taken, code
) -> None:
    for grant in granted:
        run(root, f"GRANT {grant.format(db=database)} TO {name}@localhost")
    consumer = consume(
        strict_proxy.connect(user=name), f"STREAM id, payload FROM {database}.m WHERE secret IS NULL OR secret = 5"
    )
    enqueue(root, "m", "a")
    eventually(lambda: consumer.received == [(1, "a")])
    run(root, taken.format(db=database, user=f"{name}@localhost"))
    enqueue(root, "m", "b")
    assert consumer.ended.wait(10)
    assert isinstance(consumer.error, pymysql.MySQLError)
    assert consumer.error.args[0] == code
    assert consumer.received == [(1, "a")]
    with strict_proxy.connect(database=database) as other:
        got = rows(other, "STREAM id, epoch FROM m LIMIT 2 WAIT 20")
        if len(got) < 2:
            got += rows(other, "STREAM id, epoch FROM m LIMIT 1 WAIT 20")
    assert sorted(got) == [(1, 2), (2, 2)]


@pytest.mark.parametrize("granted", ["SELECT, UPDATE ON *.*", "SELECT, UPDATE ON {db}.*"])
def test_rights_that_the_server_leaves_a_session_are_left_to_its_stream(
    strict_proxy, server, root, database, name, consume, granted
) -> None:
    """Global ones, and those on the session's default database, are read when a session begins."""
    run(root, f"GRANT {granted.format(db=database)} TO {name}@localhost")
    with connect(server, user=name, database=database) as direct:
        consumer = consume(strict_proxy.connect(user=name, database=database), "STREAM id, payload FROM m")
        enqueue(root, "m", "a")
        eventually(lambda: consumer.received)
        run(root, f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {name}@localhost")
        assert run(direct, "UPDATE m SET payload = payload WHERE id = 0") == 0
        enqueue(root, "m", "b")
        eventually(lambda: len(consumer.received) == 2)


def test_what_a_complete_stream_was_given_too_late_is_refused_as_well(strict_proxy, root, database, name) -> None:
    run(root, f"GRANT SELECT, UPDATE ON {database}.m TO {name}@localhost")
    with RawClient(strict_proxy, user=name) as client:
        client.send(f"\x03STREAM id FROM {database}.m LIMIT 1 WAIT 20".encode())
        client.packet()
        client.packet()
        client.packet()
        run(root, f"REVOKE ALL ON {database}.m FROM {name}@localhost")
        enqueue(root, "m", "a")
        with contextlib.suppress(ConnectionError):
            assert client.packet().payload[1:3] == (1142).to_bytes(2, "little")
        assert client.query("SELECT 'alive'")[-2].payload == b"\x05alive"
