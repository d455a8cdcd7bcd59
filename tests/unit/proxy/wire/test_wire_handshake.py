"""Logins: what greetings and responses say, and what is left of them when flags are masked."""

from __future__ import annotations

import struct

import pytest
from mysql_mimic.types import Capabilities, str_len, uint_len

from engine.packets import WireError
from proxy.wire.fields import BadHandshake
from proxy.wire.handshake import (
    CONNECT_ATTRS,
    CONNECT_WITH_DB,
    LENENC_AUTH,
    LONG_PASSWORD,
    MARIADB_CACHE_METADATA,
    MARIADB_STMT_BULK,
    MASKED,
    PASSABLE,
    PLUGIN_AUTH,
    PROTOCOL_41,
    SECURE_CONNECTION,
    SSL,
    ZSTD,
    mask_greeting,
    mask_response,
    parse_change_user,
    parse_greeting,
    parse_response,
)

MARIADB = (
    b'\n5.5.5-10.11.19-MariaDB-0+deb12u1-log\x00\x04\x00\x00\x00&`4"J1R+\x00\xfe\xf7\x08\x02\x00'
    b"\xff\x81\x15\x00\x00\x00\x00\x00\x00\x1d\x00\x00\x00|Sh4g+?=Rf,C\x00mysql_native_password\x00"
)
MYSQL = (
    b"\n9.7.4-2\x00\x08\x00\x00\x00an\x14\x0b-&8n\x00\xff\xff\xff\x02\x00\xff\xdf\x15\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\x00e\x06N\x1fHe\x05\x14!QR\x19\x00caching_sha2_password\x00"
)
QUERY_ATTRIBUTES = int(Capabilities.CLIENT_QUERY_ATTRIBUTES)
PROGRESS = 1 << 32
ALL_FIELDS = CONNECT_WITH_DB | PLUGIN_AUTH | CONNECT_ATTRS
BASE = PROTOCOL_41 | SECURE_CONNECTION
ATTRIBUTES = str_len(b"program_name") + str_len(b"mysql") + str_len(b"_os") + str_len(b"Linux")


def response(flags: int, *, auth: bytes = b"a" * 20) -> bytes:
    """A response as a client with these flags sends it."""
    parts = [
        struct.pack("<IIB19sI", flags & 0xFFFFFFFF, 1 << 24, 45, b"", flags >> 32),
        b"app\0",
        (uint_len(len(auth)) if flags & LENENC_AUTH else bytes([len(auth)])) + auth,
        b"shop\0" if flags & CONNECT_WITH_DB else b"",
        b"mysql_native_password\0" if flags & PLUGIN_AUTH else b"",
        str_len(ATTRIBUTES) if flags & CONNECT_ATTRS else b"",
        b"\x03" if flags & ZSTD else b"",
    ]
    return b"".join(parts)


# -- Greetings


def test_the_greeting_of_mysql_is_read() -> None:
    greeting = parse_greeting(MYSQL)
    assert (greeting.server_version, greeting.connection_id) == ("9.7.4-2", 8)
    assert greeting.plugin == "caching_sha2_password"
    assert greeting.capabilities == 0xDFFFFFFF
    assert greeting.scramble == b"an\x14\x0b-&8ne\x06N\x1fHe\x05\x14!QR\x19"


def test_the_greeting_of_mariadb_shows_its_extended_flags() -> None:
    greeting = parse_greeting(MARIADB)
    assert greeting.server_version.startswith("5.5.5-10.11.19-MariaDB")
    assert greeting.capabilities == 0x1D_81FFF7FE
    assert len(greeting.scramble) == 20


@pytest.mark.parametrize("payload", [MYSQL, MARIADB], ids=["mysql", "mariadb"])
def test_a_masked_greeting_differs_in_its_flags_alone(payload: bytes) -> None:
    masked = mask_greeting(payload, PASSABLE)
    before, after = parse_greeting(payload), parse_greeting(masked)
    assert after.capabilities == before.capabilities & PASSABLE
    changed = {i for i, (a, b) in enumerate(zip(payload, masked, strict=True)) if a != b}
    at = payload.index(0, 1) + 14
    assert changed <= {at, at + 1, at + 5, at + 6, at + 14, at + 15, at + 16, at + 17}
    assert mask_greeting(payload, before.capabilities) == payload


def test_a_greeting_offers_nothing_that_cannot_be_followed() -> None:
    offered = parse_greeting(mask_greeting(MARIADB, PASSABLE)).capabilities
    assert not any(offered & flag for flag in MASKED)
    assert not offered & PROGRESS
    assert offered & MARIADB_CACHE_METADATA
    assert offered & MARIADB_STMT_BULK


@pytest.mark.parametrize("cut", range(1, len(MYSQL) - len(b"caching_sha2_password\0")))
def test_a_cut_greeting_is_refused(cut: int) -> None:
    with pytest.raises(WireError):
        parse_greeting(MYSQL[:cut])


def test_a_greeting_of_another_protocol_is_refused() -> None:
    with pytest.raises(BadHandshake):
        parse_greeting(b"\x09" + MYSQL[1:])


# -- Responses


