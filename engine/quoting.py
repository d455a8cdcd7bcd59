"""Names and text as SQL, independent of sql_mode and character set."""

from __future__ import annotations

from engine.model import TableId


def quoted(identifier: str) -> str:
    """A quoted identifier."""
    return "`" + identifier.replace("`", "``") + "`"


def qualified(table: TableId) -> str:
    """A table's quoted name with its database."""
    return f"{quoted(table.db)}.{quoted(table.name)}"


def text_literal(text: str) -> str:
    """A string literal in hexadecimal."""
    return f"_utf8mb4 x'{text.encode().hex()}'"
