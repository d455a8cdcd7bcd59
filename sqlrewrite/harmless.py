"""Statements that certainly run nothing stored: no function, procedure, trigger or view.

A session in which only such statements ran has no temporary table, which would hide a table of the
same name. CREATE TEMPORARY TABLE itself is easily recognised. Inside a stored function it is not,
and any name before a parenthesis, any view and any trigger may call that function. So this module
recognises the few statements with which clients set up their sessions and frame their transactions.
All others count as unsafe.
"""

from __future__ import annotations

from typing import Final

from sqlrewrite.lexicon import BACKQUOTED, BLANK, COMMENT, GAP, WORD_END, bytes_pattern, quoted_alike

LENGTH_MAX: Final = 2048
"""No driver's preparations are longer. Each statement is read to its end until one in the session
is unsafe."""

_FUNCTIONS: Final = (
    "CONCAT|CONNECTION_ID|CONVERT_TZ|CURRENT_USER|DATABASE|FOUND_ROWS|IFNULL|LAST_INSERT_ID|NOW|ROW_COUNT|SCHEMA"
    "|SESSION_USER|SLEEP|USER|UTC_TIMESTAMP|VERSION"
)
"""The servers' own: right before a parenthesis, and without a database, such a name is no stored
function."""

_OTHER_STATEMENTS: Final = "ATOMIC|CALL|EXECUTE|FROM|INTO|PREPARE|PROCEDURE|STATEMENT|TABLE|VALUES|WITH"
"""Words that bring in a table, or another statement."""

_OPENS: Final = rf"{GAP}\("
_SINGLE, _DOUBLE = quoted_alike("'"), quoted_alike('"')
_TOKEN: Final = "|".join(
    (
        rf"{BLANK}++",
        COMMENT,
        # Any quote may be that of a name.
        rf"(?:{_SINGLE}|{_DOUBLE}|{BACKQUOTED})(?!{_OPENS})",
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
"""What a backslash means depends on sql_mode, and so does Oracle's dialect; these character sets
redefine ASCII."""


def runs_nothing_stored(text: bytes) -> bool:
    """Whether the statement can run nothing but the server's own code. Never raises, whatever the
    bytes."""
    return (
        len(text) <= LENGTH_MAX
        and text.isascii()
        and _HARMLESS.match(text) is not None
        and _STRANGE.search(text) is None
    )
