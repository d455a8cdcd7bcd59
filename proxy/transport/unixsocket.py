"""A unix socket to listen on: made with its mode from the start, and removed afterwards.

A socket file outlives a killed process. A file on which no process listens is removed. Another
process's socket is left alone, which asyncio itself would not do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path


class UnixSocket:
    """A bound socket (`bound`), and the file that it has made. Raises OSError."""

    def __init__(self, path: Path, mode: int) -> None:
        self.path = path.absolute()
        _remove_stale(self.path)
        self.bound = socket.socket(socket.AF_UNIX)
        try:
            # No client can connect before it listens, which is later, whatever its first mode.
            self.bound.bind(str(self.path))
            self.path.chmod(mode)
        except OSError:
            self.bound.close()
            raise
        self._inode = self.path.stat().st_ino

    def remove(self) -> None:
        """Remove the file, unless it is another one by now."""
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()


def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        else:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
