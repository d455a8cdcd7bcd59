"""The login relay: which connection has TLS, which bytes are for TLS, and how each side counts its packets."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from mysql_mimic.types import Capabilities

from engine.packets import WireError, frame
from proxy.login.dialogue import LoginRefused, RsaKey, ToClient, ToServer, encrypt_password
from proxy.login.relay import (
    LOGIN_PACKET_MAX,
    BackendTls,
    ChangeUserRelay,
    LoginRelay,
    SecureClient,
    SecureServer,
    Step,
    TlsPolicy,
)
from proxy.wire.fields import BadHandshake, PacketTooLarge
from proxy.wire.handshake import (
    PLUGIN_AUTH,
    PROTOCOL_41,
    SECURE_CONNECTION,
    SSL,
    parse_change_user,
    parse_greeting,
    parse_response,
)
from proxy.wire.packets import ServerError, make_err, make_ok, parse_err
from tests.support.wire import pieces

GREETING = (
    b"\n9.7.4-2\x00\x08\x00\x00\x00an\x14\x0b-&8n\x00\xff\xff\xff\x02\x00\xff\xdf\x15\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\x00e\x06N\x1fHe\x05\x14!QR\x19\x00caching_sha2_password\x00"
)
SCRAMBLE = parse_greeting(GREETING).scramble
WITHOUT_TLS = GREETING.replace(b"\xff\xff\xff\x02", b"\xff\xf7\xff\x02", 1)
OFFERED = TlsPolicy(offered=True)
KEY = RsaKey(rsa.generate_private_key(65537, 2048))
FLAGS = PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH | int(Capabilities.CLIENT_LONG_PASSWORD)
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"h" * 500
OK = make_ok()


def fixed(flags: int) -> bytes:
    return struct.pack("<IIB23x", flags, 1 << 24, 45)


SSL_REQUEST = fixed(FLAGS | SSL)


def response(flags: int = FLAGS, auth: bytes = b"a" * 32, plugin: bytes = b"caching_sha2_password") -> bytes:
    return fixed(flags) + b"app\0" + bytes([len(auth)]) + auth + plugin + b"\0"


def greeted(policy: TlsPolicy = OFFERED, greeting: bytes = GREETING, *, local: bool = False) -> LoginRelay:
    relay = LoginRelay(policy, client_is_local=local)
    relay.from_server(frame(greeting, 0))
    return relay


def secured(policy: TlsPolicy = OFFERED, greeting: bytes = GREETING) -> LoginRelay:
    """A login whose client has TLS."""
    relay = greeted(policy, greeting)
    assert relay.from_client(frame(SSL_REQUEST, 1)) == [SecureClient(b"")]
    return relay


def sent(steps: Sequence[Step], kind: type[ToClient | ToServer]) -> list[tuple[int, bytes]]:
    """Sequence number and payload of each packet that goes there."""
    packets = [step.data for step in steps if isinstance(step, kind)]
    return [(packet[3], packet[4:]) for packet in packets]


# -- The client connection


@pytest.mark.parametrize("offered", [True, False])
@pytest.mark.parametrize("greeting", [GREETING, WITHOUT_TLS])
def test_tls_is_offered_by_the_proxy_whatever_the_server_offers(offered: bool, greeting: bytes) -> None:
    ((seq, payload),) = sent(LoginRelay(TlsPolicy(offered)).from_server(frame(greeting, 0)), ToClient)
    assert seq == 0
    assert bool(parse_greeting(payload).capabilities & SSL) == offered


@given(st.lists(st.integers(0, 36 + len(CLIENT_HELLO))))
def test_what_comes_behind_the_request_for_tls_is_for_tls_alone_however_it_is_cut(cuts: list[int]) -> None:
    relay = greeted()
    for_tls = b""
    steps: list[Step] = []
    for piece in pieces(frame(SSL_REQUEST, 1) + CLIENT_HELLO, cuts):
        if steps:
            for_tls += piece
        else:
            steps += relay.from_client(piece)
    (step,) = steps
    assert isinstance(step, SecureClient)
    assert step.rest + for_tls == CLIENT_HELLO


def test_a_login_injected_in_clear_behind_the_request_for_tls_is_never_read() -> None:
    relay = greeted()
    injected = frame(response(FLAGS | SSL), 2)
    assert relay.from_client(frame(SSL_REQUEST, 1) + injected) == [SecureClient(injected)]
    steps = relay.from_client(frame(response(FLAGS | SSL, auth=b"b" * 32), 2))
    assert [parse_response(payload).auth_response for _, payload in sent(steps, ToServer)[1:]] == [b"b" * 32]


def test_tls_cannot_be_asked_for_twice() -> None:
    with pytest.raises(BadHandshake, match="twice"):
        secured().from_client(frame(SSL_REQUEST, 2))


def test_tls_cannot_be_asked_for_where_it_is_not_offered() -> None:
    with pytest.raises(BadHandshake, match="without being offered"):
        greeted(TlsPolicy(offered=False)).from_client(frame(SSL_REQUEST, 1))


def test_a_client_that_claims_tls_without_asking_for_it_has_none() -> None:
    steps = greeted().from_client(frame(response(FLAGS | SSL), 1))
    ((_, payload),) = sent(steps, ToServer)
    assert not parse_response(payload).capabilities & SSL


# -- The backing connection


@pytest.mark.parametrize(
    ("when", "client_tls", "server_tls"),
    [
        ("mirror", True, True),
        ("mirror", False, False),
        ("never", True, False),
        ("never", False, False),
        ("always", True, True),
        ("always", False, True),
    ],
)
def test_the_server_is_asked_for_tls_as_the_policy_says(when: BackendTls, client_tls: bool, server_tls: bool) -> None:
    policy = TlsPolicy(True, when, key=KEY)
    relay = secured(policy) if client_tls else greeted(policy)
    steps = relay.from_client(frame(response(FLAGS | SSL if client_tls else FLAGS), 2 if client_tls else 1))
    packets = sent(steps, ToServer)
    assert [seq for seq, _ in packets] == list(range(1, len(packets) + 1))
    assert bool(parse_response(packets[-1][1]).capabilities & SSL) == server_tls
    if server_tls:
        assert steps[1] == SecureServer()
        assert parse_response(packets[0][1]).is_ssl_request
    else:
        assert len(steps) == 1


def test_a_server_without_tls_is_put_up_with_where_the_client_merely_has_it() -> None:
    steps = secured(OFFERED, WITHOUT_TLS).from_client(frame(response(FLAGS | SSL), 2))
    ((seq, payload),) = sent(steps, ToServer)
    assert (seq, parse_response(payload).capabilities & SSL) == (1, 0)


@pytest.mark.parametrize("policy", [TlsPolicy(True, "always", key=KEY), TlsPolicy(True, "mirror", verified=True)])
def test_a_server_without_tls_is_not_put_up_with_where_the_settings_demand_it(policy: TlsPolicy) -> None:
    with pytest.raises(LoginRefused) as refused:
        secured(policy, WITHOUT_TLS).from_client(frame(response(FLAGS | SSL), 2))
    assert refused.value.error.code == 1105


# -- The exchange


def test_each_leg_counts_its_own_packets() -> None:
    relay = secured(TlsPolicy(True, "never"))
    assert sent(relay.from_client(frame(response(FLAGS | SSL), 2)), ToServer)[0][0] == 1
    assert sent(relay.from_server(frame(b"\x01\x04", 2)), ToClient) == [(3, b"\x01\x04")]
    assert sent(relay.from_client(frame(b"secret\0", 4)), ToServer) == [(3, b"\x02")]
    ((seq, cipher),) = sent(relay.from_server(frame(b"\x01" + KEY.public_pem, 4)), ToServer)
    assert (seq, KEY.decrypt(cipher, SCRAMBLE)) == (5, b"secret\0")
    assert sent(relay.from_server(frame(OK, 6)), ToClient) == [(5, OK)]
    assert relay.done is not None
    assert (relay.done.connection_id, relay.done.response.username) == (8, "app")


def test_a_fast_login_passes_two_packets_in_one() -> None:
    relay = greeted()
    relay.from_client(frame(response(), 1))
    assert sent(relay.from_server(frame(b"\x01\x03", 2) + frame(OK, 3)), ToClient) == [(2, b"\x01\x03"), (3, OK)]
    assert relay.done is not None


def test_a_password_in_the_response_itself_is_translated() -> None:
    relay = greeted(TlsPolicy(True, "always", key=KEY))
    steps = relay.from_client(frame(response(auth=b"\x01", plugin=b"sha256_password"), 1))
    assert sent(steps, ToClient) == [(2, b"\x01" + KEY.public_pem)]
    assert [seq for seq, _ in sent(steps, ToServer)] == [1]
    ((seq, payload),) = sent(relay.from_client(frame(encrypt_password(b"pw\0", SCRAMBLE, KEY.public_pem), 3)), ToServer)
    assert (seq, parse_response(payload).auth_response) == (2, b"pw\0")
    assert parse_response(payload).username == "app"


def test_a_client_on_a_unix_socket_may_show_its_password() -> None:
    relay = greeted(local=True)
    relay.from_client(frame(response(), 1))
    relay.from_server(frame(b"\x01\x04", 2))
    assert sent(relay.from_client(frame(b"secret\0", 3)), ToServer) == [(3, b"\x02")]


def test_a_refusal_of_the_server_is_passed_on_as_it_is() -> None:
    relay = greeted()
    relay.from_client(frame(response(), 1))
    error = make_err(1045, "28000", "Access denied for user 'app'@'localhost' (using password: YES)")
    assert sent(relay.from_server(frame(error, 2)), ToClient) == [(2, error)]
    assert relay.refused


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_refuses_before_it_is_answered_is_passed_on_when_the_client_has_answered(*, tls: bool) -> None:
    refusal = make_err(1130, "HY000", "Host '192.0.2.1' is not allowed to connect")
    relay = greeted()
    assert relay.from_server(frame(refusal, 1)) == []
    assert (relay.waiting, relay.refused) == (True, False)
    if tls:
        assert relay.from_client(frame(SSL_REQUEST, 1)) == [SecureClient(b"")]
    number = 2 if tls else 1
    steps = relay.from_client(frame(response(FLAGS | SSL if tls else FLAGS), number))
    assert steps == [ToClient(frame(refusal, number + 1))]
    assert (relay.waiting, relay.refused) == (False, True)


def test_a_refusal_of_the_proxy_takes_the_clients_next_number() -> None:
    relay = secured()
    packet = relay.refusal(ServerError(2026, "HY000", "no"))
    assert (packet[3], parse_err(packet[4:]).code) == (2, 2026)


# -- What is not the protocol


def test_a_client_that_speaks_first_is_refused() -> None:
    with pytest.raises(BadHandshake, match="before it was greeted"):
        LoginRelay(OFFERED).from_client(frame(response(), 1))


@pytest.mark.parametrize("seq", [0, 2, 255])
def test_a_packet_out_of_step_is_refused(seq: int) -> None:
    with pytest.raises(BadHandshake, match=f"packet {seq} of the login"):
        greeted().from_client(frame(response(), seq))


def test_a_command_sent_ahead_of_the_login_is_refused() -> None:
    relay = greeted()
    with pytest.raises(BadHandshake):
        relay.from_client(frame(response(), 1) + frame(b"\x03SELECT 1", 0))


def test_a_huge_login_packet_is_refused_by_its_header() -> None:
    with pytest.raises(PacketTooLarge):
        greeted().from_client((LOGIN_PACKET_MAX + 1).to_bytes(3, "little") + b"\x01")


def test_a_server_that_goes_on_unanswered_is_refused() -> None:
    with pytest.raises(WireError):
        greeted().from_server(frame(OK, 1))


@given(
    st.lists(
        st.tuples(st.booleans(), st.one_of(st.binary(max_size=60), st.sampled_from([SSL_REQUEST, response(), OK]))),
        max_size=8,
    ),
    st.sampled_from([OFFERED, TlsPolicy(), TlsPolicy(True, "always", key=KEY), TlsPolicy(True, "never")]),
    st.booleans(),
)
def test_any_dialogue_is_followed_or_refused(said: list[tuple[bool, bytes]], policy: TlsPolicy, local: bool) -> None:
    relay = greeted(policy, local=local)
    seqs = {True: 1, False: 1}
    try:
        for by_client, payload in said:
            packet = frame(payload, seqs[by_client])
            seqs[by_client] += 1
            relay.from_client(packet) if by_client else relay.from_server(packet)
    except (WireError, LoginRefused):
        pass


# -- COM_CHANGE_USER


def logged_in(policy: TlsPolicy, *, tls: bool) -> ChangeUserRelay:
    relay = secured(policy) if tls else greeted(policy)
    relay.from_client(frame(response(FLAGS | SSL if tls else FLAGS), 2 if tls else 1))
    relay.from_server(frame(OK, 2))
    assert relay.done is not None
    return ChangeUserRelay(relay.done)


def test_a_change_of_user_is_translated_as_the_login_was() -> None:
    relay = logged_in(TlsPolicy(True, "never"), tls=True)
    command = b"\x11other\0\x03abcshop\0\x2d\0caching_sha2_password\0"
    assert sent(relay.begin(command), ToServer) == [(0, command)]
    switch = b"\xfecaching_sha2_password\0" + b"n" * 20 + b"\0"
    assert sent(relay.from_server(frame(switch, 1)), ToClient) == [(1, switch)]
    assert sent(relay.from_client(frame(b"d" * 32, 2)), ToServer) == [(2, b"d" * 32)]
    assert sent(relay.from_server(frame(b"\x01\x04", 3)), ToClient) == [(3, b"\x01\x04")]
    assert sent(relay.from_client(frame(b"secret\0", 4)), ToServer) == [(4, b"\x02")]
    ((seq, cipher),) = sent(relay.from_server(frame(b"\x01" + KEY.public_pem, 5)), ToServer)
    assert (seq, KEY.decrypt(cipher, b"n" * 20)) == (6, b"secret\0")
    assert not relay.over
    assert sent(relay.from_server(frame(OK, 7)), ToClient) == [(5, OK)]
    assert relay.over


def test_a_password_in_the_change_of_user_itself_is_translated() -> None:
    relay = logged_in(TlsPolicy(True, "never"), tls=True)
    command = b"\x11other\0\x07secret\0shop\0\x2d\0sha256_password\0"
    ((_, payload),) = sent(relay.begin(command), ToServer)
    change = parse_change_user(payload, FLAGS)
    assert (change.auth_response, change.database, change.plugin) == (b"\x01", "shop", "sha256_password")
    ((_, cipher),) = sent(relay.from_server(frame(b"\x01" + KEY.public_pem, 1)), ToServer)
    assert KEY.decrypt(cipher, SCRAMBLE) == b"secret\0"


def test_an_error_ends_a_change_of_user() -> None:
    relay = logged_in(TlsPolicy(True, "always", key=KEY), tls=False)
    relay.begin(b"\x11other\0\0shop\0")
    relay.from_server(frame(make_err(1045, "28000", "no"), 1))
    assert relay.over
