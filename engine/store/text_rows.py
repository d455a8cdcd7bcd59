"""Row packets as bytes: a value taken off the front, and nothing else of the row touched.

A fetch selects one value more than the subscriber asked for, as the *first* column: which message this is, and which
delivery of it. The rest of the packet goes to the client as it came. In the text protocol that is a matter of
cutting off the first string. In the binary protocol the row begins with a bitmap of its NULLs, in which every column
has its bit, so the bitmap loses one bit and sometimes its last byte.
"""

from __future__ import annotations

_NULL = 0xFB
_LENGTH_SIZES = {0xFC: 2, 0xFD: 3, 0xFE: 8}

_BITMAP_OFFSET = 2
"""In a binary row, the first two bits of the NULL bitmap stand for no column."""


def length_encoded(payload: bytes, at: int) -> tuple[int, int]:
    """The length-encoded integer at `at`, and the position behind it. Raises IndexError at the payload's end."""
    first = payload[at]
    if first < _NULL:
        return first, at + 1
    end = at + 1 + _LENGTH_SIZES[first]
    return int.from_bytes(payload[at + 1 : end], "little"), end


def text_values(row: bytes) -> list[bytes | None]:
    """All values of a text row."""
    values: list[bytes | None] = []
    at, size = 0, len(row)
    while at < size:
        if row[at] == _NULL:
            values.append(None)
            at += 1
            continue
        length, start = length_encoded(row, at)
        at = start + length
        values.append(row[start:at])
    return values


def split_text_row(row: bytes) -> tuple[bytes, bytes]:
    """The first value, which is not NULL, and the text row without it."""
    length, start = length_encoded(row, 0)
    end = start + length
    return row[start:end], row[end:]


def split_binary_row(row: bytes, columns: int) -> tuple[bytes, bytes]:
    """The first value, a string that is not NULL, and the binary row of the `columns` others."""
    values = 1 + _bitmap_size(columns + 1)
    nulls = int.from_bytes(row[1:values], "little") >> 1
    unused = (1 << _BITMAP_OFFSET) - 1
    length, start = length_encoded(row, values)
    end = start + length
    bitmap = (nulls & ~unused).to_bytes(_bitmap_size(columns), "little")
    return row[start:end], row[:1] + bitmap + row[end:]


def _bitmap_size(columns: int) -> int:
    return (columns + _BITMAP_OFFSET + 7) // 8
