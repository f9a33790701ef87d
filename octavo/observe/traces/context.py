"""The trace that a request belongs to, as its client names it in a `traceparent` header (W3C)."""

from __future__ import annotations

import re
from typing import NamedTuple

# version, trace id, id of the client's span, flags; later versions may add parts behind these.
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class TraceContext(NamedTuple):
    """The ids of a span, in hexadecimal, and whether its trace is recorded."""

    trace_id: str
    span_id: str
    is_sampled: bool
    parent_id: str = ""  # the span's parent; empty: it has none


def read_traceparent(text: str) -> TraceContext | None:
    """Return the client's span; None for a header that is missing or not valid."""
    found = _HEADER.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    is_known = version != "ff" and (version != "00" or more is None)
    if not is_known or not (int(trace_id, 16) and int(span_id, 16)):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))
