"""Every type of MySQL's and what it is in Spark, for the tests of all that reads."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from proxy.embedded.server import Flavour

EPOCH = "TIMESTAMP_NTZ '1970-01-01 00:00:00' + INTERVAL '0.000001' SECOND"

TYPES: list[tuple[str, t.DataType, list[tuple[str, Any]]]] = [
    ("TINYINT", t.ByteType(), [("-128", -128), ("127", 127)]),
    ("TINYINT UNSIGNED", t.ShortType(), [("255", 255)]),
    ("BOOLEAN", t.ByteType(), [("TRUE", 1)]),
    ("SMALLINT", t.ShortType(), [("-32768", -32768)]),
    ("SMALLINT UNSIGNED", t.IntegerType(), [("65535", 65535)]),
    ("MEDIUMINT", t.IntegerType(), [("-8388608", -8388608)]),
    ("INT", t.IntegerType(), [("-2147483648", -(2**31))]),
    ("INT UNSIGNED", t.LongType(), [("4294967295", 2**32 - 1)]),
    ("BIGINT", t.LongType(), [("-9223372036854775808", -(2**63))]),
    ("BIGINT UNSIGNED", t.DecimalType(20, 0), [("18446744073709551615", Decimal(2**64 - 1))]),
    ("DECIMAL(38,10)", t.DecimalType(38, 10), [("-1234567890123456789012345678.0123456789", ...)]),
    ("DECIMAL(50,2)", t.StringType(), [("123456789012345678901234567890123456789012.50", ...)]),
    ("FLOAT", t.FloatType(), [("16777213", 16777213.0), ("0.1", 0.10000000149011612)]),
    ("DOUBLE", t.DoubleType(), [("0.1", 0.1), ("-1.7976931348623157e308", -1.7976931348623157e308)]),
    ("BIT(1)", t.LongType(), [("1", 1)]),
    ("BIT(64)", t.LongType(), [("5", 5), ("18446744073709551615", -1)]),
    ("DATE", t.DateType(), [("'9999-12-31'", dt.date(9999, 12, 31)), ("'0000-00-00'", None)]),
    ("DATETIME(6)", t.TimestampNTZType(), [("'1000-01-01 02:03:04.000005'", dt.datetime(1000, 1, 1, 2, 3, 4, 5))]),  # noqa: DTZ001
    (
        "DATETIME",
        t.TimestampNTZType(),
        [("'2024-00-10 00:00:00'", None), ("'2026-02-31 00:00:00'", None), ("'0000-00-00'", None)],
    ),
    (
        "TIMESTAMP(3) NULL",
        t.TimestampType(),
        # The last two are the same hour in the zone of the tests, whose clock was turned back between them.
        [
            ("'2026-03-08 06:31:00.123'", "2026-03-08 06:31:00.123"),
            ("'2025-11-02 04:00:00'", "2025-11-02 04:00:00"),
            ("'2025-11-02 05:00:00'", "2025-11-02 05:00:00"),
        ],
    ),
    ("TIME(3)", t.StringType(), [("'-838:59:58.5'", "-838:59:58.500")]),
    ("YEAR", t.IntegerType(), [("1901", 1901)]),
    ("CHAR(3)", t.StringType(), [("'x'", "x")]),
    ("VARCHAR(20) CHARACTER SET latin1", t.StringType(), [("'naïve'", "naïve")]),
    ("TEXT CHARACTER SET utf8mb4", t.StringType(), [("'🚀 '", "🚀 "), ("''", "")]),
    ("BINARY(3)", t.BinaryType(), [("x'0061ff'", b"\0a\xff")]),
    ("LONGBLOB", t.BinaryType(), [("x'ff00'", b"\xff\0")]),
    ("ENUM('a','b')", t.StringType(), [("'b'", "b")]),
    ("SET('a','b')", t.StringType(), [("'a,b'", "a,b")]),
    ("JSON", t.StringType(), [("'{\"a\": [1, null]}'", '{"a": [1, null]}')]),
    ("POINT", t.BinaryType(), [("POINT(1, 2)", bytes.fromhex("000000000101000000000000000000f03f0000000000000040"))]),
]
"""A column's type, the type it has in Spark, and literals of SQL with their values there (... is the literal)."""

ONLY: dict[Flavour, list[tuple[str, t.DataType, list[tuple[str, Any]]]]] = {
    "mysql": [("VECTOR(2)", t.BinaryType(), [("STRING_TO_VECTOR('[1,2]')", bytes.fromhex("0000803f00000040"))])],
    "mariadb": [
        ("UUID", t.StringType(), [("'6ccd780c-baba-1026-9564-5b8c656024db'", "6ccd780c-baba-1026-9564-5b8c656024db")]),
        ("INET6", t.StringType(), [("'::1'", "::1")]),
    ],
}


def same_in_utc(frame: DataFrame) -> DataFrame:
    """Instants as text, for the zone of this process is nobody's business."""
    instants = [field.name for field in frame.schema.fields if field.dataType == t.TimestampType()]
    return frame.withColumns({name: f.expr(f"{EPOCH} * unix_micros({name})").cast("string") for name in instants})
