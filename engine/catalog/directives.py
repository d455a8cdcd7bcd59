"""The directives in a table's comment: text in, a policy out, or all problems.

The form is Vitess's (`vitess_message,vt_ack_wait=30,…`), so that its tables can be used
unchanged. All problems are reported at once, each with the value, the expected form and an
example, because comments are written by hand. Unknown keys are ignored, as in Vitess, but
reported as warnings: otherwise a misspelt optional directive would go unnoticed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from engine.dispatch.redelivery import WAIT_MAX_NS
from engine.model import NS_PER_S, TableId
from engine.queue_table import OnDisconnect, Policy

ROWS_MOST = 1_000_000
"""The greatest batch or cache: a greater number is likely a mistake, and keys cost memory."""

RATE_MOST = 1_000_000_000
"""The greatest rate: above what any server reaches, and far below an overflow."""

LIKENESS_LEAST = 0.6
"""How similar an unknown name must be to a directive's for that to be suggested (difflib's ratio
and its default): one or two wrong letters, or a missing `max_` or `vt_`."""

_MARK = re.compile(r"(?<![0-9A-Za-z_$])vitess_message(?![0-9A-Za-z_$])")
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?|\.[0-9]{1,12}")
_WHOLE = re.compile(r"[0-9]{1,12}")
_WORD = re.compile(r"[A-Za-z_][0-9A-Za-z_]*")
_BARE_NAME = r"[0-9A-Za-z_$\u0080-\uffff-]+"
_SOURCE = re.compile(rf"(?:({_BARE_NAME}|`(?:[^`]|``)+`)\.)?({_BARE_NAME}|`(?:[^`]|``)+`)\s*(\||\Z)\s*")
_COLUMN = re.compile(r"[A-Za-z_][0-9A-Za-z_]*")


class _BadValue(Exception):
    """A value of the wrong form. The text describes the expected one."""


def is_marked(comment: str) -> bool:
    """Whether the comment contains the word `vitess_message`."""
    return _MARK.search(comment) is not None


def parse_comment(comment: str) -> Policy | tuple[str, ...] | None:
    """The policy in a table's comment, or all of its problems; None if it marks no message
    table."""
    if not is_marked(comment):
        return None
    reader = _Reader(comment)
    policy = reader.policy()
    return tuple(reader.problems) if reader.problems else policy


def comment_warnings(comment: str) -> tuple[str, ...]:
    """Warnings for text in a message table's comment that looks like a directive and is none, each
    with the most similar directive.

    Only `name=value` with a name of one word counts. If the name is similar to no directive, the
    value must also be one word. Any other text is a note.
    """
    warnings: dict[str, str] = {}
    for key, value in _directives(comment):
        if key in _READERS or not _WORD.fullmatch(key):
            continue
        near = difflib.get_close_matches(key.lower(), _READERS, n=1, cutoff=LIKENESS_LEAST)
        if near or len(value.split()) == 1:
            meant = f"was {near[0]} meant?" if near else "a note is better written without ="
            warnings[key] = f"{key}=… in the COMMENT is ignored, because there is no such directive: {meant}"
    return tuple(warnings.values())


# Comments written by CREATE QUEUE and ALTER QUEUE, whose options have other names than directives.


def split_comment(comment: str) -> tuple[dict[str, str], str]:
    """The directives in a comment, in their order, and the rest of the text."""
    values: dict[str, str] = {}
    rest: list[str] = []
    for part in comment.split(","):
        key, equals, value = part.partition("=")
        if equals and key.strip() in _READERS:
            values.setdefault(key.strip(), value.strip())
        elif part.strip() != "vitess_message":
            rest.append(part)
    return values, ",".join(rest)


def make_comment(values: Mapping[str, str], rest: str = "") -> str:
    """The comment with these directives, the inverse of `split_comment`."""
    directives = (f"{key}={value}" for key, value in values.items())
    return ",".join(["vitess_message", *directives, *([rest] if rest else [])])


NONE = "NONE"
"""The value of an option for leaving its directive out, whatever its default."""


def queue_values(values: Mapping[str, str], without: Collection[str] = ()) -> dict[str, str]:
    """These directives with the defaults of CREATE QUEUE, in a fixed order, except those in
    `without`."""
    complete = {**DEFAULTS, **values}
    least = values.get("vt_min_backoff") or complete["vt_ack_wait"]
    if "vt_max_backoff" not in values and _NUMBER.fullmatch(least):
        complete["vt_max_backoff"] = max(complete["vt_max_backoff"], least, key=Decimal)
    return {key: complete[key] for key in _READERS if key in complete and key not in without}


def option_name(key: str) -> str:
    """A directive's name as an option of CREATE QUEUE."""
    return key.removeprefix("vt_").upper()


