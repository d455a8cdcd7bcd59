"""Completes the statements of queries.sql: identifiers quoted, values as literals.

No value is escaped by hand. Identifiers are quoted by one function. Values are written as digits or
in hexadecimal, so no value can end its literal. `FORMS` defines how a message id is read and
written, by the type of its column: the expression that reads it as bytes that are the same under
every character set, time zone and protocol; the conversion of these bytes into the engine's key;
and the literal that finds the row through the index.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib import resources
from itertools import islice
from string import Template
from types import MappingProxyType
from typing import Any

from engine.model import ANYTHING, Entry, Group, Key, Selection, Share, TableId
from engine.queue_table import BrokenTable, GroupColumn, IdKind, QueueTable
from engine.quoting import qualified, quoted, text_literal
from engine.store.partition_plan import AHEAD, Partition, first_partitions, fitting_width_ns

LOWEST_PRIORITY = -(2**63)
"""The value of a NULL priority."""

END_OF_TIME_NS = 2**63 - 1
START_OF_TIME_NS = -(2**63)
"""The bounds of the times that a column can contain."""

CASES = 64
"""Rows with different values in one UPDATE. The server compares every row with every case."""

KEPT_MAX = 1_000
"""Tables whose statements are kept. Those of one have 50 kB at most, and usually 10."""

_kept: dict[int, tuple[QueueTable, TableStatements]] = {}
"""By the identity of the table: to hash a description takes as long as to make its statements."""

_NAME = re.compile(r"-- name: (\w+)")
_WORD = re.compile(r"\$(\$|[a-z_]+)")


class Text:
    """The text of a statement, cut at its words once: to find them takes longer than to replace them."""

    def __init__(self, template: str) -> None:
        """`template`: with $name for each word, and $$ for a $."""
        self.template = template
        self._pieces = _replaced(_WORD.split(template), {"$": "$"})
        """Literals at even places, names of words at odd ones."""

    def substitute(self, values: Mapping[str, object]) -> str:
        """The statement with these values in place of its words. Raises KeyError for a word without one."""
        pieces = self._pieces.copy()
        for at in range(1, len(pieces), 2):
            pieces[at] = str(values[pieces[at]])
        return "".join(pieces)

    def bound(self, values: Mapping[str, object]) -> Text:
        """The statement with these values in place of their words; the other words stay. In a value, a $ is
        nothing but a $."""
        bound = Text(self.template)
        bound._pieces = _replaced(self._pieces, values)
        return bound


def _replaced(pieces: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """These literals and names without the names that have values."""
    replaced = list(pieces[:1])
    for name, literal in zip(pieces[1::2], pieces[2::2], strict=True):
        if name in values:
            replaced[-1] += f"{values[name]}{literal}"
        else:
            replaced += name, literal
    return replaced


def parse(text: str) -> Iterator[tuple[str, Text]]:
    """Yield the named statements of a file. A blank line separates them.

    Each is a line `-- name: …`, comment lines, and the statement.
    """
    for part in text.split("\n\n"):
        lines = part.strip().splitlines()
        if lines and (name := _NAME.fullmatch(lines[0])):
            statement = "\n".join(line for line in lines if not line.startswith("--"))
            yield name[1], Text(statement)


@cache
def templates() -> Mapping[str, Text]:
    """Every statement of queries.sql by its name."""
    text = resources.files(__package__).joinpath("queries.sql").read_text("utf-8")
    return MappingProxyType(dict(parse(text)))


def statement(name: str, /, **values: object) -> str:
    """The named statement with its words replaced.

    The values must be literals and quoted identifiers.
    """
    return templates()[name].substitute(values)


def partition_definitions(partitions: Iterable[Partition]) -> str:
    """Partitions in the syntax of CREATE and ALTER TABLE, without the parentheses."""
    return ", ".join(
        f"PARTITION {quoted(part.name)} VALUES LESS THAN ({'MAXVALUE' if part.below_ns is None else part.below_ns})"
        for part in partitions
    )


def partition_clause(start_ns: int, width_ns: int, count: int) -> str:
    """The last clause of the CREATE TABLE of a queue with acknowledged rows in partitions by time.

    Each unique key of such a table must contain time_acked. So it has UNIQUE KEY (id, time_acked)
    in place of a primary key, and KEY (time_acked, priority, time_next, id).
    """
    return f"PARTITION BY RANGE (time_acked) ({partition_definitions(first_partitions(start_ns, width_ns, count))})"


def first_partition_clause(now_ns: int, age_ns: int) -> str:
    """The clause that partitions a table whose rows go at this age, from now on."""
    width_ns = fitting_width_ns(age_ns)
    return partition_clause(now_ns - now_ns % width_ns, width_ns, AHEAD + 1)


@dataclass(frozen=True, slots=True)
class IdForm:
    """How ids of one kind are read (`$column` is the quoted column), parsed, and written."""

    expression: str
    parse: Callable[[bytes], Key]
    literal: Callable[[Any], str]


def _decimal(key: Decimal) -> str:
    return format(Decimal(key), "f")


def _float(text: str) -> str:
    # The column's width may have cut off the last digit, and the text may then exceed the greatest
    # double.
    number = float(text)
    return repr(math.copysign(sys.float_info.max, number) if math.isinf(number) else number)


def _timestamp(text: str) -> str:
    """As a DATETIME: of several TIMESTAMPs in an IN, MariaDB 11.8 finds only the last row."""
    return f"TIMESTAMP(FROM_UNIXTIME({_decimal(Decimal(text))}))"


def _bytes_literal(key: bytes) -> str:
    return f"x'{key.hex()}'"


_AS_TEXT = "CAST(CONVERT($column USING utf8mb4) AS BINARY)"

FORMS: Mapping[IdKind, IdForm] = MappingProxyType(
    {
        IdKind.INTEGER: IdForm("CAST($column + 0 AS BINARY)", int, lambda key: str(int(key))),
        IdKind.DECIMAL: IdForm("CAST($column AS BINARY)", lambda raw: Decimal(raw.decode()), _decimal),
        IdKind.FLOAT: IdForm("CAST($column + 0e0 AS BINARY)", bytes.decode, _float),
        IdKind.TEXT: IdForm(_AS_TEXT, bytes.decode, text_literal),
        IdKind.BINARY: IdForm("$column", bytes, _bytes_literal),
        IdKind.TIMESTAMP: IdForm("CAST(UNIX_TIMESTAMP($column) AS BINARY)", bytes.decode, _timestamp),
        IdKind.OTHER: IdForm(_AS_TEXT, bytes.decode, text_literal),
    }
)


_ROW = Template(
    f"CONCAT_WS(0x3A, COALESCE(epoch, 0), COALESCE(priority, {LOWEST_PRIORITY}), COALESCE(time_next, 0), $id)"
)
"""What `TableStatements.entry` reads. With a binary string among its arguments, its bytes are the same under
every character set."""


class TableStatements:
    """The statements on one message table, or on a selection of it."""

    def __init__(self, table: QueueTable, selection: Selection = ANYTHING) -> None:
        self._form = FORMS[table.id_kind]
        self.ids_are_integers = table.id_kind is IdKind.INTEGER
        self._group_columns = table.group_columns
        self._group_parsers = [FORMS[column.kind].parse for column in table.group_columns]
        self.groups_are_integers = all(column.kind is IdKind.INTEGER for column in table.group_columns)
        """Whether the values of groups are integers, or there are no groups."""
        self._bound: dict[str, Text] = {}
        """Statements with the table's words in place."""
        self._words: dict[str, object] = {
            "table": _selected(table.id, selection),
            "condition": selection.condition or "TRUE",
            "id": Template(self._form.expression).substitute(column="id"),
            "row": _ROW.substitute(id=Template(self._form.expression).substitute(column="id")),
            "id_index": quoted(table.id_index),
            "scan_index": quoted(table.scan_index or ""),
            "scan_hint": scan_hint(table),
            "scan_order": _scan_order(table),
            "lowest_priority": LOWEST_PRIORITY,
            "and_lease": and_lease(table),
            "group": group_expressions(table),
            "group_index": quoted(table.group_index or ""),
            "order_index": quoted(table.order_index or ""),
            "group_order": ", ".join(quoted(column.name) for column in table.group_columns),
            "arrival_order": _arrival_order(table),
        }

    @property
    def order_words(self) -> dict[str, str]:
        """The words of a statement that compares the groups of messages."""
        id_of = Template(self._form.expression)
        names = [column.name for column in self._group_columns]
        same = (f"first.{quoted(name)} <=> concerned.{quoted(name)}" for name in names)
        same_held = (f"held.{quoted(name)} <=> wanted.{quoted(name)}" for name in names)
        return {
            "wanted_id": id_of.substitute(column="wanted.id"),
            "head_id": id_of.substitute(column="head.id"),
            "held_id": id_of.substitute(column="held.id"),
            "same_group": " AND ".join(same),
            "same_group_held": " AND ".join(same_held),
            "first_order": ", ".join(f"first.{quoted(name)}" for name in ("time_acked", *names)),
        }

    @property
    def words(self) -> Mapping[str, object]:
        """What the words of a statement on this table stand for."""
        return self._words

    def within(self, partitions: Collection[str]) -> str:
        """The clause that limits a statement to these partitions. Empty without any."""
        return f"PARTITION ({', '.join(map(quoted, partitions))})" if partitions else ""

    def __call__(self, name: str, /, **values: object) -> str:
        """The named statement. `values`: the words that are not the table's, as literals."""
        if (text := self._bound.get(name)) is None:
            text = self._bound[name] = templates()[name].bound(self._words)
        return text.substitute({"portion": "", **values})

    def for_ids(self, name: str, keys: Collection[Key], **values: object) -> list[str]:
        """The named statement on these keys, as a list of one.

        Empty without keys, because IN () is not SQL.
        """
        return [self(name, ids=self.ids(keys), **values)] if keys else []

    def updates(self, name: str, values: Mapping[Key, int]) -> Iterator[str]:
        """The UPDATEs that set each row's time_next: one for the most frequent value, then CASES
        rows in each."""
        usual = next((value for value, _ in Counter(values.values()).most_common(1)), None)
        same = [key for key, value in values.items() if value == usual]
        if same:
            yield self(name, ids=self.ids(same), time_next=usual)
        others = iter({key: value for key, value in values.items() if value != usual}.items())
        while batch := dict(islice(others, CASES)):
            yield self(name, ids=self.ids(batch), time_next=self.by_id(batch))

    def of_share(self, share: Share | None, *, others: bool = False) -> str:
        """The end of a condition that limits a scan to the messages of a share, or to all others. Empty without one.

        The server computes the hash from the index entry, and reads no row of the others.
        """
        if share is None:
            return ""
        sign = "<>" if others else "="
        return f"AND CRC32({self._words['id']}) % {share.count} {sign} {share.number}"

    def key(self, raw: bytes) -> Key:
        """The key of an id that was read."""
        return self._form.parse(raw)

    def entry(self, raw: bytes) -> Entry:
        """The message of a `row` that was read. Its group is not."""
        epoch, priority, due_ns, key = raw.split(b":", 3)
        return Entry(self.key(key), int(epoch), int(priority), int(due_ns))

    def group(self, raw: Sequence[bytes | None]) -> Group:
        """The message group of values that were read."""
        pairs = zip(self._group_parsers, raw, strict=True)
        return tuple([None if value is None else parse(value) for parse, value in pairs])

    def in_group(self, group: Group) -> str:
        """The condition for the messages of a group."""
        return " AND ".join(map(self._equals, self._group_columns, group))

    def behind_group(self, group: Group) -> str:
        """The condition for the messages of all groups behind this one in the group index, where NULL
        comes first. Both servers read it as ranges."""
        alternatives = []
        for at in range(len(group)):
            equal = [self._equals(*pair) for pair in zip(self._group_columns[:at], group[:at], strict=True)]
            alternatives.append(" AND ".join([*equal, self._exceeds(self._group_columns[at], group[at])]))
        return " OR ".join(f"({alternative})" for alternative in alternatives)

    @staticmethod
    def _equals(column: GroupColumn, value: Key | None) -> str:
        return f"{quoted(column.name)} {'IS NULL' if value is None else f'= {FORMS[column.kind].literal(value)}'}"

    @staticmethod
    def _exceeds(column: GroupColumn, value: Key | None) -> str:
        return f"{quoted(column.name)} {'IS NOT NULL' if value is None else f'> {FORMS[column.kind].literal(value)}'}"

    def ids(self, keys: Iterable[Key]) -> str:
        """Keys as literals for IN (…), in any order: the server sorts them, and its locks too."""
        return ", ".join(map(self._form.literal, keys))

    def by_id(self, values: Mapping[Key, int]) -> str:
        """An expression with each row's own value, for an UPDATE of exactly these rows."""
        if len(set(values.values())) == 1:
            return str(next(iter(values.values())))
        cases = (f"WHEN {self._form.literal(key)} THEN {value}" for key, value in values.items())
        return f"CASE id {' '.join(cases)} END"


