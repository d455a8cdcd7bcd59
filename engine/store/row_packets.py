"""Row packets without their first value, and otherwise as they came.

A fetch selects one column more than the subscriber's SELECT, as the *first* column: the id, epoch
and lease of the message. The rest of the packet goes to the client unread. A text row only loses
its first string. A binary row begins with a bitmap that has a bit for each column, so the bitmap
loses one bit, and sometimes its last byte.
"""

from __future__ import annotations

from engine.packets import lenenc_at

_BITMAP_OFFSET = 2
"""The first two bits of a binary row's NULL bitmap stand for no column."""


def split_text_row(row: bytes) -> tuple[bytes, bytes]:
    """The first value, which is not NULL, and the text row without it."""
    length, start = lenenc_at(row, 0, len(row))
    end = start + length
    return row[start:end], row[end:]


def split_binary_row(row: bytes, columns: int) -> tuple[bytes, bytes]:
    """The first value, a string that is not NULL, and the binary row of the `columns` others."""
    values = 1 + _bitmap_size(columns + 1)
    nulls = int.from_bytes(row[1:values], "little") >> 1
    unused = (1 << _BITMAP_OFFSET) - 1
    length, start = lenenc_at(row, values, len(row))
    end = start + length
    bitmap = (nulls & ~unused).to_bytes(_bitmap_size(columns), "little")
    return row[start:end], row[:1] + bitmap + row[end:]


def _bitmap_size(columns: int) -> int:
    return (columns + _BITMAP_OFFSET + 7) // 8
