"""What a limit is to a claim: its statements, and the choice that follows from their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.model import Claimed, Entry, Group, GroupLeft, Key, LimitsLeft, SemaphoreLeft, Wanted
from engine.packets import Result
from engine.queue_table import QueueTable
from engine.quoting import quoted
from engine.store.queries import statements_of


@dataclass(slots=True)
class Left:
    """What is left behind a claim. Each choice adds its part. The fields are those of `LimitsLeft`."""

    found: Mapping[Key, Entry]
    """The messages that the claim has locked."""
    places: int | None = None
    free_ns: int | None = None
    paced_until_ns: int | None = None
    groups: dict[Group, GroupLeft] = field(default_factory=dict)
    paced_groups: dict[Group, int] = field(default_factory=dict)
    semaphores: tuple[SemaphoreLeft, ...] = ()
    problem: str | None = None

    def with_left_out(self, keys: Sequence[Key]) -> LimitsLeft:
        """The whole, with these messages left out."""
        groups, paced_groups = tuple(self.groups.values()), tuple(self.paced_groups.items())
        places = (self.places, self.free_ns, self.paced_until_ns)
        return LimitsLeft(tuple(keys), *places, groups, paced_groups, self.semaphores, self.problem)


class Choice(ABC):
    """What a claim has found of one limit."""

    @abstractmethod
    def has_place(self, key: Key) -> bool:
        """Whether the claim may take this message, too."""

    @abstractmethod
    def note_taken(self, claim: Claimed) -> None:
        """The claim takes this message."""

    @abstractmethod
    def leave(self, left: Left) -> None:
        """Write down what is left behind the claim."""


class Limit:
    """One limit in one claim. Its statements run in the claim's transaction, in the order of the methods."""

    choice: Choice | None = None
    """What was found; None before that, and if the limit concerns no message of this claim."""

    def __init__(self, table: QueueTable, claim_s: float) -> None:
        """`claim_s`: how long the last claim of the queue took."""
        self._table, self._claim_s = table, claim_s
        self._sql = statements_of(table)

    @property
    def locks(self) -> Sequence[str]:
        """Lock the rows of the limit, before anything else is locked."""
        return ()

    @property
    def counts(self) -> Sequence[str]:
        """Read what is in flight, behind these locks."""
        return ()

    def of_rows(self, wanted: Mapping[Key, Wanted]) -> Sequence[str]:
        """Read what concerns these messages, behind the locks of their rows."""
        return ()

    def read(self, locked: Sequence[Result], counted: Sequence[Result], now_ns: int) -> None:
        """Take the results of `locks` and `counts`. `now_ns`: the server's time behind the locks. Raises
        Unprepared."""

    def read_rows(self, results: Sequence[Result], found: Mapping[Key, Entry], now_ns: int) -> None:
        """Take the results of `of_rows`. `found`: the messages that were locked."""

    def possible(self, found: Mapping[Key, Entry], wanted: Mapping[Key, Wanted]) -> Mapping[Key, Entry]:
        """Those of the locked messages to which the limit can be applied. Raises Unprepared."""
        return found

    def writes(self) -> Sequence[str]:
        """Keep what the claim has used up, with its messages."""
        return ()


def lease_words(table: QueueTable) -> dict[str, str]:
    """The words of statements that read what is in flight."""
    return {"lease": quoted(table.lease_column or ""), "lease_index": quoted(table.lease_index or "")}
