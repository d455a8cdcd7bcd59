"""The documents for users: links lead somewhere, prose is wrapped, names of settings and metrics exist, each block of
code has a test."""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from engine.catalog.directives import OPTIONS
from engine.dispatch.problems import Kind
from proxy.__main__ import COMMANDS, main
from proxy.logs import EventFormatter
from proxy.server.holding import REASONS
from proxy.settings import Settings, load
from sqlrewrite.misspelt import MISSPELT_SHOWN
from tests.fault.chaos.__main__ import arguments as arguments_of_chaos
from tests.support.documents import (
    CHAOS,
    GRAMMAR,
    LOG_LINE,
    REPOSITORY,
    RULES,
    SETTINGS,
    Block,
    How,
    blocks,
    blocks_of,
    missing,
)

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


SHORT = (
    *(
        "operating",
        "processes",
        "proxies",
        "failover",
        "tracing",
        "pages",
        "log",
        "accounts",
        "acknowledgements",
        "tls",
    ),
    *("binlog", "tested", "chaos", "guarantees", "dependencies"),
)
"""One page a subject, for the one on call."""


@pytest.mark.parametrize("name", SHORT)
def test_a_page_for_operators_has_two_screens_at_most(name: str) -> None:
    """A screen has about 500 words. The events of the log are one row each, which nobody reads through."""
    text = re.sub(
        r"^\| `[a-z_]+\.[a-z_]+`.*$", "", (REPOSITORY / "docs" / f"{name}.md").read_text(), flags=re.MULTILINE
    )
    assert len(text.replace("|", " ").split()) <= 1_000
    cells = [
        cell.split() for line in text.splitlines() if line.startswith("|") for cell in re.split(r"(?<!\\)\|", line)
    ]
    assert [" ".join(cell[:9]) for cell in cells if len(cell) > 60] == []


def test_the_workers_on_their_page_are_those_of_the_examples() -> None:
    page = (REPOSITORY / "docs" / "workers.md").read_text()
    for name in ("python/worker_pymysql.py", "node/worker_mysql2.mjs"):
        assert f"\n{(REPOSITORY / 'examples' / name).read_text()}```\n" in page, name
    statements = (REPOSITORY / "examples" / "jobs.sql").read_text().partition("\n")[2]
    assert f"```sql\n{statements}```" in page


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
    for file in ("orders.csv", "FILE", "ackstream.password"):
        (tmp_path / file).write_text("secret")
    line = line.replace("HOST:PORT", "HOST:3306")
    arguments = shlex.split(line.partition(" < ")[0], comments=True)
    name, command, rest = main.resolve_command(click.Context(main), arguments)
    assert command is not None
    with command.make_context(name, rest) as context:  # Its end closes the files that it has opened.
        assert name in COMMANDS
        if name == "serve":
            load(context.params, context.params.pop("config"))


def test_the_documents_have_commands() -> None:
    assert {line.split()[0] for line in commands()} >= {"serve", "consume", "enqueue"}


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_each_block_has_one_rule_for_its_test(block: Block) -> None:
    """A new block needs a rule in tests/support/documents.py, and what that rule says."""
    assert len([rule for rule in RULES if rule.covers(block)]) == 1


def test_each_rule_has_blocks_and_a_test() -> None:
    assert [rule for rule in RULES if not any(map(rule.covers, blocks()))] == []
    assert [rule for rule in RULES if rule.how is not How.NOTHING and missing(rule.test)] == []


def test_a_drawing_has_nothing_that_could_be_typed() -> None:
    drawings = [block.text for rule in RULES if rule.how is How.NOTHING for block in blocks() if rule.covers(block)]
    assert drawings
    assert [
        text for text in drawings if re.search(r"^(\$|>|(\S*/)?(ackstream|mysql|make|pip) )", text, re.MULTILINE)
    ] == []


