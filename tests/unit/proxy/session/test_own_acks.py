"""The proofs of a session's own ACKs, and the answers that are made from them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model import TableId
from engine.packets import frame
from proxy.session.own_acks import PROOF_MAX_AGE_S, PROOFS_MAX, TEXT_MAX, AckForm, OwnAcks, ack_answers
from proxy.wire.packets import AUTOCOMMIT, IN_TRANS, STATE_CHANGED, make_ok, parse_ok
from sqlrewrite.ack import parse_settle
from sqlrewrite.classify import Verb
from sqlrewrite.errors import SqlError

FORM = AckForm(TableId("shop", "orders"), fenced=False)
ONE, NONE = b"Rows matched: 1  Changed: 1  Warnings: 0", b"Rows matched: 0  Changed: 0  Warnings: 0"
DONE = frame(make_ok(affected_rows=1, info=ONE), 1)


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_answers_are_those_of_the_server() -> None:
    answers = ack_answers(DONE)
    assert answers is not None
    assert answers.of(1) == DONE
    void = parse_ok(answers.of(0)[4:])
    assert (void.head.affected_rows, void.info, void.head.status) == (0, NONE, AUTOCOMMIT)
    assert len(answers.of(0)) == len(DONE)


def test_a_status_that_lasts_is_part_of_the_answer() -> None:
    """MariaDB's flag for ANSI_QUOTES and both servers' for NO_BACKSLASH_ESCAPES."""
    status = AUTOCOMMIT | 0x8000 | 0x200
    packet = frame(make_ok(affected_rows=1, status=status, info=ONE), 1)
    acks = OwnAcks()
    acks.shown(FORM, packet)
    assert acks.answers(FORM, AUTOCOMMIT) is None
    answers = acks.answers(FORM, status)
    assert answers is not None
    assert answers.of(1) == packet
    assert parse_ok(answers.of(0)[4:]).head.status == status


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        DONE[:-1],
        DONE + b"\0",
        DONE + DONE,
        frame(make_ok(affected_rows=1, info=ONE), 2),
        frame(make_ok(affected_rows=0, info=NONE), 1),
        frame(make_ok(affected_rows=2, info=ONE), 1),
        frame(make_ok(affected_rows=1, insert_id=5, info=ONE), 1),
        frame(make_ok(affected_rows=1, status=0, info=ONE), 1),
        frame(make_ok(affected_rows=1, status=AUTOCOMMIT | IN_TRANS, info=ONE), 1),
        frame(make_ok(affected_rows=1, warnings=1, info=ONE), 1),
        frame(make_ok(affected_rows=1, info=b"Rows matched: 1  Changed: 1  Warnings: 1"), 1),
        frame(make_ok(affected_rows=1, info=b""), 1),
        frame(make_ok(affected_rows=1, info="Zeilen geändert: 1 1 0".encode()), 1),
        frame(b"\xff" + DONE[5:], 1),
        frame(b"\0\1\0" + (AUTOCOMMIT | STATE_CHANGED).to_bytes(2, "little") + b"\0\0" + b"\x28" + ONE + b"\0", 1),
    ],
)
def test_an_unusual_answer_is_no_proof(packet: bytes) -> None:
    assert ack_answers(packet) is None
    acks = OwnAcks()
    acks.shown(FORM, DONE)
    acks.shown(FORM, packet)
    assert acks.answers(FORM, AUTOCOMMIT) is None


def test_a_proof_holds_for_its_form_and_time_and_for_the_same_status() -> None:
    clock = Clock()
    acks = OwnAcks(clock)
    assert acks.answers(FORM, AUTOCOMMIT) is None
    acks.shown(FORM, DONE)
    assert acks.answers(FORM._replace(fenced=True), AUTOCOMMIT) is None
    assert acks.answers(FORM, AUTOCOMMIT | 0x200) is None
    assert acks.answers(FORM, 0) is None
    clock.now_s += PROOF_MAX_AGE_S * 0.99
    assert acks.answers(FORM, AUTOCOMMIT) is not None
    assert acks.answers(FORM, AUTOCOMMIT | 0x20) is not None  # The last statement used no index.
    clock.now_s += PROOF_MAX_AGE_S * 0.01
    assert acks.answers(FORM, AUTOCOMMIT) is None


def test_few_proofs_are_kept_and_all_are_forgotten_with_the_account() -> None:
    acks = OwnAcks()
    forms = [AckForm(TableId("shop", f"t{number}"), fenced=False) for number in range(3 * PROOFS_MAX)]
    for form in forms:
        acks.shown(form, DONE)
    assert 0 < sum(acks.answers(form, AUTOCOMMIT) is not None for form in forms) <= PROOFS_MAX
    acks.catch_up = b"DO 0"
    acks.forget()
    assert [acks.answers(form, AUTOCOMMIT) for form in forms] == [None] * len(forms)
    assert acks.catch_up is None


PLACES = [
    "ACK orders WHERE id = {}",
    "ACK orders WHERE id={};",
    "ACK FROM shop.orders WHERE `id` IN ({})",
    "ack from orders where id in ({});",
    "ACK orders WHERE id = {} AND epoch = {}",
    "ACK orders WHERE id = 5 AND epoch = {}",
    "ACK orders WHERE id = {} -- {}",
    "ACK orders WHERE id = {} -- ={}",
    "ACK orders WHERE id = {} /* ({}",
    "ACK orders WHERE id = {} # ={}",
    "ACK orders WHERE id = '={}'",
    "ACK orders WHERE id = -{}",
    "ACK orders WHERE id IN (1, {})",
    "ACK orders WHERE id = {} OR id = {}",
    "ACK orders WHERE (id = {})",
    "ACK orders WHERE id = x{}",
    "ACK orders{} WHERE id = {}",
    "NACK orders WHERE id = {}",
    "NACK orders WHERE id = 5 DELAY {}",
]


@given(st.sampled_from(PLACES), st.integers(0, 10**20), st.integers(0, 10**20))
def test_a_text_is_known_only_if_it_means_the_same_but_for_its_id(place: str, one: int, other: int) -> None:
    """Read as `Acknowledgement` reads it, for an ACK of one id without an epoch."""
    acks = OwnAcks()
    text = place.replace("{}", str(one)).encode()
    table = None
    with contextlib.suppress(SqlError):
        read = parse_settle(text)
        keys = read.keys
        if read.verb is Verb.ACK and keys and len(keys) == 1 and isinstance(keys[0], bytes) and read.epoch is None:
            acks.learn(text, keys[0], FORM, "shop")
            table = read.table
    again = place.replace("{}", str(other)).encode()
    if (known := acks.known(again, "shop")) is not None:
        meant = parse_settle(again)
        assert (meant.verb, meant.table, meant.epoch) == (Verb.ACK, table, None)
        assert meant.keys is not None
        assert list(meant.keys) == [str(known.key).encode()]


def test_the_usual_texts_are_known() -> None:
    acks = OwnAcks()
    for place in PLACES[:4]:
        acks.learn(place.format(1).encode(), b"1", FORM, "shop")
        known = acks.known(place.format(23).encode(), "shop")
        assert known is not None
        assert (known.form, known.key) == (FORM, 23)


def test_what_a_text_means_depends_on_the_default_database() -> None:
    acks = OwnAcks()
    acks.learn(b"ACK orders WHERE id = 1", b"1", FORM, "shop")
    acks.learn(b"ACK shop.orders WHERE id = 1", b"1", FORM, None)
    for db in ("other", None):
        assert acks.known(b"ACK orders WHERE id = 2", db) is None
        assert acks.known(b"ACK shop.orders WHERE id = 2", db) is not None
    acks.forget()
    assert acks.known(b"ACK shop.orders WHERE id = 2", None) is None


def test_few_and_short_texts_are_remembered() -> None:
    acks = OwnAcks()
    texts = [f"ACK t{number} WHERE id = 1".encode() for number in range(3 * PROOFS_MAX)]
    for text in (*texts, b"ACK t WHERE" + b" " * TEXT_MAX + b"id = 1"):
        acks.learn(text, b"1", FORM, "shop")
    assert 0 < sum(acks.known(text, "shop") is not None for text in texts) <= PROOFS_MAX
