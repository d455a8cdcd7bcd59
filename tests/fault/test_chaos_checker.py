"""The checker: a pure function of a history. Each test writes a small history and reads its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fault.chaos.checker import check
from tests.fault.chaos.history import Event, Writer, pack, read, unpack
from tests.fault.chaos.life import life
from tests.fault.chaos.plans import Plan

S = 1_000_000
Q = "q"


class History:
    """A history as its workload would write it; times in seconds."""

    def __init__(self, **plan: Any) -> None:
        self.events: list[Event] = []
        self._number = 0
        queue = Plan(Q, "", 5, 8, **plan)
        self.add(0, "plan", plans=[queue.as_values()], proxies=2, seed=1)
        self.add(0, "clock", wall_us=0)
        for conn in "ab":
            self.add(0, "open", conn=conn, proxy="ab".index(conn), relayed=False, process=1)

    def add(self, at: float, kind: Any, **values: Any) -> None:
        self.events.append(Event(int(at * S), kind, values))

    def run(
        self,
        at: float,
        what: str,
        tokens: Sequence[int],
        *,
        outcome: str = "ok",
        affected: int | None = None,
        conn: str = "a",
        lasts: float = 0.5,
        **more: Any,
    ) -> None:
        """A statement that takes half a second, or so many."""
        self._number += 1
        op = str(self._number)
        values = {"op": op, "conn": conn, "what": what, "queue": Q, "tokens": pack(tokens), "tx": 0, **more}
        self.add(at, "begin", **values)
        if outcome != "lost":
            count = len(tokens) if affected is None else affected
            self.add(at + lasts, "done", op=op, outcome=outcome, affected=count, error="")

    def got(self, at: float, token: int, epoch: int = 1, *, wait: float = 5, conn: str = "a", **more: Any) -> None:
        """A delivery whose claim was made at this moment."""
        self._number += 1
        op = more.pop("op", str(self._number))
        tx = more.pop("tx", 0)
        self.add(at, "begin", op=op, conn=conn, what="stream", queue=Q, tokens="", tx=tx)
        rows = [[epoch, int((at + wait) * S), str(token)]]
        self.add(at, "got", conn=conn, op=op, queue=Q, rows=rows, locking=more.pop("locking", False))

    def fault(self, at: float, what: str, proxy: int = -1, *, lasts: float = 0) -> None:
        self._number += 1
        for moment, phase in ((at, "begin"), (at, "begun"), (at + lasts, "end")):
            self.add(moment, "fault", number=self._number, what=what, proxy=proxy, phase=phase, shift_us=0)

    def row(self, token: int, state: str = "acked", epoch: int = 1) -> None:
        self.add(100, "final", queue=Q, state=state, epoch=epoch, tokens=str(token))

    def rules(self) -> list[str]:
        """The rules that it violates."""
        return sorted(
            {violation.rule for violation in check(sorted(self.events, key=lambda event: event.at)).violations}
        )


@pytest.fixture
def history() -> History:
    """A message that was inserted."""
    history = History()
    history.run(1, "insert", [1])
    return history


def test_a_message_that_is_delivered_and_acknowledged_once_is_in_order(history) -> None:
    history.got(2, 1)
    history.run(3, "ack", [1])
    history.row(1)
    assert history.rules() == []


def test_a_committed_message_without_a_row_is_lost(history) -> None:
    assert history.rules() == ["lost"]


def test_a_deleted_message_is_not_lost(history) -> None:
    history.run(2, "delete", [1])
    assert history.rules() == []


def test_an_insert_whose_answer_was_lost_may_have_happened_or_not(history) -> None:
    history.run(2, "insert", [2, 3], outcome="lost")
    for token in (1, 2):
        history.got(4, token)
        history.run(5, "ack", [token])
        history.row(token)
    assert history.rules() == []


def test_a_message_that_was_rolled_back_is_not_delivered(history) -> None:
    history.run(2, "insert", [2], tx="t")
    history.run(3, "rollback", [], tx="t")
    history.got(4, 2)
    history.got(4, 1)
    history.run(5, "ack", [1])
    history.row(1)
    assert history.rules() == ["phantom"]


def test_a_message_is_not_delivered_before_its_commit_begins() -> None:
    history = History()
    history.run(1, "insert", [1], tx="t")
    history.got(2, 1)
    history.run(3, "commit", [], tx="t")
    history.run(4, "ack", [1])
    history.row(1)
    assert history.rules() == ["early"]


def test_a_message_that_waits_in_the_end_is_stuck(history) -> None:
    history.row(1, "waiting", 0)
    assert history.rules() == ["stuck"]


def test_an_ack_that_affected_the_message_is_not_lost(history) -> None:
    history.got(2, 1)
    history.run(3, "ack", [1])
    history.row(1, "waiting")
    assert history.rules() == ["ACK lost", "stuck", "sum of ACKs"]


def test_two_acks_do_not_both_affect_a_message(history) -> None:
    history.got(2, 1)
    history.run(3, "ack", [1])
    history.run(4, "ack", [1])
    history.row(1)
    assert history.rules() == ["acknowledged twice", "sum of ACKs"]


def test_a_row_is_acknowledged_by_somebody(history) -> None:
    history.got(2, 1)
    history.run(3, "ack", [1], affected=0)
    history.row(1)
    assert history.rules() == ["acknowledged by nobody", "sum of ACKs"]


def test_an_ack_in_a_transaction_counts_when_it_is_committed(history) -> None:
    history.got(2, 1)
    history.run(3, "ack", [1], tx="t")
    history.run(4, "rollback", [], tx="t")
    history.row(1)
    assert history.rules() == ["acknowledged by nobody", "sum of ACKs"]


def test_a_claim_after_the_ack_shows_in_the_epoch(history) -> None:
    history.got(2, 1)
    history.run(3, "ack", [1])
    history.got(20, 1, 2)
    history.row(1, epoch=1)
    assert history.rules() == ["delivered after its ACK"]


def test_a_claim_after_the_ack_shows_in_its_deadline_too(history) -> None:
    history.got(2, 1)
    history.run(3, "ack", [1])
    history.got(20, 1, 2, wait=8)
    history.row(1, epoch=2)
    assert history.rules() == ["delivered after its ACK"]


def test_a_delivery_that_was_claimed_before_the_ack_may_arrive_after_it(history) -> None:
    history.got(2, 1)
    history.run(8, "ack", [1])
    history.got(9, 1, 2, conn="b")
    history.row(1, epoch=2)
    assert history.rules() == []


def test_a_claim_is_delivered_once(history) -> None:
    history.got(2, 1)
    history.got(12, 1, conn="b")
    history.run(13, "ack", [1])
    history.row(1)
    assert history.rules() == ["one claim, two deliveries"]


def test_nobody_else_gets_a_message_before_its_deadline(history) -> None:
    history.got(2, 1)
    history.got(6, 1, 2, conn="b")
    history.run(7, "ack", [1], conn="b")
    history.row(1, epoch=2)
    assert history.rules() == ["two holders"]


@pytest.mark.parametrize(("locked_at", "found"), [(2, []), (7, ["two holders"])])
def test_a_lock_that_shows_the_epoch_of_a_claim_may_be_from_before_it(history, locked_at: float, found) -> None:
    """An earlier claim had that epoch, and was given back unsent."""
    history.got(locked_at, 1, epoch=1, conn="b", tx="t", locking=True)
    history.run(locked_at + 0.1, "rollback", [], tx="t", conn="b")
    history.got(6, 1)
    history.run(8, "ack", [1])
    history.row(1, epoch=1)
    assert history.rules() == found


@pytest.mark.parametrize("what", ["nack", "close", "kill_proxy", "server_clock"])
def test_unless_it_was_given_back_or_its_holder_is_gone_or_the_servers_clock_was_set(history, what) -> None:
    history.got(2, 1)
    if what == "nack":
        history.run(3, "nack", [1], epoch=1)
    elif what == "close":
        history.add(3, "close", conn="a", why="vanishes")
    else:
        values = {"number": 0, "what": what, "proxy": 0 if what == "kill_proxy" else -1}
        history.add(3, "fault", **values, phase="begin")
        history.add(3.1, "fault", **values, phase="begun", shift_us=10 * S)
        history.add(3.2, "fault", **values, phase="end")
    history.got(6, 1, 2, conn="b")
    history.run(7, "ack", [1], conn="b")
    history.row(1, epoch=2)
    assert history.rules() == []


@pytest.mark.parametrize(
    ("stopped", "lasts", "found"),
    [(0, 4, []), (0, 1, ["two holders"]), (1, 4, ["two holders"]), (None, 0, ["two holders"])],
)
def test_a_proxy_is_gone_if_its_connections_are_killed_while_it_is_stopped(history, stopped, lasts, found) -> None:
    """It cannot lock its slot again in time."""
    if stopped is not None:
        history.fault(1.5, "stop_proxy", stopped, lasts=lasts)
    history.fault(5, "kill_connections")
    history.got(2, 1)
    history.got(6.5, 1, 2, conn="b")
    history.run(7.5, "ack", [1], conn="b")
    history.row(1, epoch=2)
    assert history.rules() == found


@pytest.mark.parametrize(
    ("relayed", "proxy", "closed", "got_again", "found"),
    [
        (True, 0, 40, False, []),
        (False, 0, 40, False, ["two holders"]),
        (True, 1, 40, False, ["two holders"]),
        (True, 0, 90, False, ["two holders"]),
        (True, 0, 40, True, ["two holders"]),
    ],
)
def test_a_client_that_holds_messages_may_notice_late_that_its_connection_was_cut(
    relayed: bool, proxy: int, closed: float, got_again: bool, found: list[str]
) -> None:
    history = History()
    history.add(0.1, "open", conn="c", proxy=0, relayed=relayed, process=1)
    history.run(1, "insert", [1, 2])
    history.got(2, 1, conn="c")
    history.fault(3, "cut_clients", proxy)
    history.got(4, 1, 2, conn="b")
    history.run(4.1, "ack", [1], conn="b")
    history.got(5, 2, conn="c" if got_again else "b")
    history.run(5.5, "ack", [2], conn="b")
    history.add(closed, "close", conn="c", why="no answer in time")
    history.row(1, epoch=2)
    history.row(2)
    assert history.rules() == found


@pytest.mark.parametrize(("claimed", "found"), [(2.9, []), (3.1, ["two holders"])])
def test_a_busy_client_reads_rows_that_were_sent_before_its_connection_was_cut(
    claimed: float, found: list[str]
) -> None:
    history = History()
    history.add(0.1, "open", conn="c", proxy=0, relayed=True, process=1)
    history.run(1, "insert", [1])
    history.fault(3, "kill_connections")
    history.got(4, 1, 2, conn="b")
    history.got(9, 1, conn="c", wait=claimed + 5 - 9)
    history.run(9.1, "ack", [1], conn="b")
    history.add(20, "close", conn="c", why="the server closed the connection")
    history.row(1, epoch=2)
    assert history.rules() == found


@pytest.mark.parametrize(("begun", "found"), [(2, []), (3.1, ["two holders"])])
def test_a_busy_client_reads_rows_that_were_locked_before_its_connection_was_cut(
    begun: float, found: list[str]
) -> None:
    history = History()
    history.run(1, "insert", [1])
    history.add(begun, "begin", op="s", conn="a", what="stream", queue=Q, tokens="", tx="t")
    history.fault(3, "kill_connections")
    history.add(4, "got", conn="a", op="s", queue=Q, rows=[[0, 0, "1"]], locking=True)
    history.got(4.5, 1, conn="b")
    history.run(4.6, "ack", [1], conn="b")
    history.add(20, "close", conn="a", why="the server closed the connection")
    history.row(1)
    assert history.rules() == found


@pytest.mark.parametrize(("begun", "found"), [(2, []), (4.2, ["two holders"])])
def test_a_client_that_was_stopped_reads_rows_that_were_locked_before_those_of_others(
    begun: float, found: list[str]
) -> None:
    history = History()
    history.run(1, "insert", [1])
    history.add(begun, "begin", op="s", conn="a", what="stream", queue=Q, tokens="", tx="t")
    history.fault(3, "kill_proxy", 0)
    history.got(4, 1, conn="b", epoch=0, tx="u", locking=True)
    history.add(4.5, "got", conn="a", op="s", queue=Q, rows=[[0, 0, "1"]], locking=True)
    history.add(4.6, "close", conn="a", why="the server closed the connection")
    history.run(5, "ack", [1], conn="b", tx="u")
    history.run(6, "commit", [], conn="b", tx="u")
    history.row(1, epoch=0)
    assert history.rules() == found


def test_a_kept_message_does_not_come_to_others_when_its_connection_ends() -> None:
    history = History(keep=True)
    history.run(1, "insert", [1])
    history.got(2, 1)
    history.add(3, "close", conn="a", why="vanishes")
    history.got(6, 1, 2, conn="b")
    history.run(7, "ack", [1], conn="b")
    history.row(1, epoch=2)
    assert history.rules() == ["two holders"]


def test_an_extension_moves_the_deadline(history) -> None:
    history.got(2, 1)
    history.run(3, "extend", [1], epoch=1, by_s=20)
    history.got(12, 1, 2, conn="b")
    history.run(13, "ack", [1], conn="b")
    history.row(1, epoch=2)
    assert history.rules() == ["two holders"]


@pytest.mark.parametrize(("by_s", "outcome"), [(6, "ok"), (6, "lost"), (20, "error")])
def test_an_extension_may_move_the_deadline_to_an_earlier_time(history, by_s: int, outcome: str) -> None:
    history.got(2, 1, wait=8)
    history.run(3, "extend", [1], epoch=1, by_s=by_s, outcome=outcome)
    history.got(10, 1, 2, conn="b")
    history.run(11, "ack", [1], conn="b")
    history.row(1, epoch=2)
    assert history.rules() == []


def test_a_locked_message_has_one_holder_until_its_transaction_ends(history) -> None:
    history.got(2, 1, 0, locking=True, tx="t")
    history.got(3, 1, 0, conn="b", locking=True, tx="u")
    history.run(4, "commit", [], tx="t")
    history.run(5, "ack", [1], conn="b")
    history.row(1, epoch=0)
    assert history.rules() == ["two holders"]


def test_a_dead_message_has_had_all_its_deliveries() -> None:
    history = History(max_attempts=2, dead_letter="dead")
    history.run(1, "insert", [1, 2])
    history.row(1, "dead", 2)
    history.row(2, "dead", 1)
    assert history.rules() == ["dead too early"]


def test_no_more_are_in_flight_than_allowed() -> None:
    history = History(max_in_flight=1)
    history.run(1, "insert", [1, 2, 3])
    for token in (1, 2, 3):
        history.got(2, token, conn="ab"[token % 2])
    for token in (1, 2, 3):
        history.run(3, "ack", [token])
        history.row(token)
    assert history.rules() == ["max_in_flight"]


def acknowledged(history: History, *tokens: int, at: float) -> None:
    for token in tokens:
        history.run(at, "ack", [token])
        history.row(token)


def test_no_more_of_a_group_are_in_flight_than_allowed() -> None:
    history = History(groups=10, group_limit=1)
    history.run(1, "insert", [1, 2, 11])
    for token in (1, 2, 11):
        history.got(2, token, conn="ab"[token % 2])
    acknowledged(history, 1, 2, 11, at=3)
    assert history.rules() == ["group_limit"]


def test_a_place_is_free_if_plain_sql_may_have_acknowledged_the_message_before_it_arrived() -> None:
    history = History(groups=10, group_limit=1)
    history.run(1, "insert", [1, 2, 11])
    history.run(2.2, "ack", [1, 2], affected=1)
    history.got(3, 1, wait=4)
    history.got(3.1, 11)
    history.run(4, "ack", [11])
    history.run(5, "ack", [2])
    for token in (1, 2, 11):
        history.row(token)
    assert history.rules() == []


def test_a_place_is_free_once_its_holder_may_have_been_acknowledged() -> None:
    history = History(groups=10, group_limit=1)
    history.run(1, "insert", [1, 11])
    history.got(2, 1)
    history.run(3, "ack", [1], tx="t")
    history.run(4, "commit", [], tx="t")
    history.got(4.1, 11)
    history.row(1)
    acknowledged(history, 11, at=5)
    assert history.rules() == []


def test_a_place_is_free_once_the_servers_clock_may_have_passed_the_end_of_its_holders_wait() -> None:
    history = History(groups=10, group_limit=1)
    history.run(1, "insert", [1, 11])
    history.got(2, 1, wait=9)
    values = {"number": 0, "what": "server_clock", "proxy": -1}
    history.add(3, "fault", **values, phase="begin")
    history.add(3.1, "fault", **values, phase="begun", shift_us=60 * S)
    history.add(3.2, "fault", **values, phase="end")
    history.got(4, 11, wait=64)
    acknowledged(history, 1, 11, at=5)
    assert history.rules() == []


def test_no_semaphore_has_more_holders_than_places() -> None:
    history = History(needs=("license", "mail,license"))
    history.run(1, "insert", range(1, 5))
    for token in range(1, 5):
        history.got(2, token)
    acknowledged(history, *range(1, 5), at=3)
    assert history.rules() == ["semaphore"]


@pytest.mark.parametrize(
    ("outcome", "at", "found"), [("ok", 30, ["semaphore"]), ("ok", 10, []), ("error", 30, []), ("lost", 30, [])]
)
def test_a_semaphore_has_the_places_that_alter_semaphore_has_set(outcome, at, found) -> None:
    """Messages that were claimed before keep theirs."""
    history = History(needs=("license",))
    history.run(1, "insert", range(1, 3))
    history.run(2, "resize", [], outcome=outcome, semaphore="license", capacity=1)
    history.got(at, 1)
    history.got(at + 1, 2)
    acknowledged(history, 1, 2, at=at + 2)
    assert history.rules() == found


def test_in_strict_order_the_next_message_of_a_group_comes_when_the_one_before_is_over() -> None:
    history = History(groups=10, strict=True)
    history.run(1, "insert", [1, 2, 11])
    history.got(2, 1)
    history.got(2, 2)
    acknowledged(history, 1, at=3)
    history.got(3.1, 11)
    acknowledged(history, 2, 11, at=4)
    assert history.rules() == []


@pytest.mark.parametrize("given_back", [True, False])
def test_a_message_that_was_given_back_or_waits_for_its_time_is_before_the_later_ones_of_its_group(given_back) -> None:
    history = History(groups=10, strict=True)
    history.run(1, "insert", [1, 11])
    if given_back:
        history.got(2, 1)
        history.run(3, "nack", [1], epoch=1)
    history.got(4, 11)
    acknowledged(history, 11, at=5)
    history.got(6, 1, 2 if given_back else 1)
    history.run(7, "ack", [1])
    history.row(1, epoch=2)
    assert history.rules() == ["strict order"]


def test_a_message_that_may_not_have_been_committed_in_time_is_before_nothing() -> None:
    history = History(groups=10, strict=True)
    history.run(1, "insert", [1], outcome="lost")
    history.run(2, "insert", [11])
    for token, at in ((11, 3), (1, 5)):
        history.got(at, token)
        acknowledged(history, token, at=at + 1)
    assert history.rules() == []


@pytest.mark.parametrize(("op", "rules"), [("s", []), ("t", ["strict order"])])
def test_the_messages_of_a_run_come_to_one_stream(op, rules) -> None:
    history = History(groups=10, strict=True, group_limit=2)
    history.run(1, "insert", [1, 11])
    history.got(2, 1, op="s")
    history.got(2, 11, op=op)
    acknowledged(history, 1, 11, at=3)
    assert history.rules() == rules


def test_the_next_run_of_a_group_comes_when_the_one_before_is_over() -> None:
    history = History(groups=10, strict=True, group_limit=2)
    history.run(1, "insert", [1, 11, 21])
    history.got(2, 1, op="s")
    history.got(2, 11, op="s")
    acknowledged(history, 1, at=3)
    history.got(3.1, 21, op="t")
    acknowledged(history, 11, 21, at=4)
    assert history.rules() == ["strict order"]


@pytest.mark.parametrize(("count", "rules"), [(4, []), (5, ["rate"])])
def test_no_more_of_a_group_are_claimed_in_a_second_than_its_rate_allows(count, rules) -> None:
    history = History(groups=10, rate=2)
    tokens = range(1, 10 * count, 10)
    history.run(1, "insert", [*tokens, 2])
    for place, token in enumerate(tokens):
        history.got(2 + place / 10, token)
    history.got(2, 2)
    acknowledged(history, *tokens, 2, at=4)
    assert history.rules() == rules


@pytest.mark.parametrize(("at", "rules"), [(3, ["follow-up"]), (4.2, [])])
def test_a_follow_up_comes_when_all_parts_are_over(at, rules) -> None:
    history = History(batches=True)
    history.run(1, "insert", [1, 2, 3], follow_up=3)
    for token in (1, 2):
        history.got(2, token)
    acknowledged(history, 1, at=2.5)
    history.got(at, 3)
    history.run(4, "delete", [2])
    acknowledged(history, 3, at=6)
    assert history.rules() == rules


@pytest.mark.parametrize(("redriven", "rules"), [(True, ["follow-up"]), (False, [])])
def test_a_dead_part_keeps_what_follows_it_waiting_if_its_queue_says_so(redriven, rules) -> None:
    history = History(batches=True, redriven=redriven, max_attempts=2, dead_letter="dead")
    history.run(1, "insert", [1, 2], follow_up=2)
    history.got(5, 2)
    acknowledged(history, 2, at=6)
    history.row(1, "dead", 2)
    assert history.rules() == rules


@pytest.mark.parametrize(("redrives", "rules"), [([4], []), ([], ["delivered after its ACK", "two holders"])])
def test_a_message_that_was_redriven_begins_anew(redrives, rules) -> None:
    history = History(redriven=True, max_attempts=2, dead_letter="dead")
    history.run(1, "insert", [1])
    history.got(2, 1, 2, wait=10)
    for at in redrives:
        history.run(at, "redrive", [], affected=1)
    history.got(5, 1, 1)
    acknowledged(history, 1, at=6)
    assert history.rules() == rules


@pytest.mark.parametrize(("redrives", "rules"), [(1, []), (0, ["one claim, two deliveries"])])
def test_each_claim_is_delivered_once_in_each_life(redrives, rules) -> None:
    history = History(redriven=True, max_attempts=1, dead_letter="dead")
    history.run(1, "insert", [1])
    history.got(2, 1)
    history.run(3, "redrive", [], affected=redrives)
    history.got(10, 1)
    acknowledged(history, 1, at=11)
    assert history.rules() == rules


@pytest.mark.parametrize(("committed", "rules"), [(1, ["order"]), (9, [])])
def test_messages_come_in_the_order_of_their_insertion_if_they_were_there(committed, rules) -> None:
    history = History(ordered=True)
    for token, at in ((1, committed), (2, 2)):
        history.run(at, "insert", [token])
    for token, at in ((2, 10), (1, 11)):
        history.got(at, token)
        history.run(at + 1, "ack", [token])
        history.row(token)
    assert history.rules() == rules


@pytest.mark.parametrize(("locked", "rules"), [(2, []), (1, ["no progress"])])
def test_a_due_message_that_a_transaction_holds_does_not_wait(history, locked, rules) -> None:
    """A lock leaves it due."""
    for token in (1, 2):
        history.run(0, "insert", [token])
    history.add(10, "phase", name="healed")
    for token in range(1, 1 + locked):
        history.got(10, token, epoch=0, tx="t", locking=True)
    for at in range(11, 40):
        history.add(at, "sample", what="queue", queue=Q, waiting=2, due=2, oldest_us=0)
    if locked == 1:
        history.got(41, 2, epoch=0, tx="t", locking=True)
    history.run(42, "ack", [1, 2], tx="t")
    history.run(43, "commit", [], tx="t")
    for token in (1, 2):
        history.row(token)
    assert history.rules() == rules


def test_a_due_message_that_an_ack_holds_while_it_waits_for_a_lock_does_not_wait(history) -> None:
    """Its claim is over, so it is due, and nobody can claim it."""
    history.add(10, "phase", name="healed")
    history.got(11, 1)
    for at in range(11, 40):
        history.add(at, "sample", what="queue", queue=Q, waiting=1, due=int(at > 16), oldest_us=0)
    history.run(12, "ack", [1], lasts=28)
    history.row(1)
    assert history.rules() == []


def test_a_due_message_does_not_wait_once_all_faults_are_over(history) -> None:
    history.add(10, "phase", name="healed")
    for at in range(10, 40):
        history.add(at, "sample", what="queue", queue=Q, waiting=1, due=1, oldest_us=0)
    history.got(50, 1)
    history.run(51, "ack", [1])
    history.row(1)
    assert history.rules() == ["no progress"]


def test_while_the_server_does_not_answer_the_harness_a_due_message_may_wait(history) -> None:
    history.run(1, "insert", [1])
    history.add(10, "phase", name="healed")
    for at in (10, 11, 31, 32, 62):
        history.add(at, "sample", what="queue", queue=Q, waiting=1, due=1, oldest_us=0)
    history.got(63, 1)
    history.run(64, "ack", [1])
    history.row(1)
    assert history.rules() == []


def test_while_a_sample_of_all_queues_takes_long_a_due_message_may_wait(history) -> None:
    """The machine is busy. One of a single queue is never late."""
    history.run(1, "insert", [1])
    history.add(10, "phase", name="healed")
    for at in range(10, 50, 8):
        for later in range(15):
            history.add(at + later / 2, "sample", what="queue", queue=str(later), waiting=0, due=0, oldest_us=0)
        history.add(at + 7.5, "sample", what="queue", queue=Q, waiting=1, due=1, oldest_us=0)
    history.got(50, 1)
    history.run(51, "ack", [1])
    history.row(1)
    assert history.rules() == []


def test_while_another_queue_has_all_places_of_a_semaphore_a_queue_may_wait() -> None:
    history = History(needs=("mail",))
    plan = Plan("other", "", 5, 8, needs=("mail",))
    history.add(
        0.1, "plan", plans=[Plan(Q, "", 5, 8, needs=("mail",)).as_values(), plan.as_values()], proxies=2, seed=1
    )
    history.run(1, "insert", [1])
    history.add(10, "phase", name="healed")
    for at in range(10, 40):
        history.add(at, "sample", what="queue", queue=Q, waiting=1, due=1, oldest_us=0)
        history.add(at, "got", conn="b", op="1", queue="other", rows=[[1, (at + 5) * S, ""]], locking=False)
    history.got(50, 1)
    acknowledged(history, 1, at=51)
    assert history.rules() == []


def test_memory_and_logs_are_part_of_it(history) -> None:
    history.got(2, 1)
    history.run(3, "ack", [1])
    history.row(1)
    history.add(5, "sample", what="memory", proxy=1, bytes=1 << 40)
    history.add(6, "alarm", text="a traceback")
    assert history.rules() == ["alarm", "memory"]


def test_tokens_are_written_as_ranges() -> None:
    assert pack([5, 1, 2, 3, 9]) == "1+2,5,9"
    assert list(unpack("1+2,5,9")) == [1, 2, 3, 5, 9]
    assert pack([]) == ""
    assert list(unpack("")) == []


def test_a_history_survives_being_written_down_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history"
    writer = Writer(path)
    writer.write("open", 7, conn="a")
    writer.close()
    with path.open("ab") as file:
        file.write(b'[8,"clo')
    assert list(read(path)) == [Event(7, "open", {"conn": "a"})]


def test_the_life_of_a_message_is_told_in_order(history) -> None:
    history.got(2, 1)
    history.run(3, "ack", [1])
    history.run(3, "ack", [9])
    history.row(1)
    kinds = [line.split()[2] for line in life(history.events, Q, 1)]
    assert kinds == ["open", "begin", "done", "got", "begin", "done", "final"]
