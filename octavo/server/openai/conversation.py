"""Messages as clients send them, brought to the form that chat templates read."""

from __future__ import annotations

from typing import Any

from octavo.frontend.preparer import Conversation, Job
from octavo.server.config import ServerConfig
from octavo.server.errors import invalid, not_yet
from octavo.server.schema.chat import ChatRequest, ContentPart, Message
from octavo.server.schema.tokens import TokenizeRequest

_TEXT_TYPES = ("text", "input_text", "output_text")


def conversation_job(request: ChatRequest | TokenizeRequest, config: ServerConfig) -> Job:
    """What is to be rendered and tokenised; raises ApiError for what no template could take."""
    if request.chat_template is not None and not config.trust_request_chat_template:
        raise invalid(
            "templates of requests are not trusted here; start the server with "
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
    return Job(conversation=conversation, add_special_tokens=bool(request.add_special_tokens))


def _plain(index: int, message: Message) -> dict[str, Any]:
    where = f"messages[{index}]"
    if message.tool_calls or message.role in ("tool", "function"):
        field = "tool_calls" if message.tool_calls else "role"
        raise not_yet(f"{where}.{field}", "tools are not supported yet")
    plain: dict[str, Any] = {"role": message.role, "content": _content(where, message.content)}
    for name in ("name", "reasoning_content", "reasoning", "thinking"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    return plain


def _content(where: str, content: str | list[ContentPart | str] | None) -> str:
    """The text; parts are put together as lines, as vLLM does for templates that read strings."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
        elif part.type in _TEXT_TYPES and part.text is not None:
            texts.append(part.text)
        elif part.type == "refusal" and part.refusal is not None:
            texts.append(part.refusal)
        elif part.type in (*_TEXT_TYPES, "refusal"):
            raise invalid(f"{where}.content[{index}] has no text", f"{where}.content[{index}]")
        else:
            what = f"content of type {part.type[:64]!r} is not supported; this model reads text"
            raise not_yet(f"{where}.content[{index}].type", what)
    return "\n".join(texts)
