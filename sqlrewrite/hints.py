"""What to write instead of a statement that is nearly a queue statement.

Pure: text in, a hint out. `classify` finds such statements (Verb.NEARLY); the server's own error
stays, and the hint follows it.
"""

from __future__ import annotations

from typing import Final

from sqlrewrite.lexicon import GAP, NAME, WORD_END, bytes_pattern

_WORDS = bytes_pattern(rf"{GAP}(?P<verb>[A-Z]{{2,8}}+){WORD_END}{GAP}(?P<next>{NAME}|)")

ALONE: Final = (
    "a statement of ackstream's has to be alone in its packet, with its quotes and comments closed:"
    " send the statements one by one"
)


def hint(text: bytes) -> str:
    """The hint for a statement whose verb is NEARLY."""
    words = _WORDS.match(text)
    verb, following = (words[1].decode().upper(), words[2].decode("utf-8", "replace")) if words else ("", "")
    match verb, following.upper():
        case (("PAUSE" | "RESUME" | "PURGE" | "REDRIVE"), other) if other != "QUEUE":
            return f"write {verb} QUEUE {following}"
        case "SHOW", "STREAM":
            return "write SHOW STREAMS"
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
