"""Past calls as the model writes them, for chat templates that do not read `tool_calls`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.formats.description import ToolFormat
from octavo.formats.protocol import Call
from octavo.formats.rendering import write_calls
from octavo.text.chat.messages import read_arguments


def with_written_calls(
    messages: Sequence[Mapping[str, Any]], tool_format: ToolFormat
) -> list[Mapping[str, Any]]:
    """Return the messages with their calls at the end of the content."""
    return [
        _written(message, f"messages[{index}].tool_calls", tool_format)
        if message.get("tool_calls")
        else message
        for index, message in enumerate(messages)
    ]


def _written(message: Mapping[str, Any], where: str, tool_format: ToolFormat) -> dict[str, Any]:
    calls = []
    for index, call in enumerate(message["tool_calls"]):
        function, arguments = call["function"], call["function"]["arguments"]
        if isinstance(arguments, str):
            arguments = read_arguments(arguments, f"{where}[{index}].function.arguments")
        text = json.dumps(arguments, ensure_ascii=False)
        calls.append(Call(function["name"], text, call.get("id")))
    text = write_calls(tool_format, calls)
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    content = message.get("content")
    if isinstance(content, list):
        return {**others, "content": [*content, {"type": "text", "text": text}]}
    return {**others, "content": f"{content}\n{text}" if content else text}
