"""What goes wrong in a way that the person who started the job can put right."""

from collections.abc import Sequence


class PipelineError(Exception):
    """The text says what is wrong and what to do, and is all that a command line shows."""


class ProblemsError(PipelineError):
    """All that stands against a job, found before anything was written."""

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join([f"{what}; nothing was written:", *(f"  - {problem}" for problem in self.problems)]))


class JobError(PipelineError):
    """The job was right and failed on the way; the same again goes on where it ended."""


class AbandonedError(PipelineError):
    """Somebody has given the batch up, so this job must not go on with it."""


def cause(error: BaseException) -> str:
    """What is at the bottom of an error of Spark's, in a line: Java's innermost cause, or the end of a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if causes := [line for line in lines if line.startswith(("Caused by: ", ": "))]:
        return causes[-1].split(": ", 1)[1]
    if "Traceback (most recent call last):" in lines:
        return lines[-1].removeprefix(f"{__name__}.PipelineError: ")
    said = lines[0] if lines else type(error).__name__
    # Spark's word for what failed ("couldn't connect"), and beside it Java's for why.
    deeper = getattr(error, "_cause", None)
    return said if deeper is None else f"{said}: {cause(deeper)}"
