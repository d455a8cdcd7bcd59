"""Small files beside the data, on any of Spark's file systems.

On an object store, a rename copies file by file, and a driver that dies meanwhile leaves half of
it. Elsewhere it is one step, and on disk when it returns: HDFS has it on several machines, and on a
local file system the files and folders are synced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ..errors import JobError, PipelineError, cause

ATOMIC: Final = frozenset({"file", "hdfs", "viewfs"})


class Files:
    """The files below one folder. Raises PipelineError for a folder of no file system that Spark has."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001 (there is no other way to ask)
        try:
            path = self._jvm.org.apache.hadoop.fs.Path(root)
            self._system = path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
        except (Py4JError, PySparkException) as error:
            raise PipelineError(f"the folder {root} cannot be used: {cause(error)}") from None
        qualified = path.makeQualified(self._system.getUri(), self._system.getWorkingDirectory())
        self._root = str(qualified.toString())
        self._scheme = str(qualified.toUri().getScheme())

    def require_renaming(self) -> None:
        """Raise PipelineError unless a folder is renamed in one step here."""
        if self._scheme not in ATOMIC:
            raise PipelineError(
                f"{self._root}: folders must be renamed in one step: only {', '.join(sorted(ATOMIC))} do"
            )

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

    def put(self, name: str, text: str, *, sync: bool = False) -> None:
        """Write a file, in place of an earlier one. `sync`: it is on disk then; object stores refuse
        that."""
        stream = self._system.create(self._path(name), True)
        stream.write(bytearray(text.encode()))
        if sync:
            stream.hsync()
        stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all."""
        part = f"{name}.part"
        self.put(part, text, sync=True)
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
        if self._scheme == "file":
            root, path = (Path(self._path(part).toUri().getPath()) for part in ("", name))
            for entry in (root, path.parent, path, *path.rglob("*")):
                descriptor = os.open(entry, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}")
