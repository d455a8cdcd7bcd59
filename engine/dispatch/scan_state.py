"""What the scan scheduler knows of one filter group: its read-ahead buffer, and why and when to
scan again."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.dispatch.instant import Instant
from engine.dispatch.read_ahead import ReadAhead
from engine.dispatch.scan_position import ScanPosition
from engine.model import Entry


@dataclass(slots=True, eq=False)
class ScanState:
    """The scans of one filter group. Times are monotonic, unless they say otherwise."""

    limit: int
    """How many due entries the next scan reads."""
    position: ScanPosition | None = None
    """Where scans begin; None: at the front, where the first rows are wanted ones."""
    buffer: ReadAhead = field(default_factory=ReadAhead)
    started: int = 0
    """The number of the last scan that was begun."""
    completed: int = 0
    """The number of the last scan that came back."""
    begun_ns: int = 0
    """When the last scan was begun."""
    full_begun_ns: int = 0
    """When the last scan was begun that left nothing out."""
    dirty: bool = True
    """Something may have become due since the last scan was begun."""
    due_again_ns: int | None = None
    """When a message comes due that only a scan can find, on the server's clock."""
    retry_ns: int | None = None
    """When rows that a claim missed are worth another scan."""
    trusted_until_ns: int = 0
    """Until when what was read ahead may be claimed, whatever was committed since."""
    stale: bool = False
    """Nothing is claimed before the next scan has come back."""

    @property
    def running(self) -> bool:
        """Whether a scan has not come back yet."""
        return self.started > self.completed

    @property
    def is_exhausted(self) -> bool:
        """Whether, as far as is known, no more messages are due than those that were taken."""
        return self.buffer.ready == 0 and not self.buffer.more

    def scan_started(self, now: Instant) -> None:
        """A scan is begun: it shows all that is committed by now."""
        self.started += 1
        self.begun_ns = now.mono_ns
        self.dirty = False
        self.due_again_ns = self.retry_ns = None

    def scan_completed(self, now: Instant, stale_ns: int) -> None:
        """The scan came back. What a slow scan read is trusted for as long as it took, or a slow
        table would be scanned all the time."""
        self.completed = self.started
        self.stale = False
        self.trusted_until_ns = now.mono_ns + max(stale_ns, now.mono_ns - self.begun_ns)

    def is_stale(self, now: Instant) -> bool:
        """Whether what was read ahead has to be read again before any of it is claimed."""
        self.stale |= self.dirty and not self.running and now.mono_ns >= self.trusted_until_ns
        return self.stale

    def scan_when_due(self, entry: Entry, now: Instant) -> None:
        """A message is there that only a scan can find: scan now, or when it comes due."""
        if entry.due_ns <= now.server_ns:
            self.dirty = True
        else:
            self.due_again_ns = min(entry.due_ns, self.due_again_ns or entry.due_ns)

    def retry_at(self, at_ns: int) -> None:
        """Rows that a claim missed are worth another scan at this time."""
        self.retry_ns = min(at_ns, self.retry_ns or at_ns)

    def covers(self, entry: Entry) -> bool:
        """Whether the buffer holds all that is due as soon as this, and has room."""
        buffer = self.buffer
        whole = not buffer.more and (buffer.horizon_ns is None or entry.due_ns < buffer.horizon_ns)
        return whole and len(buffer) < self.limit and not self.running

    def adapt_limit(self, least: int, most: int) -> None:
        """Read further ahead while a backlog is worked off, and little when most rows are not
        due."""
        if self.buffer.more:
            self.limit = min(2 * self.limit, most)
        elif self.buffer.ready < self.limit // 4:
            self.limit //= 2
        self.limit = max(self.limit, least)
