"""The examples in docs/: every statement is run, and its result compared with the page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support.proxies import RunningProxy
from tests.support.queues import run
from tests.support.servers import client_program
from tests.support.transcripts import Step, play, steps
from tests.support.waiting import eventually

DOCS = Path(__file__).parents[2] / "docs"
PROGRAM = re.compile(r"^```(python|bash)\n((?:(?!```).*\n)*)```\n```output\n((?:(?!```).*\n)*)```$", re.MULTILINE)

VOLATILE = re.compile(
    r"^( *(?:Id|Connection|Proxy|Host|Since|Until|Idle_s|Oldest_ready_s|Enqueued_per_s|Acked_per_s): ).*$",
    re.MULTILINE,
)
"""Columns whose values differ from run to run."""

DIALECT = (
    (re.compile(r"\b(bigint|int)\((?:20|11)\)"), r"\1"),
    (re.compile(r"_utf8mb4'"), "'"),
    (re.compile(r"DEFAULT '(\d+)'"), r"DEFAULT \1"),
    (re.compile(r" COLLATE=\w+"), ""),
    (re.compile(r"INVISIBLE DEFAULT NULL"), "DEFAULT NULL /*!80023 INVISIBLE */"),
    (re.compile(r"a queue has [A-Z_]+(, [A-Z_]+)+$", re.MULTILINE), "a queue has …"),
    (re.compile(r"\(\("), "("),
    (re.compile(r"\)\)"), ")"),
)
"""What the two servers print differently for the same table, and a list that the page leaves out, with what replaces
it."""


def comparable(text: str) -> str:
    text = VOLATILE.sub(r"\1…", text.rstrip("\n"))
    for pattern, same in DIALECT:
        text = pattern.sub(same, text)
    return text


@pytest.mark.parametrize("name", ["sql.md", "recipes.md", "tables.md", "batches.md", "semaphores.md", "groups.md"])
def test_the_statements_of_a_page_answer_what_it_says(proxy, database, consume, name: str) -> None:
    def as_written(text: str) -> str:
        return text.replace(database, "shop")

    failures: list[str] = []
    with proxy.connect(database=database, program_name="mysql") as connection:
        for step in steps(DOCS / name):
            if step.elsewhere:
                consumer = consume(proxy.connect(database=database, program_name="mysql"), step.sql)
                eventually(partial(len, consumer.received))
            elif comparable(answer := play(connection, step, as_written)) != comparable(step.answer):
                failures.append(f"{name}:{step.line}: {step.statement}\nreturned\n{answer}instead of\n{step.answer}")
    assert not failures, "\n".join(failures)


def test_the_statements_on_groups_that_show_no_answer_are_accepted(proxy, database) -> None:
    blocks = re.findall(r"^```sql\n(?!> )(.*?)^```$", (DOCS / "groups.md").read_text(), re.MULTILINE | re.DOTALL)
    statements = re.findall(r"^(.+?);", "".join(blocks), re.MULTILINE)
    assert {statement.split()[0] for statement in statements} == {"CREATE", "ALTER", "SHOW"}
    with proxy.connect(database=database) as connection:
        run(connection, "CREATE QUEUE orders (customer BIGINT NOT NULL, region INT NOT NULL)")
        for statement in statements:
            run(connection, statement)


def programs() -> list[tuple[str, ...]]:
    return PROGRAM.findall((DOCS / "recipes.md").read_text())


@pytest.mark.parametrize(("language", "text", "output"), programs())
def test_the_programs_of_the_recipes_print_what_the_page_says(
    proxy: RunningProxy, database: str, flavour, language: str, text: str, output: str
) -> None:
    text = (
        text.replace("3307", str(proxy.port))
        .replace('"shop"', f'"{database}"')
        .replace("root shop", f"root {database}")
    )
    if language == "python":
        argv = [sys.executable, "-c", text]
    else:
        argv = ["bash", "-c", text.replace('"mysql -h', f'"{shlex.join(client_program(flavour))} -h')]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.stderr) == (output, "")


def test_a_page_that_is_wrong_is_found(proxy, database) -> None:
    step = Step("SELECT 1 AS a;", "+---+\n| a |\n+---+\n| 2 |\n+---+\n", elsewhere=False, page=DOCS, line=1)
    with proxy.connect(database=database) as connection:
        answer = play(connection, step)
    assert answer == "+---+\n| a |\n+---+\n| 1 |\n+---+\n"
    assert comparable(answer) != comparable(step.answer)


def test_every_recipe_and_statement_is_exercised() -> None:
    recipes = (DOCS / "recipes.md").read_text()
    sections = re.split(r"^## ", recipes, flags=re.MULTILINE)[1:]
    assert len(sections) == 12
    assert all(re.search(r"^```(sql\n> |python\n|bash\n)", section, re.MULTILINE) for section in sections)
    verbs = {step.statement.split()[0].upper() for step in steps(DOCS / "sql.md")}
    assert verbs >= {
        "CREATE",
        "ALTER",
        "DROP",
        "PAUSE",
        "RESUME",
        "PURGE",
        "REDRIVE",
        "SHOW",
        "STREAM",
        "ACK",
        "NACK",
        "EXTEND",
        "INSERT",
    }
