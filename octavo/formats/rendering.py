"""Past calls in a format, as its models write them."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.formats.description import ToolFormat
from octavo.formats.protocol import Call


def write_calls(tool_format: ToolFormat, calls: Sequence[Call]) -> str:
    """Return the text of these calls; their arguments must be JSON objects."""
    form = tool_format.forms[0]
    before, after = "".join(form.call), "".join(form.call_end)
    texts = [f"{before}{form.body.write(call, i)}{after}" for i, call in enumerate(calls)]
    return f"{''.join(form.section)}{form.separator.join(texts)}{''.join(form.section_end)}"
