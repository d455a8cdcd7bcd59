"""Words that are one letter away from the first word of a queue statement, and from no statement of the
servers'."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from string import ascii_uppercase
from typing import Final

_VERBS: Final = ("STREAM", "ACK", "NACK", "EXTEND", "PAUSE", "RESUME", "REDRIVE")
_OTHER_WORDS: Final = frozenset({"BACK", "PACK", "LACK", "RACK", "ASK", "ACT"})
"""Too likely to be something else, though no server has such a statement."""


def _one_letter_away(word: str) -> Iterator[str]:
    for at in range(len(word) + 1):
        before, behind = word[:at], word[at:]
        yield from (before + letter + behind for letter in ascii_uppercase)
        if behind:
            yield before + behind[1:]
            yield from (before + letter + behind[1:] for letter in ascii_uppercase)
        if len(behind) > 1:
            yield before + behind[1] + behind[0] + behind[2:]


def _misspelt(verbs: Iterable[str]) -> Mapping[bytes, str]:
    found = {wrong.encode(): verb for verb in verbs for wrong in _one_letter_away(verb)}
    return {wrong: verb for wrong, verb in found.items() if wrong.decode() not in {*_VERBS, *_OTHER_WORDS}}


MISSPELT: Final = _misspelt(_VERBS)
"""What was probably meant, by the misspelt word in capitals."""
