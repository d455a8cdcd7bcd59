"""How the pages of the admin port read messages, by the engine's account: the columns, what they mean, and
ids and values as SQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from engine.queue_table import IdKind, IndexedColumn, QueueTable
from engine.quoting import quoted, text_literal
from engine.store.queries import FORMS
from proxy.statements.depth import greatest_wait_ns

TEXT_MAX = 200
"""Characters of a reason, or of a value by which messages are grouped."""
VALUE_MAX = 2_000
"""Characters of an id, and of each column of a payload."""

NUMBER = re.compile(r"-?[0-9]{1,65}(\.[0-9]{1,40})?([eE][-+]?[0-9]{1,3})?")
"""A number, so short that it can be written without an exponent."""
NUMBERS = frozenset({IdKind.INTEGER, IdKind.DECIMAL, IdKind.FLOAT, IdKind.TIMESTAMP})

Row = Sequence[str | None]


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A message without its payload."""

    id: str
    """As people read it."""
    key: str
    """The bytes of the id as the engine reads them, in hexadecimal."""
    epoch: int
    priority: int
    time_next_ns: int | None
    time_acked_ns: int | None
    lease_ns: int | None
    reason: str | None = None
    reason_at: str | None = None
    group: tuple[str | None, ...] = ()
    literal: str | None = None
    """The id in a statement; None: it has no text that denotes it exactly."""

    def state(self, queue: QueueTable, now_ns: int) -> str:
        """Its state, as it is counted. Without a lease column, a message that was given back with a delay counts as
        in flight."""
        if self.time_acked_ns is not None:
            return "acknowledged"
        if self.time_next_ns is None or self.time_next_ns <= now_ns:
            return "ready"
        if queue.lease_column is not None:
            return "in flight" if self.lease_ns == self.time_next_ns else "scheduled"
        near = self.time_next_ns <= now_ns + greatest_wait_ns(queue.policy)
        return "in flight" if self.epoch and near else "scheduled"


def columns_of(queue: QueueTable) -> str:
    """What a SELECT names for `message_of`."""
    reason = queue.reason
    values = (
        _shown_id(queue),
        f"HEX({Template(FORMS[queue.id_kind].expression).substitute(column='id')})",
        "epoch",
        "priority",
        "time_next",
        "time_acked",
        quoted(queue.lease_column) if queue.lease_column else "NULL",
        "NULL" if reason is None else as_text(quoted(reason.text), TEXT_MAX),
        "NULL" if reason is None or reason.at is None else as_text(quoted(reason.at), TEXT_MAX),
        *(as_text(quoted(column.name), TEXT_MAX) for column in queue.group_columns),
    )
    return ", ".join(values)


def message_of(queue: QueueTable, row: Row) -> ShownMessage:
    """The message in a row of `columns_of`."""
    shown, key, epoch, priority, time_next, time_acked, lease, reason, reason_at, *group = row
    id_ = (shown or "").lower() if queue.id_kind is IdKind.BINARY else decoded(shown) or ""
    return ShownMessage(
        id_,
        (key or "").lower(),
        int(epoch or 0),
        int(priority or 0),
        _int(time_next),
        _int(time_acked),
        _int(lease),
        decoded(reason),
        decoded(reason_at),
        tuple(map(decoded, group)),
        id_literal(queue, id_),
    )


def id_literal(queue: QueueTable, number: str) -> str | None:
    """The id that people read, as a literal; None: no message can have it. A binary id is in hexadecimal."""
    match queue.id_kind:
        case IdKind.INTEGER:
            digits = number.strip().removeprefix("-")
            return number.strip() if digits.isascii() and digits.isdecimal() and len(digits) <= 20 else None
        case IdKind.BINARY:
            try:
                return f"x'{bytes.fromhex(number).hex()}'"
            except ValueError:
                return None
        case IdKind.TIMESTAMP | IdKind.FLOAT:
            return None  # Their text does not denote them exactly.
        case _:
            return text_literal(number)


def literal_of(kind: IdKind, raw: bytes) -> str | None:
    """A value in the form in which the engine reads this kind, as a literal; None: it is none."""
    try:
        if kind in NUMBERS and not NUMBER.fullmatch(raw.decode("ascii")):
            return None
        return FORMS[kind].literal(FORMS[kind].parse(raw))
    except ValueError:
        return None


def equals(column: IndexedColumn, text: str) -> str | None:
    """The condition that a column has this value; None: it cannot. The value gets the column's character set, since
    otherwise the server would convert each value of the column, and read the whole index."""
    raw = text.encode()
    try:
        literal = literal_of(column.kind, bytes.fromhex(text) if column.kind is IdKind.BINARY else raw)
    except ValueError:
        return None
    if literal is not None and column.collation:
        literal = f"CONVERT({literal} USING {column.collation.partition('_')[0]}) COLLATE {column.collation}"
    return None if literal is None else f"{quoted(column.name)} = {literal}"


def as_text(value: str, chars: int) -> str:
    """The expression for the beginning of a value, in ASCII, for `decoded`. Binary values are taken as UTF-8."""
    text = f"CONCAT({value}, '')"
    start = f"LEFT({text}, {chars})"
    # Of the two texts the server might find no common collation (1267).
    return f"IF(CHARSET({text}) = 'binary', HEX({start}), HEX(CONVERT({start} USING utf8mb4)))"


def decoded(value: str | None) -> str | None:
    """What an expression of `as_text` has returned."""
    return None if value is None else bytes.fromhex(value).decode("utf-8", "replace")


def _shown_id(queue: QueueTable) -> str:
    if queue.id_kind is IdKind.BINARY:
        return "HEX(id)"
    return as_text("id + 0" if queue.id_kind is IdKind.INTEGER else "id", VALUE_MAX)


def _int(value: str | None) -> int | None:
    return None if value is None else int(value)
