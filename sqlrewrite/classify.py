"""What a statement is, told from its first words.

Every statement of every client goes through `classify`. So a SELECT is told by its first bytes,
as it is nearly always written; all else by one look by one anchored regular expression, and what
may write by a second one at the head of the statement: the table that an INSERT of ten thousand
rows touches stands before its first row. The answer for statements that are not ours is a hint
and nothing more: which tables to look at once it is committed. A hint that is missing costs a
delay until the next poll and one that is too wide costs a look, so doubt means "any table".

Statements of ours must stand alone in their packet. Whether a packet holds several statements is
seen by the first semicolon; only where it is not the end of the text are quotes and comments
read.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlrewrite.common_tables import only_reads
from sqlrewrite.lexicon import (
    COMMENT,
    GAP,
    NAME,
    WORD_BYTE,
    WORD_END,
    bytes_pattern,
    strings,
)
from sqlrewrite.names import unquote


class Verb(enum.Enum):
    """What is to be done with a statement."""

    OTHER = enum.auto()
    """Relay it; it does nothing that queues depend on."""
    STREAM = enum.auto()
    ACK = enum.auto()
    NACK = enum.auto()
    EXTEND = enum.auto()
    QUEUE = enum.auto()
    """CREATE QUEUE and its family, SHOW QUEUES and SHOW STREAMS (sqlrewrite.queues tells them apart)."""
    KILL = enum.auto()
    """Relay it; `parse_kill` tells whom it ends."""
    WRITE = enum.auto()
    """Relay it; it may change rows."""
    SCHEMA = enum.auto()
    """Relay it; it may create, change or drop tables, and rows with them."""
    NEXT_TRANSACTION = enum.auto()
    """Relay it; it sets the characteristics of the session's next transaction and of no other one."""
    USE = enum.auto()
    """Relay it; it changes the session's default database."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the head of a statement tells.

    `table` is the bare name, unquoted and casefolded, of the one table that a WRITE or SCHEMA
    statement touches; None means that any table may be touched.
    """

    verb: Verb
    table: str | None = None
    inserts: bool = False
    """Whether it quickly adds rows and does nothing else: INSERT … VALUES that neither updates nor skips any."""


@dataclass(frozen=True, slots=True)
class Kill:
    """`KILL n`: which connection (None: a parameter says so), and whether only its running statement ends."""

    connection_id: int | None
    query_only: bool


MESSAGE_VERBS: Final = (Verb.STREAM, Verb.ACK, Verb.NACK, Verb.EXTEND)
"""The statements about messages: each is known by its first word."""

QUEUE_STATEMENT_VERBS: Final = (*MESSAGE_VERBS, Verb.QUEUE)
"""The statements that are ours and never reach the server. No set: an enum's hash is a call of Python code."""

OTHER: Final = Head(Verb.OTHER)
ANY_WRITE: Final = Head(Verb.WRITE)
ANY_SCHEMA: Final = Head(Verb.SCHEMA)
NEXT_TRANSACTION: Final = Head(Verb.NEXT_TRANSACTION)

_READS: Final = (b"SELECT ", b"select ")
"""How most statements begin: they are told without a pattern."""
_READ: Final = len(_READS[0])

LEXED_BYTES_MAX: Final = 4096
"""Up to here quotes and comments are read to tell `a; b` from `'a; b'`; beyond it the doubt stands."""
OWN_BYTES_MAX: Final = 64 * 1024
"""Up to here a statement of ours is read for a second one behind it, in a fraction of a millisecond."""

_Rule = Callable[[bytes, int], Head]
"""From the statement and the end of its first keyword to what it is."""


