"""Small files beside the data, on any of Spark's file systems that rename a folder in one step.

On an object store, a rename copies file by file, and a driver that dies meanwhile leaves half of
it. A rename is on disk when it returns: HDFS has it on several machines, and on a local file system
the files and folders are synced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from ..errors import JobError, PipelineError

ATOMIC: Final = frozenset({"file", "hdfs", "viewfs"})


class Files:
    """The files below one folder."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001 (there is no other way to ask)
        path = self._jvm.org.apache.hadoop.fs.Path(root)
        settings = context._jsc.hadoopConfiguration()  # noqa: SLF001
        default = self._jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(settings)
        scheme = path.toUri().getScheme() or default.getScheme()
        if scheme not in ATOMIC:
            raise PipelineError(f"{root}: folders must be renamed in one step: only {', '.join(sorted(ATOMIC))} do")
        self._local = scheme == "file"
        self._system = path.getFileSystem(settings)
        self._root = str(path.makeQualified(self._system.getUri(), self._system.getWorkingDirectory()).toString())

    def path(self, name: str) -> str:
        """The path for Spark."""
        return f"{self._root}/{name}"

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        return bool(self._system.exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if it does not exist."""
        if not self.exists(folder):
            return []
        return [status.getPath().getName() for status in self._system.listStatus(self._path(folder))]

    def read(self, name: str) -> str:
        """A file's text."""
        stream = self._system.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all."""
        part = f"{name}.part"
        stream = self._system.create(self._path(part), True)
        stream.write(bytearray(text.encode()))
        stream.hsync()
        stream.close()
        self.rename(part, name)

    def rename(self, old: str, new: str) -> None:
        """Rename in one step, to a name that must be free. Raises JobError."""
        there = self._path(new)
        self._system.mkdirs(there.getParent())
        self._settle(old)
        # If the new name is a folder, Hadoop would move the old one into it.
        if self._system.exists(there) or not self._system.rename(self._path(old), there):
            raise JobError(f"{self.path(old)} cannot be renamed to {self.path(new)}")
        self._settle(new)

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with everything in it, if it exists."""
        self._system.delete(self._path(name), True)

    def _settle(self, name: str) -> None:
        """Sync the files and their names, so that a power cut after the rows were deleted loses
        nothing."""
        if self._local:
            root, path = (Path(self._path(part).toUri().getPath()) for part in ("", name))
            for entry in (root, path.parent, path, *path.rglob("*")):
                descriptor = os.open(entry, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}")
