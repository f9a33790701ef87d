"""The request's conversation as a job for a prompt worker, which normalises and renders it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octavo.dialects.common.schema.chat import ChatRequest, Message
from octavo.dialects.common.schema.tokens import TokenizeRequest
from octavo.dialects.common.schema.tools import PastFunction
from octavo.serving.answers.tool_use import ToolUse
from octavo.serving.translation import TranslationContext
from octavo.text.chat.messages import THINKING_SWITCHES
from octavo.transport.errors import ApiError, invalid, not_yet
from octavo.workers.jobs import Conversation, PromptJob

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
    variables = {
        **(context.default_chat_template_kwargs or {}),
        **variables,
        **(request.chat_template_kwargs or {}),
    }
    assert request.messages is not None
    conversation = Conversation(
        content_format=context.content_format,
        messages=_messages(request.messages, context.formats.known_id),
        tools=list(tools.described) or None,
        tool_format=context.formats.formats.tools,
        template=request.chat_template or context.chat_template,
        documents=documents,
        add_generation_prompt=not request.continue_final_message if opens is None else opens,
        continue_final_message=request.continue_final_message,
        variables=variables,
    )
    return PromptJob(
        conversation=conversation,
        add_special_tokens=bool(request.add_special_tokens),
    )


def with_own_field(error: ApiError) -> ApiError:
    """Return an error of the conversation with the name of its field in this dialect."""
    if error.param == "template":
        error.param = "chat_template"
    return error


def _messages(
    given: Sequence[Message], known_id: Callable[[str | None], str | None]
) -> list[dict[str, Any]]:
    """Return messages with the fields that templates read, and calls in one form."""
    messages = []
    call_id: str | None = None  # of the last call in the older form, which has none
    for index, message in enumerate(given):
        _check_supported(f"messages[{index}]", message)
        fields: dict[str, Any] = {"role": message.role}
        for name in _FIELDS:
            value = getattr(message, name)
            if value is not None:
                fields[name] = value
        if message.tool_calls:
            fields["tool_calls"] = [
                _call(each.function, known_id(each.id)) for each in message.tool_calls
            ]
        elif message.function_call is not None:
            call_id = f"call{index:05d}"
            fields["tool_calls"] = [_call(message.function_call, call_id)]
        if message.tool_call_id is not None:
            fields["tool_call_id"] = known_id(message.tool_call_id)
        elif message.role == _OLD_ROLE:
            fields["role"] = "tool"
            if call_id is not None:
                fields["tool_call_id"] = call_id
        messages.append(fields)
    return messages


def _call(function: PastFunction, call_id: str | None) -> dict[str, Any]:
    """Return a call in the form that templates read."""
    called = {"name": function.name, "arguments": function.arguments or "{}"}
    call: dict[str, Any] = {"type": "function", "function": called}
    return call if call_id is None else {"id": call_id, **call}


def _check_supported(where: str, message: Message) -> None:
    """Raise ApiError for fields that ask for what is missing."""
    if message.audio:
        raise not_yet(f"{where}.audio", "this model reads text; send the transcript as content")
    for field in ("prefix", "partial"):
        if getattr(message, field):
            what = "send continue_final_message=true beside messages to continue the last one"
            raise not_yet(f"{where}.{field}", what)
