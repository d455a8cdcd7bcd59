"""Compiles the clients in C."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.compare.model import MissingError

LIBMARIADB = "$(pkg-config --cflags --libs libmariadb)"


def compiled(name: str, folder: Path, libraries: str = "") -> Path:
    """Compile a source file of bench/ into a folder; return the program. Raises MissingError where the
    compiler or a library is missing."""
    source = Path(__file__).parents[1] / name
    program = folder / source.stem
    command = f"cc -O2 -pthread -D_GNU_SOURCE {source} -o {program} {libraries}"
    done = subprocess.run(["/bin/sh", "-c", command], check=False, capture_output=True, text=True)
    if done.returncode:
        raise MissingError(f"the client cannot be compiled: {done.stderr.strip().splitlines()[-1]}")
    return program
