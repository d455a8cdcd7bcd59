"""The directives in a table's comment: text in, a policy out, or all problems.

The form is Vitess's (`vitess_message,vt_ack_wait=30,…`), so that its tables can be used
unchanged. All problems are reported at once, each with the value, the expected form and an
example, because comments are written by hand. Unknown keys are ignored, as in Vitess, but
reported as warnings: otherwise a misspelt optional directive would go unnoticed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from engine.catalog.directive import (
    NUMBER,
    BadValue,
    Directive,
    OneOf,
    column,
    columns,
    seconds,
    spelled,
    table,
    tables,
    whole,
)
from engine.catalog.limits import LIMIT_DIRECTIVES, ROWS_MOST
from engine.model import TableId
from engine.queue_table import OnDisconnect, Policy

LIKENESS_LEAST = 0.6
"""How similar an unknown name must be to a directive's for that to be suggested (difflib's ratio
and its default): one or two wrong letters, or a missing `max_` or `vt_`."""

_MARK = re.compile(r"(?<![0-9A-Za-z_$])vitess_message(?![0-9A-Za-z_$])")
_WORD = re.compile(r"[A-Za-z_][0-9A-Za-z_]*")

NONE = "NONE"
"""The value of an option for leaving its directive out, whatever its default."""

_ANY_TIME = seconds(0)
_SOME_TIME = seconds(1_000_000)  # Below a millisecond a delivery would end before its row has reached the client.
_POLL = seconds(10_000_000)  # Scanning more often than every 10 ms would be a busy loop on the server.
_ROWS = whole(1, ROWS_MOST)
_ATTEMPTS = whole(0, 1_000_000_000)
_VANISHED = OneOf({"release": OnDisconnect.RELEASE, "keep": OnDisconnect.KEEP}, exact=True)
_PAUSED = OneOf({"0": False, "1": True})
_ON_DEAD = OneOf({"fire": False, "hold": True})


def _required(key: str, read: Callable[[str], Any], meaning: str, example: str, field: str = "") -> Directive:
    """One of Vitess's, whose example is the default of CREATE QUEUE."""
    return Directive(key, read, meaning, example, field, required=True, default=example)


def _own(key: str, read: Callable[[str], Any], meaning: str, example: str, field: str = "", **rest: Any) -> Directive:
    """One that the dead-letter table of a queue does not get."""
    return Directive(key, read, meaning, example, field, of_dead_letters=False, **rest)


_ALL = (
    _required("vt_ack_wait", _SOME_TIME, "seconds to wait for the ACK of a first delivery", "30", "ack_wait_ns"),
    _required("vt_purge_after", _ANY_TIME, "seconds to keep acknowledged rows", "86400", "purge_after_ns"),
    _required("vt_batch_size", _ROWS, "rows handed to one subscriber at a time", "100", "batch_size"),
    _required("vt_cache_size", _ROWS, "messages of this table in the proxy's memory at most", "10000", "cache_size"),
    _required("vt_poller_interval", _POLL, "seconds between full scans of the table", "30", "poller_interval_ns"),
    Directive("vt_min_backoff", _SOME_TIME, "the least wait between deliveries in seconds", "30", "min_backoff_ns"),
    Directive(
        "vt_max_backoff", _SOME_TIME, "the greatest wait between deliveries in seconds", "3600", "max_backoff_ns",
        default="3600",
    ),
    Directive("vt_message_cols", columns, "the columns that * means", "id|body", "message_columns"),
    _own("max_attempts", _ATTEMPTS, "deliveries until a message is dead, 0 for never", "10", needs="dead_letter"),
    _own("dead_letter", table, "where dead messages go", "mail_dead", vain_without="max_attempts"),
    _own("dead_letter_of", tables, "the tables whose dead messages may come here", "mail|shop.orders"),
    _own("group_by", columns, "the columns whose values divide the messages into groups", "tenant|region"),
    *LIMIT_DIRECTIVES,
    _own("max_burst", _ROWS, "deliveries that max_rate allows at once after a pause", "100", needs="max_rate"),
    Directive("on_disconnect", _VANISHED, "what becomes of a vanished subscriber's messages", "release"),
    Directive(
        "lease", column, "the column that shows which messages are in flight, and at which proxy", "lease",
        default="lease",
    ),
    Directive("reason", column, "the column for the REASON of a NACK", "reason"),
    Directive("delay_by", column, "the column by which producers delay a message, in seconds or to a time", "delay_s"),
    _own("paused", _PAUSED, "1 while nothing is to be delivered", "1"),
    _own("batch_by", column, "the column with the batch that a message is a part of", "batch"),
    _own("after_batch", column, "the column with the batch that a follow-up waits for", "after_batch"),
    _own(
        "batch_on_dead", _ON_DEAD, "whether a follow-up waits for dead parts", "hold", "dead_parts_hold",
        vain_without="batch_by",
    ),
)  # fmt: skip
DIRECTIVES: Mapping[str, Directive] = MappingProxyType({directive.key: directive for directive in _ALL})
"""All directives, in the order in which CREATE QUEUE writes them."""