def classify(text: bytes, *, multi_statements: bool = True) -> Head:
    """What the statement is. Never raises, whatever the bytes.

    `multi_statements` is whether a packet can hold several statements: the client asked for
    CLIENT_MULTI_STATEMENTS, and this is not a PREPARE. Where it cannot, no semicolon is looked for.
    """
    head = OTHER if text[:_READ] in _READS else _first_statement(text)
    if head is not OTHER and head.verb in QUEUE_STATEMENT_VERBS:
        # Of a longer text it is left to the statement's own reader, in steps: it refuses with the server's own 1064
        # what does not stand alone.
        return head if len(text) > OWN_BYTES_MAX or _stands_alone(text) else OTHER
    if not multi_statements or _stands_alone(text, LEXED_BYTES_MAX):
        return head
    return ANY_SCHEMA if _SCHEMA_WORD.search(text, 0, LEXED_BYTES_MAX) else ANY_WRITE


def may_be_queue_statement(text: bytes) -> bool:
    """Whether a statement of which these are the first bytes can be ours.

    To be asked of a long packet before it is read to its end: `classify` wants the whole statement.
    """
    return _first_statement(text).verb in QUEUE_STATEMENT_VERBS


def needs_no_transaction(text: bytes) -> bool:
    """Whether a statement whose verb is OTHER is seen to use no table, so that it does not begin a transaction."""
    return _NO_TRANSACTION.match(text) is not None and b"FROM" not in text[:LEXED_BYTES_MAX].upper()


def parse_kill(text: bytes) -> Kill | None:
    """Whom a KILL ends; None for all that does not name a connection by a plain number."""
    match = _KILL.fullmatch(text)
    if match is None:
        return None
    number = match["id"]
    return Kill(None if number == b"?" else int(number), query_only=match["query"] is not None)


def _first_statement(text: bytes) -> Head:
    first = _FIRST.match(text)
    if first is None:
        return OTHER
    keyword: bytes | None = first[1]
    if keyword is None:
        return ANY_WRITE
    rule = _RULES.get(keyword.upper())
    return OTHER if rule is None else rule(text, first.end())


def _stands_alone(text: bytes, lexed_bytes_max: int | None = None) -> bool:
    semicolon = text.find(b";")
    if semicolon < 0 or _REST_IS_GAP.match(text, semicolon + 1):
        return True
    if lexed_bytes_max is not None and len(text) > lexed_bytes_max:
        return False
    return _ONE_STATEMENT.match(text) is not None


_STRING = strings(no_backslash_escapes=False, ansi_quotes=False)

# The patterns. Each rule's own one starts behind the first keyword. Where nothing but a name can
# stand, "t" is one in any sql_mode: as a string it would be an error of the server's.

# No keyword of interest is longer than 8 letters. A comment that GAP did not skip is one that the
# server executes, or it is not closed: the branch without a group.
_FIRST = bytes_pattern(rf"{GAP}(?:([A-Z]{{2,8}}+){WORD_END}|/\*)")
_REST_IS_GAP = bytes_pattern(rf"{GAP}\Z")
_SCHEMA_WORD = bytes_pattern(rf"(?<![\w$])(?:CREATE|ALTER|DROP|RENAME|TRUNCATE){WORD_END}")
_PLAIN = rf"[^;'\"`\#/-]++|{_STRING}|{COMMENT}|-|/(?!\*(?!M?!))"
_ONE_STATEMENT = bytes_pattern(rf"(?>(?:{_PLAIN})*)(?>(?:;{GAP})?)\Z")
_KILL = bytes_pattern(
    rf"{GAP}KILL{WORD_END}{GAP}(?>(?:(?:HARD|SOFT){WORD_END}{GAP})?)"
    rf"(?>(?:(?:CONNECTION|(?P<query>QUERY)){WORD_END}{GAP})?)(?P<id>[0-9]{{1,20}}|\?){GAP}(?>(?:;{GAP})?)"
)
_NO_TRANSACTION = bytes_pattern(rf"{GAP}(?:SELECT|SET|DO|PREPARE|DEALLOCATE|SHOW{GAP}CREATE){WORD_END}")


