"""Passwords on connections of different kind: who sees what, in each of the four cases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from engine.packets import WireError
from proxy.login.dialogue import (
    CACHING_SHA2,
    SHA256,
    AuthDialogue,
    LoginRefused,
    RsaKey,
    ToClient,
    ToServer,
    encrypt_password,
)

SCRAMBLE = b"an\x14\x0b-&8ne\x06N\x1fHe\x05\x14!QR\x19"
OTHER_SCRAMBLE = bytes(range(1, 21))
PASSWORD = b"secret\0"
FULL = b"\x01\x04"
SERVERS = RsaKey(rsa.generate_private_key(65537, 2048))
OURS = RsaKey(rsa.generate_private_key(65537, 2048))
KEY_REQUEST = {CACHING_SHA2: b"\x02", SHA256: b"\x01"}
PLUGINS = (CACHING_SHA2, SHA256)


def switch(plugin: str, scramble: bytes = SCRAMBLE) -> bytes:
    return b"\xfe" + plugin.encode() + b"\0" + scramble + b"\0"


def begun(
    plugin: str, *, client: bool, server: bool, scramble: bytes = SCRAMBLE, key: RsaKey | None = OURS
) -> AuthDialogue:
    """A dialogue in which the client's next packet is its password, or asks for the key."""
    dialogue = AuthDialogue(b"x" * 20, client_secure=client, server_secure=server, key=key)
    dialogue.opening("mysql_native_password", b"", lambda auth: auth)
    dialogue.from_server(switch(plugin, scramble))
    if plugin == CACHING_SHA2:
        assert dialogue.from_client(b"d" * 32) == [ToServer(b"d" * 32)]
        assert dialogue.from_server(FULL) == [ToClient(FULL)]
    return dialogue


def only(said: Sequence[ToClient | ToServer], kind: type[ToClient | ToServer]) -> bytes:
    (one,) = said
    assert type(one) is kind
    return one.data


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("secure", [True, False])
def test_between_legs_of_one_kind_all_is_passed_on(plugin: str, secure: bool) -> None:
    dialogue = begun(plugin, client=secure, server=secure, key=None)
    assert not dialogue.translates
    for packet in (KEY_REQUEST[plugin], PASSWORD, b"c" * 256):
        assert dialogue.from_client(packet) == [ToServer(packet)]
        assert dialogue.from_server(b"\x01" + SERVERS.public_pem) == [ToClient(b"\x01" + SERVERS.public_pem)]


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_clear_password_is_encrypted_for_a_server_without_tls(plugin: str) -> None:
    dialogue = begun(plugin, client=True, server=False, scramble=OTHER_SCRAMBLE)
    assert only(dialogue.from_client(PASSWORD), ToServer) == KEY_REQUEST[plugin]
    cipher = only(dialogue.from_server(b"\x01" + SERVERS.public_pem), ToServer)
    assert SERVERS.decrypt(cipher, OTHER_SCRAMBLE) == PASSWORD
    assert dialogue.from_server(b"\xff\x15\x04#28000no") == [ToClient(b"\xff\x15\x04#28000no")]


@pytest.mark.parametrize("plugin", PLUGINS)
def test_an_encrypted_password_is_decrypted_for_a_server_with_tls(plugin: str) -> None:
    dialogue = begun(plugin, client=False, server=True, scramble=OTHER_SCRAMBLE)
    assert only(dialogue.from_client(KEY_REQUEST[plugin]), ToClient) == b"\x01" + OURS.public_pem
    cipher = encrypt_password(PASSWORD, OTHER_SCRAMBLE, OURS.public_pem)
    assert only(dialogue.from_client(cipher), ToServer) == PASSWORD


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_client_that_has_the_proxys_key_need_not_ask_for_it(plugin: str) -> None:
    dialogue = begun(plugin, client=False, server=True)
    assert only(dialogue.from_client(encrypt_password(PASSWORD, SCRAMBLE, OURS.public_pem)), ToServer) == PASSWORD


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("shown", [PASSWORD, b"c" * 256, encrypt_password(PASSWORD, SCRAMBLE, SERVERS.public_pem)])
def test_what_a_server_without_tls_would_refuse_is_refused_behind_tls_too(plugin: str, shown: bytes) -> None:
    sent = only(begun(plugin, client=False, server=True).from_client(shown), ToServer)
    assert shown.strip(b"\0") not in sent
    assert len(sent) > 30


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("server", [True, False])
def test_a_client_on_a_unix_socket_may_ask_for_the_key_all_the_same(plugin: str, server: bool) -> None:
    dialogue = begun(plugin, client=True, server=server)
    said = dialogue.from_client(KEY_REQUEST[plugin])
    if server:
        assert only(said, ToClient) == b"\x01" + OURS.public_pem
        cipher = encrypt_password(PASSWORD, SCRAMBLE, OURS.public_pem)
        assert only(dialogue.from_client(cipher), ToServer) == PASSWORD
    else:
        assert only(said, ToServer) == KEY_REQUEST[plugin]
        assert only(dialogue.from_server(b"\x01" + SERVERS.public_pem), ToClient).endswith(SERVERS.public_pem)
        assert only(dialogue.from_client(b"c" * 256), ToServer) == b"c" * 256


