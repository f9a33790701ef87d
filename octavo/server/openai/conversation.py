"""Messages as clients send them, brought to the form that chat templates read."""

from __future__ import annotations

from typing import Any

from octavo.server.http.errors import invalid, not_yet
from octavo.server.schema.chat import ChatRequest, ContentPart, Message
from octavo.server.schema.tokens import TokenizeRequest
from octavo.server.settings import ServerSettings
from octavo.text.chat.messages import OWN_VARIABLES
from octavo.text.prompt_worker import Conversation, PromptJob

_TEXT_TYPES = ("text", "input_text", "output_text")
_MAY_SAY_NOTHING = ("assistant",)  # as an answer of calls alone, or a refusal
_NOT_TEXT = ("image_url", "input_audio", "audio_url", "video_url", "file")
_TOOLS = "tools are not supported yet; write calls and results into the messages' content"


def conversation_job(request: ChatRequest | TokenizeRequest, config: ServerSettings) -> PromptJob:
    """What is to be rendered and tokenised; raises ApiError for what no template could take."""
    if request.chat_template is not None and not config.trust_request_chat_template:
        raise invalid(
            "chat_template: those of requests are not trusted here; start the server with "
            "--trust-request-chat-template if they should be",
            "chat_template",
        )
    continues = request.continue_final_message
    opens = request.add_generation_prompt
    if continues and opens:
        raise invalid(
            "add_generation_prompt=true opens a new message and continue_final_message=true goes "
            "on with the last one: send one of them",
            "continue_final_message",
        )
    if opens is None:
        opens = not continues
    assert request.messages is not None
    variables = dict(request.chat_template_kwargs or {})
    if taken := OWN_VARIABLES & variables.keys():
        name = f"chat_template_kwargs.{min(taken)}"
        raise invalid(f"{name} cannot be given so; it is a field of its own", name)
    documents = None
    if isinstance(request, ChatRequest):
        documents = request.documents
        if request.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", request.reasoning_effort)
            variables.setdefault("enable_thinking", request.reasoning_effort != "none")
    conversation = Conversation(
        messages=[_plain(index, message) for index, message in enumerate(request.messages)],
        template=request.chat_template or config.chat_template,
        documents=documents,
        add_generation_prompt=opens,
        continue_final_message=continues,
        variables=variables,
    )
    return PromptJob(conversation=conversation, add_special_tokens=bool(request.add_special_tokens))


def _plain(index: int, message: Message) -> dict[str, Any]:
    where = f"messages[{index}]"
    _check_supported(where, message)
    content = _content(where, message.content) or message.refusal or ""
    if message.content in (None, []) and message.role not in _MAY_SAY_NOTHING:
        name = f"{where}.content"
        raise invalid(f"{name} is missing: it is the message's text, which may be empty", name)
    plain: dict[str, Any] = {"role": message.role, "content": content}
    for name in ("name", "reasoning_content", "reasoning", "thinking"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    return plain


def _check_supported(where: str, message: Message) -> None:
    """Raise for what the model would have to be told and cannot be."""
    for field in ("tool_calls", "function_call"):
        if getattr(message, field):
            raise not_yet(f"{where}.{field}", _TOOLS)
    if message.role in ("tool", "function"):
        raise not_yet(f"{where}.role", _TOOLS)
    if message.audio:
        raise not_yet(f"{where}.audio", "this model reads text; send what was said as content")
    for field in ("prefix", "partial"):
        if getattr(message, field):
            what = "send continue_final_message=true beside messages, to go on with the last one"
            raise not_yet(f"{where}.{field}", what)


def _content(where: str, content: str | list[ContentPart | str] | None) -> str:
    """The text; parts are put together as lines, as vLLM does for templates that read strings."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(
        part if isinstance(part, str) else _text_of(f"{where}.content[{index}]", part)
        for index, part in enumerate(content)
    )


def _text_of(where: str, part: ContentPart) -> str:
    if part.type not in (*_TEXT_TYPES, "refusal"):
        what = f"content of type {part.type[:64]!r} is not supported; this model reads text"
        raise not_yet(f"{where}.type", what)
    for field in _NOT_TEXT:
        if getattr(part, field):
            raise not_yet(f"{where}.{field}", "this model reads text; leave it out")
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        field = "refusal" if part.type == "refusal" else "text"
        raise invalid(f"{where}.{field} is missing", f"{where}.{field}")
    return text