@pytest.mark.parametrize("lenenc", [0, LENENC_AUTH])
def test_a_response_is_read_with_all_its_fields(lenenc: int) -> None:
    parsed = parse_response(response(BASE | ALL_FIELDS | LONG_PASSWORD | lenenc))
    assert (parsed.username, parsed.database) == ("app", "shop")
    assert parsed.plugin == "mysql_native_password"
    assert parsed.auth_response == b"a" * 20
    assert parsed.program_name == "mysql"
    assert not parsed.is_ssl_request


def test_a_password_is_not_shown() -> None:
    assert "aaaa" not in repr(parse_response(response(BASE | LONG_PASSWORD)))


def test_a_response_without_flags_has_no_such_fields() -> None:
    parsed = parse_response(response(BASE | LONG_PASSWORD))
    assert (parsed.database, parsed.plugin, parsed.attributes) == (None, None, {})


def test_a_request_for_tls_is_told_from_a_response() -> None:
    parsed = parse_response(response(BASE | SSL)[:32])
    assert parsed.is_ssl_request
    assert parsed.capabilities & SSL


@pytest.mark.parametrize("payload", [b"", b"\x05\x00\x00\x00\x00app\0\0", b"\x01", bytes(64)])
def test_a_client_of_another_protocol_gets_error_1043(payload: bytes) -> None:
    with pytest.raises(BadHandshake) as refusal:
        parse_response(payload)
    assert (refusal.value.code, refusal.value.sqlstate) == (1043, "08S01")


@pytest.mark.parametrize(
    "payload",
    [
        response(BASE)[:32] + b"app",
        response(BASE)[:32] + b"app\0\x14short",
        response(BASE | LENENC_AUTH)[:32] + b"app\0\xfe" + b"\xff" * 8,
        response(BASE | CONNECT_ATTRS)[:-1],
        response(BASE | CONNECT_ATTRS)[: -len(ATTRIBUTES)] + b"\x01" * len(ATTRIBUTES),
    ],
    ids=["user", "auth", "lenenc auth", "attributes", "attribute"],
)
def test_a_response_with_lying_lengths_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        parse_response(payload)


def test_a_response_within_what_was_offered_is_not_touched() -> None:
    payload = response(BASE | ALL_FIELDS | LENENC_AUTH) + b"trailing"
    assert mask_response(payload, BASE | ALL_FIELDS | LENENC_AUTH) == payload


def test_a_flag_that_was_not_offered_does_not_reach_the_server() -> None:
    masked = mask_response(response(BASE | QUERY_ATTRIBUTES), BASE)
    assert parse_response(masked).capabilities == BASE


@pytest.mark.parametrize("flag", [CONNECT_WITH_DB, PLUGIN_AUTH, CONNECT_ATTRS, ZSTD])
def test_a_masked_flag_takes_its_field_with_it(flag: int) -> None:
    flags = BASE | ALL_FIELDS | ZSTD
    assert mask_response(response(flags), flags & ~flag) == response(flags & ~flag)


def test_auth_data_is_rewritten_for_a_server_with_short_lengths() -> None:
    flags = BASE | ALL_FIELDS
    assert mask_response(response(flags | LENENC_AUTH), flags) == response(flags)
    long = response(flags | LENENC_AUTH, auth=b"x" * 252)
    assert mask_response(long, flags) == response(flags, auth=b"x" * 252)
    with pytest.raises(WireError, match="256 bytes of auth data"):
        mask_response(response(flags | LENENC_AUTH, auth=b"x" * 256), flags)


def test_auth_data_that_has_no_short_form_is_refused() -> None:
    with pytest.raises(WireError, match="a form that this server does not take"):
        mask_response(response(PROTOCOL_41 | LENENC_AUTH), BASE)


def test_a_mysql_client_of_a_mariadb_server_stays_one() -> None:
    # Without LONG_PASSWORD the server would read extended flags from the client's reserved bytes.
    offered = parse_greeting(mask_greeting(MARIADB, PASSABLE)).capabilities
    assert not offered & LONG_PASSWORD
    payload = response(BASE | LONG_PASSWORD)
    assert mask_response(payload, offered) == payload


def test_extended_flags_are_masked_too() -> None:
    masked = mask_response(response(BASE | PROGRESS | MARIADB_STMT_BULK), BASE | PASSABLE)
    assert parse_response(masked).capabilities == BASE | MARIADB_STMT_BULK


# -- COM_CHANGE_USER


def test_a_change_of_user_is_read() -> None:
    payload = b"\x11app\0\x04auth" + b"shop\0" + b"\x2d\x00" + b"plug\0" + str_len(ATTRIBUTES)
    change = parse_change_user(payload, BASE | ALL_FIELDS)
    assert (change.username, change.database, change.charset) == ("app", "shop", 45)
    assert change.plugin == "plug"
    assert change.attributes["program_name"] == "mysql"


def test_a_change_of_user_may_leave_out_its_later_fields() -> None:
    change = parse_change_user(b"\x11app\0\x00shop\0", BASE | ALL_FIELDS)
    assert (change.database, change.charset, change.plugin) == ("shop", None, None)


@pytest.mark.parametrize("payload", [b"\x11", b"\x11app", b"\x11app\0", b"\x11app\0\x09short"])
def test_a_short_change_of_user_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        parse_change_user(payload, BASE | ALL_FIELDS)
