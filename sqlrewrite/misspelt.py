"""Words that are one letter away from a word of a queue statement, and that no statement of the
servers' has in that place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from string import ascii_uppercase
from typing import Final

_VERBS: Final = ("STREAM", "ACK", "NACK", "EXTEND", "PAUSE", "RESUME", "REDRIVE")
_SHOWN: Final = {
    "QUEUE": "QUEUES",
    "STREAM": "STREAMS",
    "BATCH": "BATCHES",
    "DELIVERY": "DELIVERIES",
    "GROUP": "GROUPS",
    "PROXY": "PROXIES",
    "SEMAPHORE": "SEMAPHORES",
}
"""What SHOW lists, by its singular."""
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


def _misspelt(words: Iterable[str], known: Collection[str]) -> Mapping[bytes, str]:
    found = {wrong: word for word in words for wrong in _one_letter_away(word)}
    return {wrong.encode(): word for wrong, word in found.items() if wrong not in known}


MISSPELT: Final = _misspelt(_VERBS, {*_VERBS, *_OTHER_WORDS})
"""What was probably meant, by the misspelt first word in capitals."""

MISSPELT_NOUN: Final = _misspelt(("QUEUE", "SEMAPHORE"), ("QUEUE", "SEMAPHORE"))
"""What was probably meant, by the misspelt word behind CREATE, ALTER, DROP, PAUSE and their like."""

MISSPELT_SHOWN: Final[Mapping[bytes, str]] = {
    wrong: _SHOWN.get(word, word) for wrong, word in _misspelt((*_SHOWN, *_SHOWN.values()), _SHOWN.values()).items()
}
"""What was probably meant, by the misspelt word behind SHOW; the singular counts as misspelt."""
