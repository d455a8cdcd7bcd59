"""The claims of a micro-batch's messages, and their form in Spark's checkpoint.

A claim is an id, an epoch, and the end of the wait that the claim has set. Id and epoch suffice to
read a message again, to acknowledge it, or to find that it was delivered to another consumer,
because each delivery raises the epoch. So the offset of a batch *is* its claims. Spark logs it
before the batch runs, and any process can run the same batch again from it after a crash.

Ids and epochs begin anew if the queue is dropped and made again, truncated, restored or swapped, or
if a failover loses the last inserts. The digits of the end below a second do not: the queue's lease
column has those of the last claim, whatever has extended or released the message since
(`is_of_claim`). By them a process recognises the messages that an earlier one has claimed.

Numbers are written as runs, for each epoch and end: `1@5000:1000+499,3,2+9` is epoch 1 until 5000
with 1000 to 1499, then the third number after that (1502), then the second after that and nine more
(1504 to 1513). Most ids of a claim come in runs, so a batch of 100,000 is often a few kB. A long
text is compressed.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Final, TypeAlias

from ..common.statements import Id

Offset: TypeAlias = dict[str, Any]

Claim: TypeAlias = tuple[int, int]
"""The epoch, and the end of the wait in nanoseconds."""

DIGITS_NS: Final = 10**9
"""EXTEND keeps the digits of an end below it."""

PLAIN_MAX: Final = 1_000
"""Characters of an offset that a person can read in a log. A longer one is compressed."""

_RUNS: Final = re.compile(r"(-?\d+)(?:\+(\d+))?")


def is_of_claim(lease_ns: int | None, until_ns: int) -> bool:
    """Whether a lease is that of the claim with this end. One of another claim is so once in a
    million cases: where the server's clock showed the same microsecond of a second."""
    return lease_ns is not None and (lease_ns - until_ns) % DIGITS_NS == 0


@dataclass(frozen=True)
class Claims:
    """The messages of a batch: sorted ids by claim."""

    by_claim: Mapping[Claim, tuple[Id, ...]]

    @classmethod
    def of(cls, claims: Iterable[tuple[Id, int, int]]) -> Claims:
        """Ids, epochs and ends in any order, as a STREAM returns them."""
        by_claim: dict[Claim, list[Any]] = {}
        for key, epoch, until_ns in claims:
            by_claim.setdefault((epoch, until_ns), []).append(key)
        return cls({claim: tuple(sorted(by_claim[claim])) for claim in sorted(by_claim)})

    def __len__(self) -> int:
        return sum(map(len, self.by_claim.values()))

    def __iter__(self) -> Iterator[tuple[Id, int, int]]:
        return ((key, *claim) for claim, ids in self.by_claim.items() for key in ids)

    @cached_property
    def by_epoch(self) -> Mapping[int, tuple[Id, ...]]:
        """Sorted ids by epoch."""
        found: dict[int, list[Any]] = {}
        for (epoch, _), ids in self.by_claim.items():
            found.setdefault(epoch, []).extend(ids)
        return {epoch: tuple(sorted(ids)) for epoch, ids in found.items()}

    def chunks(self, size: int) -> Iterator[tuple[int, tuple[Id, ...]]]:
        """Epochs with up to `size` ids, for one statement each."""
        for epoch, ids in self.by_epoch.items():
            for start in range(0, len(ids), size):
                yield epoch, ids[start : start + size]

    def where(self, condition: Callable[[Id, int], bool]) -> Claims:
        """Those whose id and end meet a condition."""
        return Claims.of((key, epoch, until_ns) for key, epoch, until_ns in self if condition(key, until_ns))

    def split(self, pieces: int) -> list[Claims]:
        """Parts of about the same size, with neighbouring ids in one part. Fewer than `pieces` if
        there are fewer messages."""
        claims = iter(self)
        least, more = divmod(len(self), pieces)
        sizes = [least + (number < more) for number in range(pieces)]
        return [Claims.of(islice(claims, size)) for size in sizes if size]

    def offset(self) -> Offset:
        """The form for Spark's checkpoint."""
        text = self._text()
        if len(text) <= PLAIN_MAX:
            return {"messages": len(self), "claims": text}
        return {"messages": len(self), "packed": base64.b64encode(zlib.compress(text.encode())).decode()}

    @classmethod
    def from_offset(cls, offset: Offset) -> Claims:
        """The claims of an offset; none of one of an earlier version, which had no ends."""
        packed = offset.get("packed")
        text = zlib.decompress(base64.b64decode(packed)).decode() if packed else str(offset["claims"])
        if text.startswith("{"):
            found = {name: tuple(map(_read_id, ids)) for name, ids in json.loads(text).items()}
        else:
            parts = (part.partition(":") for part in text.split(";") if part)
            found = {name: tuple(_numbers(runs)) for name, _, runs in parts}
        return cls({_read_claim(name): ids for name, ids in found.items() if "@" in name})

    def _text(self) -> str:
        named = [(f"{epoch}@{until_ns}", ids) for (epoch, until_ns), ids in self.by_claim.items()]
        if all(isinstance(key, int) for key, *_ in self):
            return ";".join(f"{name}:{_runs(ids)}" for name, ids in named)
        texts = {name: [key.hex() if isinstance(key, bytes) else [key] for key in ids] for name, ids in named}
        return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


NOTHING: Final = Claims({})


def _read_claim(written: str) -> Claim:
    epoch, _, until_ns = written.partition("@")
    return int(epoch), int(until_ns)


def _read_id(written: str | list[str]) -> Id:
    """A text is in a list; otherwise it is bytes in hexadecimal."""
    return bytes.fromhex(written) if isinstance(written, str) else written[0]


def _runs(ids: Iterable[Any]) -> str:
    runs: list[str] = []
    end = 0
    for first, last in _ranges(ids):
        runs.append(f"{first - end}+{last - first}" if last > first else str(first - end))
        end = last
    return ",".join(runs)


def _ranges(ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for number in ids:
        if first is None or last is None:
            first = number
        elif number != last + 1:
            yield first, last
            first = number
        last = number
    if first is not None and last is not None:
        yield first, last


def _numbers(runs: str) -> Iterator[int]:
    end = 0
    for gap, more in _RUNS.findall(runs):
        first = end + int(gap)
        end = first + int(more or 0)
        yield from range(first, end + 1)
