"""The claims (id and epoch) of a micro-batch's messages, and their form in Spark's checkpoint.

A claim suffices to read a message again, to acknowledge it, or to find that it was delivered to
another consumer, because each delivery raises the epoch. So the offset of a batch *is* its claims.
Spark logs it before the batch runs, and any process can run the same batch again from it after a
crash.

Numbers are written as runs, for each epoch: `1:1000+499,3,2+9` is epoch 1 with 1000 to 1499, then
the third number after that (1502), then the second after that and nine more (1504 to 1513). Most
ids of a queue come in runs, so a batch of 100,000 is often a line of a few characters. A long text
is compressed.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

from ..common.statements import Id

Offset: TypeAlias = dict[str, Any]

PLAIN_MAX: Final = 1_000
"""Characters of an offset that a person can read in a log. A longer one is compressed."""

_RUNS: Final = re.compile(r"(-?\d+)(?:\+(\d+))?")


@dataclass(frozen=True, slots=True)
class Claims:
    """The messages of a batch: sorted ids by epoch."""

    by_epoch: Mapping[int, tuple[Id, ...]]

    @classmethod
    def of(cls, claims: Iterable[tuple[Id, int]]) -> Claims:
        """Claims in any order, as a STREAM returns them."""
        by_epoch: dict[int, list[Any]] = {}
        for key, epoch in claims:
            by_epoch.setdefault(epoch, []).append(key)
        return cls({epoch: tuple(sorted(by_epoch[epoch])) for epoch in sorted(by_epoch)})

    def __len__(self) -> int:
        return sum(map(len, self.by_epoch.values()))

    def __iter__(self) -> Iterator[tuple[Id, int]]:
        return ((key, epoch) for epoch, ids in self.by_epoch.items() for key in ids)

    def chunks(self, size: int) -> Iterator[tuple[int, tuple[Id, ...]]]:
        """Epochs with up to `size` ids, for one statement each."""
        for epoch, ids in self.by_epoch.items():
            for start in range(0, len(ids), size):
                yield epoch, ids[start : start + size]

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
        """The claims of an offset."""
        packed = offset.get("packed")
        text = zlib.decompress(base64.b64decode(packed)).decode() if packed else str(offset["claims"])
        if text.startswith("{"):
            return cls({int(epoch): tuple(map(_read_id, ids)) for epoch, ids in json.loads(text).items()})
        parts = (part.partition(":") for part in text.split(";") if part)
        return cls({int(epoch): tuple(_numbers(runs)) for epoch, _, runs in parts})

    def _text(self) -> str:
        if all(isinstance(key, int) for key, _ in self):
            return ";".join(f"{epoch}:{_runs(ids)}" for epoch, ids in self.by_epoch.items())
        texts = {
            epoch: [key.hex() if isinstance(key, bytes) else [key] for key in ids]
            for epoch, ids in self.by_epoch.items()
        }
        return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


NOTHING: Final = Claims({})


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
