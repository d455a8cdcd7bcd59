"""The form of the log's lines."""

from __future__ import annotations

import json
import logging
import sys
from typing import Literal

import pytest

from proxy.logs import CUT, MESSAGE_MAX, EventFormatter


def record(text: str, *values: object, **extra: str) -> logging.LogRecord:
    made = logging.LogRecord("engine.x", logging.WARNING, "x.py", 1, text, values, None)
    made.__dict__.update(extra)
    return made


def with_traceback() -> logging.LogRecord:
    try:
        int("first\nsecond")
    except ValueError:
        return logging.LogRecord("engine.x", logging.ERROR, "x.py", 1, "failed", (), sys.exc_info())
    raise AssertionError


def test_text_has_the_event_before_the_message() -> None:
    line = EventFormatter("text").format(record("queue %s", "a.b", event="queue.ready", queue="a.b"))
    assert line.partition(" ")[2] == "WARNING queue.ready: queue a.b"


def test_json_has_a_field_for_each_fact() -> None:
    entry = json.loads(EventFormatter("json").format(record("queue %s", "ä", event="queue.ready", queue="ä")))
    assert len(entry.pop("time")) == len("2026-05-04T03:12:45.118+00:00")
    assert entry == {
        "level": "warning",
        "event": "queue.ready",
        "logger": "engine.x",
        "queue": "ä",
        "message": "queue ä",
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_event_is_one_line_whatever_it_contains(form: Literal["text", "json"]) -> None:
    formatter = EventFormatter(form)
    assert len(formatter.format(with_traceback()).splitlines()) == 1
    assert len(formatter.format(record("a\nb\r\nc")).splitlines()) == 1


def test_lines_of_libraries_have_an_event_too() -> None:
    assert json.loads(EventFormatter("json").format(record("x")))["event"] == "library"


def test_long_messages_are_cut() -> None:
    line = EventFormatter("text").format(record("x" * (MESSAGE_MAX + 1)))
    assert line.endswith("x" + CUT)
    assert line.count("x") == MESSAGE_MAX
