"""What is wrong with a statement of ours, in the words and numbers that MySQL would use.

There is one exception, `SqlError`: it carries the number and SQLSTATE that go into the ERR
packet, and the place in the statement where reading stopped. The functions below are the only
places that word it.
"""

from __future__ import annotations

PARSE_ERROR = 1064
WRONG_ARGUMENTS = 1210
NOT_SUPPORTED_YET = 1235

_NEAR_CHARACTERS = 80
"""How much of the statement an error quotes: as much as MySQL does."""


class SqlError(Exception):
    """A statement of ours that cannot be carried out as written.

    `position` is the offset of the offending text in the statement as given to the parser
    (characters of a str, bytes of bytes), None where the fault is not in the text.
    """

    def __init__(self, message: str, position: int | None, code: int = PARSE_ERROR, sqlstate: str = "42000") -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.code = code
        self.sqlstate = sqlstate


def syntax_error(statement: str, before: str, near: str, position: int, expected: str) -> SqlError:
    """Error 1064 in MySQL's own form. `before` is the text up to the fault, `near` from it on."""
    line = before.count("\n") + 1
    quoted = near[:_NEAR_CHARACTERS]
    return SqlError(
        f"You have an error in your {statement} statement near '{quoted}' at line {line}: {expected}",
        position,
    )


def not_supported_yet(message: str, position: int) -> SqlError:
    """Error 1235: part of the language, and not of this release."""
    return SqlError(message, position, NOT_SUPPORTED_YET)


def wrong_argument(message: str) -> SqlError:
    """Error 1210: a parameter of a prepared statement has a value that cannot stand there."""
    return SqlError(message, None, WRONG_ARGUMENTS, "HY000")
