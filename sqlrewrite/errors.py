"""Errors in queue statements, with MySQL's numbers and wording.

The one exception is `SqlError`. It has the number and SQLSTATE of the ERR packet, and the position
where parsing stopped. Only the functions below make its message.
"""

from __future__ import annotations

PARSE_ERROR = 1064
WRONG_ARGUMENTS = 1210
NOT_SUPPORTED_YET = 1235

_NEAR_CHARACTERS = 80
"""Characters of the statement that an error quotes, as in MySQL."""


class SqlError(Exception):
    """A queue statement that cannot be executed as written.

    `position` is the byte offset of the fault in the statement, None if the fault is not in the
    text.
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
    """Error 1235: part of the language, but not of this release."""
    return SqlError(message, position, NOT_SUPPORTED_YET)


def wrong_argument(message: str) -> SqlError:
    """Error 1210: a parameter of a prepared statement has an impossible value."""
    return SqlError(message, None, WRONG_ARGUMENTS, "HY000")
