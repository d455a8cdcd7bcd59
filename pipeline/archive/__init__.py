"""Acknowledged messages to Parquet, and then away from the queue: `ackstream-archive`, and
`archive` for programs.

It imports `common`, `endpoint` and `errors`.
"""

from .job import Archived, Sizes, archive

__all__ = ["Archived", "Sizes", "archive"]