def statements_of(table: QueueTable) -> TableStatements:
    """TableStatements(table), made once for each description of a table."""
    kept = _kept.get(id(table))
    if kept is None or kept[0] is not table:
        if len(_kept) >= KEPT_MAX:
            _kept.clear()
        kept = _kept[id(table)] = table, TableStatements(table)
    return kept[1]


def and_lease(table: QueueTable | BrokenTable) -> str:
    """The assignment to the lease column, behind that to time_next. Empty without such a column."""
    column = table.lease_column if isinstance(table, QueueTable) else None
    return f", {quoted(column)} = time_next" if column else ""


def group_expressions(table: QueueTable | BrokenTable) -> str:
    """The values of the group columns, behind other columns of a SELECT. Empty without groups."""
    columns = table.group_columns if isinstance(table, QueueTable) else ()
    expressions = (Template(FORMS[column.kind].expression).substitute(column=quoted(column.name)) for column in columns)
    return "".join(f", {expression}" for expression in expressions)


def _selected(table: TableId, selection: Selection) -> str:
    if not selection.partitions:
        return qualified(table)
    return f"{qualified(table)} PARTITION ({', '.join(map(quoted, selection.partitions))})"


def scan_hint(table: QueueTable) -> str:
    """The hint that forces the scan index. Without that, one that leaves the choice to the optimizer."""
    if table.scan_index is None:
        return f"IGNORE INDEX FOR GROUP BY ({quoted(table.id_index)})"
    return f"FORCE INDEX ({quoted(table.scan_index)})"


def _arrival_order(table: QueueTable) -> str:
    """The order of the scan index when it is read by descending time."""
    if not table.scan_ties_by_id:
        return "time_next DESC"
    return "time_next DESC, id" if table.scan_descending else "time_next DESC, id DESC"


def _scan_order(table: QueueTable) -> str:
    """The order of the scan index when it is read by ascending time."""
    if not table.scan_ties_by_id:
        return "time_next"
    return "time_next, id DESC" if table.scan_descending else "time_next, id"
