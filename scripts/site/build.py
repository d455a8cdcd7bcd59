"""Builds the documents as a site in build/site, in the environment of `make docs`.

The pages are those that a reader finds in the repository. They are copied into one folder, with
their links adapted; README is the front page. The site needs no server and no network, and its
search works from files. It is refused if a link leads nowhere, or if a page loads anything from
elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SOURCE, SITE = REPOSITORY / "build" / "site-source", REPOSITORY / "build" / "site"

NAVIGATION = {
    "Begin": ("README.md", "docs/start.md", "docs/concepts.md", "docs/faq.md", "docs/comparison.md"),
    "Workers": ("docs/workers.md", "docs/recipes.md", "docs/drivers.md", "docs/spark.md"),
    "Reference": (
        "docs/sql.md",
        "docs/guarantees.md",
        "docs/tested.md",
        "docs/chaos.md",
        "docs/groups.md",
        "docs/batches.md",
        "docs/semaphores.md",
        "docs/tables.md",
        "docs/settings.md",
        "docs/limits.md",
        "docs/vitess.md",
    ),
    "Operating": (
        "docs/operating.md",
        "docs/troubleshooting.md",
        "docs/processes.md",
        "docs/proxies.md",
        "docs/failover.md",
        "docs/upgrading.md",
        "docs/accounts.md",
        "docs/tls.md",
        "docs/pages.md",
        "docs/metrics.md",
        "docs/log.md",
        "docs/tracing.md",
        "docs/binlog.md",
        "docs/acknowledgements.md",
        "docs/sizing.md",
        "docs/performance.md",
        "docs/dependencies.md",
    ),
    "Project": ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"),
}
"""The order of the pages. A page of docs/ that is not named comes behind those of "Reference"."""

PICTURES = {".png", ".svg"}

SHIM_URL = "https://unpkg.com/iframe-worker/shim"
SHIM = HERE / "node_modules" / "iframe-worker" / "shim" / "index.js"
"""Browsers run no worker from a file, and the search is one. The theme loads this replacement."""

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[((?:[^\]\\]|\\.)*)\]\(([^)\s]+)\)")

SETTINGS = """
site_name: ackstream
docs_dir: {source}
site_dir: {site}
strict: true
use_directory_urls: false
theme:
  name: material
  font: false
  features: [navigation.tabs, navigation.top, search.highlight, search.suggest, content.code.copy]
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
plugins: [search, offline]
validation:
  links: {{not_found: warn, anchors: warn, absolute_links: warn, unrecognized_links: warn}}
markdown_extensions:
  - tables
  - pymdownx.superfences
  - pymdownx.highlight
  - toc:
      permalink: true
      slugify: !!python/object/apply:pymdownx.slugs.slugify {{kwds: {{case: lower}}}}
nav:
"""


def name_of(page: str) -> str:
    """The name of a page in the site."""
    return "index.md" if page == "README.md" else Path(page).name


def navigation() -> dict[str, list[str]]:
    """All pages by section, with those that NAVIGATION does not name."""
    named = {page for pages in NAVIGATION.values() for page in pages}
    there = sorted(path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob("docs/*.md"))
    sections = {section: list(pages) for section, pages in NAVIGATION.items()}
    sections["Reference"] += [page for page in there if page not in named]
    return sections


def assemble() -> None:
    """Copy all pages, and the files that they link to, with links adapted to their new places."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    pages = [page for section in navigation().values() for page in section]
    for page in pages:
        text = (REPOSITORY / page).read_text()
        parts, at = [], 0
        for fence in FENCED.finditer(text):
            parts += [adapted(text[at : fence.start()], page, pages), fence[0]]
            at = fence.end()
        (SOURCE / name_of(page)).write_text("".join([*parts, adapted(text[at:], page, pages)]))


def adapted(text: str, page: str, pages: list[str]) -> str:
    """The text with each link to a page, to a file (which is copied) or to a folder (no link)."""

    def replaced(match: re.Match[str]) -> str:
        words, target = match.groups()
        if urlsplit(target).scheme or target.startswith("#"):
            return match[0]
        place, _, anchor = target.partition("#")
        path = ((REPOSITORY / page).parent / place).resolve()
        inside = path.relative_to(REPOSITORY).as_posix()
        if inside in pages:
            return f"[{words}]({name_of(inside)}{'#' + anchor if anchor else ''})"
        if path.is_dir():
            return words
        (SOURCE / "files" / inside).parent.mkdir(parents=True, exist_ok=True)
        shown = inside if path.suffix in PICTURES else f"{inside}.txt"  # A browser shows text, whatever it is.
        shutil.copyfile(path, SOURCE / "files" / shown)
        return f"[{words}](files/{shown})"

    return LINK.sub(replaced, text)


def build() -> None:
    """Build the site. Any warning is an error."""
    lines = [f"  - {section}: [{', '.join(map(name_of, pages))}]" for section, pages in navigation().items()]
    config = SOURCE.parent / "mkdocs.yml"
    config.write_text(SETTINGS.format(source=SOURCE, site=SITE).lstrip() + "\n".join(lines) + "\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--clean", "--quiet", "--config-file", str(config)]
    subprocess.run(command, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    shutil.copyfile(SHIM, SITE / "assets" / "iframe-worker.js")
    for page in SITE.rglob("*.html"):
        page.write_text(page.read_text().replace(SHIM_URL, "assets/iframe-worker.js"))


class Page(HTMLParser):
    """What a page links to and loads, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        """Read the page."""
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {"", "__top"}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the attributes of a tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in {"script", "img", "source", "iframe"} and "src" in values:
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") not in {"canonical", "prev", "next"}:
            self.loaded.append(values.get("href", ""))


def faults() -> list[str]:
    """Links that lead nowhere, and what is loaded from elsewhere."""
    pages = {path: Page(path) for path in SITE.rglob("*.html")}
    found: list[str] = []
    for path, page in pages.items():
        for target in page.links + page.loaded:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loaded and parts.scheme != "data":
                    found.append(f"{path.name} loads {target}")
                continue
            reached = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            reached = reached / "index.html" if reached.is_dir() else reached
            if not reached.exists():
                found.append(f"{path.name} links to {target}")
            elif reached in pages and unquote(parts.fragment) not in pages[reached].anchors:
                found.append(f"{path.name} links to {target}, which has no such place")
    return found


def main() -> int:
    """Build and check; the exit status."""
    assemble()
    build()
    problems = [problem for problem in faults() if not problem.startswith("404.html")]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems) or f"built: {SITE / 'index.html'}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