OPTIONS: Mapping[str, str] = MappingProxyType({directive.option: key for key, directive in DIRECTIVES.items()})
"""The directive of each option of CREATE QUEUE and ALTER QUEUE."""

DEFAULTS: Mapping[str, str] = MappingProxyType({one.key: one.default for one in _ALL if one.default is not None})
"""The directives of CREATE QUEUE that have a default."""


def is_marked(comment: str) -> bool:
    """Whether the comment contains the word `vitess_message`."""
    return _MARK.search(comment) is not None


def parse_comment(comment: str) -> Policy | tuple[str, ...] | None:
    """The policy in a table's comment, or all of its problems; None if it marks no message
    table."""
    if not is_marked(comment):
        return None
    texts: dict[str, str] = {}
    problems: list[str] = []
    for key, text in _directives(comment):
        if key in texts:
            problems.append(f"{key} stands in the comment more than once: keep one of them")
        if key in DIRECTIVES:
            texts.setdefault(key, text)
    values, wrong = _read(texts)
    problems += [*wrong, *_combination_problems(texts, values, as_options=False)]
    return tuple(problems) if problems else _policy(values)


def comment_warnings(comment: str) -> tuple[str, ...]:
    """Warnings for text in a message table's comment that looks like a directive and is none, each
    with the most similar directive.

    Only `name=value` with a name of one word counts. If the name is similar to no directive, the
    value must also be one word. Any other text is a note.
    """
    warnings: dict[str, str] = {}
    for key, value in _directives(comment):
        if key in DIRECTIVES or not _WORD.fullmatch(key):
            continue
        near = difflib.get_close_matches(key.lower(), DIRECTIVES, n=1, cutoff=LIKENESS_LEAST)
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
        if equals and key.strip() in DIRECTIVES:
            values.setdefault(key.strip(), value.strip())
        elif part.strip() != "vitess_message":
            rest.append(part)
    return values, ",".join(rest)


def make_comment(values: Mapping[str, str], rest: str = "") -> str:
    """The comment with these directives, the inverse of `split_comment`."""
    directives = (f"{key}={value}" for key, value in values.items())
    return ",".join(["vitess_message", *directives, *([rest] if rest else [])])


def queue_values(values: Mapping[str, str], without: Collection[str] = ()) -> dict[str, str]:
    """These directives with the defaults of CREATE QUEUE, in a fixed order, except those in
    `without`."""
    complete = {**DEFAULTS, **values}
    least = values.get("vt_min_backoff") or complete["vt_ack_wait"]
    if "vt_max_backoff" not in values and NUMBER.fullmatch(least):
        complete["vt_max_backoff"] = max(complete["vt_max_backoff"], least, key=Decimal)
    return {key: complete[key] for key in DIRECTIVES if key in complete and key not in without}


def option_problem(option: str, text: str) -> str | None:
    """The problem of an option's value; None if it is correct."""
    if "," in text:
        return f"{option} = {text!r} holds a comma, which divides the directives in a table's comment"
    return _value_problem(DIRECTIVES[OPTIONS[option]], text, as_option=True)


