"""The trace context that comes with a statement: in a comment at its end, or in a query attribute."""

from __future__ import annotations

import pytest

from engine.packets import frame
from proxy.session.command_classifier import CommandClassifier
from proxy.session.commit_notices import Touched
from proxy.wire.mimic_adapter import Capabilities
from proxy.wire.trace_context import trace_context

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"
INSERT = "INSERT INTO m (payload) VALUES ('a')"
COMMENT = f"/*application='shop',traceparent='{CONTEXT}',tracestate='x%3D1'*/"
STRING, NO_VALUE = 0xFD, 0xFE


def query(text: str, attributes: dict[str, str] | None = None) -> bytes:
    """A COM_QUERY payload, with query attributes if a dictionary is given."""
    head = b"\x03"
    if attributes is not None:
        head += bytes([len(attributes), 1])
        if attributes:
            names = b"".join(bytes([STRING, 0, len(name)]) + name.encode() for name in attributes)
            values = b"".join(bytes([len(value)]) + value.encode() for value in attributes.values())
            head += b"\0" + b"\1" + names + values
    return head + text.encode()


@pytest.mark.parametrize("end", ["", ";", " ; \n"])
def test_a_comment_at_the_end_names_it(end: str) -> None:
    assert trace_context(query(f"{INSERT} {COMMENT}{end}"), attributes=False) == CONTEXT


@pytest.mark.parametrize(
    "text",
    [
        INSERT,
        f"{COMMENT} {INSERT}",
        f"INSERT INTO m VALUES ('{COMMENT}')".replace("='", '="'),
        f"{INSERT} /*traceparent='00-xyz'*/",
        f"{INSERT} /*traceparent='{CONTEXT}'*/ /* another */",
        f"{INSERT} {COMMENT} ON DUPLICATE KEY UPDATE payload = 'b'",
    ],
)
def test_anything_else_names_none(text: str) -> None:
    assert trace_context(query(text), attributes=False) is None


def test_a_query_attribute_names_it_before_a_comment() -> None:
    text = f"{INSERT} /*traceparent='{OTHER}'*/"
    assert trace_context(query(text, {"user": "ann", "traceparent": CONTEXT}), attributes=True) == CONTEXT
    assert trace_context(query(text, {"user": "ann"}), attributes=True) == OTHER
    assert trace_context(query(text, {}), attributes=True) == OTHER
    assert trace_context(query(text, {"traceparent": "none"}), attributes=True) is None


def test_a_payload_that_is_cut_anywhere_names_none_and_raises_nothing() -> None:
    payload = query(INSERT, {"user": "ann", "traceparent": CONTEXT})
    for end in range(len(payload) - len(INSERT)):
        assert trace_context(payload[:end], attributes=True) is None


@pytest.mark.parametrize("attributes", [False, True])
def test_only_with_tracing_an_insert_is_read_for_it(*, attributes: bool) -> None:
    payload = query(INSERT, {"traceparent": CONTEXT}) if attributes else query(f"{INSERT} {COMMENT}")
    for traces, expected in ((False, None), (True, CONTEXT)):
        classifier = CommandClassifier(4.0, traces=traces)
        classifier.logged_in(int(Capabilities.CLIENT_QUERY_ATTRIBUTES) if attributes else 0)
        assert classifier.classify_fast(frame(payload, 0)) == Touched("m", inserts=True, trace=expected)


def test_an_update_and_a_select_have_none() -> None:
    classifier = CommandClassifier(4.0, traces=True)
    assert classifier.classify_fast(frame(query(f"SELECT 1 {COMMENT}"), 0)) is None
    assert classifier.classify_fast(frame(query(f"UPDATE m SET a = 1 {COMMENT}"), 0)) == Touched("m")
