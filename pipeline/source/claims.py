"""What a micro-batch consists of: the claims (id and epoch) of its messages, and their form in Spark's checkpoint.

A claim is all that it takes to read a message again, to acknowledge it, or to find that it is somebody else's by now,
for its epoch grows with every delivery. So a batch's offset *is* its claims: what Spark has logged before the batch
runs is enough to run the same batch again after any crash, in another process, with nothing kept anywhere else.

Numbers are written as runs, each epoch by itself: `1:1000+499,3,2+9` is epoch 1 with 1000 to 1499, then the third
number behind that (1502), then the second behind that and nine more (1504 to 1513). A queue's ids mostly come in runs,
so a batch of 100,000 is often a line of a few characters. What is long all the same is compressed.
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

from pipeline.common.statements import Id

Offset: TypeAlias = dict[str, Any]

PLAIN_MAX: Final = 1_000
"""Characters of an offset that a person may still want to read in a log; what is longer is compressed."""

_RUNS: Final = re.compile(r"(-?\d+)(?:\+(\d+))?")


@dataclass(frozen=True, slots=True)
class Claims:
    """The messages of a batch: sorted ids by epoch."""

    by_epoch: Mapping[int, tuple[Id, ...]]

    @classmethod
    def of(cls, claims: Iterable[tuple[Id, int]]) -> Claims:
        """Claims as they come from a stream."""
        by_epoch: dict[int, list[Any]] = {}
        for key, epoch in claims:
            by_epoch.setdefault(epoch, []).append(key)
        return cls({epoch: tuple(sorted(by_epoch[epoch])) for epoch in sorted(by_epoch)})

    def __len__(self) -> int:
        return sum(map(len, self.by_epoch.values()))

    def __iter__(self) -> Iterator[tuple[Id, int]]:
        return ((key, epoch) for epoch, ids in self.by_epoch.items() for key in ids)

    def chunks(self, size: int) -> Iterator[tuple[int, tuple[Id, ...]]]:
        """Up to `size` ids of one epoch at a time: what one statement names."""
        for epoch, ids in self.by_epoch.items():
            for start in range(0, len(ids), size):
                yield epoch, ids[start : start + size]

    def split(self, pieces: int) -> list[Claims]:
        """As many parts of about the same size, neighbouring ids together; fewer where there are fewer messages."""
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
        """What `offset` wrote."""
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
    """A list holds text, to tell it from bytes in hexadecimal."""
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
