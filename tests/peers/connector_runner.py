"""The runner of MySQL Connector/Python's suite, with a report and a limit for each test; run by that suite's Python.

It prepares what its tests expect. In place of its printer goes one that writes a report in JUnit's form. A test that
hangs is broken off, so that it holds up no other.
"""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path
from typing import Any

LIMIT_S = 30
"""The longest takes 15 s, waiting for its own time-outs."""


class TooLong(BaseException):
    """No test can take it for an error of the driver's."""


def stop(*_: object) -> None:
    """Break the running test off."""
    raise TooLong(f"not done after {LIMIT_S} s")


def main(report: Path) -> None:
    """Run as unittests.py does, with its own arguments in sys.argv."""
    sys.path.insert(0, str(Path.cwd()))
    unittests: Any = importlib.import_module("unittests")
    runners: Any = importlib.import_module("xmlrunner")
    results: Any = importlib.import_module("xmlrunner.result")

    class Result(results._XMLTestResult):  # type: ignore[misc]
        def startTest(self, test: Any) -> None:  # noqa: N802 - unittest's name
            super().startTest(test)
            signal.alarm(LIMIT_S)

        def stopTest(self, test: Any) -> None:  # noqa: N802
            signal.alarm(0)
            super().stopTest(test)

    signal.signal(signal.SIGALRM, stop)
    with report.open("wb") as output:
        unittests.BasicTestRunner = lambda verbosity: runners.XMLTestRunner(
            output=output, verbosity=verbosity, resultclass=Result
        )
        unittests.main()


if __name__ == "__main__":
    main(Path(sys.argv.pop(1)))
