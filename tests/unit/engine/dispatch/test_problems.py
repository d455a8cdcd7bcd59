"""What is wrong with a queue, in words: what is shown, and what is logged."""

from __future__ import annotations

from engine.dispatch.problems import KEPT_NS, LOGGED_NS, Kind, Problems


def problems() -> tuple[Problems, list[tuple[Kind, str]]]:
    """Problems, and what they report for the log."""
    found, logged = Problems(), list[tuple[Kind, str]]()
    found.on_report = lambda kind, text: logged.append((kind, text))
    return found, logged


def test_kinds_that_alternate_are_logged_once_each() -> None:
    found, logged = problems()
    for second in range(50):
        found.note(Kind.DEAD_LETTER, f"a column is missing, attempt {second}", second)
        found.note(Kind.SEMAPHORE, "no table", second)
    assert logged == [(Kind.DEAD_LETTER, "a column is missing, attempt 0"), (Kind.SEMAPHORE, "no table")]


def test_a_kind_is_logged_again_after_a_minute_with_what_is_true_then() -> None:
    found, logged = problems()
    for at_ns, text in ((0, "one row"), (1, "two rows"), (LOGGED_NS, "three rows")):
        found.note(Kind.CLAIM, text, at_ns)
    assert [text for _, text in logged] == ["one row", "three rows"]


def test_a_problem_is_shown_until_it_is_over_or_was_not_noted_for_long() -> None:
    found, _ = problems()
    found.note(Kind.CLAIM, "one row", 0)
    found.note(Kind.PURGE, "another row", 0)
    found.note(Kind.DEAD_LETTER, "names another table", 0)
    assert found.texts(1) == ["one row", "another row", "names another table"]
    assert found.texts(1, of_rows=True) == ["one row", "another row"]
    found.note(Kind.CLAIM, None, 2)
    assert found.texts(KEPT_NS - 1, of_rows=True) == ["another row"]
    assert found.texts(KEPT_NS) == []
