"""The worker of docs/recipes.md: slow, failing, disconnected and stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.proxies import RunningProxy
from tests.support.queues import rows, run
from tests.support.waiting import eventually

RECIPES = Path(__file__).parents[2] / "docs" / "recipes.md"

Handle = Callable[[Any, str], None]


@pytest.fixture
def recipe(proxy: RunningProxy, database: str) -> str:
    """Make its tables and enqueue one message; return the program, for this proxy and database."""
    with proxy.connect(database=database) as connection:
        run(connection, "CREATE QUEUE chores (task VARCHAR(100)) ACK_WAIT = 0.5")
        run(connection, "CREATE TABLE done (task VARCHAR(100))")
        run(connection, "INSERT INTO chores (task) VALUES ('dishes')")
    _, _, section = RECIPES.read_text().partition("## A worker in Python\n")
    text = section.partition("```python\n")[2].partition("```\n")[0]
    return text.replace("3307", str(proxy.port)).replace('"shop"', f'"{database}"')


def module(recipe: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(recipe, "recipe", "exec"), names)  # the repository's own text
    return names


def outcome(proxy: RunningProxy, database: str) -> tuple[list[str], int]:
    """Return the tasks done, and the number of messages that are not acknowledged."""
    with proxy.connect(database=database) as connection:
        done = [task for (task,) in rows(connection, "SELECT task FROM done ORDER BY task")]
        ((left,),) = rows(connection, "SELECT COUNT(*) FROM chores WHERE time_acked IS NULL")
    return done, left


def test_a_slow_worker_whose_message_was_delivered_again_takes_its_effect_back(recipe, proxy, database) -> None:
    names = module(recipe)
    handle: Handle = names["handle"]
    handled: list[str] = []

    def slow(cursor: Any, task: str) -> None:
        handled.append(task)
        handle(cursor, task)
        if len(handled) == 1:  # Meanwhile another worker receives it and finishes it.
            with proxy.connect(database=database, autocommit=False) as other:
                names["work"](other)

    names["handle"] = slow
    with proxy.connect(database=database, autocommit=False) as connection:
        names["work"](connection)
    assert handled == ["dishes", "dishes"]
    assert outcome(proxy, database) == (["dishes"], 0)


def test_an_error_takes_the_effect_back_and_the_message_comes_again(recipe, proxy, database, capsys) -> None:
    names = module(recipe)
    handle: Handle = names["handle"]
    failures = [ValueError("no water")]

    def failing(cursor: Any, task: str) -> None:
        handle(cursor, task)
        if failures:
            raise failures.pop()

    names["handle"] = failing
    with proxy.connect(database=database, autocommit=False) as connection:
        names["work"](connection)
        assert outcome(proxy, database) == ([], 1)
        names["work"](connection)
    assert outcome(proxy, database) == (["dishes"], 0)
    assert capsys.readouterr().err == "dishes, delivery 1: ValueError('no water')\n"


def test_a_worker_that_loses_its_connection_goes_on_with_another(recipe, proxy, database, capsys) -> None:
    names = module(recipe)
    handle: Handle = names["handle"]
    numbers: list[int] = []

    def cut_off(cursor: Any, task: str) -> None:
        handle(cursor, task)
        numbers.append(cursor.connection.thread_id())
        if len(numbers) == 1:
            with proxy.connect() as other:
                run(other, f"KILL CONNECTION {numbers[0]}")
        else:
            names["stop"]()

    names["handle"] = cut_off
    names["main"]()
    assert len(set(numbers)) == 2
    assert outcome(proxy, database) == (["dishes"], 0)
    assert "again in a second: " in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_long_poll_at_once(recipe, proxy, database, number: signal.Signals) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", recipe], stderr=subprocess.PIPE, text=True) as worker,
        proxy.connect(database=database) as connection,
    ):
        try:
            eventually(lambda: outcome(proxy, database) == (["dishes"], 0), timeout_s=20)
            eventually(lambda: rows(connection, "SHOW STREAMS"))
            worker.send_signal(number)
            _, complaints = worker.communicate(timeout=15)  # The poll alone takes 20 s.
        finally:
            worker.kill()
        assert (worker.returncode, complaints) == (0, "")
        eventually(lambda: not rows(connection, "SHOW STREAMS"))


def test_a_signal_amid_work_lets_the_message_be_finished(recipe, proxy, database) -> None:
    """`stop` during work raises nothing; the effect is committed and no other message is taken."""
    names = module(recipe)
    handle: Handle = names["handle"]

    def interrupted(cursor: Any, task: str) -> None:
        handle(cursor, task)
        names["stop"]()

    names["handle"] = interrupted
    with proxy.connect(database=database) as connection:
        run(connection, "INSERT INTO chores (task) VALUES ('laundry')")
    names["main"]()
    assert outcome(proxy, database) == (["dishes"], 1)
    with pytest.raises(SystemExit):
        names["stop"]()