@pytest.mark.parametrize("empty", [b"", b"\0"])
@pytest.mark.parametrize(("client", "server"), [(True, False), (False, True)])
def test_an_empty_password_is_passed_on(empty: bytes, client: bool, server: bool) -> None:
    assert only(begun(SHA256, client=client, server=server).from_client(empty), ToServer) == empty


def test_a_password_in_the_clients_first_answer_is_translated_inside_its_envelope() -> None:
    dialogue = AuthDialogue(SCRAMBLE, client_secure=True, server_secure=False)
    assert only(dialogue.opening(SHA256, PASSWORD, lambda auth: b"<" + auth + b">"), ToServer) == b"<\x01>"
    cipher = only(dialogue.from_server(b"\x01" + SERVERS.public_pem), ToServer)
    assert SERVERS.decrypt(cipher, SCRAMBLE) == PASSWORD


def test_a_clients_first_answer_waits_until_its_password_is_known() -> None:
    dialogue = AuthDialogue(SCRAMBLE, client_secure=False, server_secure=True, key=OURS)
    said = dialogue.opening(SHA256, b"\x01", lambda auth: b"<" + auth + b">")
    assert only(said, ToClient) == b"\x01" + OURS.public_pem
    cipher = encrypt_password(PASSWORD, SCRAMBLE, OURS.public_pem)
    assert only(dialogue.from_client(cipher), ToServer) == b"<secret\0>"


@pytest.mark.parametrize("plugin", ["mysql_native_password", "client_ed25519", "parsec", CACHING_SHA2])
@pytest.mark.parametrize(("client", "server"), [(True, False), (False, True)])
def test_answers_to_a_challenge_are_the_same_on_any_connection(plugin: str, client: bool, server: bool) -> None:
    dialogue = AuthDialogue(SCRAMBLE, client_secure=client, server_secure=server, key=OURS)
    assert dialogue.opening(plugin, b"a" * 32, lambda auth: b"<" + auth + b">") == [ToServer(b"<" + b"a" * 32 + b">")]
    assert dialogue.from_server(b"\x01\x03") == [ToClient(b"\x01\x03")]
    assert dialogue.from_client(b"\x02") == [ToServer(b"\x02")]


def test_an_error_where_the_servers_key_was_due_is_passed_on() -> None:
    dialogue = begun(CACHING_SHA2, client=True, server=False)
    dialogue.from_client(PASSWORD)
    error = b"\xff\x15\x04#28000no"
    assert dialogue.from_server(error) == [ToClient(error)]


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_packet_out_of_turn_lets_no_clear_password_through(plugin: str) -> None:
    dialogue = begun(plugin, client=True, server=False)
    assert dialogue.from_server(b"\x01\x05") == [ToClient(b"\x01\x05")]
    assert only(dialogue.from_client(PASSWORD), ToServer) == KEY_REQUEST[plugin]


@pytest.mark.parametrize("factor", [b"\xfe", b"\x02"])
def test_a_further_factor_is_a_plugin_of_its_own(factor: bytes) -> None:
    dialogue = begun(CACHING_SHA2, client=True, server=False)
    dialogue.from_server(factor + SHA256.encode() + b"\0" + OTHER_SCRAMBLE + b"\0")
    assert only(dialogue.from_client(PASSWORD), ToServer) == KEY_REQUEST[SHA256]


@pytest.mark.parametrize("plugin", ["mysql_clear_password", "dialog"])
def test_a_password_that_cannot_be_encrypted_does_not_leave_tls(plugin: str) -> None:
    dialogue = AuthDialogue(SCRAMBLE, client_secure=True, server_secure=False)
    with pytest.raises(LoginRefused, match=f"{plugin}.*no TLS"):
        dialogue.from_server(switch(plugin, b""))
    for client, server in ((True, True), (False, False)):
        passing = AuthDialogue(SCRAMBLE, client_secure=client, server_secure=server)
        passing.from_server(switch(plugin, b""))
        assert passing.from_client(PASSWORD) == [ToServer(PASSWORD)]


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"no key",
        SERVERS.public_pem[:-40],
        ec.generate_private_key(ec.SECP256R1())
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
    ],
)
def test_a_key_that_is_none_is_refused_without_showing_the_password(pem: bytes) -> None:
    dialogue = begun(CACHING_SHA2, client=True, server=False)
    dialogue.from_client(PASSWORD)
    with pytest.raises(WireError) as refused:
        dialogue.from_server(b"\x01" + pem)
    assert "secret" not in repr(refused.value)
    assert refused.value.__cause__ is None


def test_a_password_too_long_for_the_key_is_refused() -> None:
    with pytest.raises(WireError, match="cannot be encrypted"):
        encrypt_password(b"x" * 300, SCRAMBLE, SERVERS.public_pem)


def test_no_text_of_it_shows_a_password() -> None:
    dialogue = begun(CACHING_SHA2, client=True, server=False)
    said = dialogue.from_client(PASSWORD)
    assert "secret" not in f"{dialogue!r} {said!r} {ToServer(PASSWORD)!r} {ToClient(PASSWORD)!r}"
