"""What became of the messages of queues: `ackstream-report`, and `report` for programs.

It imports `archive` (whose files it reads), `common`, `endpoint` and `errors`.
"""

from .job import Report, report

__all__ = ["Report", "report"]
