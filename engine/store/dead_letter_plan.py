"""Whether rows can be moved from one message table to another with every value exactly kept.

The server copies rows (INSERT … SELECT under a strict sql_mode), and refuses most values that would
change. It changes some without an error: it rounds times and decimals, and pads binary strings.
These are excluded by type: columns must have the same type, except within families in which the
server refuses values that do not fit.

The engine's account may write to tables that the owner of a queue may not. So rows move only into a
table whose own comment names the queue (dead_letter_of): its author has ALTER on that table. This
is required in every database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.catalog.directives import parse_comment
from engine.catalog.verdict import INTEGERS, OWN_COLUMNS, Column, TableFacts, evaluate
from engine.model import TableId
from engine.queue_table import BrokenTable, Policy, QueueTable
from engine.quoting import qualified

_TEXTS = frozenset({"varchar", "tinytext", "text", "mediumtext", "longtext"})
_BLOBS = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_FAMILIES = (
    (INTEGERS, INTEGERS),
    (_TEXTS | {"char"}, _TEXTS),
    (frozenset({"char"}), frozenset({"char"})),
    (_BLOBS | {"binary"}, _BLOBS),
)
"""Pairs of type families. A value of the first that does not fit the second is an error or a
warning."""

CHAIN_MAX = 16
"""Dead-letter tables followed from one to the next. With more, messages stay. Nobody has three."""

NAMES_MAX = 10
"""Columns named in one problem. A table can have 4,096."""


def columns_to_move(facts: TableFacts) -> tuple[str, ...]:
    """The columns to copy: all that are not generated, except the two times, which get new
    values, and the lease column: no moved message has a lease."""
    own = {*OWN_COLUMNS[2:], _lease_column(facts)}
    return tuple(column.name for column in facts.columns if not column.generated and column.name.lower() not in own)


def obstacles(source: TableFacts, name: TableId, target: TableFacts | None) -> tuple[str, ...]:
    """The obstacles to moving rows of `source` to the table `name`, each with its remedy.

    Empty if there are none.
    """
    if target is None:
        reason = "does not exist, is a view, or the engine's account may not see it"
        return (f"{name} {reason}: create it as a message table",)
    if target.id == source.id:
        return (f"{name} is the table itself: name another one",)
    match evaluate(target):
        case None:
            return (f"{name} is no message table: its COMMENT does not hold the word vitess_message",)
        case BrokenTable() as broken:
            return (str(broken),)
        case QueueTable() as queue if not queue.takes_dead_letters_of(source.id):
            return (f"{name} does not take dead messages of {source.id}: {consenting(source.id, name)}",)
        case QueueTable():
            return tuple(_column_obstacles(source, target))


def consenting(source: TableId, name: TableId) -> str:
    """The statement that makes the table `name` accept dead messages of `source`, as a text."""
    return (
        f"ALTER QUEUE {qualified(source)} DEAD_LETTER = {qualified(name)}, by an account with ALTER on both tables,"
        f" writes {source} into dead_letter_of in the COMMENT of {name}"
    )


def closed_to(source: TableId, name: TableId, found: QueueTable | BrokenTable | None) -> str | None:
    """Why dead messages of `source` do not move to the table `name`. None if they do.

    The text is for users who may see `source` and perhaps not `name`, so it is the same for every
    problem of `name`.
    """
    if name == source:
        return f"dead messages stay here: {name}, its DEAD_LETTER, is the table itself: name another one"
    if isinstance(found, QueueTable) and found.takes_dead_letters_of(source):
        return None
    return (
        f"dead messages stay here: {name}, its DEAD_LETTER, does not exist, cannot be used as a queue, or does not take"
        f" them: {consenting(source, name)}, or makes it"
    )


class Chain:
    """The dead-letter tables that follow a queue's own. If they lead back to it, messages would
    move for ever.

    Describe the table `onward` and `add` the result, until `onward` is None.
    """

    def __init__(self, source: TableId, first: QueueTable) -> None:
        self._source = source
        self._passed = [first.id]
        self.onward = first.dead_letter
        self.problem: str | None = None
        """Set: no message of the queue may be moved, for this reason."""
        self._judge_length()

    def add(self, found: QueueTable | BrokenTable | None) -> None:
        """Add the description of the table `onward`."""
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
    there = {column.name.lower(): column for column in target.columns}
    pairs = [
        (column, there.get(column.name.lower()))
        for column in source.columns
        if not column.generated and column.name.lower() != _lease_column(source)
    ]
    if missing := [column.name for column, other in pairs if other is None]:
        yield f"{target.id} lacks {_columns(missing)}: add what {source.id} has"
    if computed := [other.name for _, other in pairs if other and other.generated]:
        yield f"{target.id} computes {_columns(computed)}, where {source.id} stores a value: make it an ordinary column"
    if unlike := [
        f"{column.name} ({other.full_type} for {column.full_type})"
        for column, other in pairs
        if other and not _fits(column, other)
    ]:
        yield f"{target.id} has another type for {_columns(unlike)}: give it that of {source.id}"


def _lease_column(facts: TableFacts) -> str | None:
    policy = parse_comment(facts.comment)
    return policy.lease.lower() if isinstance(policy, Policy) and policy.lease else None


def _fits(column: Column, other: Column) -> bool:
    if column.full_type == other.full_type:
        return True
    return any(column.data_type in given and other.data_type in taken for given, taken in _FAMILIES)


def _columns(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MAX
    listed = ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"column {listed}" if len(names) == 1 else f"columns {listed}"
