"""The bytes of the client for RabbitMQ."""

from bench.compare.amqp import ACK, CHANNEL, method, short


def test_a_method_is_a_frame_with_its_length_and_an_end() -> None:
    assert method(CHANNEL, ACK, bytes(9)) == b"\x01\0\x01\0\0\0\x0d" + b"\0\x3c\0\x50" + bytes(9) + b"\xce"
    assert short(b"queue") == b"\x05queue"
