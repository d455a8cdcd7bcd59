"""Message ids in SQL: their keys, and whether they equal exactly one id."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.keys import EXACT_DIGITS, all_certain, certain, key_of, keys_of
from engine.queue_table import IdKind

ODD = [b"1_000", b" 1", b"1 ", b"+1", b"01", b"1.0", b"1e3", b"0x1", b"", b"NaN", b"Infinity", "٣".encode(), b"\xff"]


@pytest.mark.parametrize("text", ODD)
def test_what_python_reads_as_an_integer_and_the_server_otherwise_is_none(text: bytes) -> None:
    assert key_of(IdKind.INTEGER, text) is None


@pytest.mark.parametrize("text", [b"1_000", b" 1", b"+1", b"1e3", b"NaN", b"Infinity", b"1.", b".5"])
def test_what_python_reads_as_a_decimal_and_the_server_otherwise_is_none(text: bytes) -> None:
    assert key_of(IdKind.DECIMAL, text) is None


@given(st.binary(max_size=12) | st.from_regex(rb"-?[0-9_]{1,20}", fullmatch=True))
def test_an_integer_is_read_where_it_is_written_as_the_server_writes_it(text: bytes) -> None:
    key = key_of(IdKind.INTEGER, text)
    assert key is None or str(key).encode() == text or (key, text) == (0, b"-0")


@pytest.mark.parametrize(
    ("kind", "value", "key", "sure"),
    [
        (IdKind.INTEGER, 2**64 - 1, 2**64 - 1, True),
        (IdKind.INTEGER, b"17", 17, True),
        (IdKind.INTEGER, b"9" * (EXACT_DIGITS + 1), 10 ** (EXACT_DIGITS + 1) - 1, False),
        (IdKind.DECIMAL, 5, Decimal(5), True),
        (IdKind.DECIMAL, b"1.50", Decimal("1.5"), False),
        (IdKind.TEXT, b"order-7", "order-7", True),
        (IdKind.TEXT, 7, "7", False),
        (IdKind.TEXT, "ä".encode(), "ä", False),
        (IdKind.TEXT, b"a|b", "a|b", False),
        (IdKind.BINARY, b"\0\1", b"\0\1", False),
        (IdKind.BINARY, b"abc", b"abc", True),
        (IdKind.BINARY, 7, b"7", False),
        (IdKind.FLOAT, b"1.5", "1.5", False),
        (IdKind.TIMESTAMP, b"2026-01-01", "2026-01-01", False),
        (IdKind.OTHER, b"2026-01-01 00:00:00", "2026-01-01 00:00:00", True),
        (IdKind.INTEGER, 1.0, None, False),
        (IdKind.INTEGER, None, None, False),
    ],
)
def test_a_value_has_a_key_and_is_certain_where_it_equals_no_other_id(
    kind: IdKind, value: object, key: object, sure: bool
) -> None:
    assert key_of(kind, value) == key
    assert certain(kind, value) == sure


VALUES = st.integers() | st.decimals(allow_nan=False, allow_infinity=False) | st.binary(max_size=8) | st.booleans()


@given(st.sampled_from(IdKind), st.lists(VALUES | st.just(b"17"), max_size=5))
def test_several_values_have_keys_if_each_has_one_and_are_certain_if_each_is(
    kind: IdKind, values: list[object]
) -> None:
    keys = [key_of(kind, value) for value in values]
    assert keys_of(kind, values) == (None if None in keys else keys)
    assert all_certain(kind, values) == all(certain(kind, value) for value in values)
