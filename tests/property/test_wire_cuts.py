"""The wire machines under any cutting of the bytes, and under bytes that are not the protocol.

A stream means the same however the network cuts it, so each machine is fed the same bytes in one piece
and in any other pieces and must say the same. The length at which payloads are continued is made small
here: then continuations, which take 16 MB in earnest, happen in every example.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from unittest import mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mysql_mimic.types import Commands

from engine import packets as engine_packets
from engine.packets import EOF, WireError, frame
from proxy.wire import framing, handshake, packets, params
from proxy.wire import walker as walker_module
from proxy.wire.columns import parse_column
from proxy.wire.commands import COM_SLEEP
from proxy.wire.framing import Command, CommandFramer, Dropped, Packets, frame_rows
from proxy.wire.packets import AUTOCOMMIT, DEPRECATE_EOF, IN_TRANS, MORE_RESULTS, make_err, make_ok
from proxy.wire.walker import FileRequest, Outcome, ResponseWalker
from tests.support import wire

CONTINUED_AT = 63
HEAD = 16

cuts = st.lists(st.integers(0, 3000), max_size=30)
statuses = st.sampled_from([AUTOCOMMIT, IN_TRANS, 0])
# Where a long row or name is continued, the next packet begins like an error and must not be one.
rows = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=20).filter(lambda row: row[0] < EOF),
        st.integers(0, 200).map(lambda size: b"\x01" + b"\xff" * size),
    ),
    max_size=8,
)
names = st.integers(0, 200).map(lambda size: b"\xff" * size)


def row_at(chunk: bytes, at: int) -> tuple[int, int, int]:
    """The head of a row as if all were so long that they may be continued."""
    length = int.from_bytes(chunk[at : at + 3], "little")
    return length - 0x10000, 1, chunk[at + 4]


@contextmanager
def small_packets() -> Iterator[None]:
    """Payloads are continued after `CONTINUED_AT` bytes, and heads are short."""
    with (
        mock.patch.object(engine_packets, "PAYLOAD_MAX", CONTINUED_AT),
        mock.patch.object(framing, "PAYLOAD_MAX", CONTINUED_AT),
        mock.patch.object(framing, "HEAD_MAX", HEAD),
        mock.patch.object(walker_module, "PAYLOAD_MAX", CONTINUED_AT),
        mock.patch.object(walker_module, "_row_at", row_at),
    ):
        yield


# -- The walker


@dataclass(frozen=True)
class Exchange:
    """A command, the payloads of its answer, and whether it ends well."""

    command: int
    payloads: tuple[bytes, ...]
    ok: bool


def parsed(answer: bytes) -> tuple[bytes, ...]:
    return tuple(packet.payload for packet in Packets().feed(answer))


@st.composite
def exchanges(draw: st.DrawFn, capabilities: int) -> Exchange:
    status = draw(statuses)
    single = st.one_of(
        st.builds(wire.ok, st.just(status), affected_rows=st.integers(0, 2**40)),
        st.builds(
            wire.result,
            rows,
            st.just(capabilities),
            columns=st.integers(1, 5),
            status=st.just(status),
            name=names,
        ),
    )
    kind = draw(st.sampled_from(["ok", "error", "prepare", "many", "statistics"]))
    if kind == "ok":
        return Exchange(wire.QUERY, parsed(draw(single)), True)
    if kind == "error":
        return Exchange(wire.QUERY, (make_err(1064, "42000", "x" * draw(st.integers(0, 90))),), False)
    if kind == "statistics":
        return Exchange(int(Commands.COM_STATISTICS), (b"Uptime" * 30,), True)
    if kind == "prepare":
        counts = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        return Exchange(wire.PREPARE, parsed(wire.prepared(*counts, capabilities)), True)
    first = wire.result(draw(rows), capabilities, status=status | MORE_RESULTS)
    return Exchange(wire.EXECUTE, parsed(first) + parsed(draw(single)), True)


scripts = st.sampled_from([0, DEPRECATE_EOF]).flatmap(
    lambda capabilities: st.tuples(st.just(capabilities), st.lists(exchanges(capabilities), min_size=1, max_size=5))
)
Events = list[Outcome[int] | FileRequest]


def walk(capabilities: int, script: list[Exchange], data: bytes, at: list[int]) -> tuple[Events, ResponseWalker[int]]:
    machine = ResponseWalker[int](capabilities, AUTOCOMMIT)
    for index, exchange in enumerate(script):
        machine.expect(exchange.command, index)
    events: Events = []
    for piece in wire.pieces(data, at):
        events += machine.feed(piece)
    return events, machine


def answers(script: list[Exchange]) -> bytes:
    return b"".join(frame_rows(exchange.payloads, 1)[0] for exchange in script)


@given(scripts, st.lists(st.integers(0, 4), max_size=8), cuts)
def test_an_answer_that_comes_whole_means_the_same_as_one_in_pieces(
    scenario: tuple[int, list[Exchange]], order: list[int], at: list[int]
) -> None:
    # The same answers come again, as after the same statement: the opening that is kept of them changes no outcome.
    capabilities, script = scenario
    with small_packets():
        whole, cut = (ResponseWalker[int](capabilities, AUTOCOMMIT) for _ in range(2))
        for number, index in enumerate(order):
            exchange = script[index % len(script)]
            data = answers([exchange])
            for machine in (whole, cut):
                machine.expect(exchange.command, number)
            (outcome,) = whole.feed(data)
            assert [outcome] == [event for piece in wire.pieces(data, at) for event in cut.feed(piece)]
            assert (whole.idle, whole.status) == (cut.idle, cut.status)


@given(scripts, cuts)
def test_the_walker_says_the_same_however_answers_are_cut(scenario: tuple[int, list[Exchange]], at: list[int]) -> None:
    capabilities, script = scenario
    with small_packets():
        data = answers(script)
        events, machine = walk(capabilities, script, data, at)
        assert machine.idle
        assert [(e.pending, e.ok) for e in events if isinstance(e, Outcome)] == [
            (index, exchange.ok) for index, exchange in enumerate(script)
        ]
        assert events == walk(capabilities, script, data, [])[0]


@given(scripts, st.integers(1, 3000))
def test_the_walker_is_idle_at_the_end_of_the_last_answer_and_not_before(
    scenario: tuple[int, list[Exchange]], missing: int
) -> None:
    capabilities, script = scenario
    with small_packets():
        data = answers(script)
        assume(missing < len(data))
        events, machine = walk(capabilities, script, data[:-missing], [])
        assert not machine.idle
        assert len(events) < len(script)
        machine.feed(data[-missing:])
        assert bool(machine.idle)


@given(scripts, cuts, st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1))
def test_a_corrupted_answer_is_refused_or_followed_the_same_however_it_is_cut(
    scenario: tuple[int, list[Exchange]], at: list[int], changes: list[tuple[int, int]]
) -> None:
    capabilities, script = scenario

    def refused(data: bytes, at: list[int]) -> bool:
        try:
            walk(capabilities, script, data, at)
        except WireError:
            return True
        return False

    with small_packets():
        data = bytearray(answers(script))
        for where, value in changes:
            data[where % len(data)] = value
        assert refused(bytes(data), at) == refused(bytes(data), [])


# -- The framer

payload_bodies = st.one_of(st.binary(max_size=20), st.integers(0, 300).map(lambda n: b"x" * n))


@st.composite
def client_packets(draw: st.DrawFn) -> tuple[bytes, int]:
    """A payload and the sequence number it begins with; number 0 makes it a command."""
    seq = draw(st.sampled_from([0, 0, 0, 3]))
    first = draw(st.sampled_from([wire.QUERY, wire.PING, wire.EXECUTE]))
    empty = draw(st.booleans()) and draw(st.booleans())
    return (b"" if empty else bytes([first]) + draw(payload_bodies)), seq


def gather(framer: CommandFramer, data: bytes, at: list[int]) -> tuple[list[tuple[int, bytes, bool]], bytes]:
    """What the framer showed of each command, and all the bytes that it handed back."""
    shown: list[tuple[int, bytes, bool]] = []
    handed = b""
    for piece in wire.pieces(data, at):
        for event in framer.feed(piece):
            if isinstance(event, Command):
                shown.append((event.byte, event.payload, event.whole))
                handed += event.data
            else:
                assert not isinstance(event, Dropped)
                handed += event
    return shown, handed


@given(st.lists(client_packets(), max_size=8), cuts)
@pytest.mark.parametrize("wanted", [True, False])
def test_the_framer_shows_every_command_however_they_are_cut(
    wanted: bool, sent: list[tuple[bytes, int]], at: list[int]
) -> None:
    with small_packets():
        data = b"".join(frame(payload, seq) for payload, seq in sent)
        framer = CommandFramer(lambda _head: wanted)
        shown, handed = gather(framer, data, at)
        assert handed == data
        assert framer.at_boundary
        commands = [payload for payload, seq in sent if seq == 0]
        assert [byte for byte, _, _ in shown] == [p[0] if p else COM_SLEEP for p in commands]
        for (_, payload, whole), command in zip(shown, commands, strict=True):
            assert whole or len(command) > HEAD
            assert payload == (command if whole else command[:HEAD])
            assert whole or not wanted


@given(st.lists(client_packets(), max_size=8), cuts, st.lists(st.booleans(), min_size=1, max_size=5))
def test_a_command_that_is_dropped_is_gone_wholly_and_no_other_is(
    sent: list[tuple[bytes, int]], at: list[int], room: list[bool]
) -> None:
    with small_packets():
        packets = [frame(payload, seq) for payload, seq in sent]
        has_room = itertools.cycle(room)
        framer = CommandFramer(lambda _head: True, lambda _size: next(has_room))
        events = [event for piece in wire.pieces(b"".join(packets), at) for event in framer.feed(piece)]
        shown = iter([event for event in events if not isinstance(event, bytes)])
        rest: list[bytes] = []
        for (payload, seq), packet in zip(sent, packets, strict=True):
            event = next(shown) if seq == 0 else None
            if event is not None:
                assert event.byte == (payload[0] if payload else COM_SLEEP)
            if not isinstance(event, Dropped):
                assert event is None or event.payload == payload
                rest.append(packet)
        handed = [
            event if isinstance(event, bytes) else event.data for event in events if not isinstance(event, Dropped)
        ]
        assert b"".join(handed) == b"".join(rest)
        assert framer.at_boundary
        assert framer.gathered == 0


@given(st.lists(payload_bodies, max_size=8), payload_bodies, cuts)
def test_the_framer_finds_the_end_of_a_file_however_it_is_cut(
    contents: list[bytes], text: bytes, at: list[int]
) -> None:
    with small_packets():
        data = b"".join(frame(b"\x03" + part, i + 2) for i, part in enumerate(contents))
        data += frame(b"", len(contents) + 2) + wire.command(wire.QUERY, text)
        framer = CommandFramer(lambda _head: True)
        framer.enter_infile()
        shown, handed = gather(framer, data, at)
        assert handed == data
        assert shown == [(wire.QUERY, bytes([wire.QUERY]) + text, True)]


@given(st.binary(max_size=400), cuts, st.booleans(), st.booleans())
def test_the_framer_takes_any_bytes_and_loses_none(data: bytes, at: list[int], wanted: bool, infile: bool) -> None:
    with small_packets():
        framer = CommandFramer(lambda _head: wanted)
        if infile:
            framer.enter_infile()
        _, handed = gather(framer, data, at)
        assert data.startswith(handed)


# -- Whole payloads


@given(st.lists(st.integers(0, 200).map(bytes), max_size=8), st.integers(0, 255), cuts)
def test_packets_come_back_joined_however_they_are_cut(payloads: list[bytes], seq: int, at: list[int]) -> None:
    with small_packets():
        data, _ = frame_rows(payloads, seq)
        splitter = Packets()
        found = [packet.payload for piece in wire.pieces(data, at) for packet in splitter.feed(piece)]
        assert found == payloads
        assert splitter.rest == b""


READERS: list[Callable[[bytes], object]] = [
    handshake.parse_greeting,
    handshake.parse_response,
    lambda data: handshake.mask_greeting(data, handshake.PASSABLE),
    lambda data: handshake.mask_response(data, handshake.PASSABLE),
    lambda data: handshake.parse_change_user(data, handshake.PASSABLE),
    packets.parse_ok,
    packets.parse_eof,
    packets.parse_err,
    parse_column,
    lambda data: params.text_at(data, attributes=True),
    lambda data: params.parse_execute(data, 3),
    lambda data: params.parse_execute(data, 3, attributes=True, long_data={1}),
    lambda data: Packets(max_size=1000).feed(data),
]
SEEDS = [
    b"\n9.7.4-2\x00\x08\0\0\0an\x14\x0b-&8n\0\xff\xff\xff\x02\0\xff\xdf\x15" + bytes(10) + b"e" * 12 + b"\0sha2\0",
    b"\x85\xa6\xff\x19" + bytes(4) + b"\x2d" + bytes(23) + b"app\0\x02xxshop\0plug\0\x04\x01a\x01b",
    b"\x11app\0\x02xxshop\0\x2d\0plug\0\x04\x01a\x01b",
    b"\x17\x07\0\0\0\0\x01\0\0\0\x00\x01\x03\0\xfd\0\x0c\0\x05\0\0\0\x02ab\x04\xea\x07\x01\x01",
    b"\x03\x02\x01\x02\x01\xfd\0\x05trace\x03\0\x01n\x02abSELECT 1",
    make_ok(affected_rows=300, info=b"some text", status=0x4002),
]


@given(
    st.sampled_from(READERS),
    st.one_of(
        st.binary(max_size=100),
        st.builds(
            lambda seed, at, junk: seed[:at] + junk + seed[at + len(junk) :],
            st.sampled_from(SEEDS),
            st.integers(0, 80),
            st.binary(max_size=4),
        ),
    ),
)
def test_any_bytes_are_read_or_refused(read: Callable[[bytes], object], data: bytes) -> None:
    with suppress(WireError):
        read(data)


@given(st.integers(0, 2**38 - 1), st.integers(0, 2**38 - 1), st.sampled_from(SEEDS[1:2]))
def test_a_masked_response_claims_no_more_than_was_offered(flags: int, advertised: int, payload: bytes) -> None:
    flags |= handshake.PROTOCOL_41
    advertised |= handshake.PROTOCOL_41 | handshake.SECURE_CONNECTION
    claimed = (flags & 0xFFFFFFFF).to_bytes(4, "little")
    payload = claimed + payload[4:28] + (flags >> 32).to_bytes(4, "little") + payload[32:]
    try:
        masked = handshake.mask_response(payload, advertised)
    except WireError:
        return
    capabilities = handshake.parse_response(masked).capabilities
    assert not capabilities & ~(advertised | handshake.LONG_PASSWORD)
    assert handshake.mask_response(masked, advertised) == masked
