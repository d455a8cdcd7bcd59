"""Python's names of MySQL's character sets."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Final

BINARY: Final = "binary"
"""The character set in which strings are bytes."""

_DIFFERENT: Final[Mapping[str, str]] = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    BINARY: "utf-8",  # Of names. Strings are bytes (SqlMode.strings_are_bytes).
    "latin1": "cp1252",
    "latin7": "iso8859-13",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
    "sjis": "shift_jis",
    "euckr": "euc_kr",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "latin5": "iso8859-9",
    "tis620": "tis_620",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "gb2312": "gbk",
}


def codec_of(charset: str) -> str:
    """Python's codec for a MySQL character set. Latin-1, which keeps every byte, where Python has
    none."""
    codec = _DIFFERENT.get(charset, charset)
    try:
        return codecs.lookup(codec).name
    except LookupError:
        return "latin-1"
