"""Messages as clients send them, checked and brought to what chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.core.sampling_params import RequestError

Message = Mapping[str, Any]

# A message's reasoning has had several names. Templates read the first, gpt-oss's the second.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
# What text is called in a list of parts, and where it stands.
TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
DEEPEST_NESTING = 100
# What every template is given, and no conversation may give by another way.
OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplateError(RequestError):
    """A chat template that is not valid, or that cannot render this conversation."""


def conversations(messages: Any) -> Sequence[Any]:
    """One conversation, or many of them, as a list of conversations."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise ChatTemplateError(
            "messages must be a conversation, which is a list of messages, or a list of "
            f"conversations, not {type(messages).__name__}"
        )
    is_one = not messages or not isinstance(messages[0], list | tuple)
    return [messages] if is_one else messages


def read_messages(messages: Sequence[Message], *, takes_parts: bool) -> list[dict[str, Any]]:
    """A conversation's copy for a template; `takes_parts`: content may be a list there, too."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise ChatTemplateError(
            f"a conversation is a list of messages, not {type(messages).__name__}"
        )
    if not messages:
        raise ChatTemplateError("the conversation is empty: give at least one message")
    return [
        _message(message, f"messages[{index}]", takes_parts)
        for index, message in enumerate(messages)
    ]


def plain(value: Any, depth: int = 0) -> Any:
    """A copy of JSON data; anything else could have methods that the sandbox does not know."""
    if depth > DEEPEST_NESTING:
        raise ChatTemplateError(f"the conversation is nested deeper than {DEEPEST_NESTING} levels")
    if value is None or isinstance(value, bool):
        return value
    # Not as a subclass, such as an enumeration, which could have methods of its own.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {plain(key, depth): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    raise ChatTemplateError(f"a conversation is JSON data; it cannot hold {type(value).__name__}")


def _message(message: Message, where: str, takes_parts: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"{where} must be an object, not {type(message).__name__}")
    # Clients send null for what is not there; templates would write "None".
    copy: dict[str, Any] = plain({k: v for k, v in message.items() if v is not None})
    role = copy.get("role")
    if role is None:
        raise ChatTemplateError(f"{where} has no 'role': say whose it is, such as 'user'")
    if not isinstance(role, str) or not role:
        raise ChatTemplateError(f"{where}.role must be a string that is not empty")
    if copy.get("tool_calls") == []:  # some clients' way of saying that there are none
        del copy["tool_calls"]
    if "tool_calls" in copy:
        _read_arguments(copy["tool_calls"], f"{where}.tool_calls")
    given = [copy[name] for name in REASONING_FIELDS if copy.get(name) is not None]
    if given:
        copy = {"thinking": given[0], **copy, "reasoning_content": given[0]}
    if "content" in copy:
        copy["content"] = _content(copy["content"], f"{where}.content", takes_parts)
    elif not given and "tool_calls" not in copy:
        raise ChatTemplateError(f"{where} has no 'content': give its text, which may be empty")
    return copy


def _content(content: Any, where: str, takes_parts: bool) -> Any:
    """The text, or its parts for a template that reads them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ChatTemplateError(
            f"{where} must be a string or a list of text parts, not {type(content).__name__}"
        )
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]
    return parts if takes_parts else "\n".join(part["text"] for part in parts)


def _part(part: Any, where: str) -> dict[str, Any]:
    """A part as templates know it; what is not text cannot be read by any model here."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise ChatTemplateError(f"{where} must be an object, not {type(part).__name__}")
    kind = part.get("type", "text" if "text" in part else None)
    if not isinstance(kind, str):
        raise ChatTemplateError(f"{where} needs a 'type'; 'text' is the one that can be read")
    if kind not in TEXT_FIELDS:
        raise ChatTemplateError(
            f"{where} is of type {kind[:50]!r}, which this model cannot read: send text parts alone"
        )
    text = part.get(TEXT_FIELDS[kind])
    if not isinstance(text, str):
        raise ChatTemplateError(f"{where} has no {TEXT_FIELDS[kind]!r} that is a string")
    return {**part, "type": "text", "text": text}


def _read_arguments(calls: Any, where: str) -> None:
    """Arguments come as JSON in a string; templates write out the object that it holds."""
    if not isinstance(calls, list):
        raise ChatTemplateError(f"{where} must be a list, not {type(calls).__name__}")
    for index, call in enumerate(calls):
        if not isinstance(call, dict):
            raise ChatTemplateError(f"{where}[{index}] must be an object")
        function = call.get("function", call)  # some leave the wrapping out
        if not isinstance(function, dict):
            raise ChatTemplateError(f"{where}[{index}].function must be an object")
        said = function.get("arguments")
        if isinstance(said, str):
            place = f"{where}[{index}].{'function.' if 'function' in call else ''}arguments"
            function["arguments"] = _arguments(said, place)


def _arguments(text: str, where: str) -> dict[str, Any]:
    if not text.strip():  # of a function without parameters
        return {}
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ChatTemplateError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ChatTemplateError(f"{where} must hold a JSON object, not {type(value).__name__}")
    return dict(plain(value))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
