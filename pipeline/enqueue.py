"""Any DataFrame into a message table, once: `ackstream-enqueue`, and the same as a function."""

from pipeline.errors import PipelineError


def main() -> None:
    """The console script."""
    raise PipelineError("not written yet")
