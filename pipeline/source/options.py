"""The options of the source and the sink, checked together: one error reports every mistake.

Spark passes options as text, with names in lower case. An unknown name is an error too, because a
misspelt limit would otherwise not apply. Only the options that Spark's own calls add are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..common.ledger import BATCH_CHARACTERS
from ..common.statements import Messages
from ..common.table import Table, describe, split_name
from ..endpoint import Endpoint
from ..errors import PipelineError, ProblemsError

SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname"})

CONNECTIONS: Final = 4
"""STREAMs that claim at the same time: a claim is a commit, and commits of several share one flush
to disk."""

PARTITIONS: Final = 8
"""Tasks of a batch, each with a connection of its own while it reads."""

BATCH_MAX: Final = 100_000
"""Messages of a micro-batch: enough that Spark's work for each batch (a third of a second) matters
little. Their claims go into the checkpoint, at most (no two ids adjacent) some 300 kB a batch, of
which Spark keeps a hundred."""

BATCH_LIMIT: Final = 1_000_000
"""The limit of that option: the driver has the ids in memory, and the proxy has the messages in
flight."""

HOLD_S: Final = 60
"""By how much a slow batch's messages are extended, every third of it. If the driver vanishes
without closing its connections, as when its machine is switched off, they are due again after so
long."""

CONNECTIONS_LIMIT: Final = 1_000
"""More is a typing error: servers rarely allow as many."""


@dataclass(frozen=True, slots=True)
class Common:
    """The options that source and sink share: where the queue is."""

    endpoint: Endpoint
    database: str
    table: str

    def describe(self) -> Table:
        """The table, as it is now. Raises PipelineError."""
        return self.endpoint.first(lambda connection: describe(connection, self.database, self.table))


@dataclass(frozen=True, slots=True)
class SourceOptions(Common):
    """The options of the source."""

    where: str | None = None
    columns: tuple[str, ...] | None = None
    partitions: int = PARTITIONS
    connections: int = CONNECTIONS
    batch_max: int = BATCH_MAX
    hold_s: int = HOLD_S
    messages: Messages = Messages.READY
    unsigned_as_long: bool = False
    """Whether BIGINT UNSIGNED is read as a LONG, and a value that is none ends the job."""


IN_CATALOG: Final = (
    "a queue is no table of Spark's catalog, which CREATE TABLE, saveAsTable, toTable and insertInto are about: write"
    " .options(url=…).option('table', 'shop.orders') and save(), start() or load()"
)

_COMMON: Final = ("url", "table", "password", "passwordFile")
_HINTS: Final = {
    "dbtable": "use table",
    "query": "a queue is no query: `where` and `columns` choose messages",
    "user": "it belongs into the URL: mysql://USER@HOST:PORT/DATABASE",
    "driver": "no JDBC driver is used here",
    **dict.fromkeys(("maxoffsetspertrigger", "maxrowspertrigger", "maxfilespertrigger"), "use maxMessagesPerBatch"),
    **dict.fromkeys(
        ("maxmessagespersecond", "rowspersecond", "maxratepersecond"),
        "use maxMessagesPerBatch with a trigger interval, or the queue's MAX_RATE",
    ),
    **dict.fromkeys(("minpartitions", "partitioncolumn", "lowerbound", "upperbound"), "use numPartitions"),
    "startingoffsets": "a queue delivers what is not acknowledged: there is no offset to begin at",
}
"""Options of other sources, with what to use instead."""

_READ: Final = (*_COMMON, "where", "columns", "numPartitions", "unsignedAsLong")
_STREAM: Final = (*_READ, "connections", "maxMessagesPerBatch", "holdSeconds")


def stream_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.readStream`. Raises ProblemsError."""
    return _source(_Reader(given, _STREAM))


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.read`. Raises ProblemsError."""
    return _source(_Reader(given, (*_READ, "messages")))


def schema_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of either, where Spark does not report which. Raises ProblemsError."""
    return _source(_Reader(given, (*_STREAM, "messages")))


def sink_options(given: Mapping[str, str]) -> Common:
    """The options of `df.writeStream`. Raises ProblemsError."""
    return _sink(_Reader(given, _COMMON))


def write_options(given: Mapping[str, str]) -> tuple[Common, str | None]:
    """The options of `df.write`, and the name of the batch. Raises ProblemsError."""
    reader = _Reader(given, (*_COMMON, "batch"))
    name = reader.text("batch")
    if name is not None and len(name) > BATCH_CHARACTERS:
        reader.complain("batch", f"a name has at most {BATCH_CHARACTERS} characters")
    return _sink(reader), name


def _sink(reader: _Reader) -> Common:
    endpoint, database, table = _place(reader)
    reader.finish()
    assert endpoint is not None
    return Common(endpoint, database, table)


def _source(reader: _Reader) -> SourceOptions:
    endpoint, database, table = _place(reader)
    columns = reader.text("columns")
    options = {
        "where": reader.text("where"),
        "columns": None if columns is None else tuple(name.strip() for name in columns.split(",")),
        "partitions": reader.number("numPartitions", PARTITIONS, 1, CONNECTIONS_LIMIT),
        "connections": reader.number("connections", CONNECTIONS, 1, CONNECTIONS_LIMIT),
        "batch_max": reader.number("maxMessagesPerBatch", BATCH_MAX, 1, BATCH_LIMIT),
        "hold_s": reader.number("holdSeconds", HOLD_S, 3, 86_400),
        "messages": reader.choice("messages", Messages.READY),
        "unsigned_as_long": reader.flag("unsignedAsLong"),
    }
    reader.finish()
    assert endpoint is not None
    return SourceOptions(endpoint, database, table, **options)  # type: ignore[arg-type]  # as read above


def _place(reader: _Reader) -> tuple[Endpoint | None, str, str]:
    url, table = reader.required("url"), reader.required("table", f" ({IN_CATALOG})")
    endpoint, database, name = None, "", ""
    try:
        if url:
            password, file = reader.text("password"), reader.text("passwordFile")
            if password is not None and file is not None:
                reader.complain("password", "give either it or passwordFile")
            endpoint = Endpoint.from_url(url, password=password, password_file=file)
    except PipelineError as error:
        reader.complain("url", str(error))
    try:
        if table:
            database, name = split_name(table, "" if endpoint is None else endpoint.database)
    except PipelineError as error:
        if endpoint is not None or not url:  # Otherwise the URL's mistake may be the only one.
            reader.complain("table", str(error))
    return endpoint, database, name


class _Reader:
    """Reads options from text, and gathers what is wrong."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        lower = {name.lower(): value for name, value in given.items()}
        if "provider" in lower:  # Of a CREATE TABLE. Spark does not pass the table's options on to what reads it.
            raise PipelineError(IN_CATALOG)
        self._given = lower
        self._problems: list[str] = []
        unknown = self._given.keys() - {name.lower() for name in known} - SPARKS_OWN
        for name in sorted(unknown):
            self.complain(name, _HINTS.get(name) or f"there is no such option here; there are {', '.join(known)}")

    def complain(self, name: str, text: str) -> None:
        """Note a mistake."""
        self._problems.append(f"{name}: {text}")

    def text(self, name: str) -> str | None:
        """An optional text; None if it is missing or blank."""
        value = self._given.get(name.lower())
        return value if value is not None and value.strip() else None

    def required(self, name: str, hint: str = "") -> str:
        """A required text."""
        value = self.text(name)
        if value is None:
            self.complain(name, f"is missing{hint}")
        return value or ""

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number within bounds."""
        text = self.text(name)
        if text is None:
            return default
        try:
            if least <= int(text) <= most:
                return int(text)
        except ValueError:
            pass
        self.complain(name, f"must be a whole number from {least} to {most:,}, and is {text!r}")
        return default

    def choice(self, name: str, default: Messages) -> Messages:
        """One of a few words."""
        text = self.text(name)
        try:
            return default if text is None else Messages(text.lower())
        except ValueError:
            self.complain(name, f"must be one of {', '.join(choice.value for choice in Messages)}, and is {text!r}")
            return default

    def flag(self, name: str) -> bool:
        """Whether a switch is on; it is off by default."""
        text = (self.text(name) or "false").lower()
        if text not in {"true", "false"}:
            self.complain(name, f"must be true or false, and is {text!r}")
        return text == "true"

    def finish(self) -> None:
        """Raise what was gathered."""
        if self._problems:
            raise ProblemsError("these options of ackstream are wrong", self._problems)