def _word(word: str) -> str:
    return rf"(?:{word}){WORD_END}{GAP}"


def _maybe(*words: str) -> str:
    return "".join(rf"(?>(?:{_word(word)})?)" for word in words)


def _head(pattern: str) -> re.Pattern[bytes]:
    return bytes_pattern(GAP + pattern)


_TABLE = rf"(?>(?:{NAME}{GAP}\.{GAP})?)(?P<table>{NAME}){GAP}"
_IF_EXISTS = rf"(?>(?:{_word('IF')}{_maybe('NOT')}{_word('EXISTS')})?)"
_ALIAS = rf"(?>(?:(?!SET{WORD_END}){_maybe('AS')}{NAME}{GAP})?)"
_PARTITION = rf"(?>(?:{_word('PARTITION')}\([^()]*+\){GAP})?)"
_INSERT = _head(
    _maybe("LOW_PRIORITY|DELAYED|HIGH_PRIORITY") + rf"(?P<ignore>{_maybe('IGNORE')})" + _maybe("INTO") + _TABLE
    + rf"(?P<values>(?>(?:(?>(?:\([^()]*+\){GAP})?)(?:VALUES?|SET)(?![0-9A-Z_$]))?))"
)  # fmt: skip
_ON_DUPLICATE = bytes_pattern(rf"ON{GAP}DUPLICATE{WORD_END}")
_UPDATE = _head(_maybe("LOW_PRIORITY", "IGNORE") + _TABLE + _PARTITION + _ALIAS + _word("SET"))
_DELETE = _head(
    _maybe("LOW_PRIORITY", "QUICK", "IGNORE") + _word("FROM") + _TABLE
    + rf"(?!,|\.|USING{WORD_END})"
)  # fmt: skip
_LOAD = _head(
    _word("DATA|XML") + _maybe("LOW_PRIORITY|CONCURRENT", "LOCAL") + _word("INFILE")
    + _STRING + GAP
    + _maybe("REPLACE|IGNORE") + _word("INTO") + _word("TABLE") + _TABLE
)  # fmt: skip
_CREATE = _head(_maybe("OR", "REPLACE") + _word("TABLE") + _IF_EXISTS + _TABLE)
_ALTER = _head(
    _maybe("ONLINE", "IGNORE") + _word("TABLE") + _IF_EXISTS + _TABLE
    # These name a second table.
    + rf"(?![\s\S]*?(?:RENAME|EXCHANGE|CONVERT){WORD_END})"
)  # fmt: skip
_DROP = _head(_word("TABLES?") + _IF_EXISTS + _TABLE + "(?!,)")
_TRUNCATE = _head(_maybe("TABLE") + _TABLE)
# No statement of either server has these words.
_QUEUE = _head(rf"QUEUE{WORD_END}{GAP}(?![:(.=])")
_SHOW = _head(rf"(?:QUEUES|STREAMS|CREATE{WORD_END}{GAP}QUEUE){WORD_END}{GAP}(?![:(.=])")
_TEMPORARY = _head(_maybe("OR", "REPLACE") + _word("TEMPORARY"))
_NOT_OUR_SHAPE = _head("[:(.=]")
_STATEMENT = _head(_word("STATEMENT"))
_TRANSACTION = _head(_word("TRANSACTION"))
# Without SESSION or GLOBAL behind the `@@`, which one variable in four has of its own.
_ITS_VARIABLES = bytes_pattern(rf"@@`?(?:TRANSACTION|TX)_(?:ISOLATION|READ_ONLY)(?!{WORD_BYTE})")


# The rules.


def _always(head: Head) -> _Rule:
    return lambda _text, _end: head


def _if(pattern: re.Pattern[bytes], head: Head, otherwise: _Rule) -> _Rule:
    return lambda text, end: head if pattern.match(text, end) else otherwise(text, end)


