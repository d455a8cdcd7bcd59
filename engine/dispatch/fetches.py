"""The fetches under way: which leases' rows are being read, in which format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from engine.dispatch.effects import Effect, Fetch
from engine.dispatch.filter_groups import FilterGroup
from engine.dispatch.leases import FETCHING_STATES, Lease, LeaseEvent, LeaseState
from engine.dispatch.subscribers import Subscriber
from engine.model import RowFormat


class FetchesUnderWay:
    """The fetches that were begun and have not come back."""

    def __init__(self, rows_max: int, numbers: Iterator[int]) -> None:
        self._rows_max = rows_max
        self._numbers = numbers
        self._by_id: dict[int, list[Lease]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def start_fetches(self, groups: Iterable[FilterGroup]) -> list[Effect]:
        """Fetch the rows of what was dealt: one fetch for all subscribers of the same format."""
        batches: dict[RowFormat, list[Lease]] = {}
        for group in groups:
            for subscriber in group.subscribers.to_fetch():
                batch = batches.setdefault(subscriber.spec.row_format, [])
                room = max(0, self._rows_max - len(batch))
                claimed = (lease for lease in subscriber.unsent.values() if lease.state is LeaseState.CLAIMED)
                if wanted := list(islice(claimed, room)):
                    batch += wanted
                    group.subscribers.set_fetching(subscriber, fetching=True)
        return [self._start_fetch(row_format, leases) for row_format, leases in batches.items() if leases]

    def finish_fetch(
        self, fetch_id: int, subscribers: Mapping[int, Subscriber]
    ) -> tuple[list[tuple[Lease, Subscriber]], list[Subscriber]]:
        """A fetch came back, or failed. Returns the leases that still stand and are still to be sent, with their
        subscribers, and all subscribers that it was for and that still are there."""
        standing: list[tuple[Lease, Subscriber]] = []
        served: dict[int, Subscriber] = {}
        for lease in self._by_id.pop(fetch_id):
            if subscriber := subscribers.get(lease.subscriber or 0):
                served[subscriber.spec.id] = subscriber
                if lease.state in FETCHING_STATES:
                    standing.append((lease, subscriber))
        return standing, list(served.values())

    def leases(self, fetch_id: int) -> list[Lease]:
        """The leases whose rows a fetch reads."""
        return self._by_id[fetch_id]

    def _start_fetch(self, row_format: RowFormat, leases: list[Lease]) -> Fetch:
        for lease in leases:
            lease.apply(LeaseEvent.FETCH)
        fetch_id = next(self._numbers)
        self._by_id[fetch_id] = leases
        return Fetch(fetch_id, row_format, {lease.key: lease.delivery for lease in leases})
