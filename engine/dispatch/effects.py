"""What the dispatcher wants done: plain values, carried out by the table runner (a `Lock` by the
subscriber's session), answered by an event.

| effect            | answered by                                      |
|-------------------|--------------------------------------------------|
| `Scan`            | `Dispatcher.scan_done` or `.scan_failed`         |
| `ScanGroups`      | `Dispatcher.group_scan_done` or `.group_scan_failed` |
| `Poll`            | `Dispatcher.polled` or `.poll_failed`            |
| `Claim`           | `Dispatcher.claim_done` or `.claim_failed`       |
| `Fetch`           | `Dispatcher.fetch_done` or `.fetch_failed`       |
| `Lock`            | `Dispatcher.lock_done`                           |
| `Lookup`          | `Dispatcher.lookup_done` or `.lookup_failed`     |
| `Release`         | `Dispatcher.release_done` or `.release_failed`   |
| `FindAbandoned`   | `Dispatcher.search_done` or `.search_failed`     |
| `Purge`           | `Dispatcher.purge_done` or `.purge_failed`       |
| `MoveDeadLetters` | `Dispatcher.move_done` or `.move_failed`         |
| `Deliver`         | nothing: the rows are the subscriber's now       |
| `End`             | nothing: the subscription is over                |
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from engine.model import BatchCheck, Delivery, GroupScan, Key, Portion, Range, Return, RowFormat, Selection, Wanted


@dataclass(frozen=True, slots=True)
class Scan:
    """Read the keys of up to `limit` due messages of a selection, and of those due next. `part`: in
    this part of the table; None: in all of it. `portion`: of a share, and some of the others; None: of all
    messages."""

    scan_id: int
    selection: Selection
    limit: int
    part: Range | None
    portion: Portion | None = None


@dataclass(frozen=True, slots=True)
class ScanGroups:
    """Read due messages by message group. `portion`: only those of its share; None: all."""

    scan_id: int
    request: GroupScan
    portion: Portion | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim these rows and commit, before any of them is sent. `row_format`: read them behind the
    commit, for subscribers that all have this format; None: a `Fetch` reads them."""

    claim_id: int
    wanted: tuple[Wanted, ...]
    row_format: RowFormat | None = None
    slot: int = 0
    """The slot of this proxy, for a table with a lease column."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read the row packets of these claims (by key) in one format."""

    fetch_id: int
    row_format: RowFormat
    keys: Mapping[Key, Delivery]


@dataclass(frozen=True, slots=True)
class Lock:
    """Lock these messages in the transaction of the subscriber's client, and pass their rows on:
    those that are unacknowledged, due at `now_ns` and not locked. `epoch_below`: only those whose
    epoch is less."""

    lock_id: int
    subscriber: int
    keys: tuple[Key, ...]
    """In the order of delivery."""
    now_ns: int
    epoch_below: int | None
    unscanned: bool = False
    """Whether no scan has shown some of them: the answer shows the rows of all."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Read the current state of these messages."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Give these claims back."""

    returns: tuple[Return, ...]


@dataclass(frozen=True, slots=True)
class FindAbandoned:
    """Find up to `limit` messages in flight at proxies that are gone; with `slot`, those whose leases
    carry it."""

    slot: int | None
    limit: int


@dataclass(frozen=True, slots=True)
class Poll:
    """Find out whether the table has an unacknowledged message. Polls of several queues are one statement."""


@dataclass(frozen=True, slots=True)
class CheckBatches:
    """Compare follow-ups with their batches."""

    check: BatchCheck


@dataclass(frozen=True, slots=True)
class Purge:
    """Delete up to `limit` rows acknowledged more than `age_ns` ago."""

    age_ns: int
    limit: int


@dataclass(frozen=True, slots=True)
class MoveDeadLetters:
    """Move these dead messages to the dead-letter table."""

    dead: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send these row payloads to the subscriber, in this order."""

    subscriber: int
    rows: tuple[bytes, ...]


class Cause(enum.Enum):
    """Why a subscription ended."""

    COMPLETE = enum.auto()
    """LIMIT reached, or a bounded stream found nothing more."""
    DRAINING = enum.auto()
    """The proxy is stopping."""
    UNUSABLE = enum.auto()
    """The table cannot be read as a queue (any more)."""


@dataclass(frozen=True, slots=True)
class End:
    """The subscription is over; nothing is delivered to it after this."""

    subscriber: int
    cause: Cause
    text: str = ""


Effect = (
    Scan
    | ScanGroups
    | Poll
    | Claim
    | Fetch
    | Lock
    | Lookup
    | Release
    | FindAbandoned
    | CheckBatches
    | Purge
    | MoveDeadLetters
    | Deliver
    | End
)
