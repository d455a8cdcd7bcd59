"""The trace context (W3C `traceparent`) that a client sends with a statement: in a query attribute, or in a
comment at the end of the text, as sqlcommenter writes it.

Pure: bytes in, a value out. Whatever is malformed counts as none.
"""

from __future__ import annotations

import re

from engine.packets import WireError
from proxy.wire.params import query_attribute, text_at

NAME = "traceparent"
CONTEXT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_COMMENT_MAX = 2_000
"""Bytes at the end of a text in which a comment is searched for."""
_IN_COMMENT = re.compile(rb"\btraceparent='(" + CONTEXT.pattern + rb")'")


def trace_context(payload: bytes, *, attributes: bool) -> str | None:
    """The context in a whole COM_QUERY payload; None without one. `attributes`: whether query attributes
    precede the text."""
    try:
        found = query_attribute(payload, NAME.encode()) if attributes else None
        text = payload[max(text_at(payload, attributes=attributes), len(payload) - _COMMENT_MAX) :]
    except WireError:
        return None
    if found is not None:
        return found.decode() if CONTEXT.fullmatch(found) else None
    text = text.rstrip(b" \t\r\n;\0")
    if not text.endswith(b"*/"):
        return None
    in_comment = _IN_COMMENT.search(text, max(0, text.rfind(b"/*")))
    return in_comment[1].decode() if in_comment else None
