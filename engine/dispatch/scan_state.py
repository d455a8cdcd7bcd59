"""The scan scheduler's state of one filter group: its read-ahead buffer, and why and when to scan
again."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.dispatch.contention import Contention
from engine.dispatch.group_scans import GroupScans
from engine.dispatch.instant import Instant
from engine.dispatch.other_shares import OtherShares
from engine.dispatch.read_ahead import ReadAhead
from engine.dispatch.scan_position import ScanPosition
from engine.dispatch.time_order import Place, place_of
from engine.dispatch.visibility import VISIBLE_NS
from engine.model import Entry, Key, ScanResult, Share


@dataclass(slots=True, eq=False)
class ScanState:
    """The scans of one filter group. Times are monotonic unless their docstrings state
    otherwise."""

    limit: int
    """How many due entries the next scan reads."""
    position: ScanPosition | None
    """Where scans begin. None: at the front, because the group selects every row there."""
    others: OtherShares
    """The messages of other shares."""
    contention: Contention
    """Whether other proxies take the messages of the group's condition too."""
    by_group: GroupScans
    """The scans by message group, if the queue has groups."""
    buffer: ReadAhead
    started: int = 0
    """The number of the last scan that was started."""
    completed: int = 0
    """The number of the last one that came back."""
    whole_completed: int = 0
    """The number of the last one of which nothing was left to other proxies."""
    begun_ns: int = 0
    """When the last scan was started."""
    lasted_ns: int | None = None
    """For how long what the scan before the last one had read was enough; None: it was not used up."""
    full_begun_ns: int = 0
    """When the last full scan was started."""
    dirty: bool = True
    """A message may have become due since the last scan was started."""
    expected: dict[Key, tuple[Entry, tuple[int, int] | None]] = field(default_factory=dict)
    """Due messages that the binary log has shown while a scan was under way, and their epochs and
    time_next before. It usually shows them: the commit that it was started for is often theirs. The buffer
    has some of them already."""
    due_again_ns: int | None = None
    """When a message comes due that only a scan can find (server's clock)."""
    retry_ns: int | None = None
    """When to scan again for rows that a claim missed."""
    trusted_until_ns: int = 0
    """Until when entries that were read ahead may be claimed, whatever was committed since."""
    widens: bool = False
    """Whether the next scan reads more than the last one, if all that it has shown are messages of groups
    without a place."""
    reach: Place | None = None
    """The place of the last due entry that the last scan at the front has read; None: it has read all that
    are due, or there is a scan position."""
    behind: tuple[Place, int] | None = None
    """Due messages that the binary log has shown behind the reach: the first of their places, and when the
    last of them was logged."""
    stale: bool = False
    """Entries may not be claimed before the next scan has come back."""

    @property
    def running(self) -> bool:
        """Whether a scan has not come back yet."""
        return self.started > self.completed

    @property
    def is_exhausted(self) -> bool:
        """Whether no message is known that can be handed out now, apart from those that were taken. If
        the front is full of messages whose groups have no place, the scan does not go on there."""
        return self.buffer.ready == 0 and not (self.buffer.more and self.runs_low)

    @property
    def has_more(self) -> bool:
        """Whether messages are ready, or the next scan finds some."""
        return not self.is_exhausted

    @property
    def runs_low(self) -> bool:
        """Whether so little of what was read is left that more is read."""
        return self.buffer.due <= self.limit // 4 or (self.widens and not self.buffer.ready)

    def share_of(self, share: Share | None) -> Share | None:
        """The share that the group uses if this is the proxy's: the same, or None."""
        if self.position is not None and (self.buffer.order is not None or not self.contention.found):
            return None
        return share

    def lower(self, entry: Entry) -> None:
        """A row may be at this place: no later scan begins behind it."""
        if self.position is not None:
            self.position.lower(entry)

    def reset_to_front(self) -> None:
        """Rows may be anywhere: the next scan is a full one."""
        if self.position is not None:
            self.position.reset_to_front()

    def scan_started(self, now: Instant) -> None:
        """A scan starts. It shows everything that has been committed by now."""
        self.started += 1
        self.lasted_ns = now.mono_ns - self.begun_ns if self.runs_low else None
        self.begun_ns = now.mono_ns
        self.dirty = self.widens = False
        self.due_again_ns = self.retry_ns = None

    def expect(self, entry: Entry, before: tuple[int, int] | None, most: int) -> None:
        """The binary log shows this due message. Request a scan, unless the one under way may show
        it. `most`: how many messages are remembered for that."""
        self.by_group.note_arrival()
        if self.running and not self.dirty and len(self.expected) < most:
            self.expected[entry.key] = entry, before
        else:
            self.dirty = True

    def put_logged(self, entry: Entry, before: tuple[int, int] | None, most: int, now: Instant) -> None:
        """Add a due message that the binary log shows to the buffer. A scan under way that does not show it
        does not remove it (`expected_hidden`). `most`: how many messages are remembered for that."""
        self.buffer.put(entry, now)
        if self.running and len(self.expected) < most:
            self.expected[entry.key] = entry, before

    def expected_hidden(self, result: ScanResult) -> dict[Key, Entry]:
        """The scan came back. Returns the expected messages that it does not show as the binary log
        does, or as they were later, and forgets which were expected."""
        expected, self.expected = self.expected, {}
        if expected:
            for shown in result.entries:
                entry, before = expected.get(shown.key, (None, None))
                if entry is not None and shown.is_at_least(entry, before):
                    del expected[shown.key]
        return {key: entry for key, (entry, _) in expected.items()}

    def scan_completed(self, now: Instant, stale_ns: int) -> None:
        """The scan came back. Its entries are trusted for `stale_ns`, those of a slower scan for as
        long as it took: otherwise a slow table would be scanned all the time."""
        self.completed = self.started
        self.stale = False
        self.trusted_until_ns = now.mono_ns + max(stale_ns, now.mono_ns - self.begun_ns)

    def is_stale(self, now: Instant) -> bool:
        """Whether the entries that were read ahead must be read again before one is claimed."""
        self.stale |= self.dirty and not self.running and now.mono_ns >= self.trusted_until_ns
        return self.stale

    def scan_when_due(self, entry: Entry, now: Instant) -> None:
        """Request a scan for a message that only a scan can find: now, or when it comes due."""
        if entry.due_ns <= now.server_ns:
            self.dirty = True
            self.by_group.note_arrival()
        else:
            self.due_again_ns = min(entry.due_ns, self.due_again_ns or entry.due_ns)

    def retry_at(self, at_ns: int) -> None:
        """Request a scan at this time, for rows that a claim missed."""
        self.retry_ns = min(at_ns, self.retry_ns or at_ns)

    def covers(self, entry: Entry) -> bool:
        """Whether the buffer contains every message due as early as this one, and has room."""
        buffer = self.buffer
        whole = not buffer.more and (buffer.horizon_ns is None or entry.due_ns < buffer.horizon_ns)
        return whole and len(buffer) < self.limit and not self.running

    def reaches(self, entry: Entry) -> bool:
        """Whether the last scan has read everything that is due before this message, and the buffer has
        room."""
        return self.reach is not None and place_of(entry) < self.reach and len(self.buffer) < 2 * self.limit

    def is_behind(self, entry: Entry) -> bool:
        """Whether this due message comes behind all that the last scan has read, and a later one reads it in
        its turn. Among messages of one priority and time, the server alone can compare ids that are no
        integers."""
        if self.reach is None or self.buffer.order is not None:
            return False
        place = place_of(entry)
        return place > self.reach and (isinstance(entry.key, int) or place[:2] > self.reach[:2])

    def note_behind(self, entry: Entry, now: Instant) -> None:
        """The binary log shows this due message behind the reach. It may not be visible yet."""
        place = place_of(entry)
        self.behind = (place if self.behind is None else min(place, self.behind[0])), now.mono_ns

    def may_have_missed(self, now: Instant) -> bool:
        """Whether the scan that came back has read the places of messages behind the reach before it, and
        their commits may not have been visible to it. They are forgotten."""
        if self.behind is None or (self.reach is not None and self.reach < self.behind[0]):
            return False
        logged_ns, self.behind = self.behind[1], None
        return now.mono_ns < logged_ns + VISIBLE_NS

    def adapt_limit(self, least: int, most: int) -> None:
        """Set the limit of the next scan: larger during a backlog, smaller when most rows are not
        due."""
        if self.buffer.more:
            self.limit = min(2 * self.limit, most)
        elif self.buffer.due < self.limit // 4:
            self.limit //= 2
        self.limit = max(self.limit, least)
