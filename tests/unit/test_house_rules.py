"""The house rules that no linter knows, as a test that reads the repository.

A rule that existing code breaks is not relaxed: the offender is named in `ALLOWED`, with the size
it may have at most, and the list may only shrink (an entry that is not needed any more fails too).
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.xdist_group("house rules")  # One process parses the repository.

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("proxy", "sqlrewrite", "engine", "pipeline")
PYTHON_FOLDERS = (*PACKAGES, "tests", "demo", "bench")
TEXT_SUFFIXES = {"", ".cfg", ".ini", ".md", ".py", ".sh", ".sql", ".toml", ".txt", ".yaml", ".yml"}

DOTTED_NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)`")
FILE_ENDINGS = (".md", ".py", ".sql", ".toml")

FUNCTION_LINES_MAX = 70
ALLOWED: dict[str, int] = {}

# The modules of the engine that touch the world. Every other one is pure, and listed as such in pyproject.toml.
ENGINE_SHELL = {
    "engine.binlog.pipe",
    "engine.binlog.reader",
    "engine.binlog.replication_adapter",
    "engine.binlog.supervisor",
    "engine.primary.observation",
    "engine.primary.watch",
    "engine.runtime.begun_calls",
    "engine.runtime.call_threads",
    "engine.runtime.executor",
    "engine.runtime.gathered_acks",
    "engine.runtime.indirect_writes",
    "engine.runtime.lasting_calls",
    "engine.runtime.polls",
    "engine.runtime.queues",
    "engine.runtime.roster",
    "engine.runtime.shared_runs",
    "engine.runtime.slow_tables",
    "engine.runtime.store_effects",
    "engine.runtime.table_runner",
    "engine.service",
    "engine.store.acknowledging",
    "engine.store.batches",
    "engine.store.begun",
    "engine.store.claiming",
    "engine.store.connection",
    "engine.store.dead_letter",
    "engine.store.fetch",
    "engine.store.group_scan",
    "engine.store.information_schema",
    "engine.store.mysql",
    "engine.store.opening",
    "engine.store.partitions",
    "engine.store.pool",
    "engine.store.privileges",
    "engine.store.pymysql_adapter",
    "engine.store.queries",
    "engine.store.reach",
    "engine.store.own_writes",
    "engine.store.recent",
    "engine.store.roster",
    "engine.store.route",
    "engine.store.server_states",
    "engine.store.scan",
    "engine.store.limits.claim",
    "engine.store.limits.group_rate",
    "engine.store.limits.of_queue",
    "engine.store.limits.semaphores",
    "engine.store.unlocked",
    "engine.store.unprepared",
}

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
MACHINE_PATHS = re.compile(r"/(work|tmp/v|var/tmp|root|home/\w+|Users/\w+)/")
REGISTRY_HOSTS = re.compile(
    r"\b((deb|files|index|mirror|packages|registry|security|snapshot)\.\w+|py.i)\.(com|org|io)\b"
)
STATEMENT = re.compile(
    r"^\s*(SELECT\b.+\bFROM|INSERT\s+INTO|REPLACE\s+INTO|UPDATE\b.+\bSET|DELETE\s+FROM|"
    r"(CREATE|ALTER|DROP)\s+TABLE(?!$)|START\s+TRANSACTION|"
    r"SELECT\b.+\bLIMIT|SET\s+\w+\s+=|SHOW\s+CREATE\s+(TABLE|USER)\s(?!shows)|COMMIT\s+AND|ROLLBACK\s+AND|EXPLAIN)\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file, parsed."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        """The path inside the repository."""
        return self.path.relative_to(REPOSITORY).as_posix()

    def at(self, node: ast.AST) -> str:
        """Where something stands, for a message that an editor can follow."""
        return f"{self.place}:{getattr(node, 'lineno', 1)}"

    def calls(self, *dotted: str) -> Iterator[ast.Call]:
        """The calls of functions written like this (`time.sleep`, `print`)."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in dotted:
                yield node

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions and methods."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def strings(self, *types: type) -> Iterator[ast.Constant]:
        """All literals of these types (str, if none is given) but the docstrings."""
        docstrings = {id(node.value) for node in ast.walk(self.tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, types or str):
                yield from () if id(node) in docstrings else (node,)


def parse(path: Path) -> Module:
    text = path.read_text()
    return Module(path, text, ast.parse(text, path))


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    paths = [path for folder in PYTHON_FOLDERS for path in (REPOSITORY / folder).rglob("*.py")]
    return [parse(path) for path in sorted(paths)]


@pytest.fixture(scope="module")
def library(modules: list[Module]) -> list[Module]:
    return [module for module in modules if module.place.startswith(PACKAGES)]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """What a commit may hold: every text file that is not ignored, by its place.

    This file is left out, since it spells what it forbids.
    """
    ignored = {line.strip("/\n") for line in (REPOSITORY / ".gitignore").read_text().splitlines()}
    ignored |= {".git", "LICENSE", "locks"}
    return {
        path.relative_to(REPOSITORY).as_posix(): path.read_text()
        for top in REPOSITORY.iterdir()
        if top.name not in ignored and not top.name.endswith("_cache")
        for path in ([top] if top.is_file() else sorted(top.rglob("*")))
        if path.is_file() and path.suffix in TEXT_SUFFIXES
        if ignored.isdisjoint(path.relative_to(REPOSITORY).parts)
        if path != Path(__file__)
    }


def as_text(string: ast.Constant) -> str:
    return string.value.decode("latin-1") if isinstance(string.value, bytes) else str(string.value)


def found(pattern: re.Pattern[str], texts: dict[str, str]) -> list[str]:
    return [
        f"{place}:{number}: {line.strip()}"
        for place, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_the_rules_have_something_to_read(library: list[Module], texts: dict[str, str]) -> None:
    assert {module.place.split("/")[0] for module in library} == set(PACKAGES)
    assert {"Makefile", "scripts/prepare", ".ci/run", "pyproject.toml"} <= texts.keys()


def test_every_module_opens_with_a_docstring(modules: list[Module]) -> None:
    silent = [module.place for module in modules if not ast.get_docstring(module.tree)]
    assert silent == []


def test_every_docstring_names_its_subject(library: list[Module]) -> None:
    strings = (
        (module.place, node.value.value)
        for module in library
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
    assert [where for where in strings if re.match(r"The same\b", where[1])] == []


def test_functions_stay_short_and_the_list_of_exceptions_only_shrinks(
    modules: list[Module],
) -> None:
    lengths = {
        f"{module.place}:{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for module in modules
        for function in module.functions()
    }
    long = {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX}
    grown = {name: lines for name, lines in long.items() if lines > ALLOWED.get(name, 0)}
    assert grown == {}
    assert [name for name in ALLOWED if name not in long] == []


def test_a_loop_variable_says_what_it_holds(modules: list[Module]) -> None:
    called_each = [
        module.at(name)
        for module in modules
        for loop in ast.walk(module.tree)
        if isinstance(loop, ast.For | ast.AsyncFor | ast.comprehension)
        for name in ast.walk(loop.target)
        if isinstance(name, ast.Name) and name.id == "each"
    ]
    assert called_each == []


def is_a_set(node: ast.AST) -> bool:
    """Whether an expression is visibly a set: its order differs from process to process."""
    if isinstance(node, ast.BinOp):
        return is_a_set(node.left) or is_a_set(node.right)
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return isinstance(node, ast.Set | ast.SetComp) or called in ("set", "frozenset")


def test_the_cases_of_a_test_have_an_order(modules: list[Module]) -> None:
    unordered = [
        module.at(call)
        for module in modules
        for call in module.calls("pytest.mark.parametrize")
        if is_a_set(call.args[1])
    ]
    assert unordered == []


def test_tests_wait_for_conditions_and_never_for_time(modules: list[Module]) -> None:
    sleeping = [
        module.at(call)
        for module in modules
        if module.place.startswith("tests/") and module.place != "tests/support/waiting.py"
        for call in module.calls("time.sleep", "sleep", "asyncio.sleep")
        if ast.unparse(call.args[0]) != "0"
    ]
    assert sleeping == []


def test_nobody_reads_the_machines_date_but_who_dates_certificates(library: list[Module]) -> None:
    wall_clocks = ("time.time", "time.time_ns", "datetime.now", "dt.datetime.now", "datetime.datetime.now")
    reading = {module.place for module in library for _ in module.calls(*wall_clocks)}
    assert reading == {"proxy/transport/certificates.py"}


def test_two_adapters_and_one_module_of_the_tests_know_the_inside_of_pymysqls_connections(
    modules: list[Module],
) -> None:
    inside = re.compile(r"\._(execute_command|force_close|next_seq_id|read_ok_packet|read_packet|read_query_result)\b")
    knowing = {module.place for module in modules if inside.search(module.text)}
    adapters = {"engine/binlog/replication_adapter.py", "pipeline/common/columns.py"}
    assert knowing == {*adapters, "tests/support/insides.py"}


def test_only_the_command_line_prints(library: list[Module]) -> None:
    printing = [
        module.at(call) for module in library if module.place != "proxy/serve.py" for call in module.calls("print")
    ]
    assert printing == []


def test_nothing_is_left_for_later(texts: dict[str, str]) -> None:
    assert found(UNFINISHED, texts) == []


def test_no_file_knows_a_machine_or_a_registry(texts: dict[str, str]) -> None:
    assert found(MACHINE_PATHS, texts) == []
    assert found(REGISTRY_HOSTS, texts) == []


def test_the_locks_name_packages_and_no_places() -> None:
    locks = {path.name: path.read_text() for path in (REPOSITORY / "locks").iterdir()}
    assert found(re.compile("://|--(extra-)?index|--find-connections"), locks) == []
    for text in locks.values():
        requirements = re.findall(r"^[a-z0-9].*", text, re.MULTILINE)
        assert requirements
        assert all(re.search(r"==[^ ]+ (;.* )?\\$", line) for line in requirements)

    npm_lock = (REPOSITORY / "examples/node/package-lock.json").read_text()
    assert '"integrity"' in npm_lock
    assert '"resolved"' not in npm_lock


def test_the_locks_hold_versions_that_the_ranges_allow() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", (REPOSITORY / "locks/runtime.txt").read_text(), re.MULTILINE))
    requirements = [Requirement(text) for text in project["project"]["dependencies"]]
    assert len(requirements) > 10
    assert [str(one) for one in requirements if not one.specifier.contains(locked[one.name.lower()])] == []
    without_lower_bound = [
        str(one) for one in requirements if not any(specifier.operator == ">=" for specifier in one.specifier)
    ]
    assert without_lower_bound == []


def test_the_sql_of_the_engine_and_of_the_proxy_stands_in_one_file_each(library: list[Module]) -> None:
    hints = {"DROP TABLE drops it"}  # In the texts of errors.
    statements = [
        module.at(string)
        for module in library
        if module.place.startswith(("engine/", "proxy/"))
        for string in module.strings(str, bytes)
        if STATEMENT.search(as_text(string)) and as_text(string) not in hints
    ]
    assert statements == []


def test_every_module_of_the_engine_is_pure_but_for_the_shell(library: list[Module]) -> None:
    pure = set(pure_modules())
    assert {"sqlrewrite", "proxy.wire"} <= pure
    names = {
        module.place.removesuffix(".py").replace("/", ".")
        for module in library
        if module.place.startswith("engine/") and module.path.name != "__init__.py"
    }
    covered = {name for name in names if name in pure or name.rpartition(".")[0] in pure}
    assert names - covered == ENGINE_SHELL
    folders = {name.rpartition(".")[0] for name in names}
    assert {name for name in pure if name.startswith("engine.")} <= names | folders


def defined(tree: ast.AST) -> Iterator[str]:
    """The names that code binds: functions, classes, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def members(modules: list[Module]) -> dict[str, set[str]]:
    """What the folders, modules and classes of these modules contain, by their bare names."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules:
        parts = Path(module.place).with_suffix("").parts
        for folder, inside in pairwise(parts):
            found[folder].add(inside)
        found[parts[-1]].update(defined(module.tree))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].update(defined(node))
    return found


def test_what_architecture_names_exists(library: list[Module], texts: dict[str, str]) -> None:
    contained = members(library)
    named = [name for name in DOTTED_NAME.findall(texts["ARCHITECTURE.md"]) if not name.endswith(FILE_ENDINGS)]
    assert len(named) > 50
    missing = [name for name in named if any(part not in contained[owner] for owner, part in pairwise(name.split(".")))]
    assert missing == []


def test_unit_tests_lie_in_the_folders_of_what_they_test() -> None:
    unit = REPOSITORY / "tests" / "unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")}
    assert {folder for folder in folders if not (REPOSITORY / folder).is_dir()} == set()
    assert len(folders) > 10


