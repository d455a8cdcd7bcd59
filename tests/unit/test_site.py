"""What `make docs` refuses: links that lead nowhere, and pages that load anything from elsewhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]

PAGE = '<html><body><h1 id="top">Top</h1>{}</body></html>'


@pytest.fixture
def building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, with a site of two pages."""
    spec = importlib.util.spec_from_file_location("building", REPOSITORY / "scripts" / "site" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(program, "SITE", tmp_path)
    (tmp_path / "index.html").write_text(PAGE.format('<a href="other.html#top">other</a>'))
    (tmp_path / "other.html").write_text(PAGE.format('<a href="#top">here</a> <a href="https://example.org/">away</a>'))
    return program


def test_a_site_whose_links_lead_somewhere_has_no_faults(building: ModuleType) -> None:
    assert building.faults() == []


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('<a href="gone.html">x</a>', "third.html links to gone.html"),
        ('<a href="other.html#gone">x</a>', "third.html links to other.html#gone, which has no such place"),
        ('<a href="#gone">x</a>', "third.html links to #gone, which has no such place"),
        ('<img src="gone.png">', "third.html links to gone.png"),
        ('<script src="https://example.org/x.js"></script>', "third.html loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "third.html loads //example.org/x.css"),
    ],
)
def test_a_fault_is_found(building: ModuleType, content: str, fault: str) -> None:
    (building.SITE / "third.html").write_text(PAGE.format(content))
    assert building.faults() == [fault]


def test_every_page_that_the_site_names_is_there_and_none_is_left_out(building: ModuleType) -> None:
    pages = [page for section in building.navigation().values() for page in section]
    assert [page for page in pages if not (REPOSITORY / page).is_file()] == []
    there = {path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob("docs/*.md")}
    assert there <= set(pages)
    assert len(pages) == len(set(pages))
