"""The proofs of a session's own ACKs, and the answers that are made from them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine.model import TableId
from engine.packets import frame
from proxy.session.own_acks import PROOF_MAX_AGE_S, PROOFS_MAX, AckForm, OwnAcks, ack_answers
from proxy.wire.packets import AUTOCOMMIT, IN_TRANS, STATE_CHANGED, make_ok, parse_ok

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
