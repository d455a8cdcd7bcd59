"""Messages as JSON: a message is an object with its columns."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
from collections.abc import Mapping
from typing import Any

BASE64 = "$base64"
"""The name of the one member of an object that stands for bytes that are not UTF-8."""

CSV_NULL = r"\N"
"""NULL in CSV, as MySQL's own files have it."""


def as_json(message: Mapping[str, Any]) -> str:
    """One line. Numbers stay numbers; DECIMAL, dates and times are text; bytes that are not UTF-8
    are `{"$base64": …}`."""
    return json.dumps({name: _plain(value) for name, value in message.items()}, ensure_ascii=False)


def as_text(value: Any) -> str:
    """A column as an argument or a variable: empty for NULL."""
    plain = _plain(value)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain)


def as_csv(value: Any) -> str:
    """A field of CSV."""
    return CSV_NULL if value is None else as_text(value)


def of_csv(text: str) -> str | None:
    """The column's value for a field of CSV."""
    return None if text == CSV_NULL else text


def of_json(value: Any) -> Any:
    """The column's value for a value of JSON: arrays and objects are stored as JSON text."""
    if isinstance(value, dict) and value.keys() == {BASE64}:
        return base64.b64decode(value[BASE64])
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {BASE64: base64.b64encode(value).decode()}
        case decimal.Decimal() | dt.timedelta():
            return str(value)
        case dt.date() | dt.time():
            return value.isoformat()
        case _:
            return value
