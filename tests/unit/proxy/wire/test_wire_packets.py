"""OK, EOF, ERR, PREPARE and column packets: read as servers send them, made as clients expect them."""

from __future__ import annotations

import pytest
from mysql_mimic.types import ColumnType

from engine.packets import OkHead, PrepareOk, WireError, prepare_ok_at
from proxy.wire.columns import ColumnDef, make_column, parse_column, text_column
from proxy.wire.fields import Reader, lenenc_pairs
from proxy.wire.packets import (
    AUTOCOMMIT,
    DEPRECATE_EOF,
    STATE_CHANGED,
    Eof,
    ServerError,
    is_end_of_rows,
    make_end,
    make_eof,
    make_err,
    make_ok,
    make_prepare_ok,
    parse_eof,
    parse_err,
    parse_ok,
)


def test_an_ok_comes_back_as_it_was_made() -> None:
    payload = make_ok(affected_rows=300, insert_id=2**33, status=3, warnings=4, info=b"done")
    assert parse_ok(payload) == (OkHead(300, 2**33, 3, 4), b"done", b"")


def test_an_ok_shows_its_session_changes() -> None:
    payload = b"\x00\x00\x00\x02\x40\x00\x00\x00\x06\x01\x04\x03foo"
    assert parse_ok(payload) == (OkHead(0, 0, 0x4002, 0), b"", b"\x01\x04\x03foo")


def test_a_made_ok_never_claims_session_changes() -> None:
    assert parse_ok(make_ok(status=AUTOCOMMIT | STATE_CHANGED)).head.status == AUTOCOMMIT


def test_an_eof_comes_back_as_it_was_made() -> None:
    assert parse_eof(make_eof(status=0x22, warnings=1)) == Eof(0x22, 1)


def test_an_error_comes_back_as_it_was_made() -> None:
    error = parse_err(make_err(1317, "70100", "Query execution was interrupted"))
    assert (error.code, error.sqlstate) == (1317, "70100")
    assert str(error) == "1317 (70100): Query execution was interrupted"


def test_an_error_before_the_greeting_has_no_sqlstate() -> None:
    payload = make_err(1040, "08004", "Too many connections", protocol41=False)
    assert payload == b"\xff\x10\x04Too many connections"
    assert parse_err(payload).args == ServerError(1040, "HY000", "Too many connections").args


@pytest.mark.parametrize("capabilities", [0, DEPRECATE_EOF])
def test_the_end_of_rows_is_known_as_such(capabilities: int) -> None:
    end = make_end(capabilities)
    assert is_end_of_rows(end, capabilities)
    assert len(end) == (7 if capabilities else 5)


@pytest.mark.parametrize("row", [b"\x00\x00x", b"\xfb", b"\xfe" + bytes(0xFFFFFF - 1), b""])
@pytest.mark.parametrize("capabilities", [0, DEPRECATE_EOF])
def test_a_row_is_not_the_end_of_rows(row: bytes, capabilities: int) -> None:
    assert not is_end_of_rows(row, capabilities)


def test_the_answer_to_prepare_comes_back_as_it_was_made() -> None:
    counts = PrepareOk(2**31, 4096, 65535)
    payload = make_prepare_ok(counts)
    assert len(payload) == 12
    assert prepare_ok_at(payload, 0, len(payload)) == counts


COLUMN = ColumnDef(b"n", int(ColumnType.NEWDECIMAL), 0x1001, 63, 12, 2, b"db", b"t", b"orders", b"amount")


@pytest.mark.parametrize("extended", [False, True])
def test_a_column_comes_back_as_it_was_made(extended: bool) -> None:
    assert parse_column(make_column(COLUMN, extended=extended), extended=extended) == COLUMN


def test_a_column_of_a_real_server_is_read() -> None:
    payload = b"\x03def\x02wt\x01p\x01p\x01o\x01o\x0c?\x00\x0b\x00\x00\x00\x03\x00\x00\x00\x00\x00"
    column = parse_column(payload)
    assert (column.db, column.org_name) == (b"wt", b"o")
    assert (column.type, column.length) == (ColumnType.LONG, 11)


def test_a_text_column_is_utf8() -> None:
    assert text_column("größe").name == "größe".encode()


@pytest.mark.parametrize("cut", range(len(make_column(COLUMN)) - 2))
def test_a_cut_column_is_refused(cut: int) -> None:
    with pytest.raises(WireError):
        parse_column(make_column(COLUMN)[:cut])


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\xfa", 250),
        (b"\xfc\xfb\x00", 251),
        (b"\xfd\x00\x00\x01", 65536),
        (b"\xfe" + b"\xff" * 8, 2**64 - 1),
    ],
)
def test_a_length_encoded_integer_is_as_long_as_its_first_byte_says(data: bytes, value: int) -> None:
    assert Reader(data).lenenc() == value
    with pytest.raises(WireError):
        Reader(data[:-1]).lenenc()


@pytest.mark.parametrize("first", [0xFB, 0xFF])
def test_bytes_that_begin_no_integer_are_refused(first: int) -> None:
    with pytest.raises(WireError, match=f"0x{first:02X}"):
        Reader(bytes([first]) + bytes(9)).lenenc()


def test_a_string_without_an_end_is_refused_or_taken_whole_as_asked() -> None:
    with pytest.raises(WireError, match="has no end"):
        Reader(b"abc").null_bytes()
    assert Reader(b"abc").null_bytes_or_rest() == b"abc"
    assert Reader(b"abc\0d").null_bytes_or_rest() == b"abc"


def test_a_pair_whose_value_is_missing_is_refused() -> None:
    assert dict(lenenc_pairs(b"\x01a\x01b")) == {b"a": b"b"}
    with pytest.raises(WireError):
        dict(lenenc_pairs(b"\x01a"))
