"""Each line of the log has an event, and the documents list the events with their levels."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from engine.dispatch.problems import Kind
from engine.store.server_states import ServerStates
from proxy.server.problems import UNIT
from proxy.server.queue_watch import UNREAD_EVENT

REPOSITORY = Path(__file__).parents[2]
ROW = re.compile(r"^\| (`[a-z_.`, ]+`) \| (debug|info|warning|error) \|", re.MULTILINE)
METHODS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error", "log": ""}
BY_PARAMETER = "_log_once"
"""The one method that gets the event's name as its first argument; its level is a warning unless given."""


def calls() -> list[tuple[str, ast.Call]]:
    """The calls of loggers, each with its place."""
    found = []
    for folder in ("proxy", "engine", "sqlrewrite"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    where = f"{path.relative_to(REPOSITORY)}:{node.lineno}"
                    of_logger = (
                        ast.unparse(node.func.value) in {"log", "logger", "logging"} and node.func.attr in METHODS
                    )
                    if of_logger or node.func.attr == BY_PARAMETER:
                        found.append((where, node))
    return found


def event(call: ast.Call) -> tuple[str, str] | None:
    """The event of a call, with its level; None if it has none."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr == BY_PARAMETER:
        level = ast.unparse(call.args[3]).removeprefix("logging.").lower() if len(call.args) > 3 else "warning"
        return ast.literal_eval(call.args[0]), level
    for keyword in call.keywords:
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
            names = [key.value for key in keyword.value.keys if isinstance(key, ast.Constant)]
            name = keyword.value.values[names.index("event")]
            return (name.value if isinstance(name, ast.Constant) else "", METHODS[call.func.attr])  # type: ignore[return-value]
    return None


def test_each_line_of_the_log_has_an_event() -> None:
    assert [where for where, call in calls() if event(call) is None] == []


def test_the_documents_list_each_event_with_its_level() -> None:
    page = (REPOSITORY / "docs" / "log.md").read_text()
    listed = [(name, level) for names, level in ROW.findall(page) for name in re.findall(r"[a-z_.]+", names)]
    assert len({name for name, _ in listed}) == len(listed)
    logged = {found for _, call in calls() if (found := event(call)) and found[0]}
    logged |= {(kind.value, "error") for kind in Kind}
    logged |= {(name, "warning") for name in (UNREAD_EVENT, UNIT)}
    for state in ServerStates().all:
        logged |= {(state.began.event, "warning"), (state.ended.event, "info")}
    assert set(listed) == logged
