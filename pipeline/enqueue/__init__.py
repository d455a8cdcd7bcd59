"""Data that Spark reads into a queue, each batch once: `ackstream-enqueue`, and `enqueue` for
DataFrames.

It imports `common`, `endpoint` and `errors`.
"""

from .job import Missing, Mode, Outcome, enqueue, missing

__all__ = ["Missing", "Mode", "Outcome", "enqueue", "missing"]
