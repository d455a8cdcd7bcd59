"""What a statement is, by its first words.

Every statement of every client goes through `classify`. A SELECT is recognised by its first bytes,
any other statement by one anchored pattern. A second pattern reads the head of a statement that may
write: the table of an INSERT of ten thousand rows stands before its first row.

For statements that are not queue statements, the table is a commit notice: the engine scans it once
the statement is committed. A missing notice delays a message until the next poll, and one that is
too wide costs a scan. So in doubt it is "any table".

A queue statement must stand alone in its packet. Where the first semicolon is not the end of the
text, quotes and comments are read to find whether a second statement follows.
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
from sqlrewrite.misspelt import MISSPELT, MISSPELT_NOUN, MISSPELT_SHOWN
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
    """CREATE QUEUE and its family, SHOW QUEUES and SHOW STREAMS: sqlrewrite.queues parses them."""
    KILL = enum.auto()
    """Relay it; `parse_kill` returns which connection it ends."""
    WRITE = enum.auto()
    """Relay it; it may change rows."""
    SCHEMA = enum.auto()
    """Relay it; it may create, change or drop tables, and rows with them."""
    NEXT_TRANSACTION = enum.auto()
    """Relay it; it sets the characteristics of the session's next transaction alone."""
    USE = enum.auto()
    """Relay it; it changes the session's default database."""
    NEARLY = enum.auto()
    """Nearly a queue statement: the server most probably refuses it, and `sqlrewrite.hints` has what
    to write instead."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the head of a statement shows.

    `table` is the bare name, unquoted and casefolded, of the one table that a WRITE or SCHEMA
    statement touches; None means that any table may be touched.
    """

    verb: Verb
    table: str | None = None
    inserts: bool = False
    """Whether it only adds rows, and quickly: INSERT … VALUES that neither updates nor skips
    any."""
    before_queue_statement: bool = False
    """Whether a statement behind it in the packet probably is a queue statement, or nearly one, which
    the server refuses there; or itself is nearly one."""


@dataclass(frozen=True, slots=True)
class Kill:
    """`KILL n`: which connection (None: a parameter), and whether only its running statement
    ends."""

    connection_id: int | None
    query_only: bool


@dataclass(frozen=True, slots=True)
class KillByExpression:
    """A KILL of the connection that an expression names, from `start` to `end` of the `text`."""

    text: bytes
    start: int
    end: int
    query_only: bool

    @property
    def expression(self) -> bytes:
        """The expression as the client has written it."""
        return self.text[self.start : self.end]

    def numbered(self, number: bytes) -> bytes:
        """The statement with this number in place of the expression."""
        return self.text[: self.start] + number + self.text[self.end :]

    def kill(self, number: int) -> Kill:
        """What it ends if the expression is this number."""
        return Kill(number, self.query_only)


MESSAGE_VERBS: Final = (Verb.STREAM, Verb.ACK, Verb.NACK, Verb.EXTEND)
"""The statements about messages: the first word identifies each."""

QUEUE_STATEMENT_VERBS: Final = (*MESSAGE_VERBS, Verb.QUEUE)
"""The queue statements: they never reach the server. Not a set: an enum's hash is a call of Python
code."""

OTHER: Final = Head(Verb.OTHER)
ANY_WRITE: Final = Head(Verb.WRITE)
ANY_SCHEMA: Final = Head(Verb.SCHEMA)
NEXT_TRANSACTION: Final = Head(Verb.NEXT_TRANSACTION)
NEARLY: Final = Head(Verb.NEARLY)

_READS: Final = (b"SELECT ", b"select ")
"""How most statements begin: they are recognised without a pattern."""
_READ: Final = len(_READS[0])

LEXED_BYTES_MAX: Final = 4096
"""Text up to this length is read with its quotes and comments, to tell `a; b` from `'a; b'`."""
EXPRESSION_BYTES_MAX: Final = 1024
"""The length of an expression in a KILL, up to which the connection is found out."""
OWN_BYTES_MAX: Final = 64 * 1024
"""A queue statement up to this length is searched for a second one, in a fraction of a
millisecond."""

