"""`CREATE QUEUE` and its family, read into values.

What an option takes is not known here: the caller gives the options' names and judges their values,
so that there is one table of them (engine.catalog.directives). What CREATE TABLE knows passes
through as it was written; options of ours are cut out of it, wherever they stand among the table's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from sqlrewrite.condition import GRAMMAR, Condition, read_condition
from sqlrewrite.cursor import PLAIN, Cursor, SqlMode
from sqlrewrite.definitions import Definition, missing, nullable_id, of_dead_letters, read_definitions
from sqlrewrite.errors import wrong_argument
from sqlrewrite.lexicon import bytes_pattern
from sqlrewrite.names import TableName
from sqlrewrite.tokens import Token, Tokens

Options = tuple[tuple[str, str | None], ...]
"""Options by their names, in capitals, with their values as text; None for DEFAULT."""


@dataclass(frozen=True, slots=True)
class CreateQueue:
    """CREATE QUEUE [IF NOT EXISTS] t (…) …: the pieces of a CREATE TABLE, and the options among
    them."""

    table: TableName
    if_not_exists: bool
    options: Options
    comment: str | None
    by_partition: bool
    """Whether RETENTION BY PARTITION was asked for."""
    by_time: bool
    """Whether a PARTITION BY of its own has acknowledged rows in partitions by time."""
    engine: str | None
    """The storage engine that it names."""
    definitions: tuple[Definition, ...]
    body: bytes
    """What stood between the parentheses."""
    table_options: bytes
    """What stood behind them, without what is ours."""
    tokens: Tokens

    def definitions_sql(self) -> bytes:
        """The definitions with the queue's own."""
        body = self.body if self.definitions else b""
        if self.by_partition and (column := nullable_id(self.tokens, self.definitions)):
            at = column.tokens[-1].end - self.definitions[0].start
            body = body[:at] + b" NOT NULL" + body[at:]
        return self._with_own(body, by_time=self.by_partition or self.by_time)

    def dead_letter_sql(self) -> bytes:
        """The definitions of the table where its dead messages go."""
        return self._with_own(b",".join(of_dead_letters(self.tokens, self.definitions)), by_time=self.by_time)

    def _with_own(self, body: bytes, *, by_time: bool) -> bytes:
        columns, keys = missing(self.definitions, by_time=by_time)
        before = "".join(f"{each},\n" for each in columns).encode()
        after = ",\n".join(keys).encode()
        if not body.strip():
            return before + after if after else before.rstrip(b",\n")
        return before + body + (b"\n,\n" + after if after else b"\n")


@dataclass(frozen=True, slots=True)
class AlterQueue:
    """ALTER QUEUE t option = value."""

    table: TableName
    options: Options
    comment: str | None


@dataclass(frozen=True, slots=True)
class DropQueue:
    """DROP QUEUE [IF EXISTS] t."""

    table: TableName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class PauseQueue:
    """PAUSE QUEUE t, RESUME QUEUE t."""

    table: TableName
    paused: bool


@dataclass(frozen=True, slots=True)
class PurgeQueue:
    """PURGE QUEUE t."""

    table: TableName


@dataclass(frozen=True, slots=True)
class RedriveQueue:
    """REDRIVE QUEUE dead [TO t] [WHERE cond]."""

    dead: TableName
    target: TableName | None
    condition: Condition | None
    """Which dead messages; None for all. Its parameters are the statement's."""

    @property
    def param_count(self) -> int:
        """The count of its `?`."""
        return self.condition.param_count if self.condition else 0

    def bind(self, values: Sequence[object]) -> RedriveQueue:
        """The statement with its parameters replaced by values. Raises SqlError (1210)."""
        if len(values) != self.param_count:
            raise wrong_argument(f"this REDRIVE QUEUE has {self.param_count} parameters, and {len(values)} were given")
        return replace(self, condition=self.condition and self.condition.bind(values))


@dataclass(frozen=True, slots=True)
class ShowQueues:
    """SHOW QUEUES [FROM db] [LIKE 'x']."""

    db: str | None
    like: bytes | None
    """The pattern's literal, as written."""


@dataclass(frozen=True, slots=True)
class ShowStreams:
    """SHOW STREAMS."""


@dataclass(frozen=True, slots=True)
class ShowCreateQueue:
    """SHOW CREATE QUEUE t."""

    table: TableName


QueueStatement = (
    CreateQueue
    | AlterQueue
    | DropQueue
    | PauseQueue
    | PurgeQueue
    | RedriveQueue
    | ShowQueues
    | ShowStreams
    | ShowCreateQueue
)


def parse_queue_statement(
    sql: bytes, options: Collection[str], codec: str = "utf-8", mode: SqlMode = PLAIN
) -> QueueStatement:
    """Reads a statement that `classify` found to be about queues.

    `options` are the names that an option can have, in capitals, `codec` is Python's name of the
    client's character set. Raises SqlError (1064).
    """
    return _Reader(sql, options, codec, mode).statement()


