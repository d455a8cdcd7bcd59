"""What a session's own ACKs have shown, so that the engine may carry out further ones together with
those of other clients.

An ACK that the session has carried out shows that the client may do this, and which answer the
server gives. That holds for a moment (PROOF_MAX_AGE_S) and for ACKs of the same form.

The backing connection does not notice an ACK that the engine has carried out. Before a statement
that could show the difference, by ROW_COUNT() for instance, a statement is run there that leaves
the session as the ACK would have left it (`catch_up`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from engine.model import TableId
from engine.packets import HEADER, PAYLOAD_MAX
from proxy.wire.mimic_adapter import ServerStatus
from proxy.wire.packets import AUTOCOMMIT, parse_ok

PROOF_MAX_AGE_S: Final = 1.0
"""After this time an ACK runs in the client's own session again, and fails there if its right was
revoked. A session that acknowledges ten messages a second has a tenth of them carried out there."""

PROOFS_MAX: Final = 4
"""Forms that are remembered for each session. A worker uses one."""

ANSWER_MAX: Final = 256
"""Bytes of an answer to an ACK. In English it has 52."""

LASTING: Final = AUTOCOMMIT | int(ServerStatus.SERVER_STATUS_NO_BACKSLASH_ESCAPES) | 0x8000
"""The status flags that depend on the session and not on the statement. The last is MariaDB's
SERVER_STATUS_ANSI_QUOTES."""

TEXT_MAX: Final = 256
"""Bytes of a text that is remembered."""
DIGITS_MAX: Final = 18
"""Digits of an id in such a text: as many as any BIGINT can have."""

_PLAIN_HEAD: Final = re.compile(rb"[A-Za-z0-9_$.` ]+(?:= ?|\()")
"""No quotes, no comments, and no other condition before the id."""
_NUMBERS: Final = re.compile(rb"[0-9]+")
_AFFECTED_AT: Final = HEADER + 1
_TEXT_AT: Final = HEADER + 7
"""The place of the number of affected rows in the packet of an OK, and that of its text, if both
numbers have one byte."""


class AckForm(NamedTuple):
    """What decides which privileges an ACK of one id needs, and how it is answered."""

    table: TableId
    fenced: bool
    """Whether its condition names the epoch."""
    binary: bool = False
    """Whether it is an execution of a prepared statement."""


class KnownAck(NamedTuple):
    """An ACK whose text differs from an earlier one by its id alone."""

    form: AckForm
    key: int


class AckAnswers(NamedTuple):
    """The server's answers to ACKs of one form, as packets."""

    done: bytes
    """It has acknowledged one message."""
    void: bytes
    """It has acknowledged none."""

    def of(self, count: int) -> bytes:
        """The answer to an ACK with so many affected rows."""
        return self.done if count else self.void


class OwnAcks:
    """The proofs of one session, and whether its backing connection has to catch up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._proofs: dict[AckForm, tuple[float, AckAnswers]] = {}
        self._texts: dict[tuple[bytes, bytes], tuple[AckForm, str | None]] = {}
        """What precedes and follows the id in texts that were read, and what they mean."""
        self.catch_up: bytes | None = None
        """The statement after which the backing connection is as after the last ACK. None: it has
        carried out the client's last statement itself."""

    def shown(self, form: AckForm, answer: bytes) -> None:
        """The session has carried out an ACK of this form, with this packet as the answer. It is a
        proof if it shows one affected row in a commit of its own and nothing unusual."""
        answers = ack_answers(answer)
        self._proofs.pop(form, None)
        if answers is not None:
            if len(self._proofs) >= PROOFS_MAX:
                self._proofs.clear()
            self._proofs[form] = self._clock() + PROOF_MAX_AGE_S, answers

    def answers(self, form: AckForm, status: int) -> AckAnswers | None:
        """The server's answers to ACKs of this form; None if the session has to carry out the next
        one. `status`: the status flags of the session."""
        until_s, answers = self._proofs.get(form, (0.0, None))
        if answers is None or self._clock() >= until_s:
            return None
        return answers if _status(answers.done) == status & LASTING else None

    def proven(self, form: AckForm) -> bool:
        """Whether there are answers to ACKs of this form."""
        return form in self._proofs and self._clock() < self._proofs[form][0]

    def learn(self, text: bytes, key: bytes, form: AckForm, db: str | None) -> None:
        """This text was read as an ACK of the id `key` without an epoch, under this default
        database (None: it names its own). It is remembered if it ends with the id, and has nothing
        before it whose meaning could depend on the id or on the session."""
        split = _split(text)
        if split is not None and split[1] == key and _PLAIN_HEAD.fullmatch(split[0]):
            if len(self._texts) >= PROOFS_MAX:
                self._texts.clear()
            self._texts[split[0], split[2]] = form, db

    @property
    def knows_texts(self) -> bool:
        """Whether `known` may know a text."""
        return bool(self._texts)

    def known(self, text: bytes, db: str | None) -> KnownAck | None:
        """What the text means under this default database (None: it is not known), if it differs
        from one that was read by its id alone."""
        split = _split(text) if self._texts else None
        if split is None or (meaning := self._texts.get((split[0], split[2]))) is None:
            return None
        form, needed_db = meaning
        return KnownAck(form, int(split[1])) if needed_db in (None, db) else None

    def doubt(self) -> None:
        """The session has to carry out its next ACK itself, whatever it has shown."""
        self._proofs.clear()

    def forget(self) -> None:
        """The session may have another account, or other privileges."""
        self._proofs.clear()
        self._texts.clear()
        self.catch_up = None


def ack_answers(packet: bytes) -> AckAnswers | None:
    """The answers to ACKs of one message, from the answer to one that has acknowledged it; None for
    any other packet."""
    length = len(packet) - HEADER
    if not 7 < length <= ANSWER_MAX or int.from_bytes(packet[:3], "little") != length or length >= PAYLOAD_MAX:
        return None
    if packet[3] != 1 or packet[HEADER : HEADER + 3] != b"\0\1\0" or not packet[_TEXT_AT:].isascii():
        return None
    head = parse_ok(packet[HEADER:]).head
    numbers = list(_NUMBERS.finditer(packet, _TEXT_AT))
    if head.status & ~LASTING or not head.status & AUTOCOMMIT or head.warnings:
        return None  # The first also if it shows changes of the session's state, such as a GTID.
    if [number[0] for number in numbers] != [b"1", b"1", b"0"]:
        return None
    void = bytearray(packet)
    void[_AFFECTED_AT] = 0
    for number in numbers:
        void[number.start()] = ord("0")
    return AckAnswers(packet, bytes(void))


def _split(text: bytes) -> tuple[bytes, bytes, bytes] | None:
    """The text before the last number, the number, and what closes the statement behind it; None if
    it does not end so."""
    if len(text) > TEXT_MAX:
        return None
    end = len(text.rstrip(b");"))
    head = text[:end].rstrip(b"0123456789")
    digits = text[len(head) : end]
    return (head, digits, text[end:]) if 0 < len(digits) <= DIGITS_MAX else None


def _status(packet: bytes) -> int:
    return int.from_bytes(packet[HEADER + 3 : HEADER + 5], "little")
