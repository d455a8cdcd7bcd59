"""A row packet without its first value is the packet of a SELECT without that column."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.packets import WireError, lenenc_at, text_values
from engine.store.row_packets import split_binary_row, split_text_row

VALUES = st.lists(st.none() | st.binary(max_size=300), max_size=40)


def encoded_length(number: int) -> bytes:
    if number < 0xFB:
        return bytes([number])
    for mark, size in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        if number < 1 << (8 * size):
            return bytes([mark]) + number.to_bytes(size, "little")
    raise AssertionError(number)


def string(value: bytes) -> bytes:
    return encoded_length(len(value)) + value


def text_row(values: Sequence[bytes | None]) -> bytes:
    return b"".join(b"\xfb" if value is None else string(value) for value in values)


def binary_row(values: Sequence[bytes | None]) -> bytes:
    """A binary row of string columns, as the protocol's documentation describes it."""
    bitmap = bytearray((len(values) + 9) // 8)
    for at, value in enumerate(values):
        if value is None:
            bitmap[(at + 2) // 8] |= 1 << ((at + 2) % 8)
    return b"\x00" + bytes(bitmap) + b"".join(string(value) for value in values if value is not None)


@pytest.mark.parametrize("number", [0, 250, 251, 65_535, 65_536, 2**24 - 1, 2**24, 2**40])
def test_a_length_has_one_to_nine_bytes(number: int) -> None:
    payload = b"?" + encoded_length(number) + b"!"
    assert lenenc_at(payload, 1, len(payload)) == (number, len(payload) - 1)


@given(VALUES)
def test_a_text_row_is_split_into_its_values(values: list[bytes | None]) -> None:
    assert text_values(text_row(values)) == values


@given(st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=5), st.binary(min_size=1, max_size=300))
def test_a_text_row_that_is_cut_off_inside_a_value_is_refused(values: list[bytes | None], last: bytes) -> None:
    row = text_row([*values, last])
    with pytest.raises(WireError):
        text_values(row[:-1])


@given(st.binary(max_size=70_000), VALUES)
def test_a_text_row_loses_its_first_value(first: bytes, others: list[bytes | None]) -> None:
    assert split_text_row(text_row([first, *others])) == (first, text_row(others))


@given(st.binary(max_size=300), VALUES)
def test_a_binary_row_loses_its_first_value_and_its_bit(first: bytes, others: list[bytes | None]) -> None:
    row = binary_row([first, *others])
    assert split_binary_row(row, len(others)) == (first, binary_row(others))


@pytest.mark.parametrize("columns", [5, 6, 13, 14])
def test_the_bitmap_shrinks_when_its_last_byte_is_not_needed_any_more(columns: int) -> None:
    others: list[bytes | None] = [None] * columns
    row = binary_row([b"7", *others])
    assert split_binary_row(row, columns) == (b"7", binary_row(others))
