"""Prints a table as the CREATE QUEUE that makes it, from the server's SHOW CREATE TABLE.

What CREATE QUEUE adds by itself is left out: the columns, if they are the first ones, in order, as
the servers print them, and the keys. Everything else is printed unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlrewrite import literals
from sqlrewrite.definitions import OWN_COLUMNS, Definition, Kind
from sqlrewrite.names import quote
from sqlrewrite.queue_statements import CreateQueue

_NOW = r"timestampdiff\(MICROSECOND,(?:_\w+)?'1970-01-01',utc_timestamp\(6\)\) \* 1000"
_PRINTED: Final = {
    "id": re.compile(r"`id` bigint(?:\(20\))? unsigned NOT NULL AUTO_INCREMENT"),
    "priority": re.compile(r"`priority` int(?:\(11\))? NOT NULL DEFAULT '?0'?"),
    "epoch": re.compile(r"`epoch` bigint(?:\(20\))? NOT NULL DEFAULT '?0'?"),
    "time_next": re.compile(rf"`time_next` bigint(?:\(20\))? DEFAULT \(+{_NOW}\)+"),
    "time_acked": re.compile(r"`time_acked` bigint(?:\(20\))? DEFAULT NULL"),
}
_DELAYED: Final = re.compile(r"`time_next` bigint(?:\(20\))? DEFAULT \(.*coalesce\(.*1000000000.*\)", re.IGNORECASE)
"""The default of time_next with DELAY_BY."""
_INVISIBLE: Final = r"(?:(?: DEFAULT NULL)? /\*!80023 INVISIBLE \*/| INVISIBLE DEFAULT NULL| DEFAULT NULL INVISIBLE)"
"""As MySQL, MariaDB 10 and MariaDB 11 print it."""
_EXTRAS: Final = (
    ("LEASE", "", re.compile(rf"`([^`]+)` bigint(?:\(20\))?{_INVISIBLE}")),
    ("REASON", "", re.compile(rf"`([^`]+)` text(?: CHARACTER SET utf8mb4)?(?: COLLATE \w+)?{_INVISIBLE}")),
    ("REASON", "_at", re.compile(rf"`([^`]+)` datetime\(6\){_INVISIBLE}")),
    ("DELAY_BY", "", re.compile(rf"`([^`]+)` decimal\(20,6\){_INVISIBLE}")),
    ("BATCH_BY", "", re.compile(r"`([^`]+)` bigint(?:\(20\))? unsigned DEFAULT NULL")),
    ("AFTER_BATCH", "", re.compile(r"`([^`]+)` bigint(?:\(20\))? unsigned DEFAULT NULL")),
)
"""The columns that options add, in order: the option, what follows its value in the name, and the
column as the servers print it."""
_PRINTED_KEYS: Final = frozenset({"PRIMARY KEY (`id`)", "KEY `time_acked` (`time_acked`,`priority`,`time_next`,`id`)"})
_PRINTED_GROUP_KEY: Final = re.compile(r"KEY `time_acked_\d+` \(`time_acked`,`priority`,(.+),`time_next`,`id`\)")
_PRINTED_TIME_KEY: Final = "UNIQUE KEY `id` (`id`,`time_acked`)"
_PRINTED_LEASE_KEY: Final = re.compile(r"KEY `time_acked_\d` \(([^()]*)\)")
_PRINTED_BATCH_KEY: Final = re.compile(r"KEY `([^`]+)` \(([^()]*)\)")
_PLAIN_VALUE = re.compile(r"[0-9]+(?:\.[0-9]+)?|release|keep|lease|reason|delay_s|(?i:fire|hold)|NONE")
_RETENTION: Final = re.compile(
    r"(?:/\*!\d+ )?PARTITION BY RANGE \(`?time_acked`?\)\s*"
    r"\(PARTITION `?live`? VALUES LESS THAN \(\d+\) ENGINE = \w+,\s*"
    r"(?>(?:PARTITION `?p\d+`? VALUES LESS THAN \(\d+\) ENGINE = \w+,\s*)*)"
    r"PARTITION `?later`? VALUES LESS THAN \(?MAXVALUE\)? ENGINE = \w+\)(?: \*/)?\s*$"
)
"""The partitions that RETENTION BY PARTITION makes, with any others that maintenance has added
since."""
_NEXT_ID = re.compile(r"\bAUTO_INCREMENT=[0-9]+ ?")


def retention_read(statement: CreateQueue) -> CreateQueue:
    """The statement with RETENTION BY PARTITION instead of the partitions that it makes."""
    codec = statement.tokens.codec
    options, found = _RETENTION.subn("", statement.table_options.decode(codec))
    if not found:
        return statement
    return replace(statement, by_partition=True, by_time=False, table_options=options.encode(codec))


def print_queue(
    statement: CreateQueue,
    name: str,
    options: Sequence[tuple[str, str]],
    comment: str,
    counted: Iterable[Sequence[str]],
    *,
    no_backslash_escapes: bool,
) -> str:
    """The text of CREATE QUEUE. `statement` is the server's CREATE TABLE, parsed as a CREATE
    QUEUE. `counted`: the columns by which messages in flight are counted, for each limit that counts them."""
    texts = [(definition, _text(statement, definition)) for definition in statement.definitions]
    by_time = statement.by_partition or statement.by_time
    added = _PRINTED_KEYS | {_PRINTED_TIME_KEY} if by_time else _PRINTED_KEYS
    given = dict(options)
    names = [given[option] for option in ("GROUP_BY", "SEMAPHORES") if option in given]
    group_by = ",".join(quote(name) for named in names for name in named.split("|"))
    lease = given.get("LEASE")
    in_flight = f"`time_acked`,{quote(lease)},`time_next`" if lease else ""
    lease_columns = {",".join([in_flight, *map(quote, columns)]).casefold() for columns in counted}
    order_columns = f"`time_acked`,{group_by},`id`".casefold() if "GROUP_ORDER" in given else None
    batch_keys = _batch_keys(given)
    kept = [
        text
        for _, text in _without_columns(texts, given)
        if text not in added
        and not ((found := _PRINTED_GROUP_KEY.fullmatch(text)) and found[1].casefold() == group_by.casefold())
        and not ((found := _PRINTED_LEASE_KEY.fullmatch(text)) and found[1].casefold() in lease_columns)
        and not (found and found[1].casefold() == order_columns)
        and not (
            (found := _PRINTED_BATCH_KEY.fullmatch(text)) and (found[2], found[1].rstrip("_0123456789")) in batch_keys
        )
    ]
    body = "(\n" + ",\n".join(f"  {text}" for text in kept) + "\n)" if kept else "()"
    own = [f"{option} = {_value(value, no_backslash_escapes=no_backslash_escapes)}" for option, value in options]
    if comment:
        own.append(f"COMMENT = {literals.string(comment, no_backslash_escapes=no_backslash_escapes)}")
    if statement.by_partition:
        own.append("RETENTION BY PARTITION")
    others = _NEXT_ID.sub("", statement.table_options.decode(statement.tokens.codec)).strip()
    return f"CREATE QUEUE {quote(name)} {body}\n" + "\n".join([*own, others]).strip()


def _batch_keys(options: Mapping[str, str]) -> set[tuple[str, str]]:
    """The keys of columns with batches: their columns as the servers print them, and the name that the
    servers choose, which is that of the first column, without its number."""
    keys = set()
    if name := options.get("BATCH_BY"):
        keys.add((f"{quote(name)},`time_acked`", name.rstrip("_0123456789")))
    if name := options.get("AFTER_BATCH"):
        keys.add((f"`time_acked`,{quote(name)},`id`", "time_acked"))
    return keys


def _without_columns(
    texts: Sequence[tuple[Definition, str]], options: Mapping[str, str]
) -> Sequence[tuple[Definition, str]]:
    """The definitions that follow those that CREATE QUEUE adds at the head."""
    declared = {definition.name for definition, _ in texts if definition.kind is Kind.COLUMN}
    at = 0
    for name in OWN_COLUMNS:
        if at == len(texts):
            break
        definition, text = texts[at]
        delayed = name == "time_next" and "DELAY_BY" in options
        printed = _DELAYED if delayed else _PRINTED[name]
        if definition.name == name and printed.fullmatch(text):
            at += 1
        elif name not in declared or definition.name == name:
            break
    for option, suffix, printed in _EXTRAS:
        added = printed.fullmatch(texts[at][1]) if at < len(texts) else None
        at += added is not None and option in options and added[1] == options[option] + suffix
    return texts[at:]


def _text(statement: CreateQueue, definition: Definition) -> str:
    return statement.tokens.decode(definition.start, definition.end).strip()


def _value(value: str, *, no_backslash_escapes: bool) -> str:
    if _PLAIN_VALUE.fullmatch(value):
        return value
    return literals.string(value, no_backslash_escapes=no_backslash_escapes)