_Rule = Callable[[bytes, int], Head]
"""Returns what a statement is, given its text and where its first keyword ends."""


def classify(text: bytes, *, multi_statements: bool = True) -> Head:
    """What the statement is. Never raises, whatever the bytes.

    `multi_statements`: whether the packet may contain several statements, because the client uses
    CLIENT_MULTI_STATEMENTS and this is not a PREPARE. Otherwise no semicolon is searched for.
    """
    head = OTHER if text[:_READ] in _READS else _first_statement(text)
    if head is not OTHER and head.verb in QUEUE_STATEMENT_VERBS:
        # The parser of a longer statement searches it in steps, and answers 1064 if it does not
        # stand alone.
        return head if len(text) > OWN_BYTES_MAX or _stands_alone(text) else NEARLY
    if not multi_statements or _stands_alone(text, LEXED_BYTES_MAX):
        return head
    words = (match[1].upper() for match in _LATER_WORD.finditer(text, 0, LEXED_BYTES_MAX))
    later = head.verb is Verb.NEARLY or any(word in _NEAR_VERBS for word in words) or _later_noun(text)
    verb = Verb.SCHEMA if _SCHEMA_WORD.search(text, 0, LEXED_BYTES_MAX) else Verb.WRITE
    return Head(verb, before_queue_statement=later)


def statement_at(text: bytes, begin: int) -> Head:
    """What the statement is that begins there, behind the semicolon of another one."""
    return _first_statement(text[begin:])


def may_be_queue_statement(text: bytes) -> bool:
    """Whether a statement with these first bytes can be a queue statement.

    For a long packet that has not arrived in full: `classify` needs the whole statement.
    """
    return _first_statement(text).verb in QUEUE_STATEMENT_VERBS


def needs_no_transaction(text: bytes) -> bool:
    """Whether a statement whose verb is OTHER certainly uses no table: then it begins no
    transaction."""
    return _NO_TRANSACTION.match(text) is not None and b"FROM" not in text[:LEXED_BYTES_MAX].upper()


class TransactionEnd(enum.Enum):
    """How a statement ends the open transaction, or some of it, if it succeeds."""

    COMMIT = enum.auto()
    """It commits: COMMIT, or a statement that begins another transaction."""
    ROLLBACK = enum.auto()
    TO_SAVEPOINT = enum.auto()
    """It rolls back to a savepoint; the transaction goes on."""


def transaction_end(text: bytes) -> TransactionEnd | None:
    """How a statement whose verb is OTHER ends the open transaction; None if it does not."""
    match = _ENDING.match(text)
    if match is None:
        return None
    if match["rollback"] is None:
        return TransactionEnd.COMMIT
    return TransactionEnd.ROLLBACK if match["savepoint"] is None else TransactionEnd.TO_SAVEPOINT


def parse_kill(text: bytes) -> Kill | KillByExpression | None:
    """What a KILL ends. None if it names no connection but a user or a statement, and if it has a semicolon or a
    comment of one line inside."""
    match = _KILL.fullmatch(text)
    if match is not None:
        number = match["id"]
        return Kill(None if number == b"?" else int(number), query_only=match["query"] is not None)
    match = _KILL_BY_EXPRESSION.fullmatch(text)
    return match and KillByExpression(text, *match.span("id"), query_only=match["query"] is not None)


def _first_statement(text: bytes) -> Head:
    first = _FIRST.match(text)
    if first is None:
        return OTHER
    keyword: bytes | None = first[1]
    if keyword is None:
        return ANY_WRITE
    rule = _RULES.get(keyword.upper())
    return OTHER if rule is None else rule(text, first.end())


def _later_noun(text: bytes) -> bool:
    """Whether a later statement begins like a queue statement whose first word others share."""
    for match in _LATER_NOUN.finditer(text, 0, LEXED_BYTES_MAX):
        queue, shown, noun = match.group("queue", "shown", "noun")
        nouns = _QUEUE_NOUNS if queue else _SHOWN_NOUNS if shown else _EXPLAINED_NOUNS
        if noun.upper() in nouns:
            return True
    return False


