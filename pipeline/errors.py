"""The errors of the pipeline, each with a text for the person who started the job."""

from collections.abc import Sequence


class PipelineError(Exception):
    """The text names the fault and its remedy. A command line shows nothing else."""


class ProblemsError(PipelineError):
    """Everything that is wrong with a job, found before it began."""

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join([f"{what}:", *(f"  - {problem}" for problem in self.problems)]))


class JobError(PipelineError):
    """A correct job failed on the way. Run again, it continues where it ended."""


class AbandonedError(PipelineError):
    """The batch was abandoned, so this job must not continue it."""


def server_says(error: BaseException) -> str:
    """An error of PyMySQL in one line: the server's text and number."""
    return f"the server says: {error.args[-1]} ({error.args[0]})" if error.args else type(error).__name__


def cause(error: BaseException) -> str:
    """The innermost cause of an error of Spark, in one line: Java's, or the end of a Python
    traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if causes := [line for line in lines if line.startswith(("Caused by: ", ": "))]:
        return causes[-1].split(": ", 1)[1]
    if "Traceback (most recent call last):" in lines:
        return lines[-1].removeprefix(f"{__name__}.PipelineError: ")
    said = lines[0] if lines else type(error).__name__
    # Spark's text names what failed ("couldn't connect"), Java's the reason.
    deeper = getattr(error, "_cause", None)
    return said if deeper is None else f"{said}: {cause(deeper)}"
