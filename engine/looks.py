"""What there is to hand out: when each lane looks at the table, and what looks and other people's words bring.

A message that nobody here has is known by its key in a lane's window, or it is not known and a look (a *scan*) must
find it. So whoever hears of such a message comes here: a commit (`stir`), the server's log (`told`), a lookup
(`see`, `seen_before`), a claim that missed it (`missed`), the end of a lease (`lower`). Each either puts it into the
windows or makes sure that a look comes that cannot pass it over: not one that began earlier (`Scanning.dirty`), and
not one that begins behind it (`Cursor.lower`).

The dispatcher takes out of the windows what it claims, and says which lanes can use more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.effects import Effect, Scan
from engine.expected import Expected
from engine.lanes import Lane, Lanes
from engine.model import Entry, Key, Policy, Range, ScanResult
from engine.pacing import Limits


@dataclass(frozen=True, slots=True)
class _Look:
    """A scan under way: for which lane, and in which part of the table."""

    lane: Lane
    part: Range | None


class Looks:
    """The looks at one table: those under way, and why others are wanted."""

    def __init__(self, lanes: Lanes, policy: Policy, limits: Limits, ids: Iterator[int]) -> None:
        self._lanes = lanes
        self._policy = policy
        self._limits = limits
        self._ids = ids
        self._under_way: dict[int, _Look] = {}
        self._expected = Expected(limits.window_max)

    @property
    def under_way(self) -> bool:
        """Whether a scan has not come back yet."""
        return bool(self._under_way)

    @property
    def again_ns(self) -> int | None:
        """When to look again for what the log has told of."""
        return self._expected.again_ns

    def times(self, lane: Lane) -> list[int | None]:
        """When a lane that could be given messages may have some, or is to look."""
        scanning = lane.scanning
        times = [lane.window.next_ns, scanning.again_ns, scanning.full_at_ns + self._policy.poller_interval_ns]
        if scanning.dirty:
            times.append(scanning.at_ns + self._limits.rescan_pause_ns)
        return times

    # Words about messages that nobody here has.

    def stir(self, *, anywhere: bool = False) -> None:
        """Something may have become due; `anywhere`: not just behind where looks begin."""
        for lane in self._lanes:
            lane.scanning.dirty = True
            if anywhere and lane.cursor is not None:
                lane.cursor.reset()

    def anything(self, now_ns: int) -> None:
        """The log tells that something changed, and others may not see it yet."""
        self._expected.anything(now_ns)
        self.stir(anywhere=True)

    def told(self, entry: Entry, now_ns: int) -> None:
        """The log shows a message as it became; others may not see it yet."""
        if self._lanes.main.window.knows(entry):
            return
        due = entry.due_ns <= now_ns
        if due:
            self._expected.add(now_ns, entry.key)
            self.stir()
        else:
            self._expected.met((entry.key,))
        self.lower(entry)
        for lane in self._lanes:
            if lane.cursor is None and not (due or lane.selection.partitions):
                lane.window.await_due(entry, self._limits.window_max)
            elif not due:
                lane.look_again(entry.due_ns)

    def see(self, entry: Entry, now_ns: int) -> None:
        """A message that was out is nobody's now: whoever may want it looks when it is due."""
        for lane in self._lanes:
            if lane.cursor is not None:
                lane.cursor.lower(entry)
            elif not lane.selection.partitions and lane.covers(entry):
                lane.window.put(entry, now_ns)
                continue
            lane.look_when_due(entry, now_ns)

    def seen_before(self, entry: Entry, now_ns: int) -> None:
        """A message was so when it was looked up, and may have become anything since."""
        self.lower(entry)
        for lane in self._lanes:
            lane.look_when_due(entry, now_ns)

    def lower(self, entry: Entry, but: Lane | None = None) -> None:
        """The message may stand at this place (again): lanes that have passed it are to look there."""
        for lane in self._lanes:
            if lane.cursor is not None and lane is not but:
                lane.cursor.lower(entry)
                lane.scanning.dirty = True

    def missed(self, entries: Sequence[Entry], now_ns: int, of: Lane | None = None) -> None:
        """Messages that looked due could not be had: left alone for a moment, and looked for again, by all."""
        if not entries:
            return
        for lane in self._lanes:
            keep = lane is of and lane.cursor is not None
            lane.look_again(lane.window.miss(entries, now_ns, keep=keep))
        for entry in entries:
            self.lower(entry, but=of)

    def over(self, keys: Sequence[Key]) -> None:
        """These messages are acknowledged, or gone."""
        for lane in self._lanes:
            lane.window.forget(keys)

    def expected_no_more(self, keys: Iterable[Key]) -> None:
        """The log has told what became of these: nobody need wait until they can be seen."""
        self._expected.met(keys)

    # Looking.

    def pass_time(self, now_ns: int) -> None:
        """What has come due is ready; what was told of and not seen is looked for again."""
        for lane in self._lanes:
            lane.window.promote(now_ns)
        if self._expected.due(now_ns):
            self.stir(anywhere=self._expected.slow)

    def begin(self, lanes: Iterable[Lane], now_ns: int, unavailable: int) -> list[Effect]:
        """Look for those of these lanes whose time it is. `unavailable`: so many rows show as due and are taken."""
        due = [each for each in lanes if self._is_due(each, now_ns)]
        due.sort(key=lambda each: each.scanning.at_ns)
        room = self._limits.scans_max - len(self._under_way)
        return [self._begin(each, now_ns, unavailable) for each in due[:room]]

    def answered(
        self,
        now_ns: int,
        scan_id: int,
        result: ScanResult,
        taken: Collection[Key],
        outdated: Callable[[Entry, int], bool],
    ) -> None:
        """A scan came back. `taken` are being claimed or buried; `outdated` are rows that show less than we know."""
        look = self._under_way.pop(scan_id)
        lane = look.lane
        lane.scanning.returned(now_ns, self._limits.stale_ns)
        self._expected.met(each.key for each in result.entries)

        def unwanted(entry: Entry) -> bool:
            if entry.key not in taken:
                return outdated(entry, scan_id)
            if lane.cursor is not None:
                lane.cursor.lower(entry)  # The claim may be of an older state of the row, and miss.
            return True

        if look.part is None or not look.part.after:
            lane.window.scanned(result, now_ns, unwanted)
        elif len(lane.window) <= 2 * lane.scanning.limit:
            lane.window.joined(result, now_ns, unwanted)
        else:
            return  # No room: what was found is still there at the next look.
        if lane.cursor is not None:
            lane.cursor.advance(result.reached, result.greatest_id, now_ns)
        most = min(self._limits.window_max // len(self._lanes), self._policy.cache_size)
        lane.adapt_scan_limit(self._limits.scan_min, most)

    def failed(self, now_ns: int, scan_id: int) -> Lane:
        """A scan could not be made; returns the lane that has learned nothing."""
        lane = self._under_way.pop(scan_id).lane
        lane.scanning.returned(now_ns, self._limits.stale_ns)
        lane.scanning.dirty = True
        return lane

    def reconfigure(self, policy: Policy) -> None:
        """The table's comment changed."""
        self._policy = policy
        self.stir()

    def _begin(self, lane: Lane, now_ns: int, unavailable: int) -> Scan:
        scanning, part = lane.scanning, None
        if lane.cursor is not None:
            if now_ns >= scanning.full_at_ns + self._policy.poller_interval_ns:
                lane.cursor.reset()
            part = Range(lane.cursor.begin(now_ns), now_ns + self._limits.ahead_ns)
        if part is None or not part.after:
            scanning.full_at_ns = now_ns
        scanning.begun(now_ns)
        scan_id = next(self._ids)
        self._under_way[scan_id] = _Look(lane, part)
        # Rows that cannot be offered again yet must not crowd out those that can.
        limit = scanning.limit + lane.window.missed + unavailable
        return Scan(scan_id, lane.selection, limit, part)

    def _is_due(self, lane: Lane, now_ns: int) -> bool:
        scanning, window = lane.scanning, lane.window
        if scanning.running:
            return False
        if window.ready <= scanning.limit // 4:
            if scanning.dirty or window.more or lane.unsure:
                return True
            if window.horizon_ns is not None and window.horizon_ns <= now_ns:
                return True
        if scanning.dirty and now_ns >= scanning.at_ns + self._limits.rescan_pause_ns:
            return True
        if scanning.again_ns is not None and scanning.again_ns <= now_ns:
            return True
        return now_ns >= scanning.full_at_ns + self._policy.poller_interval_ns
