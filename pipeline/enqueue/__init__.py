"""Data that Spark reads into a queue, each batch once: `ackstream-enqueue`, and `enqueue` for
DataFrames.

It imports `common`, `endpoint` and `errors`.
"""

from .job import Mode, Outcome, enqueue

__all__ = ["Mode", "Outcome", "enqueue"]