def test_repeated_groups_are_atomic_because_possessive_ones_go_wrong_before_python_3_11_5(
    library: list[Module],
) -> None:
    assert [
        module.at(text)
        for module in library
        for text in module.strings()
        if isinstance(text.value, str) and re.search(r"\)[*+?]\+", text.value)
    ] == []


def pure_modules() -> list[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (pure,) = [contract for contract in contracts if contract["name"].startswith("pure modules")]
    modules: list[str] = pure["source_modules"]
    return modules


def test_make_targets_in_the_documents_exist_and_each_target_is_explained() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^\.PHONY: ([a-z-]+)$", makefile, re.MULTILINE))
    explained = set(re.findall(r"^([a-z-]+):.* ## \S", makefile, re.MULTILINE))
    assert targets == explained
    documents = [path.read_text() for path in (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"))]
    named = {name for text in documents for name in re.findall(r"(?m)(?:`|^)make ([a-z-]+)", text)}
    assert {"demo", "test"} <= named
    assert named <= targets


@pytest.mark.parametrize(
    ("pattern", "offence"),
    [
        (UNFINISHED, "# TODO: later"),
        (MACHINE_PATHS, "see /home/somebody/x"),
        (REGISTRY_HOSTS, "from registry.packages.org"),
        (STATEMENT, "SELECT id\nFROM t"),
        (STATEMENT, " update t set a = 1"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], offence: str) -> None:
    assert pattern.search(offence)
