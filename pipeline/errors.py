"""The errors of the pipeline, each with a text for the person who started the job."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, Final, TypeVar, cast

import pymysql

HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Spark reads this variable when a Python process of it ends with an error."""

CLIENTS_OWN: Final = range(2000, 3000)
"""Numbers of errors that a client finds: no server has said anything."""

_OURS: Final = re.compile(rf"\b{re.escape(__name__)}\.\w+: (.+)")
"""How Spark quotes an error of this module."""

F = TypeVar("F", bound=Callable[..., Any])


class PipelineError(Exception):
    """The text names the fault and its remedy. A command line shows nothing else."""

    def _render_traceback_(self) -> list[str]:
        """The lines that a notebook (IPython) shows."""
        return f"{type(self).__name__}: {self}".splitlines()


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
    """An error of PyMySQL in one line: the server's text and number, or the client's own text."""
    if not error.args:
        return type(error).__name__
    if error.args[0] in CLIENTS_OWN:
        return str(error.args[-1])
    return f"the server says: {error.args[-1]} ({error.args[0]})"


def without_traceback(method: F) -> F:
    """The method of a source or sink, whose PipelineErrors and errors of the server Spark reports by
    their text alone.

    They end the process in which Spark has called it, so the variable has no other effect.
    """

    @wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        with _shortly():
            return method(*arguments, **named)

    @wraps(method)
    def iterated(*arguments: Any, **named: Any) -> Iterator[Any]:
        with _shortly():
            yield from method(*arguments, **named)

    return cast("F", iterated if isgeneratorfunction(method) else called)


@contextmanager
def _shortly() -> Iterator[None]:
    try:
        yield
    except (PipelineError, pymysql.MySQLError) as error:
        os.environ[HIDE_TRACEBACK] = "1"
        if isinstance(error, PipelineError):
            raise
        raise PipelineError(server_says(error)) from None


def cause(error: BaseException) -> str:
    """The innermost cause of an error of Spark, in one line: an error of this module, Java's, or the
    end of a Python traceback."""
    if ours := _OURS.search(str(error)):
        return ours[1]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if causes := [line for line in lines if line.startswith(("Caused by: ", ": "))]:
        return causes[-1].split(": ", 1)[1]
    if "Traceback (most recent call last):" in lines:
        return lines[-1]
    said = lines[0] if lines else type(error).__name__
    # Spark's text names what failed ("couldn't connect"), Java's the reason.
    deeper = getattr(error, "_cause", None)
    return said if deeper is None else f"{said}: {cause(deeper)}"
