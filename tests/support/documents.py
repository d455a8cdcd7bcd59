"""The fenced blocks of README.md and docs/*.md, and how each is tested.

RULES is the one list. tests/unit/test_pages.py requires exactly one rule for each block, and the test that a rule
names. A test takes its blocks from the page (`blocks_of`, or its own pattern), so a page that changes is tested as it
is then.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class How(Enum):
    """What a test does with a block."""

    PLAYED = "its statements are executed through a proxy, and the answers compared where it has any"
    RUN = "the program or command is run"
    PRINTED = "a program's output is compared with it"
    LOADED = "it is loaded as settings"
    COMPARED = "its names are compared with those of the program"
    PARSED = "its options are parsed by the real command line"
    NOTHING = "a drawing: there is nothing to run"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


@dataclass(frozen=True)
class Rule:
    """How blocks are tested: those of these pages (a pattern of names) and language in which the regular expression
    is found; lines begin at `^`."""

    pages: str
    language: str
    found: str
    how: How
    test: str = ""

    def covers(self, block: Block) -> bool:
        return (
            fnmatch(block.page.name, self.pages)
            and block.language == self.language
            and re.search(self.found, block.text, re.MULTILINE) is not None
        )


_INTEGRATION: Final = "tests/integration/test_documents.py::"
_COMMAND_LINE: Final = "tests/integration/test_command_line.py::"
_WORKERS: Final = (
    "tests/drivers/test_worker_programs.py::test_a_killed_worker_leaves_no_effect_and_its_message_to_another"
)
_PAGES: Final = "tests/unit/test_pages.py::"
_SPARK: Final = "tests/pipeline/test_spark_page.py::"
README_SESSION: Final = f"{_COMMAND_LINE}test_the_session_that_opens_the_readme_works_as_typed"
STATEMENTS: Final = f"{_INTEGRATION}test_the_statements_of_a_page_answer_what_it_says"
PROGRAMS: Final = f"{_INTEGRATION}test_the_programs_of_the_recipes_print_what_the_page_says"
GROUPS: Final = f"{_INTEGRATION}test_the_statements_on_groups_that_show_no_answer_are_accepted"
COMMANDS: Final = f"{_INTEGRATION}test_the_commands_of_their_page_work_as_typed"
MIGRATE: Final = f"{_INTEGRATION}test_the_commands_that_migrate_work_as_typed"
SHOWN: Final = f"{_INTEGRATION}test_a_sample_has_the_columns_of_the_statement"
READY: Final = f"{_INTEGRATION}test_the_line_that_reports_the_start_is_as_written"
SERVE_LINES: Final = (
    "tests/integration/test_serve_lines.py::test_a_line_that_starts_the_proxy_in_front_of_a_server_starts_it"
)
CHAOS: Final = f"{_PAGES}test_the_targets_of_make_on_a_page_take_its_arguments"
SETTINGS: Final = f"{_PAGES}test_the_settings_on_a_page_are_loaded"
GRAMMAR: Final = f"{_PAGES}test_the_grammar_has_the_options_of_queues"
LOG_LINE: Final = f"{_PAGES}test_a_line_of_the_log_is_as_the_log_writes_it"
SPARK_PYTHON: Final = f"{_SPARK}TestPrograms"
SPARK_SHELL: Final = f"{_SPARK}TestCommands"
SPARK_URL: Final = f"{_SPARK}test_the_form_of_a_url"
SPARK_EXTRAS: Final = f"{_SPARK}test_the_extras_that_pip_installs_exist"
SPARK_SUBMIT: Final = "tests/pipeline/test_cluster.py::test_a_job_on_two_workers_of_which_one_is_killed"

RULES: Final = (
    # SQL, typed at a prompt or not.
    Rule("[a-z]*.md", "sql", r"\A(elsewhere)?> ", How.PLAYED, STATEMENTS),
    Rule("README.md", "python", r"\Aimport pymysql", How.RUN, README_SESSION),
    Rule("groups.md", "sql", r"\A[A-Z]", How.PLAYED, GROUPS),
    Rule(
        "start.md", "sql", r"\ACREATE USER", How.PLAYED,
        f"{_COMMAND_LINE}test_the_account_of_the_start_page_serves_a_queue_without_a_complaint",
    ),
    Rule("workers.md", "sql", r"\ACREATE QUEUE", How.PLAYED, _WORKERS),
    Rule("sql.md", "bnf", r"\Astatement ", How.COMPARED, GRAMMAR),
    Rule("sql.md", "text", r"\A> SHOW PROXIES", How.COMPARED, SHOWN),
    # Programs.
    Rule("recipes.md", "python", "", How.RUN, PROGRAMS),
    Rule("recipes.md", "bash", "", How.RUN, PROGRAMS),
    Rule("recipes.md", "output", "", How.PRINTED, PROGRAMS),
    Rule("workers.md", "python", r"\A\"\"\"", How.RUN, _WORKERS),
    Rule("workers.md", "js", "", How.RUN, _WORKERS),
    Rule(
        "workers.md", "python", r"\(Base\)", How.RUN,
        "tests/drivers/test_pools.py::test_the_model_on_the_page_enqueues",
    ),
    Rule(
        "workers.md", "python", r"\(models\.Model\)", How.RUN,
        "tests/drivers/test_pools.py::test_a_migration_of_django_makes_a_queue_and_the_model_on_the_page_enqueues",
    ),
    # Terminals.
    Rule(
        "README.md", "console", r"^\$ make serve", How.RUN,
        "tests/empty_root/test_first_minutes.py::test_the_first_screen_works_in_an_empty_system",
    ),
    Rule("README.md", "console", r"^\$ mysql", How.PLAYED, README_SESSION),
    Rule(
        "start.md", "console", "", How.PLAYED,
        f"{_COMMAND_LINE}test_the_endless_stream_of_the_start_page_works_as_typed",
    ),
    Rule("chaos.md", "console", r"\A\$ make chaos", How.PARSED, CHAOS),
    Rule("*.md", "sh", r"ackstream serve ", How.RUN, SERVE_LINES),
    Rule("commands.md", "sh", r"\A(ackstream (consume|enqueue) |eval )", How.RUN, COMMANDS),
    Rule("upgrading.md", "sh", r"\Aackstream migrate ", How.RUN, MIGRATE),
    Rule(
        "README.md", "", r"\Aone tenant floods", How.PRINTED,
        "tests/integration/test_demo.py::test_the_recording_in_the_readme_is_what_the_demo_prints",
    ),
    Rule("operating.md", "", r"\Aackstream ready ", How.PRINTED, READY),
    Rule("log.md", "", r"\A\d{4}-\d\d-\d\dT", How.PRINTED, LOG_LINE),
    Rule("pages.md", "toml", "", How.LOADED, SETTINGS),
    # Spark.
    Rule("spark.md", "python", "", How.RUN, SPARK_PYTHON),
    Rule("spark.md", "sh", r"\Aackstream-", How.RUN, SPARK_SHELL),
    Rule("spark.md", "sh", r"spark-submit ", How.RUN, SPARK_SUBMIT),
    Rule("spark.md", "sh", r"\Apip install './pipeline\[", How.PARSED, SPARK_EXTRAS),
    Rule("spark.md", "", r"\Amysql://", How.PARSED, SPARK_URL),
    # Drawings.
    Rule("*.md", "", r"[─▶◀■]|\A GROUP_ORDER|\A +capacity ", How.NOTHING),
)  # fmt: skip


def blocks() -> list[Block]:
    """All fenced blocks of README.md and docs/*.md."""
    found: list[Block] = []
    for page in (REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/*.md"))):
        text = page.read_text()
        found += [
            Block(page, text.count("\n", 0, fence.start()) + 1, fence[1], fence[2]) for fence in FENCE.finditer(text)
        ]
    return found


def blocks_of(test: str) -> list[Block]:
    """The blocks whose rule names this test; not empty."""
    found = [block for block in blocks() if any(rule.test == test and rule.covers(block) for rule in RULES)]
    assert found, test
    return found


def missing(named: str) -> bool:
    """Whether there is no such file, or no such class or function in it. `named`: FILE::NAME::NAME."""
    place, *names = named.split("::")
    path = REPOSITORY / place
    if not path.exists():
        return True
    body: list[ast.stmt] = ast.parse(path.read_text()).body if names else []
    for name in names:
        found = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name]
        if not found:
            return True
        body = found[0].body
    return False
