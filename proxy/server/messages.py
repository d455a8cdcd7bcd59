"""The messages between the parent and its workers, where `workers` is more than 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from engine.binlog.pipe import ChangeBatch
from engine.binlog.scope import FollowedTables
from engine.model import TableId
from engine.service import NO_IDS
from engine.store.opening import BackendAddress
from engine.store.port import Origin
from proxy.server.allowances import Limited
from proxy.server.inspection import Question
from proxy.statements.others import Subject
from sqlrewrite.classify import Kill


class Topic(Enum):
    """What the parent asks workers for."""

    METRICS = auto()
    """A list of metric families (proxy.server.metrics.ProcessMetrics)."""
    COUNTED_METRICS = auto()
    """The same, and the messages in the database are counted for a while from now on."""
    HEALTH = auto()
    """Why the server is out of reach, or was a moment ago; None if it is not."""
    READY = auto()
    """Why clients cannot be served; None if they can."""
    REACHABLE = auto()
    """Whether the server is in reach now."""
    INSPECT = auto()
    """The answer (proxy.server.inspection.Inspected) to the question that comes with it."""


# To a worker.


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message: the worker starts its engine on this server (None: there is no primary
    now). `several`: it is one of several."""

    address: BackendAddress | None
    problem: str = ""
    several: bool = False


@dataclass(frozen=True, slots=True)
class RouteChanged:
    """This server is the primary now; None: none is, for this reason."""

    address: BackendAddress | None
    problem: str


@dataclass(frozen=True, slots=True)
class ReaderFollows:
    """A reader of the binary log follows it from now on, and holds this lock (empty: none)."""

    lock: str


@dataclass(frozen=True, slots=True)
class Changes:
    """A change set."""

    batch: ChangeBatch


@dataclass(frozen=True, slots=True)
class ReaderGone:
    """The binary log is not followed now."""


@dataclass(frozen=True, slots=True)
class Missed:
    """The worker has read too slowly, and change sets or notices for it were dropped."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The worker sends an Answer with this number."""

    number: int
    topic: Topic | Subject
    """A Subject: the list that `Statements.own` returns."""
    question: Question | None = None


@dataclass(frozen=True, slots=True)
class OthersAnswers:
    """The answer to AskOthers: what the other workers have answered, in one list."""

    number: int
    found: Sequence[object]


@dataclass(frozen=True, slots=True)
class Allow:
    """The worker may use so many units of this limit."""

    limited: Limited
    units: int


@dataclass(frozen=True, slots=True)
class Reload:
    """The worker reads the TLS certificate again."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The worker ends its connections as their commands end, and then itself."""


# From a worker.


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker accepts clients."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker cannot start, and ends."""

    text: str


@dataclass(frozen=True, slots=True)
class Tables:
    """All queues that the worker knows, and what is left out of their changes."""

    tables: FollowedTables


@dataclass(frozen=True, slots=True)
class EngineConnections:
    """How the binary log shows the transactions of the worker's engine (engine.store.own_writes)."""

    mark: str
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ClientsGone:
    """So many more clients of the worker have disconnected."""

    count: int


@dataclass(frozen=True, slots=True)
class Demand:
    """The limits of all queues that have streams here, in units."""

    limits: Mapping[Limited, int]


@dataclass(frozen=True, slots=True)
class Uses:
    """The worker follows the order of `ordered` units, and still uses so many."""

    limited: Limited
    ordered: int
    used: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an Ask."""

    number: int
    value: object


@dataclass(frozen=True, slots=True)
class AskOthers:
    """The worker is sent OthersAnswers with this number."""

    number: int
    subject: Subject


@dataclass(frozen=True, slots=True)
class InDoubt:
    """The worker got an error that another primary explains."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker accepts no more clients, because it was sent SIGTERM."""


# Notices of a worker to the others, through the parent. The engine's have the arguments of the
# methods of Engine with these names.


@dataclass(frozen=True, slots=True)
class Written:
    """A commit touched a table of this bare name (None: any table)."""

    name: str | None
    inserted: bool = False
    ids: range = NO_IDS
    """As for Engine.written."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Messages with these ids (None: unknown ids) may have been acknowledged or given back."""

    table: TableId
    values: Sequence[object] | None


@dataclass(frozen=True, slots=True)
class Extended:
    """The leases of messages with these ids (None: unknown ids) may have been extended."""

    table: TableId
    values: Sequence[object] | None


@dataclass(frozen=True, slots=True)
class SchemaChanged:
    """A table of this bare name (None: any table) may have been created, altered or dropped."""

    name: str | None


@dataclass(frozen=True, slots=True)
class KillAccepted:
    """A server has accepted a KILL."""

    kill: Kill
    origin: Origin


CommitNotice = Written | Acknowledged | Extended | SchemaChanged


@dataclass(frozen=True, slots=True)
class Notices:
    """What clients of a worker did in one turn of its event loop."""

    notices: Sequence[CommitNotice]
