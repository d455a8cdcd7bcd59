"""The server's syntax errors about statements that were sent in place of a client's.

Pure. The server quotes the statement that it has read. The client gets an error about its own text:
the place that the server quotes is found in the text that was sent, and then in the client's.
"""

from __future__ import annotations

import re
from typing import Final

from sqlrewrite.errors import SqlError, syntax_error

TEXT_MAX: Final = 16 * 1024
"""Characters of a statement in which a place is looked for: some milliseconds of work."""
_CONTEXT_MAX: Final = 200
"""Characters before and behind a place that are compared."""

_QUOTED = re.compile(r"'(.*)'\D*\d+\D*\Z", re.DOTALL)
"""What the error quotes, and its line, in any language of the server's messages."""
_SEPARATORS: Final = " \t\r\n,"


def quoted_place(message: str, sent: str) -> int | None:
    """Where the text begins in `sent` that error 1064 quotes; None if it cannot be found.

    The server quotes the rest of the statement, or the beginning of the rest (MariaDB marks that by
    three dots).
    """
    match = _QUOTED.search(message)
    if match is None:
        return None
    quoted = match[1]
    if sent.endswith(quoted):
        return len(sent) - len(quoted)
    for text in (quoted, quoted.removesuffix("..."), quoted.partition("\ufffd")[0]):
        if text and (at := sent.find(text)) >= 0:
            return at
    return None


def same_place(sent: str, at: int, own: str) -> int:
    """The place in `own` that has most of the text around `at` in `sent` around it. Commas and
    blanks before the places do not count."""
    before, behind = sent[:at].rstrip(_SEPARATORS)[-_CONTEXT_MAX:], sent[at : at + _CONTEXT_MAX]
    places = (place for place in range(len(own) + 1) if own[place : place + 1] == behind[:1] or place == len(own))
    ends = (place for place in range(1, len(own) + 1) if before and own[place - 1] == before[-1])

    def likeness(place: int) -> int:
        left = own[max(0, place - 2 * _CONTEXT_MAX) : place].rstrip(_SEPARATORS)
        return _common(left[::-1], before[::-1]) + _common(own[place : place + _CONTEXT_MAX], behind)

    return max((*places, *ends), key=likeness, default=0)


def in_own_words(message: str, sent: str, own: str, statement: str, expected: str) -> SqlError:
    """Error 1064 about `own`, in place of the server's about `sent`. `statement` is the name of the
    client's statement; `expected`: what is wrong, and what to write."""
    place = quoted_place(message, sent) if len(sent) <= TEXT_MAX and len(own) <= TEXT_MAX else None
    at = 0 if place is None else same_place(sent, place, own)
    at = len(own) - len(own[at:].lstrip())
    return syntax_error(statement, own[:at], own[at:].rstrip().removesuffix(";"), at, expected)


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    for count, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return count
    return min(len(one), len(other))
