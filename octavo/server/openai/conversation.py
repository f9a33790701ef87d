"""The request's conversation as a job for a prompt worker, which normalises and renders it."""

from __future__ import annotations

from typing import Any

from octavo.server.http.errors import ApiError, invalid, not_yet
from octavo.server.openai.schema.chat import ChatRequest, Message
from octavo.server.openai.schema.tokens import TokenizeRequest
from octavo.server.settings import ServerSettings
from octavo.text.prompt_worker import Conversation, PromptJob

# What templates may read; the other fields are accepted and ignored, or rejected below.
_FIELDS = ("role", "content", "refusal", "name", "reasoning_content", "reasoning", "thinking")
_TOOLS = "tools are not supported yet; write calls and results into the messages' content"


def conversation_job(request: ChatRequest | TokenizeRequest, config: ServerSettings) -> PromptJob:
    """Return the job for a worker; raise ApiError for what this server does not support."""
    if request.chat_template is not None and not config.trust_request_chat_template:
        raise invalid(
            "chat_template: this server does not trust templates of requests; start it with "
            "--trust-request-chat-template if it should",
            "chat_template",
        )
    opens = request.add_generation_prompt
    variables = dict(request.chat_template_kwargs or {})
    documents = None
    if isinstance(request, ChatRequest):
        documents = request.documents
        if request.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", request.reasoning_effort)
            variables.setdefault("enable_thinking", request.reasoning_effort != "none")
    assert request.messages is not None
    messages = []
    for index, message in enumerate(request.messages):
        messages.append(_fields(index, message))
    conversation = Conversation(
        messages=messages,
        template=request.chat_template or config.chat_template,
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


def _fields(index: int, message: Message) -> dict[str, Any]:
    """Return the fields that templates read; raise for those that ask for what is missing."""
    where = f"messages[{index}]"
    for field in ("tool_calls", "function_call"):
        if getattr(message, field):
            raise not_yet(f"{where}.{field}", _TOOLS)
    if message.role in ("tool", "function"):
        raise not_yet(f"{where}.role", _TOOLS)
    if message.audio:
        raise not_yet(f"{where}.audio", "this model reads text; send the transcript as content")
    for field in ("prefix", "partial"):
        if getattr(message, field):
            what = "send continue_final_message=true beside messages to continue the last one"
            raise not_yet(f"{where}.{field}", what)
    fields = {}
    for name in _FIELDS:
        value = getattr(message, name)
        if value is not None:
            fields[name] = value
    return fields
