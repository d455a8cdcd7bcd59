"""Packets taken apart and put together, and commands found in what a client sends."""

from __future__ import annotations

import pytest

from engine.packets import PAYLOAD_MAX, frame
from proxy.wire import framing
from proxy.wire.commands import COM_CLONE, COM_SLEEP
from proxy.wire.fields import PacketTooLarge
from proxy.wire.framing import HEAD_MAX, QUEUE_STATEMENT_MAX, Command, CommandFramer, Packet, Packets, frame_rows
from tests.support import wire


def never(_head: bytes) -> bool:
    return False


def always(_head: bytes) -> bool:
    return True


def query(size: int) -> bytes:
    """A COM_QUERY whose text has `size` bytes."""
    return wire.command(wire.QUERY, b"INSERT INTO t VALUES ('".ljust(size, b"x"))


# -- Packets and frame


def test_a_payload_is_framed_with_its_length_and_number() -> None:
    assert frame(b"abc", 258) == b"\x03\0\0\x02abc"


@pytest.mark.parametrize("size", [PAYLOAD_MAX - 1, PAYLOAD_MAX, PAYLOAD_MAX + 1, 2 * PAYLOAD_MAX])
def test_a_large_payload_comes_back_joined(size: int) -> None:
    packets = Packets(max_size=3 * PAYLOAD_MAX)
    payload = bytes(size)
    assert packets.feed(frame(payload, 255)) == [Packet((255 + size // PAYLOAD_MAX) % 256, payload)]
    assert packets.rest == b""


def test_rows_are_numbered_on_and_wrap() -> None:
    data, seq = frame_rows([b"a", bytes(PAYLOAD_MAX), b"b"], 254)
    assert [packet.seq for packet in Packets(2 * PAYLOAD_MAX).feed(data)] == [254, 0, 1]
    assert seq == 2


def test_rows_are_framed_as_single_payloads_are() -> None:
    rows = [b"", b"one", b"two" * 100]
    assert frame_rows(rows, 7)[0] == b"".join(frame(row, 7 + i) for i, row in enumerate(rows))


def test_an_announcement_beyond_the_limit_is_refused_before_it_comes() -> None:
    with pytest.raises(PacketTooLarge, match="101 bytes exceeds the limit of 100"):
        Packets(max_size=100).feed(b"\x65\0\0\0")


def test_continuations_count_towards_the_limit() -> None:
    packets = Packets(max_size=PAYLOAD_MAX + 10)
    with pytest.raises(PacketTooLarge):
        packets.feed(frame(bytes(PAYLOAD_MAX + 11), 0))


def test_what_has_not_become_a_packet_yet_is_kept() -> None:
    packets = Packets()
    assert packets.feed(b"\x01\0\0\0a\x02\0\0\x01b") == [Packet(0, b"a")]
    assert packets.rest == b"\x02\0\0\x01b"


# -- CommandFramer


def test_a_chunk_that_is_one_command_is_handed_on_as_it_is() -> None:
    chunk = wire.command(wire.QUERY, b"SELECT 1")
    (event,) = CommandFramer(never).feed(chunk)
    assert event == Command(wire.QUERY, chunk, whole=True)
    assert isinstance(event, Command)
    assert event.data is chunk
    assert event.payload == b"\x03SELECT 1"


def test_commands_in_one_chunk_are_told_apart() -> None:
    first, second = wire.command(wire.QUERY, b"SELECT 1"), wire.command(wire.PING)
    framer = CommandFramer(never)
    assert framer.feed(first + second + second[:2]) == [
        Command(wire.QUERY, first, whole=True),
        Command(wire.PING, second, whole=True),
    ]
    assert not framer.at_boundary
    assert framer.feed(second[2:]) == [Command(wire.PING, second, whole=True)]
    assert framer.at_boundary


def test_a_short_command_waits_until_it_is_whole() -> None:
    chunk = wire.command(wire.QUERY, b"STREAM * FROM t")
    framer = CommandFramer(never)
    assert [framer.feed(chunk[i : i + 1]) for i in range(len(chunk) - 1)] == [[]] * (len(chunk) - 1)
    assert framer.feed(chunk[-1:]) == [Command(wire.QUERY, chunk, whole=True)]


def test_a_long_command_goes_through_unread_once_its_head_was_shown() -> None:
    heads: list[bytes] = []

    def decline(head: bytes) -> bool:
        heads.append(head)
        return False

    data = query(100_000)
    framer = CommandFramer(decline)
    assert framer.feed(data[:1000]) == []
    (command,) = framer.feed(data[1000:50_000])
    assert isinstance(command, Command)
    assert not command.whole
    assert command.data == data[:50_000]
    assert command.payload == data[4 : 4 + HEAD_MAX]
    rest = data[50_000:]
    assert framer.feed(rest) == [rest]
    assert heads == [data[4 : 4 + HEAD_MAX]]
    assert framer.at_boundary


def test_the_chunk_behind_a_declined_head_is_not_copied() -> None:
    data = query(300_000)
    framer = CommandFramer(never)
    framer.feed(data[:100_000])
    middle = data[100_000:200_000]
    (event,) = framer.feed(middle)
    assert event is middle


def test_a_long_command_that_is_wanted_is_gathered_whole() -> None:
    data = query(100_000)
    framer = CommandFramer(always)
    assert framer.feed(data[:60_000]) == []
    assert framer.feed(data[60_000:] + wire.command(wire.PING)) == [
        Command(wire.QUERY, data, whole=True),
        Command(wire.PING, wire.command(wire.PING), whole=True),
    ]


def test_a_command_of_several_packets_goes_through_as_one() -> None:
    data = query(PAYLOAD_MAX + 5000)
    framer = CommandFramer(never)
    events = [event for start in range(0, len(data), 1 << 20) for event in framer.feed(data[start : start + (1 << 20)])]
    assert [isinstance(event, Command) for event in events] == [True] + [False] * (len(events) - 1)
    assert framer.at_boundary
    assert framer.feed(wire.command(wire.PING)) == [Command(wire.PING, wire.command(wire.PING), whole=True)]


def test_a_gathered_command_of_several_packets_shows_one_payload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(framing, "QUEUE_STATEMENT_MAX", 2 * QUEUE_STATEMENT_MAX)
    data = query(PAYLOAD_MAX + 5000)
    framer = CommandFramer(always)
    assert framer.feed(data[:1_000_000]) == []
    (command,) = framer.feed(data[1_000_000:])
    assert isinstance(command, Command)
    assert command.data == data
    assert len(command.payload) == PAYLOAD_MAX + 5001


def test_a_continuation_is_no_command_even_if_it_is_numbered_like_one() -> None:
    first = frame(bytes([wire.QUERY]) + bytes(PAYLOAD_MAX), 0)[: 4 + PAYLOAD_MAX]
    second = wire.command(wire.QUERY, b"STREAM * FROM t")
    framer = CommandFramer(never)
    assert isinstance(framer.feed(first[:10_000])[0], Command)
    assert framer.feed(first[10_000:]) == [first[10_000:]]
    assert not framer.at_boundary
    assert framer.feed(second) == [second]
    assert framer.at_boundary


def test_each_long_command_is_judged_by_its_own_head() -> None:
    wanted, other = wire.command(wire.QUERY, b"ACK".ljust(9000)), query(9000)
    framer = CommandFramer(lambda head: head.startswith(b"\x03ACK"))
    assert framer.feed(wanted[:5000]) == []
    assert framer.feed(wanted[5000:]) == [Command(wire.QUERY, wanted, whole=True)]
    assert framer.feed(other[:1000]) == []
    assert framer.feed(other[1000:5000]) == [Command(wire.QUERY, other[:5000], whole=False)]


def test_a_command_beyond_what_is_gathered_is_refused_at_once() -> None:
    data = query(QUEUE_STATEMENT_MAX + 1)
    with pytest.raises(PacketTooLarge):
        CommandFramer(always).feed(data[:10_000])


def test_an_empty_packet_is_the_command_that_servers_take_it_for() -> None:
    assert CommandFramer(never).feed(b"\0\0\0\0") == [Command(COM_SLEEP, b"\0\0\0\0", whole=True)]


def test_a_packet_that_continues_a_login_is_no_command() -> None:
    answer = frame(b"\x03STREAM * FROM t", 2)
    assert CommandFramer(never).feed(answer) == [answer]


def test_a_file_is_no_command_whatever_it_holds() -> None:
    framer = CommandFramer(never)
    framer.enter_infile()
    packets = [frame(b"\x03STREAM * FROM t", seq) for seq in range(2, 600)]
    data = b"".join(packets) + frame(bytes(PAYLOAD_MAX), 600)  # closed by an empty packet
    assert framer.feed(data) == [data]
    assert not framer.at_boundary
    end = frame(b"", 90)
    ping = wire.command(wire.PING)
    assert framer.feed(end + ping) == [end, Command(wire.PING, ping, whole=True)]
    assert framer.at_boundary


def test_a_files_packet_may_have_a_commands_number() -> None:
    framer = CommandFramer(never)
    framer.enter_infile()
    data = wire.command(wire.QUERY, b"STREAM * FROM t")
    assert not framer.is_command(data)
    assert list(framer.feed(data)) == [data]


def test_nothing_is_read_after_a_clone_has_begun() -> None:
    clone, other = wire.command(COM_CLONE), wire.command(wire.QUERY, b"STREAM * FROM t")
    framer = CommandFramer(never)
    framer.feed(clone)
    assert framer.feed(other) == [other]
    late = CommandFramer(never)
    assert late.feed(wire.command(wire.PING) + clone)
    assert late.feed(other) == [other]
    assert CommandFramer(never).feed(clone + other)[1:] == [other]
