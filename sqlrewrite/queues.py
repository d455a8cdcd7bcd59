"""Parses the statements of `sqlrewrite.queue_statements`: CREATE QUEUE and its family.

The caller passes the names of the options and checks their values, so there is one table of options
(engine.catalog.directives). Everything that belongs to CREATE TABLE passes to the server as
written. A queue's options may stand anywhere among the table's, and are cut out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NoReturn

from sqlrewrite import literals
from sqlrewrite.condition import GRAMMAR, Condition, read_condition
from sqlrewrite.definitions import read_definitions
from sqlrewrite.errors import wrong_argument
from sqlrewrite.lexicon import PLAIN, SqlMode
from sqlrewrite.names import TableName, spelled
from sqlrewrite.queue_statements import (
    BATCHES_MAX,
    CAPACITY_MAX,
    DELIVERIES_MAX,
    GROUPS_MAX,
    SEMAPHORE_NAME_MAX,
    AlterQueue,
    AlterSemaphore,
    CreateQueue,
    CreateSemaphore,
    DropQueue,
    DropSemaphore,
    PauseQueue,
    PurgeQueue,
    QueueStatement,
    RedriveQueue,
    ShowBatches,
    ShowCreateQueue,
    ShowDeliveries,
    ShowGroups,
    ShowProxies,
    ShowQueues,
    ShowSemaphores,
    ShowStreams,
)
from sqlrewrite.tokens import Token, TokenStream


def parse_queue_statement(
    sql: bytes, options: Collection[str], codec: str = "utf-8", mode: SqlMode = PLAIN
) -> QueueStatement:
    """Parse a statement whose verb is QUEUE.

    `options` are the possible names of options, in capitals; `codec` is Python's name of the
    client's character set. Raises SqlError (1064 with the byte offset).
    """
    return _QueueParser(sql, options, codec, mode).statement()


# Table options of MySQL and MariaDB: they pass through.
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

_VERBS: Final = {"CREATE", "ALTER", "DROP", "PAUSE", "RESUME", "PURGE", "REDRIVE", "SHOW"}

LIKENESS_LEAST: Final = 0.75
"""Of an unknown option to the one that was probably meant (difflib's measure)."""

_NAMES_OF_TABLES: Final = frozenset({"DEAD_LETTER", "DEAD_LETTER_OF"})
"""The options whose names are of tables: with or without a database, and in a comment in backquotes
if need be. Those of other options are of columns."""

BATCHES: Final = "BATCHES"
BATCH_OPTIONS: Final[Mapping[str, str]] = {"BATCH_BY": "batch", "AFTER_BATCH": "after_batch"}
"""What this word stands for."""

_PARTITIONED_TWICE = "RETENTION BY PARTITION makes partitions of its own: leave out that, or PARTITION BY"
_CREATE_NO_COPY = "a queue is made from definitions of its own: SHOW CREATE QUEUE prints those of another"


class _QueueParser:
    """Reads one statement from left to right."""

    def __init__(self, sql: bytes, options: Collection[str], codec: str, mode: SqlMode) -> None:
        words = re.findall(r"[A-Za-z]+", sql[:200].decode("latin-1"))
        verb = next((word.upper() for word in words if word.upper() in _VERBS), "QUEUE")
        name = verb if verb == "SHOW" else f"{verb} QUEUE"
        # REDRIVE has a condition, of which nothing passes through.
        self._tokens = TokenStream(sql, codec, mode, name, passes_through=verb != "REDRIVE")
        self._tokens.check_parentheses()
        self._tokens.drop_semicolon()
        self._options = options

    def statement(self) -> QueueStatement:
        verb = self._tokens.step().upper()
        if verb == "SHOW":
            return self._show()
        if verb in _READ_SEMAPHORE and self._tokens.take("SEMAPHORE"):
            statement = _READ_SEMAPHORE[verb](self)
        else:
            self._tokens.expect("QUEUE")
            if verb not in _READ:
                self._tokens.fail("a statement about queues was expected")
            statement = _READ[verb](self)
        self._finish("the end of the statement was expected")
        return statement

    # The statements.

    def create(self) -> CreateQueue:
        if_not_exists = self._tokens.take_all("IF", "NOT", "EXISTS")
        table = self._table()
        if self._tokens.word in {"LIKE", "AS", "SELECT"}:
            self._tokens.fail(_CREATE_NO_COPY)
        inner, start, end, tail = self._body()
        if inner and self._tokens.word_of(inner[0]) == "LIKE":
            self._tokens.fail(_CREATE_NO_COPY)
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
        while self._tokens.more:
            word = self._tokens.word
            if word in self._options or word in {"COMMENT", BATCHES}:
                self._own_clause(clauses)
            else:
                self._unknown("; everything else about the table is changed by ALTER TABLE")
            self._tokens.take(",")
        if not clauses.spans:
            self._tokens.fail(f"an option was expected: {self._known()}")
        return AlterQueue(table, tuple(clauses.options.items()), clauses.comment)

    def drop(self) -> DropQueue:
        if_exists = self._tokens.take_all("IF", "EXISTS")
        return DropQueue(self._table(), if_exists)

    def pause(self) -> PauseQueue:
        return PauseQueue(self._table(), paused=True)

    def resume(self) -> PauseQueue:
        return PauseQueue(self._table(), paused=False)

    def purge(self) -> PurgeQueue:
        return PurgeQueue(self._table())

    def redrive(self) -> RedriveQueue:
        dead = self._table()
        target = self._table() if self._tokens.take("TO") else None
        if not self._tokens.take("WHERE"):
            return RedriveQueue(dead, target, None)
        return RedriveQueue(dead, target, self._condition(dead))

    def create_semaphore(self) -> CreateSemaphore:
        if_not_exists = self._tokens.take_all("IF", "NOT", "EXISTS")
        semaphore = self._semaphore()
        return CreateSemaphore(semaphore, self._capacity(), if_not_exists)

    def alter_semaphore(self) -> AlterSemaphore:
        semaphore = self._semaphore()
        return AlterSemaphore(semaphore, self._capacity())

    def drop_semaphore(self) -> DropSemaphore:
        if_exists = self._tokens.take_all("IF", "EXISTS")
        return DropSemaphore(self._semaphore(), if_exists)

    def _semaphore(self) -> TableName:
        """Read the name of a semaphore, as a column of needs can contain it."""
        name = self._table("the name of a semaphore was expected")
        if "," in name.name or name.name.strip(" ") != name.name or len(name.name) > SEMAPHORE_NAME_MAX:
            raise wrong_argument(
                f"{name.name!r} cannot be the name of a semaphore: up to {SEMAPHORE_NAME_MAX} characters, no comma, and"
                " no space at an end"
            )
        return name

    def _capacity(self) -> int:
        self._tokens.expect("CAPACITY")
        self._tokens.take("=")
        return self._limit(CAPACITY_MAX)

    def _condition(self, table: TableName) -> Condition:
        """Read the rest as a condition like that of STREAM."""
        condition = read_condition(self._tokens, table)
        self._finish(f"the condition is all that follows WHERE; {GRAMMAR}")
        return condition

    def _show(self) -> QueueStatement:
        if self._tokens.take("CREATE"):
            self._tokens.expect("QUEUE")
            statement: QueueStatement = ShowCreateQueue(self._table())
        elif self._tokens.take("STREAMS"):
            statement = ShowStreams()
        elif self._tokens.take("PROXIES"):
            statement = ShowProxies()
        elif self._tokens.take("SEMAPHORES"):
            statement = ShowSemaphores(*self._from_and_like())
        elif self._tokens.take("GROUPS"):
            statement = self._show_groups()
        elif self._tokens.take("BATCHES"):
            self._tokens.expect("FROM")
            table = self._table()
            statement = ShowBatches(table, self._limit(BATCHES_MAX) if self._tokens.take("LIMIT") else None)
        elif self._tokens.take("DELIVERIES"):
            statement = self._show_deliveries()
        else:
            full = bool(self._tokens.take("FULL"))
            self._tokens.expect("QUEUES")
            statement = self._show_queues(full=full)
        self._finish("the end of the statement was expected")
        return statement

    def _show_queues(self, *, full: bool) -> ShowQueues:
        db, like = self._from_and_like("FROM db, LIKE 'pattern', WITH PROBLEMS or the end", until="WITH")
        with_problems = bool(self._tokens.take("WITH"))
        if with_problems:
            self._tokens.expect("PROBLEMS")
        return ShowQueues(db, like, full, with_problems)

    def _from_and_like(
        self, expected: str = "FROM db, LIKE 'pattern' or the end", until: str = ""
    ) -> tuple[str | None, bytes | None]:
        """Read FROM db and LIKE 'pattern', in any order, up to the end or the word `until`. `expected`: what an
        error names."""
        db = like = None
        tokens = self._tokens
        while tokens.more and tokens.word != until:
            if db is None and tokens.take("FROM", "IN"):
                db = self._name("a database was expected")
            elif like is None and tokens.take("LIKE"):
                if not tokens.at_string:
                    tokens.fail("a pattern in quotes was expected")
                literal = tokens.token()
                like = tokens.sql[literal.start : literal.end]
            else:
                tokens.fail(f"{expected} was expected")
        return db, like

    def _show_groups(self) -> ShowGroups:
        tokens = self._tokens
        if not tokens.take("FROM", "IN"):
            tokens.fail("FROM was expected")
        table, like = self._table(), None
        if tokens.take("LIKE"):
            if not tokens.at_string:
                tokens.fail("a pattern in quotes was expected")
            literal = tokens.token()
            like = tokens.sql[literal.start : literal.end]
        return ShowGroups(table, like, self._limit(GROUPS_MAX) if tokens.take("LIMIT") else None)

    def _limit(self, most: int) -> int:
        """Read the number behind LIMIT."""
        numeral = self._tokens.numeral()
        if not (numeral.isdecimal() and 1 <= int(numeral) <= most):
            self._tokens.fail(f"a whole number from 1 to {most} was expected")
        self._tokens.step_numeral()
        return int(numeral)

    def _show_deliveries(self) -> ShowDeliveries:
        table = self._table() if self._tokens.take("FROM", "IN") else None
        return ShowDeliveries(table, self._limit(DELIVERIES_MAX) if self._tokens.take("LIMIT") else None)

    # The parts of CREATE QUEUE.

    def _body(self) -> tuple[Sequence[Token], int, int, int]:
        """Read the parentheses. Returns the tokens between them, where that text begins and ends,
        and where the text behind them begins."""
        tokens = self._tokens
        if tokens.text != "(":
            return (), tokens.position, tokens.position, tokens.position
        opened, inner, closed = tokens.parentheses()
        return inner, opened.end, closed.start, closed.end

    def _table_clauses(self, clauses: _Clauses) -> None:
        """Read everything behind the parentheses, and collect the queue's options."""
        while self._tokens.more:
            word = self._tokens.word
            if self._tokens.take(","):
                continue
            if word in self._options or word in {"COMMENT", "RETENTION", BATCHES}:
                self._own_clause(clauses)
            elif word == "PARTITION":
                self._partition_clause(clauses)
            elif word in {"SELECT", "AS", "IGNORE", "REPLACE", "LIKE", "("}:
                self._tokens.fail(_CREATE_NO_COPY)
            elif not any(self._tokens.take_all(*clause) for clause in _WHOLE_CLAUSES):
                self._table_option(clauses)

    def _own_clause(self, clauses: _Clauses) -> None:
        start = self._tokens.position
        word = self._tokens.word
        again = {"COMMENT": clauses.comment is not None, "RETENTION": clauses.by_partition}
        given = BATCH_OPTIONS if word == BATCHES else {word: None}
        if given.keys() & clauses.options.keys() or again.get(word):
            self._tokens.fail(f"{word} is given twice")
        if word == "RETENTION" and clauses.partitioned:
            self._tokens.fail(_PARTITIONED_TWICE)
        self._tokens.step()
        if word == "RETENTION":
            self._tokens.expect("BY")
            self._tokens.expect("PARTITION")
            clauses.by_partition = True
        elif word == BATCHES:
            clauses.options.update(BATCH_OPTIONS)
        else:
            self._tokens.take("=")
            if word == "COMMENT":
                clauses.comment = self._string()
            else:
                clauses.options[word] = self._value(word)
        clauses.spans.append((start, self._tokens.last_end))

    def _partition_clause(self, clauses: _Clauses) -> None:
        """Read PARTITION BY … up to the queue's next option."""
        if clauses.by_partition:
            self._tokens.fail(_PARTITIONED_TWICE)
        clauses.partitioned = True
        tokens = self._tokens
        words = [tokens.name_of(token).upper() or tokens.text_of(token) for token in tokens.following(7)]
        clauses.by_time = [word for word in words if word != "COLUMNS"][:6] == _BY_TIME
        tokens.step()
        ends = {*self._options, "COMMENT", "RETENTION", BATCHES}
        while tokens.more and not (tokens.following(1)[0].depth == 0 and tokens.word in ends):
            tokens.step()

    def _table_option(self, clauses: _Clauses) -> None:
        """Read one of the table's options with its value."""
        self._tokens.take("DEFAULT")
        word = self._tokens.word
        if word in _SECOND_WORDS:
            self._tokens.step()
            self._tokens.expect(_SECOND_WORDS[word])
        elif word in _TABLE_OPTIONS:
            self._tokens.step()
        else:
            self._unknown("")
        self._tokens.take("=")
        if not self._tokens.more:
            self._tokens.fail(f"a value for {word} was expected")
        tokens = self._tokens
        if tokens.text == "(":
            tokens.parentheses()
        elif self._number() is None:
            value = tokens.token()
            if word == "ENGINE":
                clauses.engine = tokens.string_of(value) if value.kind == "string" else tokens.name_of(value)

    def _remaining(self, start: int, spans: Sequence[tuple[int, int]]) -> bytes:
        """The text from `start` on, without those spans."""
        kept = b""
        for span_start, span_end in spans:
            kept += self._tokens.sql[start:span_start].rstrip(b" ,")
            start = span_end
        return (kept + self._tokens.sql[start : self._tokens.position]).strip(b" ,")

    # Values.

    def _value(self, option: str) -> str | None:
        """Read an option's value, as text: a number, a string, a word, a name with or without
        database, or names in parentheses."""
        tokens = self._tokens
        if not tokens.more:
            tokens.fail(f"a value for {option} was expected")
        if (number := self._number()) is not None:
            return number
        if tokens.take("("):
            names = [self._named(option)]
            while tokens.take(","):
                names.append(self._named(option))
            if not tokens.take(")"):
                tokens.fail("a comma or a closing parenthesis was expected")
            return "|".join(names)
        if tokens.at_string:
            return tokens.string_of(tokens.token())
        if tokens.take("DEFAULT"):
            return None
        return self._named(option)

    def _number(self) -> str | None:
        """Read a number, if one stands here. Returns it as text, with its sign."""
        tokens = self._tokens
        sign = tokens.text if tokens.text in {"+", "-"} else ""
        numeral = tokens.numeral(behind=len(sign))
        if not literals.NUMBER.fullmatch(numeral):
            return None
        tokens.step(len(sign))
        tokens.step_numeral()
        return sign + numeral

    def _named(self, option: str) -> str:
        """Read a name, with its database if it has one. Returns it as a directive spells it."""
        tokens = self._tokens
        begin = tokens.position
        path = [self._name(f"a value for {option} was expected: a number, a name or a string")]
        if tokens.take("."):
            path.append(self._name("a name was expected"))
        if option in _NAMES_OF_TABLES:
            return ".".join(map(spelled, path))
        name = ".".join(path)
        if "|" in name:
            tokens.fail_at(begin, f"{option} takes no name with |, which divides the names in a table's comment")
        return name

    def _string(self) -> str:
        if not self._tokens.at_string:
            self._tokens.fail("a text in quotes was expected")
        return self._tokens.string_of(self._tokens.token())

    def _table(self, expected: str = "the name of a queue was expected") -> TableName:
        first = self._name(expected)
        return TableName(self._name(expected), first) if self._tokens.take(".") else TableName(first)

    def _name(self, expected: str) -> str:
        name = self._tokens.name()
        if not name:
            self._tokens.fail(expected)
        return name

    def _finish(self, expected: str) -> None:
        if self._tokens.text == ";":
            self._tokens.fail("the statement has to stand alone")
        if self._tokens.more:
            self._tokens.fail(expected)

    def _known(self) -> str:
        return ", ".join(sorted(self._options))

    def _unknown(self, more: str) -> NoReturn:
        if not self._tokens.more:
            self._tokens.fail(f"an option was expected: {self._known()}")
        near = difflib.get_close_matches(self._tokens.text.upper(), sorted(self._options), n=1, cutoff=LIKENESS_LEAST)
        meant = f", was {near[0]} meant?" if near else ";"
        self._tokens.fail(f"there is no option {self._tokens.text}{meant} a queue has {self._known()}{more}")


class _Clauses:
    """The queue's options that were found among a table's."""

    def __init__(self) -> None:
        self.options: dict[str, str | None] = {}
        self.comment: str | None = None
        self.by_partition = False
        self.partitioned = False
        self.by_time = False
        self.engine: str | None = None
        self.spans: list[tuple[int, int]] = []


_READ_SEMAPHORE: Final[Mapping[str, Callable[[_QueueParser], QueueStatement]]] = {
    "CREATE": _QueueParser.create_semaphore,
    "ALTER": _QueueParser.alter_semaphore,
    "DROP": _QueueParser.drop_semaphore,
}

_READ: Final[Mapping[str, Callable[[_QueueParser], QueueStatement]]] = {
    "CREATE": _QueueParser.create,
    "ALTER": _QueueParser.alter,
    "DROP": _QueueParser.drop,
    "PAUSE": _QueueParser.pause,
    "RESUME": _QueueParser.resume,
    "PURGE": _QueueParser.purge,
    "REDRIVE": _QueueParser.redrive,
}
