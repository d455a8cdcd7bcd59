"""The statements of the proxy are those of its one file: each is named, described and used."""

from __future__ import annotations

import ast
import re
from importlib import resources
from pathlib import Path

import pytest

from engine.catalog.own_tables import OWN_TABLES
from engine.store.queries import parse
from proxy.session.queries import sql, templates
from tests.support.table_names import names_without_hint

PROXY = Path(__file__).parents[4] / "proxy"
FILE = resources.files("proxy.session").joinpath("queries.sql").read_text("utf-8")


ON_THE_ENGINES_CONNECTION = (
    *("checks", "server", "commands/doctor"),
    *(f"statements/{name}" for name in ("batches", "depth", "message_groups", "proxies", "semaphore_counts")),
)
"""The modules and folders whose statements run there."""

OF_MARIADB = re.compile(r"^(/[*]M!.*?[*]/\s*)+")
"""Settings for one statement."""


def names_used() -> set[str]:
    """The names of statements in all modules."""
    return names_in("")


def names_in(*places: str) -> set[str]:
    """The strings that are given as a statement's name: sql("…"), partial(sql, "…"), partial(count, "…")."""
    paths = {path for place in places for path in (*PROXY.glob(f"{place}.py"), *(PROXY / place).rglob("*.py"))}
    strings = {
        node.value
        for path in paths
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"sql", "partial"}
        for node in call.args
        if isinstance(node, ast.Constant)
    }
    return {string for string in strings if isinstance(string, str)}


def test_each_statement_has_a_name_of_its_own_and_a_description() -> None:
    names = [name for name, _ in parse(FILE)]
    assert len(names) == len(set(names)) == FILE.count("-- name:")
    for part in FILE.split("\n\n")[1:]:
        if part.startswith("-- name:"):
            assert re.match(
                r"-- name: \w+\n-- \w.*\n(-- .*\n)*((/\*M!\d+ )?[A-Z]|/\*M!|\$(select|insert|within) )", part
            ), part


def test_each_statement_is_used_and_each_that_is_used_has_a_name() -> None:
    of_own_tables = {name for own in OWN_TABLES.values() for name in (own.create, *own.upgrades)}
    assert names_used() | of_own_tables == templates().keys()


def test_each_select_that_may_return_rows_has_a_limit_of_its_own() -> None:
    estimated = {"count_range", "count_table"}
    counted = {"count_entries", "count_delivered", "earliest", "newest_id"}  # One row each, inside `counts`.
    one_row = {"batches_counted", "count_of_batch"}  # What the latter counts has a limit.
    exported = {"export"}  # All rows are wanted. A program of its own reads them one by one.
    shown = {"copied_select"}  # Not run: the page of a queue shows it to be copied.
    for name, template in templates().items():
        text = template.template
        if (
            OF_MARIADB.sub("", text).startswith(("SELECT", "$select"))
            and name not in shown | estimated | counted | one_row | exported
        ):
            assert re.search(r"\bLIMIT (\d+|\$limit)(\sFOR UPDATE SKIP LOCKED)?$", text), name


def test_on_the_engines_connection_each_name_of_a_table_has_an_index_hint() -> None:
    said = {
        part.removeprefix("-- name: ").split("\n")[0]
        for part in FILE.split("\n\n")
        if part.startswith("-- name:") and re.search(r"engine's\s(--\s)?(connection|account)", part)
    }
    shown = {"copied_select", "copied_update", "copied_delete"}  # To be copied, or run by who has signed in.
    of_clients = {"may_read"}
    assert said == names_in(*ON_THE_ENGINES_CONNECTION) - shown - of_clients
    for name in said:
        assert names_without_hint(templates()[name].template) == [], name


def test_a_word_that_is_missing_is_an_error() -> None:
    with pytest.raises(KeyError):
        sql("show_create_table")


def test_a_value_stays_as_it_is_whatever_is_in_it() -> None:
    assert sql("show_create_table", table="`$table`") == "SHOW CREATE TABLE `$table`"
