"""The scans that were started and have not come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from engine.dispatch.filter_groups import FilterGroup
from engine.model import Key, Portion, Range


@dataclass(frozen=True, slots=True)
class ScanUnderWay:
    """A scan: its group, and the part of the table that it reads."""

    group: FilterGroup
    part: Range | None
    limit: int
    """How many due messages it reads."""
    peeks: bool = False
    """Whether it reads less than the last one, and what was read behind its reach stays."""
    portion: Portion | None = None
    """The messages that it reads; None: all."""
    over: set[Key] = field(default_factory=set)
    """Messages of which a statement here reported since it was started that they are acknowledged or deleted:
    it may have read them before. Those that something shows again are taken out."""


class ScansUnderWay:
    """Scans of one kind, by id."""

    def __init__(self, over_max: int) -> None:
        """`over_max`: how many messages that are over are remembered for each scan."""
        self._over_max = over_max
        self._by_id: dict[int, ScanUnderWay] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ScanUnderWay]:
        return iter(self._by_id.values())

    def start(self, scan_id: int, scan: ScanUnderWay) -> None:
        """A scan is started."""
        self._by_id[scan_id] = scan

    def finish(self, scan_id: int) -> ScanUnderWay:
        """A scan came back, or failed."""
        return self._by_id.pop(scan_id)

    def settled(self, keys: Sequence[Key]) -> None:
        """These messages are over: a scan may still show them. Beyond the bound, a few claims miss."""
        for scan in self:
            scan.over.update(islice(keys, max(0, self._over_max - len(scan.over))))

    def shown_again(self, key: Key) -> None:
        """This message is there. It may have been over before, and a scan is to show it."""
        for scan in self:
            scan.over.discard(key)
