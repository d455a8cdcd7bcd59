"""The fetches under way: the leases whose rows are being read, and for which streams."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from engine.dispatch.effects import Effect, Fetch
from engine.dispatch.filter_groups import FilterGroups
from engine.dispatch.leases import FETCHING_STATES, SUSPECT_STATES, Lease, LeaseEvent, LeaseState
from engine.dispatch.subscribers import Subscriber
from engine.model import Key, RowFormat
from engine.refused import PartSize


class FetchesUnderWay:
    """The fetches that were started and have not come back."""

    def __init__(self, groups: FilterGroups, rows_max: int, numbers: Iterator[int], size: PartSize) -> None:
        """`size`: of fetches while some were refused."""
        self._groups = groups
        self._size = size
        self._rows_max = rows_max
        self._numbers = numbers
        self._by_id: dict[int, list[Lease]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def start_fetches(self) -> list[Effect]:
        """Fetch the rows of unsent leases: one fetch for all subscribers of one row format, at most
        `rows_max` rows each."""
        batches: dict[RowFormat, list[Lease]] = {}
        rows_max = self._rows_max if self._size.most is None else min(self._rows_max, self._size.most)
        for group in self._groups:
            for subscriber in () if group.locks else group.subscribers.to_fetch():
                batch = batches.setdefault(subscriber.spec.row_format, [])
                room = max(0, rows_max - len(batch))
                claimed = (
                    lease
                    for lease in subscriber.unsent.values()
                    if lease.state is LeaseState.CLAIMED
                    and not (lease.run is not None and lease.is_behind(SUSPECT_STATES))
                )
                if wanted := list(islice(claimed, room)):
                    batch += wanted
                    group.subscribers.set_fetching(subscriber, fetching=True)
        return [self._start_fetch(row_format, leases) for row_format, leases in batches.items() if leases]

    def start_behind_claim(self, row_format: RowFormat, claimed: Collection[Key]) -> int:
        """The rows of these claims were read behind them, in this format: a fetch that has come back.
        It is for the subscribers of the format that wait for no other row before. Returns its
        number."""
        leases: list[Lease] = []
        for group in self._groups:
            for subscriber in () if group.locks else group.subscribers.to_fetch():
                first = next(iter(subscriber.unsent))
                if first not in claimed or subscriber.spec.row_format != row_format:
                    continue
                # All may be suspect already. The end of a fetch without leases would find no subscriber.
                if wanted := [lease for lease in subscriber.unsent.values() if lease.state is LeaseState.CLAIMED]:
                    leases += wanted
                    group.subscribers.set_fetching(subscriber, fetching=True)
        return self._begin(leases)

    def finish_fetch(self, fetch_id: int) -> list[tuple[Lease, Subscriber]]:
        """A fetch came back, or failed. Returns the leases that have not ended meanwhile, with
        their subscribers."""
        remaining: list[tuple[Lease, Subscriber]] = []
        served: dict[int, Subscriber] = {}
        for lease in self._by_id.pop(fetch_id):
            if subscriber := self._groups.subscribers.get(lease.subscriber or 0):
                served[subscriber.spec.id] = subscriber
                if lease.state in FETCHING_STATES:
                    remaining.append((lease, subscriber))
        for subscriber in served.values():
            self._groups.members_with(subscriber).set_fetching(subscriber, fetching=False)
        return remaining

    def leases(self, fetch_id: int) -> list[Lease]:
        """The leases whose rows a fetch reads."""
        return self._by_id[fetch_id]

    def _start_fetch(self, row_format: RowFormat, leases: list[Lease]) -> Fetch:
        return Fetch(self._begin(leases), row_format, {lease.key: lease.delivery for lease in leases})

    def _begin(self, leases: list[Lease]) -> int:
        for lease in leases:
            lease.apply(LeaseEvent.FETCH)
        fetch_id = next(self._numbers)
        self._by_id[fetch_id] = leases
        return fetch_id
