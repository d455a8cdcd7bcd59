"""Documents that name tests as evidence name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY, missing

NAMED = re.compile(r"tests/[\w/.]+(?:::\w+)*")
ROW = re.compile(r"^\|(?!---)(.*)\|$", re.MULTILINE)
DOCUMENTS = sorted(
    path for path in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")] if "::test_" in path.read_text()
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    named = NAMED.findall(document.read_text())
    assert named
    assert [name for name in named if missing(name)] == []


def test_each_row_of_the_vitess_page_says_how_it_is_here_and_names_a_test() -> None:
    text = (REPOSITORY / "docs" / "vitess.md").read_text()
    compared, beyond = text.split("## What is not on that page")
    rows = [[cell.strip() for cell in row.split(" | ")] for row in ROW.findall(compared)]
    rows = [row for row in rows if row[0] != "Vitess says"]
    assert len(rows) > 60
    assert [row for row in rows if len(row) != 3 or row[1][0] not in "=+≠" or "::test_" not in row[2]] == []
    assert beyond.count("::test_") >= 8


@pytest.mark.parametrize(
    ("named", "absent"),
    [
        ("tests/unit/test_evidence.py::test_every_test_that_a_document_names_exists", False),
        ("tests/unit/test_evidence.py::test_nothing", True),
        ("tests/unit/test_nothing.py::test_nothing", True),
        ("tests/contract/test_store.py::TestBury::test_an_id_of_0_is_kept_in_the_dead_letter_table", False),
        ("tests/contract/test_store.py::TestNothing::test_an_id_of_0_is_kept_in_the_dead_letter_table", True),
        ("tests/contract/test_store.py::TestBury::test_nothing", True),
    ],
)
def test_what_is_missing_is_found(named: str, absent: bool) -> None:
    assert missing(named) == absent