def _stands_alone(text: bytes, lexed_bytes_max: int | None = None) -> bool:
    semicolon = text.find(b";")
    if semicolon < 0 or _REST_IS_GAP.match(text, semicolon + 1):
        return True
    if lexed_bytes_max is not None and len(text) > lexed_bytes_max:
        return False
    return _ONE_STATEMENT.match(text) is not None


_STRING = strings(no_backslash_escapes=False, ansi_quotes=False)

# The patterns. That of a rule starts behind the first keyword. Where only a name can stand, "t" is
# one in any sql_mode: as a string it would be an error.

# No keyword of interest is longer than 8 letters. A comment that GAP does not match is executed by
# the server, or is not closed: the branch without a group.
_FIRST = bytes_pattern(rf"{GAP}(?:([A-Z]{{2,8}}+){WORD_END}|/\*)")
_REST_IS_GAP = bytes_pattern(rf"{GAP}\Z")
_SCHEMA_WORD = bytes_pattern(rf"(?<![\w$])(?:CREATE|ALTER|DROP|RENAME|TRUNCATE){WORD_END}")
_LATER_WORD = bytes_pattern(rf";{GAP}([A-Z]{{2,8}}+){WORD_END}")
_LATER_NOUN = bytes_pattern(
    rf";{GAP}(?:(?P<queue>CREATE|ALTER|DROP|SHOW{GAP}CREATE)|(?P<shown>SHOW(?>(?:{GAP}FULL)?))|EXPLAIN|DESCRIBE|DESC)"
    rf"{WORD_END}{GAP}(?P<noun>[A-Z]{{3,11}}+){WORD_END}"
)
_NEAR_VERBS: Final = frozenset({b"STREAM", b"ACK", b"NACK", b"EXTEND", b"PAUSE", b"RESUME", b"PURGE", b"REDRIVE"}) | (
    MISSPELT.keys()
)
"""First words of queue statements and of what is nearly one."""
_PLAIN = rf"[^;'\"`\#/-]++|{_STRING}|{COMMENT}|-|/(?!\*(?!M?!))"
_ONE_STATEMENT = bytes_pattern(rf"(?>(?:{_PLAIN})*)(?>(?:;{GAP})?)\Z")
_KILLED = (
    rf"{GAP}KILL{WORD_END}{GAP}(?>(?:(?:HARD|SOFT){WORD_END}{GAP})?)"
    rf"(?>(?:(?:CONNECTION|(?P<query>QUERY)){WORD_END}{GAP})?)"
)
_KILL = bytes_pattern(rf"{_KILLED}(?P<id>[0-9]{{1,20}}|\?){GAP}(?>(?:;{GAP})?)")
_KILL_BY_EXPRESSION = bytes_pattern(
    rf"{_KILLED}(?!(?:USER|ID){WORD_END})(?P<id>(?>(?:[^;\#-]|-(?!-)){{1,{EXPRESSION_BYTES_MAX}}}))(?>(?:;{GAP})?)"
)
_NO_TRANSACTION = bytes_pattern(rf"{GAP}(?:SELECT|SET|DO|PREPARE|DEALLOCATE|SHOW{GAP}CREATE){WORD_END}")


def _word(word: str) -> str:
    return rf"(?:{word}){WORD_END}{GAP}"


def _maybe(*words: str) -> str:
    return "".join(rf"(?>(?:{_word(word)})?)" for word in words)


def _head(pattern: str) -> re.Pattern[bytes]:
    return bytes_pattern(GAP + pattern)


