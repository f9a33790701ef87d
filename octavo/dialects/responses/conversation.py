"""The items of a request, and of the responses before it, in the form that chat templates read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from octavo.dialects.common.conversation import given, no_text, past_call
from octavo.dialects.responses.namespaces import flat_name
from octavo.dialects.responses.schema import InputItem, InputTokensRequest, Part
from octavo.serving.answers.tool_use import ToolUse
from octavo.serving.translation import TranslationContext
from octavo.text.chat.messages import THINKING_SWITCHES
from octavo.transport.errors import OF_PROMPTS, invalid
from octavo.workers.jobs import PromptJob

_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
PROMPT_NAMES = dict.fromkeys(OF_PROMPTS, "input")
_items = msgspec.json.Decoder(list[InputItem])
KnownId = Callable[[str | None], str | None]


def conversation_job(
    request: InputTokensRequest, context: TranslationContext, tools: ToolUse, earlier: bytes
) -> PromptJob:
    """Return the job for a worker; raise ApiError for what this server does not support.

    `earlier` has the items of the responses before this one, as JSON.
    """
    messages: list[dict[str, Any]] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    known_id = context.formats.known_id
    if earlier:
        messages += messages_of(_items.decode(earlier), "previous_response_id", known_id)
    messages += messages_of(items_of(request), "input", known_id)
    variables: dict[str, Any] = {}
    effort = None if request.reasoning is None else request.reasoning.effort
    if effort is not None:
        variables["reasoning_effort"] = effort
        variables.update(dict.fromkeys(THINKING_SWITCHES, effort != "none"))
    if request.text is not None and request.text.verbosity is not None:
        variables["verbosity"] = request.text.verbosity
    variables.update(request.chat_template_kwargs or {})
    conversation = context.conversation(messages, variables, tools)
    return PromptJob(conversation=conversation, add_special_tokens=False)


def items_of(request: InputTokensRequest) -> Sequence[InputItem]:
    """Return the request's own items; a text is the message of a user."""
    if isinstance(request.input, str):
        return [InputItem(type="message", role="user", content=request.input)]
    return request.input or ()


def messages_of(items: Iterable[InputItem], where: str, known_id: KnownId) -> list[dict[str, Any]]:
    """Return items as messages; reasoning, text and calls that follow each other are one."""
    messages: list[dict[str, Any]] = []
    answer: dict[str, Any] | None = None  # the assistant's message that may grow
    for index, item in enumerate(items):
        place = f"{where}[{index}]"
        kind = item.type or "message"
        if kind == "message" and item.role != "assistant":
            role = given(item.role, f"{place}.role")
            messages.append({"role": role, "content": _content(item.content, f"{place}.content")})
            answer = None
        elif kind == "function_call_output":
            call_id = known_id(given(item.call_id, f"{place}.call_id"))
            text = _text(item.output, f"{place}.output")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
            answer = None
        else:
            begins = _begins_answer(kind, answer)
            if begins or answer is None:
                answer = {"role": "assistant", "content": ""}
                messages.append(answer)
            _add(answer, kind, item, place, known_id)
    return messages


def _begins_answer(kind: str, answer: dict[str, Any] | None) -> bool:
    """Return whether an item begins another message: no part of one precedes its reasoning."""
    if answer is None:
        return True
    has_more = bool(answer["content"]) or "tool_calls" in answer
    return has_more if kind == "reasoning" else kind == "message" and has_more


def _add(answer: dict[str, Any], kind: str, item: InputItem, place: str, known_id: KnownId) -> None:
    """Add an item to the assistant's message."""
    match kind:
        case "message":
            answer["content"] = _content(item.content, f"{place}.content")
        case "reasoning":
            parts = item.content if isinstance(item.content, list) else item.summary
            text = "\n".join(each.text or "" for each in parts or ())
            if text:
                before = answer.get("reasoning_content")
                answer["reasoning_content"] = text if before is None else f"{before}\n{text}"
        case "function_call":
            call_id = known_id(given(item.call_id, f"{place}.call_id"))
            name = flat_name(item.namespace, given(item.name, f"{place}.name"))
            call = past_call(name, item.arguments or "{}", call_id)
            answer.setdefault("tool_calls", []).append(call)
        case _:
            raise invalid(
                f"{place}.type: {kind[:64]!r} is not supported here; send messages, function "
                "calls, their outputs and reasoning",
                f"{place}.type",
                "unsupported_parameter",
            )


def _content(content: str | list[Part] | None, where: str) -> str | list[dict[str, Any]]:
    """Return the content of a message; one part is as good as its text."""
    if isinstance(content, str):
        return content
    parts = enumerate(given(content, where))
    texts = [_part(part, f"{where}[{index}]") for index, part in parts]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": each} for each in texts]


def _text(content: str | list[Part] | None, where: str) -> str:
    """Return the text of a function's output."""
    parts = _content(content, where)
    return parts if isinstance(parts, str) else "\n".join(each["text"] for each in parts)


def _part(part: Part, where: str) -> str:
    """Return the text of a part; raise ApiError for other types."""
    name = _TEXTS.get(part.type)
    if name is None:
        raise no_text(part.type, where)
    text: str | None = getattr(part, name)
    return given(text, f"{where}.{name}")
