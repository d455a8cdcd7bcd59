"""Statements of which it is plain that they run nothing stored: no function, procedure, trigger or view of anybody's.

A session in which nothing else ran cannot have a temporary table, which would stand before a table of the same name: a
CREATE TEMPORARY TABLE is easily seen, one inside a stored function is not, and any name that is followed by a
parenthesis, any view that is read and any trigger may bring that function in. So the few statements are told with
which clients set up their sessions and frame their transactions; all others are doubted.
"""

from __future__ import annotations

from typing import Final

from sqlrewrite.lexicon import BACKQUOTED, BLANK, COMMENT, GAP, WORD_END, bytes_pattern

LENGTH_MAX: Final = 2048
"""No driver's preparations are longer, and each statement of a session that did nothing else is read to its end."""

_FUNCTIONS: Final = (
    "CONCAT|CONNECTION_ID|CONVERT_TZ|CURRENT_USER|DATABASE|FOUND_ROWS|IFNULL|LAST_INSERT_ID|NOW|ROW_COUNT|SCHEMA"
    "|SESSION_USER|SLEEP|USER|UTC_TIMESTAMP|VERSION"
)
"""The servers' own. With the parenthesis behind it and no database before it, such a name is nobody else's."""

_OTHER_STATEMENTS: Final = "ATOMIC|CALL|EXECUTE|FROM|INTO|PREPARE|PROCEDURE|STATEMENT|TABLE|VALUES|WITH"
"""Words that bring in a table, or another statement."""

_OPENS: Final = rf"{GAP}\("
_TOKEN: Final = "|".join(
    (
        rf"{BLANK}++",
        COMMENT,
        rf"(?:'[^'\\]*+'|\"[^\"\\]*+\"|{BACKQUOTED})(?!{_OPENS})",  # Any quote may be one of names.
        r"@[0-9A-Z_$.@]++",
        r"[0-9]++(?>(?:\.[0-9]++)?)(?![0-9A-Z_$])",
        rf"(?:{_FUNCTIONS})\(",
        rf"(?!(?:{_OTHER_STATEMENTS}){WORD_END})[A-Z_][0-9A-Z_$]*+(?!{_OPENS})",
        r"[=,:()<>+*-]",
    )
)
_HARMLESS: Final = bytes_pattern(
    rf"{GAP}(?:SELECT|SET|SHOW|USE|BEGIN|START|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|KILL){WORD_END}"
    rf"(?>(?:{_TOKEN})*)(?>(?:;{GAP})?)\Z"
)
_STRANGE: Final = bytes_pattern(r"\\|ORACLE|UCS2|UTF16|UTF32|SWE7")
"""A backslash is read by sql_mode, and so is Oracle's dialect; in these character sets ASCII is not what it seems."""


def runs_nothing_stored(text: bytes) -> bool:
    """Whether the statement can run nothing but what the server itself is made of. Never raises, whatever the bytes."""
    return (
        len(text) <= LENGTH_MAX
        and text.isascii()
        and _HARMLESS.match(text) is not None
        and _STRANGE.search(text) is None
    )