def option_problem(option: str, text: str) -> str | None:
    """The problem of an option's value; None if it is correct."""
    read, meaning, example = _READERS[OPTIONS[option]]
    if "," in text:
        return f"{option} = {text!r} holds a comma, which divides the directives in a table's comment"
    try:
        read(text)
    except _BadValue as bad:
        return f"{option} = {text!r} is not {bad}: {meaning}, for instance {option} = {example}"
    return None


def text_problem(rest: str) -> str | None:
    """Why a text cannot be in a comment beside directives; None if it can."""
    for key, _ in _directives(rest):
        if key in _READERS:
            return f"the COMMENT holds {key}=…, which would be read as a directive: use {option_name(key)} = …"
    return None


def with_source(values: Mapping[str, str], table: TableId, source: TableId) -> dict[str, str] | None:
    """The directives of `table`, extended by its consent to take the dead messages of `source`;
    None if the name contains a comma, which divides the directives of a comment."""
    db = "" if source.db == table.db else f"{_quoted(source.db)}."
    name = f"{db}{_quoted(source.name)}"
    if "," in name:
        return None
    before = values.get("dead_letter_of")
    return {**values, "dead_letter_of": f"{before}|{name}" if before else name}


_NOT_WITH_SEMAPHORES = ("group_limit", "group_order", "group_rate")
_NOT_BOTH = "cannot be combined: give the messages of each group a semaphore of their own"
_SAME_COLUMN = "name the same column: messages that need the same semaphores are a group already, leave out"


def _is_among(column: str, columns: Iterable[str]) -> bool:
    return column.strip().lower() in {name.strip().lower() for name in columns}


def _quoted(name: str) -> str:
    return name if re.fullmatch(_BARE_NAME, name) else "`" + name.replace("`", "``") + "`"


def dead_letter_name(values: Mapping[str, str]) -> tuple[str | None, str] | None:
    """The dead-letter table that directives name: its database (None: the queue's) and its name. None if
    they name none, or it is no name."""
    try:
        return _table(values["dead_letter"])
    except (KeyError, _BadValue):
        return None


def combination_problem(values: Mapping[str, str]) -> str | None:
    """Why values that are correct one by one cannot be combined; None if they can."""
    if int(values.get("max_attempts", "0")) and "dead_letter" not in values:
        return "MAX_ATTEMPTS needs DEAD_LETTER, the table where dead messages go, for instance DEAD_LETTER = mail_dead"
    if "dead_letter" in values and not int(values.get("max_attempts", "0")):
        return "DEAD_LETTER needs MAX_ATTEMPTS, the deliveries until a message is dead, for instance MAX_ATTEMPTS = 10"
    for name in ("group_limit", "group_order", "group_rate"):
        if name in values and "group_by" not in values:
            return f"{name.upper()} needs GROUP_BY, the columns that make the groups, for instance GROUP_BY = (tenant)"
    for name in _NOT_WITH_SEMAPHORES:
        if name in values and "semaphores" in values:
            return f"SEMAPHORES and {name.upper()} {_NOT_BOTH}"
    if "semaphores" in values and _is_among(values["semaphores"], values.get("group_by", "").split("|")):
        return f"SEMAPHORES and GROUP_BY {_SAME_COLUMN} GROUP_BY"
    if "batch_on_dead" in values and "batch_by" not in values:
        return "BATCH_ON_DEAD needs BATCH_BY, the column with the batch of a part, for instance BATCH_BY = (batch)"
    least, most = values.get("vt_min_backoff", values["vt_ack_wait"]), values.get("vt_max_backoff")
    if most is not None and Decimal(most) < Decimal(least):
        return f"MAX_BACKOFF = {most} is less than the wait of a first delivery, {least}"
    return None