def text_problem(rest: str) -> str | None:
    """Why a text cannot be in a comment beside directives; None if it can."""
    for key, _ in _directives(rest):
        if key in DIRECTIVES:
            return f"the COMMENT holds {key}=…, which would be read as a directive: use {DIRECTIVES[key].option} = …"
    return None


def with_source(values: Mapping[str, str], table: TableId, source: TableId) -> dict[str, str] | None:
    """The directives of `table`, extended by its consent to take the dead messages of `source`;
    None if the name contains a comma, which divides the directives of a comment."""
    db = "" if source.db == table.db else f"{spelled(source.db)}."
    name = f"{db}{spelled(source.name)}"
    if "," in name:
        return None
    before = values.get("dead_letter_of")
    return {**values, "dead_letter_of": f"{before}|{name}" if before else name}


def dead_letter_name(values: Mapping[str, str]) -> tuple[str | None, str] | None:
    """The dead-letter table that directives name: its database (None: the queue's) and its name. None if
    they name none, or it is no name."""
    try:
        return table(values["dead_letter"])
    except (KeyError, BadValue):
        return None


def combination_problem(texts: Mapping[str, str]) -> str | None:
    """Why values that are correct one by one cannot be combined; None if they can. Those that are not correct, in
    a comment that was written by hand, are passed over."""
    return next(_combination_problems(texts, _read(texts)[0], as_options=True), None)


def _read(texts: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The values of the directives of a comment, and the problems of those that are wrong or missing."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, directive in DIRECTIVES.items():
        if key not in texts:
            if directive.required:
                problems.append(f"{key} is missing: {directive.explained(as_option=False)}")
        elif problem := _value_problem(directive, texts[key], as_option=False):
            problems.append(problem)
        else:
            values[key] = directive.read(texts[key])
    return values, problems


def _value_problem(directive: Directive, text: str, *, as_option: bool) -> str | None:
    try:
        directive.read(text)
    except BadValue as bad:
        given = directive.given(text, as_option=as_option)
        return f"{given} is not {bad}: {directive.explained(as_option=as_option)}"
    return None


def _combination_problems(texts: Mapping[str, str], values: Mapping[str, Any], *, as_options: bool) -> Iterator[str]:
    """Why these directives cannot be combined. `values`: those of the texts that are correct."""

    def name(key: str) -> str:
        return DIRECTIVES[key].named(as_option=as_options)

    for key in (key for key, value in values.items() if value):
        directive = DIRECTIVES[key]
        needed = directive.needs if directive.needs not in texts else None
        vain_without = directive.vain_without if as_options else None
        if vain_without is not None and (vain_without not in texts or values.get(vain_without) == 0):
            needed = vain_without
        if needed is not None:
            yield f"{name(key)} needs {name(needed)}: {DIRECTIVES[needed].explained(as_option=as_options)}"
        for other in directive.not_with:
            if values.get(other):
                reason = "cannot be combined: give the messages of each group a semaphore of their own"
                yield f"{name(key)} and {name(other)} {reason}"
    if values.get("semaphores", "").lower() in map(str.lower, values.get("group_by", ())):
        group_by = name("group_by")
        reason = f"messages that need the same semaphores are a group already, leave out {group_by}"
        yield f"{name('semaphores')} and {group_by} name the same column: {reason}"
    floor = "vt_min_backoff" if "vt_min_backoff" in values else "vt_ack_wait"
    most = values.get("vt_max_backoff")
    if most is not None and most < values.get(floor, 0):
        given = DIRECTIVES["vt_max_backoff"].given(texts["vt_max_backoff"], as_option=as_options)
        yield f"{given} is less than {name(floor)}"


def _policy(values: Mapping[str, Any]) -> Policy:
    fields = {directive.field or key: values[key] for key, directive in DIRECTIVES.items() if key in values}
    return Policy(**{"min_backoff_ns": fields["ack_wait_ns"], **fields})


def _directives(comment: str) -> Iterator[tuple[str, str]]:
    for part in comment.split(","):
        key, equals, value = part.partition("=")
        if equals:
            yield key.strip(), value.strip()
