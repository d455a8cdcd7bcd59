"""The scan scheduler: when each filter group scans the table, and what is read ahead for it.

A message without a lease here is either known by its key in a group's read-ahead buffer, or a
*scan* must find it. Every report of such a message therefore comes here: a commit
(`request_scans`), the binary log (`entry_logged`), a lookup (`found_after_lease`,
`found_unleased`), a claim that missed it (`retry_later`), the end of a lease (`rescan_place`). Each
report either puts the message into the buffers or requests a scan that cannot miss it: not a scan
that started earlier (`ScanState.dirty`), and not one that begins behind the message
(`ScanPosition.lower`).

Where several proxies share the messages of the queue (`set_share`), a scan reads the own share, and the
first messages of the others, which are left to their proxies for a while (`OtherShares`). Before a
bounded stream ends, a scan leaves nothing to them. Groups with a condition share only while there is
`Contention`.

The scheduler alone changes the `scans` of a filter group. `Picking` takes out of the buffers what is
handed out, and the dispatcher says which groups can use more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from engine.dispatch.effects import Effect, Poll, Scan
from engine.dispatch.filter_groups import FilterGroup, FilterGroups
from engine.dispatch.group_scanning import GroupScanning
from engine.dispatch.instant import Instant
from engine.dispatch.limits import Limits
from engine.dispatch.scan_state import ScanState
from engine.dispatch.scans_under_way import ScansUnderWay, ScanUnderWay
from engine.dispatch.time_order import Place, place_of
from engine.dispatch.visibility import AwaitingVisibility
from engine.model import ANYTHING, Entry, GroupScanResult, Key, Portion, Range, Return, ScanResult, Share
from engine.queue_table import Policy


class ScanScheduler:
    """The scans of one table: those under way, and the reasons for others."""

    def __init__(self, groups: FilterGroups, policy: Policy, limits: Limits, numbers: Iterator[int]) -> None:
        self._groups = groups
        self._policy = policy
        self._limits = limits
        self._numbers = numbers
        self._running = ScansUnderWay(limits.over_max)
        self._group_scans = GroupScanning(policy, limits, numbers, lambda: self._most)
        self._awaiting = AwaitingVisibility(limits.window_max)
        self._share: Share | None = None
        self._is_empty = False
        """Whether the last scan or poll has shown that no message is unacknowledged. A poll then takes the place of
        the scans that are due for the time alone."""
        self._poll_begun_ns: int | None = None
        """When the poll under way was started (monotonic)."""

    @property
    def under_way(self) -> bool:
        """Whether a scan or a poll is under way."""
        return bool(self._running or self._group_scans.running or self._poll_begun_ns is not None)

    @property
    def rescan_ns(self) -> int | None:
        """When to scan again for messages awaiting visibility (monotonic); None: there are none."""
        return self._awaiting.rescan_ns

    @property
    def ready(self) -> int:
        """Keys read ahead that are due, over all groups."""
        return sum(group.scans.buffer.ready for group in self._groups)

    def wake_times(self, group: FilterGroup, now: Instant) -> list[int | None]:
        """When a group with demand may get messages from its buffer, or is due for a scan
        (monotonic)."""
        scans = group.scans
        times = [scans.buffer.next_ns(now), scans.retry_ns, self.full_scan_ns(group), self._others_scan_ns(group, now)]
        if scans.due_again_ns is not None:
            times.append(now.until(scans.due_again_ns))
        if scans.dirty:
            times.append(scans.begun_ns + self._limits.rescan_pause_ns)
        if self._group_scans.serves(group):
            times.append(scans.by_group.next_ns())
        return times

    def full_scan_ns(self, group: FilterGroup) -> int:
        """When a group is due for a full scan at the latest (monotonic). Queues that were empty are polled at the
        same times, so that it is one statement for many of them."""
        interval_ns = self._policy.poller_interval_ns
        at_ns = group.scans.full_begun_ns + interval_ns
        return at_ns - at_ns % max(1, interval_ns // 2) if self._is_empty else at_ns

    def dead_scan_ns(self, now: Instant) -> int:
        """When to scan for dead messages even if no stream has demand (monotonic): at start, and
        when the last full scan of the main group is long ago."""
        main = self._groups.main
        if not main.scans.started:
            return now.mono_ns
        return max(self.full_scan_ns(main), main.scans.full_begun_ns + self._limits.dead_scan_ns)

    # Reports of messages that nobody here holds.

    def request_scans(self, *, anywhere: bool = False) -> None:
        """Scan for all groups: messages may have become due. `anywhere`: also behind the scan
        positions."""
        for group in self._groups:
            group.scans.dirty = True
            group.scans.by_group.note_arrival()
            if anywhere:
                group.scans.reset_to_front()

    def changed_anywhere(self, now: Instant) -> None:
        """The binary log shows changes of unknown messages. They may not be visible yet."""
        self._awaiting.await_any(now.mono_ns)
        self.request_scans(anywhere=True)

    def entry_logged(self, entry: Entry, now: Instant, before: tuple[int, int] | None = None) -> None:
        """The binary log shows a message without a lease. It may not be visible yet. `before`: its
        epoch and time_next before it was changed (None: unknown, or it was inserted)."""
        self._shown_again(entry.key)
        for group in self._groups:
            if group.selection == ANYTHING and not group.scans.buffer.knows(entry, before):
                break
        else:
            return
        due, awaited = entry.due_ns <= now.server_ns, False
        for group in self._groups:
            if self._left_to_others(group, entry, now, logged=True):
                continue
            scans = group.scans
            at_front = scans.position is None and not group.selection.partitions and scans.buffer.can_order(entry)
            if due and at_front and scans.is_behind(entry):
                scans.note_behind(entry, now)
                continue
            awaited = due
            if due and at_front and scans.started and not scans.dirty and scans.covers(entry):
                scans.buffer.put(entry, now)  # No other message can be due before it: it needs no scan.
            elif due and at_front and (scans.reaches(entry) or self._group_scans.overtakes(group, entry)):
                scans.put_logged(entry, before, self._limits.window_max, now)
            elif due:
                scans.expect(entry, before, self._limits.window_max)
            elif at_front:
                scans.buffer.add_scheduled(entry, self._limits.window_max)
            else:
                scans.scan_when_due(entry, now)
        if awaited:
            self._awaiting.await_key(now.mono_ns, entry.key)
        else:
            self._awaiting.stop_awaiting((entry.key,))
        self.rescan_place(entry)

    def found_after_lease(self, entry: Entry, now: Instant) -> None:
        """A lookup shows a message whose lease here has just ended. It is available when it is
        due."""
        self._shown_again(entry.key)
        for group in self._groups:
            scans = group.scans
            if self._left_to_others(group, entry, now):
                continue
            if scans.position is not None:
                scans.lower(entry)
            elif not group.selection.partitions and scans.covers(entry) and scans.buffer.can_order(entry):
                scans.buffer.put(entry, now)
                continue
            scans.scan_when_due(entry, now)

    def found_first(self, entry: Entry, now: Instant) -> None:
        """A claim shows a due message that has to be delivered before others of its message group. They
        wait for it, so it is not left to another proxy."""
        self._shown_again(entry.key)
        for group in self._groups:
            if group.scans.position is None and not group.selection.partitions:
                group.scans.buffer.put(entry, now)

    def unlocked(self, entry: Entry, now: Instant) -> None:
        """A message that a client had locked, or was to lock, is free again and unchanged: it is in
        its old place."""
        self._shown_again(entry.key)
        for group in self._groups:
            scans = group.scans
            if self._left_to_others(group, entry, now):
                continue
            if scans.position is not None:
                scans.lower(entry)
            elif len(group.subscribers) and not group.selection.partitions and len(scans.buffer) < 2 * scans.limit:
                scans.buffer.put(entry, now)
                continue
            scans.scan_when_due(entry, now)

    def found_unleased(self, entry: Entry, now: Instant) -> None:
        """A lookup shows a message that had no lease here. It may have changed since."""
        self._shown_again(entry.key)
        self.rescan_place(entry)
        for group in self._groups:
            if not self._left_to_others(group, entry, now):
                group.scans.scan_when_due(entry, now)

    def rescan_place(self, entry: Entry, but: FilterGroup | None = None) -> None:
        """The message may be at this place again: groups whose scan positions are beyond it scan
        there. `but`: the group that needs no scan of its own share for it."""
        for group in self._groups:
            scans = group.scans
            if scans.position is not None and group is not but:
                scans.lower(entry)
                scans.dirty = True

    def retry_later(
        self, entries: Sequence[Entry], now: Instant, of: FilterGroup | None = None, *, at_ns: int | None = None
    ) -> None:
        """Messages looked due and could not be claimed or moved. They pause, and all groups scan
        for them again. `of`: the group that the claim was for. `at_ns`: the end of the pause (monotonic);
        None: it doubles with each attempt."""
        if not entries:
            return
        for group in self._groups:
            scans = group.scans
            keep = group is of and scans.position is not None
            scans.retry_at(scans.buffer.add_missed(entries, now, keep=keep, at_ns=at_ns))
            for entry in entries:
                if keep and entry.key in scans.others:  # It is left to its proxy again.
                    scans.buffer.drop(entry.key)
                    scans.lower(entry)
        for entry in entries:
            self.rescan_place(entry, but=of)

    def claim_answered(
        self,
        group: FilterGroup,
        taken: Collection[Key],
        missed: Sequence[Entry],
        now: Instant,
        tried: int,
        started_ns: int,
    ) -> None:
        """A claim for a group that was started then tried so many messages, took some and missed others.
        Nobody locks the taken ones any more; the missed ones are scanned for again."""
        if tried:
            group.scans.buffer.claim_answered(now, tried, len(missed), now.mono_ns - started_ns)
            if self._share is not None:
                first = sum(not group.scans.buffer.was_missed(entry.key) for entry in missed)
                group.scans.contention.claim_answered(tried - len(missed), first)
                self._pass_share_on()
        if group.scans.position is None:  # Messages that no scan has shown are scanned for by `_awaiting`.
            missed = [entry for entry in missed if entry.key not in self._awaiting]
        self.retry_later(missed, now, group)
        self._awaiting.stop_awaiting(taken)
        group.scans.buffer.forget_misses(taken)

    def judge_buffer(
        self, group: FilterGroup, started_ns: int, missed: Sequence[Entry], taken: int, now: Instant
    ) -> None:
        """A claim that was started then missed these entries that were read ahead for a group, and
        took so many. If claims miss too many, other proxies have taken them: the group is scanned again
        before its next claim. Call it before `claim_answered`."""
        scans = group.scans
        first = sum(not scans.buffer.was_missed(entry.key) for entry in missed)
        if not scans.others.judge_claim(now, started_ns, first, taken):
            return
        scans.stale = scans.dirty = True
        scans.retry_at(now.mono_ns)
        scans.reset_to_front()  # A scan that goes on where the last one ended does not show what is gone.
        if not group.subscribers.any_bounded:  # Such a stream would end, though messages are due.
            scans.buffer.forget_all(scans.others.__contains__)

    def left_out(self, group: FilterGroup, entry: Entry, now: Instant) -> None:
        """A claim for a group could have taken this message, and a limit of the queue left no place. It
        is next again, and the other groups scan for it."""
        self._shown_again(entry.key)
        group.scans.buffer.put(entry, now)
        self.rescan_place(entry, but=group)
        for other in self._groups:
            if other is not group and other.scans.position is None:
                other.scans.dirty = True

    def has_nothing_due(self, group: FilterGroup, now: Instant) -> bool:
        """Whether the buffer of a group without a condition shows that no message is due, and no scan
        is under way or due that could show one."""
        scans = group.scans
        at_rest = scans.started > 0 and not scans.running and not scans.buffer.due
        return at_rest and not self._is_due(group, now)

    def inserted_unscanned(self, group: FilterGroup, now: Instant) -> None:
        """Messages whose keys follow from an INSERT are handed out to a group. A later scan shows
        whether the keys were right; those of the other groups begin when they have demand."""
        for other in self._groups:
            if other is group:
                other.scans.retry_at(now.mono_ns + self._limits.confirm_pause_ns)
            else:
                other.scans.dirty = True

    def rescan_returned(self, returns: Iterable[Return]) -> None:
        """These claims have been given back, or may have been: unsent messages are at their old
        places again."""
        for claim in returns:
            if not claim.sent:
                self.rescan_place(claim.entry)
        self.request_scans()

    def forget(self, keys: Sequence[Key]) -> None:
        """These messages are acknowledged or deleted."""
        for group in self._groups:
            group.scans.buffer.forget(keys)
            group.scans.others.forget(keys)

    def settled(self, keys: Sequence[Key]) -> None:
        """A statement has just acknowledged or deleted these messages: scans under way may still show them.
        Reports of the binary log may be older than such a scan, so they are not among these."""
        self.forget(keys)
        self._running.settled(keys)
        self._group_scans.running.settled(keys)

    def _shown_again(self, key: Key) -> None:
        """This message is there. It may have been over before, and a scan under way is to show it."""
        self._running.shown_again(key)
        self._group_scans.running.shown_again(key)

    def keep_own(self, keys: Iterable[Key], now: Instant) -> list[Key]:
        """These messages were inserted. Leaves those of other shares to their proxies, and returns
        the others."""
        main = self._groups.main
        return [key for key in keys if not self._left_to_others(main, Entry(key, 0, 0, 0), now)]

    def stop_awaiting(self, keys: Iterable[Key]) -> None:
        """The binary log has shown the outcome of these messages: they do not await visibility."""
        self._awaiting.stop_awaiting(keys)

    def clock_stepped_back(self) -> None:
        """The server's clock was set back: new rows may be behind the scan positions."""
        self.request_scans(anywhere=True)

    # Shares.

    def set_share(self, share: Share | None) -> None:
        """This proxy takes the messages of this share first (None: all messages)."""
        if share == self._share:
            return
        self._share = share
        self._pass_share_on()
        self.request_scans()

    def claim_took(self, duration_ns: int, now: Instant) -> None:
        """A claim was answered so long after its start."""
        for group in self._groups:
            group.scans.others.note_duration(duration_ns, now)

    def _pass_share_on(self) -> None:
        for group in self._groups:
            scans, others = group.scans, group.scans.others
            share = scans.share_of(self._share)
            if others.share == share:
                continue
            if others.share is not None:  # Messages that were left to others are this proxy's now.
                scans.reset_to_front()
            scans.dirty = True
            others.set_share(share)
            if not group.subscribers.any_bounded:  # Such a stream would end, though messages are due.
                scans.buffer.forget_all(others.__contains__)

    def _left_to_others(self, group: FilterGroup, entry: Entry, now: Instant, *, logged: bool = False) -> bool:
        """Whether a message that was reported belongs to another share: it is then left to the proxy
        of that share, and scanned for after a grace."""
        others = group.scans.others
        if entry.key not in others:
            return False
        group.scans.buffer.forget((entry.key,))
        group.scans.lower(entry)
        others.expect(entry, now, logged=logged)
        return True

    def _others_scan_ns(self, group: FilterGroup, now: Instant) -> int | None:
        """When a group is due for a scan because of messages that are left to other proxies (monotonic)."""
        scans = group.scans
        return None if scans.running else scans.others.scan_ns(now, scans.begun_ns, busy=scans.buffer.ready > 0)

    # What is read ahead.

    def available(self, group: FilterGroup, now: Instant, most: int, claims_under_way: int) -> int:
        """How many entries of a group's buffer may be claimed now, `most` at most."""
        if group.scans.is_stale(now):
            return 0
        buffer = group.scans.buffer
        return group.scans.others.claim_size_max(min(most, buffer.ready), now, claims_under_way, buffer.missed_count)

    # Scanning.

    def promote_due(self, now: Instant) -> None:
        """Make entries ready that have come due, and request a scan for messages awaiting
        visibility if it is time for one."""
        turns = self._groups.turns
        freed = turns.take_freed() if turns is not None and turns.limited else ()
        for group in self._groups:
            group.scans.buffer.promote_due(now)
            if freed:
                group.scans.buffer.requeue(freed)
        if self._awaiting.start_rescan(now.mono_ns):
            self.request_scans(anywhere=self._awaiting.commit_is_slow)

    def start_scans(
        self, groups: Collection[FilterGroup], now: Instant, unavailable: int, *, find_dead: bool
    ) -> list[Effect]:
        """Scan for those of these groups that are due for a scan. `unavailable`: how many rows a
        scan shows as due although they are taken. `find_dead`: also scan for dead messages from
        time to time."""
        main = self._groups.main
        if find_dead and now.mono_ns >= self.dead_scan_ns(now) and main not in groups:
            groups = [*groups, main]
        self._pass_share_on()
        due = [group for group in groups if self._is_due(group, now)]
        scans: list[Effect] = []
        if self._is_empty:
            wanting = [group for group in due if self._wants_scan(group, now)]
            if len(wanting) < len(due) and self._poll_begun_ns is None:
                self._poll_begun_ns = now.mono_ns
                scans.append(Poll())
            due = wanting
        due.sort(key=lambda group: group.scans.begun_ns)
        room = max(0, self._limits.scans_max - len(self._running))
        scans += [self._start_scan(group, now, unavailable) for group in due[:room]]
        by_group = (self._group_scans.start(group, now, unavailable) for group in groups)
        scans += [scan for scan in by_group if scan is not None]
        return scans

    def scan_answered(
        self,
        now: Instant,
        scan_id: int,
        result: ScanResult,
        taken_among: Callable[[Collection[Key]], set[Key]],
        outdated_among: Callable[[Iterable[Entry], int], set[Key]],
    ) -> None:
        """A scan came back. `taken_among`: which of these messages are being claimed or dead-lettered.
        `outdated_among`: those whose rows, as this scan shows them, are older than their leases."""
        running = self._running.finish(scan_id)
        scans = running.group.scans
        read = (*result.entries, *result.others)
        outdated = outdated_among(read, scan_id) | running.over
        if running.over and any(entry.key in running.over for entry in read):
            scans.retry_at(now.mono_ns + self._limits.confirm_pause_ns)  # Two reports may have come in the other order.
        scans.scan_completed(now, self._limits.stale_ns)
        scans.others.was_read(now)
        scans.others.note_duration(now.mono_ns - scans.begun_ns, now)
        hidden = scans.expected_hidden(result)
        known = [entry for entry in hidden.values() if scans.position is None and scans.buffer.knows(entry)]
        scans.dirty = scans.dirty or len(known) < len(hidden)
        self._awaiting.stop_awaiting(entry.key for entry in read if entry.key not in hidden)

        shown = (*read, *known)
        taken = taken_among([entry.key for entry in shown])
        if scans.position is not None:
            for entry in shown:
                if entry.key in taken:
                    scans.lower(entry)  # The claim may be for an older state of the row, and miss.
        unwanted = taken | outdated | outdated_among(known, scan_id)
        unwanted |= self._leave_to_others(running, result, unwanted, now)
        result = replace(result, entries=read)

        if running.part is None or not running.part.after:
            reach = self._note_reach(running, result, now)
            if scans.may_have_missed(now):
                self._awaiting.await_any(now.mono_ns)
            scans.buffer.replace_with(result, now, unwanted, _unread(running, result, reach))
            for entry in known:
                if entry.key not in unwanted:
                    scans.buffer.put(entry, now)
        elif scans.buffer.due <= 2 * scans.limit:
            scans.buffer.extend_with(result, now, unwanted, 2 * scans.limit)
        else:
            scans.buffer.more = True  # No room: the next scan finds these messages again.
            return
        if scans.position is not None:
            scans.position.advance(result.reached, result.greatest_id, now)
            for entry in scans.others.unread_from():
                scans.lower(entry)
        self._adapt_limit(running.group)

    def _adapt_limit(self, group: FilterGroup) -> None:
        scans = group.scans
        before = scans.limit
        scans.adapt_limit(self._limits.scan_min, self._most_for(group))
        if scans.position is not None and scans.buffer.missed_count > self._limits.window_max:
            scans.reset_to_front()  # A full scan shows which of them are there.
        at_front = scans.position is None and not self._group_scans.serves(group)
        scans.widens = at_front and scans.buffer.more and scans.limit > before

    def scan_failed(self, now: Instant, scan_id: int) -> FilterGroup:
        """A scan failed. Returns its group."""
        running = self._running.finish(scan_id)
        group = running.group
        group.scans.scan_completed(now, self._limits.stale_ns)
        group.scans.others.scan_failed()
        group.scans.expected.clear()
        group.scans.dirty = True
        return group

    def poll_answered(self, *, empty: bool) -> None:
        """A poll came back. If the table is empty, a full scan would have shown nothing."""
        begun_ns, self._poll_begun_ns = self._poll_begun_ns, None
        self._is_empty = empty
        assert begun_ns is not None
        if not empty:
            self.request_scans(anywhere=True)
            return
        for group in self._groups:
            group.scans.full_begun_ns = max(group.scans.full_begun_ns, begun_ns)

    def poll_failed(self) -> None:
        """A poll failed."""
        self._poll_begun_ns = None
        self._is_empty = False
        self.request_scans(anywhere=True)

    @property
    def _most(self) -> int:
        """How many messages of the front are read ahead for each filter group at most."""
        return self._part_of(self._limits.window_max)

    def _most_for(self, group: FilterGroup) -> int:
        """How many messages are read ahead at most for a group whose scan has come back. Streams FOR UPDATE
        may use up more."""
        lasted_ns, enough_ns = group.scans.lasted_ns, self._limits.window_lasts_ns
        if not group.locks or lasted_ns is None or lasted_ns > 2 * enough_ns:
            return self._most
        if lasted_ns > enough_ns:
            return max(self._most, group.scans.limit)
        return self._part_of(self._limits.locks_window_max)

    def _part_of(self, window: int) -> int:
        """One filter group's part of a window, here."""
        proxies = 1 if self._share is None else self._share.count
        return min(window // self._groups.in_use // proxies, self._policy.cache_size)

    def set_policy(self, policy: Policy) -> None:
        """The table's comment changed."""
        self._policy = policy
        self._group_scans.set_policy(policy)
        self.request_scans()

    def _start_scan(self, group: FilterGroup, now: Instant, unavailable: int) -> Scan:
        scans, part = group.scans, None
        # Entries behind its reach stay: a small scan shows what is more urgent, and what others have left.
        peeks = scans.buffer.more and not scans.runs_low and scans.position is None
        peeks = peeks and (scans.buffer.order is not None or not self._wants_more(group, now))
        peeks = peeks and now.mono_ns < self.full_scan_ns(group)
        if scans.position is not None:
            if now.mono_ns >= self.full_scan_ns(group):
                scans.position.reset_to_front()
            part = Range(scans.position.scan_from(now), now.server_ns + self._limits.ahead_ns)
        if (part is None or not part.after) and not peeks:
            scans.full_begun_ns = now.mono_ns
        scans.scan_started(now)
        scan_id = next(self._numbers)
        # Rows that cannot be claimed yet must not displace those that can.
        limit = self._limits.scan_min if peeks else scans.limit
        limit += scans.buffer.missed_count + unavailable
        share, portion = scans.others.share, None
        if share is not None and not (group.awaits_scan and not scans.has_more):
            portion = Portion(share, scans.others.scan_started(now, always=part is not None))
        self._running.start(scan_id, ScanUnderWay(group, part, limit, peeks, portion))
        return Scan(scan_id, group.selection, limit, part, portion)

    def _leave_to_others(
        self, running: ScanUnderWay, result: ScanResult, unwanted: Collection[Key], now: Instant
    ) -> set[Key]:
        """A scan came back. Returns which of the messages that it shows are left to the proxies of other shares: none
        if it has read all shares, because a bounded stream is to end with it."""
        scans, others = running.group.scans, running.group.scans.others
        if running.portion is None and (others.share is None or running.group.subscribers.any_bounded):
            scans.whole_completed = scans.completed
            others.forget([entry.key for entry in result.entries])
            return set()
        foreign = [entry for entry in (*result.entries, *result.others) if entry.key in others]
        if others.share is None or running.portion is None or not running.portion.others:
            # The share has changed meanwhile, or the others were not read.
            return {entry.key for entry in foreign if self._left_to_others(running.group, entry, now)}
        taken = {entry.key for entry in foreign if entry.key in unwanted or scans.buffer.knows(entry)}
        reach = _others_reach(running.portion, result)
        room = max(0, 2 * self._most - len(scans.buffer))
        front = self._front(scans, result, unwanted, now)
        busy = front is not None or scans.buffer.ready > 0
        answer = others.scan_answered(foreign, now, taken=taken, reach=reach, front=front, busy=busy, room=room)
        for key in answer.hidden:
            self._awaiting.await_key(now.mono_ns, key)
        scans.contention.others_scanned(answer.taken_elsewhere, len(answer.free))
        self._pass_share_on()
        return answer.left

    @staticmethod
    def _front(scans: ScanState, result: ScanResult, unwanted: Collection[Key], now: Instant) -> Place | None:
        """The place of the first message of the own share that a scan shows and that is ready. None: none is, or groups
        take turns."""
        if scans.buffer.order is not None:
            return None
        for entry in result.entries:
            own = entry.key not in scans.others and not scans.buffer.was_missed(entry.key)
            if own and entry.due_ns <= now.server_ns and entry.key not in unwanted:
                return place_of(entry)
        return None

    def _note_reach(self, running: ScanUnderWay, result: ScanResult, now: Instant) -> Place | None:
        """A scan of the front came back. Returns the place behind which entries of the buffer stay; None: none do."""
        scans = running.group.scans
        if running.group.selection == ANYTHING:
            self._is_empty = result.is_empty and (running.portion is None or running.portion.others > 0)
        shown = result.entries[: running.limit] if result.more and scans.position is None else ()
        read_to = place_of(shown[-1]) if shown else None
        if not shown or scans.buffer.order is None:
            scans.by_group.all_shown()
        elif self._group_scans.serves(running.group):
            scans.by_group.cut_off(shown[-1].priority, shown, now)
        if read_to is not None and running.peeks and scans.buffer.order is None and scans.reach is not None:
            scans.reach = max(scans.reach, read_to)
            return read_to
        scans.reach = read_to
        return None if scans.buffer.order is None else read_to

    def group_scan_answered(
        self,
        now: Instant,
        scan_id: int,
        result: GroupScanResult,
        unwanted_among: Callable[[Sequence[Entry], int], set[Key]],
    ) -> None:
        """A group scan came back. `unwanted_among` as in `GroupScanning.answered`."""
        self._awaiting.stop_awaiting(entry.key for entry in (*result.entries, *result.arrivals))
        self._group_scans.answered(now, scan_id, result, unwanted_among)

    def group_scan_failed(self, now: Instant, scan_id: int) -> None:
        """A group scan failed."""
        self._group_scans.failed(now, scan_id)

    def _is_due(self, group: FilterGroup, now: Instant) -> bool:
        if group.scans.running:
            return False
        return self._wants_scan(group, now) or now.mono_ns >= self.full_scan_ns(group)

    def _wants_scan(self, group: FilterGroup, now: Instant) -> bool:
        """Whether a group without a scan under way is due for one for another reason than the time alone."""
        others_ns = self._others_scan_ns(group, now)
        return self._wants_more(group, now) or (others_ns is not None and others_ns <= now.mono_ns)

    def _wants_more(self, group: FilterGroup, now: Instant) -> bool:
        """Whether a scan may show messages of the own share that are to be read ahead."""
        scans = group.scans
        buffer = scans.buffer
        leaves_none = scans.others.share is None or not scans.has_more
        if group.awaits_scan and leaves_none and buffer.ready <= scans.limit // 4:
            return True
        if scans.runs_low:
            if scans.dirty or buffer.more:
                return True
            if buffer.horizon_ns is not None and buffer.horizon_ns <= now.server_ns:
                return True
        if scans.dirty and now.mono_ns >= scans.begun_ns + self._limits.rescan_pause_ns:
            return True
        if scans.retry_ns is not None and scans.retry_ns <= now.mono_ns:
            return True
        return scans.due_again_ns is not None and scans.due_again_ns <= now.server_ns


def _others_reach(portion: Portion, result: ScanResult) -> Place | None:
    """The place of the last due message of other shares that a scan has read. None: it has read all that are due."""
    return place_of(result.others[: portion.others][-1]) if result.others_more else None


def _unread(running: ScanUnderWay, result: ScanResult, reach: Place | None) -> Callable[[Entry], bool] | None:
    """Which messages in the buffer a scan has not read: those behind its reach (None: there is none), and those behind
    its reach among the messages of other shares. None: it has read all."""
    portion, others = running.portion, running.group.scans.others
    if portion is None:
        return None if reach is None else lambda entry: place_of(entry) > reach
    others_reach = _others_reach(portion, result)

    def is_unread(entry: Entry) -> bool:
        if entry.key not in others:
            return reach is not None and place_of(entry) > reach
        return not portion.others or (others_reach is not None and place_of(entry) > others_reach)

    return is_unread
