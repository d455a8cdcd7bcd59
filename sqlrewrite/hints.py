"""What to write instead of a statement that is nearly a queue statement.

Pure: text in, a hint out. `classify` finds such statements (Verb.NEARLY, and
`before_queue_statement`); the server's own error stays, and the hint follows it.
"""

from __future__ import annotations

from typing import Final

from sqlrewrite.classify import QUEUE_STATEMENT_VERBS, Verb, classify, statement_at
from sqlrewrite.errors import PARSE_ERROR
from sqlrewrite.lexicon import GAP, NAME, WORD_END, bytes_pattern
from sqlrewrite.misspelt import MISSPELT, MISSPELT_NOUN, MISSPELT_SHOWN
from sqlrewrite.server_errors import quoted_place

_WORDS = bytes_pattern(rf"{GAP}(?P<verb>[A-Z]{{2,8}}+){WORD_END}{GAP}(?P<next>{NAME}|){GAP}(?P<after>{NAME}|)")

ALONE: Final = (
    "a statement of ackstream's has to be alone in its packet, with its quotes and comments closed:"
    " send the statements one by one"
)

NO_SUCH_TABLE: Final = 1146


def hint_for(text: bytes, code: int, message: str) -> str | None:
    """The hint that follows the server's error about a packet with this text; None if the error is
    about anything else.

    The server may know the statement: `DESCRIBE queue c` shows a column of a table with that name.
    """
    written = text.decode("utf-8", "replace")
    place = quoted_place(message, written) if code == PARSE_ERROR else None
    begin = 0 if place is None else written.rfind(";", 0, place) + 1
    if begin:
        later = written[begin:].encode()
        verb = statement_at(later, 0).verb
        if verb in QUEUE_STATEMENT_VERBS:
            return ALONE
        if verb is Verb.NEARLY:
            return f"{hint(later)}; {ALONE}"
    # A semicolon before the place may also stand in a comment or a string of one statement.
    nearly = classify(text, multi_statements=bool(begin)).verb is Verb.NEARLY
    return hint(text) if nearly and code in (PARSE_ERROR, NO_SUCH_TABLE) else None


def hint(text: bytes) -> str:
    """The hint for a statement whose verb is NEARLY."""
    words = _WORDS.match(text)
    if words is None:
        return ALONE
    verb, following, after = (word.decode("utf-8", "replace") for word in words.groups())
    verb = verb.upper()
    if meant := MISSPELT.get(verb.encode()):
        return f"{verb} is no statement: write {meant}"
    if corrected := _corrected(verb, following.upper(), after.upper()):
        return f"{corrected[0]} is no statement: write {corrected[1]}"
    match verb, following.upper():
        case (("PAUSE" | "RESUME" | "PURGE" | "REDRIVE"), other) if other != "QUEUE":
            return f"write {verb} QUEUE {following}"
        case "SET", "STATEMENT":
            return (
                "a statement of ackstream's has no SET STATEMENT … FOR before it: leave that out,"
                " or the driver's query timeout"
            )
        case "RENAME", "QUEUE":
            return "write RENAME TABLE: a queue is a table"
        case "CREATE", ("OR" | "TEMPORARY"):
            return "CREATE QUEUE replaces no table and makes no temporary one: write CREATE QUEUE, or IF NOT EXISTS"
        case "SHOW", "QUEUE":
            return "write SHOW QUEUES, or SHOW CREATE QUEUE and the name of a queue"
        case (("EXPLAIN" | "DESCRIBE" | "DESC"), "QUEUE"):
            return "write SHOW CREATE QUEUE and its name, or DESCRIBE and its name: a queue is a table"
        case (("EXPLAIN" | "DESCRIBE" | "DESC"), statement):
            return (
                f"{verb} is not possible for {statement.upper()}: SHOW FULL QUEUES and SHOW STREAMS return what it does"
            )
        case _:
            return ALONE


def _corrected(verb: str, following: str, after: str) -> tuple[str, str] | None:
    """The words up to the misspelt noun of a queue statement, as written and corrected; None: no noun is
    misspelt."""
    begin, noun, meant = verb, following, MISSPELT_NOUN
    if verb == "SHOW" and following in ("CREATE", "FULL"):
        begin, noun = f"SHOW {following}", after
    if verb == "SHOW" and following != "CREATE":
        meant = MISSPELT_SHOWN
    if begin == "SHOW" and noun == "QUEUE":
        return None  # It may also stand for SHOW CREATE QUEUE.
    if verb in ("PAUSE", "RESUME", "PURGE", "REDRIVE") and not after:
        return None  # The word is the queue's name.
    right = meant.get(noun.encode())
    return None if right is None else (f"{begin} {noun}", f"{begin} {right}")
