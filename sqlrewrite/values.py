"""Numbers as statements and drivers write them."""

from __future__ import annotations

import re
from decimal import Decimal

_NUMERAL = re.compile(r"(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")


def number(value: object) -> Decimal | None:
    """A number, given as such or as a numeral: some drivers send all parameters as text or as
    doubles. None for anything else."""
    match value:
        case bool():
            return None
        case int() | Decimal():
            found = Decimal(value)
        case float():
            found = Decimal(repr(value))
        case str() if _NUMERAL.fullmatch(value):
            found = Decimal(value)
        case bytes() if value.isascii():
            return number(value.decode("ascii"))
        case _:
            return None
    return found if found.is_finite() else None
