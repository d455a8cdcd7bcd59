"""Names and text as SQL, for any sql_mode and character set."""

from __future__ import annotations

from engine.model import TableId


def quoted(identifier: str) -> str:
    """An identifier, for any sql_mode."""
    return "`" + identifier.replace("`", "``") + "`"


def qualified(table: TableId) -> str:
    """A table's full name, quoted."""
    return f"{quoted(table.db)}.{quoted(table.name)}"


def text_literal(text: str) -> str:
    """A string, whatever is in it."""
    return f"_utf8mb4 x'{text.encode().hex()}'"