class _Reader:
    """Reads the directives of one comment, and collects the problems."""

    def __init__(self, comment: str) -> None:
        self.problems: list[str] = []
        self._values: dict[str, str] = {}
        for key, value in _directives(comment):
            if key not in _READERS:
                continue
            if key in self._values:
                self.problems.append(f"{key} stands in the comment more than once: keep one of them")
            self._values.setdefault(key, value)

    def policy(self) -> Policy | None:
        """The policy; None if there are problems."""
        values = {key: self._read(key) for key in _READERS}
        self._cross_check(values)
        if self.problems:
            return None
        ack_wait_ns = values["vt_ack_wait"]
        return Policy(
            ack_wait_ns=ack_wait_ns,
            purge_after_ns=values["vt_purge_after"],
            batch_size=values["vt_batch_size"],
            cache_size=values["vt_cache_size"],
            poller_interval_ns=values["vt_poller_interval"],
            min_backoff_ns=values["vt_min_backoff"] or ack_wait_ns,
            max_backoff_ns=values["vt_max_backoff"],
            message_columns=values["vt_message_cols"],
            max_in_flight=values["max_in_flight"],
            on_disconnect=values["on_disconnect"] or OnDisconnect.RELEASE,
            lease=values["lease"],
            reason=values["reason"],
            delay_by=values["delay_by"],
            max_attempts=values["max_attempts"] or 0,
            dead_letter=values["dead_letter"],
            dead_letter_of=values["dead_letter_of"] or (),
            max_rate=values["max_rate"],
            paused=bool(values["paused"]),
            group_by=values["group_by"] or (),
            group_limit=values["group_limit"],
            group_strict=bool(values["group_order"]),
            group_rate=values["group_rate"],
            batch_by=values["batch_by"],
            after_batch=values["after_batch"],
            dead_parts_hold=bool(values["batch_on_dead"]),
            semaphores=values["semaphores"],
        )

    def _read(self, key: str) -> Any:
        read, meaning, example = _READERS[key]
        if key not in self._values:
            if key in REQUIRED:
                self.problems.append(f"{key} is missing: {meaning}, for instance {key}={example}")
            return None
        try:
            return read(self._values[key])
        except _BadValue as bad:
            value = self._values[key]
            self.problems.append(f"{key}={value!r} is not {bad}: {meaning}, for instance {key}={example}")
            return None

    def _cross_check(self, values: dict[str, Any]) -> None:
        if values["max_attempts"] and "dead_letter" not in self._values:
            self.problems.append(
                "dead_letter is missing: with max_attempts, the table where dead messages go, "
                "for instance dead_letter=mail_dead"
            )
        for name in ("group_limit", "group_order", "group_rate"):
            if values[name] and "group_by" not in self._values:
                self.problems.append(f"{name} needs group_by: {_READERS['group_by'][1]}, for instance group_by=tenant")
        for name in _NOT_WITH_SEMAPHORES:
            if values[name] and values["semaphores"]:
                self.problems.append(f"semaphores and {name} {_NOT_BOTH}")
        if values["semaphores"] and _is_among(values["semaphores"], values["group_by"] or ()):
            self.problems.append(f"semaphores and group_by {_SAME_COLUMN} group_by")
        least = values["vt_min_backoff"] or values["vt_ack_wait"]
        most = values["vt_max_backoff"]
        if least and most and most < least:
            floor = "vt_min_backoff" if values["vt_min_backoff"] else "vt_ack_wait"
            self.problems.append(f"vt_max_backoff={self._values['vt_max_backoff']!r} is less than {floor}")


def _directives(comment: str) -> Iterator[tuple[str, str]]:
    for part in comment.split(","):
        key, equals, value = part.partition("=")
        if equals:
            yield key.strip(), value.strip()


def _seconds(least_ns: int) -> Callable[[str], int]:
    least = _plain(Decimal(least_ns) / NS_PER_S)

    def read(text: str) -> int:
        if _NUMBER.fullmatch(text):
            ns = int((Decimal(text) * NS_PER_S).to_integral_value())
            if least_ns <= ns <= WAIT_MAX_NS:
                return ns
        raise _BadValue(f"a number of seconds from {least} to {WAIT_MAX_NS // NS_PER_S}")

    return read


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if _WHOLE.fullmatch(text) and least <= int(text) <= most:
            return int(text)
        raise _BadValue(f"a whole number from {least} to {most}")

    return read


def _rate(text: str) -> float:
    if _NUMBER.fullmatch(text) and 0 < float(text) <= RATE_MOST:
        return float(text)
    raise _BadValue(f"a number above 0 and up to {RATE_MOST}")


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split("|"))
    if not all(names):
        raise _BadValue("a list of column names separated by |")
    if len({name.lower() for name in names}) < len(names):
        raise _BadValue("a list without repetitions")
    return names


def _strict(text: str) -> str:
    if text.lower() != "strict":
        raise _BadValue("STRICT")
    return text


def _column(text: str) -> str:
    if not _COLUMN.fullmatch(text):
        raise _BadValue("the name of a column of ASCII letters, digits and _")
    return text