# MySQL's and MariaDB's table options: they pass through.
_TABLE_OPTIONS: Final = frozenset(
    {"AUTOEXTEND_SIZE", "AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHARSET", "CHECKSUM",
     "COLLATE", "COMPRESSION", "CONNECTION", "DELAY_KEY_WRITE", "ENCRYPTED",
     "ENCRYPTION", "ENCRYPTION_KEY_ID", "ENGINE", "ENGINE_ATTRIBUTE", "IETF_QUOTES",
     "INSERT_METHOD", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS",
     "PAGE_CHECKSUM", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "PASSWORD", "ROW_FORMAT",
     "SECONDARY_ENGINE", "SECONDARY_ENGINE_ATTRIBUTE", "SEQUENCE", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
     "STATS_SAMPLE_PAGES", "STORAGE", "TABLESPACE", "TRANSACTIONAL", "TYPE",
     "UNION"}
)  # fmt: skip
_SECOND_WORDS: Final[Mapping[str, str]] = {"CHARACTER": "SET", "DATA": "DIRECTORY", "INDEX": "DIRECTORY"}
_BY_TIME: Final = ["PARTITION", "BY", "RANGE", "(", "TIME_ACKED", ")"]
_WHOLE_CLAUSES: Final = ("WITH", "SYSTEM", "VERSIONING"), ("START", "TRANSACTION")

_NUMBER = bytes_pattern(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?![0-9A-Za-z_$.\x80-\xff])")
_VERBS: Final = {"CREATE", "ALTER", "DROP", "PAUSE", "RESUME", "PURGE", "REDRIVE", "SHOW"}

_PARTITIONED_TWICE = "RETENTION BY PARTITION makes partitions of its own: leave out that, or PARTITION BY"
_CREATE_NO_COPY = "a queue is made from definitions of its own: SHOW CREATE QUEUE prints those of another"


