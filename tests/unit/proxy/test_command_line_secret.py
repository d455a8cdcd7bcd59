"""A password on the command line is taken out of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOWS_ITS_OWN = """
import sys
from pathlib import Path
from proxy.commandline import conceal
assert conceal(sys.argv[2], sys.argv[3].replace('+', ''))
print(Path("/proc/self/cmdline").read_bytes().replace(bytes(1), b" ").decode())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it takes Linux's /proc")
def test_it_is_overwritten_wherever_it_follows_what_stands_before_it() -> None:
    arguments = ["mysql://root:größe@h --backend=mysql://root:größe@h", "mysql://root:", "grö+ße"]
    argv = [sys.executable, "-c", SHOWS_ITS_OWN.strip(), "-", *arguments[1:], arguments[0]]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("mysql://root: grö+ße mysql://root:xxxxxxx@h --backend=mysql://root:xxxxxxx@h \n")
