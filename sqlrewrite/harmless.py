"""Statements that certainly run nothing stored: no function, procedure, trigger or view.

A session in which only such statements ran has no temporary table, which would hide a table of the
same name. CREATE TEMPORARY TABLE itself is easily recognised. Inside a stored function it is not,
and any name before a parenthesis, any view and any trigger may call that function. So this module
recognises the few statements with which clients set up their sessions and frame their transactions.
All others count as unsafe.
"""

from __future__ import annotations

import re
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
_SETTINGS: Final = (
    "AUTOCOMMIT|CHARACTER_SET_CLIENT|CHARACTER_SET_CONNECTION|CHARACTER_SET_RESULTS|COLLATION_CONNECTION"
    "|INTERACTIVE_TIMEOUT|NET_READ_TIMEOUT|NET_WRITE_TIMEOUT|SQL_AUTO_IS_NULL|SQL_MODE|SQL_SELECT_LIMIT|TIME_ZONE"
    "|TRANSACTION_ISOLATION|TX_ISOLATION|WAIT_TIMEOUT"
)
"""Variables that do not change what an UPDATE by a number does and returns."""
_VALUE: Final = rf"(?:{_SINGLE}|{_DOUBLE}|(?:{_FUNCTIONS})\([^()]*+\)|[-+@0-9A-Z_$.]++)"
_WORD: Final = rf"(?:{_SINGLE}|{_DOUBLE}|[0-9A-Z_]++)"
_ASSIGNED: Final = (
    rf"(?:NAMES{WORD_END}{GAP}{_WORD}{GAP}(?>(?:COLLATE{WORD_END}{GAP}{_WORD}{GAP})?)"
    rf"|(?:CHARSET|CHARACTER{GAP}SET){WORD_END}{GAP}{_WORD}{GAP}"
    rf"|SESSION{GAP}TRANSACTION{GAP}ISOLATION{GAP}LEVEL{GAP}(?>(?:[A-Z]++{GAP})+)"
    rf"|(?:@[0-9A-Z_$.]++|(?>(?:SESSION{WORD_END}{GAP})?)(?>(?:@@(?:SESSION\.)?)?)(?:{_SETTINGS})){GAP}"
    rf":?={GAP}{_VALUE}{GAP})"
)
_USUAL: Final = bytes_pattern(
    rf"{GAP}(?:(?!SET{WORD_END})[A-Z]|SET{WORD_END}{GAP}{_ASSIGNED}(?>(?:,{GAP}{_ASSIGNED})*)(?>(?:;{GAP})?)\Z)"
)
_STRANGE: Final = bytes_pattern(r"\\|ORACLE|UCS2|UTF16|UTF32|SWE7")
"""What a backslash means depends on sql_mode, and so does Oracle's dialect; these character sets
redefine ASCII."""

_SHOWING: Final = re.compile(rb"COUNT|FOUND_ROWS|WARNING|ERROR|DIAGNOSTICS|LAST_|GTID|STATUS|PROFILE", re.IGNORECASE)
"""Words in whatever shows what the last statement has left."""


def runs_nothing_stored(text: bytes) -> bool:
    """Whether the statement can run nothing but the server's own code. Never raises, whatever the
    bytes."""
    return (
        len(text) <= LENGTH_MAX
        and text.isascii()
        and _HARMLESS.match(text) is not None
        and _STRANGE.search(text) is None
    )


def keeps_updates_alike(text: bytes) -> bool:
    """Whether an UPDATE by a number does and returns the same after this statement, of which
    `runs_nothing_stored` is true, as in another session of the same account."""
    return _USUAL.match(text) is not None


def shows_counts(text: bytes) -> bool:
    """Whether the statement may show what the statement before it has left in the session:
    ROW_COUNT(), FOUND_ROWS(), warnings."""
    return not runs_nothing_stored(text) or _SHOWING.search(text) is not None
