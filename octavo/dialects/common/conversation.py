"""The request's conversation as a job for a prompt worker, which normalises and renders it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from octavo.dialects.common.schema.chat import ChatRequest, Message
from octavo.dialects.common.schema.tokens import TokenizeRequest
from octavo.dialects.common.schema.tools import PastFunction
from octavo.serving.answers.tool_use import ToolUse
from octavo.serving.translation import TranslationContext
from octavo.text.chat.messages import THINKING_SWITCHES
from octavo.transport.errors import ApiError, invalid, not_yet
from octavo.workers.jobs import PromptJob

T = TypeVar("T")

TEMPLATE_NAMES = {"template": "chat_template"}  # of the fields of errors, by the neutral ones
# What templates may read as it is; the other fields are translated, ignored, or rejected below.
_FIELDS = ("content", "refusal", "name", "reasoning_content", "reasoning", "thinking")
_OLD_ROLE = "function"  # of the results of functions, which are tools now


def conversation_job(
    request: ChatRequest | TokenizeRequest, context: TranslationContext, tools: ToolUse
) -> PromptJob:
    """Return the job for a worker; raise ApiError for what this server does not support."""
    if request.chat_template is not None and not context.trust_request_chat_template:
        raise invalid(
            "chat_template: this server does not trust templates of requests; start it with "
            "--trust-request-chat-template if it should",
            "chat_template",
        )
    opens = request.add_generation_prompt
    documents = None
    variables: dict[str, Any] = {}
    if isinstance(request, ChatRequest):
        documents = request.documents
        if request.reasoning_effort is not None:
            thinks = request.reasoning_effort != "none"
            variables["reasoning_effort"] = request.reasoning_effort
            variables.update(dict.fromkeys(THINKING_SWITCHES, thinks))
    assert request.messages is not None
    conversation = context.conversation(
        _messages(request.messages, context.formats.known_id),
        {**variables, **(request.chat_template_kwargs or {})},
        tools,
        template=request.chat_template or context.chat_template,
        documents=documents,
        add_generation_prompt=not request.continue_final_message if opens is None else opens,
        continue_final_message=request.continue_final_message,
    )
    special = bool(request.add_special_tokens)
    return PromptJob(conversation=conversation, add_special_tokens=special)


def _messages(
    turns: Sequence[Message], known_id: Callable[[str | None], str | None]
) -> list[dict[str, Any]]:
    """Return messages with the fields that templates read, and calls in one form."""
    messages = []
    call_id: str | None = None  # of the last call in the older form, which has none
    for index, message in enumerate(turns):
        _check_supported(f"messages[{index}]", message)
        fields: dict[str, Any] = {"role": message.role}
        for name in _FIELDS:
            value = getattr(message, name)
            if value is not None:
                fields[name] = value
        if message.tool_calls:
            fields["tool_calls"] = [
                _called(each.function, known_id(each.id)) for each in message.tool_calls
            ]
        elif message.function_call is not None:
            call_id = f"call{index:05d}"
            fields["tool_calls"] = [_called(message.function_call, call_id)]
        if message.tool_call_id is not None:
            fields["tool_call_id"] = known_id(message.tool_call_id)
        elif message.role == _OLD_ROLE:
            fields["role"] = "tool"
            if call_id is not None:
                fields["tool_call_id"] = call_id
        messages.append(fields)
    return messages


def _called(function: PastFunction, call_id: str | None) -> dict[str, Any]:
    return past_call(function.name, function.arguments or "{}", call_id)


def past_call(name: str, arguments: Any, call_id: str | None) -> dict[str, Any]:
    """Return an earlier call in the form that templates read."""
    called = {"name": name, "arguments": arguments}
    call: dict[str, Any] = {"type": "function", "function": called}
    return call if call_id is None else {"id": call_id, **call}


def given(value: T | None, where: str) -> T:
    """Return the value of a field; raise ApiError if it is missing."""
    if value is None:
        raise invalid(f"{where} is missing", where)
    return value


def no_text(kind: str, where: str) -> ApiError:
    """Return the error for a part of a message that is no text."""
    param, what = f"{where}.type", "this model reads text; send it as text"
    message = f"{param}: {kind[:64]!r} is not supported here: {what}"
    return invalid(message, param, "unsupported_parameter")


def _check_supported(where: str, message: Message) -> None:
    """Raise ApiError for fields that ask for what is missing."""
    if message.audio:
        raise not_yet(f"{where}.audio", "this model reads text; send the transcript as content")
    for field in ("prefix", "partial"):
        if getattr(message, field):
            what = "send continue_final_message=true beside messages to continue the last one"
            raise not_yet(f"{where}.{field}", what)
