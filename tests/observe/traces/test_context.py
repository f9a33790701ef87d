"""The header by which a client names the trace that its request belongs to."""

from __future__ import annotations

import pytest

from octavo.observe.traces.context import TraceContext, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("flags", "is_sampled"), [("01", True), ("00", False), ("03", True), ("02", False)]
)
def test_a_valid_header_is_read(flags: str, is_sampled: bool) -> None:
    found = read_traceparent(f"00-{TRACE}-{SPAN}-{flags}")
    assert found == TraceContext(TRACE, SPAN, is_sampled)


def test_later_versions_may_have_further_parts() -> None:
    assert read_traceparent(f"01-{TRACE}-{SPAN}-01-more") == TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "text",
    [
        *("", "garbage", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-more"),
        *(f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01\n"),
        *(f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}1-{SPAN}-01"),
    ],
)
def test_what_is_not_valid_names_no_trace(text: str) -> None:
    assert read_traceparent(text) is None
