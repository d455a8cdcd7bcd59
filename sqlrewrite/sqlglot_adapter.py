"""The one use of sqlglot: it cuts a statement's text into tokens as the server does.

`_SessionMySQL` customizes sqlglot's MySQL dialect, as its documentation shows. Some settings used
here are not documented (`VAR_SINGLE_TOKENS`, `IDENTIFIERS_CAN_START_WITH_DIGIT`), and any release
may change where a token begins and ends. So `check` cuts samples, and names those that an installed
release cuts in another way.

No other module of proxy, sqlrewrite or engine imports sqlglot (an import contract in
pyproject.toml).
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Final

from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import TokenError

OPERATORS: Final = ("<=>", "<=", ">=", "<>", "!=", "&&", "||")
"""The operators of several characters that conditions have, or that an error explains."""

SAMPLES: Final = (
    # sql, ansi_quotes, no_backslash_escapes, tokens
    ("a.b , c", False, False, ("a", ".", "b", ",", "c")),
    ("f(1)>=-2", False, False, ("f", "(", "1", ")", ">=", "-", "2")),
    ("a<=>? OR b<>?", False, False, ("a", "<=>", "?", "OR", "b", "<>", "?")),
    ("5--1;", False, False, ("5", "-", "-", "1", ";")),
    ("SHOW PARTITION BY PRIMARY KEY", False, False, ("SHOW", "PARTITION", "BY", "PRIMARY", "KEY")),
    ("1.5e3 .5 0x1F", False, False, ("1.5e3", ".", "5", "0x1F")),
    ("2fast $x x$y äö", False, False, ("2fast", "$x", "x$y", "äö")),
    ("`a``b` 'it''s'", False, False, ("`a``b`", "'it''s'")),
    ("'' x'' ('')", False, False, ("''", "x''", "(", "''", ")")),
    (r"'a\'b' x", False, False, (r"'a\'b'", "x")),
    (r"'a\' x", False, True, (r"'a\'", "x")),
    ('"a""b" x', False, False, ('"a""b"', "x")),
    ('"a""b".c', True, False, ('"a""b"', ".", "c")),
)
"""Each sort of token that queue statements have."""


class UncuttableError(Exception):
    """The text has no tokens: a quote is not closed, or a literal such as x'zz' has no value."""


class IncompatibleVersionError(Exception):
    """The installed release of sqlglot cuts text in another way. The message names both."""


def cut(sql: str, *, ansi_quotes: bool, no_backslash_escapes: bool) -> list[tuple[int, int]]:
    """Where each token begins and ends. The text must have no comments. Raises UncuttableError."""
    try:
        tokens = _dialect(ansi_quotes=ansi_quotes, no_backslash_escapes=no_backslash_escapes).tokenize(sql)
    except TokenError as error:
        raise UncuttableError(str(error)) from error
    return [(token.start, token.end + 1) for token in tokens]


def check() -> None:
    """Raise IncompatibleVersionError unless this sqlglot cuts all samples as it should."""
    for sql, ansi_quotes, no_backslash_escapes, expected in SAMPLES:
        try:
            spans = cut(sql, ansi_quotes=ansi_quotes, no_backslash_escapes=no_backslash_escapes)
        except (AttributeError, TypeError, UncuttableError) as error:
            raise _incompatible(f"it fails at {sql!r} with {error!r}") from error
        if (found := tuple(sql[start:end] for start, end in spans)) != expected:
            raise _incompatible(f"it cuts {sql!r} into {found!r}, and the server into {expected!r}")


def _incompatible(lack: str) -> IncompatibleVersionError:
    return IncompatibleVersionError(
        f"sqlglot {version('sqlglot')} does not fit this ackstream: {lack}. Install another release of sqlglot."
    )


class _SessionMySQL(MySQL):
    IDENTIFIERS_CAN_START_WITH_DIGIT = True

    class Tokenizer(MySQL.Tokenizer):
        # Without words: sqlglot would join some (PARTITION BY), and take the text behind others
        # (SHOW) for one string.
        KEYWORDS = {operator: MySQL.Tokenizer.KEYWORDS[operator] for operator in OPERATORS}  # noqa: RUF012
        COMMENTS = []  # noqa: RUF012
        VAR_SINGLE_TOKENS = {*MySQL.Tokenizer.VAR_SINGLE_TOKENS, "$"}  # noqa: RUF012


@cache
def _dialect(*, ansi_quotes: bool, no_backslash_escapes: bool) -> MySQL:
    string_marks: list[str | tuple[str, str]] = ["'"] if ansi_quotes else ["'", '"']
    name_marks: list[str | tuple[str, str]] = ["`", '"'] if ansi_quotes else ["`"]
    escapes = ["'"] if ansi_quotes else ["'", '"']

    class SessionMySQL(_SessionMySQL):
        class Tokenizer(_SessionMySQL.Tokenizer):
            QUOTES = string_marks
            IDENTIFIERS = name_marks
            STRING_ESCAPES = escapes if no_backslash_escapes else [*escapes, "\\"]

    return SessionMySQL()
