"""The process's log: one event a line, on standard error, as text or as JSON.

Each event has a stable name, the attribute `event` of its record. Statements of clients and secrets
are in no event. Lines from libraries have the event `library`.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import Literal

MESSAGE_MAX = 2_000
"""Characters of a message. Texts of servers and libraries can quote what they refuse."""
EXCEPTION_MAX = 16_000
"""Characters of a traceback; the end is kept, which shows the cause."""
CUT = "[…]"


def set_up(level: str, form: Literal["text", "json"]) -> None:
    """Write the log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class EventFormatter(logging.Formatter):
    """One line for each record."""

    def __init__(self, form: Literal["text", "json"]) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end. Line ends within it are escaped."""
        entry = self._entry(record)
        if self._form == "json":
            return json.dumps(entry)
        text = f"{entry['time']} {record.levelname} {entry['event']}: {entry['message']}"
        if "exception" in entry:
            text += f"\n{entry['exception']}"
        return text.replace("\r", "\\r").replace("\n", "\\n")

    def _entry(self, record: logging.LogRecord) -> dict[str, object]:
        """The fields of a line."""
        at = dt.datetime.fromtimestamp(record.created).astimezone()
        message = record.getMessage()
        entry: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "library"),
            "logger": record.name,
        }
        if (queue := getattr(record, "queue", None)) is not None:
            entry["queue"] = queue
        entry["message"] = message if len(message) <= MESSAGE_MAX else message[:MESSAGE_MAX] + CUT
        if record.exc_info:
            exception = self.formatException(record.exc_info)
            entry["exception"] = exception if len(exception) <= EXCEPTION_MAX else CUT + exception[-EXCEPTION_MAX:]
        return entry