class _Reader:
    """Reads one statement from left to right."""

    def __init__(self, sql: bytes, options: Collection[str], codec: str, mode: SqlMode) -> None:
        words = re.findall(r"[A-Za-z]+", sql[:200].decode("latin-1"))
        verb = next((each.upper() for each in words if each.upper() in _VERBS), "QUEUE")
        self._tokens = Tokens(sql, codec, mode, verb if verb == "SHOW" else f"{verb} QUEUE")
        self._all = self._tokens.all
        self._text_end = len(sql)
        self._options = options
        self._next = 0

    def statement(self) -> QueueStatement:
        if self._all and self._tokens.text(self._all[-1]) == ";":
            self._text_end = self._all.pop().start
        verb = self._word()
        self._next += 1
        if verb == "SHOW":
            return self._show()
        self._expect("QUEUE")
        statement = _READ[verb](self) if verb in _READ else self._fail("a statement about queues was expected")
        self._finish("the end of the statement was expected")
        return statement

    # The statements.

    def create(self) -> CreateQueue:
        if_not_exists = self._take("IF", "NOT", "EXISTS")
        table = self._table()
        if self._word() in {"LIKE", "AS", "SELECT"}:
            self._fail(_CREATE_NO_COPY)
        inner, start, end, tail = self._body()
        if inner and self._tokens.word(inner[0]) == "LIKE":
            self._fail(_CREATE_NO_COPY)
        definitions = read_definitions(self._tokens, inner, start, end)
        clauses = _Clauses()
        self._table_clauses(clauses)
        return CreateQueue(
            table,
            if_not_exists,
            tuple(clauses.options.items()),
            clauses.comment,
            clauses.by_partition,
            clauses.by_time,
            clauses.engine,
            definitions,
            self._tokens.sql[start:end],
            self._remaining(tail, clauses.spans),
            self._tokens,
        )

    def alter(self) -> AlterQueue:
        table = self._table()
        clauses = _Clauses()
        while self._more():
            word = self._word()
            if word in self._options or word == "COMMENT":
                self._own_clause(clauses)
            else:
                self._unknown("; everything else about the table is changed by ALTER TABLE")
            self._take(",")
        if not clauses.spans:
            self._fail(f"an option was expected: {self._known()}")
        return AlterQueue(table, tuple(clauses.options.items()), clauses.comment)

    def drop(self) -> DropQueue:
        if_exists = self._take("IF", "EXISTS")
        return DropQueue(self._table(), if_exists)

    def pause(self) -> PauseQueue:
        return PauseQueue(self._table(), paused=True)

    def resume(self) -> PauseQueue:
        return PauseQueue(self._table(), paused=False)

    def purge(self) -> PurgeQueue:
        return PurgeQueue(self._table())

    def redrive(self) -> RedriveQueue:
        dead = self._table()
        target = self._table() if self._take("TO") else None
        if not self._take("WHERE"):
            return RedriveQueue(dead, target, None)
        return RedriveQueue(dead, target, self._condition(dead))

    def _condition(self, table: TableName) -> Condition:
        """All that is left, read as STREAM reads its condition."""
        tokens = self._tokens
        cursor = Cursor(tokens.decode(0, len(tokens.sql)), tokens.mode, tokens.statement)
        begin = len(tokens.decode(0, self._position))
        while cursor.position < begin:
            cursor.step()
        condition = read_condition(cursor, table)
        if cursor.take(";") and cursor.text:
            cursor.fail("the statement has to stand alone")
        if cursor.text:
            cursor.fail(f"the condition is all that follows WHERE; {GRAMMAR}")
        self._next = len(self._all)
        return condition

    def _show(self) -> QueueStatement:
        if self._take("CREATE"):
            self._expect("QUEUE")
            statement: QueueStatement = ShowCreateQueue(self._table())
        elif self._take("STREAMS"):
            statement = ShowStreams()
        else:
            self._expect("QUEUES")
            statement = self._show_queues()
        self._finish("the end of the statement was expected")
        return statement

    def _show_queues(self) -> ShowQueues:
        db = like = None
        while self._more():
            if db is None and (self._take("FROM") or self._take("IN")):
                db = self._name("a database was expected")
            elif like is None and self._take("LIKE"):
                if not self._more() or self._all[self._next].kind != "string":
                    self._fail("a pattern in quotes was expected")
                like = self._tokens.sql[self._all[self._next].start : self._all[self._next].end]
                self._next += 1
            else:
                self._fail("FROM db, LIKE 'pattern' or the end was expected")
        return ShowQueues(db, like)

    # The parts of CREATE QUEUE.

    def _body(self) -> tuple[Sequence[Token], int, int, int]:
        """The tokens between the parentheses, where that text begins and ends, and where what
        follows begins."""
        if not self._at("("):
            return (), self._position, self._position, self._position
        opened = self._next
        inner = self._tokens.inside(self._all, opened)
        closed = self._all[opened + 1 + len(inner)]
        self._next = opened + len(inner) + 2
        return inner, self._all[opened].end, closed.start, closed.end

    def _table_clauses(self, clauses: _Clauses) -> None:
        """Everything behind the parentheses: what is ours is collected, what is the table's stepped
        over."""
        while self._more():
            word = self._word()
            if self._take(","):
                continue
            if word in self._options or word in {"COMMENT", "RETENTION"}:
                self._own_clause(clauses)
            elif word == "PARTITION":
                self._partition_clause(clauses)
            elif word in {"SELECT", "AS", "IGNORE", "REPLACE", "LIKE"} or self._at("("):
                self._fail(_CREATE_NO_COPY)
            elif not any(self._take(*clause) for clause in _WHOLE_CLAUSES):
                self._table_option(clauses)

    def _own_clause(self, clauses: _Clauses) -> None:
        start = self._position
        word = self._word()
        again = {"COMMENT": clauses.comment is not None, "RETENTION": clauses.by_partition}
        if word in clauses.options or again.get(word):
            self._fail(f"{word} is given twice")
        if word == "RETENTION" and clauses.partitioned:
            self._fail(_PARTITIONED_TWICE)
        self._next += 1
        if word == "RETENTION":
            self._expect("BY")
            self._expect("PARTITION")
            clauses.by_partition = True
        else:
            self._take("=")
            if word == "COMMENT":
                clauses.comment = self._string()
            else:
                clauses.options[word] = self._value(word)
        clauses.spans.append((start, self._all[self._next - 1].end))

    def _partition_clause(self, clauses: _Clauses) -> None:
        """PARTITION BY …, up to the next option of ours."""
        if clauses.by_partition:
            self._fail(_PARTITIONED_TWICE)
        clauses.partitioned = True
        words = [self._tokens.name(each).upper() or self._tokens.text(each) for each in self._all[self._next :][:7]]
        clauses.by_time = [each for each in words if each != "COLUMNS"][:6] == _BY_TIME
        self._next += 1
        while self._more():
            top = self._all[self._next].depth == 0
            if top and self._word() in {*self._options, "COMMENT", "RETENTION"}:
                return
            self._next += 1

    def _table_option(self, clauses: _Clauses) -> None:
        """One of the table's own options, with its value."""
        self._take("DEFAULT")
        word = self._word()
        if word in _SECOND_WORDS:
            self._next += 1
            self._expect(_SECOND_WORDS[word])
        elif word in _TABLE_OPTIONS:
            self._next += 1
        else:
            self._unknown("")
        self._take("=")
        if not self._more():
            self._fail(f"a value for {word} was expected")
        if word == "ENGINE":
            clauses.engine = self._option_value()
        if self._at("("):
            self._next += len(self._tokens.inside(self._all, self._next)) + 1
        elif number := _NUMBER.match(self._tokens.sql, self._position):
            self._skip_to(number.end())
            return
        self._next += 1

    def _option_value(self) -> str:
        token = self._all[self._next]
        return self._tokens.string(token) if token.kind == "string" else self._tokens.name(token)

    def _remaining(self, start: int, spans: Sequence[tuple[int, int]]) -> bytes:
        """The text from there on without those spans."""
        kept = b""
        for span_start, span_end in spans:
            kept += self._tokens.sql[start:span_start].rstrip(b" ,")
            start = span_end
        return (kept + self._tokens.sql[start : self._text_end]).strip(b" ,")

    # Values.

    def _value(self, option: str) -> str | None:
        """An option's value as text: a number, a string, a word, a name with or without database,
        or names."""
        if not self._more():
            self._fail(f"a value for {option} was expected")
        if number := _NUMBER.match(self._tokens.sql, self._position):
            self._skip_to(number.end())
            return number[0].decode()
        token = self._all[self._next]
        if self._at("("):
            inner = self._tokens.inside(self._all, self._next)
            self._next += len(inner) + 2
            return "|".join(self._listed(part) for part, _ in self._tokens.split(inner))
        self._next += 1
        if token.kind == "string":
            return self._tokens.string(token)
        if token.kind not in {"word", "name"}:
            self._next -= 1
            self._fail(f"a value for {option} was expected: a number, a name or a string")
        if self._tokens.word(token) == "DEFAULT":
            return None
        written = self._tokens.name(token)
        return f"{written}.{self._name('a name was expected')}" if self._take(".") else written

    def _listed(self, part: Sequence[Token]) -> str:
        """One of several names, with its database if that is written."""
        if len(part) == 3 and self._tokens.text(part[1]) == ".":
            return f"{self._tokens.name(part[0])}.{self._tokens.name(part[2])}"
        return self._tokens.name(part[0])

    def _string(self) -> str:
        if not self._more() or self._all[self._next].kind != "string":
            self._fail("a text in quotes was expected")
        self._next += 1
        return self._tokens.string(self._all[self._next - 1])

    def _table(self) -> TableName:
        expected = "the name of a queue was expected"
        first = self._name(expected)
        return TableName(self._name(expected), first) if self._take(".") else TableName(first)

    def _name(self, expected: str) -> str:
        name = self._tokens.name(self._all[self._next]) if self._more() else ""
        if not name:
            self._fail(expected)
        self._next += 1
        return name

    # Steps.

    def _more(self) -> bool:
        return self._next < len(self._all)

    def _word(self) -> str:
        return self._tokens.word(self._all[self._next]) if self._more() else ""

    def _at(self, mark: str) -> bool:
        if not self._more() or self._all[self._next].kind != "mark":
            return False
        return self._tokens.text(self._all[self._next]) == mark

    def _take(self, *words: str) -> bool:
        """Steps over these words, or this mark, if they stand here."""
        ahead = self._all[self._next : self._next + len(words)]
        found = [self._tokens.word(each) or self._tokens.text(each) for each in ahead]
        taken = found == list(words) and all(each.kind in {"word", "mark"} for each in ahead)
        self._next += len(words) if taken else 0
        return taken

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._fail(f"{word} was expected")

    def _skip_to(self, position: int) -> None:
        while self._more() and self._all[self._next].start < position:
            self._next += 1

    def _finish(self, expected: str) -> None:
        if self._at(";"):
            self._fail("the statement has to stand alone")
        if self._more():
            self._fail(expected)

    @property
    def _position(self) -> int:
        return self._all[self._next].start if self._more() else self._text_end

    def _known(self) -> str:
        return ", ".join(sorted(self._options))

    def _unknown(self, more: str) -> NoReturn:
        written = self._tokens.text(self._all[self._next])
        self._fail(f"there is no option {written}; a queue has {self._known()}{more}")

    def _fail(self, expected: str) -> NoReturn:
        self._tokens.fail(self._position, expected)


class _Clauses:
    """The clauses of ours that were found among a table's."""

    def __init__(self) -> None:
        self.options: dict[str, str | None] = {}
        self.comment: str | None = None
        self.by_partition = False
        self.partitioned = False
        self.by_time = False
        self.engine: str | None = None
        self.spans: list[tuple[int, int]] = []


_READ: Final[Mapping[str, Callable[[_Reader], QueueStatement]]] = {
    "CREATE": _Reader.create,
    "ALTER": _Reader.alter,
    "DROP": _Reader.drop,
    "PAUSE": _Reader.pause,
    "RESUME": _Reader.resume,
    "PURGE": _Reader.purge,
    "REDRIVE": _Reader.redrive,
}