def test_the_settings_on_a_page_are_loaded(tmp_path: Path) -> None:
    for block in blocks_of(SETTINGS):
        token = tmp_path / "token"
        token.write_text("0123456789abcdef")
        file = tmp_path / "ackstream.toml"
        file.write_text(block.text.replace("/etc/ackstream/admin-token", str(token)))
        settings = load({}, file)
        assert (settings.admin_tls, settings.admin_token_file) == (True, token)


def test_the_grammar_has_the_options_of_queues() -> None:
    (grammar,) = blocks_of(GRAMMAR)
    names = re.search(r"^option_name +::=(.*?)^\w", grammar.text, re.MULTILINE | re.DOTALL)
    assert names
    assert set(re.findall(r'"(\w+)"', names[1])) == set(OPTIONS)


def test_the_grammar_has_each_word_that_can_follow_show() -> None:
    (grammar,) = blocks_of(GRAMMAR)
    shown = grammar.text.partition("\nshow ")[2].partition("\n\n")[0]
    assert set(re.findall(r'"(\w+)"', shown)) >= {*MISSPELT_SHOWN.values(), "QUEUE"}


def test_a_line_of_the_log_is_as_the_log_writes_it() -> None:
    (block,) = blocks_of(LOG_LINE)
    line = block.text.rstrip("\n")
    time, level, event, message = line.split(" ", 3)
    record = logging.LogRecord("engine", logging.getLevelNamesMapping()[level], "", 1, message, (), None)
    record.event = event.removesuffix(":")
    written = EventFormatter("text").format(record)
    assert (len(written.split()[0]), written.partition(" ")[2]) == (len(time), line.partition(" ")[2])


HOLDS_NOTHING_BACK = {
    *(
        "ACK_WAIT",
        "MIN_BACKOFF",
        "MAX_BACKOFF",
        "PURGE_AFTER",
        "BATCH_SIZE",
        "MESSAGE_COLS",
        "DEAD_LETTER_OF",
        "REASON",
    ),
    *("GROUP_BY", "BATCH_BY", "LEASE", "ON_DISCONNECT"),
}
"""The options of a queue that hold no message back."""


def nothing_is_delivered() -> str:
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    return page.partition("\n## Nothing is delivered\n")[2].partition("\n## ")[0]


def test_nothing_is_delivered_has_a_row_for_each_reason_that_the_metric_names() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", nothing_is_delivered(), re.MULTILINE)
    assert sorted(rows) == sorted(REASONS)


def test_nothing_is_delivered_names_each_kind_of_problem_and_each_option_that_holds_messages_back() -> None:
    named = set(re.findall(r"`([\w.]+)", nothing_is_delivered()))
    assert {kind.value for kind in Kind} - {
        "release.refused",
        "purge.refused",
        "message.repeated",
        "message.expired",
        "message.overdue",
    } - named == set()
    assert OPTIONS.keys() - HOLDS_NOTHING_BACK - named == set()


def test_the_errors_of_troubleshooting_stand_in_the_order_of_their_numbers() -> None:
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    table = page.partition("## By error text\n")[2].partition("\n## ")[0]
    numbers = [int(number) for number in re.findall(r"^\| `(\d+) ", table, re.MULTILINE)]
    assert numbers == sorted(numbers)
    assert {1020, 1205, 1213} <= set(numbers)


def test_the_targets_of_make_on_a_page_take_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    for block in blocks_of(CHAOS):
        for line in block.text.splitlines():
            typed = shlex.split(line.removeprefix("$ "), comments=True)
            made = subprocess.run([*typed, "--dry-run"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
            (program,) = [shown for shown in made.stdout.splitlines() if "tests.fault.chaos" in shown]
            monkeypatch.setattr("sys.argv", ["chaos", *shlex.split(program.partition("tests.fault.chaos ")[2])])
            given = vars(arguments_of_chaos())
            assert (given["minutes"], given["shrink"]) == (30, 8)
