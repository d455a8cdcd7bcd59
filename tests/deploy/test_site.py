"""The site that `make docs` builds, opened from its files in a browser without a network."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.browser import opened

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(120)]

REPOSITORY = Path(__file__).parents[2]
INDEX = REPOSITORY / "build" / "site" / "index.html"
PAGE = REPOSITORY / "docs" / "pages.md"
"""A page with pictures."""
TYPE = """
const field = document.querySelector('.md-search__input');
field.focus();
field.value = %s;
field.dispatchEvent(new Event('keyup', {bubbles: true}));
field.dispatchEvent(new Event('input', {bubbles: true}));
"""
FOUND = """
new Promise(done => {
  const look = () => {
    const links = [...document.querySelectorAll('.md-search-result__link')].map(link => link.href);
    links.length ? done(links) : setTimeout(look, 50);
  };
  look();
})
"""


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("dead letter", "concepts.html"),
        ("reuse_port", "upgrading.html"),
        ("1205", "troubleshooting.html"),
        ("rate limit", "groups.html"),
        ("exactly once", "guarantees.html"),
    ],
)
def test_the_search_works_without_a_server(tmp_path: Path, words: str, page: str) -> None:
    async def visit() -> None:
        async with opened(tmp_path / "profile") as tab:
            seen = await tab.look(INDEX.as_uri())
            assert [url for url in seen.requests if not url.startswith(("file:", "data:", "blob:"))] == []
            await tab.evaluate(TYPE % json.dumps(words))
            links = await asyncio.wait_for(tab.evaluate(FOUND), 60)
            assert [link for link in links if page in link], links
            assert (await tab.seen(INDEX.as_uri())).complaints == []

    asyncio.run(visit())


def test_pictures_are_shown(tmp_path: Path) -> None:
    async def visit() -> None:
        async with opened(tmp_path / "profile") as tab:
            await tab.look(INDEX.with_name("pages.html").as_uri())
            shown = await tab.evaluate("[...document.images].map(image => image.naturalWidth > 100)")
            assert shown == [True] * PAGE.read_text().count("![")

    asyncio.run(visit())