def _table(verb: Verb, pattern: re.Pattern[bytes]) -> _Rule:
    any_table = Head(verb)

    def rule(text: bytes, end: int) -> Head:
        match = pattern.match(text, end)
        return any_table if match is None else Head(verb, _bare_name(match["table"]))

    return rule


def _insert(text: bytes, end: int) -> Head:
    match = _INSERT.match(text, end)
    if match is None:
        return ANY_WRITE
    ignore, written, values = match.group("ignore", "table", "values")
    table = _bare_name(written)
    return Head(Verb.WRITE, table, inserts=bool(table and values and not ignore and not _updates(text)))


def _set(text: bytes, end: int) -> Head:
    if _STATEMENT.match(text, end):
        return ANY_WRITE
    variables = b"@@" in text and _ITS_VARIABLES.search(text, end, LEXED_BYTES_MAX)
    return NEXT_TRANSACTION if variables or _TRANSACTION.match(text, end) else OTHER


def _with(text: bytes, end: int) -> Head:
    return OTHER if only_reads(text, end, LEXED_BYTES_MAX) else ANY_WRITE


def _updates(insert: bytes) -> bool:
    tail = insert[-LEXED_BYTES_MAX:]
    # A pattern that knows no case is looked for byte by byte, a word at once.
    return b"DUPLICATE" in tail.upper() and _ON_DUPLICATE.search(tail) is not None


def _own(verb: Verb) -> _Rule:
    # `ack: LOOP` is a label, `ack.f()` and `ack(1)` may be calls.
    return _if(_NOT_OUR_SHAPE, OTHER, _always(Head(verb)))


def _bare_name(written: bytes) -> str | None:
    """None where the client's character set is not UTF-8: its names cannot be told here."""
    try:
        return unquote(written.decode()).casefold()
    except UnicodeDecodeError:
        return None


_RULES: Final[Mapping[bytes, _Rule]] = {
    **{verb.name.encode(): _own(verb) for verb in MESSAGE_VERBS},
    **dict.fromkeys((b"PAUSE", b"RESUME", b"PURGE", b"REDRIVE"), _if(_QUEUE, Head(Verb.QUEUE), _always(OTHER))),
    b"SHOW": _if(_SHOW, Head(Verb.QUEUE), _always(OTHER)),
    b"KILL": _always(Head(Verb.KILL)),
    b"USE": _always(Head(Verb.USE)),
    b"INSERT": _insert,
    b"REPLACE": _table(Verb.WRITE, _INSERT),
    b"UPDATE": _table(Verb.WRITE, _UPDATE),
    b"DELETE": _table(Verb.WRITE, _DELETE),
    b"LOAD": _table(Verb.WRITE, _LOAD),
    b"CREATE": _if(_QUEUE, Head(Verb.QUEUE), _if(_TEMPORARY, OTHER, _table(Verb.SCHEMA, _CREATE))),
    b"DROP": _if(_QUEUE, Head(Verb.QUEUE), _if(_TEMPORARY, OTHER, _table(Verb.SCHEMA, _DROP))),
    b"ALTER": _if(_QUEUE, Head(Verb.QUEUE), _table(Verb.SCHEMA, _ALTER)),
    b"TRUNCATE": _table(Verb.SCHEMA, _TRUNCATE),
    b"WITH": _with,
    **dict.fromkeys((b"RENAME", b"IMPORT"), _always(ANY_SCHEMA)),
    b"BEGIN": _if(_head(_word("NOT")), ANY_WRITE, _always(OTHER)),
    b"SET": _set,
    # They run other statements or contain them. MariaDB's ANALYZE carries out what it explains.
    **dict.fromkeys(
        (b"CALL", b"EXECUTE", b"DO", b"XA", b"ANALYZE",
         b"IF", b"CASE", b"LOOP", b"WHILE", b"REPEAT", b"FOR"),
        _always(ANY_WRITE),
    ),
}  # fmt: skip
