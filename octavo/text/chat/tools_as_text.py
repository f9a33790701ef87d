"""Tools, past calls and their results as text, for chat templates that know none of them.

The messages are those that templates read: the normaliser has been over them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.formats.description import ToolFormat, write_calls
from octavo.formats.protocol import Call
from octavo.text.chat.messages import ChatTemplateError

_LEADING = ("system", "developer")
# The texts of a conversation by which is found where a template puts the system message.
_SYSTEM, _USER = "<<instructions>>", "<<question>>"

Chat = list[dict[str, Any]]


def with_turns_as_text(chat: Chat, tool_format: ToolFormat) -> Chat:
    """Return messages of users and assistants alone: calls are text, results are a user's.

    Results that follow each other, and the user's text behind them, are one message, since many
    templates demand that users and assistants take turns.
    """
    turned: Chat = []
    names: dict[Any, Any] = {}  # of functions, by the ids of their calls
    is_result = False  # of the last message
    for message in chat:
        for call in message.get("tool_calls", ()):
            names[call.get("id")] = function_of(call).get("name")
        begins = message["role"] == "tool"
        if begins:
            name = names.get(message.get("tool_call_id"), message.get("name"))
            message = {
                "role": "user",
                "content": _result(message.get("content"), name, tool_format),
            }
        if is_result and message["role"] == "user":
            turned[-1] = _with_text(turned[-1], message["content"], "\n" if begins else "\n\n")
        else:
            turned.append(message)
            is_result = begins
    return with_written_calls(turned, tool_format)


def with_instructions(chat: Chat, text: str, render: Callable[[Chat], str]) -> Chat:
    """Return the messages with a text in their system message, behind the template's default.

    A template that takes no system message gets the text before the first message of a user.
    `render` writes a conversation by the template.
    """
    default = _default_system(render)
    role = chat[0]["role"]
    if default is None:
        users = [index for index, message in enumerate(chat) if message["role"] == "user"]
        at = users[0] if users else 0
        asking = chat[at] if users else {"role": "user", "content": ""}
        first = _with_text({**asking, "content": text}, asking["content"], "\n\n")
        return [*chat[:at], first, *chat[at + len(users[:1]) :]]
    if role in _LEADING:
        return [_with_text(chat[0], text, "\n\n"), *chat[1:]]
    return [{"role": "system", "content": f"{default}\n\n{text}" if default else text}, *chat]


def instructions(tools: Sequence[Mapping[str, Any]], tool_format: ToolFormat) -> str:
    """Return the text that shows functions to a model, and how it calls them."""
    functions = "\n".join(
        json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools
    )
    opening, closing = (mark.strip() for mark in tool_format.result)
    trigger = tool_format.forms[0].trigger
    begins = f"starts with {trigger}" if trigger else "is a call"
    example = write_calls(tool_format, [Call("NAME", '{"ARGUMENT": "VALUE"}')])
    return (
        f"These functions are available. Their results come between {opening} and {closing}.\n"
        f"<tools>\n{functions}\n</tools>\n\n"
        "Answer everything that needs no function in plain text. If the user asks for something "
        f"that needs one, your answer {begins}, as here:\n{example}"
    )


def _default_system(render: Callable[[Chat], str]) -> str | None:
    """Return the system message that a template writes if there is none; None if it takes none."""
    question = {"role": "user", "content": _USER}
    try:
        given = render([{"role": "system", "content": _SYSTEM}, question])
    except ChatTemplateError:
        return None
    before, found, after = given.partition(_SYSTEM)
    if not found:
        return None
    try:
        own = render([question])
    except ChatTemplateError:
        return ""
    length = len(own) - len(before) - len(after)
    if length > 0 and own.startswith(before) and own.endswith(after):
        return own[len(before) : len(before) + length]
    return ""


def _result(content: Any, name: Any, tool_format: ToolFormat) -> str:
    """Return the text of a call's result: JSON stands as it is, other text as a string."""
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    text = content or ""
    value = text if _is_json(text) else json.dumps(text, ensure_ascii=False)
    named = f'"name": {json.dumps(name, ensure_ascii=False)}, ' if name else ""
    opening, closing = tool_format.result
    return f'{opening}{{{named}"content": {value}}}{closing}'


def _is_json(text: str) -> bool:
    """Return whether a text is a JSON object or list."""
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _with_text(message: dict[str, Any], more: Any, separator: str) -> dict[str, Any]:
    """Return a message with more text, or more parts, at its end."""
    content = message["content"]
    if isinstance(content, str) and isinstance(more, str):
        return {**message, "content": f"{content}{separator}{more}" if more else content}
    return {**message, "content": [*_parts(content), *_parts(more)]}


def _parts(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


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
