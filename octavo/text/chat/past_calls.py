"""Past calls as the model writes them, for chat templates that do not read `tool_calls`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.formats.description import ToolFormat
from octavo.formats.protocol import Call
from octavo.formats.rendering import write_calls


def with_written_calls(
    chat: Sequence[dict[str, Any]], tool_format: ToolFormat
) -> list[dict[str, Any]]:
    """Return messages, which the normaliser has been over, with calls at the end of the content."""
    return [_written(each, tool_format) if each.get("tool_calls") else each for each in chat]


def function_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a call says of its function; some clients leave the wrapper out."""
    found: Mapping[str, Any] = call.get("function", call)
    return found


def _written(message: dict[str, Any], tool_format: ToolFormat) -> dict[str, Any]:
    calls = []
    for call in message["tool_calls"]:
        function = function_of(call)
        arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
        calls.append(Call(function.get("name", ""), arguments, call.get("id")))
    text = write_calls(tool_format, calls)
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    content = message.get("content")
    if isinstance(content, list):
        return {**others, "content": [*content, {"type": "text", "text": text}]}
    return {**others, "content": f"{content}\n{text}" if content else text}