def _on_disconnect(text: str) -> OnDisconnect:
    try:
        return OnDisconnect(text)
    except ValueError:
        raise _BadValue("release or keep") from None


def _on_dead(text: str) -> bool:
    if text.lower() not in {"fire", "hold"}:
        raise _BadValue("fire or hold")
    return text.lower() == "hold"


def _table(text: str) -> tuple[str | None, str]:
    try:
        (name,) = _sources(text)
    except (_BadValue, ValueError):
        raise _BadValue("the name of a table, in backquotes if it is odd") from None
    return name


def _sources(text: str) -> tuple[tuple[str | None, str], ...]:
    names: list[tuple[str | None, str]] = []
    at = 0
    more = True
    while more:
        found = _SOURCE.match(text, at)
        if found is None:
            raise _BadValue("a list of table names separated by |, odd ones in backquotes")
        names.append((_unquoted(found[1]) if found[1] else None, _unquoted(found[2])))
        at, more = found.end(), bool(found[3])
    return tuple(names)


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _plain(number: Decimal) -> str:
    return format(number.normalize(), "f")


_ANY_TIME = _seconds(0)
_SOME_TIME = _seconds(1_000_000)  # Below a millisecond a delivery would end before its row has reached the client.
_POLL = _seconds(10_000_000)  # Scanning more often than every 10 ms would be a busy loop on the server.

_READERS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "vt_ack_wait": (_SOME_TIME, "seconds to wait for the ACK of a first delivery", "30"),
    "vt_purge_after": (_ANY_TIME, "seconds to keep acknowledged rows", "86400"),
    "vt_batch_size": (_whole(1, ROWS_MOST), "rows handed to one subscriber at a time", "100"),
    "vt_cache_size": (_whole(1, ROWS_MOST), "messages of this table in the proxy's memory at most", "10000"),
    "vt_poller_interval": (_POLL, "seconds between full scans of the table", "30"),
    "vt_min_backoff": (_SOME_TIME, "the least wait between deliveries in seconds", "30"),
    "vt_max_backoff": (_SOME_TIME, "the greatest wait between deliveries in seconds", "3600"),
    "vt_message_cols": (_columns, "the columns that * means", "id|body"),
    "max_attempts": (_whole(0, 1_000_000_000), "deliveries until a message is dead, 0 for never", "10"),
    "dead_letter": (_table, "where dead messages go", "mail_dead"),
    "dead_letter_of": (_sources, "the tables whose dead messages may come here", "mail|shop.orders"),
    "max_rate": (_rate, "deliveries of this table a second at most", "100"),
    "max_in_flight": (_whole(1, ROWS_MOST), "delivered and unacknowledged messages at most", "1000"),
    "on_disconnect": (_on_disconnect, "what becomes of a vanished subscriber's messages", "release"),
    "lease": (_column, "the column that shows which messages are in flight, and at which proxy", "lease"),
    "reason": (_column, "the column for the REASON of a NACK", "reason"),
    "delay_by": (_column, "the column by which producers delay a message, in seconds or to a time", "delay_s"),
    "paused": (_whole(0, 1), "1 while nothing is to be delivered", "1"),
    "group_by": (_columns, "the columns whose values divide the messages into groups", "tenant|region"),
    "group_order": (_strict, "the order within a group, one run of group_limit messages (1) at a time", "strict"),
    "group_limit": (_whole(1, ROWS_MOST), "messages of a group in flight at most", "2"),
    "group_rate": (_rate, "deliveries of a group a second at most", "5"),
    "batch_by": (_column, "the column with the batch that a message is a part of", "batch"),
    "after_batch": (_column, "the column with the batch that a follow-up waits for", "after_batch"),
    "semaphores": (_column, "the column with the semaphores that a message needs", "needs"),
    "batch_on_dead": (_on_dead, "whether a follow-up waits for dead parts", "hold"),
}
REQUIRED = frozenset({"vt_ack_wait", "vt_purge_after", "vt_batch_size", "vt_cache_size", "vt_poller_interval"})

OPTIONS: Mapping[str, str] = MappingProxyType({option_name(key): key for key in _READERS})
"""The directive of each option of CREATE QUEUE and ALTER QUEUE."""

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "vt_ack_wait": "30",
        "vt_purge_after": "86400",
        "vt_batch_size": "100",
        "vt_cache_size": "10000",
        "vt_poller_interval": "30",
        "vt_max_backoff": "3600",
        "lease": "lease",
    }
)
"""The directives of CREATE QUEUE that have a default."""
