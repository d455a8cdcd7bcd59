"""An archiving driver as a process of its own on the JVM of the tests, which ends at POINT as kill -9 ends it.

PROGRAM URL DIRECTORY POINT. That the JVM lives on is the harder case: what it was told to do, it may still do.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pipeline.archive import job as subject
from pipeline.common.files import Files
from pipeline.endpoint import Endpoint


def attached() -> SparkSession:
    """A session on the JVM that PYSPARK_GATEWAY_PORT names."""
    gateway = launch_gateway()
    jvm: Any = gateway.jvm
    running = jvm.org.apache.spark.SparkContext.getOrCreate()
    context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    settings = SparkConf(_jvm=jvm, _jconf=context.getConf())
    return SparkSession(SparkContext(gateway=gateway, jsc=context, conf=settings))


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_at(point: str) -> None:
    """Put the end where it is wanted, before or behind the step that it is about."""
    write, rename = Files.write, Files.rename

    def writing(self: Files, name: str, text: str) -> None:
        if point == "deleted" and name.endswith("_purged.json"):
            die()
        write(self, name, text)
        if point == "planned" and name.startswith("runs/"):
            die()

    def renaming(self: Files, old: str, new: str) -> None:
        if point == "verified" and new.startswith("messages/") and old.startswith("pending/"):
            die()
        rename(self, old, new)
        if point == "in place" and new.startswith("messages/") and old.startswith("pending/"):
            die()

    Files.write = writing  # type: ignore[method-assign]
    Files.rename = renaming  # type: ignore[method-assign]
    if point == "written":
        subject._Archiver._compare = die  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    dying_at(sys.argv[3])
    sizes = subject.Sizes(chunk_rows=300, slice_rows=150, max_connections=2)
    subject.archive(attached(), Endpoint.from_url(sys.argv[1]), "m", sys.argv[2], sizes=sizes)