_ENDING = bytes_pattern(
    rf"{GAP}(?:(?:COMMIT|BEGIN|START{GAP}TRANSACTION){WORD_END}"
    rf"|(?P<rollback>ROLLBACK){WORD_END}{GAP}{_maybe('WORK')}(?P<savepoint>TO{WORD_END})?)"
)
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
# Neither server has a statement with these words.
_QUEUE = _head(rf"QUEUE{WORD_END}{GAP}(?![:(.=])")
_DEFINED = _head(rf"(?:QUEUE|SEMAPHORE){WORD_END}{GAP}(?![:(.=])")
_SHOW = _head(
    rf"(?:(?:FULL{WORD_END}{GAP})?QUEUES|STREAMS|BATCHES|DELIVERIES|GROUPS|PROXIES|SEMAPHORES|CREATE{WORD_END}{GAP}QUEUE)"
    rf"{WORD_END}{GAP}(?![:(.=])"
)
# `EXPLAIN stream c` describes a column of a table with this name.
_EXPLAINED = _head(rf"(?:QUEUE|STREAM|ACK|NACK|EXTEND){WORD_END}{GAP}(?![:(.=;]|\Z)")
_WITHOUT_QUEUE = _head(rf"(?!(?:BINARY|MASTER){WORD_END}){NAME}")
_SECOND = _head(rf"([A-Z]{{4,11}}+){WORD_END}")
_EXPLAINED_NOUNS: Final = frozenset({b"QUEUE", b"STREAM", b"ACK", b"NACK", b"EXTEND"})
_QUEUE_NOUNS: Final = MISSPELT_NOUN.keys() | {b"QUEUE", b"SEMAPHORE"}
_SHOWN_NOUNS: Final = MISSPELT_SHOWN.keys() | {word.encode() for word in MISSPELT_SHOWN.values()}
_TEMPORARY = _head(_maybe("OR", "REPLACE") + _word("TEMPORARY"))
_OTHER_QUEUE = _head(_maybe("OR", "REPLACE", "TEMPORARY") + rf"QUEUE{WORD_END}{GAP}(?![:(.=]|\Z)")
_NOT_OUR_SHAPE = _head("[:(.=]")
_STATEMENT = _head(_word("STATEMENT"))
# MariaDB's; Connector/J begins a statement with a query timeout so.
_STATEMENT_FOR_QUEUE = _head(
    _word("STATEMENT") + rf"[A-Z_]++{GAP}={GAP}[0-9A-Z_.]++{GAP}" + _word("FOR")
    + rf"(?:STREAM|ACK|NACK|EXTEND){WORD_END}{GAP}(?![:(.=]|\Z)"
)  # fmt: skip
_TRANSACTION = _head(_word("TRANSACTION"))
# Without SESSION or GLOBAL behind the `@@`: that sets the next transaction alone.
_ITS_VARIABLES = bytes_pattern(rf"@@`?(?:TRANSACTION|TX)_(?:ISOLATION|READ_ONLY)(?!{WORD_BYTE})")


# The rules.


def _always(head: Head) -> _Rule:
    return lambda _text, _end: head


def _if(pattern: re.Pattern[bytes], head: Head, otherwise: _Rule) -> _Rule:
    return lambda text, end: head if pattern.match(text, end) else otherwise(text, end)


def _table(verb: Verb, pattern: re.Pattern[bytes]) -> _Rule:
    any_table = ANY_SCHEMA if verb is Verb.SCHEMA else Head(verb)

    def rule(text: bytes, end: int) -> Head:
        match = pattern.match(text, end)
        return any_table if match is None else Head(verb, _bare_name(match["table"]))

    return rule


def _schema(pattern: re.Pattern[bytes]) -> _Rule:
    table = _table(Verb.SCHEMA, pattern)

    def rule(text: bytes, end: int) -> Head:
        head = table(text, end)
        if head is not ANY_SCHEMA:
            return head
        noun = _SECOND.match(text, end)
        return NEARLY if noun is not None and noun[1].upper() in MISSPELT_NOUN else head

    return rule


def _nearly_shown(text: bytes, end: int) -> Head:
    match = _SECOND.match(text, end)
    if match is None:
        return OTHER
    noun, nouns = match[1].upper(), MISSPELT_SHOWN
    if noun in (b"CREATE", b"FULL"):
        if noun == b"CREATE":
            nouns = MISSPELT_NOUN
        match = _SECOND.match(text, match.end())
        noun = b"" if match is None else match[1].upper()
    return NEARLY if noun in nouns else OTHER


