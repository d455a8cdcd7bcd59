"""A wrong wall clock for processes started with this environment; it can be set while they run.

libfaketime is the usual tool, but its clock_nanosleep fails when the monotonic clock is left alone. The few lines of C
here replace only the reading of the time.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("shifted_clock.c")


class ShiftedClock:
    """The clock and its library, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._library, self._file = folder / "shifted_clock.so", folder / "shift"
        self._file.write_bytes(struct.pack("d", 0))
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._library, SOURCE], check=True, timeout=60)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables for a process that shall have this clock, and for its children."""
        return {"LD_PRELOAD": str(self._library), "CLOCK_SHIFT_FILE": str(self._file)}

    def shift(self, seconds: float) -> None:
        """Put the clock off by so much from now on."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("d", seconds))
