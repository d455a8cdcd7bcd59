"""Whether rows can be moved from one message table to another, whole: every value kept, exactly.

The server copies them (INSERT … SELECT under a strict sql_mode) and refuses most of what would be lost. What it does
without a word is told here beforehand, by the types: rounding of times and decimals, padding of binary strings. So
columns have to be of the same type, but for the families in which the server itself refuses what does not fit.

The engine's account may write to tables that the owner of a queue may not. So rows move only into a table whose own
comment names the queue (dead_letter_of): whoever wrote that may ALTER it. That is asked whatever database it lies in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.catalog.verdict import INTEGERS, OWN_COLUMNS, Column, TableFacts, judge
from engine.model import BrokenTable, QueueTable, TableId
from engine.quoting import qualified

_TEXTS = frozenset({"varchar", "tinytext", "text", "mediumtext", "longtext"})
_BLOBS = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_FAMILIES = (
    (INTEGERS, INTEGERS),
    (_TEXTS | {"char"}, _TEXTS),
    (frozenset({"char"}), frozenset({"char"})),
    (_BLOBS | {"binary"}, _BLOBS),
)
"""From any type of the first to any of the second: what does not fit is an error or at least a warning there."""

CHAIN_MAX = 16
"""Dead-letter tables followed from one to the next, until it is said that there are too many: nobody has three."""

NAMES_MAX = 10
"""Columns named in one problem: a table can have 4,096."""


def columns_to_move(facts: TableFacts) -> tuple[str, ...]:
    """What has to be copied of a row: all that is not computed, but for the two times that it gets anew."""
    return tuple(each.name for each in facts.columns if not each.generated and each.name.lower() not in OWN_COLUMNS[2:])


def obstacles(source: TableFacts, name: TableId, target: TableFacts | None) -> tuple[str, ...]:
    """All that keeps rows of `source` from moving to the table `name`, each with what to do; nothing if they can."""
    if target is None:
        return (f"{name} does not exist, or the engine's account may not see it: create it as a message table",)
    if target.id == source.id:
        return (f"{name} is the table itself: name another one",)
    match judge(target):
        case None:
            return (f"{name} is no message table: its COMMENT does not hold the word vitess_message",)
        case BrokenTable() as broken:
            return (str(broken),)
        case QueueTable() as queue if not queue.takes_dead_letters_of(source.id):
            return (f"{name} does not take dead messages of {source.id}: {consenting(source.id, name)}",)
        case QueueTable():
            return tuple(_column_obstacles(source, target))


def consenting(source: TableId, name: TableId) -> str:
    """How dead messages of `source` come to be taken by the table `name`."""
    return (
        f"ALTER QUEUE {qualified(source)} DEAD_LETTER = {qualified(name)}, by an account with ALTER on both tables,"
        f" writes {source} into dead_letter_of in the COMMENT of {name}"
    )


def closed_to(source: TableId, name: TableId, found: QueueTable | BrokenTable | None) -> str | None:
    """Why dead messages of `source` do not move to the table `name`, in words for those who may see `source` and
    perhaps not the other: they are the same whatever that is. None where it takes them."""
    if name == source:
        return f"dead messages stay here: {name}, its DEAD_LETTER, is the table itself: name another one"
    if isinstance(found, QueueTable) and found.takes_dead_letters_of(source):
        return None
    return (
        f"dead messages stay here: {name}, its DEAD_LETTER, does not exist, cannot be used as a queue, or does not take"
        f" them: {consenting(source, name)}, or makes it"
    )


class Chain:
    """The dead-letter tables behind a queue's own: where they lead back to the queue, messages would move for ever.

    Look at the table `onward` and `add` what was found, until `onward` is None.
    """

    def __init__(self, source: TableId, first: QueueTable) -> None:
        self._source = source
        self._passed = [first.id]
        self.onward = first.dead_letter
        self.problem: str | None = None
        """Why no message of the queue may be moved, if none may."""
        self._judge_length()

    def add(self, found: QueueTable | BrokenTable | None) -> None:
        """What was found of the table `onward`."""
        reached, self.onward = self._passed[-1], None
        if not isinstance(found, QueueTable) or not found.takes_dead_letters_of(reached):
            return
        if found.id == self._source:
            names = " > ".join(map(str, (self._source, *self._passed, self._source)))
            self.problem = f"dead messages would come back: {names}: take one of these DEAD_LETTER away"
        elif found.id not in self._passed:
            self._passed.append(found.id)
            self.onward = found.dead_letter
            self._judge_length()

    def _judge_length(self) -> None:
        if self.onward is not None and len(self._passed) >= CHAIN_MAX:
            self.onward = None
            self.problem = f"{CHAIN_MAX} DEAD_LETTER tables behind each other, and more, are not followed"


def _column_obstacles(source: TableFacts, target: TableFacts) -> Iterable[str]:
    there = {each.name.lower(): each for each in target.columns}
    pairs = [(each, there.get(each.name.lower())) for each in source.columns if not each.generated]
    if missing := [each.name for each, other in pairs if other is None]:
        yield f"{target.id} lacks {_columns(missing)}: add what {source.id} has"
    if computed := [other.name for _, other in pairs if other and other.generated]:
        yield f"{target.id} computes {_columns(computed)}, where {source.id} stores a value: make it an ordinary column"
    if unlike := [
        f"{each.name} ({other.full_type} for {each.full_type})"
        for each, other in pairs
        if other and not _fits(each, other)
    ]:
        yield f"{target.id} has another type for {_columns(unlike)}: give it that of {source.id}"


def _fits(column: Column, other: Column) -> bool:
    if column.full_type == other.full_type:
        return True
    return any(column.data_type in given and other.data_type in taken for given, taken in _FAMILIES)


def _columns(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MAX
    listed = ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"column {listed}" if len(names) == 1 else f"columns {listed}"