def _insert(text: bytes, end: int) -> Head:
    match = _INSERT.match(text, end)
    if match is None:
        return ANY_WRITE
    ignore, written, values = match.group("ignore", "table", "values")
    table = _bare_name(written)
    return Head(Verb.WRITE, table, inserts=bool(table and values and not ignore and not _updates(text)))


def _set(text: bytes, end: int) -> Head:
    if _STATEMENT.match(text, end):
        return NEARLY if _STATEMENT_FOR_QUEUE.match(text, end) else ANY_WRITE
    variables = b"@@" in text and _ITS_VARIABLES.search(text, end, LEXED_BYTES_MAX)
    return NEXT_TRANSACTION if variables or _TRANSACTION.match(text, end) else OTHER


def _with(text: bytes, end: int) -> Head:
    return OTHER if only_reads(text, end, LEXED_BYTES_MAX) else ANY_WRITE


def _updates(insert: bytes) -> bool:
    tail = insert[-LEXED_BYTES_MAX:]
    # A search that ignores case goes byte by byte; `in` is much faster.
    return b"DUPLICATE" in tail.upper() and _ON_DUPLICATE.search(tail) is not None


def _own(verb: Verb) -> _Rule:
    # `ack: LOOP` is a label, `ack.f()` and `ack(1)` may be calls.
    return _if(_NOT_OUR_SHAPE, OTHER, _always(Head(verb)))


def _bare_name(written: bytes) -> str | None:
    """The name that is written; None if it is not UTF-8, because the client's character set is not
    known here."""
    try:
        return unquote(written.decode()).casefold()
    except UnicodeDecodeError:
        return None


_RULES: Final[Mapping[bytes, _Rule]] = {
    **dict.fromkeys(MISSPELT, _if(_NOT_OUR_SHAPE, OTHER, _always(NEARLY))),
    **{verb.name.encode(): _own(verb) for verb in MESSAGE_VERBS},
    **dict.fromkeys(
        (b"PAUSE", b"RESUME", b"PURGE", b"REDRIVE"),
        _if(_QUEUE, Head(Verb.QUEUE), _if(_WITHOUT_QUEUE, NEARLY, _always(OTHER))),
    ),
    b"SHOW": _if(_SHOW, Head(Verb.QUEUE), _nearly_shown),
    **dict.fromkeys((b"EXPLAIN", b"DESCRIBE", b"DESC"), _if(_EXPLAINED, NEARLY, _always(OTHER))),
    b"KILL": _always(Head(Verb.KILL)),
    b"USE": _always(Head(Verb.USE)),
    b"INSERT": _insert,
    b"REPLACE": _table(Verb.WRITE, _INSERT),
    b"UPDATE": _table(Verb.WRITE, _UPDATE),
    b"DELETE": _table(Verb.WRITE, _DELETE),
    b"LOAD": _table(Verb.WRITE, _LOAD),
    b"CREATE": _if(_DEFINED, Head(Verb.QUEUE), _if(_OTHER_QUEUE, NEARLY, _if(_TEMPORARY, OTHER, _schema(_CREATE)))),
    b"DROP": _if(_DEFINED, Head(Verb.QUEUE), _if(_TEMPORARY, OTHER, _schema(_DROP))),
    b"ALTER": _if(_DEFINED, Head(Verb.QUEUE), _schema(_ALTER)),
    b"TRUNCATE": _table(Verb.SCHEMA, _TRUNCATE),
    b"WITH": _with,
    b"RENAME": _if(_QUEUE, NEARLY, _always(ANY_SCHEMA)),
    b"IMPORT": _always(ANY_SCHEMA),
    b"BEGIN": _if(_head(_word("NOT")), ANY_WRITE, _always(OTHER)),
    b"SET": _set,
    # They run other statements or contain them. MariaDB's ANALYZE runs the statement that it
    # explains.
    **dict.fromkeys(
        (b"CALL", b"EXECUTE", b"DO", b"XA", b"ANALYZE",
         b"IF", b"CASE", b"LOOP", b"WHILE", b"REPEAT", b"FOR"),
        _always(ANY_WRITE),
    ),
}  # fmt: skip
