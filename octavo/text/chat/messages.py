"""The normaliser of chat messages: it checks what clients send and copies it for a template.

The server and `LLM.chat` both use it. An error's `param` is the path of the part at fault, such
as `messages[2].content[0].text`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from octavo.core.sampling_params import RequestError

Message = Mapping[str, Any]
# The variables by which templates know whether the model is to reason.
THINKING_SWITCHES = ("enable_thinking", "thinking")
# What a template reads as the content of a message: a list of parts, a text, or what it shows.
ContentFormat = Literal["auto", "openai", "string"]

# A message's reasoning has had several names. Templates read the first, gpt-oss's the second.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
# The types of text parts, and the field that holds the text of each.
TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
# Fields of parts that are not text.
MEDIA_FIELDS = ("image_url", "input_audio", "audio_url", "video_url", "file")
MAX_DEPTH = 100
UNSUPPORTED = "unsupported_parameter"  # the code of errors about what this engine cannot read


class Arguments(dict[str, Any]):
    """The arguments of a past call: an object that templates may also write or join as its text."""

    def __init__(self, values: Mapping[str, Any], text: str) -> None:
        super().__init__(values)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: str) -> str:
        return self._text + other

    def __radd__(self, other: str) -> str:
        return other + self._text


class ChatTemplateError(RequestError):
    """A chat template that is not valid, or that cannot render this conversation."""


def conversations(messages: Any) -> Sequence[Any]:
    """Return a list of conversations, given one conversation or a list of them."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise ChatTemplateError(
            "messages must be a conversation, which is a list of messages, or a list of "
            f"conversations, not {type(messages).__name__}"
        )
    is_one = not messages or not isinstance(messages[0], list | tuple)
    return [messages] if is_one else messages


def read_messages(
    messages: Sequence[Message], *, takes_parts: bool, knows_developer: bool = True
) -> list[dict[str, Any]]:
    """Check a conversation and return a copy of it in the form that templates read.

    With `takes_parts`, content may remain a list of parts; otherwise it becomes one string. The
    role "developer" becomes "system" unless the template knows it.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise ChatTemplateError(
            f"a conversation is a list of messages, not {type(messages).__name__}", param="messages"
        )
    if not messages:
        raise ChatTemplateError(
            "the conversation is empty: give at least one message", param="messages"
        )
    chat = [
        _message(message, f"messages[{index}]", takes_parts)
        for index, message in enumerate(messages)
    ]
    if not knows_developer:
        for message in chat:
            if message["role"] == "developer":
                message["role"] = "system"
    return chat


def put_into_parts(chat: Sequence[dict[str, Any]]) -> None:
    """Make a list with one part of each content that is a text, for templates that need lists."""
    for message in chat:
        if isinstance(message.get("content"), str):
            message["content"] = [{"type": "text", "text": message["content"]}]


def plain(value: Any, depth: int = 0) -> Any:
    """Copy JSON data; objects of other types could have methods that the sandbox does not know."""
    if depth > MAX_DEPTH:
        raise ChatTemplateError(f"the conversation is nested deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, bool):
        return value
    # Subclasses, such as enumerations, could have methods of their own: return the plain value.
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


def _wrong(where: str, what: str, code: str | None = None) -> ChatTemplateError:
    return ChatTemplateError(f"{where} {what}", param=where, code=code)


def _message(message: Message, where: str, takes_parts: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _wrong(where, f"must be an object, not {type(message).__name__}")
    # Clients send null for absent fields; templates would write "None".
    copy: dict[str, Any] = plain({k: v for k, v in message.items() if v is not None})
    role = copy.get("role")
    if role is None:
        raise _wrong(f"{where}.role", "is missing: give the author's role, such as 'user'")
    if not isinstance(role, str) or not role:
        raise _wrong(f"{where}.role", "must be a string that is not empty")
    if copy.get("tool_calls") == []:  # some clients send it when there are none
        del copy["tool_calls"]
    if "tool_calls" in copy:
        _read_arguments(copy["tool_calls"], f"{where}.tool_calls")
    reasoning = [copy[name] for name in REASONING_FIELDS if copy.get(name) is not None]
    if reasoning:
        copy = {"thinking": reasoning[0], **copy, "reasoning_content": reasoning[0]}
    _set_content(copy, f"{where}.content", takes_parts)
    return copy


def _set_content(message: dict[str, Any], where: str, takes_parts: bool) -> None:
    """Normalise the content; assistants may have none, other roles must have some."""
    content = message.get("content")
    if not content and isinstance(message.get("refusal"), str):
        message["content"] = message["refusal"]
    elif content is None and not any(name in message for name in ("tool_calls", "thinking")):
        if message["role"] != "assistant":
            raise _wrong(where, "is missing: it is the message's text, which may be empty")
        message["content"] = ""
    elif content == [] and message["role"] != "assistant":
        raise _wrong(where, "is an empty list: give at least one text part, or an empty string")
    elif content is not None:
        message["content"] = _content(content, where, takes_parts)


def _content(content: Any, where: str, takes_parts: bool) -> Any:
    """Return the text, or the list of parts for a template that reads parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(
            where, f"must be a string or a list of text parts, not {type(content).__name__}"
        )
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]
    return parts if takes_parts else "\n".join(part["text"] for part in parts)


