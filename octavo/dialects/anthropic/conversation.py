"""The messages of Anthropic's dialect in the form that chat templates read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.dialects.anthropic.schema import ContentBlock, CountRequest
from octavo.dialects.common.conversation import given, no_text, past_call
from octavo.serving.answers.tool_use import ToolUse
from octavo.serving.translation import TranslationContext
from octavo.text.chat.messages import THINKING_SWITCHES
from octavo.text.chat.system_first import joined
from octavo.transport.errors import invalid
from octavo.workers.jobs import PromptJob

PROMPT_NAMES = {"template": "messages", "prompt": "messages"}  # by the neutral ones


def conversation_job(
    request: CountRequest, context: TranslationContext, tools: ToolUse
) -> PromptJob:
    """Return the job for a worker; raise ApiError for what this server does not support.

    If the last message is the assistant's, the answer continues it.
    """
    chat: list[dict[str, Any]] = []
    if request.system:
        chat.append({"role": "system", "content": _text(request.system, "system")})
    for index, message in enumerate(request.messages):
        where = f"messages[{index}].content"
        if isinstance(message.content, str):
            chat.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            chat.append(_answer(message.content, where))
        elif not message.content:
            raise invalid(f"{where} is empty: give at least one block", where)
        else:
            chat += _turns(message.role, message.content, where)
    for turn in chat:
        _shorten_ids(turn, context.formats.known_id)
    variables: dict[str, Any] = {}
    if request.thinking is not None:
        variables.update(dict.fromkeys(THINKING_SWITCHES, request.thinking.type != "disabled"))
    if request.output_config is not None and request.output_config.effort is not None:
        variables["reasoning_effort"] = request.output_config.effort
    variables.update(request.chat_template_kwargs or {})
    conversation = context.conversation(
        joined(chat),
        variables,
        tools,
        is_continued=request.messages[-1].role == "assistant",
        moves_system=True,  # clients send reminders between the turns
    )
    return PromptJob(conversation=conversation, add_special_tokens=False)


def _shorten_ids(message: dict[str, Any], known_id: Callable[[str | None], str | None]) -> None:
    """Give the calls of a message the ids that the chat template accepts."""
    for call in message.get("tool_calls", ()):
        call["id"] = known_id(call["id"])
    if "tool_call_id" in message:
        message["tool_call_id"] = known_id(message["tool_call_id"])


def _answer(blocks: list[ContentBlock], where: str) -> dict[str, Any]:
    """Return an earlier answer: its text, its reasoning and its calls."""
    texts, reasoning, calls = [], [], []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        if block.type == "thinking":
            reasoning.append(given(block.thinking, f"{place}.thinking"))
        elif block.type == "tool_use":
            calls.append(_call(block, place))
        elif block.type != "redacted_thinking":
            texts.append(_part(block, place))
    message: dict[str, Any] = {"role": "assistant", "content": texts}
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: ContentBlock, where: str) -> dict[str, Any]:
    name = given(block.name, f"{where}.name")
    return past_call(name, block.input or {}, given(block.id, f"{where}.id"))


def _turns(role: str, blocks: list[ContentBlock], where: str) -> list[dict[str, Any]]:
    """Return the results of tools as messages of their own, and the text around them."""
    turns: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        if block.type == "tool_result":
            call_id = given(block.tool_use_id, f"{place}.tool_use_id")
            text = _text(block.content or "", f"{place}.content")
            turns.append({"role": "tool", "tool_call_id": call_id, "content": text})
        else:
            turns.append({"role": role, "content": [_part(block, place)]})
    return turns


def _text(content: str | list[ContentBlock], where: str) -> str:
    if isinstance(content, str):
        return content
    parts = [_part(block, f"{where}[{index}]") for index, block in enumerate(content)]
    return "\n".join(part["text"] for part in parts)


def _part(block: ContentBlock, where: str) -> dict[str, Any]:
    """Return a block of text; raise ApiError for other types."""
    if block.type != "text":
        raise no_text(block.type, where)
    return {"type": "text", "text": given(block.text, f"{where}.text")}
