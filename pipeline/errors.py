"""What goes wrong in a way that the person who started the job can put right."""

from collections.abc import Sequence


class PipelineError(Exception):
    """The text says what is wrong and what to do, and is all that a command line shows."""


class ProblemsError(PipelineError):
    """All that stands against a job, found before anything was written."""

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join([f"{what}; nothing was written:", *(f"  - {each}" for each in self.problems)]))


class JobError(PipelineError):
    """The job was right and failed on the way; the same again goes on where it ended."""
