"""The directives in a message table's comment, as the proxy reads them."""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?|\.[0-9]{1,12}")


class Directives(dict[str, str]):
    """The directives of a comment, and their values: its parts between commas that have a name, an
    equals sign and a value. Of several with one name, the first counts."""

    def __init__(self, comment: str) -> None:
        super().__init__()
        for part in comment.split(","):
            name, equals, value = part.partition("=")
            if equals:
                self.setdefault(name.strip(), value.strip())

    def seconds(self, name: str) -> float | None:
        """The value of a directive in seconds; None if it is missing or no number."""
        value = self.get(name, "")
        return float(value) if _NUMBER.fullmatch(value) else None
