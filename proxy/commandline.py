"""The command line of this process, as other users of the machine can read it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_ARG_START: Final = 45
"""The field of /proc/self/stat, counted from the one behind the program's name, with the address of
the arguments."""


def conceal(before: str, secret: str) -> bool:
    """Overwrite `secret` with x's wherever it follows `before` in the command line.

    Before the call, other users can read it there. Returns False where it cannot be overwritten
    (that needs Linux); True also if the command line does not contain it.
    """
    prefix, hidden = (text.encode("utf-8", "surrogateescape") for text in (before, secret))
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            line = memory.read(end - start)
            at = line.find(prefix + hidden)
            while at >= 0:
                at += len(prefix)
                memory.seek(start + at)
                memory.write(b"x" * len(hidden))
                at = line.find(prefix + hidden, at + len(hidden))
    except (OSError, ValueError, IndexError):
        return False
    return True
