"""Binary parameters and query attributes, with every length checked."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal

import pytest
from mysql_mimic.types import ColumnType, str_len, uint_len

from engine.packets import WireError
from proxy.wire.params import (
    Execute,
    LongData,
    ParamType,
    Temporal,
    Value,
    execute_id,
    make_query,
    parse_execute,
    python_value,
    query_text,
    rearranged,
    text_at,
)

INT = ParamType(int(ColumnType.LONG), unsigned=False)
TEXT = ParamType(int(ColumnType.VAR_STRING), unsigned=False)


def execute(
    types: Sequence[ParamType],
    values: bytes,
    *,
    nulls: int = 0,
    flags: int = 0,
    names: Sequence[bytes] | None = None,
    bound: bool = True,
) -> bytes:
    """A COM_STMT_EXECUTE of statement 7; with `names` as sent under CLIENT_QUERY_ATTRIBUTES."""
    head = b"\x17" + struct.pack("<IBI", 7, flags, 1)
    count = uint_len(len(types)) if names is not None else b""
    described = b"".join(
        bytes([kind.type, 0x80 * kind.unsigned]) + (str_len(names[i]) if names is not None else b"")
        for i, kind in enumerate(types)
    )
    bitmap = nulls.to_bytes((len(types) + 7) // 8, "little")
    return head + count + bitmap + bytes([bound]) + (described if bound else b"") + values


@pytest.mark.parametrize(
    ("kind", "unsigned", "raw", "value"),
    [
        (ColumnType.TINY, False, b"\xff", -1),
        (ColumnType.TINY, True, b"\xff", 255),
        (ColumnType.SHORT, False, b"\x00\x80", -32768),
        (ColumnType.YEAR, True, b"\xea\x07", 2026),
        (ColumnType.LONG, False, b"\xfe\xff\xff\xff", -2),
        (ColumnType.INT24, True, b"\x01\x00\x00\x00", 1),
        (ColumnType.LONGLONG, True, b"\xff" * 8, 2**64 - 1),
        (ColumnType.FLOAT, False, struct.pack("<f", 0.5), 0.5),
        (ColumnType.DOUBLE, False, struct.pack("<d", -1e300), -1e300),
        (ColumnType.NEWDECIMAL, False, b"\x041.50", b"1.50"),
        (ColumnType.STRING, False, b"\x02\xc3\xa4", b"\xc3\xa4"),
        (ColumnType.BLOB, False, b"\xfc\x2c\x01" + b"b" * 300, b"b" * 300),
        (ColumnType.DATETIME, False, b"\x04\xea\x07\x0b\x15", Temporal(b"\xea\x07\x0b\x15")),
        (ColumnType.TIME, False, b"\x00", Temporal(b"")),
        (ColumnType.NULL, False, b"", None),
    ],
)
def test_a_parameter_is_read_by_its_type(kind: int, unsigned: bool, raw: bytes, value: Value) -> None:
    sent = ParamType(int(kind), unsigned)
    assert parse_execute(execute([sent], raw), 1) == Execute(7, 0, (value,), (sent,))


def test_nulls_stand_in_the_bitmap_and_have_no_value() -> None:
    payload = execute([INT] * 9, b"\x05\0\0\0" * 7, nulls=0b1_0000_0001)
    assert parse_execute(payload, 9).values == (None, *[5] * 7, None)


def test_types_are_sent_once_and_reused() -> None:
    first = parse_execute(execute([INT], b"\x05\0\0\0"), 1)
    again = execute([INT], b"\x06\0\0\0", bound=False)
    assert parse_execute(again, 1, types=first.types).values == (6,)
    with pytest.raises(WireError, match="without types"):
        parse_execute(again, 1)


def test_long_data_has_no_value_in_the_packet() -> None:
    payload = execute([TEXT, INT], b"\x05\0\0\0")
    assert parse_execute(payload, 2, long_data={0}).values == (LongData.SENT_BEFORE, 5)


def test_a_statement_without_parameters_ends_after_its_head() -> None:
    payload = b"\x17" + struct.pack("<IBI", 7, 1, 1)
    assert parse_execute(payload, 0) == Execute(7, 1, (), ())
    assert execute_id(payload) == 7


@pytest.mark.parametrize("flags", [0, 8])
def test_attributes_follow_the_parameters_and_are_left_out(flags: int) -> None:
    # Servers want the count whenever there are parameters, whatever the flag says.
    payload = execute([INT, TEXT], b"\x05\0\0\0\x01v", names=[b"", b"trace"], flags=flags)
    assert parse_execute(payload, 1, attributes=True).values == (5,)


def test_attributes_of_a_statement_without_parameters_are_announced() -> None:
    payload = execute([TEXT], b"\x01v", names=[b"trace"], flags=8)
    assert parse_execute(payload, 0, attributes=True).values == ()


def test_fewer_parameters_than_the_statement_has_are_refused() -> None:
    with pytest.raises(WireError, match="1 parameters were sent for a statement with 2"):
        parse_execute(execute([INT], b"\x05\0\0\0", names=[b""]), 2, attributes=True)


def test_a_huge_count_is_refused_before_anything_is_allocated() -> None:
    head = b"\x17" + struct.pack("<IBI", 7, 8, 1)
    with pytest.raises(WireError, match="parameters were announced"):
        parse_execute(head + b"\xfe" + b"\xff" * 8, 1, attributes=True)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(WireError, match="type 242"):
        parse_execute(execute([ParamType(0xF2, unsigned=False)], bytes(8)), 1)


WHOLE = execute([INT, TEXT], b"\x05\0\0\0\x03abc")


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_a_cut_execute_is_refused(cut: int) -> None:
    with pytest.raises(WireError):
        parse_execute(WHOLE[:cut], 2)


# -- What values mean


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (ColumnType.VAR_STRING, b"\x01\xe4", "ä"),
        (ColumnType.BLOB, b"\x01\xe4", b"\xe4"),
        (ColumnType.NEWDECIMAL, b"\x041.50", Decimal("1.50")),
        (ColumnType.NEWDECIMAL, b"\x01x", b"x"),
        (ColumnType.LONG, b"\x05\0\0\0", 5),
        (ColumnType.DATE, b"\x04\xea\x07\x0b\x15", date(2026, 11, 21)),
        (ColumnType.DATETIME, b"\x04\xea\x07\x0b\x15", datetime(2026, 11, 21)),  # noqa: DTZ001
        (
            ColumnType.TIMESTAMP,
            b"\x0b\xea\x07\x0b\x15\x01\x02\x03\x06\0\0\0",
            datetime(2026, 11, 21, 1, 2, 3, 6),  # noqa: DTZ001
        ),
        (ColumnType.TIME, b"\x00", timedelta()),
        (ColumnType.TIME, b"\x08\x01\x02\0\0\0\x03\x04\x05", -timedelta(days=2, hours=3, minutes=4, seconds=5)),
        (ColumnType.DATE, b"\x00", Temporal(b"")),
        (ColumnType.TIME, b"\x08\x00\xff\xff\xff\xff\x00\x00\x00", Temporal(b"\0\xff\xff\xff\xff\0\0\0")),
    ],
)
def test_a_value_means_what_its_type_and_the_clients_character_set_say(kind: int, raw: bytes, value: object) -> None:
    sent = ParamType(int(kind), unsigned=False)
    (read,) = parse_execute(execute([sent], raw), 1).values
    assert python_value(read, sent, "latin-1") == value


def test_what_is_no_text_in_the_clients_character_set_is_bytes() -> None:
    assert python_value(b"\xff", TEXT, "utf-8") == b"\xff"


# -- Parameters in another order

BIG = ParamType(int(ColumnType.LONGLONG), unsigned=True)


@pytest.mark.parametrize("names", [None, [b"", b"", b"", b"trace"]])
@pytest.mark.parametrize("nulls", range(8))
@pytest.mark.parametrize("bound", [True, False])
def test_parameters_change_places_and_bring_their_types(names: list[bytes] | None, nulls: int, bound: bool) -> None:
    def sent(order: Sequence[int], names: Sequence[bytes] | None, *, bound: bool) -> bytes:
        values = [b"\x05\0\0\0", b"\x03abc", b"\x09" + bytes(7), b"\x01v"]
        types = [INT, TEXT, BIG, TEXT]
        return execute(
            [types[i] for i in order],
            b"".join(values[i] for i in order if not nulls >> i & 1),
            nulls=sum((nulls >> old & 1) << new for new, old in enumerate(order)),
            names=names,
            bound=bound,
        )

    extra = [3] if names else []
    payload = sent([0, 1, 2, *extra], names, bound=bound)
    types = [INT, TEXT, BIG, TEXT][: 3 + len(extra)]
    moved = rearranged(payload, [2, 0, 1], types=types, attributes=names is not None)
    assert moved == sent([2, 0, 1, *extra], names if bound or names is None else [b""] * 4, bound=True)


def test_long_data_has_no_bytes_to_move() -> None:
    payload = execute([TEXT, INT], b"\x05\0\0\0")
    assert rearranged(payload, [1, 0], types=[TEXT, INT], long_data={0}) == execute([INT, TEXT], b"\x05\0\0\0")


def test_a_lone_parameter_stays_where_it_is() -> None:
    payload = execute([INT], b"\x05\0\0\0", names=[b""])
    assert rearranged(payload, [0], types=[INT], attributes=True) == payload


# -- Query attributes


def test_a_query_without_the_flag_is_text_from_its_second_byte() -> None:
    assert query_text(b"\x03SELECT 1", attributes=False) == b"SELECT 1"


def test_a_query_without_attributes_has_two_bytes_before_its_text() -> None:
    payload = make_query(b"SELECT 1", attributes=True)
    assert payload == b"\x03\x00\x01SELECT 1"
    assert query_text(payload, attributes=True) == b"SELECT 1"


WITH_ATTRIBUTES = (
    b"\x03\x02\x01"  # two attributes in one set
    b"\x02\x01"  # the second is NULL; types follow
    b"\xfd\x00\x05trace" + b"\x03\x00\x01n" + b"\x02ab"
)


def test_attributes_are_stepped_over() -> None:
    assert query_text(WITH_ATTRIBUTES + b"STREAM * FROM t", attributes=True) == b"STREAM * FROM t"


def test_a_text_can_be_replaced_and_its_attributes_kept() -> None:
    payload = WITH_ATTRIBUTES + b"ACK t WHERE id = 1"
    at = text_at(payload, attributes=True)
    assert payload[:at] + b"UPDATE" == WITH_ATTRIBUTES + b"UPDATE"


@pytest.mark.parametrize("cut", range(1, len(WITH_ATTRIBUTES)))
def test_cut_attributes_are_refused(cut: int) -> None:
    with pytest.raises(WireError):
        text_at(WITH_ATTRIBUTES[:cut], attributes=True)


def test_attributes_without_types_are_refused() -> None:
    with pytest.raises(WireError, match="without types"):
        text_at(b"\x03\x01\x01\x00\x00SELECT 1", attributes=True)
