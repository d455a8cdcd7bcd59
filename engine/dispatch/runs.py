"""Runs: messages of a group in strict order that one stream gets together (`Policy.group_run`).

A claim takes a run only if nothing of the group is in flight. So the messages of a group that are in
flight are one run, and the next one begins when all of it is over. If the delivery of one of them ends
and the message is not settled, the later ones are given back, because they have to come behind it.
Their rows are not sent while an earlier one may have been changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from engine.dispatch.leases import Lease, LeaseState


class Runs:
    """The runs of one table that have to be given back in part."""

    def __init__(self) -> None:
        self.broken: list[Lease] = []
        """The leases behind one that has ended without being settled. Some may have ended, too."""

    def leases_ended_unsettled(self, leases: Iterable[Lease]) -> None:
        """These leases have ended, and their messages were not acknowledged or deleted."""
        for lease in leases:
            if lease.run is not None:
                self.broken += lease.run[lease.run.index(lease) + 1 :]

    def take_broken(self) -> list[Lease]:
        """The leases to be given back, each once."""
        broken, self.broken = dict.fromkeys(self.broken), []
        return [lease for lease in broken if lease.state is not LeaseState.ENDED]


def begin_runs(leases: Iterable[Lease]) -> list[Sequence[Lease]]:
    """Divide the leases of one claim, in the order of delivery, into runs."""
    runs: list[Sequence[Lease]] = []
    for group, members in groupby(leases, key=lambda lease: lease.group):
        run = list(members)
        if group is None:
            runs += [[lease] for lease in run]
            continue
        runs.append(run)
        for lease in run if len(run) > 1 else ():
            lease.run = run
    return runs
