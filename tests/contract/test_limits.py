"""Limits that hold over all proxies: each claim counts what the claims of all proxies have committed."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator

import pytest

from engine.model import NS_PER_S, SLOTS, Key, LimitsLeft, Return, RowFormat, Wanted
from engine.store.mysql import MySQLStore
from engine.store.port import StoreError
from tests.support.memory_store import Row
from tests.support.servers import SERVERS, ServerPool
from tests.support.stores import (
    GROWING,
    AnySubject,
    MemorySubject,
    ServerSubject,
    counted_store,
    interrupted_store,
    kept_subjects,
    mysql_store,
)
from tests.support.waiting import eventually

S = NS_PER_S
LIMIT = 3
WAIT_NS = 30 * S
TEXT = RowFormat(("id",), binary=False)


@pytest.fixture(scope="module")
def on_server(server_pool: ServerPool) -> Iterator[Callable[[str], ServerSubject]]:
    """Makes one table for each kind of server, and empties it for each test."""
    yield from kept_subjects(server_pool, lambda server, _: ServerSubject(server, columns=GROWING, in_flight=LIMIT))


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> ServerSubject:
    return on_server(request.param)


@pytest.fixture(params=["memory", *SERVERS])
def subject(request: pytest.FixtureRequest, on_server: Callable[[str], ServerSubject]) -> AnySubject:
    kind: str = request.param
    return MemorySubject(in_flight=LIMIT) if kind == "memory" else on_server(kind)


def put(subject: AnySubject, *keys: Key) -> None:
    subject.put(*(Row(key, time_next_ns=subject.now_ns() - S) for key in keys))


def claim(
    subject: AnySubject, *keys: Key, epoch: int = 0, wait_ns: int = WAIT_NS, rows: bool = False
) -> tuple[list[Key], LimitsLeft]:
    """Claim these messages; returns those that were claimed, and what the limit leaves."""
    wanted = [Wanted(key, epoch, wait_ns) for key in keys]
    answer = subject.store.claim_and_fetch(subject.table, wanted, TEXT if rows else None, 1_000_000, 37).value
    assert answer.limits is not None
    return [claim.key for claim in answer.claims], answer.limits


@pytest.mark.parametrize("rows", [False, True])
def test_the_first_messages_are_claimed_as_far_as_there_are_places(subject: AnySubject, rows: bool) -> None:
    put(subject, *range(1, 6))
    claimed, left = claim(subject, 5, 1, 4, 2, 3, rows=rows)
    assert claimed == [5, 1, 4]
    assert left.left_out == (2, 3)
    assert left.places == 0


def test_what_a_claim_leaves_out_can_be_claimed_once_a_place_is_free(subject: AnySubject) -> None:
    put(subject, *range(1, 6))
    claim(subject, 1, 2, 3)
    assert claim(subject, 4)[0] == []
    subject.acknowledge(2)
    assert claim(subject, 4, 5)[0] == [4]


def test_the_places_that_are_left_are_reported(subject: AnySubject) -> None:
    put(subject, 1, 2)
    assert claim(subject, 1)[1].places == 2
    assert claim(subject, 2)[1].places == 1


def test_the_first_end_of_a_wait_is_reported(subject: AnySubject) -> None:
    put(subject, 1, 2, 3)
    before_ns = subject.now_ns()
    claim(subject, 1, wait_ns=20 * S)
    _, left = claim(subject, 2, wait_ns=30 * S)
    assert left.free_ns is not None
    assert before_ns + 20 * S - SLOTS <= left.free_ns <= subject.now_ns() + 20 * S + SLOTS
    assert claim(subject, 3, wait_ns=10 * S)[1].free_ns is not None


def test_a_place_is_free_when_the_wait_of_its_message_is_over(subject: AnySubject) -> None:
    put(subject, *range(1, 5))
    _, left = claim(subject, 1, 2, 3, wait_ns=S // 20)
    assert left.free_ns is not None
    subject.wait_until(left.free_ns + S // 10)
    assert claim(subject, 4)[0] == [4]


@pytest.mark.parametrize("sent", [True, False])
def test_a_released_message_frees_its_place(subject: AnySubject, sent: bool) -> None:
    put(subject, *range(1, 5))
    wanted = [Wanted(key, 0, WAIT_NS) for key in (1, 2, 3)]
    made, *_ = subject.store.claim(subject.table, wanted).value
    subject.store.release(subject.table, [Return(made.key, made.epoch, made.deadline_ns, made.due_ns, sent)])
    assert claim(subject, 4)[0] == [4]


def test_messages_that_are_due_scheduled_or_acknowledged_hold_no_places(subject: AnySubject) -> None:
    now_ns = subject.now_ns()
    subject.put(*(Row(key, time_next_ns=now_ns + 60 * S) for key in range(11, 15)))
    put(subject, *range(1, 10))
    claim(subject, 1, 2, 3)
    subject.acknowledge(1, 2, 3)
    assert claim(subject, 4, 5, 6)[0] == [4, 5, 6]


def test_a_message_that_is_locked_by_another_session_is_not_left_out_but_missed(subject: AnySubject) -> None:
    put(subject, 1, 2)
    with subject.locked(1):
        claimed, left = claim(subject, 1, 2)
    assert claimed == [2]
    assert left.left_out == ()


def test_a_queue_without_a_limit_reports_nothing() -> None:
    subject = MemorySubject(lease=True)
    put(subject, 1)
    answer = subject.store.claim_and_fetch(subject.table, [Wanted(1, 0, WAIT_NS)], None, 0).value
    assert answer.limits is None


def test_many_claims_at_once_never_exceed_the_limit(server: ServerSubject) -> None:
    """Six stores as those of six proxies, each on its own connections. An observer counts all the time."""
    put(server, *range(1, 201))
    over = threading.Event()
    most = 0
    stores = [mysql_store(server.server) for _ in range(6)]

    def work(number: int, store: MySQLStore) -> None:
        for first in range(number * 33 + 1, number * 33 + 31, 3):
            wanted = [Wanted(key, 0, WAIT_NS) for key in range(first, first + 3)]
            for claimed in store.claim(server.table, wanted).value:
                store.release(
                    server.table,
                    [Return(claimed.key, claimed.epoch, claimed.deadline_ns, claimed.due_ns, sent=True)],
                )

    def observe() -> None:
        nonlocal most
        with server.connect() as connection, connection.cursor() as cursor:
            while not over.is_set():
                cursor.execute("SELECT COUNT(*) FROM messages WHERE time_acked IS NULL AND lease = time_next")
                most = max(most, cursor.fetchall()[0][0])

    threads = [threading.Thread(target=work, args=(number, store)) for number, store in enumerate(stores)]
    observer = threading.Thread(target=observe)
    observer.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    observer.join()
    for store in stores:
        store.close()
    assert 0 < most <= LIMIT


class TestLock:
    """The row that the claims of one queue lock."""

    @staticmethod
    @contextlib.contextmanager
    def held(server: ServerSubject) -> Iterator[None]:
        """Another session, whose account has rights on the database, has locked it."""
        with server.connect(autocommit=False) as other, other.cursor() as cursor:
            assert cursor.execute("SELECT * FROM ackstream_limits WHERE queue = 'messages' FOR UPDATE") == 1
            yield
            other.rollback()

    @staticmethod
    def is_free(server: ServerSubject) -> bool:
        with server.connect(autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("SELECT queue FROM ackstream_limits FOR UPDATE SKIP LOCKED")
            return bool(cursor.fetchall() == (("messages",),))

    def test_without_the_lock_nothing_is_claimed(self, server: ServerSubject) -> None:
        put(server, 1)
        with self.held(server), pytest.raises(StoreError, match="Lock wait timeout") as error:
            claim(server, 1)
        assert error.value.waited
        assert claim(server, 1)[0] == [1]

    def test_user_level_locks_of_other_sessions_do_not_matter(self, server: ServerSubject) -> None:
        """An earlier release took one of this name."""
        digest = hashlib.sha256(f"{server.database}\0messages".encode()).hexdigest()
        put(server, 1)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, 5)", [f"ackstream-limit/{digest[:40]}"])
            assert claim(server, 1)[0] == [1]

    @pytest.mark.parametrize("rows", [False, True])
    def test_it_is_released_by_the_commit(self, server: ServerSubject, rows: bool) -> None:
        put(server, 1, 2)
        claim(server, 1, rows=rows)
        assert self.is_free(server)
        claim(server, 1, rows=rows)
        assert self.is_free(server)

    def test_a_claim_that_fails_releases_it(self, server: ServerSubject) -> None:
        put(server, 1)

        def fail(sent: int, connection: object) -> None:
            if sent == 2:
                raise RuntimeError("between the packets")

        with interrupted_store(server, fail) as store, pytest.raises(RuntimeError):
            store.claim(server.table, [Wanted(1, 0, WAIT_NS)])
        assert claim(server, 1)[0] == [1]

    def test_it_is_taken_before_the_messages_are_counted(self, server: ServerSubject) -> None:
        put(server, 1)
        with counted_store(server) as (store, sent):
            store.claim(server.table, [Wanted(1, 0, WAIT_NS)])
        text = b" ".join(sent).decode("latin-1")
        steps = ["START TRANSACTION", "ackstream_limits", "COUNT(*)", "SKIP LOCKED", "UPDATE /*", "COMMIT"]
        places = [text.index(step) for step in steps]
        assert places == sorted(places)

    def test_it_costs_no_further_packet(self, server: ServerSubject) -> None:
        put(server, 1, 2)
        with counted_store(server) as (store, sent):
            store.claim_and_fetch(server.table, [Wanted(1, 0, WAIT_NS)], TEXT, 1_000_000)
        assert len(sent) == 2

    def test_a_row_that_is_missing_is_inserted_once(self, server: ServerSubject) -> None:
        put(server, 1, 2, 3)
        server.execute("DELETE FROM ackstream_limits")
        assert claim(server, 1)[0] == [1]
        assert server.execute("SELECT queue, full_ns FROM ackstream_limits") == [("messages", 0)]
        with counted_store(server) as (store, sent):
            store.claim(server.table, [Wanted(2, 0, WAIT_NS)])
        assert len(sent) == 2

    def test_a_proxy_that_freezes_in_the_middle_of_a_claim_loses_the_lock_and_claims_nothing(
        self, server: ServerSubject
    ) -> None:
        put(server, 1, 2)

        def freeze(sent: int, _: object) -> None:
            if sent == 2:
                eventually(lambda: self.is_free(server), timeout_s=30)
                assert claim(server, 2)[0] == [2]

        with interrupted_store(server, freeze) as store, pytest.raises(StoreError):
            store.claim(server.table, [Wanted(1, 0, WAIT_NS)])
        row = server.row(1)
        assert row is not None
        assert row.epoch == 0

    @pytest.mark.parametrize("keys", [[1], [7]], ids=["that takes a message", "that takes none"])
    def test_the_session_of_a_claim_may_be_idle_again_afterwards(self, server: ServerSubject, keys: list[Key]) -> None:
        put(server, 1)
        server.store.claim(server.table, [Wanted(key, 0, WAIT_NS) for key in keys])
        assert server.store.read("SELECT @@wait_timeout > 1000").value == [["1"]]

    def test_so_may_that_of_one_that_has_waited_in_vain(self, server: ServerSubject) -> None:
        with self.held(server), pytest.raises(StoreError):
            claim(server, 1)
        assert server.store.read("SELECT @@wait_timeout > 1000").value == [["1"]]
