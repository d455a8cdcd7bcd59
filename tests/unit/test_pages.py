"""The documents for users: links lead somewhere, prose is wrapped, names of settings and metrics exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from proxy.__main__ import COMMANDS, main
from proxy.settings import Settings

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")])
COLUMNS_MAX = 100

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken: list[str] = []
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if link.startswith("https://"):
            continue
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_prose_is_wrapped(page: Path) -> None:
    """Tables and code may be wider."""
    prose = FENCED.sub("", page.read_text()).splitlines()
    assert [line for line in prose if len(line) > COLUMNS_MAX and not line.startswith("|")] == []


def test_a_stranger_can_read_the_readme_at_one_sitting() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 150


def test_the_workers_on_their_page_are_those_of_the_examples() -> None:
    page = (REPOSITORY / "docs" / "workers.md").read_text()
    for name in ("python/worker_pymysql.py", "node/worker_mysql2.mjs"):
        assert f"\n{(REPOSITORY / 'examples' / name).read_text()}```\n" in page, name
    statements = (REPOSITORY / "examples" / "jobs.sql").read_text().partition("\n")[2]
    assert f"```\n{statements}```" in page


def test_every_setting_stands_in_its_page_with_its_default() -> None:
    page = (REPOSITORY / "docs" / "settings.md").read_text()
    options = {
        name.replace("-", "_"): default
        for name, default in re.findall(r"^\| `--([\w-]+)[^|]*(?:\\\|[^|]*)*\| ([^|]+) \|", page, re.MULTILINE)
    }
    others = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    assert options.pop("config") == "none"
    assert not options.keys() & others.keys()
    stated = {**options, **others}
    assert stated.keys() == Settings.model_fields.keys()
    defaults = {name: Settings.model_fields[name].default for name in stated}
    wrong = {name: (text, defaults[name]) for name, text in stated.items() if not is_written(defaults[name], text)}
    assert wrong == {}


def is_written(default: object, text: str) -> bool:
    """Whether the text of a table's cell stands for the default of a setting."""
    if default in (None, ()):
        return not text[0].isdigit()
    if isinstance(default, bool):
        return text == ("on" if default else "off")
    if size := re.fullmatch(r"(\d+) ([kM])B", text):
        return default == int(size[1]) << {"k": 10, "M": 20}[size[2]]
    if isinstance(default, int | float):
        return default == (int(text, 8) if re.fullmatch("0[0-7]+", text) else float(text))
    return str(default) == text


COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?ackstream ((?!ready)[a-z].*)$", re.MULTILINE)


def commands() -> list[str]:
    """Every command line of the program in a block of the documents."""
    blocks = (block for page in PAGES for block in FENCED.findall(page.read_text()))
    return sorted({line.strip() for block in blocks for line in COMMAND.findall(block)})


@pytest.mark.parametrize("line", commands())
def test_every_command_in_the_documents_is_understood(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACKSTREAM_URL", "mysql://app@127.0.0.1:3307/shop")
    for file in ("orders.csv", "FILE"):
        (tmp_path / file).write_text("secret")
    line = line.replace("HOST:PORT", "HOST:3306")
    arguments = shlex.split(line.partition(" < ")[0], comments=True)
    name, command, rest = main.resolve_command(click.Context(main), arguments)
    assert command is not None
    with command.make_context(name, rest):  # The end of the context closes the files that it has opened.
        assert name in COMMANDS


def test_the_documents_have_commands() -> None:
    assert {line.split()[0] for line in commands()} >= {"serve", "consume", "enqueue"}
