"""Messages that the binary log shows beside a backlog: which are claimed before any scan shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.dispatch.effects import Claim, Scan
from engine.dispatch.limits import Limits
from engine.model import Entry, Group, Key
from engine.queue_table import Policy
from tests.support.play import POLICY, Asked, Stage

BACKLOG = 1_000
NEW = 5_000
URGENT, USUAL = 0, 1
NOISY: Group = (0,)
PLAIN = replace(POLICY, batch_size=10, cache_size=400)
FAIR = replace(PLAIN, group_by=("tenant",), groups_indexed=True)


def quiet(key: int) -> Group:
    """The backlog is of one group, each other message of a group of its own."""
    return NOISY if key < BACKLOG else (key,)


def with_backlog(policy: Policy, group_of: Callable[[int], Group] = lambda _: ()) -> Stage:
    """A stage whose only stream holds a message. The messages that are due are many more than are read ahead."""
    limits = Limits(scan_min=40, window_max=40)
    stage = Stage(policy=policy, limits=limits, group_of=group_of, id_grows=True, unread_every=10_000)
    for key in range(1, BACKLOG):
        stage.enqueue(key, USUAL, wake=False)
    stage.subscribe(1, holder=1, prefetch=1)
    stage.settle()
    return stage


def log(stage: Stage, key: int, priority: int = USUAL, *, group_is_known: bool = True) -> None:
    """A message is inserted, and the binary log alone shows it."""
    stage.enqueue(key, priority, wake=False)
    entry = stage.rows[key].entry
    stage.handle(stage.dispatcher.changes_logged, [entry if group_is_known else entry._replace(group=None)])


def claimed_next(stage: Stage) -> set[Key]:
    """What is claimed when the client acknowledges what it holds, before any scan is answered."""
    before = [asked.effect for asked in stage.asked]
    stage.acknowledge(stage.delivered[1][-1], seen=True)
    claims = [asked.effect for asked in stage.asked if asked.effect not in before and isinstance(asked.effect, Claim)]
    return {wanted.key for claim in claims for wanted in claim.wanted}


def scan_under_way(stage: Stage) -> Asked:
    """A scan that has read the table and is not answered. The client gets another message meanwhile."""
    stage.pass_time(60_000_000)  # Longer than the pause between scans, and what was read ahead is still trusted.
    stage.handle(stage.dispatcher.woken)
    claimed_next(stage)
    (scan,) = [asked for asked in stage.asked if isinstance(asked.effect, Scan)]
    stage.do(scan)
    for asked in [asked for asked in stage.asked if isinstance(asked.effect, Claim)]:
        stage.do(asked)
        stage.answer(asked)
    return scan


def test_a_message_of_a_quiet_group_needs_no_scan() -> None:
    stage = with_backlog(FAIR, quiet)
    log(stage, NEW)
    assert claimed_next(stage) == {NEW}


def test_a_message_whose_group_the_log_does_not_show_waits_for_a_scan() -> None:
    stage = with_backlog(FAIR, quiet)
    log(stage, NEW, group_is_known=False)
    assert claimed_next(stage) < set(range(BACKLOG))
    for _ in range(3):
        stage.pass_time(5_000_000)
        stage.settle()
        stage.acknowledge(stage.delivered[1][-1], seen=True)
    assert NEW in stage.delivered[1]


def test_a_message_of_the_group_with_the_backlog_has_to_wait_behind_it() -> None:
    stage = with_backlog(FAIR, lambda _: NOISY)
    log(stage, NEW)
    assert claimed_next(stage) < set(range(BACKLOG))


def test_an_urgent_message_beside_a_backlog_needs_no_scan() -> None:
    for policy, group_of in ((PLAIN, lambda _: ()), (FAIR, quiet)):
        stage = with_backlog(policy, group_of)
        log(stage, NEW, URGENT)
        assert claimed_next(stage) == {NEW}


def test_a_message_behind_the_backlog_is_not_claimed_before_it() -> None:
    stage = with_backlog(PLAIN)
    log(stage, NEW)
    assert claimed_next(stage) < set(range(BACKLOG))


def test_a_scan_that_began_before_the_commit_does_not_hide_the_message() -> None:
    stage = with_backlog(PLAIN)
    scan = scan_under_way(stage)
    log(stage, NEW, URGENT)
    stage.answer(scan)
    assert claimed_next(stage) == {NEW}


def test_a_message_that_is_claimed_while_such_a_scan_is_under_way_is_claimed_once() -> None:
    stage = with_backlog(PLAIN)
    scan = scan_under_way(stage)
    log(stage, NEW, URGENT)
    assert claimed_next(stage) == {NEW}
    stage.answer(scan)
    stage.settle()
    assert stage.delivered[1].count(NEW) == 1
    assert NEW not in claimed_next(stage)


def test_what_is_put_into_the_buffer_is_bounded() -> None:
    stage = with_backlog(FAIR, quiet)
    for key in range(NEW, NEW + 1_000):
        log(stage, key)
        log(stage, key + 1_000, URGENT)
    assert len(stage.dispatcher.parts.groups.main.scans.buffer) <= 3 * 40 + 1


def test_an_entry_of_the_log_that_is_older_than_the_buffers_changes_nothing() -> None:
    stage = with_backlog(FAIR, quiet)
    log(stage, NEW)
    buffer = stage.dispatcher.parts.groups.main.scans.buffer
    before = len(buffer)
    stage.handle(stage.dispatcher.changes_logged, [Entry(NEW, 0, USUAL, 0, (NEW,))])
    assert len(buffer) == before


def test_messages_behind_the_backlog_cause_no_scan() -> None:
    stage = with_backlog(PLAIN)
    scans = stage.dispatcher.parts.groups.main.scans
    before = scans.started
    for key in range(NEW, NEW + 20):
        log(stage, key)
        stage.pass_time(60_000_000)  # Longer than the pause between scans.
        stage.acknowledge(stage.delivered[1][-1], seen=True)
        stage.settle()
    assert len(stage.delivered[1]) == 21
    assert scans.started <= before + 1  # What was read ahead is used up to a quarter.


def test_the_server_alone_compares_ids_that_are_no_integers() -> None:
    scans = with_backlog(PLAIN).dispatcher.parts.groups.main.scans
    scans.reach = (USUAL, 5, "m")
    assert not scans.is_behind(Entry("z", 0, USUAL, 5))
    assert scans.is_behind(Entry("a", 0, USUAL, 6))


def drained_to_the_last_scan(stage: Stage, *, but: int) -> None:
    """The client acknowledges the backlog, and scans show all messages except this one: it is not visible."""
    row = stage.rows.pop(but)
    while stage.dispatcher.parts.groups.main.scans.behind is not None:
        stage.acknowledge(stage.delivered[1][-1], seen=True)
        stage.pass_time(1_000_000)
        stage.settle()
    stage.rows[but] = row


def test_a_message_that_was_not_visible_when_a_scan_came_to_its_place_is_found_by_the_next_one() -> None:
    stage = with_backlog(PLAIN)
    log(stage, NEW)
    drained_to_the_last_scan(stage, but=NEW)
    assert NEW not in stage.delivered[1]
    stage.pass_time(20_000_000)
    for _ in range(BACKLOG):
        stage.settle()
        if NEW in stage.delivered[1]:
            break
        stage.acknowledge(stage.delivered[1][-1], seen=True)
    assert NEW in stage.delivered[1]