def _part(part: Any, where: str) -> dict[str, Any]:
    """Return a text part in the form that templates read; refuse parts of other types."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise _wrong(where, f"must be an object, not {type(part).__name__}")
    given = {name: value for name, value in part.items() if value is not None}
    kind = given.get("type", "text" if "text" in given else None)
    if not isinstance(kind, str):
        raise _wrong(f"{where}.type", "must be a string; this model reads parts of type 'text'")
    if kind not in TEXT_FIELDS:
        what = f"{kind[:64]!r} is not supported: this model reads text parts only"
        raise _wrong(f"{where}.type", what, UNSUPPORTED)
    for name in MEDIA_FIELDS:
        if given.get(name):
            what = "is not supported: this model reads text; leave it out"
            raise _wrong(f"{where}.{name}", what, UNSUPPORTED)
    text = given.get(TEXT_FIELDS[kind])
    if not isinstance(text, str):
        raise _wrong(f"{where}.{TEXT_FIELDS[kind]}", "is missing or is not a string")
    return {**given, "type": "text", "text": text}


def _read_arguments(calls: Any, where: str) -> None:
    """Make arguments, which are JSON in a string or its object, usable as either."""
    if not isinstance(calls, list):
        raise _wrong(where, f"must be a list, not {type(calls).__name__}")
    for index, call in enumerate(calls):
        if not isinstance(call, dict):
            raise _wrong(f"{where}[{index}]", "must be an object")
        function = call.get("function", call)  # some clients leave the wrapper out
        if not isinstance(function, dict):
            raise _wrong(f"{where}[{index}].function", "must be an object")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            place = f"{where}[{index}].{'function.' if 'function' in call else ''}arguments"
            function["arguments"] = read_arguments(arguments, place)
        elif isinstance(arguments, dict):
            text = json.dumps(arguments, ensure_ascii=False)
            function["arguments"] = Arguments(arguments, text)


def read_arguments(text: str, where: str) -> Arguments:
    """Return the arguments that a JSON text holds; refuse any other text, which is at `where`."""
    if not text.strip():  # of a function without parameters
        return Arguments({}, "{}")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _wrong(where, f"is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _wrong(where, f"must hold a JSON object, not {type(value).__name__}")
    return Arguments(plain(value), text)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def check_surrogates(text: str) -> None:
    """Refuse a rendered text with half of a UTF-16 pair, which no token can stand for."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ChatTemplateError(
            f"the chat template wrote a lone surrogate (U+{ord(text[error.start]):04X} at "
            f"character {error.start}), which is half of a character; remove it from the template"
        ) from None
